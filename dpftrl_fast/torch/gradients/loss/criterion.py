# SPDX-License-Identifier: Apache-2.0
"""`check_criterion`: losses whose mean is over what is in the batch."""

from __future__ import annotations

from typing import Any

from torch import nn


def check_criterion(criterion: Any, loss_reduction: str | None = None) -> None:
    """Refuse a loss whose mean over the batch is not the mean of one loss for each example.

    With class weights the mean is divided by the sum of the weights of the examples in the batch,
    with ``ignore_index`` by the number of targets that are not ignored: every example then changes
    the gradients of all others, and clipping does not bound the effect of one. A criterion that is
    not an ``nn.Module`` with a ``reduction`` is not checked here; `LossTrial` tries it.

    Examples
    --------
    >>> import torch
    >>> check_criterion(nn.CrossEntropyLoss(), "mean")
    >>> check_criterion(nn.CrossEntropyLoss(weight=torch.ones(2)))
    Traceback (most recent call last):
    ...
    ValueError: criterion CrossEntropyLoss must have reduction='sum' with weight or ignore_index \
(its mean divides by what is in the batch), got 'mean': give loss_reduction='sum' too, or take \
dpftrl_fast.torch.PerExampleLoss(criterion)
    """
    reduction = getattr(criterion, "reduction", None)
    if not isinstance(criterion, nn.Module) or reduction is None:
        return
    name = type(criterion).__name__
    weighs = isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss)) and (
        criterion.weight is not None or criterion.ignore_index != -100
    )
    if weighs and reduction == "mean":
        raise ValueError(
            f"criterion {name} must have reduction='sum' with weight or ignore_index (its mean "
            "divides by what is in the batch), got 'mean': give loss_reduction='sum' too, or take "
            "dpftrl_fast.torch.PerExampleLoss(criterion)"
        )
    if reduction not in ((loss_reduction,) if loss_reduction else ("mean", "sum")):
        expected = repr(loss_reduction) if loss_reduction else "'mean' or 'sum'"
        raise ValueError(f"criterion {name} must have reduction={expected}, got {reduction!r}")
