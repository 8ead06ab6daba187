# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients: Opacus's hooks, or ``torch.func`` where Opacus refuses a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from dpftrl_fast._validate import choice, flag, optional, positive_integer
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.held import refuse_held
from dpftrl_fast.torch.gradients.layers import check_layers

Loss = Callable[[Any, Any], Tensor]


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

        from dpftrl_fast.torch.gradients.loss_trial import LossTrial
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
        _check_owned(model, accumulator)
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

        self.trial = trial = LossTrial(accumulator, loss_reduction, batch_first)
        accumulator.handed_out = trial.batch
        trial.alone = partial(_alone, self.module)
        trial.layers = [x for x in self._layers if any(True for _ in x.parameters(recurse=False))]
        self.module.register_forward_pre_hook(trial.before, with_kwargs=True)
        self.module.register_forward_pre_hook(before_forward)
        watch_rows(self.module, accumulator, self.settle, batch_first=batch_first)
        self.module.register_forward_hook(trial.after, with_kwargs=True)

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


class VmapModule(nn.Module):
    """A model whose per-example gradients are made by ``torch.func``, whatever its layers are.

    Each example passes through the model alone (as a batch of one, under ``vmap``), so the model
    cannot mix two. Buffers are constants, and a model or a loss that keeps tensors of one pass for
    the next is refused. Training is two calls: ``losses = model.backward(inputs, targets)`` instead
    of a forward pass, a loss and its ``backward()``; then ``optimizer.step()``.

    Parameters
    ----------
    model : nn.Module
        Without BatchNorm layers.
    criterion : callable
        ``criterion(output, target)`` of a batch of one example: a scalar loss. A mean with weights
        is then over the content of this example alone.
    accumulator : Accumulator
        Its parameters must be the model's.
    chunk_size : int, optional
        Number of examples whose gradients are in memory at a time; all rows of a call by default.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1, bias=False)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([model.weight], FlatClipping(1.0), 2, plan.guard())
    >>> module = VmapModule(model, lambda output, target: (output - target).sum(), sums)
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> losses = module.backward(torch.eye(2), torch.zeros(2, 1))
    >>> sums.finish()
    >>> model.weight.grad
    tensor([[1.0000, 1.0000]])
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Loss,
        accumulator: Accumulator,
        *,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        check_layers(model, "vmap")
        if not callable(criterion):
            raise TypeError(f"criterion must be callable, got {type(criterion).__name__}")
        self._chunk = optional(positive_integer, "chunk_size", chunk_size)
        names = _check_owned(model, accumulator)
        self._module = model
        self._criterion = (criterion,)  # in a tuple: its weights are no part of the model
        self._accumulator = accumulator
        self._names = names

        def loss(trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any) -> Any:
            one = _map(lambda t: t.unsqueeze(0), x)
            args = one if isinstance(one, tuple) else (one,)
            output = functional_call(model, {**trained, **fixed}, args)
            return criterion(output, _map(lambda t: t.unsqueeze(0), y))

        self._gradients = vmap(
            grad_and_value(loss), in_dims=(None, None, 0, 0), randomness="different"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model as it is."""
        return self._module(*args, **kwargs)

    def backward(self, inputs: Any, targets: Any) -> Tensor:
        """Add the clipped gradients of a piece of the batch, as ``loss.backward()`` would.

        Parameters
        ----------
        inputs : Tensor, or tuple, list or dict of them
            Of the examples that the loader yielded, along the first dimension; a tuple holds
            several arguments of the model.
        targets : Tensor, or tuple, list or dict of them
            Second argument of `criterion`, of the same examples.

        Returns
        -------
        Tensor, shape (rows,)
            The loss of each example: not private, not to be published.
        """
        sizes = {t.shape[0] if t.dim() else 0 for t in [*_tensors(inputs), *_tensors(targets)]}
        if len(sizes) != 1 or not max(sizes):
            raise ValueError(
                "inputs and targets must be tensors with the same number of rows, got "
                f"{sorted(sizes)}"
            )
        rows = sizes.pop()
        everything = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        everything = {name: t.detach() for name, t in everything.items()}
        trained = {name: everything.pop(name) for name in self._names}
        losses = []
        chunk = rows if self._chunk is None else self._chunk
        self._accumulator.check_room(rows)
        for start in range(0, rows, chunk):
            part = slice(start, start + chunk)
            x, y = _rows(inputs, part), _rows(targets, part)
            gradients, values = self._gradients(trained, everything, x, y)
            refuse_held(model=self._module, criterion=self._criterion[0])
            self._accumulator.add([gradients[name] for name in self._names])
            losses.append(values.detach())
        return torch.cat(losses)


def check_criterion(criterion: Any, loss_reduction: str | None = None) -> None:
    """Refuse a loss whose mean over the batch is not the mean of one loss for each example.

    With class weights the mean is divided by the sum of the weights of the examples in the batch,
    with ``ignore_index`` by the number of targets that are not ignored: every example then changes
    the gradients of all others, and clipping does not bound the effect of one. A criterion that is
    not an ``nn.Module`` with a ``reduction`` is not checked here; `LossTrial` tries it.

    Examples
    --------
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


@contextmanager
def _alone(module: Any) -> Iterator[nn.Module]:
    """Give a wrapped model without Opacus's hooks, and put its buffers back."""
    from dpftrl_fast.torch.gradients.rows import _unchanged, _without_hooks

    with _unchanged(module._module), _without_hooks(module):
        yield module._module


def _check_owned(model: nn.Module, accumulator: Accumulator) -> list[str]:
    """Return the names of the accumulator's parameters in the model."""
    names = {id(p): name for name, p in model.named_parameters()}
    missing = [i for i, p in enumerate(accumulator.parameters) if id(p) not in names]
    if missing:
        raise ValueError(
            f"the optimizer's parameters must be those of the model, got others at {missing}"
        )
    return [names[id(p)] for p in accumulator.parameters]


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to each tensor of nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _map(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(function, value) for value in tree)
    raise TypeError(f"expected tensors, or tuples, lists or dicts of them, got {type(tree)}")


def _rows(tree: Any, part: slice) -> Any:
    return _map(lambda tensor: tensor[part], tree)


def _tensors(tree: Any) -> Sequence[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map(keep, tree)
    return found
