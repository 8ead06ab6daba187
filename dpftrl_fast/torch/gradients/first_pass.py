# SPDX-License-Identifier: Apache-2.0
"""Checks of a training pass before the first step: mistakes that later errors would not name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dpftrl_fast.torch.gradients.accumulate import Accumulator


def check_first_pass(model: nn.Module, sums: Accumulator, given: Any) -> None:
    """Refuse a pass in evaluation mode, or on the ids of the batch, before the first step.

    Called before passes of the model with its arguments, in any containers. Passes without
    gradients, between batches and after the first step are not looked at: a later refusal may not
    depend on a batch.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator(list(model.parameters()), FlatClipping(1.0), 2, plan.guard())
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> check_first_pass(model, sums, [torch.eye(2)])
    >>> check_first_pass(model, sums, [torch.tensor([7, 8])])
    Traceback (most recent call last):
    ...
    ValueError: the model must get the batch, got its ids: the loader yields (ids, batch), so \
write `for ids, (x, y) in loader`
    """
    if sums.steps_taken > 0 or not sums.rows_due or not torch.is_grad_enabled():
        return
    if any(_is_ids(value, model, sums.ids) for value in tree_leaves(given)):
        raise ValueError(
            "the model must get the batch, got its ids: the loader yields (ids, batch), so write "
            "`for ids, (x, y) in loader`"
        )
    if not model.training:
        raise ValueError(
            "the model must be in training mode in a pass with gradients on a batch of the loader, "
            "got evaluation mode: call model.train() first, or torch.no_grad() around a pass that "
            "is not for training"
        )


def _is_ids(value: Any, model: nn.Module, ids: Any) -> bool:
    """Whether a value must be ids of the open batch."""
    if isinstance(value, Tensor):
        if value.dtype != torch.int64 or value.dim() != 1:
            return False
        if any(isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) for layer in model.modules()):
            return False  # which may be trained on numbers like these
        value = value.detach().cpu().numpy()
    if ids is None or not isinstance(value, np.ndarray) or value.ndim != 1 or not value.size:
        return False
    return bool(np.isin(value, ids).all() and len(np.unique(value)) == len(value))
