# SPDX-License-Identifier: Apache-2.0
"""Refusal of models and losses that keep examples of a pass by ``torch.func``, in attributes.

Under ``vmap`` each example passes alone. A tensor that the model keeps from a pass still has an
entry for each example, though, and in the next pass torch matches them by their places: an example
would then move the gradient of one of another batch, and clipping would not bound the effect of
one. Which attributes a model keeps is a public fact.
"""

from __future__ import annotations

import types
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

_OF_TORCH = frozenset(vars(nn.Module())) - {"_buffers"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_KEEPS = (
    "the {name} must keep nothing of the examples from one pass to the next, got {place}: there an "
    "example could change the gradients of others; set it before training, or delete it before the "
    "pass ends"
)


def refuse_held(**roots: Any) -> None:
    """Raise ValueError if a model or a loss keeps a tensor of a pass that is over.

    Buffers, attributes, containers in them, what a function closes over and the objects whose
    methods are called are looked at; global variables are not.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> refuse_held(model=model)
    >>> def loss(x):
    ...     model.last = [x]
    ...     return x.sum()
    >>> _ = torch.func.vmap(loss)(torch.eye(2))
    >>> refuse_held(model=model)
    Traceback (most recent call last):
    ...
    ValueError: the model must keep nothing of the examples from one pass to the next, got \
model.last: there an example could change the gradients of others; set it before training, or \
delete it before the pass ends
    """
    seen: set[int] = set()
    for name, root in roots.items():
        for place, held in _tensors(root, name, seen):
            # One made of weights alone has no entry for each example.
            if debug_unwrap(held).dim() != held.dim():
                raise ValueError(_KEEPS.format(name=name, place=place))


@contextmanager
def nothing_kept(*, plain: bool = True, **roots: Any) -> Iterator[None]:
    """Raise ValueError if a model changes itself in passes of single examples without ``vmap``.

    There an example could find what the one before it has left: a tensor, or a number. Changes are
    looked for in the places that `refuse_held` sees; with ``plain=False`` only those of tensors and
    floats.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> with nothing_kept(model=model):
    ...     model.mean = 0.5
    Traceback (most recent call last):
    ...
    ValueError: the model must keep nothing of the examples from one pass to the next, got \
model.mean: there an example could change the gradients of others; set it before training, or \
delete it before the pass ends
    """

    def state(name: str, root: Any) -> dict[tuple[str, int], Any]:
        found = _state(name, root)
        numbers = (tuple, float, complex)  # a tensor has its version beside it
        return {key: x for key, x in found.items() if plain or isinstance(x, numbers)}

    before = {name: state(name, root) for name, root in roots.items()}
    yield
    for name, root in roots.items():
        after = state(name, root)
        if len(after) > len(before[name]):
            changed = set(after) - set(before[name])
        else:
            changed = {key for key, x in before[name].items() if not _is_same(after.get(key), x)}
        if changed:
            raise ValueError(_KEEPS.format(name=name, place=min(place for place, _ in changed)))


def _state(name: str, root: Any) -> dict[tuple[str, int], Any]:
    """Return the tensors, with their versions, and plain values that can be reached."""
    found: dict[tuple[str, int], Any] = {}
    counts: Counter[str] = Counter()
    for place, x in _reached(root, name, set(), plain=True):
        found[place, counts[place]] = (x, x._version) if isinstance(x, Tensor) else x
        counts[place] += 1
    return found


def _is_same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return a[0] is b[0] and a[1] == b[1]
    # NaN is no other value than NaN
    return type(a) is type(b) and (a is b or bool(a == b) or (a != a and b != b))


def _tensors(value: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can be reached from a value, with the names of their places."""
    return _reached(value, place, seen, plain=False)


def _reached(value: Any, place: str, seen: set[int], *, plain: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _PLAIN):
        if plain:
            yield place, value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, nn.Module):
        for name, module in value.named_modules(prefix=place):
            seen.add(id(module))
            for key, held in vars(module).items():
                if key not in _OF_TORCH:
                    inner = name if key == "_buffers" else f"{name}.{key}"
                    yield from _reached(held, inner, seen, plain=plain)
    elif isinstance(value, Mapping):
        for key, held in list(value.items()):
            inner = f"{place}.{key}" if isinstance(key, str) else place
            yield from _reached(held, inner, seen, plain=plain)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for held in list(value):
            yield from _reached(held, place, seen, plain=plain)
    elif isinstance(value, types.FunctionType):
        filled = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        for held in (*filled, value.__defaults__, vars(value)):
            yield from _reached(held, place, seen, plain=plain)
    elif isinstance(value, types.MethodType):
        yield from _reached(value.__self__, place, seen, plain=plain)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        yield from _reached(vars(value), place, seen, plain=plain)


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
