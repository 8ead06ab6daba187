# SPDX-License-Identifier: Apache-2.0
"""Least squares from two private running sums."""
