# SPDX-License-Identifier: Apache-2.0
"""Streams whose calls have any number of rows: rows keep their slots, and held rows stay inside."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, first_of, make, outcome, recorded_noises, rows

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
SIZES = {
    "single rows": [1] * 55,
    "a batch": [10] * 5 + [5],
    "all": [55],
    "uneven": [7, 8, 1, 24, 3, 12],
    "over the end of batches": [9, 2, 19, 25],
}


def fed(model: Any, X: Any, y: Any, sizes: list[int], cls: Any) -> list[tuple[int, int]]:
    """Feed rows in calls of these sizes; return rows given and steps taken after each."""
    first, seen = first_of(cls), []
    bounds = np.cumsum([0, *sizes])
    for start, stop in itertools.pairwise(bounds):
        model.partial_fit(X[start:stop], y[start:stop], **first)
        first = {}
        seen.append((int(stop), getattr(model, "n_steps_", 0)))
    return seen


def parameters_of(model: Any) -> Any:
    return np.append(np.ravel(model.coef_), np.ravel(model.intercept_))


@every
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_model_does_not_depend_on_the_calls(
    cls: Any, sizes: list[int], sparse: bool, kind: Any
) -> None:
    X, y = rows(cls, n=55)
    data: Any = X.astype(kind)
    data = scipy.sparse.csr_array(data) if sparse else data
    every_step = {"solve_every": 1} if cls is DPFTRLLeastSquares else {}  # as in a stream
    whole = make(cls, noise_seed=2, mechanism="tree", **every_step).fit(data, y)
    model = make(cls, noise_seed=2, mechanism="tree", horizon=55)
    for given, steps in fed(model, data, y, sizes, cls):
        assert steps == (6 if given == 55 else given // 10)
    np.testing.assert_array_equal(parameters_of(model), parameters_of(whole))
    np.testing.assert_array_equal(model.coef_tail_, whole.coef_tail_)
    assert model.epsilon_ == whole.epsilon_ and model.finish() is model


@every
def test_rows_that_are_held_are_those_of_the_call(cls: Any) -> None:
    """The caller fills one buffer again and again."""
    X, y = rows(cls)
    plain, model = (make(cls, noise_seed=2, horizon=60) for _ in range(2))
    fed(plain, X, y, [60], cls)
    buffer, labels = np.empty((4, 3)), np.empty(4, y.dtype)
    first = first_of(cls)
    for start in range(0, 60, 4):
        buffer[:], labels[:] = X[start : start + 4], y[start : start + 4]
        model.partial_fit(buffer, labels, **first)
        buffer[:] = 0.0
        first = {}
    np.testing.assert_array_equal(parameters_of(model), parameters_of(plain))


@every
def test_a_stream_that_ends_early(cls: Any) -> None:
    X, y = rows(cls)
    plain, model = (make(cls, noise_seed=2, horizon=60) for _ in range(2))
    fed(model, X[:24], y[:24], [7, 17], cls)
    assert model.n_steps_ == 2 and model.finish().n_steps_ == 3
    missing = np.concatenate([X[:24], np.full((6, 3), np.nan)])
    labels = np.concatenate([y[:24], y[:6]])
    fed(plain, missing, labels, [30], cls)
    np.testing.assert_array_equal(parameters_of(model), parameters_of(plain))
    assert model.epsilon_ == plain.epsilon_  # that of the declared horizon
    for call in (lambda: model.partial_fit(X[:10], y[:10]), model.finish):
        with pytest.raises(ValueError, match="stopped at step 3 of 6"):
            call()


@every
def test_finish_without_rows(cls: Any) -> None:
    X, y = rows(cls)
    with pytest.raises(ValueError, match="partial_fit"):
        make(cls, horizon=60).finish()
    model = make(cls, horizon=60)
    fed(model, X[:20], y[:20], [20], cls)
    assert model.finish().n_steps_ == 2
    only = make(cls, horizon=60)
    fed(only, X[:3], y[:3], [3], cls)
    assert not hasattr(only, "coef_") and only.finish().n_steps_ == 1
    assert make(cls).fit(X, y).finish().n_steps_ == 6


@every
def test_users_are_not_cut(cls: Any) -> None:
    if cls is DPFTRLLeastSquares:
        return
    X, y = rows(cls)
    model = make(cls, batch_size=2, horizon=6)
    model.partial_fit(X[:4], y[:4], groups=[1, 2, 1, 2], **first_of(cls))
    assert model.n_steps_ == 1
    held = make(cls, batch_size=2, horizon=6)
    held.partial_fit(X[:1], y[:1], **first_of(cls))
    with pytest.raises(ValueError, match="groups must be None"):
        held.partial_fit(X[:2], y[:2], groups=[3, 4])
    assert held.partial_fit(X[1:2], y[1:2]).n_steps_ == 1


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])
def test_a_batch_of_users_has_its_size(cls: Any) -> None:
    X, y = rows(cls)
    model, first = make(cls, batch_size=4, horizon=10), first_of(cls)
    with recorded_noises() as made:
        for users in (range(3), range(5), range(10)):
            n = len(users)
            with pytest.raises(ValueError, match=f"batch_size=4 users, got {n}"):
                model.partial_fit(X[:n], y[:n], groups=[*users], **first)
    assert not made
    model.partial_fit(X[:4], y[:4], groups=range(4), **first)
    model.partial_fit(X[:4], y[:4], groups=range(4, 8))
    with pytest.raises(ValueError, match="between 1 and 2 users"):
        model.partial_fit(X[:3], y[:3], groups=range(8, 11))
    assert model.partial_fit(X[:1], y[:1], groups=[8]).n_steps_ == 3


@every
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_weights_stay_with_their_rows(cls: Any, sizes: list[int]) -> None:
    X, y = rows(cls, n=55)
    weights = np.random.default_rng(3).uniform(0, 1, 55)
    bound = {"sample_weight_bound": 1.0} if cls is DPFTRLLeastSquares else {}
    whole, model = (make(cls, noise_seed=2, horizon=55, **bound) for _ in range(2))
    whole.partial_fit(X, y, sample_weight=weights, **first_of(cls))
    first = first_of(cls)
    for start, stop in itertools.pairwise(np.cumsum([0, *sizes])):
        part = slice(start, stop)
        model.partial_fit(X[part], y[part], sample_weight=weights[part], **first)
        first = {}
    np.testing.assert_array_equal(parameters_of(model), parameters_of(whole))
    unweighted = make(cls, noise_seed=2, horizon=55).partial_fit(X, y, **first_of(cls))
    assert np.any(parameters_of(unweighted) != parameters_of(whole))


@every
def test_rows_of_a_batch_have_weights_or_none(cls: Any) -> None:
    X, y = rows(cls)
    bound = {"sample_weight_bound": 1.0} if cls is DPFTRLLeastSquares else {}
    model = make(cls, horizon=60, **bound)
    model.partial_fit(X[:3], y[:3], sample_weight=np.ones(3), **first_of(cls))
    for n in (4, 10):
        with pytest.raises(ValueError, match="sample_weight or none"):
            model.partial_fit(X[3:n], y[3:n])
    assert model.partial_fit(X[3:10], y[3:10], sample_weight=np.ones(7)).n_steps_ == 1


# ---- Refusals ----


@every
def test_calls_that_are_refused_change_nothing(cls: Any) -> None:
    X, y = rows(cls)
    model, plain = (make(cls, noise_seed=2, horizon=25) for _ in range(2))
    first = first_of(cls)
    fed(plain, X[:25], y[:25], [25], cls)
    with recorded_noises() as made:
        for n in (0, 26):
            with pytest.raises(ValueError, match=f"between 1 and 25 rows.* got {n}"):
                model.partial_fit(X[:n], y[:n], **first)
        assert not made
    model.partial_fit(X[:7], y[:7], **first)
    assert model.n_features_in_ == 3
    for n in (0, 19, 26):
        with pytest.raises(ValueError, match=f"between 1 and 18 rows.* got {n}"):
            model.partial_fit(X[:n], y[:n])
    for call in (
        lambda: model.partial_fit(X[7:9, :2], y[7:9]),
        lambda: model.partial_fit(X[7:9], y[7:10]),
        lambda: model.partial_fit(scipy.sparse.csr_array(X[7:9]), y[7:9]),
    ):
        with pytest.raises(ValueError, match=r"2 features|as many rows|all dense or all sparse"):
            call()
    model.partial_fit(X[7:25], y[7:25])
    np.testing.assert_array_equal(parameters_of(model), parameters_of(plain))
    with pytest.raises(ValueError, match="all 3 declared steps"):
        model.partial_fit(X[:1], y[:1])


@every
def test_an_interruption_between_the_steps_of_a_call_ends_the_stream(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    fed(model, X[:13], y[:13], [13], cls)
    engine: Any = LeastSquares if cls is DPFTRLLeastSquares else GLMRun
    step, calls = engine.step, []

    def interrupted(self: Any, batch: Any) -> None:
        calls.append(batch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        step(self, batch)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(engine, "step", interrupted)
        model.partial_fit(X[13:45], y[13:45])
    for call in (lambda: model.partial_fit(X[13:45], y[13:45]), model.finish):
        with pytest.raises(RuntimeError, match="interrupted"):
            call()
    assert model.n_steps_ == 1


# ---- Privacy ----


def batches_of(cls: Any, X: Any, y: Any, sizes: list[int]) -> tuple[list[Any], list[Any]]:
    """Return the batches that the engine takes, and the counts that a caller sees."""
    engine: Any = LeastSquares if cls is DPFTRLLeastSquares else GLMRun
    step, batches = engine.step, []

    def kept(self: Any, batch: Any) -> None:
        batches.append((np.array(batch.X), np.array(batch.y)))
        step(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "step", kept)
        seen = fed(make(cls, horizon=55), X, y, sizes, cls)
    return batches, seen


@every
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("row", [0, 9, 10, 27, 54])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_row_is_in_its_batch_and_moves_no_other(
    cls: Any, sizes: list[int], row: int, value: float
) -> None:
    X, y = rows(cls, n=55)
    other = X.copy()
    other[row] = value
    (one, seen), (two, again) = (batches_of(cls, data, y, sizes) for data in (X, other))
    assert seen == again and len(one) == len(two) == 6
    for step, ((a, targets), (b, others)) in enumerate(zip(one, two, strict=True)):
        np.testing.assert_array_equal(a, X[10 * step : 10 * step + 10])
        np.testing.assert_array_equal(targets, others)
        changed = [10 * step + int(i) for i in np.flatnonzero(np.any(a != b, axis=1))]
        assert changed == ([row] if row // 10 == step else [])


@every
def test_held_rows_are_never_copied_pickled_or_seen(cls: Any) -> None:
    X, y = rows(cls)
    other = X.copy()
    other[10:17] = 0.123456789
    models = [make(cls, horizon=60, noise_seed=2) for _ in range(2)]
    for model, data in zip(models, (X, other), strict=True):
        fed(model, data[:17], y[:17], [10, 4, 3], cls)
    one, two = (pickle.dumps(model) for model in models)
    assert one == two  # the rows that are held differ
    assert repr(models[0]) == repr(models[1])
    for copied in (copy.copy(models[0]), copy.deepcopy(models[0]), pickle.loads(one)):
        assert "_stream" not in vars(copied)
        for call in (
            lambda copied=copied: copied.partial_fit(X[17:20], y[17:20]),
            copied.finish,
        ):
            with pytest.raises(ValueError, match="stopped at step 1 of 6"):
                call()
    np.testing.assert_array_equal(models[0].predict(X), models[1].predict(X))


@every
def test_no_message_depends_on_held_rows(cls: Any) -> None:
    X, y = rows(cls)
    said = []
    for scale in (1.0, np.nan, 1e300):
        data = X.copy()
        data[:7] *= scale
        model = make(cls, horizon=60)
        fed(model, data[:7], y[:7], [3, 4], cls)
        said.append(
            [
                outcome(lambda model=model: model.partial_fit(X[:54], y[:54])),
                outcome(lambda model=model: model.partial_fit(X[:2, :2], y[:2])),
                outcome(lambda model=model: model.predict(X)),
            ]
        )
    assert said[0] == said[1] == said[2] and all(said[0])
