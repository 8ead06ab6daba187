# SPDX-License-Identifier: Apache-2.0
"""`Model`: predictions of a saved model for rows of a file or a data frame."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from dpftrl_fast._validate import choice
from dpftrl_fast.fitting.run import Plan
from dpftrl_fast.tables import CsvOptions, Encoder, TableReader
from dpftrl_fast.tables.frames import frame_block
from dpftrl_fast.tables.schema import LabelTarget, Schema

if TYPE_CHECKING:
    from typing_extensions import Unpack

Kind = Literal["tail", "average", "last"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """A fitted model as read from its file.

    Attributes
    ----------
    coefficients : dict
        As in `FitResult`.
    schema : Schema
        Encoding of rows as features.
    plan : PrivacyPlan or LeastSquaresPlan
        Guarantee and noise of the run.
    facts : dict
        All facts of ``model.json``.
    """

    coefficients: dict[str, FloatArray]
    schema: Schema
    plan: Plan
    facts: dict[str, Any]

    def predict(
        self, rows: Any, *, kind: Kind | None = None, **csv: Unpack[CsvOptions]
    ) -> FloatArray:
        """Predict every row, in order; NaN for rows with a missing or unparsable cell.

        Parameters
        ----------
        rows : path or data frame
            A CSV or Parquet file, or a frame of pandas, polars or pyarrow, with the schema's
            feature columns; others are ignored.
        kind : {"tail", "average", "last"}, optional
            Coefficients to use; default "tail", or "last" for least squares.
        **csv
            Options of CSV files: `CsvOptions`.

        Returns
        -------
        ndarray of float64
            Regression: shape (n,), in the target's units. Classification: shape (n,), x.theta,
            whose sign is the class. Multinomial: shape (n, k), a score for each class.
        """
        if kind is None:
            kind = "tail" if "tail" in self.coefficients else "last"
        theta = self.coefficients[choice("kind", kind, tuple(self.coefficients))]
        encoder = Encoder(self.schema, target=False)
        parts = [np.zeros((0, *theta.shape[:-1]))]
        for block in _blocks(rows, self.schema, csv):
            encoded = encoder.encode(block)
            if theta.ndim == 1:
                score = np.einsum("ij,ij->i", encoded.values, theta[encoded.indices])
            else:
                score = encoded.matrix(self.schema.n_features) @ theta.T
            score[~encoded.valid] = np.nan
            parts.append(score)
        score = np.concatenate(parts)
        target = self.schema.target
        if isinstance(target, LabelTarget):
            return score
        with np.errstate(over="ignore"):  # infinity, as a model may say
            return score * target.divisor + target.offset

    def predict_labels(
        self, rows: Any, *, kind: Kind | None = None, **csv: Unpack[CsvOptions]
    ) -> list[str | None]:
        """Predict the label of every row, in order; None where `predict` has NaN.

        Parameters
        ----------
        rows, kind, **csv
            As for `predict`.

        Raises
        ------
        ValueError
            If the model is a regression.
        """
        categories = self._categories("predict_labels")
        score = _of_each_class(self.predict(rows, kind=kind, **csv))
        return _labels_of(score, categories)

    def predict_probabilities(
        self, rows: Any, *, kind: Kind | None = None, **csv: Unpack[CsvOptions]
    ) -> FloatArray:
        """Predict the probability of each label, NaN where `predict` has NaN.

        Parameters
        ----------
        rows, kind, **csv
            As for `predict`.

        Returns
        -------
        ndarray of shape (n, k)
            Columns as the categories of the schema's target.

        Raises
        ------
        ValueError
            If the model is a regression, or its loss is the hinge loss.
        """
        self._categories("predict_probabilities")
        if not self.has_probabilities:
            raise ValueError("the hinge loss gives no probabilities, got loss 'hinge'")
        score = _of_each_class(self.predict(rows, kind=kind, **csv))
        return np.asarray(softmax(score, axis=1), dtype=np.float64)

    @property
    def has_probabilities(self) -> bool:
        """Whether the loss gives probabilities: logistic and multinomial."""
        return self.facts["settings"].get("loss") in ("logistic", "multinomial")

    def table(
        self, rows: Any, *, kind: Kind | None = None, **csv: Unpack[CsvOptions]
    ) -> dict[str, Any]:
        """Return the predictions of every row as named columns.

        Parameters
        ----------
        rows, kind, **csv
            As for `predict`.

        Returns
        -------
        dict of array or list
            "prediction": numbers or labels; for labels also "probability_LABEL" of each, where the
            loss gives them, and otherwise "score" or "score_LABEL".
        """
        score = self.predict(rows, kind=kind, **csv)
        if not isinstance(self.schema.target, LabelTarget):
            return {"prediction": score}
        categories = self.schema.target.categories
        each = _of_each_class(score)
        found: dict[str, Any] = {"prediction": _labels_of(each, categories)}
        if self.has_probabilities:
            each = softmax(each, axis=1)
        elif score.ndim == 1:
            return found | {"score": score}
        word = "probability" if self.has_probabilities else "score"
        return found | {f"{word}_{name}": each[:, k] for k, name in enumerate(categories)}

    def _categories(self, name: str) -> tuple[str, ...]:
        target = self.schema.target
        if not isinstance(target, LabelTarget):
            raise ValueError(f"{name} needs a classification, got a regression")
        return target.categories


def _of_each_class(score: FloatArray) -> FloatArray:
    """Return a score for each class; the first of two has 0."""
    return np.stack([score * 0.0, score], axis=1) if score.ndim == 1 else score


def _labels_of(score: FloatArray, categories: tuple[str, ...]) -> list[str | None]:
    classes = np.argmax(score, axis=1)  # of equal scores the first: negative at 0
    classes[np.isnan(score).any(axis=1)] = -1
    return [None if k < 0 else categories[k] for k in classes]


def _blocks(rows: Any, schema: Schema, csv: CsvOptions) -> Iterable[Any]:
    """Return the blocks of a file, or a frame as one block."""
    if isinstance(rows, (str, os.PathLike)):
        return TableReader(Path(rows), schema, target=False, **csv)
    for name, value in csv.items():
        if value is not None:
            raise ValueError(f"{name} must be None for a data frame, got {value!r}")
    return [frame_block(rows, schema)]
