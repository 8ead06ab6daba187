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

import dataclasses
import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpftrl_fast.torch.plain_states import random_state, restore_random_state

_NODE = "_dpftrl_node"  # in the __dict__ of a marked tensor

# Functions without a part in a computation, by their names. What they return is not marked.
_WITHOUT_PART = {
    *("__deepcopy__", "__dir__", "__format__", "__hash__", "__reduce_ex__", "__repr__"),
    *("data_ptr", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_"),
    *("retain_grad", "storage", "untyped_storage"),
}
# Functions that read numbers or arrays out of tensors.
_READERS = {
    *("__array__", "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__"),
    *("__len__", "allclose", "equal", "is_nonzero", "item", "nelement", "numel", "numpy", "size"),
    "tolist",
}
_SIZES = {"__len__", "nelement", "numel", "size"}
_ARITHMETIC = {
    *("add", "div", "divide", "floor_divide", "mul", "multiply", "pow", "rdiv", "rsub", "sub"),
    *("subtract", "truediv", "true_divide", "iadd", "imul", "isub", "itruediv", "radd", "rmul"),
    *("rtruediv", "rfloordiv", "floordiv", "clamp", "clip", "maximum", "minimum"),
}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", "isin"}

Number = int | float
_WRITTEN = 6  # characters of a number that someone wrote down
_FEW = 8  # numbers read at once that are followed


class Leaf(NamedTuple):
    """A tensor that no recorded function made; `kind` is "output", "batch" or "other"."""

    place: int
    kind: str
    value: Tensor


class _Ref:
    """A marked tensor among the arguments of a recorded call."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


class _Node(NamedTuple):
    record: Record
    place: int


@dataclasses.dataclass
class Call:
    """One call of a torch function; `places` are those of the tensors in its result."""

    function: Callable[..., Any]
    name: str
    args: Any
    kwargs: Any
    places: list[int | None]
    state: dict[str, Any] | None  # of random numbers, if it drew some
    autocast: torch.dtype | None
    grad: bool
    numbers: list[Number] | None = None  # that it read out of tensors
    source: int = -1  # place of the tensor that was read
    of_shape: bool = False  # it reads sizes, not values
    counts: bool = False  # what it reads are whole numbers

    def refs(self) -> set[int]:
        """Return the places of its arguments."""
        return {ref.place for ref in _found((self.args, self.kwargs), _Ref)}

    def constants(self) -> list[Number]:
        """Return the numbers among its arguments."""
        found = _found((self.args, self.kwargs), (int, float))
        return [x for x in found if not isinstance(x, bool)]


class Traced(Tensor):
    """A tensor whose torch functions are recorded."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
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
        name = _name(function)
        if name == "backward":
            gradient = kwargs.get("gradient", kwargs.get("grad_tensors"))
            self._set_root(*(_only(x) for x in (args[0], [*args[1:2], gradient][0])))
        if name == "backward" or name in _WITHOUT_PART:
            return function(*args, **kwargs)
        refs = _mapped((args, kwargs), Tensor, lambda x: _Ref(self._leaf(x)))
        writes = _mutates(name, kwargs)
        if writes:
            self._keep_values()
        given = [*tensors((args, kwargs))]
        versions = [_version(x) for x in given]
        state, autocast = random_state(), _autocast(given)
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
        numbers = _numbers(result) if name in _READERS or _is_shape(function) else None
        if not writes and numbers is None and all(p is None for p in places):
            return result
        drew = not torch.equal(state["torch"], torch.get_rng_state()) or bool(state["cuda"])
        entry = Call(
            *(function, name, *refs, places, state if drew else None, autocast),
            torch.is_grad_enabled(),
        )
        if numbers is not None:
            entry.numbers, entry.source = numbers, min(entry.refs(), default=-1)
            entry.of_shape = name in _SIZES or _is_shape(function)
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
        depends on; and all that were read before a computation without numbers that could be theirs.
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
            if call.name.strip("_") in _ARITHMETIC and any(
                read.counts or len(repr(x)) > _WRITTEN for x in call.constants()
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
        `swapped`. Those calls are returned too that read other numbers than before, none of which was
        found in an argument.
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
                refs = _mapped((call.args, call.kwargs), _Ref, lambda ref: env[ref.place])
                if swaps and (where == "all" or call.name.strip("_") in _ARITHMETIC):
                    refs = _mapped(refs, (int, float), other)
                result = _again(call, *refs)
            except Exception:
                if i in core:
                    raise
                continue  # only for what is printed
            for place, x in zip(call.places, tensors(result), strict=True):
                if place is not None:
                    env[place] = x
            if call.numbers is not None:
                self._compare(call, _numbers(result) or [], swaps, moved)
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
        if len(new) == len(old) <= _FEW:
            for a, b in zip(_with_products(old), _with_products(new), strict=True):
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


def tensors(tree: Any) -> Iterator[Tensor]:
    """Return the tensors in nested tuples, lists, mappings and data classes, in order."""
    yield from _found(tree, Tensor)


def is_comparison(call: Call) -> bool:
    """Whether a call compares with numbers."""
    return call.name in _COMPARISONS


def _found(tree: Any, kind: Any) -> Iterator[Any]:
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            yield from _found(x, kind)
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from _found(x, kind)
    elif isinstance(tree, slice):
        yield from _found((tree.start, tree.stop, tree.step), kind)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from _found(getattr(tree, field.name, None), kind)


def _mapped(tree: Any, kind: Any, function: Callable[[Any], Any]) -> Any:
    """Return the arguments of a call with some of them replaced."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        parts = [_mapped(x, kind, function) for x in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    if isinstance(tree, dict):
        return {key: _mapped(x, kind, function) for key, x in tree.items()}
    if isinstance(tree, slice):
        return slice(*(_mapped(x, kind, function) for x in (tree.start, tree.stop, tree.step)))
    return tree


def _again(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with ExitStack() as stack:
        if call.state is not None:
            restore_random_state(call.state)
        device = next((x.device.type for x in tensors((args, kwargs))), "cpu")
        enabled = call.autocast is not None
        if enabled or torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, dtype=call.autocast, enabled=enabled))
        stack.enter_context(torch.set_grad_enabled(call.grad))
        return call.function(*args, **kwargs)


def _only(x: Any) -> Any:
    """Return the tensor of a sequence of one, as ``torch.autograd.backward`` takes it."""
    return x[0] if isinstance(x, (tuple, list)) and len(x) == 1 else x


def _autocast(given: list[Tensor]) -> torch.dtype | None:
    device = next((x.device.type for x in given), "cpu")
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _name(function: Any) -> str:
    name = str(getattr(function, "__name__", ""))
    return name if name in _READERS | _WITHOUT_PART else _bare(name)


def _bare(name: str) -> str:
    """Return the name of an operation without the underscores of Python's operators."""
    if name in ("__setitem__", "__get__", "__set__", "__getitem__"):
        return name
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def _mutates(name: str, kwargs: Mapping[str, Any]) -> bool:
    in_place = (
        (name.endswith("_") and not name.endswith("__"))
        or name in ("__setitem__", "__set__")
        or name
        in (
            *(
                "iadd",
                "isub",
                "imul",
                "itruediv",
                "idiv",
                "ifloordiv",
                "ipow",
                "iand",
                "ior",
                "ixor",
            ),
        )
    )
    return in_place or kwargs.get("out") is not None or kwargs.get("inplace") is True


def _is_shape(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    return owner is Tensor.shape or owner is Tensor.ndim


def _numbers(result: Any) -> list[Number] | None:
    """Return the numbers of a result; those of an array are not followed further."""
    if hasattr(result, "dtype") and hasattr(result, "tolist"):
        result = result.tolist()
    found = list(_found(result, (int, float)))
    return found or None


def _with_products(numbers: list[Number]) -> list[Number]:
    """Append the products of neighbours: a shape is often given with dimensions merged."""
    if any(isinstance(x, (bool, float)) for x in numbers):
        return numbers
    pairs = [a * b for a, b in zip(numbers[:-1], numbers[1:], strict=True)]
    triples = [a * b * c for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False)]
    return [*numbers, *pairs, *triples]


def _set_class(x: Tensor, kind: type[Tensor]) -> None:
    x.__class__ = kind  # type: ignore[assignment]
