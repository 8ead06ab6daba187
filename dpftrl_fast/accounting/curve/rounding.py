# SPDX-License-Identifier: Apache-2.0
"""Directed rounding: decimal arithmetic inside, and the double on the safe side outside.

Bounds of the accountant are worked out in the standard library's decimal arithmetic with at least
48 digits (the Gaussian curve itself mostly in the C++ core, with 106 bits and a proved error). So
the cancellation that double precision suffers from (differences of normal tails, tiny delta) does
not matter, and a result can be rounded to the double next to it on the side that never understates
the privacy loss. Correct rounding keeps the order of what is rounded: results are monotone wherever
the mathematics is.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import (
    MAX_EMAX,
    MIN_EMIN,
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    localcontext,
)
from fractions import Fraction


def precision(digits: int) -> AbstractContextManager[Context]:
    """Return a context manager: so many digits, whatever the caller's own decimal context is."""
    return localcontext(
        Context(
            prec=digits,
            rounding=ROUND_HALF_EVEN,
            Emin=MIN_EMIN,
            Emax=MAX_EMAX,
            capitals=1,
            clamp=0,
            flags=[],
            traps=[InvalidOperation, DivisionByZero, Overflow],
        )
    )


def float_up(x: Decimal | Fraction) -> float:
    """Return the smallest double that is not below ``x``; for a fraction x >= 0."""
    try:
        nearest = float(x)
    except OverflowError:  # of fractions
        return math.inf
    return nearest if type(x)(nearest) >= x else math.nextafter(nearest, math.inf)


def float_down(x: Decimal) -> float:
    """Return the largest double that is not above ``x``."""
    nearest = float(x)
    return nearest if Decimal(nearest) <= x else math.nextafter(nearest, -math.inf)


def text_up(x: float) -> str:
    """Return ``x`` rounded up to four significant digits, as text.

    Examples
    --------
    >>> text_up(0.99991), text_up(1.0), text_up(1.23401e-300)
    ('1', '1', '1.235e-300')
    """
    if not math.isfinite(x) or x == 0:
        return f"{x:g}"
    with precision(800):
        value = Decimal(x)
        last = Decimal(1).scaleb(value.adjusted() - 3)
        return f"{float(value.quantize(last, rounding=ROUND_CEILING)):.4g}"


def text_down(x: float) -> str:
    """Return ``x`` with four digits, as text that reads as a double not above it: what is left.

    Examples
    --------
    >>> text_down(0.99999), text_down(1.0), text_down(0.1), text_down(0.0)
    ('0.9999', '1', '0.1', '0')
    """
    nearest = f"{x:.4g}"
    if not math.isfinite(x) or float(nearest) <= x:
        return nearest
    with precision(800):
        value = Decimal(x)
        last = Decimal(1).scaleb(value.adjusted() - 3)
        return f"{float(value.quantize(last, rounding=ROUND_FLOOR)):.4g}"


def fixed_up(x: float, digits: int) -> str:
    """Return ``x`` with so many decimals, as text that reads as a double not below ``x``.

    Examples
    --------
    >>> fixed_up(32.522, 2), fixed_up(1.0, 2), fixed_up(4.11, 2)
    ('32.53', '1.00', '4.11')
    """
    nearest = f"{x:.{digits}f}"
    if not math.isfinite(x) or float(nearest) >= x:
        return nearest
    with precision(800):
        last = Decimal(1).scaleb(-digits)
        return f"{Decimal(x).quantize(last, rounding=ROUND_CEILING):f}"


def short_up(x: float) -> str:
    """Return ``x`` as short text that reads as a double not below ``x``: for given budgets.

    Examples
    --------
    >>> short_up(0.1), short_up(1e-5), short_up(2.0000001), short_up(1.23456712e-6)
    ('0.1', '1e-05', '2.001', '1.23457e-06')
    """
    nearest = f"{x:g}"
    return nearest if not math.isfinite(x) or float(nearest) >= x else text_up(x)


def _index(x: float) -> int:
    return int.from_bytes(struct.pack(">d", x), "big")


def _double(index: int) -> float:
    return float(struct.unpack(">d", index.to_bytes(8, "big"))[0])


def smallest_double(holds: Callable[[float], bool], guess: float) -> float:
    """Return the smallest double x > 0 with ``holds(x)``, which must stay true once it is.

    Infinity counts as true and 0 as false; neither is asked. The search gallops away from ``guess``
    over the doubles in their order and then bisects: a good guess costs two or three calls, any
    other at most about 130, and the result is the same.
    """
    below, above = 0, _index(math.inf)  # places in the order of the doubles
    at = min(max(_index(guess), 1), above - 1)
    stride = 1
    if holds(_double(at)):
        above = at
        while above - stride > below:
            if not holds(_double(above - stride)):
                below = above - stride
                break
            above -= stride
            stride *= 2
    else:
        below = at
        while below + stride < above:
            if holds(_double(below + stride)):
                above = below + stride
                break
            below += stride
            stride *= 2
    while above - below > 1:
        at = (below + above) // 2
        if holds(_double(at)):
            above = at
        else:
            below = at
    return _double(above)
