# SPDX-License-Identifier: Apache-2.0
"""Base of the estimators by FTRL: `DPFTRLRegressor` and `DPFTRLClassifier`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.regret import RegretMeter
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.convex.settings import FitSettings
from dpftrl_fast.linear_model._base import PrivateLinearModel
from dpftrl_fast.linear_model._rows import MemoryRows
from dpftrl_fast.linear_model._sources import RowSource, Stepper
from dpftrl_fast.linear_model._targets import Targets
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


class PrivateGLM(PrivateLinearModel):
    """Base of the estimators whose gradient is a slope times the row."""

    @abstractmethod
    def _loss(self, parameters: Mapping[str, Any], outputs: int) -> tuple[str, float]:
        """Return the kernel's loss and its parameter."""

    def _plan(self, parameters: Mapping[str, Any], units: int) -> PrivacyPlan:
        settings: FitSettings = FitSettings.of(parameters)
        return settings.plan(units, shuffle=parameters["shuffle"])

    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> GLMRun:
        loss, loss_param = self._loss(parameters, outputs)
        objective = Objective(
            loss,
            n_features,
            outputs=outputs,
            clip_norm=parameters["clip_norm"],
            loss_param=loss_param,
            row_bound=parameters["x_norm_bound"],
            constant=self._constant(parameters),
        )
        settings: FitSettings = FitSettings.of(parameters)
        plan = self._plan(parameters, units)
        return settings.start(objective, plan, threads=parameters["threads"])

    def _new_stream(self, parameters: dict[str, Any], classes: Any) -> Any:
        if parameters["compute_regret"]:
            raise ValueError("compute_regret needs fit, got partial_fit: it reads all rows again")
        return super()._new_stream(parameters, classes)

    def _stepper(self, parameters: Mapping[str, Any], run: Any) -> Stepper:
        return (
            RegretMeter(run) if parameters["compute_regret"] else super()._stepper(parameters, run)
        )

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
            "learning_rate_": run.learning_rate,
            "sparsity_": float(np.mean(coefficients == 0.0)),
        }
        if isinstance(stepper, RegretMeter):
            assert isinstance(source, MemoryRows)
            rows = Batch(source.X, targets.encode(source.y))
            further["regret_"] = stepper.regret(rows, parameters["radius"])
        return further
