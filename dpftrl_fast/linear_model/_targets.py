# SPDX-License-Identifier: Apache-2.0
"""Encoding of targets as the numbers that the losses read."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets

from dpftrl_fast._validate import shown
from dpftrl_fast.convex.target_scaling import Bounds, scaling_of
from dpftrl_fast.linear_model._several_targets import SeveralTargets
from dpftrl_fast.tables.labels import Kind, kind_of

FloatArray = NDArray[np.float64]

_KINDS: dict[Kind, Any] = {"bool": bool, "numbers": Real, "text": str, "bytes": bytes}


@dataclass(frozen=True)
class NumberTargets:
    """Targets of a regression: clipped to `centre` +- `scale` and moved to [-1, 1] if bounded.

    Examples
    --------
    >>> NumberTargets.within((0.0, 4.0)).encode(np.array([3.0, -3.0])).tolist()
    [0.5, -1.0]
    >>> NumberTargets().encode(np.array([3.0, np.inf])).tolist()
    [3.0, nan]
    """

    centre: float = 0.0
    scale: float = 1.0
    bounded: bool = False

    @property
    def outputs(self) -> int:
        """Number of parameter vectors."""
        return 1

    @classmethod
    def within(cls, bounds: Bounds | None) -> NumberTargets:
        """Return the encoding for bounds (low, high), or -b and b for a number b."""
        return cls() if bounds is None else cls(*scaling_of(bounds), True)

    def encode(self, y: Any) -> FloatArray:
        """Return the targets as float64, non-finite ones as NaN: such rows count as zero."""
        values = np.asarray(y, dtype=np.float64)
        values = np.where(np.isfinite(values), values, np.nan)
        if not self.bounded:
            return values
        return np.clip((values - self.centre) / self.scale, -1.0, 1.0)

    def refuse_kind(self, kind: Kind | None) -> None:
        """Refuse nothing: sources check the types of numbers where they are opened."""

    def refuse_bad(self, y: Any) -> None:
        """Refuse non-finite targets, naming the row; for use before the first step only."""
        bad = np.flatnonzero(~np.isfinite(np.asarray(y, dtype=np.float64)))
        if bad.size:
            value = "NaN" if np.isnan(float(np.asarray(y)[bad[0]])) else "infinity"
            raise ValueError(
                f"y must be finite, got {value} in row {bad[0]}: fill in a public number before "
                "fit, so that no row changes its place, or use partial_fit, where such a row "
                "counts as zero"
            )


@dataclass(frozen=True)
class ClassTargets:
    """Labels of a classification, encoded as the numbers of their sorted classes.

    Examples
    --------
    >>> ClassTargets(np.array(["a", "b"])).encode(np.array(["b", "a", "c"])).tolist()
    [1.0, 0.0, nan]
    """

    classes: NDArray[Any]

    @property
    def outputs(self) -> int:
        """Number of parameter vectors: one for two classes, else one per class."""
        return 1 if self.classes.size == 2 else int(self.classes.size)

    def encode(self, y: Any) -> FloatArray:
        """Return the numbers of the classes, NaN for an unknown label."""
        labels = np.asarray(y)
        self.refuse_kind(kind_of(labels.dtype))
        if labels.dtype.kind in "OT":
            return np.array([self._number(label) for label in labels], dtype=np.float64)
        place = np.clip(np.searchsorted(self.classes, labels), 0, self.classes.size - 1)
        known = np.asarray(self.classes[place] == labels, dtype=bool)
        return np.where(known, place.astype(np.float64), np.nan)

    def refuse_kind(self, kind: Kind | None) -> None:
        """Refuse labels of a kind that no class has: all rows would count as zero.

        It is a fact about dtypes: True and 1 are one label, text and numbers never are. None, the
        kind of objects, passes.
        """
        own = self._kind
        if kind is None or own is None or kind == own:
            return
        if {kind, own} == {"bool", "numbers"} and not (
            kind == "bool" and {*self.classes.tolist()} - {0, 1}
        ):
            return
        raise TypeError(
            f"y must be labels of the type of the classes, {own} ({shown(self.classes.tolist())}), "
            f"got {kind}: no row would have a class; declare classes as they are in y, or convert y"
        )

    @cached_property
    def _kind(self) -> Kind | None:
        if self.classes.dtype.kind != "O":
            return kind_of(self.classes.dtype)
        for kind, types in _KINDS.items():
            if all(isinstance(label, types) for label in self.classes.tolist()):
                return kind
        return None

    def _number(self, label: Any) -> float:
        try:
            return float(self._numbers.get(label, np.nan))
        except Exception:  # unhashable, or an error of the label's own class
            return np.nan

    @cached_property
    def _numbers(self) -> dict[Any, int]:
        return {label: number for number, label in enumerate(self.classes.tolist())}

    def refuse_bad(self, y: Any) -> None:
        """Refuse unknown labels, naming the row; for use before the first step only."""
        bad = np.flatnonzero(np.isnan(self.encode(y)))
        if bad.size:
            label = np.asarray(y)[bad[0]]
            missing = isinstance(label, (float, np.floating)) and np.isnan(label)
            came = "NaN" if missing else "another label"
            raise ValueError(
                f"y must hold the classes {self.classes.tolist()} only, got {came} in row {bad[0]}"
            )


Targets: TypeAlias = NumberTargets | ClassTargets | SeveralTargets


def classes_of(classes: Any, y: Any) -> NDArray[Any]:
    """Return the sorted classes: those given, or else the labels of `y`, which are then public."""
    if classes is None:
        NumberTargets().refuse_bad(y if np.asarray(y).dtype.kind == "f" else [])
        _refuse_bad_text(np.asarray(y))
        with warnings.catch_warnings():
            # A warning about the number of labels would depend on the data.
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            check_classification_targets(y)
        found = np.unique(np.asarray(y))
        if found.size < 2:
            raise ValueError(
                f"y must hold at least 2 classes, got {found.size} class; declare classes that "
                "these rows may lack with classes="
            )
        return found
    given = np.asarray(classes)
    if given.ndim != 1:
        raise ValueError(f"classes must be one-dimensional, got shape {given.shape}")
    found = np.unique(given)
    if found.size != given.size or found.size < 2:
        raise ValueError(f"classes must be at least 2 labels, each once, got {given.tolist()}")
    if found.dtype.kind == "f" and not np.all(np.isfinite(found)):
        raise ValueError(f"classes must be finite, got {given.tolist()}")
    return found


def _refuse_bad_text(labels: NDArray[Any]) -> None:
    """Refuse text with lone surrogates, which stand for bytes that are not UTF-8."""
    if labels.dtype.kind not in "OUT":
        return
    for row, label in enumerate(labels.tolist()):
        if isinstance(label, str):
            try:
                label.encode()
            except UnicodeEncodeError:
                raise ValueError(f"y must be valid text, got other bytes in row {row}") from None
