# SPDX-License-Identifier: Apache-2.0
"""Numba kernels: arrays in and out, one pass over private rows; no noise, no accounting."""

from dpftrl_fast.kernels.glm import (
    clipped_gradient_sum,
    clipped_gradient_sum_csr,
    predict,
    predict_csr,
)

__all__ = ["clipped_gradient_sum", "clipped_gradient_sum_csr", "predict", "predict_csr"]
