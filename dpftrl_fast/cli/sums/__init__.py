# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum``: sums of rows in file order, and tables of events over time."""
