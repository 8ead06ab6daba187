# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLRegressor`: private linear regression by FTRL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dpftrl_fast._validate import choice
from dpftrl_fast.convex.settings import LOSSES
from dpftrl_fast.linear_model._base import store_parameters
from dpftrl_fast.linear_model._glm import PrivateGLM
from dpftrl_fast.linear_model._targets import NumberTargets
from dpftrl_fast.run.budget import PrivacyBudget

_LOSSES = {**LOSSES["regression"], "linear": None}
#: Names that are looked for here after a fit, and are of the other estimator.
_OF_LEAST_SQUARES = ("conf_int", "inference_")


class DPFTRLRegressor(RegressorMixin, PrivateGLM):  # type: ignore[misc]  # no types there
    """Private linear regression: clipped gradient sums, correlated noise, FTRL steps.

    Every step gives a private model. Batches are fixed: nothing is sampled or shuffled for privacy.

    Parameters
    ----------
    epsilon : float or None, default 1.0
        Budget that the noise is calibrated to. None with `noise_multiplier`.
    delta : float, default 1e-6
        Delta of the guarantee.
    noise_multiplier : float, optional
        sigma, the noise of a step (of a node of a tree) in units of the clip norm, instead of
        `epsilon`.
    loss : {"squared", "huber", "epsilon_insensitive", "quantile", "linear"}
        See `dpftrl_fast.kernels.losses`; "linear" is <y x, theta>.
    loss_param : float, optional
        Threshold of Huber's loss (default 1), half the width of the insensitive tube (0.1), or the
        quantile (0.5).
    batch_size : int or "auto", default "auto"
        Rows of a step (users with ``groups=``), at most their number. Sums are divided by it, also
        that of a smaller last batch.
    epochs : int or "auto", default "auto"
        Passes over the rows.
    learning_rate : float, "auto" or "theory", default "auto"
        1/lambda, or a rule of `dpftrl_fast.convex.glm.rates.learning_rate`.
    clip_norm : float or "auto", default "auto"
        L: the gradient of a row (the summed gradient of a user) is clipped to this norm.
    momentum : float or "auto", default "auto"
        gamma, in [0, 1). These five follow from public facts where they are "auto", see
        docs/sklearn/defaults.md: the number of rows, the bounds, the loss and the budget.
    l1 : float, default 0.0
        Weight of the L1 norm of the coefficients per step; `coef_last_` then has exact zeros. The
        intercept is not penalised.
    radius : float, optional
        Radius of the L2 ball about 0 that holds all iterates (coefficients and
        intercept/intercept_scaling together, for targets about the middle of `y_bound`).
    x_norm_bound : float, optional
        Rows with a larger norm are scaled to it. A public number, never learned from the rows.
    y_bound : float or (float, float), optional
        Bounds on the targets: (low, high), or a number b for (-b, b). Targets are clipped to them,
        and scaled to [-1, 1] for the fit. Public numbers.
    fit_intercept : bool, default True
        Append a constant entry to each row, after scaling: the norm of a row is then at most
        sqrt(x_norm_bound^2 + intercept_scaling^2), and the entry counts in the norm of the gradient
        that is clipped.
    intercept_scaling : float, default 1.0
        The constant entry; with a larger one the intercept learns faster.
    mechanism : "auto", "tree" or Mechanism, default "auto"
        The correlated noise: that of least error for the epsilon and the momentum ("auto"), the
        best tree, or a mechanism of `dpftrl_fast.mechanisms`. The next three are options of a tree:
        given, they ask for one, and are refused with another mechanism.
    restart_every : "auto", None or int, default "auto"
        Steps of a tree. "auto" lets the planner choose.
    complete : "auto", bool or "all", default "auto"
        Complete trees before a restart, see `dpftrl_fast.PrivacyPlan`.
    variant : {"honaker", "vanilla"}
        Estimator of the prefix noise.
    shuffle : bool, default False
        Assign rows to batches by a permutation (a new one at each restart that begins an epoch)
        instead of in row order.
    random_state : None, int or RandomState
        Seed of the permutation, which is public. Noise keys come from the operating system.
    horizon : int, optional
        For `partial_fit`: number of rows (users) of the whole stream.
    average : {"tail", "all", "last"}
        Coefficients for `predict`: the mean of the iterates of the last half, the mean of all, or
        the last iterate.
    compute_regret : bool, default False
        Compute `regret_` in `fit`, which is NOT PRIVATE.
    threads : int, optional
        Maximum number of threads; results do not depend on it.
    noise_seed : None, int or bytes
        For tests: the noise follows from it, and the model is marked `reproducible_`, not private.
        `get_params` shows it.
    budget : PrivacyBudget, optional
        `dpftrl_fast.PrivacyBudget` that every fit of this estimator and of its clones is charged
        to, besides those in whose ``with`` block it is made.
    verbose : int, default 0
        Print the number of steps done.

    Attributes
    ----------
    coef_, intercept_ : (p,) array, float
        Coefficients that `predict` uses, of the model that `average` names; in the units of y.
    coef_last_, intercept_last_
        The last iterate.
    coef_average_, intercept_average_
        Mean of all iterates at which gradients were taken.
    coef_tail_, intercept_tail_
        Mean of the iterates of the last half of the declared steps.
    epsilon_, delta_ : float
        Guarantee of the plan, for all models of the run together.
    noise_multiplier_, sensitivity_squared_ : float
        sigma, and zeta of the released prefixes.
    plan_ : PrivacyPlan
        ``plan_.describe(delta_)`` states it in words, replace-one neighbours included.
    reproducible_ : bool
        True with a `noise_seed`: the model is not private.
    n_steps_, n_iter_ : int
        Steps taken, and epochs.
    batch_size_, clip_norm_, learning_rate_, momentum_
        As used.
    sparsity_ : float
        Share of coefficients in `coef_last_` that are exactly 0.
    regret_ : float
        Mean over all rows of l(theta_t) - l(u), for the scaled targets, u being the best parameters
        in hindsight. Only with `compute_regret`; NOT PRIVATE.
    n_features_in_ : int
    feature_names_in_ : array of str
        If `X` has names.

    See Also
    --------
    DPFTRLLeastSquares : squared loss by two sums, at the optimal rate in one pass.
    DPFTRLClassifier : logistic, multinomial and hinge losses.

    Notes
    -----
    DP-FTRL, Kairouz et al. 2021 (arXiv 2103.00039), algorithm 1, with its momentum and restarts.
    Pickles and copies hold the model, never key and sums: they cannot continue a stream. The folder
    of `keep_stream` can.

    **Formal guarantee.** All models of one run together satisfy (``epsilon_``, ``delta_``) of
    ``plan_`` for two data sets that differ in one row's (with ``groups=`` one user's) gradients
    replaced by zero; ``plan_.epsilon(delta_, neighbours="replace-one")`` is the value for
    replacement by another. The caller must ensure that all parameters, bounds and the number of
    rows are public, and must compose several runs on the same rows
    (`dpftrl_fast.accounting.compose`). Not covered: `regret_`, `clipping_report`, scores on
    private rows, and a run with a `noise_seed`. Floating point: docs/guarantees/floating_point.md.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20_000, 3))
    >>> y = X @ [0.5, -0.3, 0.0]
    >>> model = DPFTRLRegressor(epsilon=1.0, x_norm_bound=3**0.5, y_bound=1.0).fit(X, y)
    >>> model.epsilon_ <= 1.0, bool(model.score(X, y) > 0.8)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        noise_multiplier: float | None = None,
        *,
        loss: str = "squared",
        loss_param: float | None = None,
        batch_size: Any = "auto",
        epochs: Any = "auto",
        learning_rate: Any = "auto",
        clip_norm: Any = "auto",
        momentum: Any = "auto",
        l1: float = 0.0,
        radius: float | None = None,
        x_norm_bound: float | None = None,
        y_bound: float | None = None,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        mechanism: Any = "auto",
        restart_every: Any = "auto",
        complete: Any = "auto",
        variant: str = "honaker",
        shuffle: bool = False,
        random_state: Any = None,
        horizon: int | None = None,
        average: str = "tail",
        compute_regret: bool = False,
        threads: int | None = None,
        noise_seed: Any = None,
        budget: PrivacyBudget | None = None,
        verbose: int = 0,
    ) -> None:
        store_parameters(self, locals())

    def _checked_parameters(self) -> dict[str, Any]:
        parameters = super()._checked_parameters()
        choice("loss", parameters["loss"], tuple(_LOSSES))
        if isinstance(parameters["y_bound"], list):
            raise TypeError(
                "y_bound must be a number or (low, high), got a list: several targets need "
                "DPFTRLLeastSquares"
            )
        return parameters

    def _targets(self, parameters: Mapping[str, Any], y: Any) -> NumberTargets:
        return NumberTargets.within(parameters["y_bound"])

    def _loss(self, parameters: Mapping[str, Any], outputs: int) -> tuple[str, float]:
        loss, given = parameters["loss"], parameters["loss_param"]
        return loss, (_LOSSES[loss] or 1.0) if given is None else given

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

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LEAST_SQUARES:
            raise AttributeError(
                f"{name} belongs to DPFTRLLeastSquares(intervals=True), got a "
                f"{type(self).__name__}; from_schema takes method='least-squares', intervals=True"
            )
        return object.__getattribute__(self, name)  # raises the error again, a property's own too

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few rows of a check, noise dominates
        return tags
