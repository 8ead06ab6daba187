# SPDX-License-Identifier: Apache-2.0
"""What the estimators on one tree share: from parameters to an engine, and what it leaves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpftrl_fast.accounting import Participation
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.rates import learning_rate
from dpftrl_fast.convex.glm.regret import RegretMeter
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model._base import PrivateLinearModel
from dpftrl_fast.linear_model._data import MemoryRows, RowSource
from dpftrl_fast.linear_model._protocols import Stepper
from dpftrl_fast.linear_model._targets import Targets
from dpftrl_fast.plan.from_budget import plan_of, tree_of

_OF_PLAN = (
    "epsilon",
    "delta",
    "noise_multiplier",
    "clip_norm",
    "momentum",
)


class PrivateGLM(PrivateLinearModel):
    """Base of the estimators whose gradient is a slope times the row; see there."""

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

    @abstractmethod
    def _loss(self, parameters: Mapping[str, Any], outputs: int) -> tuple[str, float]:
        """Return the kernel's loss and its parameter."""

    def _start(
        self,
        parameters: Mapping[str, Any],
        participation: Participation,
        n_features: int,
        outputs: int,
    ) -> GLMRun:
        objective = self._objective(parameters, n_features, outputs)
        wanted = {name: parameters[name] for name in _OF_PLAN}
        plan = plan_of(participation, mechanism=tree_of(parameters), **wanted)
        options = {name: parameters[name] for name in ("batch_size", "momentum", "radius")}
        rate = learning_rate(parameters["learning_rate"], objective, plan, **options)
        return GLMRun(
            objective,
            plan,
            learning_rate=rate,
            l1=parameters["l1"],
            threads=parameters["threads"],
            noise_seed=parameters["noise_seed"],
            **options,
        )

    def _new_stream(self, parameters: dict[str, Any], classes: Any) -> Any:
        if parameters["compute_regret"]:
            raise ValueError(
                "compute_regret needs fit, got partial_fit: it looks at all rows again"
            )
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
