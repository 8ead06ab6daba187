# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLClassifier`: private linear classification by FTRL."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if

from dpftrl_fast._validate import choice
from dpftrl_fast.linear_model._base import store_parameters
from dpftrl_fast.linear_model._class_weights import check_class_weight, class_weights
from dpftrl_fast.linear_model._glm import PrivateGLM
from dpftrl_fast.linear_model._targets import ClassTargets, Targets, classes_of
from dpftrl_fast.linear_model.sources.memory import MemoryRows
from dpftrl_fast.linear_model.sources.source import RowSource
from dpftrl_fast.run.budget import PrivacyBudget

_LOSSES = ("logistic", "multinomial", "hinge")


def _has_probabilities(estimator: DPFTRLClassifier) -> bool:
    if estimator.loss == "hinge":
        raise AttributeError("the hinge loss gives no probabilities, got loss='hinge'")
    return True


class DPFTRLClassifier(ClassifierMixin, PrivateGLM):  # type: ignore[misc]  # no types there
    """Private linear classification: clipped gradient sums, correlated noise, FTRL steps.

    Two classes have one parameter vector, more have one each, all with one noise. Every step gives
    a private model.

    Parameters
    ----------
    loss : {"logistic", "multinomial", "hinge"}
        "logistic" and "multinomial" are the same: logistic for two classes, softmax cross-entropy
        for more. "hinge" is the sum of the one-versus-rest hinges for more than two.
    classes : (k,) array_like, optional
        Labels, a public fact. By default the labels that occur in the `y` of `fit`, a set that is
        then treated as public; `partial_fit` needs them declared. In a stream a row with another
        label counts as zero.
    class_weight : dict, optional
        Public weights of classes, by label; 1 for a class without one. The gradient of a row is
        multiplied by the weight of its class (and its sample weight), and clipped after that. Not
        "balanced", which would count private labels. Needs rows in memory.
    epsilon, delta, noise_multiplier, batch_size, epochs, learning_rate, clip_norm, momentum, l1,
    radius, x_norm_bound, fit_intercept, intercept_scaling, mechanism, restart_every, complete,
    variant, shuffle, random_state, horizon, average, compute_regret, threads, noise_seed,
    budget, verbose
        As for :class:`DPFTRLRegressor`.

    Attributes
    ----------
    classes_ : (k,) array
        Sorted.
    coef_, intercept_ : arrays of shape (1, p) and (1,), or (k, p) and (k,)
        Coefficients that `predict` uses, of the model that `average` names.
    coef_last_, intercept_last_, coef_average_, intercept_average_, coef_tail_, intercept_tail_
        Last iterate, mean of all iterates, and mean of the iterates of the last half.
    epsilon_, delta_, noise_multiplier_, sensitivity_squared_, plan_, reproducible_, n_steps_,
    n_iter_, batch_size_, clip_norm_, learning_rate_, momentum_, sparsity_, regret_, n_features_in_,
    feature_names_in_
        As for :class:`DPFTRLRegressor`.

    See Also
    --------
    DPFTRLRegressor : regression on the same engine.

    Notes
    -----
    DP-FTRL, Kairouz et al. 2021 (arXiv 2103.00039), algorithm 1, with its momentum and restarts.

    **Formal guarantee.** As for :class:`DPFTRLRegressor`: all models of one run together satisfy
    (``epsilon_``, ``delta_``) of ``plan_`` for one row's (with ``groups=`` one user's) gradients
    replaced by zero. The caller must also ensure that the set of labels is public.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.linear_model import DPFTRLClassifier
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (20_000, 3))
    >>> y = np.where(X[:, 0] > X[:, 1], "left", "right")
    >>> model = DPFTRLClassifier(epsilon=1.0, x_norm_bound=3**0.5, classes=["left", "right"])
    >>> model = model.fit(X, y)
    >>> model.epsilon_ <= 1.0, bool(model.score(X, y) > 0.9)
    (True, True)
    """

    def __init__(
        self,
        epsilon: float | None = 1.0,
        delta: float = 1e-6,
        noise_multiplier: float | None = None,
        *,
        loss: str = "logistic",
        classes: Any = None,
        class_weight: Any = None,
        batch_size: Any = "auto",
        epochs: Any = "auto",
        learning_rate: Any = "auto",
        clip_norm: Any = "auto",
        momentum: Any = "auto",
        l1: float = 0.0,
        radius: float | None = None,
        x_norm_bound: float | None = None,
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
        choice("loss", parameters["loss"], _LOSSES)
        parameters["class_weight"] = check_class_weight(parameters["class_weight"])
        return parameters

    def _weighted(
        self, parameters: Mapping[str, Any], source: RowSource, targets: Targets, weights: Any
    ) -> RowSource:
        if parameters["class_weight"] is not None and not isinstance(source, MemoryRows):
            raise ValueError("class_weight must be None unless rows are in memory, got some")
        return super()._weighted(parameters, source, targets, weights)

    def _row_weights(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        y: Any,
        weights: NDArray[np.float64] | None,
    ) -> NDArray[np.float64] | None:
        found = super()._row_weights(parameters, targets, y, weights)
        declared = parameters["class_weight"]
        if declared is None:
            return found
        assert isinstance(targets, ClassTargets)
        of_class = class_weights(declared, targets, y)
        return of_class if found is None else of_class * found

    def _targets(self, parameters: Mapping[str, Any], y: Any) -> ClassTargets:
        declared = parameters["classes"]
        if declared is None and y is None:
            raise ValueError(
                "classes must be given, got None: the labels of a stream are public and declared "
                "before its first batch"
            )
        if declared is None:
            warnings.warn(
                "classes is not given: the labels that occur in y are taken to be public; declare "
                "them with classes=",
                UserWarning,
                stacklevel=5,
            )
        return ClassTargets(classes_of(declared, y))

    def _loss(self, parameters: Mapping[str, Any], outputs: int) -> tuple[str, float]:
        if parameters["loss"] == "hinge":
            return "hinge", 1.0
        return ("logistic" if outputs == 1 else "multinomial"), 1.0

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the outputs <x, coef> + intercept.

        Parameters
        ----------
        X : (n, p) array or CSR matrix

        Returns
        -------
        (n,) array of float64 for two classes, positive for the second; (n, k) for more
        """
        z = self._linear(X)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict(self, X: Any) -> NDArray[Any]:
        """Predict labels.

        Parameters
        ----------
        X : (n, p) array or CSR matrix

        Returns
        -------
        (n,) array of the dtype of `classes_`
        """
        z = self.decision_function(X)
        place = (z > 0.0).astype(np.intp) if z.ndim == 1 else np.argmax(z, axis=1)
        return np.asarray(self.classes_[place])

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict probabilities; not with the hinge loss.

        Parameters
        ----------
        X : (n, p) array or CSR matrix

        Returns
        -------
        (n, k) array of float64, columns as in `classes_`
        """
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.stack([expit(-z), expit(z)], axis=1)
        return np.asarray(softmax(z, axis=1), dtype=np.float64)

    @available_if(_has_probabilities)  # type: ignore[untyped-decorator]
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Predict log-probabilities, finite even for vanishing ones; not with the hinge loss.

        Parameters
        ----------
        X : (n, p) array or CSR matrix

        Returns
        -------
        (n, k) array of float64, columns as in `classes_`
        """
        z = self.decision_function(X)
        if z.ndim == 1:
            return np.stack([log_expit(-z), log_expit(z)], axis=1)
        return np.asarray(log_softmax(z, axis=1), dtype=np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the few rows of a check, noise dominates
        return tags
