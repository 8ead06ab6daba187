# SPDX-License-Identifier: Apache-2.0
"""Arguments and outputs of a model that runs one example at a time: taken apart, put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Rows:
    """The arguments of a forward pass, with the rows of the examples that are due.

    Tensors whose first dimension is the number of rows are split into examples. A number, or a
    tensor whose first dimension is 1, is the same for each example. Nothing else is taken, since
    it could show an example those beside it.

    Parameters
    ----------
    args, kwargs
        Tensors, plain values, and tuples, lists and dicts of them.
    rows : int
        Number of examples.

    Raises
    ------
    ValueError
        If a tensor has another first dimension, or none has that of the rows.
    TypeError
        If a value is of another type, or a list holds numbers (of single examples, it may be).

    Examples
    --------
    >>> given = Rows((torch.eye(2), 3.0), {}, 2)
    >>> given.rebuilt([row.unsqueeze(0) for row in given.split(slice(0, 2))[0][:1]])
    ((tensor([[1., 0.]]), 3.0), {})
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], rows: int) -> None:
        self._rows, self._tensors = rows, list[Tensor]()
        self._args = tuple(self._keep(x, f"argument {i}") for i, x in enumerate(args))
        self._kwargs = {key: self._keep(x, repr(key)) for key, x in kwargs.items()}
        if not self._tensors:
            raise ValueError(
                f"the model must get the {rows} rows of the batch along the first dimension of a "
                "tensor, got none with so many"
            )

    @property
    def kind(self) -> Any:
        """Shapes of an example's rows, dtypes and all else that is public; to be compared."""
        rows = [(x.shape[1:], x.dtype, x.device) for x in self._tensors]
        return repr((rows, _described(self._args), _described(self._kwargs)))

    def split(self, part: slice) -> tuple[Tensor, ...]:
        """Return the part's rows of each tensor that has rows."""
        return tuple(x[part] for x in self._tensors)

    def rebuilt(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other tensors in the place of those that have rows."""
        args = put_together(self._args, tensors)
        return args, put_together(self._kwargs, tensors)

    def _keep(self, x: Any, place: str, *, in_list: bool = False) -> Any:
        if isinstance(x, Tensor):
            if x.dim() and x.shape[0] == self._rows:
                self._tensors.append(x)
                return _At(len(self._tensors) - 1)
            if x.dim() and x.shape[0] != 1:
                raise ValueError(
                    f"the model must get the {self._rows} rows of the batch along the first "
                    f"dimension of each tensor, got {place} of shape {tuple(x.shape)}: a tensor "
                    "that is the same for all examples has a first dimension of 1, or is a buffer"
                )
            return x
        if isinstance(x, Mapping):
            items = {key: self._keep(v, f"{place}[{key!r}]") for key, v in x.items()}
            return _like(x, items)
        if isinstance(x, (tuple, list)):
            return _like(x, [self._keep(v, place, in_list=True) for v in x])
        if x is None or (isinstance(x, _PLAIN) and not in_list):
            return x
        raise TypeError(
            f"the model must get tensors, plain values, or tuples, lists and dicts of tensors, got "
            f"{type(x).__name__}{' in the list' if in_list else ''} as {place}: what belongs to an "
            "example must be a row of a tensor"
        )


def _described(tree: Any) -> Any:
    """Return a tree with the shapes of its tensors, and the types of its floats."""
    if isinstance(tree, Tensor):
        return tree.shape, tree.dtype, tree.device
    if isinstance(tree, (float, complex)):
        return type(tree)
    if isinstance(tree, _At):
        return tree.index
    if isinstance(tree, Mapping):
        return [(key, _described(x)) for key, x in tree.items()]
    if isinstance(tree, (tuple, list)):
        return [_described(x) for x in tree]
    return tree


class _At:
    """Place of a tensor that was taken out."""

    def __init__(self, index: int) -> None:
        self.index = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _At) and self.index == other.index

    def __hash__(self) -> int:
        return hash(self.index)


def taken_apart(tree: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of a model's output, and the rest for `put_together`.

    Caches of keys and values, which serve generation only, become None. TypeError if there is an
    object that is no tensor, plain value, tuple, list, dict or dataclass.

    Examples
    --------
    >>> tensors, rest = taken_apart({"loss": torch.ones(()), "name": "a"})
    >>> put_together(rest, [torch.zeros(())])
    {'loss': tensor(0.), 'name': 'a'}
    """
    tensors: list[Tensor] = []

    def keep(x: Any) -> Any:
        if isinstance(x, Tensor):
            tensors.append(x)
            return _At(len(tensors) - 1)
        if isinstance(x, _PLAIN):
            return x
        if hasattr(x, "get_seq_length"):
            return None
        rest = _mapped(keep, x)
        if rest is x:
            raise TypeError(
                "the model's output must be a tensor, or a tuple, list, dict or dataclass of "
                f"tensors, got {type(x).__name__} in it"
            )
        return rest

    rest = keep(tree)
    return tensors, rest


def put_together(rest: Any, tensors: Sequence[Tensor]) -> Any:
    """Put tensors in the places of those that were taken out."""
    if isinstance(rest, _At):
        return tensors[rest.index]
    return _mapped(lambda x: put_together(x, tensors), rest)


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """Apply a function to the members of a container; anything else is returned itself."""
    if isinstance(x, Mapping):
        return _like(x, {key: function(v) for key, v in x.items()})
    if isinstance(x, (tuple, list)):
        return _like(x, [function(v) for v in x])
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [field.name for field in dataclasses.fields(x) if field.init]
        return dataclasses.replace(x, **{name: function(getattr(x, name)) for name in fields})
    return x


def _like(x: Any, items: Any) -> Any:
    """Return a container of the type of `x`."""
    kind: Any = type(x)
    is_dataclass = dataclasses.is_dataclass(kind)
    if kind in (dict, list, tuple):
        return kind(items)
    if isinstance(x, tuple):
        return kind(*items) if hasattr(x, "_fields") else kind(items)
    if isinstance(x, Mapping):
        if is_dataclass:  # ModelOutput of transformers: fields are keys
            return kind(**items)
        try:
            return kind(items)
        except TypeError:
            return dict(items)
    return kind(items)
