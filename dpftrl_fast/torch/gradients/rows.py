# SPDX-License-Identifier: Apache-2.0
"""`hook_gradients`: with hooks, row i of a layer's input must be of example i, and of no other.

`hooks` takes row i of a layer's input and of its output's gradient for example i. Where the rows
are not the examples, clipping bounds nothing: a sequence along the dimension of the batch, a layer
that is used once on all rows and once on some of them, rows that were sorted. Shapes alone do not
show it, since counts may agree by chance. So before its first pass the model is tried, on some rows
of the batch, on one row more, and on that batch with some of the rows replaced by their neighbours.
Rows must follow the first change, and rows that were not replaced must be as before. A layer whose
input has no rows of examples (positions) gets it once for each example from then on. With the
hooks, the sums of the per-example gradients must be the gradient that autograd finds without them,
and the gradients of examples that two batches share must be the same: a backward pass can mix what
the forward pass keeps apart. The batch's own values are looked at before the first step only, and
after a pass on made-up values: a model may set an attribute once, from the first rows that it gets.
Later, and when a run resumes, the model is tried again on a public schedule, on made-up values: it
may begin to mix examples after some passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.compared import (
    OTHERS,
    GradientsOfRows,
    Trial,
    apart,
    check_outputs,
    check_sums,
    same,
    same_rows,
)
from dpftrl_fast.torch.gradients.hooked_layers import Layer, one_tensor
from dpftrl_fast.torch.gradients.hooks import HookGradients
from dpftrl_fast.torch.gradients.layers import label_of
from dpftrl_fast.torch.gradients.loss.loss_inside import losses_of
from dpftrl_fast.torch.gradients.loss.loss_trial import LossTrial
from dpftrl_fast.torch.gradients.opacus_layers import is_opacus
from dpftrl_fast.torch.gradients.recheck import made_up_trees, recheck_due
from dpftrl_fast.torch.gradients.row_errors import advice, is_of_rows, layer_of, of_rows, wrong_rows
from dpftrl_fast.torch.gradients.trials import (
    changed_rows,
    copied,
    give_back_memory,
    rounding,
    unchanged,
    warn,
)

# Most rows of a trial are this share of those of the pass, but these at least.
_SHARE, _LEAST = 8, 4


def hook_gradients(
    model: nn.Module,
    sums: Accumulator,
    *,
    functorch: bool = False,
    batch_first: bool = True,
    loss_reduction: str = "mean",
) -> HookGradients:
    """Return hooks on a model that refuse passes whose rows are not the examples, in their order.

    Passes in training mode are watched, with gradients, while examples of `sums` are due. The first
    such pass is tried before it is run, which takes the time of about a step; random numbers and
    buffers are as they were afterwards. So is, with made-up values, the first pass of some later
    steps (`recheck_due`). In the model's own arguments, examples are along the first dimension that
    has as many entries. The arguments are those of `HookGradients`.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.accumulate import Accumulator
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=0), nn.Linear(2, 2))
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator(list(model.parameters()), FlatClipping(1.0), 3, plan.guard())
    >>> _ = hook_gradients(model, sums)
    >>> sums.begin([0, 1, 2])
    >>> sums.expect(3)
    >>> model(torch.eye(3, 2))
    Traceback (most recent call last):
    ...
    ValueError: the model must treat each example apart, got an input of 2 (Linear) for one that \
depends on others: with hooks, examples must be along the first dimension of every trained layer's \
input, each in its own row; grad_sample_mode='vmap' has no such limits
    """
    hooks = HookGradients(
        model,
        sums,
        functorch=functorch,
        batch_first=batch_first,
        loss_reduction=loss_reduction,
    )
    hooks.watch = _Watch(hooks).before_model
    trial = LossTrial(sums, loss_reduction, batch_first)
    trial.alone = partial(_alone, hooks)
    trial.layers = [x for x in model.modules() if any(True for _ in x.parameters(recurse=False))]
    hooks.try_loss(trial)
    return hooks


@contextmanager
def _alone(hooks: HookGradients) -> Iterator[nn.Module]:
    """Give a model without its hooks, and put its buffers back."""
    with unchanged(hooks.model), hooks.off():
        yield hooks.model


class _Watch:
    def __init__(self, hooks: HookGradients) -> None:
        self._hooks, self._sums, self._dim = hooks, hooks.sums, hooks.dim
        self._model: nn.Module = hooks.model
        trained = {id(p) for p in self._sums.parameters}
        self._trained = {name for name, p in self._model.named_parameters() if id(p) in trained}
        self._tried = False
        self._step = 0  # of the last pass
        self._warned = False
        for name, layer in self._model.named_modules():
            if is_opacus(layer, "DPRNNBase"):
                hooks.add_before(layer, partial(_check_packing, label_of(name, layer)))

    def before_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try the model before a pass, if it is due."""
        rows = self._sums.rows_due
        step, before = self._sums.steps_taken, self._step
        if not self._tried:
            self._try(rows, args, kwargs)
            self._tried = True
            give_back_memory()
        elif step != before and recheck_due(step):  # not between passes of one backward pass
            self._retry(*self._first(rows, args, kwargs))
            give_back_memory()
        self._step = step

    def _try(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on some rows, on one more, with some replaced, and with the hooks."""
        given = tree_leaves((args, kwargs), is_leaf=lambda x: isinstance(x, PackedSequence))
        if any(isinstance(x, PackedSequence) for x in given):
            raise ValueError(
                "the model must get sequences as tensors of rows, got packed ones: pack them in it"
            )
        some, args, kwargs = self._first(rows, args, kwargs)
        self._set_once(args, kwargs)
        if self._sums.steps_taken > 0:
            more = self._run(self._places(some, [0, *range(some)], args, kwargs))
            self._find_shared(some, more, self._run((args, kwargs)))
            self._retry(some, args, kwargs)
        else:
            self._compare(some, args, kwargs)

    def _set_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on made-up values, so that what it sets in its first pass is none of them.

        An attribute that it sets once (a mean to be subtracted, say) would stay in all steps.
        """
        with _constant_parameters(self._model):
            for made in made_up_trees((args, kwargs), self._sums.steps_taken):
                with suppress(Exception):
                    self._run(made)
                    break

    def _first(
        self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, tuple[Any, ...], dict[str, Any]]:
        """Return the rows of a trial and the arguments cut to them."""
        some = min(rows, max(_LEAST, rows // _SHARE))
        args, kwargs = self._places(rows, [*range(some)], args, kwargs)
        return some, args, kwargs

    def _retry(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try the model on made-up values, which cannot show anything about the batch."""
        for made in made_up_trees((args, kwargs), self._sums.steps_taken):
            try:
                self._compare(rows, *made)
                return
            except Exception as error:
                if is_of_rows(error):
                    raise
                reason = error.__cause__ or error
        dim = self._dim  # a batch of another size is refused by its number of rows
        if not self._warned and any(
            x.dim() > dim and x.shape[dim] == rows
            for x in tree_leaves((args, kwargs))
            if _is_tensor(x)
        ):
            self._warned = True
            warn(
                "the model cannot be tried on made-up inputs, so that it is not noticed if it "
                f"begins to mix examples after the first pass: {type(reason).__name__}"
            )

    def _compare(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on two batches that share rows, and compare what belongs to these."""
        repeated = [0, *range(rows)]  # a batch that is sorted stays so, in both
        changed = changed_rows(rows)
        replaced = [repeated[i + 1] if i in changed else repeated[i] for i in range(rows + 1)]
        kept = torch.tensor([i for i in range(rows + 1) if i not in changed])
        with _constant_parameters(self._model):
            first = self._run(self._places(rows, repeated, args, kwargs))
        second = self._run(self._places(rows, replaced, args, kwargs))
        alone = self._run((args, kwargs), gradients=True)
        for name, buffer in first.buffers.items():
            if not same(buffer, second.buffers[name]):
                raise of_rows(
                    "the model must keep no statistics of the data in buffers, outside of the "
                    f"noise, got one: {name}",
                    mixed=True,
                )
        self._find_shared(rows, first, alone)
        for layer, inputs in first.inputs.items():
            others = second.inputs.get(layer, [])
            alike = same if layer.shared else same_rows(kept)
            if len(inputs) == len(others) and not all(map(alike, inputs, others)):
                raise of_rows(
                    f"the model must treat each example apart, got an input of {layer.label} for "
                    f"one that depends on others: {advice(self._dim)}",
                    mixed=True,
                )
        pairs = zip(first.outputs, second.outputs, strict=False)
        if len(first.outputs) == len(second.outputs) and not all(
            apart(a, b, rows + 1, kept, self._dim) for a, b in pairs
        ):
            raise of_rows(
                "the model must treat each example apart, got an output for one that depends on "
                f"others: {advice(self._dim)}",
                mixed=True,
            )
        self._check_gradients(rows, args, kwargs, alone)

    def _find_shared(self, rows: int, more: Trial, alone: Trial) -> None:
        """Find the layers whose input has no examples; refuse inputs with others than the rows."""
        for layer, inputs in more.inputs.items():
            fewer = alone.inputs.get(layer, [])
            kinds = {_kind(layer, x, y, rows) for x, y in zip(inputs, fewer, strict=False)} or {
                "rows"
            }
            if len(kinds) > 1 or len(inputs) != len(fewer) or None in kinds:
                wrong = next((x for x in inputs if not x.dim() or len(x) != rows + 1), inputs[0])
                wrong = wrong.movedim(0, self._of(layer, wrong))
                added = ", one of them added for a trial"
                raise wrong_rows(layer.label, layer.dim, rows + 1, wrong, added)
            (kind,) = kinds
            layer.shared = None if kind == "rows" else kind

    def _check_gradients(
        self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any], alone: Trial
    ) -> None:
        """Compare per-example gradients with autograd's, and between batches that share rows.

        They are those of a sum of the outputs with weights. A backward pass can mix examples that
        the forward pass keeps apart: a hook that divides by the norm of a whole gradient, say.
        """
        changed = changed_rows(rows)
        places = [i - 1 if i in changed else i for i in range(rows)]
        kept = torch.tensor([i for i in range(rows) if i not in changed])
        uncertain = [loose for loose in self._hooks.loose if not loose.is_certain]
        tries = (1, 0, 2) if uncertain else (0,)
        for ones in tries:
            for loose in uncertain:
                loose.ones = ones
            try:
                first = self._gradients(rows, (args, kwargs), kept)
                check_outputs(first, alone)
                check_sums(first, alone, self._trained)
                break
            except ValueError:
                if ones == tries[-1]:
                    raise
        replaced = self._places(rows, places, args, kwargs)
        second = self._gradients(rows, replaced, kept, changed)
        if [x.shape for x in first.outputs] != [x.shape for x in second.outputs]:
            return  # padded to other lengths, which tells nothing
        sizes = {name: float(n[0].nan_to_num(0.0).max()) for name, n in first.numbers.items()}
        largest = max(sizes.values(), default=0.0)
        for name in {*first.numbers} & {*second.numbers}:
            part = rounding(first.dtypes[name])[0]
            allowed = part * (sizes[name] + 0.1 * largest)
            pair = first.numbers[name], second.numbers[name]
            if not torch.allclose(*pair, part, allowed, equal_nan=True):
                raise of_rows(
                    f"the model must treat each example apart, got a gradient of {name} for one "
                    "that depends on others, in the backward pass: is there a hook?",
                    mixed=True,
                )

    def _gradients(
        self, rows: int, given: Any, kept: Tensor, changed: list[int] | None = None
    ) -> GradientsOfRows:
        """Return what there is to compare of the per-example gradients of a pass.

        Outputs of the `changed` rows have other weights.
        """
        hooks, model = self._hooks, self._model
        names = {id(p): name for name, p in model.named_parameters()}
        found = GradientsOfRows([], {}, {}, {}, {}, sums=changed is None)
        with unchanged(model), hooks.captured(rows):
            args, kwargs = tree_map(copied, given)
            try:
                outputs = model(*args, **kwargs)
            except ValueError:
                raise
            except Exception as error:
                beside = [layer.label for layer in hooks.layers if layer.shared]
                beside += [loose.label for loose in hooks.loose]
                more = f" and {len(beside) - 2} more" if len(beside) > 2 else ""
                raise ValueError(
                    "the model must take what all examples share once for each example (of "
                    f"{', '.join(beside[:2]) or 'none'}{more}), got a {type(error).__name__} in "
                    f"{layer_of(model, error)}: grad_sample_mode='vmap' has no such limits"
                ) from error
            found.outputs.extend(_backward(outputs, rows, changed))
            for p in hooks.sums.parameters:
                if p.grad is not None:
                    raise of_rows(OTHERS.format(name=names[id(p)]))
            start = 0
            for samples in self._chunks(rows):
                count = max(len(x) for x in samples if x is not None)
                some = kept[(kept >= start) & (kept < start + count)] - start
                for p, sample in zip(hooks.sums.parameters, samples, strict=True):
                    if sample is not None:
                        found.add(names[id(p)], sample, some)
                start += count
        return found

    def _chunks(self, rows: int) -> Iterator[list[Tensor | None]]:
        """Yield the per-example gradients of a captured pass; refuse layers that have none."""
        try:
            yield from self._hooks.chunks(rows)
        except (ValueError, torch.cuda.OutOfMemoryError):
            raise
        except Exception as error:
            raise ValueError(
                f"{layer_of(self._model, error)} must be run for each example by torch.func, got a "
                f"{type(error).__name__} (is there a hook on it?): grad_sample_mode='auto' finds "
                "another way"
            ) from error

    def _run(self, given: Any, *, gradients: bool = False) -> Trial:
        """Run the model without hooks on what is given, and its backward pass if told so."""
        model, seen = self._model, dict[Layer, list[Tensor]]()

        def tell(layer: Layer, args: Any, kwargs: Any) -> None:
            x = one_tensor(layer, args, kwargs)
            seen.setdefault(layer, []).append(x.detach().movedim(self._of(layer, x), 0).clone())

        totals: dict[str, Tensor] = {}
        with unchanged(model), self._hooks.observed(tell):
            args, kwargs = tree_map(copied, given)
            try:
                outputs = model(*args, **kwargs)
            except ValueError:
                raise
            except Exception as error:
                raise ValueError(
                    f"the model must take another number of examples, got a "
                    f"{type(error).__name__} in {layer_of(model, error)}: {advice(self._dim)}"
                ) from error
            found = [x.detach() for x in tree_leaves(outputs) if isinstance(x, Tensor)]
            self._hooks.returns_loss = bool(losses_of(outputs))
            buffers = {name: x.detach().clone() for name, x in model.named_buffers()}
            if gradients:
                self._hooks.settle()
                found = _backward(outputs, 0, None)
                for name, p in model.named_parameters():
                    if p.grad is not None:
                        totals[name] = p.grad
                self._hooks.settle()
        return Trial(seen, found, buffers, totals)

    def _of(self, layer: Layer, x: Tensor) -> int:
        return layer.dim if x.dim() > layer.dim else 0

    def _places(
        self, rows: int, places: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the arguments of the model with the rows at some places."""

        def chosen(x: Any) -> Any:
            return self._chosen(x, rows, places) if isinstance(x, Tensor) else x

        return tree_map(chosen, (args, kwargs))

    def _chosen(self, x: Tensor, rows: int, places: list[int]) -> Tensor:
        """Return the rows at some places of an argument of the model."""
        dims = [dim for dim in (0, 1) if x.dim() > dim and x.shape[dim] == rows]
        if len(dims) == 2 and self._dim == 1:
            raise ValueError(
                f"with batch_first=False the first batch must tell examples from positions, got "
                f"{rows} of each: take another number of rows (in_pieces)"
            )
        at = torch.tensor(places, device=x.device)
        return x.index_select(dims[0], at) if dims else x


def _backward(outputs: Any, rows: int, changed: list[int] | None) -> list[Tensor]:
    """Take the backward pass of the outputs with fixed weights, and return the outputs."""
    found = [x for x in tree_leaves(outputs) if isinstance(x, Tensor)]
    parts = [x for x in found if x.requires_grad]
    # Losses that the model returns are tried apart, if they are used: see `LossTrial`.
    parts = [x for x in parts if x.numel() > 1 or x.dim() > 1] or parts
    if parts:
        weights = [_weights(x) for x in parts]
        for x in weights if changed else []:
            dims = [dim for dim in (0, 1) if x.dim() > dim and x.shape[dim] == rows]
            if len(dims) == 1:  # known to be that of the examples
                x.movedim(dims[0], 0)[changed] *= 3.0
        torch.autograd.backward(parts, weights)
    return [x.detach() for x in found]


def _kind(layer: Layer, more: Tensor, fewer: Tensor, rows: int) -> str | None:
    """Return whether an input has "rows", "one" row or "none"; None if that is not known."""
    counts = len(more) if more.dim() else 0, len(fewer) if fewer.dim() else 0
    if counts == (rows + 1, rows) or (layer.recurrent and counts[0] <= rows + 1):
        return "rows"
    if layer.dim or more.shape != fewer.shape:
        return None
    return "one" if more.dim() > 1 and counts[0] == 1 else "none"


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


@contextmanager
def _constant_parameters(model: nn.Module) -> Iterator[None]:
    """Raise if a forward pass changes a parameter, after putting all back."""
    before = [(name, p, p.detach().clone()) for name, p in model.named_parameters()]
    yield
    changed = [
        name for name, p, old in before if not torch.allclose(p, old, 0.0, 0.0, equal_nan=True)
    ]
    if changed:
        for _, p, old in before:
            p.detach().copy_(old)
        raise of_rows(
            "the model must leave its parameters alone in a forward pass, since what changes them "
            f"has no noise, got others in {', '.join(changed)}",
            mixed=True,
        )


def _check_packing(label: str, layer: nn.Module, args: Any, kwargs: Any) -> None:
    if args and isinstance(args[0], PackedSequence) and args[0].sorted_indices is not None:
        raise ValueError(
            f"{label} must get sequences packed in the order of their examples, got them sorted: "
            "let the loader's collate_fn sort a batch by length, and pack with enforce_sorted=True"
        )


def _weights(x: Tensor) -> Tensor:
    """Return numbers of either sign, in which no sum over a dimension vanishes."""
    return torch.arange(1.0, x.numel() + 1.0, device=x.device).sin().to(x.dtype).view(x.shape)
