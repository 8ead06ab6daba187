# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: numbers, integers, probabilities, choices, dtypes and arrays.

Every check takes the name of the argument and returns the value in plain Python or NumPy form. A
wrong type is a TypeError and a wrong value a ValueError, both in the form "`name` must be ...,
got ...". Python numbers, NumPy scalars and `fractions.Fraction` are accepted alike; bool, NaN, text
and numbers beyond the range of a float are refused alike. No check reads the values of private
rows.
"""

from __future__ import annotations

import contextlib
import math
import operator
import reprlib
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = np.ndarray[Any, np.dtype[Any]]
T = TypeVar("T")

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
#: Range of clip norms and row bounds: their squares, and sums of clipped rows, stay in float64.
SMALLEST_NORM, LARGEST_NORM = 1e-100, 1e100
#: Largest number of steps of a run, of `max_participations` and of `min_separation`.
MAX_STEPS = 2**40
#: Largest number of steps of a single pass under a Toeplitz mechanism: all that a noise stream has.
MAX_STREAM = 2**46
#: Largest integers of any argument: Python writes no more than 4300 digits, in JSON as in an error.
MOST_BITS = 8192

#: Characters of a value in an error.
_SHOWN = 200
_REPR = reprlib.Repr()  # bounded in time and memory, too: a nest may hold itself many times
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 4, _SHOWN, _SHOWN, _SHOWN
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 10


def shown(value: Any) -> str:
    """Return any value in the words of an error: its repr, cut, or its type if that fails.

    Examples
    --------
    >>> shown("a"), shown(10**5000), shown([0] * 1000)[-8:]
    ("'a'", 'a value of type int', ' 0, ...]')
    """
    try:
        text = _REPR.repr(value)
    except Exception:  # a nest that is too deep, an integer of too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 2]}.."


def equal(value: Any, expected: Any) -> bool:
    """Return whether a value that was read is the expected one; False for any other, no error.

    `expected` is plain data: None, text, numbers, and lists, tuples and dictionaries of these.
    NumPy's scalars count as the Python numbers that they are; a bool is no number.

    Examples
    --------
    >>> equal(np.int64(1), 1), equal(True, 1), equal(np.ones(2), 1), equal([1, (2,)], [1, (2,)])
    (True, False, False, True)
    """
    if isinstance(expected, (list, tuple)):
        if type(value) is not type(expected) or len(value) != len(expected):
            return False
        return all(map(equal, value, expected))
    if isinstance(expected, dict):
        if not isinstance(value, dict) or value.keys() != expected.keys():
            return False
        return all(equal(value[name], item) for name, item in expected.items())
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biufU":
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or isinstance(expected, (bool, np.bool_)):
        return isinstance(value, (bool, np.bool_)) and bool(value) is expected
    kinds = (int, float, str, bytes, type(None), np.integer, np.floating)
    return isinstance(value, kinds) and bool(value == expected)


# ---- Numbers ----


def real(
    name: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
    infinite: bool = False,
) -> float:
    """Return `value` as a float within the bounds; infinity is accepted with `infinite` only."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        expected = _range(above, least, below, most, infinite)
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        expected = _range(above, least, below, most, infinite)
        raise ValueError(
            f"{name} must be {expected}, got a number beyond the largest float"
        ) from None
    inside = (number > above or above == -math.inf) and (number < below or below == math.inf)
    possible = math.isfinite(number) or (infinite and number == math.inf)
    if not (inside and least <= number <= most and possible):
        expected = _range(above, least, below, most, infinite)
        raise ValueError(f"{name} must be {expected}, got {number!r}")
    return number + 0.0  # -0.0 becomes 0.0


def _range(above: float, least: float, below: float, most: float, infinite: bool) -> str:
    kind = "a number" if infinite else "a finite number"
    if least > -math.inf and most < math.inf:
        return f"{kind} in [{least:g}, {most:g}]"
    bounds = [f"> {above:g}"] * (above > -math.inf) + [f">= {least:g}"] * (least > -math.inf)
    bounds += [f"< {below:g}"] * (below < math.inf) + [f"<= {most:g}"] * (most < math.inf)
    words = f"{kind} {' and '.join(bounds)}" if bounds else kind
    return f"{words} (infinity allowed)" if infinite else words


def positive(name: str, value: Any) -> float:
    """Return `value` as a float if it is finite and > 0."""
    return real(name, value, above=0.0)


def non_negative(name: str, value: Any, *, infinite: bool = False) -> float:
    """Return `value` as a float if it is >= 0 and finite (or, with `infinite`, infinity)."""
    return real(name, value, least=0.0, infinite=infinite)


def probability(name: str, value: Any) -> float:
    """Return `value` as a float if it lies strictly between 0 and 1."""
    return real(name, value, above=0.0, below=1.0)


def norm_bound(name: str, value: Any) -> float:
    """Return `value` as a float if it is in the range of clip norms, [1e-100, 1e100]."""
    return real(name, value, least=SMALLEST_NORM, most=LARGEST_NORM)


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return `value` as an int in [`least`, `most`]; floats are refused, whole ones too.

    So is an integer of more than 8192 bits, with any bounds: no file or message could hold it.
    """
    if type(value) is int:  # nearly always
        number = value
    else:
        number = _index(value, f"{name} must be {_integers(least, most)}")
    if (least is not None and number < least) or (most is not None and number > most):
        raise ValueError(f"{name} must be {_integers(least, most)}, got {shown(number)}")
    if number.bit_length() > MOST_BITS:
        raise ValueError(
            f"{name} must be {_integers(least, most)} of at most {MOST_BITS} bits, got one of "
            f"{number.bit_length()} bits"
        )
    return number


def _index(value: Any, expected: str) -> int:
    if not isinstance(value, (bool, np.bool_)) and hasattr(value, "__index__"):
        with contextlib.suppress(TypeError):  # an array has the method and refuses
            return operator.index(value)
    raise TypeError(f"{expected}, got {type(value).__name__}")


def _integers(least: int | None, most: int | None) -> str:
    if least is not None and most is not None:
        return f"an integer in [{least}, {most}]"
    if least is not None:
        return f"an integer >= {least}"
    return "an integer" if most is None else f"an integer <= {most}"


def positive_integer(name: str, value: Any) -> int:
    """Return `value` as an int if it is an integer >= 1."""
    return integer(name, value, 1)


def step_count(name: str, value: Any) -> int:
    """Return `value` as an int if it is an integer in [1, 2^40]."""
    return integer(name, value, 1, MAX_STEPS)


# ---- Choices ----


def flag(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is one, NumPy's included."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)


def choice(name: str, value: Any, allowed: Sequence[T]) -> T:
    """Return the entry of `allowed` that has the type and the value of `value`."""
    plain = bool(value) if isinstance(value, np.bool_) else value
    for one in allowed:
        same = type(plain) is type(one) or (isinstance(plain, str) and isinstance(one, str))
        if same and plain == one:
            return one
    words = ", ".join(map(repr, allowed))
    raise ValueError(f"{name} must be one of {words}, got {shown(value)}")


def optional(check: Callable[..., T], name: str, value: Any, *bounds: Any, **more: Any) -> T | None:
    """Return None for None, and otherwise what `check` returns."""
    return None if value is None else check(name, value, *bounds, **more)


def hex_bytes(name: str, text: Any, size: int) -> bytes:
    """Return the bytes that hexadecimal digits stand for; they may be a key, so none is shown."""
    try:
        found = bytes.fromhex(text)
    except (TypeError, ValueError):
        found = b""
    if len(found) != size:
        raise ValueError(f"{name} must be {2 * size} hexadecimal digits")
    return found


def float_dtype(dtype: Any, name: str = "dtype") -> str:
    """Return "float32" or "float64" for a name, a type or a native dtype of one of them."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    # NumPy reads None as float64, also in a comparison.
    if dtype is None or found is None or found not in FLOATS or not found.isnative:
        raise ValueError(f"{name} must be 'float32' or 'float64', got {shown(dtype)}")
    return str(found.name)


# ---- Arrays ----


def array(name: str, value: object, dtypes: tuple[np.dtype[Any], ...], ndim: int) -> Array:
    """Return `value` if it is an aligned C-contiguous array of one of these dtypes."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be {_arrays(dtypes, ndim)}, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {_arrays(dtypes, ndim)}, got dtype {value.dtype}")
    if value.ndim != ndim:
        raise ValueError(f"{name} must be {_arrays(dtypes, ndim)}, got shape {value.shape}")
    flags = value.flags
    if not flags.c_contiguous:
        raise ValueError(f"{name} must be {_arrays(dtypes, ndim)}, got strides {value.strides}")
    if not flags.aligned:
        raise ValueError(f"{name} must be {_arrays(dtypes, ndim)}, got unaligned memory")
    return value


def _arrays(dtypes: tuple[np.dtype[Any], ...], ndim: int) -> str:
    return f"a C-contiguous {ndim}-d array of {' or '.join(map(str, dtypes))}"


def vector_of(name: str, value: object, size: int, dtypes: tuple[np.dtype[Any], ...]) -> Array:
    """Return `value` if it is an array of shape (size,) and of one of these dtypes."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array, got {type(value).__name__}")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be of {' or '.join(map(str, dtypes))}, got {value.dtype}")
    if value.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), got {value.shape}")
    return value


def finite_vector(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return a float64 copy of `value` if it is a finite vector of real numbers."""
    found = np.asarray(value)
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be an array of real numbers, got dtype {found.dtype}")
    if found.ndim != 1 or found.size == 0:
        raise ValueError(f"{name} must have shape (p,) with p >= 1, got shape {found.shape}")
    if not np.all(np.isfinite(found)):
        raise ValueError(f"{name} must be finite, got NaN or infinity")
    return np.array(found, dtype=np.float64)


def integer_array(name: str, values: ArrayLike, *, least: int | None = None) -> NDArray[np.int64]:
    """Return a copy of a one-dimensional sequence of integers >= `least` as int64."""
    expected = f"{name} must be a one-dimensional sequence of integers"
    try:
        found = np.asarray(values)
    except ValueError:
        raise ValueError(f"{expected}, got a ragged one") from None
    if found.ndim != 1:
        raise ValueError(f"{expected}, got shape {found.shape}")
    if not found.size:  # an empty list has no dtype of its own
        return np.zeros(0, np.int64)
    if found.dtype.kind == "O" and all(type(x) is int for x in found):
        raise ValueError(f"{expected} below 2^63, got larger ones")
    if found.dtype.kind not in "iu":
        raise TypeError(f"{expected}, got dtype {found.dtype}")
    if found.dtype.kind == "u" and int(found.max()) >= 2**63:
        raise ValueError(f"{expected} below 2^63, got {int(found.max())}")
    if least is not None and (smallest := int(found.min())) < least:
        raise ValueError(f"{name} must be integers >= {least}, got {smallest}")
    return np.array(found, dtype=np.int64, order="C")


def clamped_integers(name: str, x: ArrayLike) -> NDArray[Any]:
    """Return integers as an array of them; of a list those beyond 64 bits at the nearest end.

    Raises
    ------
    TypeError
        If they are not integers.
    """
    array = np.asarray(x)
    if array.dtype.kind not in "iu" and not hasattr(x, "dtype"):
        # The dtype of a list of integers depends on their values.
        cells = np.asarray(x, dtype=object)
        if all(isinstance(cell, int) and not isinstance(cell, bool) for cell in cells.flat):
            info = np.iinfo(np.int64)
            ends = [min(max(cell, info.min), info.max) for cell in cells.flat]
            array = np.array(ends, np.int64).reshape(cells.shape)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got dtype {array.dtype}")
    return array
