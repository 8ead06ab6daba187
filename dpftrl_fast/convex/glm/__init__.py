# SPDX-License-Identifier: Apache-2.0
"""FTRL for generalised linear models: sums, rates, fit and regret."""
