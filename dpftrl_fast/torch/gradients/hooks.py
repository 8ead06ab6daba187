# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients by hooks on the layers of a network, which stays what it is.

A hook before each trained layer replaces its parameters by constants during its forward pass, so
that the backward pass makes no gradient of the whole batch, and a hook after it keeps the input and
waits for the gradient of the output. From these two, `formulas` makes per-example gradients when
the accumulator asks for them, of a few examples at a time: all parameters of one example are
together, so that its norm is that of the very numbers that are added.

So a parameter that gets a ``.grad`` was used outside of a layer: by another layer, or by a term of
the loss such as a penalty on weights. That is refused in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dpftrl_fast._validate import choice, flag
from dpftrl_fast.torch.gradients.accumulate import Accumulator, PerExample
from dpftrl_fast.torch.gradients.eager import Forward, uncompiled
from dpftrl_fast.torch.gradients.first_pass import check_first_pass
from dpftrl_fast.torch.gradients.formulas import formula_of
from dpftrl_fast.torch.gradients.graph import Inert, in_graph
from dpftrl_fast.torch.gradients.hooked_layers import Layer, Loose, one_tensor, trained_layers
from dpftrl_fast.torch.gradients.layers import check_layers, is_constant, label_of
from dpftrl_fast.torch.gradients.loss.loss_trial import LossTrial
from dpftrl_fast.torch.gradients.owned import check_unwrapped, owned_names
from dpftrl_fast.torch.gradients.row_errors import does_mix, wrong_rows

# Bytes of per-example gradients that are made at a time: as much as a cache holds, but those of
# four examples where that is no more than the larger number, since each chunk passes over the sums.
_CACHED, _MOST = 2**25, 3 * 2**25

_OUTSIDE = (
    "got a gradient outside of its layer: per-example gradients are those of layers, so a model "
    "must use a parameter in the layer that owns it, and a loss must have no term of its own for "
    "parameters (give a kept optimiser weight_decay, or DPFTRL l1); a model that needs it has "
    "grad_sample_mode='vmap'"
)


class _State(Enum):
    READY = auto()  # forward passes with examples due are captured
    OFF = auto()  # the network is as it was
    OBSERVED = auto()  # inputs of layers are told of, nothing else
    CAPTURED = auto()  # a pass of a trial, captured


class _Use(NamedTuple):
    """One call of a layer: its input, and the gradient of its output, examples first."""

    layer: Layer
    x: Tensor
    g: Tensor


class HookGradients:
    """The `Source` of an `Accumulator`: per-example gradients by hooks on a network's layers.

    Hooks are added to the network itself, which is trained by the usual loop. They keep what
    per-example gradients are made of in each ``backward()``; these are made, clipped and added up
    before the next forward pass in training mode and at the step, some examples at a time. A copy
    of the network, or one that is pickled, has no hooks. The rows that layers get are checked, see
    `gradients.rows`.

    Parameters
    ----------
    model : nn.Module
        In training mode it must treat each example separately.
    accumulator : Accumulator
        Its parameters must be the model's.
    functorch : bool
        All layers by ``torch.func``, none by a formula.
    batch_first : bool
        Whether examples are along the first dimension of every layer's input, or the second.
    loss_reduction : {"mean", "sum"}
        Of the loss over examples.

    Attributes
    ----------
    layers : list of Layer
        Those that are trained.
    loose : list of Loose
        Parameters beside them.
    watch : callable
        Called with (args, kwargs) before a pass that is captured; ValueError refuses the model.
    fall_back : callable, optional
        Called with the first refusal of `watch`, unless examples mix: it returns the forward pass
        that takes over.
    loss_trial : LossTrial or None
        Trial of the loss, in the first backward pass.
    returns_loss : bool
        Whether the model returned losses when it was tried.
    accepted : callable
        Called when `watch` has let the first pass go on.

    Raises
    ------
    ValueError
        If the model has layers that cannot be trained so (they are named), has hooks already, or
        lacks a parameter of the accumulator.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1, bias=False)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([model.weight], FlatClipping(1.0), 2, plan.guard())
    >>> _ = HookGradients(model, sums, loss_reduction="sum")
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> model(torch.eye(2)).sum().backward()
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
        choice("loss_reduction", loss_reduction, ("mean", "sum"))
        self.dim = 0 if flag("batch_first", batch_first) else 1
        check_unwrapped(model)
        check_layers(
            model, "functorch" if flag("functorch", functorch) else "hooks", batch_first=batch_first
        )
        owned_names(model, accumulator)
        self.model, self.sums, self.means = model, accumulator, loss_reduction == "mean"
        self._parameters = accumulator.parameters
        self._places = {id(p): i for i, p in enumerate(self._parameters)}
        self.layers, self.loose = [], []
        for kind, module, label in trained_layers(model):
            if kind == "layer":
                formula = formula_of(module, functorch=functorch, first=self.dim)
                places = {
                    name: self._places[id(p)]
                    for name, p in module.named_parameters()
                    if id(p) in self._places
                }
                self.layers.append(Layer(module, label, formula, self.dim, places))
            else:
                own = module.named_parameters(recurse=False)
                self.loose += [Loose(module, n, p, label) for n, p in own if p.requires_grad]
        self._state = _State.READY
        self._rows = 0  # of a trial
        self._inside = False
        self._spent = 0  # examples of a pass whose gradients came already
        self._batch = 0  # gradients of passes before it are no longer taken
        self._uses: list[_Use] = []
        self._leaves: list[tuple[Loose, Tensor]] = []
        self._placed: list[Loose] = []
        self._tell: Callable[[Layer, Any, Any], None] = lambda *given: None
        self._room: dict[int, Tensor] = {}
        self._anchor = torch.zeros((), requires_grad=True)
        accumulator.source = self
        self.watch: Callable[[Any, Any], None] = lambda args, kwargs: None
        self.fall_back: Callable[[ValueError], Callable[..., Any]] | None = None
        self.accepted: Callable[[], Any] = list
        self.loss_trial: LossTrial | None = None
        self.returns_loss = False
        self._instead: Callable[..., Any] | None = None
        self.handles: list[Any] = [
            model.register_forward_hook(
                Inert(uncompiled(self._after_model)), with_kwargs=True, always_call=True
            ),
        ]
        for layer in self.layers:
            self.handles += [
                layer.module.register_forward_pre_hook(
                    # before the one of weight_norm, which makes a weight of parameters
                    Inert(self._before_layer, layer),
                    with_kwargs=True,
                    prepend=True,
                ),
                layer.module.register_forward_hook(
                    Inert(self._after_layer, layer), always_call=True
                ),
            ]
        self.handles.append(  # after those of layers, and so before them
            model.register_forward_pre_hook(
                Inert(uncompiled(self._before_model)), with_kwargs=True, prepend=True
            )
        )
        self._forward = Forward(model)
        self._norms = [
            (label_of(name, module), module)
            for name, module in model.named_modules()
            if isinstance(module, _BatchNorm)
        ]

    def add_before(self, module: nn.Module, call: Callable[..., Any]) -> None:
        """Call `call` with (module, args, kwargs) before passes of a module that are captured."""

        def before(*given: Any) -> None:
            if self.captures:
                call(*given)

        self.handles.append(module.register_forward_pre_hook(Inert(before), with_kwargs=True))

    def try_loss(self, trial: LossTrial) -> None:
        """Have the loss tried in the first backward pass."""

        def when_ready(call: Callable[..., Any], *given: Any) -> Any:
            return call(*given) if self._state is _State.READY else None

        self.loss_trial, self.sums.handed_out = trial, trial.batch
        self.handles += [
            self.model.register_forward_pre_hook(
                Inert(uncompiled(when_ready), trial.before), with_kwargs=True, prepend=True
            ),
            self.model.register_forward_hook(
                Inert(uncompiled(when_ready), trial.after), with_kwargs=True
            ),
        ]

    def remove(self) -> None:
        """Take the hooks off the network."""
        if self.loss_trial is not None:
            self.loss_trial.close()
            if self.sums.handed_out == self.loss_trial.batch:
                self.sums.handed_out = None
        for handle in self.handles:
            handle.remove()
        self._forward.remove()
        self.settle()

    # ---- A forward pass ----

    @property
    def rows(self) -> int:
        """Examples of the present pass."""
        if self._state is _State.CAPTURED:
            return self._rows
        return self._spent or self.sums.rows_due

    @property
    def captures(self) -> bool:
        """Whether a forward pass that begins now is one of training."""
        if self._state is not _State.READY:
            return self._state is _State.CAPTURED
        due = self.sums.rows_due > 0 or (self._inside and self._spent > 0)
        return due and self.model.training and torch.is_grad_enabled()

    def _before_model(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._state is _State.READY:
            check_first_pass(model, self.sums, (args, kwargs))
        if not self.captures:
            return
        if self._state is _State.READY:
            # Complete gradients belong to an earlier piece. Without any, this is one of several
            # forward passes that share a backward pass.
            rows = self.sums.rows_due
            for label, norm in self._norms:
                _check_constant(label, norm)
            self.sums.take()
            self._spent = 0 if self.sums.rows_due else rows
            if not self._spent and not self._is_right(args, kwargs):
                return
            if not self._uses:  # what a look at gradients between batches may have left
                self._clear_gradients()
        self._inside = True
        for loose in self.loose:
            leaf = loose.leaf(self.rows)
            self._leaves.append((loose, leaf))
            loose.module._parameters[loose.name] = leaf  # type: ignore[assignment]
            self._placed.append(loose)

    def _is_right(self, args: Any, kwargs: Any) -> bool:
        """Try the model; return False where another way of gradients takes over."""
        try:
            self.watch(args, kwargs)
            if self.fall_back is not None and self.returns_loss and self.loss_trial is not None:
                self.loss_trial.check_inside(args, kwargs)
        except ValueError as error:
            if self.fall_back is None or does_mix(error):
                raise
            last = self.handles.pop(0)
            self.remove()
            self.handles.append(last)
            self._instead = self.fall_back(error)
            return False
        accepted, self.accepted = self.accepted, list
        self.fall_back = None
        accepted()
        return True

    def _after_model(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if self._instead is not None:
            instead, self._instead = self._instead, None
            self.remove()
            return None if output is None else instead(*args, **kwargs)
        if self._state in (_State.READY, _State.CAPTURED):
            self._inside = False
            for loose in self._placed:
                loose.module._parameters[loose.name] = loose.parameter
            self._placed.clear()
        return None

    def _before_layer(self, layer: Layer, module: nn.Module, args: Any, kwargs: Any) -> Any:
        # Within a backward pass, a checkpoint runs its part of the forward pass again.
        again = torch._C._current_graph_task_id() != -1
        if self._state is _State.OBSERVED:
            if not again:
                self._tell(layer, args, kwargs)
            return None
        if not (self.captures and torch.is_grad_enabled()):
            return None
        if not (self._inside or again):
            raise ValueError(
                f"expected a call of the model that was made private, got one of {layer.label} in "
                "it: what the model does around its layers is tried in its own forward pass"
            )
        x = one_tensor(layer, args, kwargs)
        rows = self.rows
        if layer.shared == "one" and x.shape[0] == 1:
            x = x.expand(rows, *x.shape[1:])
        elif layer.shared == "none":
            x = x.unsqueeze(0).expand(rows, *x.shape)
        got = x.shape[layer.dim] if x.dim() > layer.dim else 0
        # The last steps of a recurrence lack the sequences that have ended.
        if got != rows and not (layer.recurrent and 0 < got < rows):
            raise wrong_rows(layer.label, layer.dim, rows, x)
        layer.x = x
        for owner in layer.owners:
            layer.swapped += [
                (owner, name, p)
                for name, p in owner._parameters.items()
                if p is not None and p.requires_grad
            ]
        for owner, name, p in layer.swapped:
            owner._parameters[name] = p.detach()  # type: ignore[assignment]
        return ((x,), {}) if args else ((), dict.fromkeys(kwargs, x))

    def _after_layer(self, layer: Layer, module: nn.Module, args: Any, output: Any) -> Any:
        for owner, name, p in layer.swapped:
            owner._parameters[name] = p
        layer.swapped.clear()
        x, layer.x = layer.x, None
        if x is None or output is None:
            return None
        if not isinstance(output, Tensor):
            raise ValueError(
                f"{layer.label} must return one tensor, got {type(output).__name__}: "
                "grad_sample_mode='vmap' takes any"
            )
        output = in_graph(output, self._anchor, may_change=layer.may_change)
        assert output.grad_fn is not None
        waiting = _Waiting(self, layer, x.detach(), self._batch, output.output_nr)
        output.grad_fn.register_prehook(waiting)  # after hooks of the model on the output itself
        return output

    def keep(self, layer: Layer, x: Tensor, version: int, batch: int, g: Tensor) -> None:
        """Keep what an output's gradient makes known, in a backward pass."""
        if self._state in (_State.OFF, _State.OBSERVED):
            return
        if self._spent:
            self.sums.check_room(len(x))
        if batch != self._batch:
            raise ValueError(
                "expected one backward pass for each piece of a batch, got one through a forward "
                "pass of an earlier piece"
            )
        if x._version != version:
            raise ValueError(
                f"{layer.label} must find its input unchanged in the backward pass, got one that "
                "was changed in place: write the operation that follows without inplace=True"
            )
        if layer.dim:
            x, g = x.movedim(layer.dim, 0), g.movedim(layer.dim, 0)
        self._uses.append(_Use(layer, x, g.detach()))

    # ---- Per-example gradients ----

    def collect(self) -> PerExample | None:
        """Return the gradients of the examples since the last call, as `Source.collect` says.

        ValueError if a parameter got a gradient outside of its layer.
        """
        if not self._is_complete():
            return None
        rows, uses, leaves = self.sums.rows_due, self._uses, self._leaves
        outside = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        self.settle()
        if outside:
            names = {id(p): name for name, p in self.model.named_parameters()}
            raise ValueError(f"{names[id(self._parameters[outside[0]])]} {_OUTSIDE}")
        return PerExample(rows, self._chunks(rows, uses, leaves), rows if self.means else 1)

    def _is_complete(self) -> bool:
        return bool(self._uses) or any(leaf.grad is not None for _, leaf in self._leaves)

    def _chunks(
        self, rows: int, uses: Sequence[_Use], leaves: Sequence[tuple[Loose, Tensor]]
    ) -> Iterator[list[Tensor | None]]:
        width = sum(p.numel() * max(p.element_size(), 4) for p in self._parameters)
        size = min(rows, max(1, _CACHED // width, min(4, _MOST // width)))
        try:
            for start in range(0, rows, size):
                yield self._samples(slice(start, min(start + size, rows)), uses, leaves)
        finally:
            if sum(held.nbytes for held in self._room.values()) > _CACHED:
                self._room.clear()  # memory that the next forward pass can use

    def _samples(
        self, part: slice, uses: Sequence[_Use], leaves: Sequence[tuple[Loose, Tensor]]
    ) -> list[Tensor | None]:
        """Return the gradients of some examples, a tensor for each parameter or None for zeros."""
        found = _Found(part.stop - part.start, len(self._parameters))
        with self._in_state(_State.OFF), torch.no_grad():
            for layer, x, g in uses:
                some = slice(part.start, min(part.stop, len(x)))
                if some.stop <= some.start:
                    continue
                places, whole = layer.places, some.stop == part.stop
                room = {
                    name: self._room_of(i, found.rows, g.dtype)
                    for name, i in places.items()
                    if whole and found.samples[i] is None
                }
                for name, sample in layer.formula(layer.module, x[some], g[some], room).items():
                    if name in places:
                        found.add(places[name], sample, own=sample is room.get(name))
            for loose, leaf in leaves:
                place = self._places.get(id(loose.parameter))
                if place is not None and leaf.grad is not None:
                    shape = loose.parameter.shape
                    found.add(place, leaf.grad[part].reshape(found.rows, *shape))
        return found.samples

    def _room_of(self, i: int, rows: int, dtype: torch.dtype) -> Tensor:
        """Return memory for the gradients of a parameter, which is kept between calls."""
        p = self._parameters[i]
        held = self._room.get(i)
        if held is None or len(held) < rows or held.dtype != dtype or held.device != p.device:
            held = torch.empty(rows, *p.shape, dtype=dtype, device=p.device)
            self._room[i] = held
        return held[:rows]

    def settle(self) -> None:
        """Forget forward passes that no backward pass followed."""
        self._batch += 1
        self._uses, self._leaves = [], []
        self._clear_gradients()

    def _clear_gradients(self) -> None:
        for p in self.model.parameters():
            if p.requires_grad:
                p.grad = None

    # ---- Trials ----

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run the network as it was."""
        with self._in_state(_State.OFF):
            yield

    @contextmanager
    def observed(self, tell: Callable[[Layer, Any, Any], None]) -> Iterator[None]:
        """Run the network as it was, and call `tell` with (layer, args, kwargs) of each layer."""
        self._tell = tell
        with self._in_state(_State.OBSERVED):
            yield

    @contextmanager
    def captured(self, rows: int) -> Iterator[None]:
        """Capture passes of so many rows, whose gradients :meth:`chunks` returns."""
        self._rows = rows
        self.settle()
        with self._in_state(_State.CAPTURED):
            try:
                yield
            finally:
                self.settle()

    def chunks(self, rows: int) -> Iterator[list[Tensor | None]]:
        """Return the per-example gradients of a captured pass, some at a time and not scaled."""
        return self._chunks(rows, self._uses, self._leaves)

    @contextmanager
    def _in_state(self, state: _State) -> Iterator[None]:
        before, self._state = self._state, state
        try:
            yield
        finally:
            self._state = before


class _Found:
    """Sums of per-example gradients over the uses of each parameter, of so many rows."""

    def __init__(self, rows: int, parameters: int) -> None:
        self.rows = rows
        self.samples: list[Tensor | None] = [None] * parameters
        self._owned: set[int] = set()  # those that may be changed in place

    def add(self, i: int, sample: Tensor, *, own: bool = False) -> None:
        """Add those of the first rows; `own` is whether no one else has the memory."""
        before = self.samples[i]
        if before is None and len(sample) == self.rows:
            self.samples[i] = sample
            if own:
                self._owned.add(i)
            return
        if before is None or i not in self._owned:
            total = sample.new_zeros(self.rows, *sample.shape[1:])
            before = total if before is None else total.add_(before)
            self.samples[i] = before
            self._owned.add(i)
        before[: len(sample)].add_(sample)


class _Waiting:
    """Waits for the gradient of an output, with the input that belongs to it."""

    def __init__(
        self, source: HookGradients, layer: Layer, x: Tensor, batch: int, place: int
    ) -> None:
        self._source, self._layer, self._x, self._batch = source, layer, x, batch
        self._version, self._place = x._version, place

    def __call__(self, gradients: tuple[Tensor | None, ...]) -> None:
        g = gradients[self._place]
        if g is not None:
            self._source.keep(self._layer, self._x, self._version, self._batch, g)


def _check_constant(label: str, layer: _BatchNorm) -> None:
    if not is_constant(layer):
        raise ValueError(
            f"{label} must stay in evaluation mode, in which examples do not mix, got it in "
            "training mode: call its eval() after each model.train()"
        )
