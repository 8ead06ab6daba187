# SPDX-License-Identifier: Apache-2.0
"""`Record`: the torch functions that a training loop applied to some tensors, to run them again.

Tensors are traced by their class alone: a marked tensor is the same object, with the same values,
the same history of autograd and the same storage, so that the loop computes the same bits. Each
torch function that gets one is recorded, computed as usual on plain tensors, and its results are
marked. `Record.close` makes all of them plain again. Operations inside of a custom
``autograd.Function``, a scripted or compiled function or ``torch.func`` are not seen: what they
return is not marked.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpftrl_fast.torch.gradients.loss.torch_calls import (
    ARITHMETIC,
    FEW,
    READERS,
    SIZES,
    WITHOUT_PART,
    WRITTEN,
    Call,
    Number,
    Ref,
    again,
    autocast_dtype,
    is_shape,
    mapped,
    mutates_in_place,
    name_of,
    numbers_in,
    tensors,
    with_products,
)
from dpftrl_fast.torch.plain_states import random_state

_NODE = "_dpftrl_node"  # in the __dict__ of a marked tensor


class Leaf(NamedTuple):
    """A tensor that no recorded function made; `kind` is "output", "batch" or "other"."""

    place: int
    kind: str
    value: Tensor


class _Node(NamedTuple):
    record: Record
    place: int


class Traced(Tensor):
    """A tensor whose torch functions are recorded."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():  # what is compiled is not recorded
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        named = dict(kwargs or {})
        traced = [x for x in tensors((args, named)) if type(x) is Traced]
        nodes: list[_Node] = [x.__dict__[_NODE] for x in traced]
        record = next((node.record for node in nodes if node.record.recording), None)
        for x in traced:
            _set_class(x, Tensor)
        try:
            if record is None:
                return func(*args, **named)
            return record.call(func, tuple(args), named)
        finally:
            for x, node in zip(traced, nodes, strict=True):
                if node.record.is_open:
                    _set_class(x, Traced)
                else:
                    x.__dict__.pop(_NODE, None)


class Record:
    """The calls that touched marked tensors, in their order.

    Examples
    --------
    >>> record = Record()
    >>> x = torch.tensor([1.0, 2.0])
    >>> record.mark(x, "output")
    >>> y = (x * 3).sum()
    >>> place = record.place_of(y)
    >>> record.close()
    >>> type(x) is type(y) is Tensor
    True
    """

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []
        self.calls: list[Call] = []
        self.is_open = True
        self.recording = True
        self.mutates = False
        self.root: tuple[int, Tensor | None] | None = None  # of a call of backward()
        # Called for backward() of an output itself, of which its hook would not be told.
        self.at_leaf: Callable[[Tensor, Tensor | None], None] | None = None
        self._count = 0
        self._made: list[weakref.ref[Tensor]] = []
        self._known: dict[int, tuple[Tensor, int]] = {}

    def mark(self, x: Tensor, kind: str) -> None:
        """Record from now on what is done with a tensor that is neither a subclass nor marked."""
        if type(x) is Tensor:
            # Not the tensor itself: hooks on it may refer to this record.
            value = x.detach().clone() if self.mutates else x.detach()
            self.leaves.append(Leaf(self._trace(x), kind, value))

    def place_of(self, x: Tensor) -> int | None:
        """Return the place of a marked tensor."""
        node = x.__dict__.get(_NODE)
        return node.place if node is not None and node.record is self else None

    def close(self) -> None:
        """Forget everything, and make all marked tensors plain."""
        self.is_open = self.recording = False
        for ref in self._made:
            x = ref()
            if x is not None and type(x) is Traced:
                _set_class(x, Tensor)
                x.__dict__.pop(_NODE, None)
        self.leaves, self.calls, self._made, self._known = [], [], [], {}
        self.root = None

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function, and record it."""
        name = name_of(function)
        if name == "backward":
            gradient = kwargs.get("gradient", kwargs.get("grad_tensors"))
            self._set_root(*(_only(x) for x in (args[0], [*args[1:2], gradient][0])))
        if name == "backward" or name in WITHOUT_PART:
            return function(*args, **kwargs)
        refs = mapped((args, kwargs), Tensor, lambda x: Ref(self._leaf(x)))
        writes = mutates_in_place(name, kwargs)
        if writes:
            self._keep_values()
        given = [*tensors((args, kwargs))]
        versions = [_version(x) for x in given]
        state, autocast = random_state(), autocast_dtype(given)
        self.recording = False
        try:
            result = function(*args, **kwargs)
        finally:
            self.recording = self.is_open
        if versions != [_version(x) for x in given]:
            writes = self.mutates = True
        if not self.is_open:  # it was a backward pass
            return result
        places = [self._result(x) for x in tensors(result)]
        numbers = numbers_in(result) if name in READERS or is_shape(function) else None
        if not writes and numbers is None and all(p is None for p in places):
            return result
        drew = not torch.equal(state["torch"], torch.get_rng_state()) or bool(state["cuda"])
        given_args, given_kwargs = refs
        entry = Call(
            function=function,
            name=name,
            args=given_args,
            kwargs=given_kwargs,
            places=places,
            state=state if drew else None,
            autocast=autocast,
            grad=torch.is_grad_enabled(),
        )
        if numbers is not None:
            entry.numbers, entry.source = numbers, min(entry.refs(), default=-1)
            entry.of_shape = name in SIZES or is_shape(function)
            entry.counts = entry.of_shape or not given[0].is_floating_point()
        self.calls.append(entry)
        return result

    def needed(self, root: int) -> tuple[set[int], set[int], int]:
        """Return the calls on which a result depends, and on which numbers read before it do.

        The third result is the number of calls up to its own.
        """
        made = {p: i for i, call in enumerate(self.calls) for p in call.places if p is not None}
        if root not in made:
            return set(), set(), 0
        last = made[root]

        def above(waiting: list[int]) -> set[int]:
            found: set[int] = set()
            while waiting:
                i = waiting.pop()
                if i not in found:
                    found.add(i)
                    waiting += [made[p] for p in self.calls[i].refs() if p in made]
            return found

        core = set(range(last + 1)) if self.mutates else above([last])
        reads = [i for i, call in enumerate(self.calls[:last]) if call.numbers is not None]
        return core, above(reads), last + 1

    def ancestors(self, root: int) -> set[int]:
        """Return the places on which a result depends."""
        core, _, _ = self.needed(root)
        return {p for i in core for p in self.calls[i].refs()}

    def may_use(self, read: Call, root: int) -> bool:
        """Whether a result may depend on a number that was read, by a way that is not recorded.

        Numbers that are read to be printed are left alone: that of the result, or of one that it
        depends on; and all that no number of a later call can come from.
        """
        core, _, stop = self.needed(root)
        start = next(i for i, call in enumerate(self.calls) if call is read)
        numbers = read.numbers or []
        if read.source in self.ancestors(root):
            return False
        if any(isinstance(x, bool) for x in numbers):
            return True
        before = {p for call in self.calls[:start] for p in call.refs()}
        late = {leaf.place for leaf in self.leaves if leaf.kind == "other"} - before
        for call in (self.calls[i] for i in core if start < i < stop):
            if call.refs() & late and len(numbers) > 0 and self._is_number(call, late):
                return True
            if call.name.strip("_") in ARITHMETIC and any(
                read.counts or len(repr(x)) > WRITTEN for x in call.constants()
            ):
                return True
        return False

    def _is_number(self, call: Call, late: set[int]) -> bool:
        """Whether an argument may be a number that was made a tensor."""
        given = {leaf.place: leaf.value for leaf in self.leaves}
        return any(given[p].numel() == 1 for p in call.refs() & late)

    def replay(
        self, values: Mapping[int, Tensor], root: int, swapped: Mapping[Number, Number], where: str
    ) -> tuple[Tensor, list[Call]]:
        """Compute a result from other values of the leaves.

        Numbers that were read out of tensors, and are others now, are replaced in the arguments of
        later calls: in those of arithmetic, or with `where` "all" in all of them. So are those of
        `swapped`. Those calls are returned too that read other numbers than before, none of which
        was found in an argument.
        """
        core, reads, stop = self.needed(root)
        env: dict[int, Any] = dict(values)
        swaps: dict[Number, Number] = dict(swapped)
        moved: dict[Any, list[Any]] = {}

        def other(number: Any) -> Any:
            if isinstance(number, bool) or number not in swaps:
                return number
            if number in moved:
                moved[number][1] = True
            return swaps[number]

        for i, call in enumerate(self.calls[:stop]):
            if i not in core and i not in reads:
                continue
            try:
                refs = mapped((call.args, call.kwargs), Ref, lambda ref: env[ref.place])
                if swaps and (where == "all" or call.name.strip("_") in ARITHMETIC):
                    refs = mapped(refs, (int, float), other)
                result = again(call, *refs)
            except Exception:
                if i in core:
                    raise
                continue  # only for what is printed
            for place, x in zip(call.places, tensors(result), strict=True):
                if place is not None:
                    env[place] = x
            if call.numbers is not None:
                self._compare(call, numbers_in(result) or [], swaps, moved)
        used = {id(call) for call, found in moved.values() if found}
        lost = {id(call): call for call, _ in moved.values() if id(call) not in used}
        return env[root], list(lost.values())

    @staticmethod
    def _compare(
        call: Call, new: list[Number], swaps: dict[Number, Number], moved: dict[Any, list[Any]]
    ) -> None:
        """Note which numbers of a call are others than before."""
        old = call.numbers or []
        same = len(new) == len(old) and all(
            math.isclose(a, b, rel_tol=1e-6) or a != a for a, b in zip(old, new, strict=True)
        )
        if same:
            return
        moved[id(call)] = [call, False]
        if len(new) == len(old) <= FEW:
            for a, b in zip(with_products(old), with_products(new), strict=True):
                if a != b and not isinstance(a, bool):
                    swaps[a] = b
                    moved[a] = [call, False]

    def _set_root(self, loss: Any, gradient: Any) -> None:
        place = self.place_of(loss) if isinstance(loss, Tensor) else None
        self.root = None if place is None else (place, gradient)
        is_leaf = any(leaf.place == place and leaf.kind == "output" for leaf in self.leaves)
        if is_leaf and self.at_leaf is not None:
            self.at_leaf(loss, gradient)

    def _trace(self, x: Tensor) -> int:
        self._count += 1
        x.__dict__[_NODE] = _Node(self, self._count)
        _set_class(x, Traced)
        self._made.append(weakref.ref(x))
        return self._count

    def _leaf(self, x: Tensor) -> int:
        place = self.place_of(x)
        if place is not None:
            return place
        if id(x) not in self._known:
            self._count += 1
            value = x if isinstance(x, torch.nn.Parameter) else x.detach()
            if self.mutates:
                value = value.clone()
            self._known[id(x)] = (x, self._count)
            self.leaves.append(Leaf(self._count, "other", value))
        return self._known[id(x)][1]

    def _result(self, x: Tensor) -> int | None:
        if self.place_of(x) is not None or type(x) is not Tensor:
            return None
        return self._trace(x)

    def _keep_values(self) -> None:
        """Copy the leaves before the first call that writes in place."""
        if not self.mutates:
            self.leaves = [
                leaf
                if isinstance(leaf.value, torch.nn.Parameter)
                # the place of a leaf that is made later has its value from then
                else leaf._replace(value=leaf.value.clone())
                for leaf in self.leaves
            ]
        self.mutates = True


def _only(x: Any) -> Any:
    """Return the tensor of a sequence of one, as ``torch.autograd.backward`` takes it."""
    return x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _set_class(x: Tensor, kind: type[Tensor]) -> None:
    x.__class__ = kind
