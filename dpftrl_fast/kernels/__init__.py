# SPDX-License-Identifier: Apache-2.0
"""Numba kernels: arrays in and out, one pass over private rows; no noise, no accounting."""

from dpftrl_fast.kernels.glm import (
    clipped_gradient_sum,
    clipped_gradient_sum_csr,
    predict,
    predict_csr,
)
from dpftrl_fast.kernels.grouped import clipped_user_sum, clipped_user_sum_csr
from dpftrl_fast.kernels.multinomial import clipped_multi_sum, clipped_multi_sum_csr

__all__ = [
    "clipped_gradient_sum",
    "clipped_gradient_sum_csr",
    "clipped_multi_sum",
    "clipped_multi_sum_csr",
    "clipped_user_sum",
    "clipped_user_sum_csr",
    "predict",
    "predict_csr",
]
