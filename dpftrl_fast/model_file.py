# SPDX-License-Identifier: Apache-2.0
"""Model files: ``model.npz`` holds everything, ``model.json`` is its readable copy.

Both are written to temporary names and moved into place, ``model.npz`` last, so a folder has either
a whole model or none. A model holds what was released and the public facts behind it: never a
noise key, a count or a value of private rows.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.fitting import FitResult
from dpftrl_fast.plan import PrivacyPlan
from dpftrl_fast.schema import LabelTarget, Schema
from dpftrl_fast.tables import Encoder, TableReader

__all__ = ["Model", "check_target", "load_model", "model_facts", "save_model"]

FORMAT = "dpftrl_fast/model/1"
NPZ, JSON = "model.npz", "model.json"
_KINDS = ("tail", "average", "last")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A fitted model as read from its file.

    Attributes
    ----------
    coefficients : dict
        "tail", "average" and "last" of shape (p,): the mean over the last half of the steps, the
        mean over all, the last iterate.
    schema : Schema
        How rows become features.
    plan : PrivacyPlan
        What was guaranteed, and by what noise.
    facts : dict
        Everything else, as in ``model.json``.
    """

    coefficients: dict[str, FloatArray]
    schema: Schema
    plan: PrivacyPlan
    facts: dict[str, Any]

    def predict(
        self,
        path: str | Path,
        *,
        kind: Literal["tail", "average", "last"] = "tail",
        delimiter: str | None = None,
    ) -> FloatArray:
        """Predict every row of a file, in order; NaN for rows with a missing or unparsable cell.

        Parameters
        ----------
        path : str or Path
            A table with the schema's feature columns.
        kind : {"tail", "average", "last"}
            Which coefficients.
        delimiter : str or None
            For CSV, as in `TableReader`.

        Returns
        -------
        ndarray of shape (n,)
            In the target's own units for a regression; for a classification the score x.theta,
            whose logistic function is the probability of the positive class if the loss was
            logistic.
        """
        if kind not in self.coefficients:
            raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
        theta = self.coefficients[kind]
        encoder = Encoder(self.schema, target=False)
        parts = [np.zeros(0)]
        for block in TableReader(path, self.schema, delimiter=delimiter, target=False):
            rows = encoder.encode(block)
            score = np.einsum("ij,ij->i", rows.values, theta[rows.indices])
            score[~rows.valid] = np.nan
            parts.append(score)
        score = np.concatenate(parts)
        target = self.schema.target
        return score if isinstance(target, LabelTarget) else score * target.divisor + target.offset


def model_facts(result: FitResult, scores: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the facts of a model as plain data (see ``model.json``).

    Parameters
    ----------
    result : FitResult
        What a fit released.
    scores : mapping, optional
        The metric of each kind of coefficients on a table that the user called public.
    """
    settings = result.settings
    return {
        "format": FORMAT,
        "marks": ["reproducible, not private"] if result.reproducible else [],
        "epsilon": _finite(result.epsilon),
        "delta": settings.delta,
        "neighbours": "one record replaced by zero",
        "epsilon_replace_one": result.epsilon_replace_one,
        "delta_floor": result.plan.delta_floor,
        "sensitivity_squared": result.plan.sensitivity_squared,
        "plan": result.plan.to_dict(),
        "settings": {
            "batch_size": settings.batch_size,
            "learning_rate": settings.learning_rate,
            "loss": result.loss,
            "loss_param": settings.loss_param,
            "momentum": settings.momentum,
            "l1": settings.l1,
            "radius": settings.radius,
        },
        "public_test": None if scores is None else {k: _finite(v) for k, v in scores.items()},
        "features": list(result.schema.feature_names),
        "schema": result.schema.to_dict(),
    }


def check_target(directory: str | Path, *, force: bool = False) -> None:
    """Raise before a run what would make `save_model` fail after it.

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
                raise FileExistsError(
                    f"{str(directory / name)!r} exists; it is overwritten on --force"
                )


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
        What a fit released.
    scores : mapping, optional
        As in `model_facts`.
    extra : mapping of file name to bytes, optional
        Further files (a plot), moved into place with the model.
    force : bool
        Overwrite a model that is there.

    Raises
    ------
    FileExistsError
        If a model is there and `force` is false.
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
    """Read a model from its folder (no pickle is read).

    Raises
    ------
    ValueError
        If the file is no model of this format.
    """
    path = Path(directory) / NPZ
    if not path.is_file():
        raise FileNotFoundError(f"expected a model, no such file: {str(path)!r}")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            facts = json.loads(str(arrays["facts"][()]))
            coefficients = {kind: np.asarray(arrays[kind], np.float64) for kind in _KINDS}
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{str(path)!r} is not a model file: {error}") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError(f"expected a model of format {FORMAT!r} in {str(path)!r}")
    schema = Schema.from_dict(facts["schema"])
    for kind, theta in coefficients.items():
        if theta.shape != (schema.n_features,):
            raise ValueError(
                f"{kind} coefficients must have shape ({schema.n_features},), got {theta.shape}"
            )
    return Model(coefficients, schema, PrivacyPlan.from_dict(facts["plan"]), facts)


def _npz(result: FitResult, text: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(
        buffer, facts=np.array(text), tail=result.tail, average=result.average, last=result.last
    )
    return buffer.getvalue()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
