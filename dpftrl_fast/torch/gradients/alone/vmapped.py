# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of any model: each example passes alone, by ``torch.func`` or in a loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils._pytree import tree_map

from dpftrl_fast._validate import choice, optional, positive_integer
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.example_passes import ExamplePasses
from dpftrl_fast.torch.gradients.alone.example_trees import Rows, put_together, taken_apart
from dpftrl_fast.torch.gradients.alone.held import nothing_kept, refuse_held
from dpftrl_fast.torch.gradients.alone.rows_of_outputs import joined, rows_of_outputs
from dpftrl_fast.torch.gradients.alone.ways import by_vmap, one_by_one, vmap_alone
from dpftrl_fast.torch.gradients.first_pass import check_first_pass
from dpftrl_fast.torch.gradients.layers import check_layers
from dpftrl_fast.torch.gradients.loss.loss_trial import LossTrial
from dpftrl_fast.torch.gradients.owned import owned_names
from dpftrl_fast.torch.gradients.recheck import made_up_trees
from dpftrl_fast.torch.gradients.row_errors import first_sentence, layer_of
from dpftrl_fast.torch.gradients.trials import unchanged, warn

Loss = Callable[[Any, Any], Tensor]

_CHUNK_BYTES = 1 << 26  # of the per-example gradients that are in memory at a time
_OWN = {
    *("_module", "_criterion", "_accumulator", "_names", "_chunk", "_mean", "_passes", "_alone"),
    *("_tried", "_trial", "_layout", "_gradients", "training", "_compiled_call_impl"),
}


class VmapModule(nn.Module):
    """A model whose per-example gradients are exact, whatever its layers are.

    The training loop is the ordinary one: ``loss = criterion(model(x), y); loss.backward()``, or
    ``model(**batch).loss.backward()``. In training mode, with examples due, each example passes
    through the network alone, as a batch of one with parameters of its own, so that the model
    cannot mix two. Its gradients are clipped and added up in the backward pass. Examples are taken
    in chunks, by ``torch.func.vmap``. If vmap cannot run the network (recurrent layers, control
    flow that depends on values, activation checkpointing), they are taken one by one from then on,
    after a warning. This is decided on made-up values, before the first pass on arguments of new
    shapes: the two ways round differently, so the choice may not depend on the examples. An error
    of the network on the examples themselves is not caught.

    Other calls run the network as it is. Attributes are those of the network, so are the names of
    its state. A copy (``copy.deepcopy``, ``torch.save``) is one of the network alone.

    Parameters
    ----------
    model : nn.Module
        Without BatchNorm layers. Its arguments are described at `Rows`.
    criterion : callable or None
        For :meth:`backward` only: ``criterion(output, target)`` of a batch of one example, a scalar
        loss. A mean with weights is then over the content of this example alone.
    accumulator : Accumulator
        Its parameters must be the model's.
    chunk_size : int, optional
        Number of examples whose gradients are in memory at a time. By default so many that they
        take at most 64 MiB. With 1 vmap is not used.
    loss_reduction : {"mean", "sum"}
        Reduction of the loss over the rows of a forward pass. A scalar output (a loss inside of the
        model) is the mean or the sum of those of the examples, where NaN counts as 0 unless all
        are NaN.

    Notes
    -----
    A loss outside of the model is tried in the first backward pass (`LossTrial`): one that mixes
    examples is refused. Buffers are constants. A model that keeps tensors of one pass for the next
    is refused, or numbers. The pass on made-up values may leave what is no float and no tensor (the
    kind of a loss, which models of transformers set once). Two forward passes on the same rows may
    share a backward pass: an example's gradients are added before they are clipped. A term of the
    loss that uses parameters directly, such as a weight penalty, belongs to no example and is
    refused at the step.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> network = nn.Linear(2, 1, bias=False)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([network.weight], FlatClipping(1.0), 2, plan.guard())
    >>> model = VmapModule(network, None, sums, loss_reduction="sum")
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> model(torch.eye(2)).sum().backward()
    >>> sums.finish()
    >>> network.weight.grad
    tensor([[1.0000, 1.0000]])
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Loss | None,
        accumulator: Accumulator,
        *,
        chunk_size: int | None = None,
        loss_reduction: str = "mean",
    ) -> None:
        super().__init__()
        check_layers(model, "vmap")
        if criterion is not None and not callable(criterion):
            raise TypeError(f"criterion must be callable, got {type(criterion).__name__}")
        self._chunk = optional(positive_integer, "chunk_size", chunk_size)
        self._mean = choice("loss_reduction", loss_reduction, ("mean", "sum")) == "mean"
        self._names = owned_names(model, accumulator)
        self._criterion = criterion
        self._accumulator = accumulator
        self._passes: ExamplePasses | None = None
        self._alone = self._chunk == 1
        self._tried: set[Any] = set()  # kinds of arguments
        self._layout: tuple[Any, list[int | None]] | None = None
        vars(self)["_module"] = model
        from dpftrl_fast.torch.gradients.eager import uncompiled  # imports the compiler

        for call in (self.forward, self.backward):
            vars(self)[call.__name__] = uncompiled(call)
        # Members under the names of the network itself: no prefix in states and listings.
        for own in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            vars(self)[own] = vars(model)[own]
        accumulator.source = self
        self._trial = LossTrial(accumulator, loss_reduction)
        self._trial.inside_is_apart()
        accumulator.handed_out = self._trial.batch

        def loss(trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any) -> Any:
            one = _map(lambda t: t.unsqueeze(0), x)
            args = one if isinstance(one, tuple) else (one,)
            output = _called(model, fixed | trained, args, {})
            assert criterion is not None
            return criterion(output, _map(lambda t: t.unsqueeze(0), y))

        self._gradients = vmap(
            grad_and_value(loss), in_dims=(None, None, 0, 0), randomness="different"
        )

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the network: each example alone where gradients of examples are due."""
        args, kwargs = self._trial.before(self, args, kwargs) or (args, kwargs)
        outputs = self._forward(args, kwargs)
        if self._trial.wanted:  # whose gradients are those of the loss, before they are scaled
            outputs = tree_map(lambda x: x.view_as(x) if isinstance(x, Tensor) else x, outputs)
        traced = self._trial.after(self, args, kwargs, outputs)
        return outputs if traced is None else traced

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        network, sums = self._module, self._accumulator
        check_first_pass(network, sums, (args, kwargs))
        if not (network.training and torch.is_grad_enabled() and sums.rows_due > 0):
            return network(*args, **kwargs)
        if self._passes is not None and self._passes.has_begun:
            raise ValueError(
                "expected a backward pass to reach all rows of the batch, got one that ended "
                "before: iterate the loader anew to begin this batch again"
            )
        given = Rows(args, kwargs, sums.rows_due)
        self._try(given)
        before = self._passes
        try:
            with nothing_kept(model=network) if self._alone else vmap_alone():
                return self._run(given)
        except BaseException:
            self._passes = before
            raise

    def _try(self, given: Rows) -> None:
        """Before the first pass on arguments of a new kind, try made-up rows, alone if vmap cannot.

        The network may then set what it sets once. Nothing here depends on the examples.
        """
        if given.kind in self._tried:
            return
        network, reason = self._module, None
        made = [*made_up_trees(given.split(slice(0, 2)), self._accumulator.steps_taken)]
        if not self._alone:
            for rows in made:
                try:
                    with unchanged(network), vmap_alone():
                        self._run_made_up(given, rows)
                except Exception as error:
                    reason = reason or error
                    refuse_held(model=network)
                else:
                    refuse_held(model=network)
                    self._tried.add(given.kind)
                    return
            self._alone = True
        for rows in made:
            with unchanged(network), nothing_kept(plain=False, model=network):
                try:
                    self._run_made_up(given, [x[:1] for x in rows])
                    break
                except Exception:  # values that the network does not take
                    continue
        self._tried.add(given.kind)
        if reason is not None:
            warn(
                "examples pass one after the other, since torch.func.vmap cannot run "
                f"{layer_of(network, reason)}: {first_sentence(reason)} (chunk_size=1 does the "
                "same without this warning)"
            )

    def _run_made_up(self, given: Rows, tensors: Sequence[Tensor]) -> None:
        rows = len(tensors[0])
        (chunk,) = ExamplePasses(self._accumulator, rows, rows).chunks
        run = one_by_one if self._alone else by_vmap
        fixed = self._fixed()
        run(lambda copies, ones: self._one(given, fixed, copies, ones)[0], chunk, tuple(tensors))

    def _one(
        self,
        given: Rows,
        fixed: dict[str, Tensor],
        copies: tuple[Tensor, ...],
        ones: tuple[Tensor, ...],
    ) -> tuple[tuple[Tensor, ...], Any]:
        """Return the output for one example, taken apart."""
        args, kwargs = given.rebuilt([x.unsqueeze(0) for x in ones])
        trained = dict(zip(self._names, copies, strict=True))
        tensors, rest = taken_apart(_called(self._module, fixed | trained, args, kwargs))
        return tuple(tensors), rest

    def _run(self, given: Rows) -> Any:
        sums, network = self._accumulator, self._module
        rows = sums.rows_due
        if self._passes is None:
            size = 1 if self._alone else self._size(rows)
            self._passes = ExamplePasses(sums, rows, size)
        fixed = self._fixed()
        run = one_by_one if self._alone else by_vmap
        found: list[tuple[Tensor, ...]] = []
        rest: Any = None

        def example(copies: tuple[Tensor, ...], ones: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            nonlocal rest
            tensors, rest = self._one(given, fixed, copies, ones)
            return tensors

        for chunk in self._passes.chunks:
            found.append(run(example, chunk, given.split(chunk.part)))
            if not self._alone:
                refuse_held(model=network)
        # Of each output: (rows, ...), where ... is the shape for a batch of one.
        outputs = [
            torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*found, strict=True)
        ]
        key = rest, [x.dim() for x in outputs]
        if self._layout is None or self._layout[0] != key:
            self._layout = key, rows_of_outputs(network, given, [x.shape[1:] for x in outputs])
        return put_together(
            rest,
            [
                self._scaled(joined(x, at, mean=self._mean), rows)
                for x, at in zip(outputs, self._layout[1], strict=True)
            ],
        )

    def _scaled(self, output: Tensor, rows: int) -> Tensor:
        if self._mean and output.requires_grad:
            output.register_hook(lambda gradient: gradient * rows)  # type: ignore[no-untyped-call]
        return output

    def _size(self, rows: int) -> int:
        if self._chunk is not None:
            return self._chunk
        each = sum(p.numel() * p.element_size() for p in self._accumulator.parameters)
        return max(1, min(rows, _CHUNK_BYTES // max(1, each)))

    def _fixed(self) -> dict[str, Tensor]:
        network, trained = self._module, set(self._names)
        everything = dict(network.named_parameters()) | dict(network.named_buffers())
        return {name: t.detach() for name, t in everything.items() if name not in trained}

    def backward(self, inputs: Any, targets: Any) -> Tensor:
        """Add the clipped gradients of a piece of the batch, as ``loss.backward()`` would.

        The loss is the criterion's, which each example gets alone.

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
        if self._criterion is None:
            raise ValueError(
                "model.backward(x, y) needs the criterion, got None: give make_private one, or "
                "call criterion(model(x), y).backward()"
            )
        plain = self._trial.before(self, (inputs, targets), {})
        if plain is not None:
            inputs, targets = plain[0]
        self._trial.close()  # each example's loss is its own
        check_first_pass(self._module, self._accumulator, inputs)
        sizes = {t.shape[0] if t.dim() else 0 for t in [*_tensors(inputs), *_tensors(targets)]}
        if len(sizes) != 1 or not max(sizes):
            raise ValueError(
                "inputs and targets must be tensors with the same number of rows, got "
                f"{sorted(sizes)}"
            )
        rows = sizes.pop()
        everything = dict(self._module.named_parameters())
        trained = {name: everything[name].detach() for name in self._names}
        losses = []
        self._accumulator.check_room(rows)
        for start in range(0, rows, size := self._size(rows)):
            x, y = (_part(tree, slice(start, start + size)) for tree in (inputs, targets))
            with vmap_alone():
                gradients, values = self._gradients(trained, self._fixed(), x, y)
            refuse_held(model=self._module, criterion=self._criterion)
            self._accumulator.add([gradients[name] for name in self._names])
            losses.append(values.detach())
        return torch.cat(losses)

    def collect(self) -> None:
        """Refuse gradients that belong to no example, as a `Source` of the accumulator.

        Those of examples are added in the backward pass.
        """
        found = [
            name
            for name, p in zip(self._names, self._accumulator.parameters, strict=True)
            if p.grad is not None
        ]
        if found:
            for p in self._accumulator.parameters:
                p.grad = None
            raise ValueError(
                f"the gradients must be those of examples, got one of {found[0]} itself: a term of "
                "the loss uses the parameter directly (a penalty: give the optimizer weight_decay, "
                "or add it inside of the model), the model was in eval mode or called inside of "
                "its wrapper, its backward pass came twice, or it uses checkpoint() with "
                "use_reentrant=True (take False)"
            )

    def settle(self) -> None:
        """Drop forward passes that no backward pass followed."""
        if self._passes is not None:
            self._passes.drop()
        self._passes = None

    # The wrapper is the network in all but its forward pass.

    def __getattr__(self, name: str) -> Any:
        module = vars(self).get("_module")
        if module is None:
            return super().__getattr__(name)
        return getattr(module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        module = vars(self).get("_module")
        if module is None or name in _OWN:
            object.__setattr__(self, name, value) if name in _OWN else super().__setattr__(
                name, value
            )
        else:
            setattr(module, name, value)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _itself, (self._module,)

    def train(self, mode: bool = True) -> VmapModule:
        """Set training or evaluation mode, as the network does."""
        self._module.train(mode)
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the network's state, under its own names."""
        return self._module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load a state of the network; ``_module.`` before all names is taken off."""
        prefix = "_module."
        if state_dict and all(name.startswith(prefix) for name in state_dict):
            state_dict = {name.removeprefix(prefix): x for name, x in state_dict.items()}
        return self._module.load_state_dict(state_dict, *args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> VmapModule:
        self._module._apply(fn, recurse)
        return self


def _training(module: VmapModule) -> bool:
    network: nn.Module | None = vars(module).get("_module")
    return network is None or network.training


def _train(module: VmapModule, mode: bool) -> None:
    network: nn.Module | None = vars(module).get("_module")
    if network is not None:
        network.training = mode


# A property in place of the attribute: the mode is the network's, whoever sets it.
VmapModule.training = property(_training, _train)  # type: ignore[assignment]


def _itself(module: nn.Module) -> nn.Module:
    return module


def _called(
    network: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a network with other parameters, of which it keeps none."""
    # Recurrent layers have a list of their parameters beside these.
    lists = [(x, x._flat_weights) for x in network.modules() if isinstance(x, nn.RNNBase)]
    for layer, weights in lists:
        layer._flat_weights = list(weights)
    try:
        return functional_call(network, tensors, args, kwargs)
    finally:
        for layer, weights in lists:
            layer._flat_weights = weights


def _map(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """Apply a function to each tensor of nested tuples, lists and dicts."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {key: _map(function, value) for key, value in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(function, value) for value in tree)
    raise TypeError(f"expected tensors, or tuples, lists or dicts of them, got {type(tree)}")


def _part(tree: Any, part: slice) -> Any:
    return _map(lambda tensor: tensor[part], tree)


def _tensors(tree: Any) -> Sequence[Tensor]:
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map(keep, tree)
    return found
