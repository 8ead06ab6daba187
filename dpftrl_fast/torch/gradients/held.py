# SPDX-License-Identifier: Apache-2.0
"""Refusal of models and losses that keep examples of a pass by ``torch.func``, in attributes.

Under ``vmap`` each example passes alone. A tensor that the model keeps from a pass still has an
entry for each example, though, and in the next pass torch matches them by their places: an example
would then move the gradient of one of another batch, and clipping would not bound the effect of
one. Which attributes a model keeps is a public fact.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import debug_unwrap

_OF_TORCH = frozenset(vars(nn.Module())) - {"_buffers"}
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


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
model.last: there an example could change the gradients of others; delete it before the pass ends
    """
    seen: set[int] = set()
    for name, root in roots.items():
        for place, held in _tensors(root, name, seen):
            # One made of weights alone has no entry for each example.
            if debug_unwrap(held).dim() != held.dim():
                raise ValueError(
                    f"the {name} must keep nothing of the examples from one pass to the next, got "
                    f"{place}: there an example could change the gradients of others; delete it "
                    "before the pass ends"
                )


def _tensors(value: Any, place: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that can be reached from a value, with the names of their places."""
    if isinstance(value, _PLAIN) or id(value) in seen:
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
                    yield from _tensors(held, inner, seen)
    elif isinstance(value, Mapping):
        for key, held in list(value.items()):
            yield from _tensors(held, f"{place}.{key}" if isinstance(key, str) else place, seen)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        for held in list(value):
            yield from _tensors(held, place, seen)
    elif isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if _is_filled(cell)]
        held_by = [cell.cell_contents for cell in cells], value.__defaults__, vars(value)
        yield from _tensors(held_by, place, seen)
    elif isinstance(value, types.MethodType):
        yield from _tensors(value.__self__, place, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        yield from _tensors(vars(value), place, seen)


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
