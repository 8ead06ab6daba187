# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of the private estimators: a clear error, and an estimator that stays as it was."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from estimator_cases import (
    CLASSES,
    NAMES,
    Array,
    first_of,
    learned,
    make,
    recorded_noises,
    rows,
    stream,
)

from dpftrl_fast import PrivacyBudget
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model.sources import memory

LINEAR = (DPFTRLRegressor, DPFTRLClassifier)
NUMBERS = (DPFTRLLeastSquares, DPFTRLRegressor)

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)


def refused(model: Any, call: Callable[[], Any], *words: str) -> str:
    """Check that a call is refused in words, and that the estimator stays as it was."""
    own = ("_stream", "_turn")
    before = {name: value for name, value in vars(model).items() if name not in own}
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    after = {name: value for name, value in vars(model).items() if name not in own}
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name] is value, name
    message = str(error.value)
    for word in words:
        assert re.search(word, message), f"{word!r} is not in {message!r}"
    return message


# ---- Parameters ----

NAN, INF = math.nan, math.inf
WRONG: dict[str, tuple[Any, ...]] = {
    "epsilon": (-1.0, 0.0, NAN, INF, True, 1j),
    "delta": (0.0, 1.0, -1e-6, NAN, None),
    "noise_multiplier": (0.0, -1.0, NAN, INF),
    "batch_size": (0, -1, 2.5, True, None, NAN),
    "x_norm_bound": (0.0, -1.0, NAN, INF, True),
    "y_bound": (0.0, -1.0, NAN, INF),
    "radius": (0.0, -1.0, NAN, INF),
    "threads": (0, -1, 1.5),
    "variant": ("neither", None, NAN),
    "average": ("median", None),
    "noise_seed": (-1, 1.5, [1]),
    "fit_intercept": (None, NAN, "no"),
    "horizon": (0, -5, 1.5, NAN),
}
WRONG_LINEAR: dict[str, tuple[Any, ...]] = {
    "epochs": (0, -1, 1.5, NAN, None),
    "learning_rate": (0.0, -1.0, NAN, INF, None, "fast"),
    "clip_norm": (0.0, -1.0, NAN, INF, None),
    "momentum": (-0.1, 1.0, NAN, None),
    "l1": (-1e-9, NAN, INF, None),
    "loss": ("cubic", "", None, NAN),
    "restart_every": (0, -1, 1.5, NAN, "often"),
    "complete": ("some", NAN, 1),
}


def wrong_parameters() -> list[Any]:
    cases = []
    for cls in CLASSES:
        wrong = {**WRONG, **(WRONG_LINEAR if cls in LINEAR else {})}
        if cls is DPFTRLClassifier:
            del wrong["y_bound"]
        for name, values in wrong.items():
            for value in values:
                cases.append(pytest.param(cls, name, value, id=f"{cls.__name__}-{name}-{value!r}"))
    return cases


@pytest.mark.parametrize(("cls", "name", "value"), wrong_parameters())
def test_a_wrong_parameter_is_refused_by_name(cls: Any, name: str, value: Any) -> None:
    parameters = {name: value}
    if name == "noise_multiplier":
        parameters["epsilon"] = None
    model = make(cls, **{"horizon": 60, **parameters})
    assert model.get_params()[name] is value  # the constructor stores, the fit checks
    X, y = rows(cls)
    message = refused(model, lambda: model.fit(X, y), name)
    assert repr(value) in message or str(value) in message or type(value).__name__ in message
    first = {"classes": [0, 1]} if cls is DPFTRLClassifier else {}
    refused(model, lambda: model.partial_fit(X[:10], y[:10], **first), name)
    assert not learned(model)


@every
def test_exactly_one_of_epsilon_and_noise(cls: Any) -> None:
    X, y = rows(cls)
    for epsilon, multiplier in ((1.0, 2.0), (None, None)):
        model = make(cls, epsilon=epsilon, noise_multiplier=multiplier)
        refused(model, lambda m=model: m.fit(X, y), "epsilon", "noise_multiplier")


@every
def test_a_delta_below_the_floor_is_refused_before_the_first_step(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, epsilon=None, noise_multiplier=1.0, delta=1e-30)
    refused(model, lambda: model.fit(X, y), "delta")


def test_bounds_are_not_learned_from_the_data() -> None:
    X, y = rows(DPFTRLLeastSquares)
    for name in ("x_norm_bound", "y_bound"):
        model = make(DPFTRLLeastSquares, **{name: None})
        message = refused(model, lambda m=model: m.fit(X, y), name, "None")
        assert "data" in message or "rows" in message  # the reason
        model.set_params(horizon=60)
        refused(model, lambda m=model: m.partial_fit(X[:10], y[:10]), name)


@every
def test_unknown_names_are_refused_by_the_constructor(cls: Any) -> None:
    with pytest.raises(TypeError):
        make(cls, epsilom=1.0)
    X, y = rows(cls)
    with pytest.raises(TypeError):
        make(cls).fit(X, y, weights=np.ones(60))


# ---- Values: looked at before the first step of a fit in memory, and never in a stream ----


@every
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_names_the_bad_row(cls: Any, value: float, dtype: str) -> None:
    X, y = rows(cls)
    X = X.astype(dtype)
    X[37, 1] = value
    model = make(cls)
    word = "NaN" if math.isnan(value) else "inf"
    refused(model, lambda: model.fit(X, y), "row 37", word, "X")
    refused(model, lambda: model.fit(scipy.sparse.csr_array(X), y), "row 37", word, "X")
    assert not learned(model)


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])
@pytest.mark.parametrize(
    "options",
    [{}, {"verbose": 1}, {"shuffle": True, "random_state": 0}, {"compute_regret": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_nobody_is_told_of_a_step_before_a_bad_row_is_refused(
    cls: Any, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows are looked at in the steps, which must not show how many came before the bad one."""
    X, y = rows(cls)
    X[37, 1] = NAN
    budget = PrivacyBudget(10.0, 1e-5)
    for more in ({}, {"budget": budget}):
        model = make(cls, batch_size=5, **options, **more)
        refused(model, lambda model=model: model.fit(X, y), "row 37", "NaN", "X")
        assert not learned(model)
    assert capsys.readouterr().out == "" and budget.spent == 0.0


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
def test_every_dense_loop_tells_of_a_bad_row(groups: bool, classes: int) -> None:
    X, y = rows(DPFTRLClassifier)
    y = np.arange(len(y)) % classes
    users = np.arange(len(y)) // 2 if groups else None
    model = make(DPFTRLClassifier, batch_size=5, classes=[*range(classes)])
    X[11, 0] = INF
    refused(model, lambda: model.fit(X, y, groups=users), "row 11", "inf", "X")


@pytest.mark.parametrize("cls", LINEAR)
def test_finite_rows_whose_squares_overflow_are_searched_once(
    cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    monkeypatch.setattr(memory, "first_bad", searches.append)
    X, y = rows(cls)
    X[3::10] = 1e200
    make(cls, batch_size=10).fit(X, y, groups=np.arange(len(y)))  # a user's squares are added up
    assert len(searches) == 1 and searches[0].size == X.size


@every
def test_rows_may_be_as_large_as_floats_are(cls: Any) -> None:
    X, y = rows(cls)
    X[3] = np.finfo(np.float64).max  # its norm is not a float, it is no bad row
    assert np.all(np.isfinite(make(cls).fit(X, y).coef_))


@pytest.mark.parametrize("cls", NUMBERS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_fit_names_the_bad_target(cls: Any, value: float) -> None:
    X, y = rows(cls)
    y[41] = value
    model = make(cls)
    refused(model, lambda: model.fit(X, y), "row 41", "y", "NaN" if math.isnan(value) else "inf")


def test_a_label_that_is_no_class_is_refused() -> None:
    X, y = rows(DPFTRLClassifier)
    y[7] = 5
    model = make(DPFTRLClassifier, classes=[0, 1])
    refused(model, lambda: model.fit(X, y), "got another label in row 7")
    labels = y.astype(np.float64)
    labels[7] = NAN
    refused(model, lambda: model.fit(X, labels), "NaN|nan")
    model = make(DPFTRLClassifier)
    refused(model, lambda: model.fit(X, labels), "NaN|nan")


def test_an_explicit_nan_in_sparse_rows() -> None:
    for cls in CLASSES:
        X, y = rows(cls)
        matrix = scipy.sparse.csr_array(X)
        matrix.data[matrix.indptr[12] + 1] = NAN
        model = make(cls)
        refused(model, lambda m=model, X=matrix, y=y: m.fit(X, y), "NaN", "row 12")


def test_one_class() -> None:
    X, _ = rows(DPFTRLClassifier)
    ones = np.ones(60, dtype=int)
    model = make(DPFTRLClassifier)
    refused(model, lambda: model.fit(X, ones), "2 classes", "1 class")
    for classes in ([1], [1, 1], [[0, 1]], [0.0, NAN], []):
        wrong = make(DPFTRLClassifier, classes=classes)
        refused(wrong, lambda m=wrong: m.fit(X, ones), "classes")
    # Declared, both are there whatever the rows are: a refusal would reveal rows.
    model = make(DPFTRLClassifier, classes=[0, 1]).fit(X, ones)
    assert model.classes_.tolist() == [0, 1]
    assert set(model.predict(X)) <= {0, 1}


# ---- Shapes ----


@every
def test_wrong_shapes(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls)
    refused(model, lambda: model.fit(X[0], y[:1]), "[Rr]eshape|2D")
    refused(model, lambda: model.fit(X[None], y), "dim")
    refused(model, lambda: model.fit(X, y[:59]), "60", "59")
    wide = np.column_stack([y, y])
    if cls is DPFTRLLeastSquares:  # it takes several targets
        wide = wide[:, :, np.newaxis]
    refused(model, lambda: model.fit(X, wide), "1d|1-dim|shape|dim 3")
    refused(model, lambda: model.fit(X[:0], y[:0]), r"\(0, 3\)")
    refused(model, lambda: model.fit(X[:, :0], y), "0 feature")
    refused(model, lambda: model.fit(X + 1j, y), "[Cc]omplex")
    refused(model, lambda: model.fit(X, None), "y")
    refused(model, lambda: model.fit([["a", "b"]] * 60, y))


@every
def test_fewer_rows_than_a_batch(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=61)
    refused(model, lambda: model.fit(X, y), "batch_size=61", "60")
    assert make(cls, batch_size=60).fit(X, y).n_steps_ == 1


@every
def test_wrong_number_of_features_at_predict(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls).fit(X, y)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            refused(model, lambda m=method: getattr(model, m)(X[:, :2]), "2 features", "3 features")
            refused(model, lambda m=method: getattr(model, m)(X * NAN), "NaN")
    refused(model, lambda: model.score(X[:, :2], y), "2 features", "3 features")
    with pytest.raises(ValueError, match="not fitted"):  # NotFittedError
        make(cls).predict(X)


@pytest.mark.parametrize("cls", LINEAR)
def test_wrong_groups(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=5)
    users = np.repeat(np.arange(20), 3)
    refused(model, lambda: model.fit(X, y, groups=np.append(users, 20)), r"61", r"60")
    refused(model, lambda: model.fit(X, y, groups=users[:59]), r"59", r"60")
    refused(model, lambda: model.fit(X, y, groups=users[:, None]), r"groups")
    refused(model, lambda: model.fit(X, y, groups=np.where(users == 3, NAN, users)), "groups")
    refused(
        make(cls, batch_size=21), lambda: make(cls, batch_size=21).fit(X, y, groups=users), "users"
    )
    assert model.fit(X, y, groups=users).n_steps_ == 4


@every
def test_a_refused_fit_leaves_the_model_of_an_earlier_one(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls).fit(X, y)
    bad = X.copy()
    bad[5, 0] = NAN
    refused(model, lambda: model.fit(bad, y), "row 5")
    refused(model, lambda: model.fit(X[:, :2], y[:50]))
    model.set_params(epsilon=-1.0)
    refused(model, lambda: model.fit(X, y), "epsilon")
    assert model.predict(X).shape == (60,)


# ---- Streams ----


@every
def test_a_stream_needs_its_horizon(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls)
    refused(model, lambda: model.partial_fit(X[:10], y[:10], **first_of(cls)), "horizon")


@every
def test_the_horizon_is_kept(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=55)
    path = stream(model, X[:55], y[:55], **first_of(cls))
    assert model.n_steps_ == len(path) == 6
    for _ in range(2):
        refused(model, lambda: model.partial_fit(X[:10], y[:10]), "6 declared steps", "epsilon")
        refused(model, lambda: model.partial_fit(X[:1], y[:1]), "6 declared steps")
    assert np.array_equal(
        path[-1], np.append(np.ravel(model.coef_last_), np.ravel(model.intercept_last_))
    )


@every
def test_a_horizon_below_a_batch_is_refused(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=9)
    refused(model, lambda: model.partial_fit(X[:9], y[:9], **first_of(cls)), "batch_size=10", "9")


@every
def test_columns_of_which_some_have_names(cls: Any) -> None:
    X, y = rows(cls)
    frame, model = pd.DataFrame(X, columns=["a", 1, "b"]), make(cls, horizon=60)
    with recorded_noises() as noises:
        refused(model, lambda: model.fit(frame, y), "string names")
        refused(
            model, lambda: model.partial_fit(frame[:10], y[:10], **first_of(cls)), "string names"
        )
    assert not noises


@every
def test_nothing_is_half_advanced(cls: Any) -> None:
    X, y = rows(cls)
    plain, troubled = (make(cls, horizon=60, noise_seed=5) for _ in range(2))
    expected = stream(plain, X, y, **first_of(cls))
    refused(troubled, lambda: troubled.partial_fit(X[:10], y[:9], **first_of(cls)))
    for start in range(0, 60, 10):
        part = slice(start, start + 10)
        if start:
            refused(troubled, lambda s=part: troubled.partial_fit(X[s, :2], y[s]), "2 features")
            refused(troubled, lambda s=part: troubled.partial_fit(X[s][:0], y[s][:0]))
            refused(troubled, lambda s=part: troubled.partial_fit(X[s], y[s][:, None] + [[0, 0]]))
            refused(troubled, lambda s=part: troubled.partial_fit(X[s] + 1j, y[s]))
        troubled.partial_fit(X[part], y[part], **(first_of(cls) if start == 0 else {}))
        got = np.append(np.ravel(troubled.coef_last_), np.ravel(troubled.intercept_last_))
        np.testing.assert_array_equal(got, expected[start // 10])


def test_classes_are_declared_before_a_stream() -> None:
    X, y = rows(DPFTRLClassifier)
    model = make(DPFTRLClassifier, horizon=60)
    refused(model, lambda: model.partial_fit(X[:10], y[:10]), "classes")
    model = make(DPFTRLClassifier, horizon=60, classes=[0, 1])
    refused(model, lambda: model.partial_fit(X[:10], y[:10], classes=[0, 1, 2]), "classes")
    model.partial_fit(X[:10], y[:10])
    refused(model, lambda: model.partial_fit(X[:10], y[:10], classes=[1, 2]), "classes")


@pytest.mark.parametrize("cls", LINEAR)
def test_a_stream_is_one_epoch(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, epochs=2, horizon=60)
    refused(model, lambda: model.partial_fit(X[:10], y[:10], **first_of(cls)), "epochs", "2")


def test_data_are_not_changed() -> None:
    for cls in CLASSES:
        X, y = rows(cls)
        X[0] *= 100.0
        kept: tuple[Array, Array] = X.copy(), y.copy()
        X.flags.writeable = y.flags.writeable = False
        make(cls).fit(X, y)
        stream(make(cls, horizon=60), X, y, **first_of(cls))
        np.testing.assert_array_equal(X, kept[0])
        np.testing.assert_array_equal(y, kept[1])


@pytest.mark.parametrize("cls", LINEAR)
def test_more_rows_than_the_rounding_allows(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(cls)
    monkeypatch.setattr("dpftrl_fast.rounding._ROUNDING", 100 * 2.0**-51)
    model = make(cls, epochs=2)
    refused(model, lambda: model.fit(X, y), "rows of all epochs must be so few", "120 in 12 steps")
    stream = make(cls, horizon=101)
    declared = {} if cls is DPFTRLRegressor else {"classes": [0, 1]}
    refused(stream, lambda: stream.partial_fit(X[:10], y[:10], **declared), "horizon must be so")
    assert make(cls).fit(X, y).n_steps_ == 6
