# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLLeastSquares`: private least squares by two trees."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dpftrl_fast.accounting import Participation
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import DEFAULT_SPLIT, LeastSquaresPlan
from dpftrl_fast.linear_model._base import PrivateLinearModel
from dpftrl_fast.linear_model._data import MemoryRows, RowSource
from dpftrl_fast.linear_model._targets import NumberTargets, Targets
from dpftrl_fast.rounding import clip_limit


class DPFTRLLeastSquares(RegressorMixin, PrivateLinearModel):  # type: ignore[misc]  # no types there
    """Private linear regression from noisy sums of x x^T and y x, each on a tree of its own.

    One pass is all it needs: no learning rate, no clipping of gradients, no epochs. Every step can
    give a model that is private; the guarantee of all of them together is ``(epsilon_, delta_)``,
    for neighbours that differ in one row, whose x and y are replaced by zero.

    Parameters
    ----------
    epsilon : float or None, default 1.0
        Budget that the noise is calibrated to. None with `noise_multiplier`.
    delta : float, default 1e-6
        Of the guarantee.
    noise_multiplier : float, optional
        sigma = (1/sigma_b^2 + 1/sigma_c^2)^(-1/2), with the noise multipliers of the two trees,
        instead of `epsilon`.
    x_norm_bound : float
        Rows of a larger norm are scaled onto it. Needed, and public: a bound learned from the rows
        would tell of them.
    y_bound : float
        Targets are clipped to [-y_bound, y_bound]. Needed and public, too.
    batch_size : int, default 256
        Rows of a step, at most as many as there are.
    radius : float, optional
        All models lie in the ball of this radius about 0: coefficients and
        intercept/intercept_scaling together. Each one is the exact minimiser in the ball.
    split : float, default 0.35
        Share of mu^2 for the tree over y x.
    ridge_factor : float, default 2.0
        lambda_t/2 in units of L^2 sigma_c sqrt(v_t p), see docs/least_squares.md. The noise has a
        spectral norm of about sqrt(2) in them.
    solve_every : int, optional
        Make a model after every so many steps, and after the last. By default `fit` makes one in
        the end, and `partial_fit` one at each call.
    solver : {"auto", "cholesky", "cg"}
        Without a radius: Cholesky factors, or conjugate gradients that start from the last model
        ("auto": from 1500 columns on).
    complete : "auto", False or "all", default "auto"
        Whether the trees are advanced to the next power of two after the last step, so that the
        last model has the noise of a single node. "auto" does what leaves it less noise.
    variant : {"honaker", "vanilla"}
        How the noise of a prefix is formed.
    memory : "stored", "regenerate" or int, default "stored"
        How many vectors of p (p + 1)/2 float32 numbers are kept for the noise, see
        `dpftrl_fast.TreeNoise`. It does not change the model.
    fit_intercept : bool, default True
        Whether rows get a constant entry. It is appended after they are scaled; the sensitivities
        are those of rows with a norm of sqrt(x_norm_bound^2 + intercept_scaling^2).
    intercept_scaling : float, default 1.0
        That constant.
    shuffle : bool, default False
        Whether rows are dealt to batches by a permutation instead of in their order.
    random_state : None, int or RandomState
        For that permutation, a public thing. Noise keys come from the operating system.
    horizon : int, optional
        For `partial_fit`: the rows of the whole stream.
    average : {"last", "tail", "all"}
        What `predict` uses: the last model, the mean of those after the first half of the steps, or
        of all that were made.
    compute_regret : bool, default False
        Whether `fit` computes `regret_`, which is NOT PRIVATE. Models are then made at every step,
        unless `solve_every` says otherwise.
    threads : int, optional
        At most so many for the noise, which does not depend on it. BLAS has settings of its own.
    noise_seed : None, int or bytes
        For tests: the noise follows from it, and the model is marked `reproducible_`, not private.
        It stands in the parameters for all to see.
    verbose : int, default 0
        Whether `fit` says how many steps are done.

    Attributes
    ----------
    coef_, intercept_ : (p,) array, float
        The last model.
    coef_average_, intercept_average_
        The mean of all models that were made.
    coef_tail_, intercept_tail_
        The mean of those after the first half of the declared steps.
    epsilon_, delta_ : float
        The guarantee of the plan, for all models of the run together.
    noise_multiplier_, sensitivity_squared_ : float
        sigma, and zeta of each tree (of the released prefixes).
    plan_ : LeastSquaresPlan
        With ``plan_.describe(delta_)`` in words, replace-one neighbours included.
    solves_ : tuple of dpftrl_fast.convex.least_squares.solver.Solve
        How each model was made: its step, its ridge and the case that held ("definite" or
        "projected"; in a ball "interior", "boundary" or "hard").
    reproducible_ : bool
        True with a `noise_seed`: then the model is not private.
    n_steps_, n_iter_ : int
        Steps taken, and passes (1).
    regret_ : float
        Mean over all rows of l(theta_t) - l(u) with l half the squared error, u being the best
        parameters in hindsight. On request; NOT PRIVATE.
    n_features_in_ : int
    feature_names_in_ : array of str
        Where `X` had names.

    See Also
    --------
    DPFTRLRegressor : other losses, L1, several epochs, users; p instead of p^2 numbers.

    Notes
    -----
    DP-FTRL for least squares, Kairouz et al. 2021 (arXiv 2103.00039). Memory grows with p^2: see
    docs/least_squares.md. Pickles and copies hold the model, never key and sums: they cannot go on
    with a stream.

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
        batch_size: int = 256,
        radius: float | None = None,
        split: float = DEFAULT_SPLIT,
        ridge_factor: float = 2.0,
        solve_every: int | None = None,
        solver: str = "auto",
        complete: Any = "auto",
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
        self.epsilon = epsilon
        self.delta = delta
        self.noise_multiplier = noise_multiplier
        self.x_norm_bound = x_norm_bound
        self.y_bound = y_bound
        self.batch_size = batch_size
        self.radius = radius
        self.split = split
        self.ridge_factor = ridge_factor
        self.solve_every = solve_every
        self.solver = solver
        self.complete = complete
        self.variant = variant
        self.memory = memory
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.shuffle = shuffle
        self.random_state = random_state
        self.horizon = horizon
        self.average = average
        self.compute_regret = compute_regret
        self.threads = threads
        self.noise_seed = noise_seed
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Any:  # type: ignore[override]  # rows of users: not here
        """Fit the model in one pass with a fresh key: a run of its own, with epsilon `epsilon_`.

        Fitting again is another run; runs on the same rows add their mu^2.

        Parameters
        ----------
        X : (n, p) array or CSR matrix, pyarrow dataset, path, or Dask array or dataframe
            Private rows, in the order in which they are used. Their number is public. Rows of a CSR
            matrix cost the square of their entries. Of a dataset (or of a path to a Parquet file or
            folder) batches are read as they are needed; the rows of Dask stay with its workers,
            which make the sums. See docs/linear_model.md.
        y : (n,) array, or str
            Private targets; with a dataset or a Dask dataframe the name of their column, all other
            columns being features.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            If a parameter, an array or a value is not what it should be. All values in memory are
            looked at before the first step; nothing is fitted then, and nothing was released. Those
            of a dataset or of Dask are never refused: a row with NaN, null or infinity keeps its
            slot and counts as zero.
        RuntimeError
            If the number of rows of a dataset changes as it is read. The estimator is as before.
        """
        return super().fit(X, y)

    def partial_fit(self, X: Any, y: Any) -> Any:  # type: ignore[override]
        """Take one step with one batch of a stream, whose length was declared as `horizon`.

        A batch has exactly `batch_size` rows, the last one what is left of the horizon or fewer.
        Values are never refused: a row with NaN or infinity keeps its slot and counts as zero.

        Parameters
        ----------
        X : (n, p) array or CSR matrix
        y : (n,) array

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            For a wrong call: shape, dtype, number of rows, a step past the horizon, a stream that
            cannot go on. Nothing has changed then.
        """
        return super().partial_fit(X, y)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Predict targets.

        Parameters
        ----------
        X : (n, p) array or CSR matrix
            Rows, taken as they are.

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
                    f"{name} must be given, got None: the noise is measured by it, and a bound "
                    "learned from the rows would tell of them"
                )
        return parameters

    def _targets(self, parameters: Mapping[str, Any], y: Any) -> NumberTargets:
        return NumberTargets(parameters["y_bound"])

    def _constant(self, parameters: Mapping[str, Any]) -> float:
        # Like norms, the constant column is kept a little below what is accounted for.
        return clip_limit(super()._constant(parameters))

    def _start(
        self,
        parameters: Mapping[str, Any],
        participation: Participation,
        n_features: int,
        outputs: int,
    ) -> LeastSquares:
        names = ("x_norm_bound", "y_bound", "split", "complete", "variant")
        fields = {name: parameters[name] for name in names}
        fields |= {"participation": participation, "constant": super()._constant(parameters)}
        if parameters["epsilon"] is None:
            plan = LeastSquaresPlan(noise_multiplier=parameters["noise_multiplier"], **fields)
            plan.epsilon(parameters["delta"])  # a delta at which nothing can be stated is refused
        else:
            plan = LeastSquaresPlan.calibrate(
                epsilon=parameters["epsilon"], delta=parameters["delta"], **fields
            )
        every = parameters["solve_every"]
        if every is None and parameters["compute_regret"]:
            every = 1
        options = ("radius", "ridge_factor", "solver", "memory", "threads")
        return LeastSquares(
            plan,
            n_features,
            solve_every=every,
            seed=parameters["noise_seed"],
            regret=parameters["compute_regret"],
            **{name: parameters[name] for name in options},
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few rows of a check, noise is all there is
        return tags

    def _further_attributes(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        stepper: Any,
        source: RowSource | None,
    ) -> dict[str, Any]:
        run: LeastSquares = stepper
        run.last  # noqa: B018 - makes the model, where it is not made yet
        further: dict[str, Any] = {"solves_": run.solves}
        if parameters["compute_regret"] and isinstance(source, MemoryRows):
            further["regret_"] = run.regret() / (2 * source.units)
        return further
