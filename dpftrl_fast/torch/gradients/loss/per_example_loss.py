# SPDX-License-Identifier: Apache-2.0
"""`PerExampleLoss`: the mean over examples of each example's own mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from dpftrl_fast._validate import choice


class PerExampleLoss(nn.Module):
    """A loss that keeps examples apart: the mean over the batch of each example's own loss.

    A mean over the targets of a whole batch that are not ignored, or a mean with weights, divides
    by a number to which every example contributes. This one divides by a number of one example at
    a time::

        criterion = PerExampleLoss(nn.CrossEntropyLoss(weight=w, ignore_index=-100))
        loss = criterion(logits.transpose(1, 2), labels)  # (n, classes, length), (n, length)

    Parameters
    ----------
    criterion : callable
        ``criterion(output, target, ...)`` of a batch of one example returns its loss: a scalar, or
        losses that are averaged. Cross-entropy (`nn.CrossEntropyLoss`, `nn.NLLLoss`) is computed
        for all examples at once, anything else one example at a time.
    reduction : {"mean", "sum"}
        Over the examples: as `loss_reduction` of `make_private`, and its default.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described above, a criterion with a `reduction` does not take the
        mean of an example, or the arguments of a call do not have the same number of rows.

    Notes
    -----
    Row i of all tensors of a call is example i. An example without a target has the loss 0, with a
    gradient of 0. Where all examples have the same number of targets, none ignored, and there are
    no weights, the value is that of the usual mean.

    Examples
    --------
    >>> criterion = PerExampleLoss(nn.CrossEntropyLoss())
    >>> logits = torch.zeros(3, 2, 4)  # three examples, two classes, four tokens
    >>> labels = torch.tensor([[0, 1, 1, 0], [1, -100, -100, -100], [-100] * 4])
    >>> round(float(criterion(logits, labels)) * 3 / 2, 4)  # log 2: two have targets
    0.6931
    """

    def __init__(self, criterion: Callable[..., Any], reduction: str = "mean") -> None:
        super().__init__()
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {type(criterion).__name__}")
        own = getattr(criterion, "reduction", "mean")
        if own not in ("mean", "none"):
            raise ValueError(
                "criterion must take the mean of an example (reduction='mean' or 'none'), got "
                f"{own!r}: the reduction over examples is that of PerExampleLoss"
            )
        self.criterion = criterion
        self.reduction = choice("reduction", reduction, ("mean", "sum"))

    def forward(self, output: Any, *others: Any) -> Tensor:
        """Return the loss of a batch: the criterion's arguments, each with a row an example."""
        given = (output, *others)
        tensors = [x for x in given if isinstance(x, Tensor)]
        if has_torch_function(tensors):  # one function of the batch, for whoever records it
            found: Tensor = handle_torch_function(
                PerExampleLoss.losses, tensors, self.criterion, *given
            )
        else:
            found = PerExampleLoss.losses(self.criterion, *given)
        return found.mean() if self.reduction == "mean" else found.sum()

    @staticmethod
    def losses(criterion: Callable[..., Any], *given: Any) -> Tensor:
        """Return the loss of each example; shape (n,)."""
        counts = {len(x) if x.dim() else 0 for x in given if isinstance(x, Tensor)}
        if len(counts) != 1 or not max(counts):
            raise ValueError(
                "the tensors of a loss must have the same number of rows, one an example, got "
                f"{sorted(counts)}"
            )
        if type(criterion) in (nn.CrossEntropyLoss, nn.NLLLoss) and len(given) == 2:
            return _cross_entropies(criterion, *given)
        rows = counts.pop()
        columns = [torch.split(x, 1) if isinstance(x, Tensor) else [x] * rows for x in given]
        found = torch.stack([criterion(*one).mean() for one in zip(*columns, strict=True)])
        return torch.where(found.isnan(), torch.zeros_like(found), found)


def _cross_entropies(criterion: Any, output: Tensor, target: Tensor) -> Tensor:
    """Return each example's mean: the sum of its weighted losses over that of its weights."""
    weight, ignored = criterion.weight, criterion.ignore_index
    if type(criterion) is nn.NLLLoss:
        each = functional.nll_loss(output, target, weight, ignore_index=ignored, reduction="none")
    else:
        each = functional.cross_entropy(
            *(output, target, weight),
            ignore_index=ignored,
            reduction="none",
            label_smoothing=criterion.label_smoothing,
        )
    each = each.flatten(1) if each.dim() > 1 else each[:, None]
    if target.is_floating_point():  # probabilities of the classes: none is ignored
        return each.mean(1)
    at = target.flatten(1) if target.dim() > 1 else target[:, None]
    counts = (at != ignored).to(each.dtype)
    if weight is not None:
        counts = counts * weight.to(each.dtype)[at.clamp(0, len(weight) - 1)]
    total = counts.sum(1)
    return each.sum(1) / torch.where(total > 0, total, torch.ones_like(total))
