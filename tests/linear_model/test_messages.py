# SPDX-License-Identifier: Apache-2.0
"""No error of an estimator shows an entry of private rows, a label or a user."""

from __future__ import annotations

import decimal
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, first_of, make, rows
from sklearn.exceptions import NotFittedError

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares
from dpftrl_fast.linear_model._messages import showing_no_entry

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)

SECRET = "77.7125"
V = float(SECRET)
N = 20


class Entry:
    """An entry whose conversions fail with a message of its own."""

    def __float__(self) -> float:
        raise ValueError(f"cannot convert {SECRET}")

    __complex__ = __float__


FULL = np.full((N, 3), V)
WRONG_ROWS: dict[str, Any] = {
    "vector": FULL[:, 0],
    "number": np.array(V),
    "list": [V] * N,
    "float": V,
    "complex": FULL + 0j,
    "complex objects": (FULL + 0j).astype(object),
    "complex frame": pd.DataFrame(FULL + 0j),
    "complex sparse": scipy.sparse.csr_matrix(FULL + 0j),
    "cube": FULL[None],
    "series": pd.Series([V] * N),
    "text": np.full((N, 3), f"{SECRET}x"),
    "bytes": np.full((N, 3), f"{SECRET}x".encode()),
    "objects": np.full((N, 3), f"{SECRET}x", object),
    "frame": pd.DataFrame({"a": [f"{SECRET}x"] * N}),
    "categories": pd.DataFrame({"a": pd.Categorical([f"{SECRET}x"] * N)}),
    "ragged": [[V, 1.0]] + [[V]] * (N - 1),
    "own class": np.array([[Entry()] * 3] * N),
    "decimal": np.array([[decimal.Decimal(f"sNaN{SECRET.replace('.', '')}")] * 3] * N),
}
WRONG_TARGETS: dict[str, Any] = {
    "matrix": np.full((N, 2), V),
    "complex": np.full(N, V + 0j),
    "number": np.array(V),
    "short": np.full(3, V),
    "text": np.array([f"{SECRET}x"] * N),
    "own class": np.array([Entry()] * N),
    "frame": pd.DataFrame({"a": [V] * N, "b": [V] * N}),
}


def said(call: Any) -> str:
    """Return the error and the warnings of a call that must fail."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with pytest.raises((TypeError, ValueError)) as error:
            call()
    assert not isinstance(error.value, NotFittedError)
    parts = [f"{error.value} {error.value.args}", *(str(each.message) for each in heard)]
    return "\n".join(parts)


@every
@pytest.mark.parametrize("kind", WRONG_ROWS)
def test_rows_that_are_no_matrix_of_numbers(cls: Any, kind: str) -> None:
    X, y = rows(cls, N)
    fitted, wrong = make(cls).fit(X, y), WRONG_ROWS[kind]
    stream = make(cls, horizon=N)
    for call in (
        lambda: make(cls).fit(wrong, y),
        lambda: stream.partial_fit(wrong, y[:10], **first_of(cls)),
        lambda: fitted.predict(wrong),
        lambda: fitted.score(wrong, y),
        lambda: fitted.clipping_report(wrong, y),
    ):
        text = said(call)
        assert SECRET not in text and SECRET.replace(".", "") not in text
        assert text.count("\n") == 0 or "fitted without feature names" in text


@every
@pytest.mark.parametrize("kind", WRONG_TARGETS)
def test_targets_that_are_none(cls: Any, kind: str) -> None:
    X, y = rows(cls, N)
    wrong, options = WRONG_TARGETS[kind], {}
    if cls is DPFTRLClassifier:
        options["classes"] = [0, 1]
        if kind in ("text", "own class"):
            wrong = wrong.astype(object)
    if cls is DPFTRLLeastSquares and kind in ("matrix", "frame"):  # targets, but not so many
        options["y_bound"] = [1.0] * 7
    assert SECRET not in said(lambda: make(cls, **options).fit(X, wrong))
    if cls is not DPFTRLClassifier:  # whose report counts rows, whatever their labels
        fitted = make(cls).fit(X, y).set_params(**options)
        assert SECRET not in said(lambda: fitted.clipping_report(X, wrong))


@every
@pytest.mark.parametrize("user", [SECRET, 777125])
def test_a_user_who_comes_again_is_not_shown(cls: Any, user: Any) -> None:
    X, y = rows(cls, N)
    model = make(cls, horizon=N)
    model.partial_fit(X[:10], y[:10], groups=[user, *range(9)], **first_of(cls))
    text = said(lambda: model.partial_fit(X[10:], y[10:], groups=[*range(100, 109), user]))
    assert "one who took part in an earlier step" in text
    assert str(user) not in text
    assert not any(word.isdigit() and len(word) > 12 for word in text.split())  # nor its hash
    model.partial_fit(X[10:], y[10:], groups=range(100, 110))


def test_what_is_public_is_still_said() -> None:
    X, y = rows(CLASSES[1], N)
    for wrong, words in (
        (X[:, 0], "Expected 2D array, got 1D array instead. Reshape your data"),
        (X[None], "Found array with dim 3"),
        (X + 0j, "Complex data not supported"),
        (np.array([[{}] * 3] * N), r"float\(\) argument must be"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            make(CLASSES[1]).fit(wrong, y)
    with pytest.raises(ValueError, match="X has 2 features, but"):
        make(CLASSES[1]).fit(X, y).predict(X[:, :2])
    with pytest.raises(MemoryError), showing_no_entry("X"):
        raise MemoryError
