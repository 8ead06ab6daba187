# SPDX-License-Identifier: Apache-2.0
"""Follow the regularised leader on noisy prefix sums: pure functions and a small state class.

This module neither makes nor accounts noise: each step takes the clipped gradient sum of the batch
and the noise of the running sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import (
    FLOATS,
    Array,
    finite_vector,
    non_negative,
    optional,
    positive,
    positive_integer,
    real,
    shown,
    vector_of,
)
from dpftrl_fast.kernels.ftrl_update import (
    ITERATES,
    ROWS,
    SUM,
    SUM_LOW,
    TAIL,
    VELOCITY,
    project_loop,
    update_loop,
)

Vector: TypeAlias = NDArray[np.float64]
Prox = Callable[[Vector, float], Vector]

_STATE_VERSION = 1
_FLOAT64 = (np.dtype(np.float64),)


def soft_threshold(x: Vector, c: float) -> Vector:
    """Shrink every coordinate towards 0 by `c`: the proximal map of c ||.||_1.

    Parameters
    ----------
    x : array of float64
        Point.
    c : float
        Threshold, at least 0.

    Returns
    -------
    array of float64
        ``sign(x) max(|x| - c, 0)``, a new array; `x` where c is 0, to the bit.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.ftrl import soft_threshold
    >>> soft_threshold(np.array([3.0, -0.5, -2.0]), 1.0).tolist()
    [2.0, 0.0, -1.0]
    """
    c = non_negative("c", c)
    return np.asarray(x - np.clip(x, -c, c), dtype=np.float64)


def project_ball(x: Vector, radius: float) -> Vector:
    """Project on the L2 ball of `radius` about 0.

    Parameters
    ----------
    x : array of float64
        Point.
    radius : float
        R, greater than 0.

    Returns
    -------
    array of float64
        ``x min(1, R / ||x||)``, a new array. Its norm is at most R up to rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.ftrl import project_ball
    >>> project_ball(np.array([3.0, 4.0]), 1.0).tolist()
    [0.6, 0.8]
    """
    radius = positive("radius", radius)
    projected = np.array(x, dtype=np.float64, order="C")
    project_loop()(projected.reshape(-1), radius)
    return projected


def theory_learning_rate(
    steps: int, distance: float, gradient_norm: float, noise_norm: float = 0.0
) -> float:
    """Compute the learning rate that minimises the regret bound of FTRL with noisy sums.

    For convex losses, without momentum and L1, the expected regret against theta* over T steps is
    at most

        lambda/2 ||theta* - theta_0||^2 + T G^2 / (2 lambda) + T G N / lambda,

    and the least such bound for ||theta* - theta_0|| <= D is at lambda = sqrt(T G (G + 2 N)) / D.
    The form is that of the regret theorem of Kairouz et al. (2021), with the expected norm of the
    noise in place of a tail bound; the proof in this form is in docs/results/convex.md.

    Parameters
    ----------
    steps : int
        T.
    distance : float
        D, a public guess of the distance from theta_0 to the best parameters.
    gradient_norm : float
        G, a bound on the norm of a step's gradient (the clipped sum divided by the batch size): the
        clip norm.
    noise_norm : float, default 0
        N, the mean over steps of E||n_t|| / batch size, n_t being the noise of the running sum;
        sqrt(p) times its standard deviation is a bound on E||n_t||.

    Returns
    -------
    float
        1/lambda.

    Examples
    --------
    >>> from dpftrl_fast.ftrl import theory_learning_rate
    >>> theory_learning_rate(100, 5.0, 0.5)
    1.0
    """
    steps = positive_integer("steps", steps)
    distance = positive("distance", distance)
    gradient_norm = positive("gradient_norm", gradient_norm)
    noise_norm = non_negative("noise_norm", noise_norm)
    return distance / math.sqrt(steps * gradient_norm * (gradient_norm + 2.0 * noise_norm))


class FTRL:
    """The FTRL update on noisy sums of clipped gradients.

    With s_t the sum of all clipped gradients so far, n_t the noise of that sum, B the batch size,
    gamma the momentum and lambda = 1/learning_rate,

        v_t = gamma v_(t-1) + (s_t + n_t) / B
        c_t = gamma c_(t-1) + t l1
        theta_(t+1) = P_R(soft(theta_0 - v_t / lambda, c_t / lambda)),   theta_1 = P_R(theta_0),

    where soft is `soft_threshold` and P_R is `project_ball`: the minimiser over the ball of radius
    R of <v_t, theta> + c_t ||theta||_1 + lambda/2 ||theta - theta_0||^2 (Kairouz et al. 2021,
    algorithm DP-FTRL, with its momentum variant).

    An object holds the un-noised sum s_t: it is as secret as the private rows. If the noise is that
    of a plan, `theta`, `average` and `tail_average` may be published. The class neither clips nor
    makes noise.

    Parameters
    ----------
    theta_0 : (p,) array_like
        Centre of the regulariser; finite.
    learning_rate : float
        1/lambda, greater than 0.
    batch_size : int
        B, fixed and public: a smaller last batch is divided by B too.
    steps : int
        Declared number of steps T; a step beyond it is refused.
    momentum : float, default 0
        gamma, in [0, 1).
    l1 : float, default 0
        Weight of ||theta||_1 per step, at least 0; with `prox` the weight of that regulariser.
    radius : float, optional
        R; no ball without it.
    prox : callable, optional
        `prox(q, c)`, used in place of `soft_threshold` for another convex regulariser r: it returns
        the minimiser of c r(theta) + ||theta - q||^2 / 2, an array like q, which it may overwrite.
        With `radius`, P_R follows it; the result minimises over the ball if r is a norm (any r with
        r(s theta) = s r(theta) for s >= 0), not for every r.
    grid : float, optional
        Power of two: s_t + n_t is rounded to multiples of it, so that no low-order bits of s_t are
        released. For noise of a plan it is ``noise.grid``; without it nothing is rounded.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.ftrl import FTRL
    >>> ftrl = FTRL(np.zeros(2), learning_rate=0.5, batch_size=2, steps=10)
    >>> ftrl.step(np.array([2.0, -4.0]), noise=np.zeros(2)).tolist()
    [-0.5, 1.0]
    """

    def __init__(
        self,
        theta_0: ArrayLike,
        learning_rate: float,
        *,
        batch_size: int,
        steps: int,
        momentum: float = 0.0,
        l1: float = 0.0,
        radius: float | None = None,
        prox: Prox | None = None,
        grid: float | None = None,
    ) -> None:
        self._theta_0 = finite_vector("theta_0", theta_0)
        self._learning_rate = positive("learning_rate", learning_rate)
        self._batch_size = positive_integer("batch_size", batch_size)
        self._steps = positive_integer("steps", steps)
        self._momentum = real("momentum", momentum, least=0.0, below=1.0)
        self._l1 = non_negative("l1", l1)
        self._radius = optional(positive, "radius", radius)
        if not (prox is None or callable(prox)):
            raise TypeError(f"prox must be callable or None, got {type(prox).__name__}")
        self._prox = prox
        self._grid = optional(positive, "grid", grid)
        if grid is not None and math.frexp(grid)[0] != 0.5:
            raise ValueError(f"grid must be a power of two, got {grid}")

        p = self._theta_0.size
        self._t = 0
        self._l1_weight = 0.0  # c_t
        self._state = np.zeros((ROWS, p))
        self._spare = np.empty((ROWS, p))  # becomes the state at the next step
        self._theta = self._into_ball(self._theta_0.copy())

    @property
    def t(self) -> int:
        """Steps taken."""
        return self._t

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self._steps

    @property
    def theta(self) -> Vector:
        """The last iterate theta_(t+1): a read-only array, which later steps do not change."""
        return self._theta

    @property
    def average(self) -> Vector:
        """Mean of theta_1, ..., theta_t, the iterates whose gradients were taken.

        Before the first step it is theta_1.
        """
        return self._theta.copy() if self._t == 0 else self._state[ITERATES] / self._t

    @property
    def tail_average(self) -> Vector:
        """Mean of the theta_i with T // 2 < i <= t, T being the declared steps.

        After all steps these are the last T - T // 2 iterates. While t <= T // 2 it is the last
        iterate.
        """
        count = self._t - self._steps // 2
        return self._theta.copy() if count <= 0 else self._state[TAIL] / count

    def step(self, gradient_sum: Vector, noise: Array) -> Vector:
        """Take one step.

        Parameters
        ----------
        gradient_sum : (p,) array of float64
            Sum over the batch of the clipped gradients at `theta`; zeros for an empty batch.
        noise : (p,) array of float32 or float64
            n_t, the noise of the whole running sum (not of this batch).

        Returns
        -------
        (p,) array of float64
            The new `theta`, read-only.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong type, dtype or shape, or `prox` returns no such vector;
            never for values, since a refusal would depend on private rows. Nothing has changed
            then.
        RuntimeError
            If all declared steps have been taken. Nothing has changed then.
        """
        p = self._theta_0.size
        vector_of("gradient_sum", gradient_sum, p, _FLOAT64)
        vector_of("noise", noise, p, FLOATS)
        if self._t == self._steps:
            raise RuntimeError(f"step must be one of the {self._steps} declared, got one more")
        t = self._t + 1

        l1_weight = self._momentum * self._l1_weight + t * self._l1  # c_t
        c = l1_weight * self._learning_rate
        plain = self._prox is None
        if plain and not c < math.inf:
            raise ValueError(f"c_t / lambda must be a finite number, got {c} at t = {t}")
        new_state, theta = self._spare, np.empty(p)
        update_loop(noise.dtype.char)(
            self._state,
            self._theta,
            _plain(gradient_sum),
            _plain(noise),
            self._theta_0,
            self._learning_rate,
            self._batch_size,
            self._momentum,
            c if plain else 0.0,
            math.inf if self._radius is None or not plain else self._radius,
            t > self._steps // 2,
            self._grid or 0.0,
            new_state,
            theta,
        )
        if self._prox is not None:
            theta = self._into_ball(_prox_result(self._prox(theta, c), p))
        theta.flags.writeable = False

        # Nothing of this object has changed so far: what follows are assignments only.
        self._state, self._spare = new_state, self._state
        self._l1_weight = l1_weight
        self._theta = theta
        self._t = t
        return theta

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, as numbers and copies of arrays.

        Secret: it holds the un-noised running sum of clipped gradients. Store it only where the
        private rows may be stored, with mode 0600. It does not hold the callable `prox`.
        """
        return {
            "version": _STATE_VERSION,
            **self._parameters(),
            "theta_0": self._theta_0.copy(),
            "t": self._t,
            "l1_weight": self._l1_weight,
            "theta": self._theta.copy(),
            **{name: self._state[row].copy() for name, row in _STATE_ROWS.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that `state_dict` returned, with the same steps to the bit.

        Parameters
        ----------
        state : mapping
            Secret, see `state_dict`.

        Raises
        ------
        TypeError, ValueError
            If the state is incomplete, of another version, or of an object with other parameters.
            Nothing has changed then.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping, got {type(state).__name__}")
        parameters = {"version": _STATE_VERSION, **self._parameters()}
        names = (*parameters, "theta_0", "t", "l1_weight", "theta", *_STATE_ROWS)
        missing = [name for name in names if name not in state]
        if missing:
            raise ValueError(
                f"state must have {', '.join(names)}, got none of {', '.join(missing)}"
            )
        for name, value in parameters.items():
            if not (type(state[name]) is type(value) and state[name] == value):
                raise ValueError(f"state must have {name} {value}, got {shown(state[name])}")
        p = self._theta_0.size
        for name in ("theta_0", "theta", *_STATE_ROWS):
            vector_of(f"state's {name}", state[name], p, _FLOAT64)
        if not np.array_equal(state["theta_0"], self._theta_0):
            raise ValueError("state must have the theta_0 of this object, got another")
        t = state["t"]
        if type(t) is not int or not 0 <= t <= self._steps:
            raise ValueError(f"state's t must be an integer in [0, {self._steps}], got {shown(t)}")
        l1_weight = non_negative("state's l1_weight", state["l1_weight"])

        self._t = t
        self._l1_weight = l1_weight
        for name, row in _STATE_ROWS.items():
            self._state[row] = state[name]
        self._theta = np.array(state["theta"])
        self._theta.flags.writeable = False

    def __repr__(self) -> str:
        """Return the public facts only."""
        return f"FTRL(size={self._theta_0.size}, t={self._t}, steps={self._steps})"

    def __getstate__(self) -> object:
        """Refuse pickling and copying: the running sum is secret."""
        raise TypeError("FTRL holds a secret running sum and is not pickled; use state_dict()")

    def _parameters(self) -> dict[str, Any]:
        return {
            "learning_rate": self._learning_rate,
            "batch_size": self._batch_size,
            "steps": self._steps,
            "momentum": self._momentum,
            "l1": self._l1,
            "radius": self._radius,
            "prox": self._prox is not None,
            **({} if self._grid is None else {"grid": self._grid}),
        }

    def _into_ball(self, q: Vector) -> Vector:
        theta = q if self._radius is None else project_ball(q, self._radius)
        theta.flags.writeable = False
        return theta


_STATE_ROWS = {
    "sum": SUM,
    "sum_low": SUM_LOW,
    "velocity": VELOCITY,
    "iterate_sum": ITERATES,
    "tail_sum": TAIL,
}


def _plain(vector: Array) -> Array:
    """Return the vector, or a copy, contiguous and aligned."""
    flags = vector.flags
    return vector if flags.c_contiguous and flags.aligned else vector.copy()


def _prox_result(value: object, size: int) -> Vector:
    # A copy: the caller's function may keep and reuse its array.
    return np.array(vector_of("the result of prox", value, size, _FLOAT64))
