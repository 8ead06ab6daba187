# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients and their clipped sums."""
