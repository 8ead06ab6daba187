# SPDX-License-Identifier: Apache-2.0
"""Batches, steps and refusals of the private estimators do not depend on values."""

from __future__ import annotations

import warnings
from itertools import chain
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, Array, first_of, make, outcome, rows, stream

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
linear = pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])


@every
@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_do_not_depend_on_values(
    cls: Any, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"shuffle": shuffle, "random_state": 8}
    if cls is not DPFTRLLeastSquares:
        options |= {"epochs": 3, "restart_every": 6}
    places: list[list[float]] = []

    def tagged(X: Array) -> Array:
        return np.column_stack([np.arange(len(X)) / 1e4, X])

    engine: Any = LeastSquares if cls is DPFTRLLeastSquares else GLMRun
    step = engine.step

    def record(self: Any, batch: Any) -> None:
        places.append(np.round(batch.X[:, 0] * 1e4).tolist())
        step(self, batch)

    monkeypatch.setattr(engine, "step", record)

    def order(X: Array, y: Array) -> list[list[float]]:
        places.clear()
        make(cls, batch_size=10, **options, **first_of(cls)).fit(tagged(X), y)
        return list(places)

    X, y = rows(cls, n=55)
    expected = order(X, y)
    assert [len(place) for place in expected] == [10, 10, 10, 10, 10, 5] * (len(expected) // 6)
    for first in range(0, len(expected), 6):
        assert sorted(chain.from_iterable(expected[first : first + 6])) == list(range(55))
    if not shuffle:
        assert expected[0] == list(range(10))
    for other in (np.zeros_like(X), X[::-1], X * 1e300, np.full_like(X, -5e-324)):
        assert order(other, y[::-1]) == expected
        assert order(other, np.zeros_like(y)) == expected


WORST: dict[str, Any] = {
    "NaN": np.nan,
    "infinity": np.inf,
    "minus infinity": -np.inf,
    "all infinite": [np.inf, -np.inf, np.nan],
}


@pytest.mark.usefixtures("fine_grid")
@every
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bad_row_of_a_stream_keeps_its_slot(cls: Any, sparse: bool, dtype: str) -> None:
    X, y = rows(cls)
    X = X.astype(dtype)

    def run(X: Array, y: Array) -> Array:
        model = make(cls, horizon=60, noise_seed=2, fit_intercept=False)
        path = stream(model, scipy.sparse.csr_array(X) if sparse else X, y, **first_of(cls))
        assert model.n_steps_ == 6
        return np.array(path)

    empty = X.copy()
    empty[23] = 0.0  # without an intercept a row of zeros has no gradient
    expected = run(empty, y)
    plain = run(X, y)
    assert np.array_equal(expected[:2], plain[:2]) and not np.array_equal(expected, plain)
    for values in WORST.values():
        bad = X.copy()
        bad[23] = X[23]
        bad[23, 1:] = values if np.isscalar(values) else values[1:]
        np.testing.assert_array_equal(run(bad, y), expected)
    targets = y.astype(np.float64)
    for value in (np.nan,) if cls is not DPFTRLClassifier else (np.nan, 7.0, np.inf, -1.0):
        targets[23] = value
        np.testing.assert_array_equal(run(X, targets), expected)
    if cls is not DPFTRLClassifier:
        for value in (np.inf, -np.inf):
            targets[23] = value
            np.testing.assert_array_equal(run(X, targets), expected)


@every
def test_a_stream_of_nothing_but_bad_rows(cls: Any) -> None:
    X, y = np.full((60, 3), np.nan), np.full(60, np.nan)
    model = make(cls, horizon=60)
    path = stream(model, X, y, **first_of(cls))
    assert model.n_steps_ == 6 and np.all(np.isfinite(path))
    assert model.epsilon_ <= 1.0


@every
@pytest.mark.parametrize("factor", [1e300, 1e-320, np.finfo(np.float64).max])
def test_no_value_of_a_stream_is_spoken_of(cls: Any, factor: float) -> None:
    X, y = rows(cls)
    with np.errstate(all="ignore"):
        X = X * factor
        if cls is not DPFTRLClassifier:
            y = np.sign(y) * factor
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "this model may not learn")  # of public facts
        for data in (X, X.clip(-3e38, 3e38).astype(np.float32), scipy.sparse.csr_array(X)):
            path = stream(make(cls, horizon=60), data, y, **first_of(cls))
            assert np.all(np.isfinite(path))


@every
def test_entries_of_one_column_are_one_entry(cls: Any) -> None:
    X, y = rows(cls)
    plain = scipy.sparse.csr_array(X)
    twice = scipy.sparse.csr_array(
        (
            np.repeat(plain.data, 2) * np.tile([3.0, -2.0], plain.nnz),
            np.repeat(plain.indices, 2),
            2 * plain.indptr,
        ),
        shape=plain.shape,
    )
    assert twice.nnz == 2 * plain.nnz
    bound = {"x_norm_bound": 0.5, "noise_seed": 1}  # of the sums, not of the parts
    one, other = make(cls, **bound).fit(plain, y), make(cls, **bound).fit(twice, y)
    np.testing.assert_allclose(other.coef_, one.coef_, rtol=1e-5)
    assert twice.nnz == 2 * plain.nnz  # the caller's matrix is as it was


@every
def test_a_stream_keeps_to_what_was_declared_at_its_start(cls: Any) -> None:
    X, y = rows(cls)
    expected = stream(make(cls, horizon=60, noise_seed=1), X, y, **first_of(cls))
    model = make(cls, horizon=60, noise_seed=1)
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    spent = model.epsilon_, model.noise_multiplier_
    changed = {"epsilon": 100.0, "horizon": 600, "noise_seed": None, "x_norm_bound": 9.0}
    model.set_params(**changed)
    np.testing.assert_array_equal(stream(model, X, y), expected[1:])
    assert (model.epsilon_, model.noise_multiplier_) == spent and model.reproducible_
    with pytest.raises(ValueError, match="6 declared steps"):
        model.partial_fit(X[:10], y[:10])


@every
@pytest.mark.parametrize("value", ["secret", None, 10**400, {}, np.nan], ids=type)
def test_whether_objects_are_taken_does_not_depend_on_their_values(cls: Any, value: Any) -> None:
    X, y = rows(cls)
    first = first_of(cls)

    def fed(X: Any, y: Any) -> Any:
        model = make(cls, horizon=60)
        return outcome(lambda: model.partial_fit(X[:10], y[:10], **first))

    good = X.astype(object)
    bad = good.copy()
    bad[4, 1] = value
    assert fed(bad, y) == fed(good, y)
    good = y.astype(object)
    bad = good.copy()
    bad[4] = value
    assert fed(X, bad) == fed(X, good)


@pytest.mark.parametrize("value", ["c", "", "b" * 40])
def test_an_unknown_label_of_a_stream_keeps_its_slot(value: str) -> None:
    X, y = rows(DPFTRLClassifier)
    labels = np.where(y > 0, "a", "b")
    paths = []
    for other in (value, "zzz"):
        unknown = np.where(np.arange(60) == 12, other, labels)
        model = make(DPFTRLClassifier, horizon=60, noise_seed=1)
        paths.append(stream(model, X, unknown, classes=["a", "b"]))
    np.testing.assert_array_equal(*paths)


SAME_USER: dict[str, tuple[Any, Any]] = {
    "plain": ([5, 7, 5, 7], [5, 5, 8, 8]),
    "beside a negative one": ([5, 7, 5, 7], [-1, 5, 5, 5]),
    "after a negative one": ([-1, 7, 7, 7], [7, 8, 8, 8]),
    "bytes": ([5, 7, 5, 7], np.array([5, 8, 8, 8], dtype=np.uint8)),
    "floats": ([5, 7, 5, 7], np.array([5.0, 8.0, 8.0, 8.0])),
    "objects": ([5, 7, 5, 7], np.array([5, 8, 8, 8], dtype=object)),
    "wide": ([2**63, 1, 1, 1], np.array([2**63, 3, 3, 3], dtype=np.uint64)),
    "words": (["a", "b", "b", "b"], ["a", "ccc", "ccc", "ccc"]),
    "words as objects": (["a", "b", "b", "b"], np.array(["a", "c", "c", "c"], dtype=object)),
}


@linear
@pytest.mark.parametrize(("first", "second"), SAME_USER.values(), ids=SAME_USER.keys())
def test_a_user_takes_part_once_in_a_stream(cls: Any, first: Any, second: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=2, horizon=10)
    model.partial_fit(X[:4], y[:4], groups=first, **first_of(cls))
    before = model.coef_
    with pytest.raises((TypeError, ValueError)):
        model.partial_fit(X[:4], y[:4], groups=second)
    assert model.coef_ is before and model.n_steps_ == 1
    others = ["x", "y", "y", "y"] if isinstance(first[0], str) else [21, 22, 22, 22]
    assert model.partial_fit(X[:4], y[:4], groups=others).n_steps_ == 2


@linear
def test_a_stream_is_of_users_or_of_rows(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=2, horizon=10)
    model.partial_fit(X[:4], y[:4], groups=[5, 7, 5, 7], **first_of(cls))
    # A user could be in several batches of rows.
    with pytest.raises(ValueError, match=r"groups|mixture"):
        model.partial_fit(X[:2], y[:2])
    model = make(cls, batch_size=2, horizon=10).partial_fit(X[:2], y[:2], **first_of(cls))
    with pytest.raises(ValueError, match=r"groups|mixture"):
        model.partial_fit(X[:4], y[:4], groups=[5, 7, 5, 7])


@linear
def test_users_of_a_stream_make_the_model_of_a_fit(cls: Any) -> None:
    X, y = rows(cls)
    users = np.repeat(np.arange(20), 3)
    options: dict[str, Any] = {"batch_size": 5, "noise_seed": 6, "learning_rate": 0.5}
    whole = make(cls, **options).fit(X, y, groups=users)
    model = make(cls, **options, horizon=20)
    for start in range(0, 60, 15):
        part = slice(start, start + 15)
        model.partial_fit(
            X[part], y[part], groups=users[part], **(first_of(cls) if start == 0 else {})
        )
    for name in ("coef_", "coef_average_", "coef_tail_", "intercept_", "epsilon_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(whole, name))


@every
def test_a_stream_makes_the_model_of_a_fit(cls: Any) -> None:
    X, y = rows(cls, n=55)
    for data in (X, X.astype(np.float32), scipy.sparse.csr_array(X)):
        whole = make(cls, noise_seed=6, mechanism="tree", **first_of(cls)).fit(data, y)
        model = make(cls, noise_seed=6, mechanism="tree", horizon=55)
        stream(model, data, y, **first_of(cls))
        for name in ("coef_", "intercept_", "epsilon_", "noise_multiplier_", "n_steps_"):
            np.testing.assert_array_equal(getattr(model, name), getattr(whole, name))
