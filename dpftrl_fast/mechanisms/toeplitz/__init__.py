# SPDX-License-Identifier: Apache-2.0
"""Toeplitz matrix mechanisms: their values, layout, coefficients, error and optimisation."""
