# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLLeastSquares`: private least squares from two noisy sums."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.moments import Moments, column_statistics
from dpftrl_fast.convex.least_squares.outlook import problems
from dpftrl_fast.convex.least_squares.plan import DEFAULT_SPLIT, LeastSquaresPlan
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.target_scaling import scaling_of
from dpftrl_fast.linear_model._base import PrivateLinearModel, store_parameters
from dpftrl_fast.linear_model._several_targets import (
    SeveralTargets,
    bounds_of,
    check_columns,
    several_columns,
)
from dpftrl_fast.linear_model._targets import NumberTargets, Targets
from dpftrl_fast.linear_model.inference import ConfidenceIntervals, Inference
from dpftrl_fast.linear_model.sources.memory import MemoryRows
from dpftrl_fast.linear_model.sources.source import RowSource
from dpftrl_fast.rounding import clip_limit
from dpftrl_fast.run.budget import PrivacyBudget


def _estimates(
    parameters: Mapping[str, Any], targets: Targets, moments: Moments, given: int, rows: int | None
) -> dict[str, Any]:
    """Return the attributes that follow from released moments."""
    found: dict[str, Any] = {}
    if parameters["intervals"]:
        bounds = parameters["y_bound"]
        single = not isinstance(targets, SeveralTargets)
        scaling = tuple(map(scaling_of, bounds_of(bounds, targets.outputs)))
        weight = parameters["sample_weight_bound"]
        found["inference_"] = Inference(moments, rows, given, scaling, single, weight)
    if moments.constant > 0:
        columns = column_statistics(moments, rows)
        found |= {f"column_{name}_": value for name, value in columns._asdict().items()}
    return found


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
        Rows with a larger norm are scaled to it, see `long_rows`. Required, and public: a bound
        learned from the rows would reveal them.
    long_rows : {"scale", "weight"}
        Rows beyond `x_norm_bound` are scaled to it: x alone, or with "weight" the constant and the
        targets with it, so that the row counts with a weight below 1 and a linear model keeps its
        coefficients. Take "weight" if many rows are longer than the bound.
    y_bound : float, (float, float) or list
        Bounds on the targets: (low, high), or a number b for (-b, b); for several targets a list
        has those of each. Targets are clipped to them, and scaled to [-1, 1] for the fit. Required
        and public.
    batch_size : int or "auto", default "auto"
        Rows (with groups: users) of a step, at most their number. "auto" is all rows, up to 65,536,
        since the last model then has the least noise; 256 where models of earlier steps are made
        (`solve_every`, `compute_regret`, `partial_fit`).
    alpha : float, default 0.0
        Ridge penalty alpha ||coef||^2 beside the sum of squared errors, as in
        `sklearn.linear_model.Ridge`; not on the intercept. The ridge of a model is the larger of
        alpha and lambda_t/2, which the noise needs.
    radius : float, optional
        Radius of the L2 ball about 0 that holds all models (coefficients and
        intercept/intercept_scaling together), of each target. Each model is the exact minimiser in
        the ball.
    split : float, default 0.35
        Share of mu^2 for the sum of y x.
    ridge_factor : float, default 2.0
        lambda_t/2 in units of L^2 sigma_c sqrt(v_t p), see docs/sklearn/least_squares.md. The noise
        has a spectral norm of about sqrt(2) in these units.
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
    intervals : bool, default False
        Release noisy sums of y^2 as well, for `inference_` and `conf_int`. At the same epsilon the
        noise of the sum of y x is then 3 % larger.
    sample_weight_bound : float, default 1.0
        Bound on sample weights, public; larger ones are clipped to it. The sensitivities of both
        sums are proportional to it: in units of rows of weight 1, the noise is this much larger.
    average : {"last", "tail", "all"}
        Coefficients for `predict`: the last model, the mean of the models after the first half of
        the steps, or the mean of all.
    compute_regret : bool, default False
        Compute `regret_` in `fit`, which is NOT PRIVATE. Models are then made at every step, unless
        `solve_every` is given.
    threads : int, optional
        Maximum number of threads for the noise, which does not depend on it. BLAS has its own
        settings.
    shuffle, random_state, horizon, noise_seed, budget, verbose
        As for :class:`DPFTRLRegressor`.

    Attributes
    ----------
    coef_, intercept_ : (p,) array, float
        Coefficients that `predict` uses, of the model that `average` names, in the units of y; of
        m targets, of shapes (m, p) and (m,).
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
        ball "interior", "boundary" or "hard"). Of several targets, one report each.
    batch_size_ : int
        Rows of a step as used.
    inference_ : dpftrl_fast.linear_model.inference.Inference
        Coefficients without a ridge, with standard errors and confidence intervals. Only with
        `intervals`.
    column_means_, column_variances_ : (p,) arrays
        Estimates of the mean and variance of each column over the rows in the sums, from the noisy
        sums alone: they cost no privacy. Only with an intercept, and of the rows as they were
        counted: scaled where their norm exceeds the bound, weighted with groups or sample weights.
    column_means_stderr_, column_variances_stderr_ : (p,) arrays
        Their standard errors from the noise.
    regret_ : float
        Mean over all rows of l(theta_t) - l(u) with l half the squared error of the scaled targets,
        u being the best parameters in hindsight. Only with `compute_regret`; NOT PRIVATE.
    epsilon_, delta_, reproducible_, n_steps_, n_iter_, n_features_in_, feature_names_in_
        As for :class:`DPFTRLRegressor`.

    See Also
    --------
    DPFTRLRegressor : other losses, L1, several epochs; p instead of p^2 numbers.

    Notes
    -----
    DP-FTRL for least squares, Kairouz et al. 2021 (arXiv 2103.00039). Memory grows with p^2: see
    docs/sklearn/least_squares.md. Pickles and copies hold the model, never key and sums: they
    cannot continue a stream. The folder of `keep_stream` can.

    **Formal guarantee.** All models of one run together satisfy (``epsilon_``, ``delta_``) of
    ``plan_`` for two data sets that differ in one row (with groups: one user), whose x and y are
    replaced by zero;
    ``plan_.epsilon(delta_, neighbours="replace-one")`` is the value for replacement by another row.
    The caller must ensure that all parameters, bounds and the number of rows are public, and must
    compose several runs on the same rows (`dpftrl_fast.accounting.compose`). Not covered: a user
    with several rows without groups, `regret_`, `clipping_report`, scores on private rows, and a
    run with a `noise_seed`. Floating point: docs/guarantees/floating_point.md.

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
        y_bound: Any = None,
        long_rows: str = "scale",
        batch_size: Any = "auto",
        alpha: float = 0.0,
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
        intervals: bool = False,
        sample_weight_bound: float = 1.0,
        average: str = "last",
        compute_regret: bool = False,
        threads: int | None = None,
        noise_seed: Any = None,
        budget: PrivacyBudget | None = None,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None) -> Any:
        """Fit the model in one pass in a run with a fresh key, whose epsilon is `epsilon_`.

        Parameters, refusals and sources of rows are those of `DPFTRLRegressor.fit`. A CSR row costs
        the square of its number of entries.

        Parameters
        ----------
        X : (n, p) array, CSR matrix, data frame, pyarrow dataset, path, Dask array or dataframe
            Private rows; their number is public.
        y : (n,) or (n, m) array, or str
            Private targets, or the name of their column. Several targets (m >= 2) have one sum of
            x x^T in common; they need rows in memory.
        sample_weight : (n,) array, optional
            Weights of the rows, private as these are, and clipped to `sample_weight_bound`: a row
            of weight w counts as w x x^T and w y x. They need rows in memory.
        groups : (n,) array_like or str, optional
            User of every row, for a guarantee per user, as for `DPFTRLRegressor.fit`: the rows of a
            user with many are given a common weight below 1, see docs/sklearn/least_squares.md.

        Returns
        -------
        self
        """
        return super().fit(X, y, sample_weight=sample_weight, groups=groups)

    def partial_fit(  # type: ignore[override]
        self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None
    ) -> Any:
        """Take the rows of a stream as they come, as `DPFTRLRegressor.partial_fit`.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
        y : (n,) or (n, m) array, or str
            For m >= 2, `y_bound` is a list of m bounds.
        sample_weight : (n,) array, optional
            Weights of the rows, clipped to [0, `sample_weight_bound`]; one that is not finite
            is 0.
        groups : (n,) array_like, optional
            User of every row; a user that took part in an earlier step is refused.

        Returns
        -------
        self
        """
        return super().partial_fit(X, y, sample_weight=sample_weight, groups=groups)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict targets.

        Parameters
        ----------
        X : (n, p) array or CSR matrix
            Rows, used as given, without scaling.

        Returns
        -------
        (n,) or (n, m) array of float64
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

    def _targets(self, parameters: Mapping[str, Any], y: Any) -> Targets:
        bound = parameters["y_bound"]
        if not (isinstance(bound, list) or several_columns(y)):
            return NumberTargets.within(bound)
        if parameters["compute_regret"]:
            raise ValueError("compute_regret must be False with several targets, got True")
        return SeveralTargets(tuple(bound) if y is None else bounds_of(bound, y.shape[1]))

    def _check_y(self, y: Any, rows: int, targets: Targets | None = None) -> NDArray[Any]:
        checked = check_columns(y, rows) if several_columns(y) else super()._check_y(y, rows)
        columns = expected = 1 if checked.ndim == 1 else int(checked.shape[1])
        if targets is not None:
            expected = targets.outputs
        elif isinstance(bound := self._checked_parameters()["y_bound"], list):
            expected = len(bound)
        if columns != expected:
            raise ValueError(
                f"y must have {expected} columns, as y_bound has entries, got {columns}: y_bound "
                "is a list with a bound of each of several targets"
            )
        return checked

    def _open(self, parameters: Mapping[str, Any], X: Any, y: Any, groups: Any) -> RowSource:
        source = super()._open(parameters, X, y, groups)
        if isinstance(parameters["y_bound"], list) and not isinstance(source, MemoryRows):
            raise ValueError("y_bound must be a number unless rows are in memory, got a list")
        if groups is not None and parameters["compute_regret"]:
            raise ValueError(
                "compute_regret must be False with groups, got True: rows have weights"
            )
        return source

    def _row_weights(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        y: Any,
        weights: NDArray[np.float64] | None,
    ) -> NDArray[np.float64] | None:
        if weights is None:
            return None
        if parameters["intervals"] and not parameters["fit_intercept"]:
            raise ValueError(
                "fit_intercept must be True for intervals with sample_weight, got False: the "
                "variance of the errors needs the sum of weights"
            )
        return weights / float(parameters["sample_weight_bound"])

    def _split(
        self, matrix: NDArray[np.float64], constant: float, targets: Targets
    ) -> tuple[NDArray[np.float64], Any]:
        if not isinstance(targets, SeveralTargets):
            return super()._split(matrix, constant, targets)
        matrix = matrix * targets.scales[:, np.newaxis]
        if constant == 0.0:
            return matrix, targets.centres
        return matrix[:, :-1].copy(), matrix[:, -1] * constant + targets.centres

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

    def _plan(
        self, parameters: Mapping[str, Any], units: int, outputs: int = 1
    ) -> LeastSquaresPlan:
        parameters = self._resolved(parameters, units, units, 1, outputs)
        settings: LeastSquaresSettings = LeastSquaresSettings.of(parameters)
        return settings.plan(
            units,
            x_norm_bound=parameters["x_norm_bound"],
            y_bound=1.0,  # targets are scaled to [-1, 1]
            constant=super()._constant(parameters),
            regret=parameters["compute_regret"],
            targets=outputs,
            long_rows=parameters["long_rows"],
        )

    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> LeastSquares:
        settings: LeastSquaresSettings = LeastSquaresSettings.of(parameters)
        radii = None
        if settings.radius is not None:  # of the coefficients in the units of y
            scales = bounds_of(parameters["y_bound"], outputs)
            radii = [settings.radius / scaling_of(bounds)[1] for bounds in scales]
        plan = self._plan(parameters, units, outputs)
        columns = n_features + bool(parameters["fit_intercept"])
        for problem in problems(plan, columns=columns, units=units):
            warnings.warn(LearningWarning(problem), stacklevel=6)
        return settings.start(
            plan,
            n_features,
            threads=parameters["threads"],
            regret=parameters["compute_regret"],
            radii=radii,
        )

    def _declared(self, parameters: dict[str, Any]) -> dict[str, Any]:
        if parameters["solve_every"] is None:
            parameters["solve_every"] = 1  # each call releases a model
        return super()._declared(parameters)

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
        moments = run.moments()
        if moments is not None:
            units = parameters["horizon"] if source is None else source.units
            given = min(units, moments.step * parameters["batch_size"])
            counted = isinstance(source, MemoryRows) and not source.weighted
            counted &= parameters["long_rows"] == "scale"
            further |= _estimates(parameters, targets, moments, given, given if counted else None)
        if parameters["compute_regret"] and isinstance(source, MemoryRows):
            further["regret_"] = run.regret() / (2 * source.units)
        return further

    def conf_int(self, level: float = 0.95) -> ConfidenceIntervals:
        """Return confidence intervals of coefficients and intercept, as `inference_` does.

        They are of the model without a ridge, whose estimates (`inference_.coef`) are their
        centres. A fit with `intervals` is needed.

        Parameters
        ----------
        level : float, default 0.95
            Probability with which an interval is to hold its coefficient.

        Returns
        -------
        ConfidenceIntervals
            `coef` of shape (p, 2) or (m, p, 2) and `intercept` of shape (2,) or (m, 2); infinite,
            with a warning, if the noise is too large.
        """
        check_is_fitted(self)
        if not hasattr(self, "inference_"):
            raise ValueError(
                "conf_int needs a model fitted with intervals=True, got none: the variance of the "
                "errors is estimated from sums of y^2, released in the run"
            )
        found: ConfidenceIntervals = self.inference_.conf_int(level)
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.regressor_tags.poor_score = True  # on the few rows of a check, noise dominates
        return tags
