# SPDX-License-Identifier: Apache-2.0
"""What a parameter must be, so that its sum of clipped gradients can be written to ``p.grad``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpftrl_fast.torch.gradients.clipped_sums import sum_dtype


def check_parameters(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that sums of gradients can be written for; ValueError otherwise.

    Examples
    --------
    >>> len(check_parameters([torch.nn.Parameter(torch.zeros(2))]))
    1
    """
    given = list(parameters)
    if not given:
        raise ValueError("parameters must be one or more tensors, got none")
    if len({id(p) for p in given}) != len(given):
        raise ValueError("parameters must be distinct, got one twice")
    for i, p in enumerate(given):
        if not (p.dtype.is_floating_point and p.layout == torch.strided and p.requires_grad):
            raise ValueError(
                f"parameter {i} must be a dense tensor of floating-point numbers that requires "
                f"grad, got {p.dtype}, {p.layout}, requires_grad={p.requires_grad}"
            )
    return given


def let_grad_be_a_sum(p: Tensor) -> None:
    """Clear ``p.grad`` and allow it to be wider than a half-precision parameter.

    Raises
    ------
    ValueError
        If the parameter is one and torch does not know ``grad_dtype`` yet.

    Examples
    --------
    >>> p = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    >>> let_grad_be_a_sum(p)
    >>> p.grad = torch.zeros(2)
    """
    p.grad = None
    if p.dtype == sum_dtype(p.dtype):
        return
    if not hasattr(p, "grad_dtype"):
        raise ValueError(
            f"parameters of {p.dtype} need a torch whose tensors have grad_dtype, got torch "
            f"{torch.__version__}"
        )
    p.grad_dtype = sum_dtype(p.dtype)
