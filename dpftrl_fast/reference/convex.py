# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL for linear models in plain Python (docs/results/convex.md): loops over rows, numbers.

The gradient of the loss l(z, y) at the outputs z = theta x is a slope for every output, times the
row. Gradients of rows (or of users) are clipped, added up, and passed to `FTRL` with the noise of a
tree. Vectors are lists, matrices are lists of lists.

The code is written for reading and for comparison. It does not treat extreme numbers (squares that
overflow or vanish) as the kernels do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from dpftrl_fast.reference.tree import TreeNoise

Vector: TypeAlias = Sequence[float]
Matrix: TypeAlias = Sequence[Sequence[float]]

#: Vectors are clipped to this part of the clip norm; the rest is room for rounding.
MARGIN = 1 - 2.0**-20


def dot(a: Vector, b: Vector) -> float:
    """Return the sum of the products."""
    return sum(x * y for x, y in zip(a, b, strict=True))


def norm(matrix: Matrix) -> float:
    """Return the L2 norm over all entries."""
    return math.sqrt(sum(dot(row, row) for row in matrix))


# ------------------------------------------------------------------------------------- gradients


def slopes(loss: str, z: Vector, y: float, k: float = 1.0) -> list[float]:
    """Return the derivatives of the loss in the outputs.

    Parameters
    ----------
    loss : str
        With one output: squared, huber, epsilon_insensitive, quantile, linear, logistic or hinge.
        With several: multinomial, or hinge (one against the rest).
    z : outputs
    y : target, or the number of the class
    k : parameter of huber, epsilon_insensitive and quantile

    Examples
    --------
    >>> slopes("huber", [5.0], 1.0, 2.0), slopes("multinomial", [0.0, 0.0], 1.0)
    ([2.0], [0.5, -0.5])
    """
    if len(z) > 1:
        if loss == "hinge":
            return [slopes("hinge", [own], 1.0 if j == y else -1.0)[0] for j, own in enumerate(z)]
        powers = [math.exp(own - max(z)) for own in z]
        return [power / sum(powers) - (j == y) for j, power in enumerate(powers)]
    (value,) = z
    error, sign = value - y, 1.0 if y > 0 else -1.0
    if loss == "squared":
        return [error]
    if loss == "huber":
        return [max(-k, min(k, error))]
    if loss == "epsilon_insensitive":
        return [math.copysign(1.0, error) if abs(error) > k else 0.0]
    if loss == "quantile":
        return [-k if error < 0 else 1.0 - k if error > 0 else 0.0]
    if loss == "linear":
        return [y]
    if loss == "hinge":
        return [-sign if sign * value < 1 else 0.0]
    if loss == "logistic":
        margin = sign * value
        small = math.exp(-abs(margin))
        return [-sign * (small if margin > 0 else 1.0) / (1.0 + small)]
    raise ValueError(f"loss must be one of those in the docstring, got {loss!r}")


def gradient(
    x: Vector,
    y: float,
    theta: Matrix,
    loss: str,
    *,
    loss_param: float = 1.0,
    row_bound: float = math.inf,
    constant: float = 0.0,
) -> list[list[float]]:
    """Return the un-clipped gradient of one row, of the shape of theta.

    The row is scaled into the ball of `row_bound`; then the constant, if it is not 0, is appended.
    A row with a number that is not finite, or of a class that does not exist, counts as zero.

    Examples
    --------
    >>> gradient([3.0, 4.0], 1.0, [[0.0, 0.0, 0.0]], "squared", row_bound=1.0, constant=0.5)
    [[-0.6000000000000001, -0.8, -0.5]]
    """
    outputs = len(theta)
    zero = [[0.0] * len(own) for own in theta]
    if not all(map(math.isfinite, [*x, y])) or (outputs > 1 and y not in range(outputs)):
        return zero
    length = norm([x])
    if length > row_bound:
        x = [value * (row_bound / length) for value in x]
    if constant:
        x = [*x, constant]
    own = slopes(loss, [dot(x, parameters) for parameters in theta], y, loss_param)
    return [[slope * value for value in x] for slope in own]


def clip(matrix: Matrix, clip_norm: float) -> list[list[float]]:
    """Return the matrix, scaled to a norm of at most MARGIN times the clip norm.

    Examples
    --------
    >>> clip([[3.0, 4.0]], 5.0), clip([[0.6, 0.8]], 5.0)
    ([[2.999997138977051, 3.9999961853027344]], [[0.6, 0.8]])
    """
    length, limit = norm(matrix), clip_norm * MARGIN
    factor = limit / length if length > limit else 1.0
    return [[factor * value for value in row] for row in matrix]


def add(a: Matrix, b: Matrix) -> list[list[float]]:
    """Return the sum of two matrices."""
    return [[x + y for x, y in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def clipped_sum(
    X: Matrix,
    y: Vector,
    theta: Matrix,
    clip_norm: float,
    loss: str,
    *,
    starts: Sequence[int] | None = None,
    loss_param: float = 1.0,
    row_bound: float = math.inf,
    constant: float = 0.0,
) -> list[list[float]]:
    """Return the sum of the clipped gradients of rows, of the shape of theta.

    Parameters
    ----------
    X, y : rows and their targets
    theta : a row of parameters for every output
    clip_norm : L
    loss : see `slopes`
    starts : m + 1 ints, optional
        Rows ``starts[i]`` to ``starts[i + 1] - 1`` are those of user i: the sum of their gradients
        is clipped. Without it every row is a user.
    loss_param, row_bound, constant : see `slopes` and `gradient`

    Examples
    --------
    >>> clipped_sum([[1.0], [1.0]], [-0.25, -9.0], [[0.0]], 1.0, "squared")
    [[1.2499990463256836]]
    """
    total = [[0.0] * len(own) for own in theta]
    bounds = range(len(y) + 1) if starts is None else starts
    for first, last in pairwise(bounds):
        user = [[0.0] * len(own) for own in theta]
        for i in range(first, last):
            options = {"loss_param": loss_param, "row_bound": row_bound, "constant": constant}
            user = add(user, gradient(X[i], y[i], theta, loss, **options))
        total = add(total, clip(user, clip_norm))
    return total


# ------------------------------------------------------------------------------------------ FTRL


def on_grid(value: float, grid: float) -> float:
    """Return the multiple m of a grid with value in [m - grid/2, m + grid/2).

    Examples
    --------
    >>> on_grid(0.5, 1.0), on_grid(-0.5, 1.0)
    (1.0, 0.0)
    """
    return math.floor(value / grid + 0.5) * grid


class FTRL:
    """The FTRL update, one number at a time.

    With s_t the sum of all clipped gradients and n_t its noise,

        v_t = gamma v_(t-1) + (s_t + n_t) / B,    c_t = gamma c_(t-1) + t l1,
        theta_(t+1) = P_R(soft(theta_0 - rate v_t, rate c_t)),    theta_1 = P_R(theta_0).

    With Nesterov momentum, (s_t + n_t) / B + gamma v_t and t l1 + gamma c_t take the places of v_t
    and c_t in the second line.

    Parameters
    ----------
    theta_0 : list of p numbers
    learning_rate : 1/lambda
    batch_size : B
    steps : declared number T
    momentum, l1, radius : gamma, the weight of the L1 norm, R
    penalised : list of p bools, optional
        Coordinates under the L1 norm; all without it.
    nesterov : bool
    grid : float, optional
        Power of two: s_t + n_t is rounded to its multiples, see `on_grid`.

    Attributes
    ----------
    iterates : list
        theta_1, theta_2, ...

    Examples
    --------
    >>> ftrl = FTRL([0.0], 0.5, batch_size=2, steps=10)
    >>> ftrl.step([2.0], [0.0])
    [-0.5]
    """

    def __init__(
        self,
        theta_0: Vector,
        learning_rate: float,
        *,
        batch_size: int,
        steps: int,
        momentum: float = 0.0,
        l1: float = 0.0,
        radius: float = math.inf,
        penalised: Sequence[bool] | None = None,
        nesterov: bool = False,
        grid: float | None = None,
    ) -> None:
        self._grid = grid
        self._nesterov = nesterov
        self._theta_0, self._rate, self._batch_size = theta_0, learning_rate, batch_size
        self._steps, self._momentum, self._l1, self._radius = steps, momentum, l1, radius
        self._penalised = [True] * len(theta_0) if penalised is None else penalised
        self._sum: Vector = [0.0] * len(theta_0)
        self._v, self._c = [0.0] * len(theta_0), 0.0
        self.iterates = [self._into_ball(theta_0)]

    def step(self, gradient_sum: Vector, noise: Vector) -> list[float]:
        """Take a step with the clipped sum of a batch and the noise of the whole running sum."""
        t = len(self.iterates)
        self._sum = [s + g for s, g in zip(self._sum, gradient_sum, strict=True)]
        gamma = self._momentum
        noisy = [s + n for s, n in zip(self._sum, noise, strict=True)]
        if self._grid is not None:
            noisy = [on_grid(value, self._grid) for value in noisy]
        x = [value / self._batch_size for value in noisy]
        self._v = moved = [gamma * v + own for v, own in zip(self._v, x, strict=True)]
        self._c = weight = gamma * self._c + t * self._l1
        if self._nesterov:
            moved = [own + gamma * v for own, v in zip(x, self._v, strict=True)]
            weight = t * self._l1 + gamma * self._c
        q = []
        for centre, v, penalised in zip(self._theta_0, moved, self._penalised, strict=True):
            value, threshold = centre - self._rate * v, self._rate * weight if penalised else 0.0
            q.append(math.copysign(max(abs(value) - threshold, 0.0), value))
        self.iterates.append(self._into_ball(q))
        return self.iterates[-1]

    def average(self) -> list[float]:
        """Return the mean of theta_1, ..., theta_t."""
        return _mean(self.iterates[:-1] or self.iterates)

    def tail_average(self) -> list[float]:
        """Return the mean of the theta_i with T // 2 < i <= t; before that, the last iterate."""
        return _mean(self.iterates[self._steps // 2 : -1] or self.iterates[-1:])

    def _into_ball(self, q: Vector) -> list[float]:
        length = norm([q])
        return [value * (self._radius / length) if length > self._radius else value for value in q]


def _mean(vectors: Sequence[Vector]) -> list[float]:
    return [math.fsum(column) / len(vectors) for column in zip(*vectors, strict=True)]


# ----------------------------------------------------------------------------------------- a run


def run(
    batches: Iterable[tuple[Matrix, Vector, Sequence[int] | None]],
    loss: str,
    *,
    outputs: int = 1,
    columns: int,
    clip_norm: float,
    noise: TreeNoise | None,
    learning_rate: float,
    batch_size: int,
    steps: int,
    momentum: float = 0.0,
    l1: float = 0.0,
    radius: float = math.inf,
    loss_param: float = 1.0,
    row_bound: float = math.inf,
    constant: float = 0.0,
    restart_every: int | None = None,
    complete: bool = False,
    grid: float | None = None,
) -> FTRL:
    """Run DP-FTRL from zero and return its state, iterates and averages included.

    Parameters
    ----------
    batches : iterable of (rows, targets, starts)
        As in `clipped_sum`, one for each step of all epochs.
    loss, loss_param, row_bound, constant, clip_norm : see `clipped_sum`
    outputs, columns : ints
        Shape of the parameters, without the constant's.
    noise : TreeNoise, optional
        Of size outputs * columns (columns + 1 with a constant) and of standard deviation L sigma;
        no noise without it.
    learning_rate, batch_size, steps, momentum, l1, radius : see `FTRL`
        The constant's parameters are not penalised.
    restart_every : int, optional
        Steps between restarts of the tree.
    complete : bool
        Complete the tree before a restart.
    grid : float, optional
        See `FTRL`.

    Examples
    --------
    >>> state = run(
    ...     [([[1.0]], [1.0], None)] * 2, "squared", columns=1, clip_norm=9.0, noise=None,
    ...     learning_rate=0.5, batch_size=1, steps=2,
    ... )
    >>> state.iterates
    [[0.0], [0.5], [0.75]]
    """
    width = columns + (constant != 0.0)
    state = FTRL(
        [0.0] * (outputs * width),
        learning_rate,
        batch_size=batch_size,
        steps=steps,
        momentum=momentum,
        l1=l1,
        radius=radius,
        penalised=([True] * columns + [False] * (width - columns)) * outputs,
        grid=grid,
    )
    for t, (X, y, starts) in enumerate(batches):
        flat = state.iterates[-1]
        theta = [flat[j * width : (j + 1) * width] for j in range(outputs)]
        total = clipped_sum(
            X,
            y,
            theta,
            clip_norm,
            loss,
            starts=starts,
            loss_param=loss_param,
            row_bound=row_bound,
            constant=constant,
        )
        if noise is not None and restart_every is not None and t and t % restart_every == 0:
            noise.restart(complete)
        drawn = [0.0] * len(flat) if noise is None else noise.step().tolist()
        state.step([value for own in total for value in own], drawn)
    return state
