# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients by passing each example alone through the whole model."""
