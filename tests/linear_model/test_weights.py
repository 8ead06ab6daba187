# SPDX-License-Identifier: Apache-2.0
"""Weights of rows and of classes in the estimators by FTRL."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from estimator_cases import CLASSES, first_of, make, rows

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLRegressor

linear = pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])


@linear
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("users", [False, True])
def test_the_first_step_is_that_of_weighted_gradients(cls: Any, users: bool, sparse: bool) -> None:
    X, y = rows(cls, n=10)
    weights = np.random.default_rng(0).uniform(0, 2, 10)
    groups = np.arange(10) // 2 if users else None
    options: dict[str, Any] = {"noise_seed": 1, "learning_rate": 1.0, "clip_norm": 0.3}
    options |= {"fit_intercept": False, "batch_size": 5 if users else 10}
    given = scipy.sparse.csr_array(X) if sparse else X
    found = make(cls, **options).fit(given, y, sample_weight=weights, groups=groups).coef_last_
    none = (
        make(cls, **options)
        .fit(given, y, sample_weight=np.full(10, 1e-12), groups=groups)
        .coef_last_
    )
    slopes = (np.where(y > 0, -0.5, 0.5) if cls is DPFTRLClassifier else -y)[:, np.newaxis]
    gradients = weights[:, np.newaxis] * slopes * X
    if users:
        gradients = gradients.reshape(5, 2, 3).sum(axis=1)
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    gradients *= np.minimum(1.0, 0.3 / norms)
    assert (norms > 0.3).any() and (norms < 0.3).any()
    expected = -gradients.sum(axis=0) / options["batch_size"]
    # Released sums are on a grid of std/128.
    np.testing.assert_allclose(np.ravel(found - none), expected, atol=2e-3)


@linear
def test_ones_change_nothing_and_bad_weights_are_refused_before_the_fit(cls: Any) -> None:
    X, y = rows(cls)
    plain = make(cls, noise_seed=1).fit(X, y)
    np.testing.assert_array_equal(
        make(cls, noise_seed=1).fit(X, y, sample_weight=np.ones(60)).coef_, plain.coef_
    )
    model = make(cls)
    weights = np.ones(60)
    for value in (np.nan, np.inf, -1.0):
        weights[7] = value
        with pytest.raises(ValueError, match=r"sample_weight must be finite and >= 0, .* row 7"):
            model.fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match="compute_regret must be False with weights of rows"):
        make(cls, compute_regret=True).fit(X, y, sample_weight=np.ones(60))
    assert not hasattr(model, "coef_")


@pytest.mark.parametrize("cls", CLASSES)
def test_weights_of_a_stream_keep_slots(cls: Any) -> None:
    X, y = rows(cls)
    found = []
    for value in (0.0, -2.0, np.nan, -np.inf):
        model = make(cls, noise_seed=1, horizon=60)
        weights = np.full(10, 0.5)
        weights[3] = value
        model.partial_fit(X[:10], y[:10], sample_weight=weights, **first_of(cls))
        found.append(np.ravel(model.coef_last_))
    none = X[:10].copy()
    none[3] = np.nan
    model = make(cls, noise_seed=1, horizon=60)
    model.partial_fit(none, y[:10], sample_weight=np.full(10, 0.5), **first_of(cls))
    for one in found:
        np.testing.assert_array_equal(one, np.ravel(model.coef_last_))


def test_class_weights_are_weights_of_rows() -> None:
    X, y = rows(DPFTRLClassifier)
    labels = np.where(y > 0, "yes", "no")
    declared = {"yes": 3.0}
    weights = np.where(y > 0, 3.0, 1.0)
    given = np.random.default_rng(0).uniform(0, 1, 60)
    options: dict[str, Any] = {"noise_seed": 1, "classes": ["no", "yes"]}
    for sample_weight, all_weights in ((None, weights), (given, given * weights)):
        one = make(DPFTRLClassifier, class_weight=declared, **options)
        other = make(DPFTRLClassifier, **options)
        one.fit(X, labels, sample_weight=sample_weight)
        other.fit(X, labels, sample_weight=all_weights)
        np.testing.assert_array_equal(one.coef_, other.coef_)
    stream = make(DPFTRLClassifier, class_weight=declared, horizon=60, **options)
    for i in range(0, 60, 10):
        stream.partial_fit(X[i : i + 10], labels[i : i + 10])
    whole = make(DPFTRLClassifier, class_weight=declared, **options).fit(X, labels)
    np.testing.assert_array_equal(stream.coef_, whole.coef_)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("balanced", "class_weight must be a dict .* would reveal how many"),
        ([1.0, 2.0], "class_weight must be a dict from class to weight, got list"),
        ({1: -1.0}, "class_weight must be a finite number >= 0"),
        ({1: np.nan}, "class_weight must be a finite number >= 0"),
        ({7: 1.0}, r"class_weight must have classes of \[0, 1\] as keys, got 7"),
    ],
)
def test_wrong_class_weights(value: Any, word: str) -> None:
    X, y = rows(DPFTRLClassifier)
    model = make(DPFTRLClassifier, class_weight=value, classes=[0, 1])
    with pytest.raises((TypeError, ValueError), match=word):
        model.fit(X, y)
    assert not hasattr(model, "coef_")


def test_weights_need_rows_in_memory(tmp_path: Any) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    X, y = rows(DPFTRLClassifier)
    pq.write_table(pa.table({"a": X[:, 0], "y": y}), tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="sample_weight must be None unless rows are in memory"):
        make(DPFTRLClassifier, classes=[0, 1]).fit(path, "y", sample_weight=np.ones(60))
    with pytest.raises(ValueError, match="class_weight must be None unless rows are in memory"):
        make(DPFTRLClassifier, classes=[0, 1], class_weight={1: 2.0}).fit(path, "y")


@pytest.mark.parametrize("users", [False, True])
def test_a_row_of_no_class_or_user_counts_as_zero_beside_weights(users: bool) -> None:
    X = np.random.default_rng(0).uniform(-0.5, 0.5, (20, 3))
    y, groups = np.arange(20) % 3, np.array([f"user {i}" for i in range(20)], dtype=object)
    bad = slice(12, 15)
    found = []
    for change in (X, y, groups if users else y):
        kept = X.copy(), y.copy(), groups.copy()
        if change is X:
            kept[0][bad] = np.nan
        elif change is y:
            kept[1][bad] = 7
        else:
            kept[2][bad] = None
        model = DPFTRLClassifier(
            8.0,
            classes=[0, 1, 2],
            horizon=20,
            batch_size=10,
            learning_rate=1.0,
            noise_seed=1,
        )
        for part in (slice(0, 10), slice(10, 20)):  # the second step has outputs other than zero
            given = {"sample_weight": np.full(10, 2.0), "groups": kept[2][part] if users else None}
            model.partial_fit(kept[0][part], kept[1][part], **given)
        found.append(model.coef_last_)
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
