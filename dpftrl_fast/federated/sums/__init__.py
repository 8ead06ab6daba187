# SPDX-License-Identifier: Apache-2.0
"""Exact clipped sums of client updates, and the noisy running sum."""
