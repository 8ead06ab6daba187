# SPDX-License-Identifier: Apache-2.0
"""Solve for a model from noisy sums: the choice of the solver, and its report."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, optional, positive
from dpftrl_fast.convex.least_squares.trust_region import (
    conjugate_gradients,
    definite_solution,
    minimise_on_ball,
    projected_solution,
)
from dpftrl_fast.kernels.blas_threads import one_blas_thread
from dpftrl_fast.kernels.packed import packed_product, unpack

FloatArray = NDArray[np.float64]
Solver = Literal["auto", "cholesky", "cg"]

# From this p on, conjugate gradients take less time than a Cholesky factorisation (measured).
_ITERATIVE_FROM = 1500


class Solve(NamedTuple):
    """Report of the making of a model: a function of the released sums.

    Attributes
    ----------
    step : int
        t.
    case : {"definite", "projected", "interior", "boundary", "hard"}
        Over R^p: W_t + lambda_t/2 I was "definite", or W_t was "projected" on the positive
        semidefinite matrices first. Over a ball: the place of the exact minimiser, see
        :class:`dpftrl_fast.convex.least_squares.trust_region.BallSolution`.
    half_ridge : float
        lambda_t/2.
    multiplier : float
        Multiplier of the ball, added to lambda_t/2; 0 without a ball.
    products : int
        Matrix-vector products of conjugate gradients; 0 for a factorisation.
    """

    step: int
    case: str
    half_ridge: float
    multiplier: float
    products: int


class Minimiser:
    """Minimise theta^T W theta - 2 <s, theta> + lambda/2 ||theta||^2 over R^p or a ball.

    `p` is the size of theta; `radius` and `solver` are those of
    :class:`dpftrl_fast.convex.least_squares.engine.LeastSquares`. Over R^p, W is projected on the
    positive semidefinite matrices where W + lambda/2 I is not positive definite.

    Examples
    --------
    >>> import numpy as np
    >>> minimise = Minimiser(2)
    >>> W = np.array([1.0, 0.0, 3.0], np.float32)
    >>> theta, solve = minimise(1, W, np.ones(2), 1.0, np.zeros(2))
    >>> theta.round(9).tolist(), solve.case
    ([0.5, 0.25], 'definite')
    """

    def __init__(self, p: int, *, radius: float | None = None, solver: Solver = "auto") -> None:
        choice("solver", solver, ("auto", "cholesky", "cg"))
        self.radius = optional(positive, "radius", radius)
        self._p = p
        self._iterates = solver == "cg" or (solver == "auto" and p >= _ITERATIVE_FROM)
        self._matrix = np.empty((0, 0))

    @one_blas_thread()
    def __call__(
        self, t: int, packed: NDArray[Any], s: FloatArray, half_ridge: float, start: FloatArray
    ) -> tuple[FloatArray, Solve]:
        """Return the minimiser and the report.

        `packed` is the upper triangle of W, `half_ridge` lambda/2; conjugate gradients begin at
        `start`.
        """
        if self.radius is not None:
            ball = minimise_on_ball(self._lower(packed, half_ridge), s, self.radius)
            return ball.theta, Solve(t, ball.case, half_ridge, ball.multiplier, 0)
        if self._iterates:
            found = self._iterate(packed, s, half_ridge, start)
            if found is not None:
                return found[0], Solve(t, "definite", half_ridge, 0.0, found[1])
        theta = definite_solution(self._lower(packed, half_ridge), s)
        if theta is not None:
            return theta, Solve(t, "definite", half_ridge, 0.0, 0)
        theta = projected_solution(self._lower(packed, 0.0), s, half_ridge)
        return theta, Solve(t, "projected", half_ridge, 0.0, 0)

    def _iterate(
        self, packed: NDArray[Any], s: FloatArray, half_ridge: float, start: FloatArray
    ) -> tuple[FloatArray, int] | None:
        rows = np.arange(self._p)
        diagonal = packed[rows * self._p - rows * (rows - 1) // 2].astype(np.float64)
        image = np.empty(self._p)
        return conjugate_gradients(
            lambda v: packed_product(packed, half_ridge, v, image),
            diagonal + half_ridge,
            s,
            start,
        )

    def _lower(self, packed: NDArray[Any], half_ridge: float) -> FloatArray:
        """Return W + half_ridge I, column-major, in its lower triangle."""
        if self._matrix.size == 0:
            self._matrix = np.zeros((self._p, self._p))
        return unpack(packed, half_ridge, self._matrix).T
