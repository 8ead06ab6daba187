# SPDX-License-Identifier: Apache-2.0
"""Fit the polynomials of docs/guarantees/stream.md by Remez exchange in 50 digits.

Run ``python docs/internals/derivations/fit_polynomials.py``: it prints the relative (log, sine) or
absolute (cosine) minimax error before rounding, and each coefficient as the hexadecimal literal of
``csrc/include/dpftrl/noise/gaussian_coefficients.hpp``. Needs mpmath and NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np

mp.mp.dps = 50


def log_quotient(f: mp.mpf) -> mp.mpf:
    """-2 ln(1 + f) / f, which is -2 at f = 0."""
    return mp.mpf(-2) if f == 0 else -2 * mp.log1p(f) / f


def cosine(y: mp.mpf) -> mp.mpf:
    """cos(pi/4 * sqrt(y))."""
    return mp.cos(mp.pi / 4 * mp.sqrt(y))


def sine_quotient(y: mp.mpf) -> mp.mpf:
    """sin(pi/4 * sqrt(y)) / sqrt(y), which is pi/4 at y = 0."""
    return mp.pi / 4 if y == 0 else mp.sin(mp.pi / 4 * mp.sqrt(y)) / mp.sqrt(y)


def remez(
    function: Callable[[mp.mpf], mp.mpf], low: float, high: float, degree: int, *, relative: bool
) -> tuple[list[mp.mpf], mp.mpf]:
    """Coefficients, lowest power first, of the minimax polynomial, and its error."""
    a, b = mp.mpf(low), mp.mpf(high)
    count = degree + 2
    points = [(a + b) / 2 - (b - a) / 2 * mp.cos(mp.pi * i / (count - 1)) for i in range(count)]

    def weight(x: mp.mpf) -> mp.mpf:
        return abs(function(x)) if relative else mp.mpf(1)

    for _ in range(20):
        matrix, right = mp.matrix(count, count), mp.matrix(count, 1)
        for i, x in enumerate(points):
            for j in range(degree + 1):
                matrix[i, j] = x**j
            matrix[i, degree + 1] = (-1) ** i * weight(x)
            right[i] = function(x)
        solution = mp.lu_solve(matrix, right)
        coefficients = [solution[j] for j in range(degree + 1)]
        levelled = abs(solution[degree + 1])
        grid = [
            a + (b - a) * (1 - mp.cos(mp.pi * k / (40 * count))) / 2 for k in range(40 * count + 1)
        ]
        extrema: list[tuple[mp.mpf, mp.mpf]] = []
        for x in grid:
            error = (mp.polyval(coefficients[::-1], x) - function(x)) / weight(x)
            if not extrema or (error > 0) != (extrema[-1][1] > 0):
                extrema.append((x, error))
            elif abs(error) > abs(extrema[-1][1]):
                extrema[-1] = (x, error)
        while len(extrema) > count:
            extrema.pop(0 if abs(extrema[0][1]) < abs(extrema[-1][1]) else -1)
        if len(extrema) < count:
            raise ArithmeticError(f"exchange lost an extremum at degree {degree}")
        points = [x for x, _ in extrema]
        if max(abs(e) for _, e in extrema) / levelled < mp.mpf("1.0005"):
            break
    return coefficients, levelled


def main() -> None:
    """Print every table."""
    jobs = [
        ("kLog", log_quotient, -0.5, 0.0, True, (8, 20)),
        ("kCos", cosine, 0.0, 1.0, False, (3, 7)),
        ("kSin", sine_quotient, 0.0, 1.0, True, (3, 6)),
    ]
    for name, function, low, high, relative, degrees in jobs:
        for degree, dtype in zip(degrees, (np.float32, np.float64), strict=True):
            coefficients, error = remez(function, low, high, degree, relative=relative)
            print(f"{name}{np.dtype(dtype).itemsize * 8} degree {degree} error {mp.nstr(error, 4)}")
            for c in coefficients:
                rounded = dtype(mp.nstr(c, 40))
                print(f"    {float(rounded).hex()},")


if __name__ == "__main__":
    main()
