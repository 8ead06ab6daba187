# SPDX-License-Identifier: Apache-2.0
"""Tables over time: private counts and sums of events by key and period."""
