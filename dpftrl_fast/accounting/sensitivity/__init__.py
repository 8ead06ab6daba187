# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity of a mechanism under a participation pattern."""
