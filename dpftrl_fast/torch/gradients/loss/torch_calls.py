# SPDX-License-Identifier: Apache-2.0
"""`Call`: one recorded call of a torch function, and what is to be known of such functions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from dpftrl_fast.torch.plain_states import restore_random_state

# Functions without a part in a computation, by their names. What they return is not marked.
WITHOUT_PART = {
    *("__deepcopy__", "__dir__", "__format__", "__hash__", "__reduce_ex__", "__repr__"),
    *("data_ptr", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_"),
    *("retain_grad", "storage", "untyped_storage"),
}
# Functions that read numbers or arrays out of tensors.
READERS = {
    *("__array__", "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__"),
    *("__len__", "allclose", "equal", "is_nonzero", "item", "nelement", "numel", "numpy", "size"),
    "tolist",
}
SIZES = {"__len__", "nelement", "numel", "size"}
ARITHMETIC = {
    *("add", "div", "divide", "floor_divide", "mul", "multiply", "pow", "rdiv", "rsub", "sub"),
    *("subtract", "truediv", "true_divide", "iadd", "imul", "isub", "itruediv", "radd", "rmul"),
    *("rtruediv", "rfloordiv", "floordiv", "clamp", "clip", "maximum", "minimum"),
}
_COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "greater", "less", "not_equal", "isin"}

Number = int | float
WRITTEN = 6  # characters of a number that someone wrote down
FEW = 8  # numbers read at once that are followed


class Ref:
    """A marked tensor among the arguments of a recorded call."""

    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        self.place = place


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
        return {ref.place for ref in found_in((self.args, self.kwargs), Ref)}

    def constants(self) -> list[Number]:
        """Return the numbers among its arguments."""
        found = found_in((self.args, self.kwargs), (int, float))
        return [x for x in found if not isinstance(x, bool)]


def tensors(tree: Any) -> Iterator[Tensor]:
    """Return the tensors in nested tuples, lists, mappings and data classes, in order."""
    yield from found_in(tree, Tensor)


def is_comparison(call: Call) -> bool:
    """Whether a call compares with numbers."""
    return call.name in _COMPARISONS


def found_in(tree: Any, kind: Any) -> Iterator[Any]:
    """Return what is of some type in nested containers, in order."""
    if isinstance(tree, kind):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            yield from found_in(x, kind)
    elif isinstance(tree, Mapping):
        for x in tree.values():
            yield from found_in(x, kind)
    elif isinstance(tree, slice):
        yield from found_in((tree.start, tree.stop, tree.step), kind)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from found_in(getattr(tree, field.name, None), kind)


def mapped(tree: Any, kind: Any, function: Callable[[Any], Any]) -> Any:
    """Return the arguments of a call with some of them replaced."""
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, (tuple, list)):
        parts = [mapped(x, kind, function) for x in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    if isinstance(tree, dict):
        return {key: mapped(x, kind, function) for key, x in tree.items()}
    if isinstance(tree, slice):
        return slice(*(mapped(x, kind, function) for x in (tree.start, tree.stop, tree.step)))
    return tree


def again(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compute a call from other arguments, as it was computed."""
    with ExitStack() as stack:
        if call.state is not None:
            restore_random_state(call.state)
        device = next((x.device.type for x in tensors((args, kwargs))), "cpu")
        enabled = call.autocast is not None
        if enabled or torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, dtype=call.autocast, enabled=enabled))
        stack.enter_context(torch.set_grad_enabled(call.grad))
        return call.function(*args, **kwargs)


def autocast_dtype(given: list[Tensor]) -> torch.dtype | None:
    """Return the dtype of autocast, where it is on for these tensors."""
    device = next((x.device.type for x in given), "cpu")
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def name_of(function: Any) -> str:
    """Return the name of a torch function; Python's operators lose their underscores."""
    name = str(getattr(function, "__name__", ""))
    return name if name in READERS | WITHOUT_PART else _bare(name)


def _bare(name: str) -> str:
    """Return the name of an operation without the underscores of Python's operators."""
    if name in ("__setitem__", "__get__", "__set__", "__getitem__"):
        return name
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def mutates_in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call writes into its arguments."""
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


def is_shape(function: Any) -> bool:
    """Whether a function reads the shape of a tensor."""
    owner = getattr(function, "__self__", None)
    return owner is Tensor.shape or owner is Tensor.ndim


def numbers_in(result: Any) -> list[Number] | None:
    """Return the numbers of a result; those of an array are not followed further."""
    if hasattr(result, "dtype") and hasattr(result, "tolist"):
        result = result.tolist()
    found = list(found_in(result, (int, float)))
    return found or None


def with_products(numbers: list[Number]) -> list[Number]:
    """Append the products of neighbours: a shape is often given with dimensions merged."""
    if any(isinstance(x, (bool, float)) for x in numbers):
        return numbers
    pairs = [a * b for a, b in itertools.pairwise(numbers)]
    triples = [a * b * c for a, b, c in zip(numbers, numbers[1:], numbers[2:], strict=False)]
    return [*numbers, *pairs, *triples]
