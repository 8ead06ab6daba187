# SPDX-License-Identifier: Apache-2.0
"""Estimators with each kind of mechanism: what they state, spend, store and copy."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_cases import CLASSES, NAMES, make, rows, stream
from mechanism_cases import MECHANISMS, TOEPLITZ
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Tree
from dpftrl_fast.reference.toeplitz import strategy_matrix

every_class = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
LINEAR = (DPFTRLRegressor, DPFTRLClassifier)


def fits(cls: Any, mechanism: Any) -> bool:
    return cls is not DPFTRLLeastSquares or getattr(mechanism, "restart_every", None) is None


@every_class
@pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)
def test_a_fit_states_its_plan_and_a_stream_makes_the_same_model(cls: Any, mechanism: Any) -> None:
    if not fits(cls, mechanism):
        with pytest.raises(ValueError, match="for least squares, got"):
            make(cls, mechanism=mechanism).fit(*rows(cls))
        return
    X, y = rows(cls)
    options: dict[str, Any] = {"mechanism": mechanism, "noise_seed": 3}
    model = make(cls, **options).fit(X, y)
    assert model.epsilon_ == model.plan_.epsilon(model.delta_) <= 1.0
    if isinstance(mechanism, Tree) and cls is DPFTRLLeastSquares:
        assert model.plan_.mechanism == "tree"
    else:
        assert model.plan_.mechanism == mechanism
    first = {"classes": [0, 1]} if cls is DPFTRLClassifier else {}
    online = make(cls, horizon=len(y), **options)
    path = stream(online, X, y, **first)
    assert np.array_equal(
        path[-1], np.append(np.ravel(model.coef_last_), np.ravel(model.intercept_last_))
    )
    assert online.plan_ == model.plan_
    other = clone(model)
    assert other.mechanism is mechanism or other.mechanism == mechanism
    assert other.get_params()["mechanism"] == mechanism
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.plan_ == model.plan_ and np.array_equal(loaded.predict(X), model.predict(X))
    assert model.set_params(mechanism="tree").mechanism == "tree"


@pytest.mark.filterwarnings("ignore:.*")
@every_class
def test_a_search_over_mechanisms(cls: Any) -> None:
    X, y = rows(cls, n=120)
    grid = {"mechanism": ["tree", BandedInverse((1.0, -0.9)), BufferedToeplitz((0.9,), (0.2,))]}
    search = GridSearchCV(make(cls, epsilon=50.0), grid, cv=2).fit(X, y)
    assert search.best_params_["mechanism"] in grid["mechanism"]
    assert len(search.cv_results_["params"]) == 3


@pytest.mark.parametrize("cls", LINEAR)
def test_auto_is_a_toeplitz_mechanism_of_the_run(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=2).fit(X, y)
    assert not isinstance(model.plan_.mechanism, Tree)
    tree = make(cls, batch_size=2, mechanism="tree").fit(X, y)
    assert tree.plan_.mechanism == Tree()
    assert tree.plan_ == make(cls, batch_size=2, restart_every=None).fit(X, y).plan_


def test_a_stream_of_least_squares_has_the_mechanism_of_all_models() -> None:
    X, y = rows(DPFTRLLeastSquares)
    model = make(DPFTRLLeastSquares, batch_size=2, horizon=60)
    stream(model, X, y)
    assert isinstance(model.plan_.mechanism, BufferedToeplitz)
    assert [solve.step for solve in model.solves_] == [*range(1, 31)]
    assert model.solve_every is None  # the parameter is the caller's
    assert make(DPFTRLLeastSquares, batch_size=2).fit(X, y).plan_.mechanism == "tree"
    regret = make(DPFTRLLeastSquares, batch_size=2, compute_regret=True).fit(X, y)
    assert isinstance(regret.plan_.mechanism, BufferedToeplitz)


@pytest.mark.parametrize("mechanism", TOEPLITZ.values(), ids=TOEPLITZ)
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_one_row_changes_is_what_the_plan_says(
    mechanism: Any, shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    step = FTRL.step

    def record(self: Any, gradient_sum: Any, noise: Any) -> Any:
        seen.append(gradient_sum.copy())
        return step(self, np.zeros_like(gradient_sum), np.zeros_like(noise))

    monkeypatch.setattr(FTRL, "step", record)
    monkeypatch.setattr(
        "dpftrl_fast.linear_model.sources.memory.refuse_bad_rows", lambda rows: None
    )
    X, y = rows(DPFTRLRegressor, n=20, seed=2)
    X *= 9.0
    model = make(
        DPFTRLRegressor, clip_norm=0.05, batch_size=5, noise_seed=3, epochs=3, shuffle=shuffle,
        random_state=1, mechanism=mechanism,
    )  # fmt: skip

    def sums(X: Any) -> Any:
        seen.clear()
        model.fit(X, y)
        return np.array(seen) / 0.05

    plain, largest = sums(X), 0.0
    kind, first, second = mechanism.engine
    n = mechanism.restart_every or 12
    C = np.kron(np.eye(12 // n), strategy_matrix(kind, first, second, steps=n))
    for row in range(20):
        change = plain - sums(np.where(np.arange(20)[:, None] == row, np.nan, X))
        assert np.count_nonzero(np.linalg.norm(change, axis=1)) <= 3
        # G + C^-1 z is as private as C G + z.
        largest = max(largest, float(np.sum((C @ change) ** 2)))
    assert 0.0 < largest <= model.sensitivity_squared_


def test_options_of_a_tree_are_refused_with_another_mechanism() -> None:
    taps = TOEPLITZ["two taps"]
    for cls in LINEAR:
        for option in ({"restart_every": 2}, {"complete": True}, {"variant": "vanilla"}):
            with pytest.raises(ValueError, match="must come with mechanism='tree'"):
                make(cls, mechanism=taps, **option).fit(*rows(cls))
    for option in ({"complete": "all"}, {"variant": "vanilla"}):
        with pytest.raises(ValueError, match="must come with mechanism='tree'"):
            make(DPFTRLLeastSquares, mechanism=taps, **option).fit(*rows(DPFTRLLeastSquares))
    for cls in CLASSES:
        with pytest.raises(ValueError, match="mechanism must be 'auto', 'tree' or a mechanism"):
            make(cls, mechanism="best").fit(*rows(cls))
        with pytest.raises(TypeError, match="mechanism must be"):
            make(cls, mechanism=0.5).fit(*rows(cls))


def test_a_plan_file_has_the_mechanism(tmp_path: Path) -> None:
    model = make(DPFTRLRegressor, mechanism=TOEPLITZ["two buffers"]).fit(*rows(DPFTRLRegressor))
    assert type(model.plan_).from_dict(model.plan_.to_dict()) == model.plan_
