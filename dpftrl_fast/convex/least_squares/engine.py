# SPDX-License-Identifier: Apache-2.0
"""Private least squares from two noisy sums: the sums, their noise, and the models.

With W_t the sum of x x^T over all rows so far and s_t that of y x, both noisy, the model after step
t is

    theta = argmin over C of theta^T W_t theta - 2 <s_t, theta> + lambda_t/2 ||theta||^2,

C being R^p or a ball about 0 (Kairouz et al. 2021, DP-FTRL for least squares). Both sums cover the
whole past, so a model is solved for only on request. With several targets y each has its own s_t
and its own theta; W_t is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer, non_negative, optional, positive, positive_integer
from dpftrl_fast.convex.least_squares.completion import noise_at
from dpftrl_fast.convex.least_squares.memory import bytes_needed, refuse_too_large
from dpftrl_fast.convex.least_squares.moments import Moments, moments_of
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.secret_sums import SecretSums, in_turn
from dpftrl_fast.convex.least_squares.solver import Minimiser, Solve, Solver, iterates
from dpftrl_fast.convex.least_squares.trust_region import minimise_on_ball
from dpftrl_fast.kernels.packed import (
    add_noise,
    packed_product,
    packed_size,
    unpack,
)
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.rounding import clip_limit, noisy_sum

FloatArray = NDArray[np.float64]

# Attributes that a state holds as they are.
_STATE = (
    *("total", "low", "bias", "bias_low", "noisy", "noisy_bias", "theta"),
    *("t", "models", "late", "loss"),
)
_LARGEST_NORM = 1e12  # in float32: sums of 10^14 squares of it stay below 3e38


def _radii(radius: float | Sequence[float] | None, targets: int) -> list[float] | None:
    """Return the radius of the ball of each target."""
    if radius is None:
        return None
    given = list(radius) if isinstance(radius, Sequence) else [radius] * targets
    if len(given) != targets:
        raise ValueError(f"radius must be a number or one a target ({targets}), got {len(given)}")
    return [positive("radius", one) for one in given]


class LeastSquares(SecretSums):
    """The engine of private least squares: it holds the secret key and sums, and releases models.

    It cannot be pickled. Calls from several threads take turns.

    Parameters
    ----------
    plan : LeastSquaresPlan
        Bounds, noise, participation.
    n_features : int
        Columns of the rows, without the plan's constant column.
    radius : float or sequence of float, optional
        R of the ball, or of that of each target; without it C is R^p.
    ridge_factor : float, default 2
        lambda_t/2 = ridge_factor L^2 sigma_c sqrt(v_t p), with v_t the variance factor of the noise
        at t. The noise of W_t has a spectral norm of about sqrt(2) in these units; with a much
        smaller factor the models are useless.
    solve_every : int, optional
        Make a model after every `solve_every` steps and after the last one. Without it a model is
        made on request.
    solver : {"auto", "cholesky", "cg"}
        Over R^p: Cholesky factors, or conjugate gradients that start from the last model ("auto":
        from p = 1500 on). The latter detect that a matrix is not positive definite only along their
        directions.
    memory, dtype
        Of the covariance's noise, see :meth:`LeastSquaresPlan.noise`. With "regenerate" noise is
        made for models only, and no vectors are stored for it.
    seed : None, int or bytes
        For tests only: the models are then reproducible, not private.
    threads : int, optional
        For the noise. BLAS has its own settings.
    regret : bool
        Also measure the regret. It is not private.
    penalty : float, default 0
        alpha of a ridge penalty alpha ||theta||^2 on all columns but the constant one. The ridge on
        these is max(alpha, lambda_t/2).
    unpenalised : int, default 0
        Number of further columns without the penalty, the last ones of the rows.

    Notes
    -----
    **Formal guarantee.** Neighbouring runs differ in the contributions of one record, replaced by
    zero. The results of `last`, `average`, `tail`, `solves` and `released` together satisfy the
    (epsilon, delta) that `plan.epsilon(delta)` states. The caller ensures that each record takes
    part in batches as the plan's participation declares, and publishes nothing else of the engine:
    `regret` and the secret sums are not covered. Noisy sums are on a public grid, see
    docs/guarantees/floating_point.md.

    Raises
    ------
    TypeError, ValueError
        If an argument is not what is described above, or the run needs more memory than this
        machine has.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import accounting
    >>> from dpftrl_fast.convex.row_batches import Batch
    >>> plan = LeastSquaresPlan.calibrate(
    ...     epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0,
    ...     participation=accounting.SinglePass(100),
    ... )
    >>> model = LeastSquares(plan, 2)
    >>> model.step(Batch(np.eye(2), np.ones(2)))
    >>> model.last.shape, model.solves[0].step
    ((1, 2), 1)
    """

    def __init__(
        self,
        plan: LeastSquaresPlan,
        n_features: int,
        *,
        radius: float | Sequence[float] | None = None,
        ridge_factor: float = 2.0,
        solve_every: int | None = None,
        solver: Solver = "auto",
        memory: Literal["stored", "regenerate"] | int = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        seed: Seed = None,
        threads: int | None = None,
        regret: bool = False,
        penalty: float = 0.0,
        unpenalised: int = 0,
    ) -> None:
        if not isinstance(plan, LeastSquaresPlan):
            raise TypeError(f"plan must be a LeastSquaresPlan, got {type(plan).__name__}")
        p = positive_integer("n_features", n_features) + (plan.constant > 0)
        if dtype == "float32" and not plan.row_norm <= _LARGEST_NORM:
            raise ValueError(
                f"the norm of a row must be at most {_LARGEST_NORM:g} in float32, or its squares "
                f"overflow, got {plan.row_norm:g}"
            )
        factors = radius is not None or not iterates(solver, p)
        refuse_too_large(
            p,
            bytes_needed(plan, p, memory=memory, itemsize=np.dtype(dtype).itemsize, matrix=factors),
        )
        self._minimise = Minimiser(
            p,
            radii=_radii(radius, plan.targets),
            solver=solver,
            penalty=non_negative("penalty", penalty),
            penalised=p - (plan.constant > 0) - integer("unpenalised", unpenalised, 0, n_features),
        )
        self._ridge_factor = positive("ridge_factor", ridge_factor)
        self._solve_every = optional(positive_integer, "solve_every", solve_every)
        self._noises = plan.noise(p, seed=seed, memory=memory, dtype=dtype, threads=threads)
        super().__init__(plan, p)
        self._noisy = np.empty(0, dtype)  # the released triangle and vector of the last model
        self._noisy_bias = np.zeros(plan.bias_size(p))
        shape = (plan.targets, p)
        self._theta = np.zeros(shape)
        self._solves: list[Solve] = []
        self._sums = (np.zeros(shape), np.zeros(shape))  # of all models, and of those with t > T//2
        self._models, self._late = 0, 0
        self._loss: float | None = 0.0 if regret else None

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""
        return self._noises[0].reproducible

    # ---- Steps ----

    def _before_step(self) -> float:
        return self._objective() if self._loss is not None else 0.0

    def _in_sums(self, before: float) -> None:
        if self._loss is not None:
            self._loss += self._objective() - before

    def _after_step(self) -> None:
        every = self._solve_every
        if every is not None and (self._t % every == 0 or self._t == self.plan.steps):
            self._solve()

    # ---- State ----

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`: **a secret**, with the keys and un-noised sums.

        Its arrays are those of this object: write them before the next step. RuntimeError after an
        interrupted step.
        """
        self._check_whole()
        columns = zip(*self._solves, strict=True)
        return {
            **{name: getattr(self, f"_{name}") for name in _STATE},
            "sums": list(self._sums),
            "solves": {name: np.array(c) for name, c in zip(Solve._fields, columns, strict=False)},
            "noises": [noise.state_dict() for noise in self._noises],
            "guard": self.admission.state_dict(),
        }

    @in_turn
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of a run with the same arguments, with the same models to the bit.

        As for :meth:`dpftrl_fast.convex.glm.fit.GLMRun.load_state_dict`.
        """
        for noise, of in zip(self._noises, state["noises"], strict=True):
            noise.load_state_dict(of)
        self.admission.load_state_dict(state["guard"])
        for name in _STATE:
            setattr(self, f"_{name}", state[name])
        average, tail = state["sums"]
        self._sums = average, tail
        columns = [column.tolist() for column in state["solves"].values()]
        self._solves = [Solve(*row) for row in zip(*columns, strict=True)]

    # ---- Models ----

    @property
    def last(self) -> FloatArray:
        """The last model, of shape (targets, p); zero before the first step.

        Without `solve_every` it is made by this call, for the steps taken so far.
        """
        if self._solve_every is None:
            self._solve()
        return self._theta.copy()

    @property
    def average(self) -> FloatArray:
        """The mean of all models made so far, of shape (targets, p)."""
        last = self.last
        return self._sums[0] / self._models if self._models else last

    @property
    def tail(self) -> FloatArray:
        """The mean of the models after the first half of the declared steps, of shape (targets, p).

        Before that it is the last model.
        """
        last = self.last
        return self._sums[1] / self._late if self._late else last

    @property
    def solves(self) -> Sequence[Solve]:
        """Reports of the models made so far, target after target."""
        return tuple(self._solves)

    @in_turn
    def released(self) -> tuple[FloatArray, NDArray[Any]]:
        """Return the noisy sums behind the last model: as private as the model.

        Returns
        -------
        bias : (plan.bias_size(p),) array of float64
            s_t: of each target p numbers, and one for its squares if the plan has them.
        covariance : (p (p + 1) / 2,) array of the noise's dtype
            Upper triangle of W_t, row after row.

        Raises
        ------
        RuntimeError
            If there is no model yet, or making the last one was interrupted.
        """
        if self._noisy.size == 0:
            raise RuntimeError(
                "released needs a model, got none so far, or none since an interrupted call: ask "
                "for the model again"
            )
        return self._noisy_bias.copy(), self._noisy.copy()

    def moments(self) -> Moments | None:
        """Return the noisy sums behind the last model, with the law of their noise.

        None before the first model.
        """
        if not self._solves or self._noisy.size == 0:
            return None
        bias, covariance = self.released()
        constant = clip_limit(self.plan.constant)
        return moments_of(self.plan, self._solves[-1].step, bias, covariance, constant)

    @in_turn
    def _solve(self) -> None:
        t = self._t
        if t == 0 or (self._solves and self._solves[-1].step == t):
            return
        self._check_whole()
        # `released` reaches nothing that is not yet the sum with its noise: the same noise on
        # nothing, left there by an interruption, would reveal the sum that comes later.
        noisy, self._noisy = self._noisy, np.empty(0, self._noisy.dtype)
        if noisy.size == 0:
            noisy = np.empty(packed_size(self._p), noisy.dtype)
        bias_noise, noise = self._noises
        noise_at(noise, t, self.plan.last_leaf, noisy)
        add_noise(self._total, self._low, noisy, noise.grid)
        noisy_bias = np.empty(self._bias.size)
        noise_at(bias_noise, t, self.plan.last_leaf, noisy_bias)
        bias = noisy_sum(self._bias, self._bias_low, noisy_bias, bias_noise.grid)
        half_ridge = self.plan.half_ridge(t, self._p, self._ridge_factor)
        theta, solves = self._minimise(t, noisy, self._products(bias), half_ridge, self._theta)
        late = t > self.plan.steps // 2
        sums = (self._sums[0] + theta, self._sums[1] + theta if late else self._sums[1])
        self._theta, self._sums, self._late = theta, sums, self._late + late
        self._noisy, self._noisy_bias = noisy, bias
        self._models += 1
        self._solves += solves

    def _products(self, bias: FloatArray) -> FloatArray:
        """Return s of each target, of shape (targets, p), without the sums of squares."""
        return np.ascontiguousarray(bias.reshape(self.plan.targets, -1)[:, : self._p])

    # ---- Not private ----

    @in_turn
    def regret(self) -> float:
        """Return the regret of the models so far: computed from un-noised sums, NOT PRIVATE.

        It is the sum over steps of the squared errors, on the step's batch, of the model before the
        step, less that of the best parameters in hindsight (in the ball, if there is one), with
        rows and targets clipped as in the sums. It needs an engine made with ``regret=True``.
        """
        if self._loss is None:
            raise RuntimeError("regret needs an engine that was made with regret=True")
        matrix = unpack(self._total, 0.0, np.zeros((self._p, self._p))).T
        products, radii = self._products(self._bias), self._minimise.radii
        if radii is not None:
            balls = [minimise_on_ball(matrix, s, R) for s, R in zip(products, radii, strict=True)]
            best = np.stack([ball.theta for ball in balls])
        else:
            best = np.linalg.lstsq(matrix + np.tril(matrix, -1).T, products.T, rcond=None)[0].T
        return self._loss - self._objective(best)

    def _objective(self, theta: FloatArray | None = None) -> float:
        """Return theta^T W theta - 2 <s, theta> with the un-noised sums, over all targets."""
        found = 0.0
        for one, s in zip(
            self._theta if theta is None else np.ascontiguousarray(theta),
            self._products(self._bias),
            strict=True,
        ):
            image = packed_product(self._total, 0.0, one, np.empty(self._p))
            found += float(one @ image - 2.0 * (s @ one))
        return found

    def __repr__(self) -> str:
        """Return the public facts only."""
        return f"LeastSquares(p={self._p}, t={self._t}, steps={self.plan.steps})"

    def __getstate__(self) -> object:
        """Refuse pickling and copying: sums and key are secret."""
        raise TypeError("LeastSquares holds secret sums and a secret key and is not pickled")
