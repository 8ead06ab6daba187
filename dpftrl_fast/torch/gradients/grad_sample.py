# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients by Opacus's hooks, and losses whose mean is over the batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dpftrl_fast._validate import choice, flag
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.layers import check_layers
from dpftrl_fast.torch.gradients.owned import owned_names


class HookGradients:
    """The `Source` of an `Accumulator` that lets Opacus compute per-example gradients.

    The model is wrapped in Opacus's ``GradSampleModule`` (as `module`), which stores them in
    ``p.grad_sample`` after ``loss.backward()``. They are clipped and added up before the next
    forward pass in training mode and at the step, so that those of one piece are in memory at a
    time. The rows that layers get are checked, see `gradients.rows`.

    Parameters
    ----------
    model : nn.Module
        In training mode it must treat each example separately.
    accumulator : Accumulator
        Its parameters must be the model's.
    functorch : bool
        Opacus's functorch mode: all layers by ``torch.func``, none by its own formulas.
    batch_first, loss_reduction
        As for Opacus's ``GradSampleModule``.

    Raises
    ------
    ValueError
        If the model has layers that cannot be trained so (they are named), is wrapped already, or
        lacks a parameter of the accumulator.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1, bias=False)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([model.weight], FlatClipping(1.0), 2, plan.guard())
    >>> module = HookGradients(model, sums, loss_reduction="sum").module
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> module(torch.eye(2)).sum().backward()
    >>> sums.finish()
    >>> model.weight.grad
    tensor([[1.0000, 1.0000]])
    """

    def __init__(
        self,
        model: nn.Module,
        accumulator: Accumulator,
        *,
        functorch: bool = False,
        batch_first: bool = True,
        loss_reduction: str = "mean",
    ) -> None:
        from opacus.grad_sample import AbstractGradSampleModule

        from dpftrl_fast.torch.gradients.rows import PlainStrides, watch_rows

        choice("loss_reduction", loss_reduction, ("mean", "sum"))
        flag("batch_first", batch_first)
        if isinstance(model, AbstractGradSampleModule):
            raise ValueError("model must not be wrapped by Opacus yet, got one that is")
        if hasattr(model, "autograd_grad_sample_hooks"):
            raise ValueError("model must not be made private before, got one that has hooks")
        check_layers(
            model, "functorch" if flag("functorch", functorch) else "hooks", batch_first=batch_first
        )
        owned_names(model, accumulator)
        self._parameters = accumulator.parameters
        self._layers = list(model.modules())
        self.module = PlainStrides(
            model,
            batch_first=batch_first,
            loss_reduction=loss_reduction,
            force_functorch=functorch,
        )
        accumulator.source = self

        def before_forward(module: nn.Module, args: Any) -> None:
            # Complete gradients belong to an earlier piece. Incomplete passes are kept:
            # several forward passes may share one backward pass.
            if module.training and torch.is_grad_enabled():
                accumulator.take()

        self.module.register_forward_pre_hook(before_forward)
        watch_rows(self.module, accumulator, self.settle, batch_first=batch_first)

    def collect(self) -> list[Tensor | None] | None:
        """Return ``p.grad_sample``, as `Source.collect` says.

        ValueError if a parameter got a gradient without complete per-example gradients.
        """
        samples = [getattr(p, "grad_sample", None) for p in self._parameters]
        if all(sample is None for sample in samples):
            return None
        try:
            for i, (p, sample) in enumerate(zip(self._parameters, samples, strict=True)):
                if isinstance(sample, list):
                    raise ValueError(
                        f"expected one backward pass for each piece of a batch, got {len(sample)}"
                    )
                if sample is None and (p.grad is not None or hasattr(p, "_current_grad_sample")):
                    raise ValueError(
                        f"parameter {i} of shape {tuple(p.shape)} got a gradient but its "
                        "grad_sample is missing: it is used outside of a layer that Opacus knows, "
                        "or not all of a forward pass was in the loss; grad_sample_mode='vmap' has "
                        "no such limits"
                    )
            return samples
        finally:
            for p in self._parameters:
                p.grad_sample = None  # type: ignore[attr-defined]
                p.grad = None

    def settle(self) -> None:
        """Forget forward passes that no backward pass followed."""
        for layer in self._layers:
            for name in ("activations", "max_batch_len"):
                if hasattr(layer, name):
                    delattr(layer, name)
        for p in self.module.parameters():
            if hasattr(p, "_current_grad_sample"):
                del p._current_grad_sample
            if p.requires_grad:
                p._forward_counter = 0
                p.grad_sample = None
                p.grad = None


def check_criterion(criterion: Any, loss_reduction: str | None = None) -> None:
    """Refuse a loss whose mean over the batch is not the mean of one loss for each example.

    With class weights the mean is divided by the sum of the weights of the examples in the batch,
    with ``ignore_index`` by the number of targets that are not ignored: every example then changes
    the gradients of all others, and clipping does not bound the effect of one. A criterion that is
    not an ``nn.Module`` with a ``reduction`` is not checked.

    Examples
    --------
    >>> check_criterion(nn.CrossEntropyLoss(), "mean")
    >>> check_criterion(nn.CrossEntropyLoss(weight=torch.ones(2)))
    Traceback (most recent call last):
    ...
    ValueError: criterion CrossEntropyLoss must have reduction='sum' with weight or ignore_index \
(its mean divides by what is in the batch), got 'mean'
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
            "divides by what is in the batch), got 'mean'"
        )
    if reduction not in ((loss_reduction,) if loss_reduction else ("mean", "sum")):
        expected = repr(loss_reduction) if loss_reduction else "'mean' or 'sum'"
        raise ValueError(f"criterion {name} must have reduction={expected}, got {reduction!r}")
