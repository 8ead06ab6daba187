# SPDX-License-Identifier: Apache-2.0
"""`LossTrial`: the gradient of row i of the model's output must depend on row i alone.

A loss can mix examples that the model keeps apart: a mean over the targets that are not ignored, a
mean with class weights, a masked mean, a contrastive loss. One example then changes the gradients
of all others, and clipping bounds nothing. So the loss is tried once, in the user's own first
backward pass: between the batch, the model's output and ``backward()`` the functions of torch are
recorded (`loss.trace`), and run again on other values. When the gradient of the loss has come to
the model's output, and before it enters the model, the record must give

- the gradient that came, from the values that were: otherwise it is not complete, and a warning
  says that the loss was not tried;
- the same gradient for rows that are kept, while other rows of the outputs and of the batch are
  replaced by their neighbours, by other values of the batch, by values that are ignored;
- on half of the rows, a gradient that is as large ("sum") or larger by the number of rows ("mean").

The user's code runs once, and its gradients have the same bits. Values of the batch are looked at
before the first step only; later, when a run resumes, made-up values take their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_map
from torch.utils.hooks import RemovableHandle

from dpftrl_fast._validate import choice, flag
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.loss.loss_inside import losses_of, mixes_inside
from dpftrl_fast.torch.gradients.loss.loss_variants import (
    Values,
    Variants,
    chosen,
    same_rows,
)
from dpftrl_fast.torch.gradients.loss.torch_calls import Call, tensors
from dpftrl_fast.torch.gradients.loss.trace import Record
from dpftrl_fast.torch.gradients.recheck import made_up, made_up_trees
from dpftrl_fast.torch.gradients.trials import rounding, warn
from dpftrl_fast.torch.plain_states import random_state, restore_random_state

_REMEDY = (
    "sum a loss of each example (reduction='sum' in the loss and loss_reduction='sum' in "
    "make_private), or take the mean of each example's own loss "
    "(dpftrl_fast.torch.PerExampleLoss); a loss that compares examples has neither"
)


Root = tuple[int, Tensor | None]  # the place of a loss, and the gradient given to backward()
Gradients = dict[int, Tensor]
Alone = Callable[[], AbstractContextManager[nn.Module]]


class _Refusal(Exception):
    """The loss mixes examples, or has another reduction than was declared."""


class LossTrial:
    """Tries the loss in the first backward pass; `module` gets its hooks.

    Parameters
    ----------
    sums : Accumulator
        Tells how many rows are due, and whether something was released.
    loss_reduction : {"mean", "sum"}
        The declared one.
    batch_first : bool
        Whether examples are along the first dimension where two dimensions are as long.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 2)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator(list(model.parameters()), FlatClipping(1.0), 4, plan.guard())
    >>> trial = LossTrial(sums)
    >>> sums.begin([0, 1, 2, 3])
    >>> sums.expect(4)
    >>> output = trial.outputs(model(torch.eye(4, 2)), 4)
    >>> targets, weights = torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 3.0])
    >>> nn.functional.cross_entropy(output, targets, weights).backward()
    Traceback (most recent call last):
    ...
    ValueError: the loss must treat each example apart, got a \
gradient for one that depends on others: sum a loss of each example (reduction='sum' in the loss \
and loss_reduction='sum' in make_private), or take the mean of each example's own loss \
(dpftrl_fast.torch.PerExampleLoss); a loss that compares examples has neither
    """

    def __init__(
        self, sums: Accumulator, loss_reduction: str = "mean", batch_first: bool = True
    ) -> None:
        self._sums = sums
        self._reduction = choice("loss_reduction", loss_reduction, ("mean", "sum"))
        self._first = 0 if flag("batch_first", batch_first) else 1
        self._over = False
        self._record: Record | None = None
        self._outputs: list[Tensor] = []
        self._handle: RemovableHandle | None = None
        # Gives the model without the hooks, and puts its state back: for losses that it returns.
        self.alone: Alone | None = None
        self.layers: list[nn.Module] = []
        self._inside: str | None = None  # what is wrong with such a loss
        self._tried_inside = False

    @property
    def wanted(self) -> bool:
        """Whether the next pass is to be tried."""
        return not self._over and self._sums.rows_due > 1  # one row alone is with no other

    def batch(self, tree: Any) -> Any:
        """Return a batch of the loader, whose tensors are traced until the loss is tried."""
        self._reset()
        if self.wanted:
            self._record = Record()
            for x in tensors(tree):
                self._record.mark(x, "batch")
        return tree

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        """Give the model plain tensors, and record nothing inside of it: a forward pre-hook."""
        if self._record is None or not self._record.recording:
            return None
        self._record.recording = False

        def plain(x: Any) -> Any:
            if not isinstance(x, Tensor) or self._record is None:
                return x
            return x if self._record.place_of(x) is None else x.as_subclass(Tensor)

        args, kwargs = tree_map(plain, (args, kwargs))
        return args, kwargs

    def after(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any
    ) -> Any:
        """Trace what the model returns: a forward hook."""
        if self._record is not None:
            self._record.recording = self._record.is_open
        if self.wanted and module.training and torch.is_grad_enabled():
            rows = self._sums.rows_due
            tried = self._tried_inside and self._inside is None
            if losses_of(outputs) and self.alone is not None and rows > 1 and not tried:
                self._try_inside(self.alone, rows, args, kwargs)
            return self.outputs(outputs, rows)
        return None

    def inside_is_apart(self) -> None:
        """Leave losses that the model returns aside: each example's is its own."""
        self._tried_inside = True

    def check_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse a model that returns a loss which mixes examples, before its pass."""
        rows = self._sums.rows_due
        if self.alone is not None and rows > 1:
            self._try_inside(self.alone, rows, args, kwargs)
        if self._inside:
            raise ValueError(self._inside)

    def _try_inside(self, alone: Alone, rows: int, args: Any, kwargs: Any) -> None:
        """Try the losses that the model returns: refused if one is used."""
        if self._sums.steps_taken > 0:
            args, kwargs = next(made_up_trees((args, kwargs), self._sums.steps_taken))
        first, layers = self._first == 0, self.layers
        with alone() as model:
            on = mixes_inside(model, layers, rows, args, kwargs, batch_first=first)
        self._tried_inside = True
        self._inside = on and (
            "the loss that the model returns must treat each example apart, got a gradient for one "
            f"that depends on {on}: take its logits, and {_REMEDY}; grad_sample_mode='vmap' keeps "
            "each example's loss apart"
        )

    def outputs(self, tree: Any, rows: int) -> Any:
        """Return what the model returned for the rows due, traced until the loss is tried."""
        if not self.wanted or rows < 2:
            return tree
        if self._record is None:
            self._record = Record()
        record = self._record
        if sum(map(_has_gradient, tensors(tree))) > 1:
            # One may be made of another inside of the model: apart from here on.
            tree = tree_map(lambda x: x.view_as(x) if _has_gradient(x) else x, tree)
        for x in tensors(tree):
            if _has_gradient(x):
                self._outputs.append(x)
                record.mark(x, "output")
            else:
                record.mark(x, "batch")
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        if self._outputs:

            def arrived(gradients: Any) -> None:
                self._arrived(record, list(gradients), rows)

            def at_leaf(loss: Tensor, gradient: Tensor | None) -> None:
                g = torch.ones_like(loss) if gradient is None else gradient
                arrived([g if x is loss else None for x in self._outputs])

            record.at_leaf = at_leaf
            self._handle = register_multi_grad_hook(self._outputs, arrived)
        return tree

    def close(self) -> None:
        """Try nothing from now on."""
        self._reset()
        self._over = True

    def _reset(self) -> None:
        if self._handle is not None:
            self._handle.remove()
        if self._record is not None:
            self._record.close()
        self._handle = self._record = None
        self._outputs = []

    def _arrived(self, record: Record, gradients: list[Tensor | None], rows: int) -> None:
        """Try the loss whose gradients came to the outputs, before they enter the model."""
        record.recording = False
        state = random_state()
        reason: str | None
        try:
            with torch.enable_grad():
                reason = _Trial(self, record, gradients, rows).run()
        except _Refusal as refusal:
            raise ValueError(*refusal.args) from None
        except Exception as error:
            reason = f"{type(error).__name__} when it is computed again"
        finally:
            restore_random_state(state)
            self._reset()
        self._over = True
        if reason is not None:
            warn(
                "the loss could not be tried, so that it is not noticed if one example changes the "
                f"gradients of others: {reason}; with grad_sample_mode='vmap' and a criterion, "
                "model.backward(x, y) computes each example's loss alone"
            )


class _Trial:
    """One loss, its record and the gradients that it gave to the outputs."""

    def __init__(
        self, loss: LossTrial, record: Record, gradients: list[Tensor | None], rows: int
    ) -> None:
        self._loss, self._record, self._rows = loss, record, rows
        places = [record.place_of(x) for x in loss._outputs]
        self._came = {
            place: g
            for place, g in zip(places, gradients, strict=True)
            if g is not None and place is not None
        }
        self._moved: list[Call] = []  # see `Record.replay`, of the last one
        self._lost: list[Call] = []  # of all variants

    def run(self) -> str | None:
        """Refuse the loss, or return why it cannot be tried."""
        if self._loss._inside is not None and self._inside():
            raise _Refusal(self._loss._inside)
        values: Values = {leaf.place: leaf.value for leaf in self._record.leaves}
        found = self._root(values)
        if found is None:
            return (
                "not all of it is made of torch functions of the model's output (a custom "
                "autograd function, compiled or scripted code)"
            )
        root, base = found
        if self._loss._sums.steps_taken > 0:
            if any(call.numbers and not call.of_shape for call in self._record.calls):
                return None
            values = self._made_up(values, root[0])
            again = self._gradients(values, root)
            assert again is not None
            base = again
        variants = Variants(self._record, root[0], values, self._rows, self._loss._first)
        for name, other in variants:
            if not self._agree(base, variants, other, root):
                fixed = variants.fixed(other)
                hint = ""
                if fixed is not None and self._agree(base, variants, fixed, root):
                    hint = (
                        f" (a tensor of {self._rows} rows that is not of the batch is taken for "
                        "one row an example; make it an nn.Parameter if it is not)"
                    )
                raise _Refusal(
                    "the loss must treat each example apart, got a gradient for one that depends "
                    f"on {name}{hint}: {_REMEDY}"
                )
        for call in self._lost:
            if self._record.may_use(call, root[0]):
                return (
                    f"a number was read out of the batch before it ({call.name.strip('_')}), and "
                    "where it went is not known: keep tensors, or read it after backward()"
                )
        self._check_scale(base, variants, root)
        if self._inside() and not self._loss._tried_inside:
            return "it is made inside of the model"
        return None

    def _inside(self) -> bool:
        """Whether a loss of the model is in it."""
        given = {leaf.place: leaf.value for leaf in self._record.leaves}
        return any(given[p].numel() == 1 and given[p].dim() < 2 for p in self._came)

    def _root(self, values: Values) -> tuple[Root, Gradients] | None:
        """Return the loss that gave the gradients that came."""
        record = self._record
        last = [p for call in reversed(record.calls) for p in reversed(call.places) if p]
        for root in [record.root] if record.root else [(p, None) for p in last[:5]]:
            try:
                found = self._gradients(values, root)
            except Exception:
                found = None
            if found is not None and all(
                place in found and same_rows(g, found[place], None, [])
                for place, g in self._came.items()
            ):
                return root, found
        return None

    def _gradients(
        self, values: Values, root: Root, swapped: Any = None, where: str = "arithmetic"
    ) -> Gradients | None:
        """Return the gradients of the outputs; None if the loss has none."""
        record, copy = self._record, self._record.mutates
        leaves = {p: values[p].detach().requires_grad_() for p in self._came}
        env = {**values, **leaves}
        if copy:
            env = {p: x if isinstance(x, nn.Parameter) else x.clone() for p, x in env.items()}
        value, self._moved = record.replay(env, root[0], swapped or {}, where)
        if not value.requires_grad or (root[1] is None and value.numel() != 1):
            return None
        found: Sequence[Tensor | None] = torch.autograd.grad(
            value, list(leaves.values()), root[1], allow_unused=True
        )
        return {
            place: torch.zeros_like(x) if g is None else g
            for (place, x), g in zip(leaves.items(), found, strict=True)
        }

    def _agree(self, base: Gradients, variants: Variants, other: Values, root: Root) -> bool:
        """Whether rows that are kept have the same gradients with other values beside them."""
        lost: list[Call] = []
        for where in ("arithmetic", "all"):
            try:
                found = self._gradients(other, root, None, where)
            except Exception:  # the loss does not take such values
                continue
            if found is not None and not all(
                same_rows(g, found[place], variants.where.get(place), variants.kept)
                for place, g in base.items()
            ):
                return False
            lost = self._moved
            if not lost:  # every number that is another one stands in arithmetic
                break
        self._lost += lost
        return True

    def _check_scale(self, base: Gradients, variants: Variants, root: Root) -> None:
        """Compare the gradients of half of the rows, alone, with those of all."""
        part, values = variants.half()
        expected, ratios = self._loss._reduction, []
        gradient = root[1]
        if gradient is not None and gradient.numel() > 1:
            return
        known = {"sum": 1.0, "mean": self._rows / part}
        # A number that is the number of rows may be one of them, or chance.
        for swapped, where in (({}, "all"), ({self._rows: part}, "all"), ({}, "none")):
            try:
                found = self._gradients(values, root, swapped, where)
            except Exception:
                found = None
            if found is not None:
                ratios.append(_ratio(base, found, variants, part))
                if ratios[-1] is not None and _near(ratios[-1], known[expected]):
                    return
        names = {name for name, x in known.items() for r in ratios if r is not None and _near(r, x)}
        if names and expected not in names:
            (other,) = names
            raise _Refusal(
                f"loss_reduction must be {other!r} for this loss, got {expected!r}: its gradient "
                f"for one example is that of a {other} over the batch; give "
                f"loss_reduction={other!r} to make_private, or take a {expected}"
            )
        known_ratios = [r for r in ratios if r is not None]
        if not names and ratios and len(known_ratios) == len(ratios):
            raise _Refusal(
                "the loss must be a sum or a mean over the examples of a batch, got one whose "
                f"gradients are {max(known_ratios):.3g} times as large on half of the rows: "
                f"{_REMEDY}"
            )

    def _made_up(self, values: Values, root: int) -> Values:
        variants = Variants(self._record, root, values, self._rows, self._loss._first)
        generator = torch.Generator().manual_seed(self._loss._sums.steps_taken)
        return {
            place: made_up(x, generator) if place in variants.where else x
            for place, x in values.items()
        }


def _ratio(base: Gradients, found: Gradients, variants: Variants, part: int) -> float | None:
    """Return by how much gradients of the first rows are larger; None if not all are so."""
    rows = list(range(part))
    pairs = [
        (chosen(base[p], variants.where[p], rows).double(), found[p].double())
        for p in base
        if p in variants.where
    ]
    products = sum(float((a * b).sum()) for a, b in pairs)
    size = sum(float(a.square().sum()) for a, _ in pairs)
    if not (size > 0 and math.isfinite(products) and math.isfinite(size)):
        return None
    ratio = products / size
    allowed = max(rounding(g.dtype)[0] for g in base.values())
    alike = all(a.shape == b.shape and same_rows(a * ratio, b, None, [], allowed) for a, b in pairs)
    return ratio if alike else None


def _has_gradient(x: Any) -> bool:
    return type(x) is Tensor and x.requires_grad and x.is_floating_point()


def _near(ratio: float, expected: float) -> bool:
    return abs(ratio - expected) < 0.02 * expected
