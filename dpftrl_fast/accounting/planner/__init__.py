# SPDX-License-Identifier: Apache-2.0
"""Search for the mechanism or the largest run that keeps a budget."""
