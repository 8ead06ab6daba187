# SPDX-License-Identifier: Apache-2.0
"""A private run over a table: rows in file order, an engine, models.

Nothing that was computed from private rows leaves before the last step, and afterwards only models,
which are functions of noisy sums. How many rows were invalid, clipped or missing is not counted
here at all (`dpftrl_fast.tables.validate` is for that, for the owner of the data).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.row_batches import Batch, SparseRows
from dpftrl_fast.fitting.engines import Engine, make_engine, make_plan
from dpftrl_fast.fitting.results import Curve, FitResult
from dpftrl_fast.fitting.settings import FitSettings, Settings
from dpftrl_fast.tables import Encoder, Rows, TableReader, passes, rows_by_user

FloatArray = npt.NDArray[np.float64]


def fit(
    table: TableReader,
    settings: Settings,
    *,
    curve_points: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> FitResult:
    r"""Fit a private linear model of a table.

    Parameters
    ----------
    table : TableReader
        The private rows, in the order in which they are used. If its schema has a group column the
        guarantee is for users, and the rows are held in memory (`dpftrl_fast.tables.rows_by_user`);
        else the file is streamed, once an epoch.
    settings : FitSettings or LeastSquaresSettings
        Public choices.
    curve_points : int
        At how many steps the models are kept for a learning curve.
    progress : callable, optional
        Called as ``progress(step, steps)`` after every step.

    Returns
    -------
    FitResult

    Raises
    ------
    ValueError
        If the settings do not fit the schema.
    TableError
        When the file holds more rows or users than declared, or changes before the last pass is
        over. Nothing has left by then.

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
    ...     result = fit(TableReader(path, schema), FitSettings(epsilon=1.0, batch_size=2))
    >>> result.steps, result.tail.shape, result.epsilon <= 1.0
    (2, (2,), True)
    """
    schema = table.schema
    plan = make_plan(schema, settings)
    run = make_engine(schema, settings, plan)
    marks = _marks(plan.steps, curve_points)
    kept: list[dict[str, FloatArray]] = []
    for t, batch in enumerate(_batches(table, settings), start=1):
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
        solve=None if isinstance(run, GLMRun) else run.solves[-1],
    )


def _models(run: Engine, kinds: tuple[str, ...]) -> dict[str, FloatArray]:
    """Return the models of these kinds that there are, of shape (p,) where there is one output."""
    if not isinstance(run, GLMRun):
        kinds = ("last",)
    models = {kind: np.asarray(getattr(run, kind)) for kind in kinds}
    return {kind: (m[0] if len(m) == 1 else m).copy() for kind, m in models.items()}


def _batches(table: TableReader, settings: Settings) -> Iterator[Batch]:
    """Yield the batches of all steps; those of users after the whole table was read."""
    schema, encoder = table.schema, Encoder(table.schema)
    epochs = settings.epochs if isinstance(settings, FitSettings) else 1
    p, size = schema.n_features, settings.batch_size
    if schema.group_column is None:
        for rows in passes(table, epochs, size, encoder=encoder):
            yield Batch(_sparse(rows, p), rows.target)
        return
    users = rows_by_user(table, encoder=encoder)
    for _ in range(epochs):
        for rows, starts in users.batches(schema.units, size):
            yield Batch(_sparse(rows, p), rows.target, starts)


def _sparse(rows: Rows, n_features: int) -> SparseRows:
    """Return encoded rows as compressed sparse ones, each with as many entries as the others."""
    n, width = rows.indices.shape
    index = np.int32 if n * width < 2**31 else np.int64
    starts = np.arange(n + 1, dtype=index) * index(width)
    indices = rows.indices.ravel().astype(index, copy=False)
    return SparseRows(rows.values.ravel(), indices, starts, n_features)


def _marks(steps: int, points: int) -> npt.NDArray[np.int64]:
    """Return up to `points` steps, evenly spaced, the last one included."""
    points = min(points, steps)
    return (np.arange(1, points + 1, dtype=np.int64) * steps) // max(points, 1)
