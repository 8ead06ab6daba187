# SPDX-License-Identifier: Apache-2.0
"""The Gaussian privacy curve, exact and rounded up, and its conversions."""
