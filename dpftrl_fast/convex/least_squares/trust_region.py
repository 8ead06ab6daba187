# SPDX-License-Identifier: Apache-2.0
"""Exact minimisers of quadratics whose matrix need not be positive definite: pure functions.

The noisy matrix of private least squares can be indefinite. Over a ball,

    minimise theta^T A theta - 2 <b, theta>   over ||theta|| <= R

has a solution all the same, and theta is one if and only if some m >= 0 has

    (A + m I) theta = b,   A + m I positive semidefinite,   m (R - ||theta||) = 0

(Gay 1981; More and Sorensen 1983). Over R^p there is none, and A is projected on the positive
semidefinite matrices first. A matrix is given by its lower triangle; the upper one is not read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, eigh, lapack

from dpftrl_fast._validate import positive

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
Case = Literal["interior", "boundary", "hard"]

_STEPS = 100
_CLOSE = 1e-10


class BallSolution(NamedTuple):
    """A minimiser over a ball.

    Attributes
    ----------
    theta : ndarray of shape (p,)
        Of norm at most the radius.
    multiplier : float
        m >= 0, zero in the interior.
    case : {"interior", "boundary", "hard"}
        "hard": m is minus the smallest eigenvalue and an eigenvector was added to reach the
        boundary, since b has no part along it; the negative of that part would do as well.
    """

    theta: Vector
    multiplier: float
    case: Case


def definite_solution(matrix: Matrix, vector: Vector) -> Vector | None:
    """Solve A theta = b by Cholesky factors; None if A is not positive definite.

    `matrix` holds A in its lower triangle and is overwritten if its columns are contiguous.
    `vector` is b, or has several as its columns.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[2.0, 0.0], [0.0, 4.0]], order="F")
    >>> definite_solution(A, np.ones(2)).round(9).tolist()
    [0.5, 0.25]
    """
    factor = _factor(matrix)
    return None if factor is None else _solve(factor, vector)


def minimise_on_ball(matrix: Matrix, vector: Vector, radius: float) -> BallSolution:
    """Minimise theta^T A theta - 2 <b, theta> over the ball of a radius about 0, exactly.

    `matrix` holds A in its lower triangle; A and b must be finite. If A is positive definite and
    the solution of A theta = b lies outside the ball, Newton's method on 1/R - 1/||(A + m I)^-1
    b||, concave in m, finds m from below, with one Cholesky factorisation per step. Any other A is
    diagonalised.

    Examples
    --------
    A saddle: the minimum is on the boundary.

    >>> import numpy as np
    >>> solution = minimise_on_ball(np.diag([1.0, -1.0]), np.array([1.0, 0.0]), 2.0)
    >>> solution.theta.round(6).tolist(), solution.multiplier, solution.case
    ([0.5, 1.936492], 1.0, 'hard')
    """
    radius = positive("radius", radius)
    factor = _factor(np.array(matrix, order="F"))
    if factor is None:
        return _diagonalised(matrix, vector, radius)
    theta = _solve(factor, vector)
    multiplier = 0.0
    for _ in range(_STEPS):
        norm = _norm(theta)
        if not math.isfinite(norm + multiplier):  # A is nearly singular: its factors are useless
            break
        if norm <= radius * (1 + _CLOSE):
            case: Case = "boundary" if multiplier > 0 else "interior"
            return BallSolution(_into_ball(theta, radius), multiplier, case)
        # d||theta||/dm = -||theta|| ||w||^2 with w = C^-1 theta/||theta||, C C^T = A + m I
        w = lapack.dtrtrs(factor, theta / norm, lower=1)[0]
        multiplier += (norm - radius) / radius / _norm(w) / _norm(w)
        shifted = np.array(matrix, order="F")
        shifted.flat[:: shifted.shape[0] + 1] += multiplier
        factor = _factor(shifted)
        if factor is None:
            break
        theta = _solve(factor, vector)
    return _diagonalised(matrix, vector, radius)


def projected_solution(
    matrix: Matrix, vector: Vector, ridge: float, penalties: Vector | None = None
) -> Vector:
    """Solve (A_+ + ridge I) theta = b, A_+ being A without its negative eigenvalues.

    A_+ is the positive semidefinite matrix closest to A in Frobenius norm.

    Parameters
    ----------
    matrix : (p, p) ndarray
        A, in the lower triangle.
    vector : (p,) or (p, m) ndarray
        b, or several.
    ridge : float
        Finite and > 0.
    penalties : (p,) ndarray, optional
        Numbers >= 0 that are added to the diagonal as well.

    Examples
    --------
    >>> import numpy as np
    >>> projected_solution(np.diag([1.0, -5.0]), np.ones(2), 1.0).round(12).tolist()
    [0.5, 1.0]
    """
    ridge = positive("ridge", ridge)
    values, vectors = eigh(matrix, lower=True, driver="evd", check_finite=False)
    values = np.maximum(values, 0.0)
    if penalties is not None and penalties.any():
        nearest = np.asfortranarray((vectors * values) @ vectors.T)
        nearest.flat[:: len(values) + 1] += ridge + penalties
        theta = definite_solution(nearest, vector)
        assert theta is not None  # ridge > 0
        return theta
    if vector.ndim == 1:
        return np.asarray(vectors @ ((vectors.T @ vector) / (values + ridge)))
    return np.stack([vectors @ ((vectors.T @ b) / (values + ridge)) for b in vector.T], axis=1)


def conjugate_gradients(
    product: Callable[[Vector], Vector],
    diagonal: Vector,
    vector: Vector,
    start: Vector,
    *,
    tolerance: float = 1e-9,
    iterations: int = 1000,
) -> tuple[Vector, int] | None:
    """Solve A theta = b by conjugate gradients, scaled by the diagonal of A.

    Parameters
    ----------
    product : callable
        ``product(v)`` returns A v, in memory that the next call may overwrite.
    diagonal : (p,) ndarray of float64
        The diagonal of A.
    vector, start : (p,) ndarrays of float64
        b, and the first theta.
    tolerance : float
        Norm of b - A theta relative to that of b at which to stop.
    iterations : int
        Maximum number of products.

    Returns
    -------
    theta, used : ndarray of shape (p,), int
        The solution and the number of products; or None if A turned out not to be positive
        definite or the iterations did not suffice. Positive curvature along the directions searched
        does not prove that A is positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.diag([2.0, 4.0])
    >>> theta, _ = conjugate_gradients(A.dot, np.diag(A), np.ones(2), np.zeros(2))
    >>> theta.round(12).tolist()
    [0.5, 0.25]
    >>> conjugate_gradients((-A).dot, np.diag(-A), np.ones(2), np.zeros(2)) is None
    True
    """
    if not bool(np.all(diagonal > 0)):
        return None
    theta = np.array(start, dtype=np.float64)
    residual = vector - product(theta)
    enough = tolerance * _norm(vector)
    direction = np.zeros_like(theta)
    before = math.inf
    for used in range(1, iterations + 1):
        if not _norm(residual) > enough:
            return theta, used
        scaled = residual / diagonal
        power = float(residual @ scaled)
        direction *= power / before
        direction += scaled
        image = product(direction)
        curvature = float(direction @ image)
        if not curvature > 0:
            return None
        theta += power / curvature * direction
        residual -= power / curvature * image
        before = power
    return None


def _factor(matrix: Matrix) -> Matrix | None:
    """Return the Cholesky factor, in the lower triangle; None if there is none."""
    factor, info = lapack.dpotrf(matrix, lower=1, clean=0, overwrite_a=1)
    return factor if info == 0 else None


def _solve(factor: Matrix, vector: Vector) -> Vector:
    theta, _ = lapack.dpotrs(factor, vector, lower=1)
    return np.asarray(theta)


def _norm(x: Vector) -> float:
    return float(blas.dnrm2(x))  # squares must not overflow


def _into_ball(theta: Vector, radius: float) -> Vector:
    norm = _norm(theta)
    return theta * (radius / norm) if norm > radius else theta


def _diagonalised(matrix: Matrix, vector: Vector, radius: float) -> BallSolution:
    """Solve in the coordinates of the eigenvectors.

    With d the distances of the eigenvalues from the smallest one and s = m + smallest, theta has
    the coordinates b_i/(d_i + s): no digits are lost to a small s.
    """
    values, vectors = eigh(matrix, lower=True, driver="evd", check_finite=False)
    smallest = float(values[0])
    gaps, parts = values - smallest, vectors.T @ vector
    edge = max(smallest, 0.0)  # s >= edge
    rounding = 4 * 2.0**-52 * parts.size
    lowest = gaps <= rounding * float(np.abs(values).max())
    seen = parts.copy()
    if _norm(parts[lowest]) <= rounding * _norm(parts):
        seen[lowest] = 0.0
    at_edge = _coordinates(seen, gaps, edge)
    norm = _norm(at_edge)
    if norm <= radius:
        if smallest >= 0:
            return BallSolution(vectors @ at_edge, 0.0, "interior")
        largest = vectors[np.abs(vectors[:, 0]).argmax(), 0]
        at_edge[0] = math.copysign(math.sqrt((radius - norm) * (radius + norm)), largest)
        return BallSolution(_into_ball(vectors @ at_edge, radius), -smallest, "hard")
    shift = _shift(parts, gaps, edge, radius)
    theta = vectors @ _coordinates(parts, gaps, shift)
    return BallSolution(_into_ball(theta, radius), shift - smallest, "boundary")


def _coordinates(parts: Vector, gaps: Vector, shift: float) -> Vector:
    """Return parts/(gaps + shift), zero where there is no part."""
    at = gaps + shift
    with np.errstate(divide="ignore", over="ignore"):
        return np.divide(parts, at, out=np.zeros_like(parts), where=parts != 0.0)


def _shift(parts: Vector, gaps: Vector, edge: float, radius: float) -> float:
    """Return the shift >= edge at which the norm of the coordinates is the radius.

    Newton's method on 1/R - 1/norm, from below: no coordinate is larger than the radius.
    """
    shift = max(edge, float((np.abs(parts) / radius - gaps).max()))
    for _ in range(_STEPS):
        x = _coordinates(parts, gaps, shift)
        norm = _norm(x)
        slope = float(_coordinates((x / norm) ** 2, gaps, shift).sum())
        gain = (norm - radius) / radius / slope
        if not gain > shift * 2.0**-52:
            break
        shift += gain
    return shift
