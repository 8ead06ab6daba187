# SPDX-License-Identifier: Apache-2.0
"""`watch_rows`: with hooks, row i of a layer's input must be of example i, and of no other.

Opacus's hooks take row i of a layer's input and of its output's gradient for example i. Where the
rows are not the examples, clipping bounds nothing: positions that are as many as examples, a
sequence along the dimension of the batch, a layer that is used once on all rows and once on some of
them, rows that were sorted. Shapes alone do not show it, since counts may agree by chance. So
before its first pass the model is tried, without Opacus's hooks: on one row more, and on that batch
with some of the rows replaced by their neighbours. Rows must follow the first change, and rows that
were not replaced must be as before. With the hooks, the sums of the per-example gradients must then
be the gradient that autograd finds, and the gradients of examples that two batches share must be
the same: a backward pass can mix what the forward pass keeps apart. The batch's own values are
looked at before the first step only. Later, and when a run resumes, the model is tried again on a
public schedule, on made-up values: it may begin to mix examples after some passes.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from opacus.grad_sample import GradSampleModule
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map

from dpftrl_fast._validate import flag
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.recheck import made_up, recheck_due
from dpftrl_fast.torch.plain_states import random_state, restore_random_state

# Rounding errors allowed in an activation and in a gradient, relative to the largest of a tensor.
# Products in float32 may have the precision of half of it (TF32).
_ROUNDING = {torch.float64: (1e-9, 1e-6), torch.float32: (1e-4, 1e-2)}
_ROUNDING_OF_HALVES = (0.05, 0.1)

_OF_ROWS = "_of_rows"  # marks errors of this module

_ADVICE = (
    "with hooks, examples must be along {dim} of every trained layer's input, each in its own row; "
    "grad_sample_mode='vmap' has no such limits"
)


class PlainStrides(GradSampleModule):  # type: ignore[misc]
    """A ``GradSampleModule`` whose formulas get tensors in the layout of a new tensor only.

    Opacus's ``unfold2d`` (1.6.0) computes the strides of an image from its shape. For inputs in
    another layout (channels_last, transposed, expanded) it reads the wrong elements, even those of
    another example, so that clipping does not bound the contribution of one. The forward and
    backward passes of the model keep their layouts.
    """

    def rearrange_grad_samples(self, **how: Any) -> tuple[list[Tensor], Tensor]:
        """Return the inputs and output gradients of a layer for its formula."""
        activations, backprops = super().rearrange_grad_samples(**how)
        return [plain(x) for x in activations], plain(backprops)


def plain(x: Tensor) -> Tensor:
    """Return x with the strides of a new tensor: a view of it, or a copy where it needs one.

    ``contiguous`` alone leaves any strides to dimensions of size 1, from which ``F.pad`` concludes
    that channels are innermost.
    """
    return x.contiguous().view(-1).view(x.shape)


def watch_rows(
    module: GradSampleModule,
    sums: Accumulator,
    settle: Callable[[], None],
    *,
    batch_first: bool = True,
) -> None:
    """Refuse forward passes whose rows are not the examples handed out, in their order.

    From now on `module`, wrapped by Opacus, is watched: passes in training mode, with gradients,
    while examples of `sums` are due. `settle` makes it forget passes and gradients. The first such
    pass is tried before it is run, which takes the time of some steps; random numbers and buffers
    are as they were afterwards. So is, with made-up values, the first pass of some later steps
    (`recheck_due`). In the model's own arguments, examples are along the first dimension that has
    as many entries.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.accumulate import Accumulator
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> from dpftrl_fast.torch.gradients.grad_sample import HookGradients
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=0), nn.Linear(2, 2))
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator(list(model.parameters()), FlatClipping(1.0), 3, plan.guard())
    >>> hooks = HookGradients(model, sums)  # watches its module
    >>> sums.begin([0, 1, 2])
    >>> sums.expect(3)
    >>> hooks.module(torch.eye(3, 2))
    Traceback (most recent call last):
    ...
    ValueError: the model must treat each example apart, got an input of 2 (Linear) for one that \
depends on others: with hooks, examples must be along the first dimension of every trained layer's \
input, each in its own row; grad_sample_mode='vmap' has no such limits
    """
    _Watch(module, sums, settle, batch_first)


class _Watch:
    def __init__(
        self,
        module: GradSampleModule,
        sums: Accumulator,
        settle: Callable[[], None],
        batch_first: bool,
    ) -> None:
        self._module, self._sums, self._settle = module, sums, settle
        self._dim = 0 if flag("batch_first", batch_first) else 1
        self._tried = False
        self._step = 0  # of the last pass
        self._warned = False
        self._seen: dict[str, list[Tensor]] | None = None  # inputs of the layers, in a trial
        model: nn.Module = module._module
        hooked = {id(layer) for layer in module.iterate_submodules(model)}
        for name, layer in model.named_modules():
            if id(layer) in hooked or isinstance(layer, DPRNNBase):
                self._watch(layer, f"{name or 'the model'} ({type(layer).__name__})")
        module.register_forward_pre_hook(self._before_model, with_kwargs=True)

    def _watch(self, layer: nn.Module, label: str) -> None:
        def before(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if layer.training and torch.is_grad_enabled() and self._sums.rows_due > 0:
                self._before_layer(layer, label, args, kwargs)

        layer.register_forward_pre_hook(before, with_kwargs=True)

    def _before_model(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        rows = self._sums.rows_due
        if not (module.training and torch.is_grad_enabled() and rows > 0):
            return
        step, before = self._sums.steps_taken, self._step
        if not self._tried:
            self._try(rows, args, kwargs)
            self._tried = True
        elif step != before and recheck_due(step):  # not between passes of one backward pass
            self._retry(rows, args, kwargs)
        self._step = step

    def _before_layer(
        self, layer: nn.Module, label: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if isinstance(layer, DPRNNBase):  # its RNNLinear layers have Opacus's hooks
            _check_packing(label, args)
            return
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise ValueError(
                f"{label} must get one tensor, as Opacus passes on, got {len(args)} "
                f"arguments and the keywords {sorted(kwargs)}: grad_sample_mode='vmap' takes any"
            )
        x, due = args[0], self._sums.rows_due + (self._seen is not None)
        dim = 0 if isinstance(layer, RNNLinear) else self._dim
        rows = x.shape[dim] if x.dim() > dim else 0
        # The last rows of a step lack the sequences that have ended.
        if rows != due and not (isinstance(layer, RNNLinear) and 0 < rows < due):
            raise _of_rows(
                f"{label} must get the {due} rows of the batch{self._added}, got an input of shape "
                f"{tuple(x.shape)}: {self._advice}"
            )
        if self._seen is not None:
            self._seen.setdefault(label, []).append(x.detach().movedim(dim, 0).clone())

    @property
    def _advice(self) -> str:
        return _ADVICE.format(dim="the second dimension" if self._dim else "the first dimension")

    @property
    def _added(self) -> str:
        return ", one of them added for a trial" if self._seen is not None else ""

    def _try(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on one row more, with some rows replaced, and with the hooks."""
        given = tree_leaves((args, kwargs), is_leaf=lambda x: isinstance(x, PackedSequence))
        if any(isinstance(x, PackedSequence) for x in given):
            raise ValueError(
                "the model must get sequences as tensors of rows, got packed ones: pack them in it"
            )
        if self._sums.steps_taken > 0:
            self._run(rows, [0, *range(rows)], args, kwargs)
            self._retry(rows, args, kwargs)
        else:
            self._compare(rows, args, kwargs)

    def _retry(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try the model on made-up values, which cannot show anything about the batch."""
        on_cpu = all(x.device.type == "cpu" for x in tree_leaves((args, kwargs)) if _is_tensor(x))
        # An index that does not exist ends the process on other devices.
        for low in (0, 1) if on_cpu else (0,):
            generator = torch.Generator().manual_seed(self._sums.steps_taken)
            made = tree_map(partial(made_up, generator=generator, low=low), (args, kwargs))
            try:
                self._compare(rows, *made)
                return
            except Exception as error:
                if getattr(error, _OF_ROWS, False):
                    raise
                reason = error.__cause__ or error
        dim = self._dim  # a batch of another size is refused by its number of rows
        if not self._warned and any(
            x.dim() > dim and x.shape[dim] == rows
            for x in tree_leaves((args, kwargs))
            if _is_tensor(x)
        ):
            self._warned = True
            warnings.warn(
                "the model cannot be tried on made-up inputs, so that it is not noticed if it "
                f"begins to mix examples after the first pass: {type(reason).__name__}",
                UserWarning,
                stacklevel=2,
            )

    def _compare(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the model on two batches that share rows, and compare what belongs to these."""
        repeated = [0, *range(rows)]  # a batch that is sorted stays so, in both
        changed = _changed(rows)
        replaced = [repeated[i + 1] if i in changed else repeated[i] for i in range(rows + 1)]
        kept = torch.tensor([i for i in range(rows + 1) if i not in changed])
        with _constant_parameters(self._module._module):
            first = self._run(rows, repeated, args, kwargs)
        second = self._run(rows, replaced, args, kwargs)
        for name, buffer in first.buffers.items():
            if not _same(buffer, second.buffers[name]):
                raise _of_rows(
                    "the model must keep no statistics of the data in buffers, outside of the "
                    f"noise, got one: {name}"
                )
        for label, inputs in first.inputs.items():
            others = second.inputs.get(label, [])
            if len(inputs) == len(others) and not all(map(_same_rows(kept), inputs, others)):
                raise _of_rows(
                    f"the model must treat each example apart, got an input of {label} for one "
                    f"that depends on others: {self._advice}"
                )
        pairs = zip(first.outputs, second.outputs, strict=False)
        if len(first.outputs) == len(second.outputs) and not all(
            _apart(a, b, rows + 1, kept, self._dim) for a, b in pairs
        ):
            raise _of_rows(
                "the model must treat each example apart, got an output for one that depends on "
                f"others: {self._advice}"
            )
        self._check_sums(rows, args, kwargs)

    def _check_sums(self, rows: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare per-example gradients with autograd's, and between batches that share rows.

        They are those of a sum of the outputs with weights. A backward pass can mix examples that
        the forward pass keeps apart: a hook that divides by the norm of a whole gradient, say.
        """
        changed = _changed(rows)
        places = [i - 1 if i in changed else i for i in range(rows)]
        kept = torch.tensor([i for i in range(rows) if i not in changed])
        shapes, found = self._gradients(rows, args, kwargs, kept)

        def chosen(x: Any) -> Any:
            return self._chosen(x, rows, places) if isinstance(x, Tensor) else x

        replaced, named = tree_map(chosen, (args, kwargs))
        others = self._gradients(rows, replaced, named, kept, changed)
        if shapes != others[0]:  # padded to other lengths, which tells nothing
            return
        largest = max((float(x[0].nan_to_num(0.0).max()) for x, _ in found.values()), default=0.0)
        for name in {*found} & {*others[1]}:
            (first, _), (second, dtype) = found[name], others[1][name]
            rounding = _ROUNDING.get(dtype, _ROUNDING_OF_HALVES)[0]
            allowed = rounding * (float(first[0].nan_to_num(0.0).max()) + 0.1 * largest)
            if not torch.allclose(first, second, rounding, allowed, equal_nan=True):
                raise _of_rows(
                    f"the model must treat each example apart, got a gradient of {name} for one "
                    "that depends on others, in the backward pass: is there a hook?"
                )

    def _gradients(
        self,
        rows: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        kept: Tensor,
        changed: list[int] | None = None,
    ) -> tuple[list[torch.Size], dict[str, tuple[Tensor, torch.dtype]]]:
        """Return the shapes of the outputs and, of each parameter, numbers of the rows kept.

        These are the norm of a row's gradient, and the product with a fixed vector. The dtype of
        the gradients stands beside them. Outputs of the
        `changed` rows have other weights; without them, the sums of the gradients are compared with
        autograd's.
        """
        model: nn.Module = self._module._module
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._settle()
        try:
            with _unchanged(model):
                args, kwargs = tree_map(_copied, (args, kwargs))
                outputs = tree_leaves(model(*args, **kwargs))
                parts = [x for x in outputs if isinstance(x, Tensor) and x.requires_grad]
                # Losses that the model returns are tried apart, if they are used: see `LossTrial`.
                parts = [x for x in parts if x.numel() > 1 or x.dim() > 1] or parts
                if parts:
                    weights = [_weights(x) for x in parts]
                    for x in weights if changed else []:
                        dims = [dim for dim in (0, 1) if x.dim() > dim and x.shape[dim] == rows]
                        if len(dims) == 1:  # known to be that of the examples
                            x.movedim(dims[0], 0)[changed] *= 3.0
                    torch.autograd.backward(parts, weights)
            share = rows if self._module.loss_reduction == "mean" else 1
            samples = {
                name: (p.grad_sample.detach() / share, p.grad)  # type: ignore[attr-defined]
                for name, p in parameters.items()
                if isinstance(getattr(p, "grad_sample", None), Tensor) and p.grad is not None
            }
            if changed is None and (other := _first_that_differs(samples)):
                raise _of_rows(
                    f"the per-example gradients of {other} must add up to its gradient, got "
                    "others: it is used outside of its layer too, or Opacus's formula for the "
                    "layer is wrong; grad_sample_mode='vmap' has no such limits"
                )
            numbers = {
                name: (_numbers_of_rows(sample, kept), sample.dtype)
                for name, (sample, _) in samples.items()
                if len(sample) == rows
            }
            return [x.shape for x in parts], numbers
        finally:
            self._settle()

    def _run(
        self, rows: int, places: list[int], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Trial:
        model: nn.Module = self._module._module

        def chosen(x: Any) -> Any:
            return self._chosen(x, rows, places) if isinstance(x, Tensor) else x

        args, kwargs = tree_map(chosen, (args, kwargs))
        seen: dict[str, list[Tensor]] = {}
        self._seen = seen
        try:
            with _unchanged(model), _without_hooks(self._module):
                try:
                    outputs = model(*args, **kwargs)
                except ValueError:
                    raise
                except Exception as error:
                    raise ValueError(
                        f"the model must take {rows} examples and one more, got {error!r}: "
                        f"{self._advice}"
                    ) from error
                found = [x.detach() for x in tree_leaves(outputs) if isinstance(x, Tensor)]
                buffers = {name: x.detach().clone() for name, x in model.named_buffers()}
        finally:
            self._seen = None
        return _Trial(seen, found, buffers)

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


class _Trial(NamedTuple):
    inputs: dict[str, list[Tensor]]
    outputs: list[Tensor]
    buffers: dict[str, Tensor]


def _of_rows(message: str) -> ValueError:
    """Return an error about rows that are not examples: one of this module, not of the model."""
    error = ValueError(message)
    setattr(error, _OF_ROWS, True)
    return error


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Put random numbers and buffers back."""
    state = random_state()
    buffers = [
        (layer, name, x, x.detach().clone())
        for layer in model.modules()
        for name, x in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        restore_random_state(state)
        for layer, name, x, old in buffers:
            x.detach().copy_(old)
            setattr(layer, name, x)


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
        raise _of_rows(
            "the model must leave its parameters alone in a forward pass, since what changes them "
            f"has no noise, got others in {', '.join(changed)}"
        )


@contextmanager
def _without_hooks(module: GradSampleModule) -> Iterator[None]:
    module.disable_hooks()
    try:
        yield
    finally:
        module.enable_hooks()


def _check_packing(label: str, args: tuple[Any, ...]) -> None:
    if args and isinstance(args[0], PackedSequence) and args[0].sorted_indices is not None:
        raise ValueError(
            f"{label} must get sequences packed in the order of their examples, got them sorted: "
            "let the loader's collate_fn sort a batch by length, and pack with enforce_sorted=True"
        )


def _same(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return True  # padded to other lengths, which tells nothing
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    size = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    rounding = _ROUNDING.get(a.dtype, _ROUNDING_OF_HALVES)[0]
    return torch.allclose(a, b, rtol=rounding, atol=rounding * size, equal_nan=True)


def _same_rows(kept: Tensor) -> Callable[[Tensor, Tensor], bool]:
    def same(a: Tensor, b: Tensor) -> bool:
        rows = kept[kept < min(len(a), len(b))].to(a.device)
        return _same(a[rows], b[rows])

    return same


def _apart(a: Tensor, b: Tensor, rows: int, kept: Tensor, first: int) -> bool:
    """Whether an output has a dimension of examples along which those kept are the same."""
    dims = [dim for dim in (first, 1 - first) if a.dim() > dim and a.shape[dim] == rows]
    same = _same_rows(kept)
    return not dims or any(same(a.movedim(dim, 0), b.movedim(dim, 0)) for dim in dims)


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, Tensor) else x


def _weights(x: Tensor) -> Tensor:
    """Return numbers of either sign, in which no sum over a dimension vanishes."""
    return torch.arange(1.0, x.numel() + 1.0, device=x.device).sin().to(x.dtype).view(x.shape)


def _changed(rows: int) -> list[int]:
    """Return the rows that a trial replaces by their neighbours.

    A third of them: rows that turned round or moved are others.
    """
    return [i for i in range(rows) if i % 7 in (1, 2, 4)]


def _numbers_of_rows(sample: Tensor, kept: Tensor) -> Tensor:
    """Return the norms of some rows, and their products with a vector of norm 1; shape (2, n)."""
    flat = sample.flatten(1)[kept.to(sample.device)].double()
    vector = torch.arange(1.0, flat.shape[1] + 1.0, device=flat.device, dtype=flat.dtype).sin()
    return torch.stack([flat.norm(dim=1), flat @ (vector / vector.norm())])


def _first_that_differs(samples: Mapping[str, tuple[Tensor, Tensor]]) -> str | None:
    """Name a parameter whose examples' gradients have another sum than its gradient.

    Rounding is allowed for, and values that are not finite have no sum.
    """
    sizes = {
        name: float(sample.double().abs().sum(0).max()) for name, (sample, _) in samples.items()
    }
    largest = max(sizes.values(), default=0.0)
    if not math.isfinite(largest):
        return None
    for name, (sample, gradient) in samples.items():
        rounding = _ROUNDING.get(sample.dtype, _ROUNDING_OF_HALVES)[1]
        away = float((sample.double().sum(0) - gradient.double()).abs().max())
        # A gradient that is 0 but for rounding is measured by those beside it.
        if away > rounding * (sizes[name] + 0.1 * largest):
            return name
    return None
