# SPDX-License-Identifier: Apache-2.0
"""Base of the estimators by FTRL: `DPFTRLRegressor` and `DPFTRLClassifier`."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpftrl_fast.convex.glm.defaults import one_pass_batch
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.outlook import LearningWarning, problems
from dpftrl_fast.convex.glm.regret import RegretMeter
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import Batch, SparseRows
from dpftrl_fast.convex.settings import FitSettings, RunSettings
from dpftrl_fast.convex.target_scaling import scaling_of
from dpftrl_fast.linear_model._base import PrivateLinearModel
from dpftrl_fast.linear_model._targets import Targets
from dpftrl_fast.linear_model.sources.memory import MemoryRows
from dpftrl_fast.linear_model.sources.source import RowSource, Stepper
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


class PrivateGLM(PrivateLinearModel):
    """Base of the estimators whose gradient is a slope times the row."""

    @abstractmethod
    def _loss(self, parameters: Mapping[str, Any], outputs: int) -> tuple[str, float]:
        """Return the kernel's loss and its parameter."""

    def _resolved(
        self, parameters: Mapping[str, Any], units: int, rows: int, n_features: int, outputs: int
    ) -> dict[str, Any]:
        settings: FitSettings = FitSettings.of(self._scaled(parameters))
        objective = self._objective({**parameters, "clip_norm": 1.0}, n_features, outputs)
        run = settings.resolved(
            units, objective, shuffle=parameters["shuffle"], rows_per_unit=rows / units
        )
        numbers = ("batch_size", "epochs", "clip_norm", "momentum", "learning_rate")
        return {**parameters, **{name: getattr(run, name) for name in numbers}}

    def _scaled(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters with the radius for scaled targets."""
        bounds, radius = parameters.get("y_bound"), parameters["radius"]
        if bounds is None or radius is None:
            return {**parameters}
        return {**parameters, "radius": radius / scaling_of(bounds)[1]}

    def _objective(self, parameters: Mapping[str, Any], n_features: int, outputs: int) -> Objective:
        loss, loss_param = self._loss(parameters, outputs)
        return Objective(
            loss,
            n_features,
            outputs=outputs,
            clip_norm=parameters["clip_norm"],
            loss_param=loss_param,
            row_bound=parameters["x_norm_bound"],
            constant=self._constant(parameters),
        )

    def _plan(self, parameters: Mapping[str, Any], units: int) -> PrivacyPlan:
        # The schedule that "auto" stands for does not depend on the norm of the rows.
        classes = parameters.get("classes")
        outputs = 1 if classes is None or len(classes) <= 2 else len(classes)
        settings: RunSettings = RunSettings.of(self._resolved(parameters, units, units, 1, outputs))
        return settings.plan(units, shuffle=parameters["shuffle"])

    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> GLMRun:
        if "auto" in (self.clip_norm, self.learning_rate):
            _announce_missing_bounds(parameters)
        objective = self._objective(parameters, n_features, outputs)
        settings: RunSettings = RunSettings.of(self._scaled(parameters))
        plan = settings.plan(units, shuffle=parameters["shuffle"])
        for problem in problems(
            objective,
            plan,
            batch_size=settings.batch_size,
            learning_rate=parameters["learning_rate"],
            momentum=settings.momentum,
        ):
            warnings.warn(LearningWarning(problem), stacklevel=5)
        return settings.start(objective, plan, threads=parameters["threads"])

    def _stream_batch_size(self, horizon: int) -> int:
        return one_pass_batch(horizon)

    def _stepper(self, parameters: Mapping[str, Any], run: Any) -> Stepper:
        return (
            RegretMeter(run) if parameters["compute_regret"] else super()._stepper(parameters, run)
        )

    def _checks_in_steps(self, parameters: Mapping[str, Any], source: MemoryRows) -> bool:
        shown = parameters["compute_regret"] or parameters.get("verbose", 0)
        return not shown and not isinstance(source.X, SparseRows)

    def _further_attributes(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        stepper: Any,
        source: RowSource | None,
    ) -> dict[str, Any]:
        run: GLMRun = stepper.run if isinstance(stepper, RegretMeter) else stepper
        coefficients = run.theta[:, : run.objective.n_features]
        further: dict[str, Any] = {
            "batch_size_": parameters["batch_size"],
            "clip_norm_": run.plan.clip_norm,
            "learning_rate_": run.learning_rate,
            "momentum_": parameters["momentum"],
            "sparsity_": float(np.mean(coefficients == 0.0)),
        }
        if isinstance(stepper, RegretMeter):
            assert isinstance(source, MemoryRows)
            rows = Batch(source.X, targets.encode(source.y))
            further["regret_"] = stepper.regret(rows, self._scaled(parameters)["radius"])
        return further


def _announce_missing_bounds(parameters: Mapping[str, Any]) -> None:
    """Warn that rules for clip norm and learning rate lack a bound."""
    if parameters["x_norm_bound"] is None:
        reason = (
            "x_norm_bound is not given, and the automatic clip_norm and learning_rate take all "
            "features to be in [-1, 1]; declare x_norm_bound, and scale features by public bounds"
        )
        warnings.warn(LearningWarning(reason), stacklevel=6)
    if "y_bound" in parameters and parameters["y_bound"] is None:
        reason = (
            "y_bound is not given, and the automatic clip_norm and learning_rate take targets to "
            "be in [-1, 1]; declare y_bound=(low, high)"
        )
        warnings.warn(LearningWarning(reason), stacklevel=6)
