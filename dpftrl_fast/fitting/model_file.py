# SPDX-License-Identifier: Apache-2.0
"""Model files: ``model.npz`` is the model, ``model.json`` a readable copy of its facts.

Both are written to temporary names and moved into place, ``model.npz`` last, so a folder has either
a whole model or none. A model holds released coefficients and public facts: never a noise key, a
count or a value of private rows.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.files import arrays_in, check_folder, write_files
from dpftrl_fast.fitting.prediction import Model as Model
from dpftrl_fast.fitting.run import ROW_NORM, FitResult, Plan
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.tables.schema import NumericColumn, Schema

FORMAT = "dpftrl_fast/model/1"
LEAST_SQUARES_FORMAT = "dpftrl_fast.LeastSquaresPlan"
NPZ, JSON = "model.npz", "model.json"
_KINDS = ("tail", "average", "last")


def model_facts(result: FitResult, scores: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the facts of ``model.json`` as plain data.

    `scores` is the metric of each kind of coefficients on a table that the user called public.
    """
    settings, schema = result.settings, result.schema
    facts = {
        "format": FORMAT,
        "marks": ["reproducible, not private"] if result.reproducible else [],
        "epsilon": _finite(result.epsilon(settings.delta)),
        "delta": settings.delta,
        "neighbours": f"one {schema.unit} replaced by zero",
        "epsilon_replace_one": result.replace_one(settings.delta),
        "delta_floor": result.plan.delta_floor,
        "sensitivity_squared": result.plan.sensitivity_squared,
        "plan": result.plan.to_dict(),
        "settings": _settings_facts(result),
        "scaling": scaling_facts(schema),
        "public_test": None if scores is None else {k: _finite(v) for k, v in scores.items()},
        "features": list(schema.feature_names),
        "schema": schema.to_dict(),
    }
    if result.intervals is not None:
        facts["confidence_intervals"] = result.intervals.to_dict()
    if result.solve is not None:
        facts["solve"] = {
            name: getattr(result.solve, name) for name in ("case", "half_ridge", "multiplier")
        }
    return facts


def scaling_facts(schema: Schema) -> dict[str, Any]:
    """Return the public scales of rows and targets, those included that follow from the bounds.

    Examples
    --------
    >>> scaling_facts(Schema.from_dict({
    ...     "rows": 9,
    ...     "target": {"name": "y", "bounds": [0, 8]},
    ...     "columns": {c: {"bounds": [0, 2]} for c in "abc"},
    ... }))["row_scale"]
    2.0
    """
    target = schema.target if isinstance(schema.target, NumericColumn) else None
    return {
        "row_scale": schema.row_scale,  # every row is divided by it, its constant too
        "largest_row_norm": schema.largest_row_norm,  # before the division, within the bounds
        "row_norm": ROW_NORM,  # no row in a sum is longer
        "target_offset": None if target is None else target.offset,
        "target_divisor": None if target is None else target.divisor,
        "largest_target": None if target is None else target.largest,
    }


def _settings_facts(result: FitResult) -> dict[str, Any]:
    settings, task = result.settings, result.schema.task
    facts: dict[str, Any] = {"method": settings.method, "batch_size": settings.batch_size}
    if isinstance(settings, LeastSquaresSettings):
        return facts | {
            "epochs": 1,
            "radius": settings.radius,
            "split": settings.split,
            "ridge_factor": settings.ridge_factor,
            "alpha": settings.alpha,
            "sample_weight_bound": settings.sample_weight_bound,
        }
    return facts | {
        "epochs": settings.epochs,
        "learning_rate": result.learning_rate,
        "loss": settings.loss_for(task),
        "loss_param": settings.loss_param_for(task),
        "momentum": settings.momentum,
        "l1": settings.l1,
        "radius": settings.radius,
        "class_weight": None if result.class_weight is None else {**result.class_weight},
    }


def check_target(directory: str | Path, *, force: bool = False) -> None:
    """Refuse, before a run, a folder into which `save_model` could not write after it.

    Raises
    ------
    FileExistsError
        If `directory` holds a model and `force` is false, or is a file.
    PermissionError
        If it cannot be written.
    """
    directory = Path(directory)
    check_folder(directory)
    if not force:
        for name in (NPZ, JSON):
            if (directory / name).exists():
                raise FileExistsError(f"{str(directory / name)!r} exists; --force overwrites it")


def save_model(
    directory: str | Path,
    result: FitResult,
    *,
    scores: Mapping[str, float] | None = None,
    extra: Mapping[str, bytes] | None = None,
    force: bool = False,
) -> dict[str, Any]:
    """Write a model into a folder and return its facts.

    Parameters
    ----------
    directory : str or Path
        Made if it does not exist.
    result : FitResult
    scores : mapping, optional
        As in `model_facts`.
    extra : mapping of file name to bytes, optional
        Further files (a plot), moved into place with the model.
    force : bool
        Overwrite an existing model.

    Raises
    ------
    FileExistsError
        If the folder holds a model and `force` is false.
    """
    directory = Path(directory)
    check_target(directory, force=force)
    facts = model_facts(result, scores)
    text = json.dumps(facts, indent=2, allow_nan=False)
    write_files(
        directory,
        # the npz is last: without it there is no model
        {**(extra or {}), JSON: (text + "\n").encode(), NPZ: _npz(result, text)},
    )
    return facts


def load_model(directory: str | Path) -> Model:
    r"""Read a model from its folder (no pickle is read).

    Raises
    ------
    ValueError
        If the file is not a model of this format.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from dpftrl_fast.fitting.run import FitSettings, fit
    >>> from dpftrl_fast.tables import TableReader
    >>> from dpftrl_fast.tables.schema import Schema
    >>> columns, target = {"x": {"bounds": [0, 10]}}, {"name": "y", "bounds": [0, 1]}
    >>> schema = Schema.from_dict({"rows": 3, "target": target, "columns": columns})
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "rows.csv").write_text("x,y\n1,0.2\n5,0.4\n9,0.9\n")
    >>> result = fit(TableReader(folder / "rows.csv", schema), FitSettings(batch_size=1, epochs=1))
    >>> _ = save_model(folder / "model", result)  # as dpftrl-fast fit does
    >>> load_model(folder / "model").predict(folder / "rows.csv").shape
    (3,)
    """
    path = Path(directory) / NPZ
    if not path.is_file():
        raise FileNotFoundError(f"no model file {str(path)!r}")
    try:
        arrays = arrays_in(path)
        kinds = _KINDS if "tail" in arrays else ("last",)
        if missing := [name for name in ("facts", *kinds) if name not in arrays]:
            raise ValueError(f"it lacks {', '.join(missing)}")
        facts = json.loads(str(arrays["facts"][()]))
        if numberless := [kind for kind in kinds if arrays[kind].dtype.kind not in "fiu"]:
            raise ValueError(f"{', '.join(numberless)} must hold numbers")
        coefficients = {kind: np.array(arrays[kind], np.float64) for kind in kinds}
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{str(path)!r} is not a model file: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"expected a model of format {FORMAT!r} in {str(path)!r}")
    schema = Schema.from_dict(facts.get("schema"))  # type: ignore[arg-type]
    plan = _plan(facts.get("plan"))
    wanted = () if isinstance(plan, LeastSquaresPlan) else ("tail", "average")
    if set(kinds) != {*wanted, "last"}:
        raise ValueError(f"expected other coefficients than {', '.join(kinds)} in {str(path)!r}")
    p, k = schema.n_features, schema.outputs
    shape = (p,) if k == 1 else (k, p)
    for kind, theta in coefficients.items():
        if theta.shape != shape:
            raise ValueError(f"{kind} coefficients must have shape {shape}, got {theta.shape}")
    return Model(coefficients, schema, plan, facts)


def _plan(data: Any) -> Plan:
    """Read the plan of either method."""
    if isinstance(data, dict) and data.get("format") == LEAST_SQUARES_FORMAT:
        return LeastSquaresPlan.from_dict(data)
    return PrivacyPlan.from_dict(data)


def _npz(result: FitResult, text: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, facts=np.array(text), **result.coefficients)
    return buffer.getvalue()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
