# SPDX-License-Identifier: Apache-2.0
"""`mixes_inside`: whether a loss that the model itself returns mixes examples.

``model(**batch).loss`` divides by the number of labels that are not ignored. The loss is then an
output of the model, and its labels are an argument, so the model is run again with other rows
beside those that are kept, and the gradients of the loss with respect to the outputs of its layers
are compared in the rows that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_map, tree_unflatten

from dpftrl_fast.torch.gradients.loss.loss_variants import (
    IGNORED,
    Rows,
    chosen,
    rows_of,
    same_rows,
)
from dpftrl_fast.torch.gradients.loss.torch_calls import tensors
from dpftrl_fast.torch.gradients.trials import changed_rows, copied
from dpftrl_fast.torch.plain_states import random_state, restore_random_state

_Gradients = list[tuple[Tensor, Rows]]


def losses_of(outputs: Any) -> list[Tensor]:
    """Return the outputs of a model that are losses: one number, with a gradient.

    Examples
    --------
    >>> losses_of((torch.ones(3), torch.tensor(1.0, requires_grad=True)))
    [tensor(1., requires_grad=True)]
    """
    return [x for x in tensors(outputs) if x.numel() == 1 and x.dim() < 2 and x.requires_grad]


def mixes_inside(
    model: Callable[..., Any],
    layers: Iterable[nn.Module],
    rows: int,
    args: Any,
    kwargs: Any,
    *,
    batch_first: bool = True,
) -> str | None:
    """Return what the gradient of an example depends on, other than on itself; None if nothing.

    Parameters
    ----------
    model : callable
        Returns its outputs, one of them the loss. Hooks for per-example gradients must be off, and
        the caller puts buffers back.
    layers : iterable of nn.Module
        The gradients of the loss with respect to their outputs are compared.
    rows : int
        Examples of the arguments, along the first of their first two dimensions that is as long.
    args, kwargs
        Arguments of the model. Before something was released they may be those of a batch,
        afterwards they must be made up.
    batch_first : bool
        Whether it is the second dimension where both are as long.

    Returns
    -------
    str or None
        "others", or the name of the labels and of the value that others may have.
    """
    trial = _Inside(model, list(layers), rows, 0 if batch_first else 1)
    state = random_state()
    try:
        return trial.compare(args, kwargs, state)
    finally:
        restore_random_state(state)


class _Inside:
    def __init__(self, model: Any, layers: list[nn.Module], rows: int, first: int) -> None:
        self._model, self._layers, self._rows, self._first = model, layers, rows, first

    def compare(self, args: Any, kwargs: Any, state: Any) -> str | None:
        leaves, spec = tree_flatten_with_path((args, kwargs))
        given = [x for _, x in leaves]
        base = self._gradients(args, kwargs, state)
        for name, changed, values in self._variants([(_label(p), x) for p, x in leaves]):
            found = dict(enumerate(given)) | values
            other = tree_unflatten([found[i] for i in range(len(given))], spec)
            try:
                gradients = self._gradients(other[0], other[1], state)
            except Exception:  # the model does not take such values
                continue
            kept = [i for i in range(self._rows) if i not in changed]
            if len(gradients) == len(base) and not all(
                a.shape != b.shape or same_rows(a, b, where, kept)
                for (a, where), (b, _) in zip(base, gradients, strict=True)
            ):
                return name
        return None

    def _variants(
        self, named: list[tuple[str, Any]]
    ) -> Iterator[tuple[str, list[int], dict[int, Tensor]]]:
        """Return names, rows that are others, and arguments by their number."""
        where: dict[int, Rows] = {}
        for i, (_, x) in enumerate(named):
            if isinstance(x, Tensor):
                at = rows_of(x.shape, self._rows, self._first, frozenset())
                if at is not None:
                    where[i] = at
        first = changed_rows(self._rows)
        for changed in (first, [i for i in range(self._rows) if i not in first]):
            places = [(i - 1) % self._rows if i in changed else i for i in range(self._rows)]
            yield "others", changed, {i: chosen(named[i][1], at, places) for i, at in where.items()}
        for i, at in where.items():
            name, x = named[i]
            if x.is_complex() or not x.numel():
                continue
            index = torch.tensor(first, device=x.device)
            integer = not x.is_floating_point() and x.dtype != torch.bool
            for number in [*_numbers(name, x, integer)]:
                value = x.min() if number == "min" else x.max() if number == "max" else number
                shown = {"min": "the smallest", "max": "the largest"}.get(number, number)
                words = f"the {name} of others, if they are {shown}" if integer else "others"
                yield words, first, {i: x.detach().index_fill(at.dim, index, value)}

    def _gradients(self, args: Any, kwargs: Any, state: Any) -> _Gradients:
        """Return the gradients of the loss with respect to the outputs of the layers."""
        seen: list[Tensor] = []

        def keep(layer: nn.Module, given: Any, output: Any) -> None:
            seen.extend(x for x in tensors(output) if x.requires_grad)

        handles = [layer.register_forward_hook(keep) for layer in self._layers]
        restore_random_state(state)
        try:
            args, kwargs = tree_map(copied, (args, kwargs))
            outputs = self._model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        losses = losses_of(outputs)
        if not losses or not seen:
            return []
        total = torch.stack([x.flatten()[0].double() for x in losses]).sum()
        found: Sequence[Tensor | None] = torch.autograd.grad(total, seen, allow_unused=True)
        pairs = [
            (g, rows_of(g.shape, self._rows, self._first, frozenset()))
            for g in found
            if g is not None
        ]
        return [(g, where) for g, where in pairs if where is not None]


def _numbers(name: str, x: Tensor, integer: bool) -> Iterator[Any]:
    """Return values for some rows of an argument; only a CPU survives an index that is none."""
    if integer or x.dtype == torch.bool:
        yield from ("min", "max")
    target = any(word in name.lower() for word in ("label", "target"))
    if x.device.type == "cpu" or target:
        yield from (0, 1)
        # Where an example has one label only, the usual data has none to ignore.
        if integer and (x.dim() > 1 or bool((x == IGNORED).any())):
            yield IGNORED


def _label(path: Any) -> str:
    last = getattr(path[-1], "key", None) if path else None
    return f"argument {last!r}" if isinstance(last, str) else "targets"
