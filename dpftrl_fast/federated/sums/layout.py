# SPDX-License-Identifier: Apache-2.0
"""`ModelLayout`: a model of many arrays as one vector, and checks that an update fits it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import FLOATS, vector_of

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Mapping[str, Array] | Sequence[Array]

# Operations turn a 0-d array into a scalar of NumPy.
_ARRAYS = (np.ndarray, np.generic)
_FLOATS = "efd"  # characters of float16, float32 and float64
_INTEGERS = np.typecodes["AllInteger"]
_WORDS = {_FLOATS: "float16, float32 or float64", _INTEGERS: "integers"}
_STRUCTURES: dict[str, type[Any]] = {kind.__name__: kind for kind in (dict, list, tuple)}
_SHOWN, _LONGEST = 3, 60  # names in a message, letters of a name


class ModelLayout:
    """Names, shapes and dtypes of a model, frozen, and the place of each array in a flat vector.

    Arrays follow one another in the order of `parameters`, each in row-major order. An update is
    matched by name (mappings, in whatever order) or by place (lists and tuples).

    Parameters
    ----------
    parameters : mapping of str to ndarray, or list or tuple of ndarray
        The model: float16, float32 or float64. Its values are not kept.

    Attributes
    ----------
    names, shapes, dtypes : tuples
        Of the arrays in order; names are "0", "1", ... in a list, dtypes of native byte order.
    starts : tuple of int
        Coordinate of the first element of each array, and at the end `size` (d).
    fingerprint : str
        Hash of all of these, in hexadecimal.

    Examples
    --------
    >>> layout = ModelLayout({"w": np.zeros((2, 2)), "b": np.zeros(1, np.float32)})
    >>> layout.size, layout.starts
    (5, (0, 4, 5))
    >>> layout.problem({"w": np.zeros((2, 3)), "b": np.zeros(1)})
    "'w' must have shape (2, 2), got (2, 3)"
    >>> layout.flatten({"b": np.ones(1), "w": np.zeros((2, 2))})
    array([0., 0., 0., 0., 1.])
    """

    def __init__(self, parameters: Arrays) -> None:
        given: Any = parameters
        self._kind: type[Any] = _structure(given)
        names: list[Any]
        if self._kind is dict:
            names = list(given)
            strange = [name for name in names if not isinstance(name, str)]
            if strange:
                raise TypeError(f"names of parameters must be strings, got {_list(strange)}")
            arrays = [given[name] for name in names]
        else:
            names, arrays = [str(place) for place in range(len(given))], list(given)
        for name, array in zip(names, arrays, strict=True):
            found = _problem_of(self._label(name), array)
            if found is not None:
                raise (ValueError if isinstance(array, _ARRAYS) else TypeError)(found)
        self.names: tuple[str, ...] = tuple(names)
        self.shapes: tuple[tuple[int, ...], ...] = tuple(a.shape for a in arrays)
        self.dtypes: tuple[np.dtype[Any], ...] = tuple(a.dtype.newbyteorder("=") for a in arrays)
        starts = [0]
        for shape in self.shapes:
            starts.append(starts[-1] + math.prod(shape))
        self.starts: tuple[int, ...] = tuple(starts)
        self.size: int = starts[-1]
        if self.size == 0:
            raise ValueError("parameters must hold at least one number, got none")
        facts = [
            self._kind is dict,
            [[n, s, d.name] for n, s, d in zip(names, self.shapes, self.dtypes, strict=True)],
        ]
        text = b"dpftrl_fast.federated/layout/v1\0" + json.dumps(facts).encode()
        self.fingerprint: str = hashlib.sha256(text).hexdigest()
        self._labels = tuple(self._label(name) for name in names)
        self._known = frozenset(names)

    def _label(self, name: str) -> str:
        return _show(name) if self._kind is dict else f"array {name}"

    def __repr__(self) -> str:
        return f"ModelLayout({len(self.names)} arrays, {self.size} numbers)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelLayout) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def problem(self, update: object) -> str | None:
        """Return the reason why `update` does not fit this model, None if it does.

        Checks structure, names, types, shapes and dtypes, never values. An update is a mapping if
        the model is one, otherwise a list or a tuple; its arrays may be float16, float32 or float64
        whatever the model's dtypes.

        Examples
        --------
        >>> layout = ModelLayout([np.zeros(2), np.zeros(3)])
        >>> layout.problem([np.ones(2, np.float32), np.ones(3)])
        >>> layout.problem([np.ones(2)])
        'expected 2 arrays, got 1'
        >>> layout.problem([np.ones(2), np.ones(3, int)])
        'array 1 must be of float16, float32 or float64, got int64'
        """
        found = self._read(update)
        return found if isinstance(found, str) else None

    def _read(self, update: object, chars: str = _FLOATS) -> list[Array] | str:
        """Return the arrays of an update, or the reason why it does not fit."""
        try:
            problem = self._misfit(update)
            arrays = [] if problem is not None else self._pick(update)
        except Exception as error:  # for instance of a mapping that reads a file
            return f"cannot be read: {type(error).__name__}"
        if problem is not None:
            return problem
        for label, array, shape in zip(self._labels, arrays, self.shapes, strict=True):
            # The fast path: there may be a thousand arrays.
            if type(array) is np.ndarray and array.shape == shape and array.dtype.char in chars:
                continue
            problem = _problem_of(label, array, shape, chars)
            if problem is not None:
                return problem
        return [np.asarray(array) for array in arrays]

    def _misfit(self, update: object) -> str | None:
        if self._kind is dict:
            if not isinstance(update, Mapping):
                return f"expected a mapping from names to arrays, got {type(update).__name__}"
            missing = [name for name in self.names if name not in update]
            if missing:
                return f"lacks {_list(missing)}"
            if len(update) != len(self.names):
                return f"has {_list(name for name in update if name not in self._known)} too"
        elif not isinstance(update, (list, tuple)):
            return f"expected a list of arrays, got {type(update).__name__}"
        elif len(update) != len(self.names):
            return f"expected {len(self.names)} arrays, got {len(update)}"
        return None

    def _pick(self, update: Any) -> list[Any]:
        return [update[name] for name in self.names] if self._kind is dict else list(update)

    def arrays(self, update: Arrays) -> list[Array]:
        """Return the arrays of an update in order, not copied; ValueError if it does not fit."""
        found = self._read(update)
        if isinstance(found, str):
            raise ValueError(f"update does not fit the model: {found}")
        return found

    def integers(self, total: object) -> NDArray[np.uint64]:
        """Return integers modulo 2^64 as one new vector; ValueError if they do not fit.

        `total` is one vector of shape (size,), or has the model's structure and shapes; signed and
        unsigned integers of any width. A negative number x stands for 2^64 + x.

        Examples
        --------
        >>> layout = ModelLayout({"w": np.zeros((1, 2)), "b": np.zeros(1)})
        >>> layout.integers({"b": np.array([3]), "w": np.array([[1, 2]], np.int8)}).tolist()
        [1, 2, 3]
        >>> layout.integers(np.array([1, 2]))
        Traceback (most recent call last):
        ValueError: total does not fit the model: vector must have shape (3,), got (2,)
        """
        found: list[Array] | str
        if isinstance(total, np.ndarray):
            problem = _problem_of("vector", total, (self.size,), _INTEGERS)
            found = [total] if problem is None else problem
        else:
            found = self._read(total, _INTEGERS)
        if isinstance(found, str):
            raise ValueError(f"total does not fit the model: {found}")
        vector, start = np.empty(self.size, np.uint64), 0
        for array in found:
            vector[start : start + array.size] = array.ravel().astype(np.uint64)
            start += array.size
        return vector

    def flatten(self, update: Arrays, out: Array | None = None) -> Array:
        """Return an update, or the model itself, as one vector: `out`, or a new float64 array.

        Raises
        ------
        TypeError, ValueError
            If the update does not fit, or `out` is not a writable float array of shape (size,).

        Examples
        --------
        >>> ModelLayout([np.zeros(2), np.zeros(1)]).flatten([np.ones(2), np.zeros(1)])
        array([1., 1., 0.])
        """
        arrays = self.arrays(update)
        vector = np.empty(self.size) if out is None else vector_of("out", out, self.size, FLOATS)
        if not vector.flags.writeable:
            raise ValueError("out must be writable, got a read-only array")
        if out is not None and any(np.may_share_memory(out, array) for array in arrays):
            raise ValueError("out must not overlap the update")
        with np.errstate(over="ignore", invalid="ignore"):
            for array, start in zip(arrays, self.starts, strict=False):
                vector[start : start + array.size].reshape(array.shape)[...] = array
        return vector

    def unflatten(self, vector: Array) -> Any:
        """Return a float vector of shape (size,) as a model, in new arrays.

        It has the structure and dtypes of `parameters`; numbers beyond a narrower dtype's range
        become infinite.

        Examples
        --------
        >>> ModelLayout({"w": np.zeros((1, 2), np.float32)}).unflatten(np.arange(2.0))
        {'w': array([[0., 1.]], dtype=float32)}
        """
        vector_of("vector", vector, self.size, FLOATS)
        bounds = zip(self.starts[:-1], self.starts[1:], strict=True)
        with np.errstate(over="ignore", invalid="ignore"):
            arrays = [
                vector[start:stop].astype(dtype).reshape(shape)
                for (start, stop), dtype, shape in zip(
                    bounds, self.dtypes, self.shapes, strict=True
                )
            ]
        return (
            dict(zip(self.names, arrays, strict=True)) if self._kind is dict else self._kind(arrays)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return structure, names, shapes and dtypes, JSON-able."""
        each = zip(self.names, self.shapes, self.dtypes, strict=True)
        return {
            "structure": self._kind.__name__,
            "arrays": [[name, list(shape), dtype.name] for name, shape, dtype in each],
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> ModelLayout:
        """Return the layout of a dictionary of `to_dict`; ValueError for any other.

        Examples
        --------
        >>> layout = ModelLayout({"w": np.zeros((2, 2)), "b": np.zeros(1, np.float32)})
        >>> ModelLayout.from_dict(layout.to_dict()) == layout
        True
        """
        try:
            kind, arrays = _STRUCTURES[d["structure"]], dict[str, Array]()
            for name, shape, dtype in d["arrays"]:
                if name in arrays:
                    raise ValueError(f"name {_show(name)} appears twice")
                arrays[name] = np.broadcast_to(np.zeros((), dtype), tuple(shape))  # no memory
            return cls(arrays if kind is dict else kind(arrays.values()))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"expected the layout of a model: {error}") from None


def _structure(parameters: object) -> type[Any]:
    for kind in (list, tuple):
        if isinstance(parameters, kind):
            return kind
    if isinstance(parameters, Mapping):
        return dict
    raise TypeError(
        "parameters must be a mapping from names to arrays, or a list or tuple of arrays, got "
        f"{type(parameters).__name__}"
    )


def _problem_of(
    label: str, array: object, shape: tuple[int, ...] | None = None, chars: str = _FLOATS
) -> str | None:
    if not isinstance(array, _ARRAYS):
        return f"{label} must be a NumPy array, got {type(array).__name__}"
    if isinstance(array, np.ma.MaskedArray):
        return f"{label} must be a plain NumPy array, got a masked one"
    if array.dtype.char not in chars:
        return f"{label} must be of {_WORDS[chars]}, got {array.dtype.name}"
    if shape is not None and array.shape != shape:
        return f"{label} must have shape {shape}, got {array.shape}"
    return None


def _show(name: object) -> str:
    text = repr(name)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _list(names: Iterable[object]) -> str:
    every = list(names)
    shown = ", ".join(map(_show, every[:_SHOWN]))
    more = len(every) - _SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
