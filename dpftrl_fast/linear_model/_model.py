# SPDX-License-Identifier: Apache-2.0
"""Released model of a private linear estimator: hooks, learned attributes, predictions, pickles.

Learned attributes are set from released iterates only; the engine is never pickled nor copied.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dpftrl_fast.accounting.statement.statement import Guarantee
from dpftrl_fast.convex.row_batches import row_norms
from dpftrl_fast.convex.setting_rules import check_settings
from dpftrl_fast.convex.target_scaling import scaling_of
from dpftrl_fast.linear_model._messages import showing_no_entry
from dpftrl_fast.linear_model._stream import (
    JOURNAL,
    TURN,
)
from dpftrl_fast.linear_model._targets import ClassTargets, NumberTargets, Targets
from dpftrl_fast.linear_model.callers.announce import announce, announce_to_worker
from dpftrl_fast.linear_model.callers.budgets import (
    CARRIED,
    Carried,
    carried_on,
    carry_to_clone,
)
from dpftrl_fast.linear_model.sources.frames import is_typed_frame, rows_of_frame
from dpftrl_fast.linear_model.sources.memory import (
    check_rows,
    check_targets,
)
from dpftrl_fast.linear_model.sources.source import RowSource, Stepper

FloatArray = NDArray[np.float64]

_ROUNDING = 1.0 + 1e-6  # float32 rows at a bound may exceed it by this factor


class ReleasedModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the private linear estimators: everything but fits and streams."""

    # ---- steps that an estimator adds ----

    @abstractmethod
    def _targets(self, parameters: Mapping[str, Any], y: Any) -> Targets:
        """Return the encoding of targets; `y` is None where classes must be declared."""

    @abstractmethod
    def _plan(self, parameters: Mapping[str, Any], units: int) -> Any:
        """Return the plan of a run over so many rows (or users)."""

    @abstractmethod
    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> Any:
        """Make the plan for so many rows (or users) and return the engine, with a fresh key.

        An engine is a `Stepper` and a `SumStepper` with `plan`, `steps_taken` and `reproducible`;
        its iterates `last`, `average` and `tail` have shape (outputs, columns), the constant column
        being the last.
        """

    def _resolved(
        self, parameters: Mapping[str, Any], units: int, rows: int, n_features: int, outputs: int
    ) -> dict[str, Any]:
        """Return the parameters with numbers in place of "auto", from public facts."""
        return {**parameters}

    def _stepper(self, parameters: Mapping[str, Any], run: Any) -> Stepper:
        """Return the engine, or a meter around it, which takes the batches of a fit."""
        return cast(Stepper, run)

    def _further_attributes(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        stepper: Any,
        source: RowSource | None,
    ) -> dict[str, Any]:
        """Return learned attributes of this estimator only; in a stream `source` is None."""
        return {}

    def _checked_parameters(self) -> dict[str, Any]:
        return check_settings(self.get_params(deep=False))

    def _check_y(self, y: Any, rows: int, targets: Targets | None = None) -> NDArray[Any]:
        """Return targets of the right length, and in a stream of the declared kind."""
        return check_targets(y, rows, numbers=not is_classifier(self))

    def _row_weights(
        self, parameters: Mapping[str, Any], targets: Targets, y: Any, weights: FloatArray | None
    ) -> FloatArray | None:
        """Return the weights of rows with these targets, None if all are 1; never refuse values."""
        return None if weights is None else np.maximum(weights, 0.0)

    @abstractmethod
    def _stream_batch_size(self, horizon: int) -> int:
        """Return the batch size that "auto" stands for in a stream of so many rows or users."""

    # ---- learned attributes ----

    def _publish(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        run: Any,
        X: Any,
        epochs: int,
        further: Mapping[str, Any],
    ) -> None:
        learned: dict[str, Any] = {}
        constant = self._constant(parameters)
        iterates = {"last": run.last, "all": run.average, "tail": run.tail}
        for average, suffix in (("last", "last_"), ("all", "average_"), ("tail", "tail_")):
            coef, intercept = self._split(iterates[average], constant, targets)
            learned[f"coef_{suffix}"], learned[f"intercept_{suffix}"] = coef, intercept
            if average == parameters["average"]:
                learned["coef_"], learned["intercept_"] = coef, intercept
        plan = run.plan
        learned |= {
            "plan_": plan,
            "epsilon_": plan.epsilon(parameters["delta"]),
            "delta_": parameters["delta"],
            "noise_multiplier_": plan.noise_multiplier,
            "sensitivity_squared_": plan.sensitivity_squared,
            "n_steps_": run.steps_taken,
            "n_iter_": epochs,
            "reproducible_": run.reproducible,
        }
        if isinstance(targets, ClassTargets):
            learned["classes_"] = targets.classes
        learned |= further
        kept = {*learned, "n_features_in_", "feature_names_in_"}
        if isinstance(X, RowSource):
            learned["n_features_in_"] = X.n_features
            if X.feature_names is not None:
                learned["feature_names_in_"] = np.array(X.feature_names, dtype=object)
            kept = {*learned}
        elif X is not None:
            validate_data(self, X, reset=True, skip_check_array=True)
        for name in [*vars(self)]:
            if name.endswith("_") and not name.startswith("_") and name not in kept:
                delattr(self, name)  # from an earlier run
        self.__dict__.update(learned)  # at once: an interruption mixes no two runs

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the fitted run, for `dpftrl_fast.accounting.compose`."""
        check_is_fitted(self)
        if not self.epsilon_ < math.inf:
            raise ValueError(
                "no epsilon can be stated: the folder of this stream is a copy opened with "
                "allow_fork, and another stream may have added the same noise to other sums"
            )
        found: Guarantee = self.plan_.guarantee
        return found

    def _constant(self, parameters: Mapping[str, Any]) -> float:
        """Return the entry of the constant column, 0 without one."""
        if not parameters.get("fit_intercept", False):
            return 0.0
        return float(parameters["intercept_scaling"])

    def _split(
        self, matrix: FloatArray, constant: float, targets: Targets
    ) -> tuple[FloatArray, Any]:
        """Return coefficients and intercept in scikit-learn's shapes and the targets' units."""
        coef = matrix if constant == 0.0 else matrix[:, :-1]
        intercept = np.zeros(len(matrix)) if constant == 0.0 else matrix[:, -1] * constant
        if isinstance(targets, ClassTargets):
            return coef.copy(), intercept
        assert isinstance(targets, NumberTargets)
        scale, centre = targets.scale, targets.centre
        return coef[0] * scale, float(intercept[0] * scale + centre)

    # ---- using the model ----

    def _linear(self, X: Any) -> FloatArray:
        """Return <x, coef> + intercept."""
        check_is_fitted(self)
        with showing_no_entry("X"):
            if is_typed_frame(X):
                validate_data(self, X, reset=False, skip_check_array=True)
                X = check_array(rows_of_frame(X), dtype=[np.float64, np.float32])
            else:
                X = validate_data(
                    self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32]
                )
        return np.asarray(X @ self.coef_.T + self.intercept_, dtype=np.float64)

    def clipping_report(self, X: Any, y: Any) -> dict[str, Any]:
        """Count the rows and targets beyond the bounds: computed from private rows, NOT PRIVATE.

        Parameters
        ----------
        X, y : arrays

        Returns
        -------
        dict
            ``private`` (False), ``rows``, ``invalid_rows`` (they count as zero),
            ``rows_beyond_x_norm_bound`` and ``targets_beyond_y_bound``, by more than rounding.
        """
        parameters = self._checked_parameters()
        rows = check_rows(X, estimator=self)
        y = self._check_y(y, len(rows))
        norms = row_norms(rows)
        invalid = ~np.isfinite(norms)
        report: dict[str, Any] = {"private": False, "rows": len(rows)}
        if not is_classifier(self):
            invalid |= ~np.isfinite(y).reshape(len(rows), -1).all(axis=1)
        report["invalid_rows"] = int(np.sum(invalid))
        x_bound, y_bounds = parameters.get("x_norm_bound"), parameters.get("y_bound")
        if x_bound is not None:
            report["rows_beyond_x_norm_bound"] = int(np.sum(norms[~invalid] > x_bound * _ROUNDING))
        if y_bounds is not None:
            several = y_bounds if isinstance(y_bounds, list) else [y_bounds]
            centres, scales = np.array([scaling_of(bounds) for bounds in several]).T
            columns = y.reshape(len(rows), -1)[~invalid]
            far = np.abs(columns - centres) > scales * _ROUNDING
            report["targets_beyond_y_bound"] = int(np.sum(far))
        return report

    # ---- scikit-learn's protocol ----

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __sklearn_tags__(self) -> Any:
        announce(self, ReleasedModel)
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.noise_seed is None
        return tags

    def __sklearn_clone__(self) -> Any:
        announced = announce(self, ReleasedModel)
        clone = super().__sklearn_clone__()
        carry_to_clone(self, clone, announced)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Return the model only: no engine, and no attribute that is not private."""
        state: dict[str, Any] = dict(super().__getstate__())
        for name in ("_stream", TURN, JOURNAL, "regret_", CARRIED):
            state.pop(name, None)
        carried = carried_on(self, announce_to_worker(self, ReleasedModel))
        return {**state, CARRIED: carried} if carried != Carried() else state
