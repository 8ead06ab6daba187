# SPDX-License-Identifier: Apache-2.0
"""The private estimators in scikit-learn's hands: its checks, clones, pipelines, searches."""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, make, recorded_noises, rows
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import make_column_transformer
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import (
    check_estimator,
    parametrize_with_checks,
)

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.plan.planned_noise import PlannedNoise

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)

#: What no private estimator can pass, whatever its noise.
EXPECTED = {
    "check_fit_score_takes_y": (
        "partial_fit after fit is refused: the epsilon is stated for the declared steps, which are "
        "taken"
    ),
}
_SLOTS = (
    "a row of weight 0 keeps its slot, as any row does: without it batches, their number and so "
    "noise are others"
)
WEIGHTED = {
    "check_sample_weight_equivalence_on_dense_data": _SLOTS,
    "check_sample_weight_equivalence_on_sparse_data": _SLOTS,
}
_FRESH = "every fit has a fresh key: two fits on the same rows differ by their noise"
#: What it cannot pass without a seed, which makes it not private.
EXPECTED_WITHOUT_SEED = EXPECTED | {
    "check_fit_idempotent": _FRESH,
    "check_supervised_y_2d": _FRESH,
    "check_regressors_int": _FRESH,
    "check_regressor_data_not_an_array": _FRESH,
    "check_classifier_data_not_an_array": _FRESH,
}


def expected_of(cls: Any) -> dict[str, str]:
    return EXPECTED | WEIGHTED


def checked(cls: Any, **parameters: Any) -> Any:
    return make(cls, **{"batch_size": 5, "horizon": 10_000, **parameters})


@parametrize_with_checks(
    [checked(cls, noise_seed=0) for cls in CLASSES],
    expected_failed_checks=lambda estimator: expected_of(type(estimator)),
)
def test_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@every
def test_checks_of_scikit_learn_without_a_seed(cls: Any) -> None:
    results = check_estimator(
        checked(cls),
        expected_failed_checks=EXPECTED_WITHOUT_SEED | expected_of(cls),
        on_skip=None,
        on_fail=None,
    )
    assert len(results) > 40
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed
    expected = {r["check_name"] for r in results if r["status"] == "xfail"}
    # With labels for predictions two fits can agree by chance; with numbers they cannot.
    assert EXPECTED.keys() <= expected
    assert "check_fit_idempotent" in expected


# ---- Parameters, clones, pickles ----


@every
def test_parameters_are_stored_as_they_came(cls: Any) -> None:
    given = {
        name: object()
        for name in cls().get_params()  # the constructor looks at nothing
    }
    model = cls(**given)
    for name, value in given.items():
        assert getattr(model, name) is value
    assert clone(make(cls, delta=1e-7)).delta == 1e-7
    wanted = "epsilon delta noise_multiplier batch_size radius x_norm_bound threads noise_seed"
    assert set(wanted.split()) <= given.keys()
    if cls is not DPFTRLLeastSquares:
        wanted = "epochs learning_rate clip_norm momentum l1 random_state loss"
        assert set(wanted.split()) <= given.keys()


@every
def test_kinds_and_tags(cls: Any) -> None:
    model = make(cls)
    assert is_classifier(model) == (cls is DPFTRLClassifier) != is_regressor(model)
    tags = get_tags(model)
    assert tags.non_deterministic and not get_tags(make(cls, noise_seed=1)).non_deterministic
    assert tags.input_tags.sparse and tags.target_tags.required
    kind = tags.classifier_tags if cls is DPFTRLClassifier else tags.regressor_tags
    assert kind.poor_score  # noise is all there is in a model of few rows
    with pytest.raises(NotFittedError):
        model.predict(np.zeros((1, 3)))


@every
def test_attributes(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, epsilon=2.0, delta=1e-7).fit(X, y)
    assert model.epsilon_ <= 2.0 and model.epsilon_ == model.plan_.epsilon(1e-7)
    assert model.epsilon_ > 1.999 and model.delta_ == 1e-7
    assert model.n_steps_ == 6 == model.plan_.steps and model.n_iter_ == 1
    assert model.noise_multiplier_ == model.plan_.noise_multiplier
    assert model.sensitivity_squared_ == model.plan_.sensitivity_squared
    assert model.n_features_in_ == 3 and model.reproducible_ is False
    shape = (1, 3) if cls is DPFTRLClassifier else (3,)
    for name in ("coef_", "coef_average_", "coef_tail_"):
        assert getattr(model, name).shape == shape and getattr(model, name).dtype == np.float64
    first_noise = make(cls, epsilon=None, noise_multiplier=3.0).fit(X, y)
    assert first_noise.noise_multiplier_ == 3.0
    assert first_noise.epsilon_ == first_noise.plan_.epsilon(1e-6)


@every
@pytest.mark.parametrize("average", ["tail", "all", "last"])
def test_predictions_are_of_the_named_average(cls: Any, average: str) -> None:
    X, y = rows(cls)
    model = make(cls, average=average).fit(X, y)
    suffix = {"tail": "_tail_", "all": "_average_", "last": "_"}[average]
    z = X @ np.ravel(getattr(model, f"coef{suffix}"))
    z = z + np.ravel(getattr(model, f"intercept{suffix}"))
    if cls is DPFTRLClassifier:
        np.testing.assert_allclose(model.decision_function(X), z)
        np.testing.assert_array_equal(model.predict(X), model.classes_[(z > 0).astype(int)])
        np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-z)))
        assert model.score(X, y) == accuracy_score(y, model.predict(X))
    else:
        np.testing.assert_allclose(model.predict(X), z)
        assert model.score(X, y) == r2_score(y, model.predict(X))
    np.testing.assert_allclose(model.predict(scipy.sparse.csr_array(X)), model.predict(X))


@every
def test_a_pickle_predicts_the_same(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls).fit(X, y)
    other = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    assert other.plan_ == model.plan_ and other.epsilon_ == model.epsilon_
    assert other.get_params() == model.get_params()


@every
def test_pipelines(cls: Any) -> None:
    X, y = rows(cls)
    halves = FunctionTransformer(lambda X: X / 2)  # public: it learns nothing
    pipeline = make_pipeline(halves, make(cls, noise_seed=1)).fit(X, y)
    direct = make(cls, noise_seed=1).fit(X / 2, y)
    np.testing.assert_array_equal(pipeline.predict(X), direct.predict(X / 2))
    copied = clone(pipeline)
    with pytest.raises(NotFittedError):
        copied.predict(X)
    assert pipeline.score(X, y) == direct.score(X / 2, y)


@every
def test_threads_do_not_change_results(cls: Any) -> None:
    X, y = rows(cls, n=200, p=20)
    one, two = (make(cls, noise_seed=1, threads=n, batch_size=64).fit(X, y) for n in (1, 2))
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_three_classes_and_words() -> None:
    X, y = rows(DPFTRLClassifier)
    words = np.array(["no", "yes", "perhaps"])[y + (X[:, 0] > 0.3)]
    for loss in ("logistic", "multinomial", "hinge"):
        model = make(DPFTRLClassifier, loss=loss).fit(X, words)
        assert model.classes_.tolist() == ["no", "perhaps", "yes"]
        assert model.coef_.shape == (3, 3) and model.intercept_.shape == (3,)
        assert set(model.predict(X)) <= set(model.classes_)
        assert hasattr(model, "predict_proba") == (loss != "hinge")
        if loss != "hinge":
            np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


def test_tasks_are_learned_with_little_noise() -> None:
    for cls in CLASSES:
        X, y = rows(cls, n=4000)
        model = make(cls, epsilon=50.0, batch_size=50).fit(X, y)
        assert model.score(X, y) > 0.8, cls


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "columns first": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": lambda X: X[::-1].copy()[::-1],
    "big-endian": lambda X: X.astype(">f8"),
    "lists": lambda X: X.tolist(),
    "a frame": lambda X: pd.DataFrame(X, columns=list("abc")),
    "CSR": scipy.sparse.csr_array,
    "CSC": scipy.sparse.csc_array,
    "COO": scipy.sparse.coo_array,
    "a CSR matrix": scipy.sparse.csr_matrix,
    "wide indices": lambda X: wide(scipy.sparse.csr_array(X)),
}


def wide(matrix: Any) -> Any:
    """Return a CSR array with int64 columns beside int32 bounds."""
    matrix.indices = matrix.indices.astype(np.int64)
    return matrix


@every
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_rows_in_any_layout_are_the_same_rows(cls: Any, layout: Any) -> None:
    X, y = rows(cls)
    X.setflags(write=False)
    y.setflags(write=False)
    plain = make(cls, noise_seed=1).fit(X, y)
    other = make(cls, noise_seed=1).fit(layout(X), y.astype(y.dtype.newbyteorder(">")))
    np.testing.assert_allclose(other.coef_, plain.coef_, rtol=1e-4)  # float32 noise on a grid
    np.testing.assert_allclose(
        np.asarray(other.predict(layout(X)), np.float64),
        np.asarray(plain.predict(X), np.float64),
        rtol=1e-3,
        atol=1e-6,
    )


@every
def test_columns_of_a_table_are_transformed_by_name(cls: Any) -> None:
    X, y = rows(cls)
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": np.where(X[:, 2] > 0, "u", "v")})
    columns = make_column_transformer(
        ("passthrough", ["a", "b"]),
        (OneHotEncoder(categories=[["u", "v"]]), ["kind"]),  # public: not learned from the rows
    )
    pipeline = make_pipeline(columns, make(cls)).fit(table, y)
    assert pipeline[-1].n_features_in_ == 4
    np.testing.assert_array_equal(
        pipeline.predict(table[["kind", "b", "a"]]), pipeline.predict(table)
    )


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])
def test_folds_of_a_cross_validation_take_their_users_along(cls: Any) -> None:
    X, y = rows(cls)
    users = np.repeat(np.arange(30), 2)
    with pytest.warns(UserWarning, match="up to 3 fits on the same rows"):
        found = cross_validate(
            make(cls), X, y, cv=3, params={"groups": users}, return_estimator=True
        )
    # Rows of a fold are 40, and the users of them at most 30: as rows they would be 4 steps.
    assert all(model.n_steps_ in (2, 3) for model in found["estimator"])


# ---- Searches ----


@pytest.fixture
def noises() -> Iterator[list[PlannedNoise]]:
    with recorded_noises() as made:
        yield made


def searches(cls: Any, **parameters: Any) -> dict[str, Any]:
    model = make(cls, **parameters)
    grid = {"batch_size": [5, 10]}
    pipeline = make_pipeline(FunctionTransformer(), model)
    inner = {f"{cls.__name__.lower()}__batch_size": [5, 10]}
    return {
        "grid": GridSearchCV(model, grid, cv=3),
        "pipeline": GridSearchCV(pipeline, inner, cv=3),
        "random": RandomizedSearchCV(model, grid, n_iter=2, cv=3, random_state=0),
    }


@every
@pytest.mark.parametrize("kind", ["grid", "pipeline", "random"])
def test_a_search_says_up_front_what_it_spends(
    cls: Any, kind: str, noises: list[PlannedNoise]
) -> None:
    X, y = rows(cls)
    search = searches(cls, epsilon=None, noise_multiplier=20.0)[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=r"mu\^2"):
            search.fit(X, y)
    assert not noises  # said before anything was spent
    with pytest.warns(UserWarning, match=r"mu\^2") as seen:
        search.fit(X, y)
    messages = [str(w.message) for w in seen if "mu^2" in str(w.message)]
    assert len(messages) == 1  # once, not at every fit
    assert re.search(r"\b7\b", messages[0])  # 2 candidates, 3 folds, and the refit
    assert "private" in messages[0]  # of the scores on rows held out
    assert len(noises) == 7 * (1 + (cls is DPFTRLLeastSquares))
    assert search.predict(X).shape == (60,)


@every
@pytest.mark.parametrize("kind", ["grid", "pipeline", "random"])
def test_a_search_refuses_a_seed(cls: Any, kind: str, noises: list[PlannedNoise]) -> None:
    X, y = rows(cls)
    with pytest.raises(ValueError, match="noise_seed"):
        searches(cls, noise_seed=3)[kind].fit(X, y)
    assert not noises


@every
def test_a_seed_in_the_grid_is_refused(cls: Any, noises: list[PlannedNoise]) -> None:
    X, y = rows(cls)
    with pytest.raises(ValueError, match="noise_seed"):
        GridSearchCV(make(cls), {"noise_seed": [1, 2]}, cv=3).fit(X, y)
    assert not noises
