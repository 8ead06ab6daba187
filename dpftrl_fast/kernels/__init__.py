# SPDX-License-Identifier: Apache-2.0
"""Numba kernels: arrays in and out, one pass over private rows; no noise, no accounting."""

from dpftrl_fast.kernels.gradients import clipped_sum, predict
from dpftrl_fast.kernels.rows import Rows, SparseRows

__all__ = ["Rows", "SparseRows", "clipped_sum", "predict"]
