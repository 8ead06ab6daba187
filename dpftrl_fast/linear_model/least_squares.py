# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLLeastSquares`: private least squares from two noisy sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import DEFAULT_SPLIT
from dpftrl_fast.convex.settings import LeastSquaresSettings
from dpftrl_fast.linear_model._base import PrivateLinearModel, store_parameters
from dpftrl_fast.linear_model._rows import MemoryRows
from dpftrl_fast.linear_model._sources import RowSource
from dpftrl_fast.linear_model._stream import Stream
from dpftrl_fast.linear_model._targets import NumberTargets, Targets
from dpftrl_fast.rounding import clip_limit


class DPFTRLLeastSquares(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]  # no types there
    """Private linear regression from noisy sums of x x^T and y x.

    One pass suffices: no learning rate, no gradient clipping, no epochs. Every step can give a
    private model.

    Parameters
    ----------
    epsilon, delta
        As for :class:`DPFTRLRegressor`.
    noise_multiplier : float, optional
        sigma = (1/sigma_b^2 + 1/sigma_c^2)^(-1/2), with the noise multipliers of the two sums,
        instead of `epsilon`.
    x_norm_bound : float
        Rows with a larger norm are scaled to it. Required, and public: a bound learned from the
        rows would reveal them.
    y_bound : float or (float, float)
        Bounds on the targets: (low, high), or a number b for (-b, b). Targets are clipped to them,
        and scaled to [-1, 1] for the fit. Required and public.
    batch_size : int or "auto", default "auto"
        Rows of a step, at most their number. "auto" is all rows, up to 65,536, since the last model
        then has the least noise; 256 where models of earlier steps are made (`solve_every`,
        `compute_regret`, `partial_fit`).
    radius : float, optional
        Radius of the L2 ball about 0 that holds all models (coefficients and
        intercept/intercept_scaling together). Each model is the exact minimiser in the ball.
    split : float, default 0.35
        Share of mu^2 for the sum of y x.
    ridge_factor : float, default 2.0
        lambda_t/2 in units of L^2 sigma_c sqrt(v_t p), see docs/least_squares.md. The noise has a
        spectral norm of about sqrt(2) in these units.
    solve_every : int, optional
        Make a model every `solve_every` steps, and after the last. By default `fit` makes one at
        the end, and `partial_fit` one at each call.
    solver : {"auto", "cholesky", "cg"}
        Without a radius: Cholesky factors, or conjugate gradients that start from the last model
        ("auto": from 1500 columns on).
    complete : "auto", False or "all", default "auto"
        Advance trees to the next power of two after the last step, so that the last model has the
        noise of a single node. "auto" chooses the option with less noise.
    mechanism : "auto", "tree" or Mechanism, default "auto"
        Correlated noise of both sums. "auto" leaves the released models least noise: for the last
        one the tree, completed; for models of all steps (`partial_fit`, `solve_every` or
        `compute_regret`) a Toeplitz mechanism. Given `complete` or `variant`, it is the tree. A
        mechanism of `dpftrl_fast.mechanisms` must be without restarts.
    variant : {"honaker", "vanilla"}
        Estimator of the noise of a tree.
    memory : "stored", "regenerate" or int, default "stored"
        Number of vectors of p (p + 1)/2 float32 numbers kept for the noise, see
        `dpftrl_fast.TreeNoise` and `dpftrl_fast.ToeplitzNoise`. The model does not depend on it.
    fit_intercept : bool, default True
        Append a constant entry to each row, after scaling; the sensitivities are those of rows with
        a norm of sqrt(x_norm_bound^2 + intercept_scaling^2).
    intercept_scaling : float, default 1.0
        The constant entry.
    average : {"last", "tail", "all"}
        Coefficients for `predict`: the last model, the mean of the models after the first half of
        the steps, or the mean of all.
    compute_regret : bool, default False
        Compute `regret_` in `fit`, which is NOT PRIVATE. Models are then made at every step, unless
        `solve_every` is given.
    threads : int, optional
        Maximum number of threads for the noise, which does not depend on it. BLAS has its own
        settings.
    shuffle, random_state, horizon, noise_seed, verbose
        As for :class:`DPFTRLRegressor`.

    Attributes
    ----------
    coef_, intercept_ : (p,) array, float
        Coefficients that `predict` uses, of the model that `average` names; in the units of y.
    coef_last_, intercept_last_
        Last model.
    coef_average_, intercept_average_
        Mean of all models.
    coef_tail_, intercept_tail_
        Mean of the models after the first half of the declared steps.
    noise_multiplier_, sensitivity_squared_ : float
        sigma, and zeta of each sum.
    plan_ : LeastSquaresPlan
        ``plan_.describe(delta_)`` states it in words, replace-one neighbours included.
    solves_ : tuple of dpftrl_fast.convex.least_squares.solver.Solve
        Solution of each model: its step, its ridge and its case ("definite" or "projected"; in a
        ball "interior", "boundary" or "hard").
    batch_size_ : int
        Rows of a step as used.
    regret_ : float
        Mean over all rows of l(theta_t) - l(u) with l half the squared error of the scaled targets,
        u being the best parameters in hindsight. Only with `compute_regret`; NOT PRIVATE.
    epsilon_, delta_, reproducible_, n_steps_, n_iter_, n_features_in_, feature_names_in_
        As for :class:`DPFTRLRegressor`.

    See Also
    --------
    DPFTRLRegressor : other losses, L1, several epochs, users; p instead of p^2 numbers.

    Notes
    -----
    DP-FTRL for least squares, Kairouz et al. 2021 (arXiv 2103.00039). Memory grows with p^2: see
    docs/least_squares.md. Pickles and copies hold the model, never key and sums: they cannot
    continue a stream.

    **Formal guarantee.** All models of one run together satisfy (``epsilon_``, ``delta_``) of
    ``plan_`` for two data sets that differ in one row, whose x and y are replaced by zero;
    ``plan_.epsilon(delta_, neighbours="replace-one")`` is the value for replacement by another row.
    The caller must ensure that all parameters, bounds and the number of rows are public, and must
    compose several runs on the same rows (`dpftrl_fast.accounting.compose`). Not covered: a user
    with several rows, `regret_`, `clipping_report`, scores on private rows, and a run with a
    `noise_seed`. Floating point: docs/floating_point.md.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.linear_model import DPFTRLLeastSquares
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20_000, 3))
    >>> y = X @ [0.5, -0.3, 0.0]
    >>> model = DPFTRLLeastSquares(epsilon=1.0, x_norm_bound=3**0.5, y_bound=1.0).fit(X, y)
    >>> model.epsilon_ <= 1.0, bool(model.score(X, y) > 0.9)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        noise_multiplier: float | None = None,
        *,
        x_norm_bound: float | None = None,
        y_bound: float | None = None,
        batch_size: Any = "auto",
        radius: float | None = None,
        split: float = DEFAULT_SPLIT,
        ridge_factor: float = 2.0,
        solve_every: int | None = None,
        solver: str = "auto",
        complete: Any = "auto",
        mechanism: Any = "auto",
        variant: str = "honaker",
        memory: Any = "stored",
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        shuffle: bool = False,
        random_state: Any = None,
        horizon: int | None = None,
        average: str = "last",
        compute_regret: bool = False,
        threads: int | None = None,
        noise_seed: Any = None,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def fit(self, X: Any, y: Any) -> Any:  # type: ignore[override]  # no users here
        """Fit the model in one pass in a run with a fresh key, whose epsilon is `epsilon_`.

        Parameters, refusals and sources of rows are those of `DPFTRLRegressor.fit`, without groups.
        A CSR row costs the square of its number of entries.

        Parameters
        ----------
        X : (n, p) array, CSR matrix, data frame, pyarrow dataset, path, Dask array or dataframe
            Private rows; their number is public.
        y : (n,) array, or str
            Private targets, or the name of their column.

        Returns
        -------
        self
        """
        return super().fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> Any:  # type: ignore[override]
        """Take the rows of a stream as they come, as `DPFTRLRegressor.partial_fit`.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
        y : (n,) array, or str

        Returns
        -------
        self
        """
        return super().partial_fit(X, y)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict targets.

        Parameters
        ----------
        X : (n, p) array or CSR matrix
            Rows, used as given, without scaling.

        Returns
        -------
        (n,) array of float64
        """
        return self._linear(X)

    def _checked_parameters(self) -> dict[str, Any]:
        parameters = super()._checked_parameters()
        for name in ("x_norm_bound", "y_bound"):
            if parameters[name] is None:
                raise ValueError(
                    f"{name} must be given, got None: the noise is calibrated to it, and a bound "
                    "learned from the rows would reveal them"
                )
        return parameters

    def _targets(self, parameters: Mapping[str, Any], y: Any) -> NumberTargets:
        return NumberTargets.within(parameters["y_bound"])

    def _constant(self, parameters: Mapping[str, Any]) -> float:
        # Like norms, the constant column stays slightly below its bound in the plan.
        return clip_limit(super()._constant(parameters))

    def _resolved(
        self, parameters: Mapping[str, Any], units: int, rows: int, n_features: int, outputs: int
    ) -> dict[str, Any]:
        settings: LeastSquaresSettings = LeastSquaresSettings.of(parameters)
        run = settings.resolved(units, regret=parameters["compute_regret"])
        return {**parameters, "batch_size": run.batch_size}

    def _stream_batch_size(self, horizon: int) -> int:
        found = LeastSquaresSettings(solve_every=1).resolved(horizon).batch_size
        assert found != "auto"
        return found

    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> LeastSquares:
        settings: LeastSquaresSettings = LeastSquaresSettings.of(parameters)
        plan = settings.plan(
            units,
            x_norm_bound=parameters["x_norm_bound"],
            y_bound=1.0,  # targets are scaled to [-1, 1]
            constant=super()._constant(parameters),
            regret=parameters["compute_regret"],
        )
        return settings.start(
            plan,
            n_features,
            threads=parameters["threads"],
            regret=parameters["compute_regret"],
        )

    def _new_stream(self, parameters: dict[str, Any], classes: Any) -> Stream:
        if parameters["solve_every"] is None:
            parameters["solve_every"] = 1  # each call releases a model
        return super()._new_stream(parameters, classes)

    def _further_attributes(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        stepper: Any,
        source: RowSource | None,
    ) -> dict[str, Any]:
        run: LeastSquares = stepper
        run.last  # noqa: B018 - makes the model if it is not made yet
        further: dict[str, Any] = {"batch_size_": parameters["batch_size"], "solves_": run.solves}
        if parameters["compute_regret"] and isinstance(source, MemoryRows):
            further["regret_"] = run.regret() / (2 * source.units)
        return further

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few rows of a check, noise dominates
        return tags
