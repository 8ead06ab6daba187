# SPDX-License-Identifier: Apache-2.0
"""Private fit of a table: the plan, one pass or several over the rows, the released models.

Nothing computed from private rows is released before the last step, and afterwards only models,
which are functions of noisy sums. Invalid, clipped or missing rows are not counted here
(`dpftrl_fast.tables.validate` does that, for the owner of the data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.convex.glm import outlook as glm_outlook
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares import outlook as squares_outlook
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.least_squares.solver import Solve
from dpftrl_fast.convex.method import Method, default_method
from dpftrl_fast.convex.row_batches import Batch, SparseRows
from dpftrl_fast.convex.settings import FitSettings, RunSettings
from dpftrl_fast.fitting.intervals import Intervals, intervals_of
from dpftrl_fast.fitting.weights import Weights, check_class_weight, weights_for
from dpftrl_fast.plan.from_budget import participation_of
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import check_summands
from dpftrl_fast.tables import Encoder, Rows, TableReader, passes, rows_by_user
from dpftrl_fast.tables.schema import NumericColumn, Schema

FloatArray = npt.NDArray[np.float64]
Settings: TypeAlias = FitSettings | LeastSquaresSettings
ResolvedSettings: TypeAlias = RunSettings | LeastSquaresSettings
Plan: TypeAlias = PrivacyPlan | LeastSquaresPlan
Engine: TypeAlias = GLMRun | LeastSquares
PlanT = TypeVar("PlanT", PrivacyPlan, LeastSquaresPlan)

#: Largest norm of an encoded row.
ROW_NORM = 1.0


@dataclass(frozen=True)
class Curve:
    """Models at evenly spaced steps: `last` and `average` have one model per entry of `steps`.

    `average` is None for least squares, whose models are not averaged.
    """

    steps: npt.NDArray[np.int64]
    last: FloatArray
    average: FloatArray | None


@dataclass(frozen=True)
class FitResult(PrivacyStatement):
    """Released models of a run, and the plan that covers them.

    Attributes
    ----------
    coefficients : dict
        Arrays of shape (p,), or (k, p) for k classes. ftrl: "tail", "average" and "last", the mean
        over the last half of the steps, the mean of all iterates, and the last iterate. Least
        squares: "last" alone, made from all rows.
    learning_rate : float or None
        1/lambda as used; None for least squares.
    solve : Solve or None
        Solution of the last model of least squares.
    intervals : Intervals or None
        Standard errors and confidence intervals, of least squares with `intervals`.
    class_weight : dict or None
        Public weights of labels.
    """

    schema: Schema
    settings: ResolvedSettings
    plan: Plan
    steps: int
    coefficients: dict[str, FloatArray]
    curve: Curve
    reproducible: bool
    learning_rate: float | None = None
    solve: Solve | None = None
    intervals: Intervals | None = None
    class_weight: Mapping[str, float] | None = None

    @property
    def last(self) -> FloatArray:
        """Last iterate."""
        return self.coefficients["last"]

    @property
    def average(self) -> FloatArray:
        """Mean of all iterates (ftrl)."""
        return self.coefficients["average"]

    @property
    def tail(self) -> FloatArray:
        """Mean over the last half of the steps (ftrl)."""
        return self.coefficients["tail"]

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the plan, for all models together."""
        return self.plan.guarantee


def resolve(schema: Schema, settings: Settings) -> ResolvedSettings:
    """Return the settings with numbers in place of "auto", from the schema's public facts.

    Raises
    ------
    ValueError
        If the settings do not fit the schema.
    """
    if isinstance(settings, LeastSquaresSettings):
        return settings.resolved(schema.units)
    # The encoder divides rows by a public number so that this bound holds.
    objective = replace(_objective(schema, settings, 1.0), row_bound=ROW_NORM)
    return settings.resolved(
        schema.units, objective, rows_per_unit=max(1.0, schema.rows / schema.units)
    )


def method_for(
    schema: Schema, *, epsilon: float | None, delta: float, noise_multiplier: float | None = None
) -> Method:
    """Return the method that fits a schema by default, see `dpftrl_fast.convex.method`.

    Examples
    --------
    >>> data = {"rows": 500_000, "target": {"name": "y", "bounds": [0, 1]},
    ...         "columns": {"x": {"bounds": [0, 10]}}}
    >>> method_for(Schema.from_dict(data), epsilon=1.0, delta=1e-6)
    'least-squares'
    """
    if not isinstance(schema.target, NumericColumn) or schema.group_column is not None:
        return "ftrl"
    return default_method(
        schema.rows,
        schema.n_features,
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=noise_multiplier,
    )


def outlook(schema: Schema, settings: ResolvedSettings, plan: Plan) -> list[str]:
    """Return the reasons why the model of a run is unlikely to learn, by public facts."""
    if isinstance(plan, LeastSquaresPlan):
        return [*squares_outlook.problems(plan, columns=schema.n_features, units=schema.units)]
    assert isinstance(settings, RunSettings)
    objective = replace(_objective(schema, settings, settings.clip_norm), row_bound=ROW_NORM)
    options: dict[str, Any] = {"batch_size": settings.batch_size, "momentum": settings.momentum}
    assert not isinstance(settings.learning_rate, str)  # resolved
    return [*glm_outlook.problems(objective, plan, learning_rate=settings.learning_rate, **options)]


def make_plan(schema: Schema, settings: Settings) -> Plan:
    """Return the plan of a run over the declared rows (or users).

    Raises
    ------
    ValueError
        If the settings do not fit the schema, or no epsilon can be stated at the settings' delta.
    """
    if isinstance(settings, LeastSquaresSettings):
        if not isinstance(schema.target, NumericColumn):
            raise ValueError(
                f"least squares needs a numeric target, got a {schema.task} task: use ftrl"
            )
        if schema.group_column is not None:
            raise ValueError(
                "least squares protects single records, got a group column: the sum of a user's "
                "rows has no bound there; use ftrl"
            )
        if settings.intervals and not schema.intercept:
            raise ValueError(
                "confidence intervals need a schema with an intercept, got none: the variance of "
                "the errors needs the number of rows"
            )
        if settings.sample_weight_bound != 1.0 and schema.weight_column is None:
            raise ValueError(
                "a bound on weights needs a column of weights, got "
                f"sample_weight_bound={settings.sample_weight_bound!r} without one"
            )
    else:
        settings.loss_param_for(schema.task)  # refuses a loss that does not fit the task
    run = resolve(schema, settings)
    if isinstance(run, RunSettings):
        return run.plan(schema.units)
    assert isinstance(schema.target, NumericColumn)
    return run.plan(schema.units, x_norm_bound=ROW_NORM, y_bound=schema.target.largest)


def make_engine(schema: Schema, settings: Settings, plan: Plan) -> Engine:
    """Return the engine of a run, with a fresh key; TypeError for a plan of another method."""
    run = resolve(schema, settings)
    if isinstance(run, LeastSquaresSettings):
        features, constant = schema.n_features, int(schema.intercept)
        return run.start(_of_type(plan, LeastSquaresPlan), features, unpenalised=constant)
    objective = _objective(schema, run, run.clip_norm)
    return run.start(objective, _of_type(plan, PrivacyPlan))


def _objective(schema: Schema, settings: FitSettings, clip_norm: float) -> Objective:
    param = settings.loss_param_for(schema.task)
    return Objective(
        settings.loss_for(schema.task),
        schema.n_features,
        outputs=schema.outputs,
        clip_norm=clip_norm,
        loss_param=1.0 if param is None else param,
    )


def _of_type(plan: Plan, expected: type[PlanT]) -> PlanT:
    if not isinstance(plan, expected):
        raise TypeError(f"plan must be a {expected.__name__}, got {type(plan).__name__}")
    return plan


def fit(
    table: TableReader,
    settings: Settings,
    *,
    plan: Plan | None = None,
    class_weight: Mapping[str, float] | None = None,
    curve_points: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> FitResult:
    r"""Fit a private linear model of a table.

    Parameters
    ----------
    table : TableReader
        Private rows, used in file order. If its schema has a group column the guarantee is for
        users, and the rows are held in memory (`dpftrl_fast.tables.rows_by_user`); otherwise the
        file is streamed, once an epoch. Its column of weights, if the schema has one, multiplies
        gradients before they are clipped; least squares clips weights to `sample_weight_bound`.
    settings : FitSettings or LeastSquaresSettings
        Public choices.
    plan : PrivacyPlan or LeastSquaresPlan, optional
        Plan that `make_plan` returned for this schema and these settings; by default it is made
        here. It makes the noise and is the plan of the result.
    class_weight : mapping of label to float, optional
        Public weights of labels, 1 for one without; the gradient of a row is multiplied by it too.
    curve_points : int
        Number of steps at which models are kept for a learning curve.
    progress : callable, optional
        Called as ``progress(step, steps)`` after every step.

    Returns
    -------
    FitResult

    Raises
    ------
    ValueError
        If the settings do not fit the schema, or the plan does not fit the settings.
    TableError
        If the file holds more rows or users than declared, or changes before the last pass ends.
        Nothing has been released by then.

    Notes
    -----
    **Formal guarantee.** All models of the result together satisfy the (epsilon, delta) of
    ``result.plan`` for two tables that differ in one record's (with a group column one user's)
    contribution replaced by zero; ``result.epsilon(delta, neighbours="replace-one")`` is the
    value for replacement by another. The caller must ensure that schema and settings were not
    chosen by looking at private rows, and must compose several fits of the same rows
    (`dpftrl_fast.accounting.compose`). Not covered: the running time, and a run with a
    `noise_seed`. Floating point: docs/guarantees/floating_point.md.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from dpftrl_fast.tables.schema import Schema
    >>> from dpftrl_fast.tables import TableReader
    >>> schema = Schema.from_dict({
    ...     "rows": 3,
    ...     "target": {"name": "y", "bounds": [0, 1]},
    ...     "columns": {"x": {"bounds": [0, 10]}},
    ... })
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "rows.csv")
    ...     _ = path.write_text("x,y\n1,0.2\n5,0.4\n9,oops\n")
    ...     result = fit(TableReader(path, schema), FitSettings(batch_size=2, epochs=1))
    >>> result.steps, result.tail.shape, result.epsilon(1e-6) <= 1.0
    (2, (2,), True)
    """
    schema = table.schema
    settings = resolve(schema, settings)
    if plan is None:
        plan = make_plan(schema, settings)
    labels = check_class_weight(schema, class_weight)
    weigh = weights_for(schema, labels, getattr(settings, "sample_weight_bound", 1.0))
    batch_size, epochs = _schedule(settings)
    declared = participation_of(schema.units, batch_size, epochs, False)
    if plan.participation != declared:
        raise ValueError(f"plan must be for {declared!r}, got one for {plan.participation!r}")
    check_summands("rows or users of all epochs", epochs * schema.units, plan.steps)
    run = make_engine(schema, settings, plan)
    marks = _marks(plan.steps, curve_points)
    kept: list[dict[str, FloatArray]] = []
    for t, batch in enumerate(_batches(table, batch_size, epochs, weigh), start=1):
        run.step(batch)
        if len(kept) < marks.size and t == marks[len(kept)]:
            kept.append(_models(run, ("last", "average")))
        if progress is not None:
            progress(t, plan.steps)
    models = _models(run, ("tail", "average", "last"))
    lasts = [model["last"] for model in kept]
    averages = [model["average"] for model in kept if "average" in model]
    return FitResult(
        schema=schema,
        settings=settings,
        plan=plan,
        steps=run.steps_taken,
        coefficients=models,
        curve=Curve(
            marks,
            np.array(lasts).reshape(-1, *models["last"].shape),
            np.array(averages).reshape(-1, *models["last"].shape) if "average" in models else None,
        ),
        reproducible=run.reproducible,
        learning_rate=run.learning_rate if isinstance(run, GLMRun) else None,
        solve=None if isinstance(run, GLMRun) else run.solves[-1],
        intervals=_intervals(run, schema, settings),
        class_weight=labels,
    )


def _intervals(run: Engine, schema: Schema, settings: ResolvedSettings) -> Intervals | None:
    if isinstance(run, GLMRun) or not isinstance(settings, LeastSquaresSettings):
        return None
    if not settings.intervals:
        return None
    return intervals_of(run, schema, settings.sample_weight_bound)


def _schedule(settings: ResolvedSettings) -> tuple[int, int]:
    """Return the batch size and the number of epochs."""
    assert settings.batch_size != "auto"
    return settings.batch_size, settings.epochs if isinstance(settings, RunSettings) else 1


def _models(run: Engine, kinds: tuple[str, ...]) -> dict[str, FloatArray]:
    """Return the models of these kinds, of shape (p,) where there is one output."""
    if not isinstance(run, GLMRun):
        kinds = ("last",)
    models = {kind: np.asarray(getattr(run, kind)) for kind in kinds}
    return {kind: (m[0] if len(m) == 1 else m).copy() for kind, m in models.items()}


def _batches(table: TableReader, size: int, epochs: int, weigh: Weights) -> Iterator[Batch]:
    """Yield the batches of all steps; those of users after the whole table was read."""
    schema, encoder = table.schema, Encoder(table.schema)
    p = schema.n_features
    if schema.group_column is None:
        for rows in passes(table, epochs, size, encoder=encoder):
            yield Batch(_sparse(rows, p), rows.target, weights=weigh(rows))
        return
    users = rows_by_user(table, encoder=encoder)
    for _ in range(epochs):
        for rows, starts in users.batches(schema.units, size):
            yield Batch(_sparse(rows, p), rows.target, starts, weights=weigh(rows))


def _sparse(rows: Rows, n_features: int) -> SparseRows:
    """Return encoded rows, which all have as many entries, as compressed sparse rows."""
    n, width = rows.indices.shape
    index = np.int32 if n * width < 2**31 else np.int64
    starts = np.arange(n + 1, dtype=index) * index(width)
    indices = rows.indices.ravel().astype(index, copy=False)
    return SparseRows(rows.values.ravel(), indices, starts, n_features)


def _marks(steps: int, points: int) -> npt.NDArray[np.int64]:
    """Return up to `points` steps, evenly spaced, the last one included."""
    points = min(points, steps)
    return (np.arange(1, points + 1, dtype=np.int64) * steps) // max(points, 1)
