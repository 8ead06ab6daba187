# SPDX-License-Identifier: Apache-2.0
"""Solve for a model from noisy sums: the choice of the solver, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice
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
    target : int
        Number of the target, from 0 on.
    """

    step: int
    case: str
    half_ridge: float
    multiplier: float
    products: int
    target: int = 0


def iterates(solver: Solver, p: int) -> bool:
    """Return whether models over R^p are first tried by conjugate gradients.

    Examples
    --------
    >>> iterates("auto", 100), iterates("auto", 4000), iterates("cg", 100)
    (False, True, True)
    """
    return solver == "cg" or (solver == "auto" and p >= _ITERATIVE_FROM)


class Minimiser:
    """Minimise theta^T (W + P) theta - 2 <s, theta> + lambda/2 ||theta||^2 over R^p or a ball.

    Over R^p, W is projected on the positive semidefinite matrices where W + P + lambda/2 I is not
    positive definite.

    Parameters
    ----------
    p : int
        Size of theta.
    radii : sequence of float, optional
        Radius of the ball of each target; without them, theta is in R^p.
    solver
        As for :class:`dpftrl_fast.convex.least_squares.engine.LeastSquares`.
    penalty : float
        alpha >= 0: P + lambda/2 I has max(alpha, lambda/2) on the diagonal, in the penalised
        columns, which are the first ones.
    penalised : int, optional
        Number of penalised columns; p without it.

    Examples
    --------
    >>> import numpy as np
    >>> minimise = Minimiser(2)
    >>> W = np.array([1.0, 0.0, 3.0], np.float32)
    >>> theta, solves = minimise(1, W, np.ones((1, 2)), 1.0, np.zeros((1, 2)))
    >>> theta.round(9).tolist(), solves[0].case
    ([[0.5, 0.25]], 'definite')
    """

    def __init__(
        self,
        p: int,
        *,
        radii: Sequence[float] | None = None,
        solver: Solver = "auto",
        penalty: float = 0.0,
        penalised: int | None = None,
    ) -> None:
        choice("solver", solver, ("auto", "cholesky", "cg"))
        self.radii = radii
        self._p = p
        self._penalty = penalty
        self._penalised = slice(0, p if penalised is None else penalised)
        self._iterates = iterates(solver, p)
        self._matrix = np.empty((0, 0))

    @one_blas_thread()
    def __call__(
        self, t: int, packed: NDArray[Any], s: FloatArray, half_ridge: float, start: FloatArray
    ) -> tuple[FloatArray, list[Solve]]:
        """Return the minimisers of m targets, of shape (m, p), and a report of each.

        `packed` is the upper triangle of W, `half_ridge` lambda/2 and `s` of shape (m, p);
        conjugate gradients begin at `start`.
        """
        targets = range(len(s))
        if self.radii is not None:
            matrix = self._lower(packed, half_ridge)
            balls = [minimise_on_ball(matrix, s[k], self.radii[k]) for k in targets]
            reports = [
                Solve(t, ball.case, half_ridge, ball.multiplier, 0, k)
                for k, ball in zip(targets, balls, strict=True)
            ]
            return np.stack([ball.theta for ball in balls]), reports
        if self._iterates:
            found = [self._iterate(packed, s[k], half_ridge, start[k]) for k in targets]
            done = [one for one in found if one is not None]
            if len(done) == len(s):
                reports = [Solve(t, "definite", half_ridge, 0.0, done[k][1], k) for k in targets]
                return np.stack([theta for theta, _ in done]), reports
        case = "definite"
        theta = definite_solution(self._lower(packed, half_ridge), s.T)
        if theta is None:
            case = "projected"
            penalties = np.zeros(self._p)
            penalties[self._penalised] = self._extra(half_ridge)
            bare = self._lower(packed, 0.0, 0.0)
            theta = projected_solution(bare, s.T, half_ridge, penalties)
        return np.ascontiguousarray(theta.T), [
            Solve(t, case, half_ridge, 0.0, 0, k) for k in targets
        ]

    def _iterate(
        self, packed: NDArray[Any], s: FloatArray, half_ridge: float, start: FloatArray
    ) -> tuple[FloatArray, int] | None:
        rows = np.arange(self._p)
        diagonal = packed[rows * self._p - rows * (rows - 1) // 2].astype(np.float64)
        diagonal += half_ridge
        image, extra, penalised = np.empty(self._p), self._extra(half_ridge), self._penalised
        diagonal[penalised] += extra

        def product(v: FloatArray) -> FloatArray:
            packed_product(packed, half_ridge, v, image)
            image[penalised] += extra * v[penalised]
            return image

        return conjugate_gradients(product, diagonal, s, start)

    def _extra(self, half_ridge: float) -> float:
        """Return max(alpha, lambda/2) - lambda/2."""
        return max(self._penalty - half_ridge, 0.0)

    def _lower(
        self, packed: NDArray[Any], half_ridge: float, extra: float | None = None
    ) -> FloatArray:
        """Return W + P + half_ridge I, column-major, in its lower triangle."""
        if self._matrix.size == 0:
            self._matrix = np.zeros((self._p, self._p))
        matrix = unpack(packed, half_ridge, self._matrix).T
        penalised = np.arange(self._p)[self._penalised]
        matrix[penalised, penalised] += self._extra(half_ridge) if extra is None else extra
        return matrix
