# SPDX-License-Identifier: Apache-2.0
"""From public facts and choices to a plan, and from that to an engine with a fresh key."""

from __future__ import annotations

from typing import Any, TypeAlias

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.fitting.settings import LeastSquaresSettings, Settings
from dpftrl_fast.plan.from_budget import TreeSearch, participation_of, plan_of
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.tables.schema import NumericColumn, Schema

Plan: TypeAlias = PrivacyPlan | LeastSquaresPlan
Engine: TypeAlias = GLMRun | LeastSquares

#: The encoder divides rows by a public number so that this holds.
_ROW_NORM = 1.0


def make_plan(schema: Schema, settings: Settings) -> Plan:
    """Return the plan of a run over the declared rows, or users.

    Raises
    ------
    ValueError
        If the settings do not fit the schema, or nothing can be stated at the settings' delta.
    """
    settings.check(schema)
    if isinstance(settings, LeastSquaresSettings):
        return _least_squares_plan(schema, settings)
    participation = participation_of(schema.units, settings.batch_size, settings.epochs, False)
    bound = settings.bound
    if bound is None:
        bound = "exact" if settings.epochs == 1 else "released"
    names = ("epsilon", "delta", "noise_multiplier", "clip_norm", "momentum")
    fields = {name: getattr(settings, name) for name in names}
    return plan_of(participation, mechanism=TreeSearch(settings.variant), bound=bound, **fields)


def _least_squares_plan(schema: Schema, settings: LeastSquaresSettings) -> LeastSquaresPlan:
    assert isinstance(schema.target, NumericColumn)  # see `LeastSquaresSettings.check`
    fields: dict[str, Any] = {
        "x_norm_bound": _ROW_NORM,
        "y_bound": schema.target.largest,
        "participation": participation_of(schema.units, settings.batch_size, 1, False),
        "split": settings.split,
        "variant": settings.variant,
    }
    if settings.noise_multiplier is not None:
        plan = LeastSquaresPlan(noise_multiplier=settings.noise_multiplier, **fields)
        plan.epsilon(settings.delta)  # a delta at which nothing can be stated is refused here
        return plan
    assert settings.epsilon is not None  # one of the two is given
    return LeastSquaresPlan.calibrate(epsilon=settings.epsilon, delta=settings.delta, **fields)


def make_engine(schema: Schema, settings: Settings, plan: Plan) -> Engine:
    """Return the engine that takes the batches of a run."""
    if isinstance(settings, LeastSquaresSettings):
        assert isinstance(plan, LeastSquaresPlan)
        return LeastSquares(
            plan,
            schema.n_features,
            radius=settings.radius,
            ridge_factor=settings.ridge_factor,
            seed=settings.noise_seed,
        )
    assert isinstance(plan, PrivacyPlan)
    param = settings.loss_param_for(schema)
    objective = Objective(
        settings.loss_for(schema),
        schema.n_features,
        outputs=schema.outputs,
        clip_norm=settings.clip_norm,
        loss_param=1.0 if param is None else param,
    )
    return GLMRun(
        objective,
        plan,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        momentum=settings.momentum,
        l1=settings.l1,
        radius=settings.radius,
        noise_seed=settings.noise_seed,
    )
