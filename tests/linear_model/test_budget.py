# SPDX-License-Identifier: Apache-2.0
"""Fits of the estimators inside privacy budgets: every one is charged, before its first step."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, first_of, learned, make, rows
from meta_cases import CASES, EPSILON, SINGLE, regressor
from meta_cases import X as ROWS
from meta_cases import Y as NUMBERS
from sklearn.base import clone
from sklearn.ensemble import AdaBoostRegressor, BaggingRegressor
from sklearn.model_selection import GridSearchCV, cross_validate

from dpftrl_fast import BudgetExceeded, PrivacyBudget
from dpftrl_fast.accounting import compose
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLRegressor
from dpftrl_fast.linear_model.sources.memory import MemoryRows
from dpftrl_fast.linear_model.sources.source import RowSource

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
DELTA = 1e-6


def budget(epsilon: float = 100.0, **options: Any) -> PrivacyBudget:
    return PrivacyBudget(epsilon, DELTA, **options)


class Counted:
    """Rows that know their shape and count how often they are read."""

    def __init__(self, X: Any, meanwhile: Callable[[], None] | None = None) -> None:
        self.X, self.shape, self.dtype, self.read = X, X.shape, X.dtype, 0
        self.meanwhile = meanwhile

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.read += 1
        if self.meanwhile is not None:
            self.meanwhile()
        return self.X


class Source(RowSource):
    """A source of rows that calls a function before it feeds them."""

    def __init__(self, X: Any, y: Any, before: Callable[[], None]) -> None:
        self.inner, self.before = MemoryRows(X, y), before
        self.units = self.rows = self.inner.units
        self.n_features = self.inner.n_features

    def feed(self, run: Any, order: Iterable[Any], encode: Any, progress: Any) -> None:
        self.before()
        self.inner.feed(run, order, encode, progress)


# ---- Charges ----


@every
def test_the_guarantee_of_a_fit_is_charged(cls: Any) -> None:
    X, y = rows(cls)
    with budget() as held:
        models = [make(cls, epsilon=0.5).fit(X, y), make(cls, epsilon=0.25).fit(X, y)]
    assert held.spent == compose(models).epsilon(DELTA)
    assert [row.epsilon for row in held.table()] == [model.epsilon_ for model in models]
    make(cls).fit(X, y)  # outside
    assert len(held.table()) == 2
    assert held.table()[0].label == (
        f"{cls.__name__}, 60 rows or users, epsilon 0.5, batch size 10, epochs 1"
    )


@every
def test_the_parameter_charges_fits_everywhere(cls: Any) -> None:
    X, y = rows(cls)
    held, outer = budget(), budget(99.0)
    model = make(cls, epsilon=None, noise_multiplier=20.0, budget=held)
    clone(model).fit(X, y)
    assert "noise multiplier 20.0" in held.table()[0].label
    with outer, held:
        model.fit(X, y)
    assert (len(held.table()), len(outer.table())) == (2, 1)
    assert held.spent == compose([model, model]).epsilon(DELTA)


@pytest.mark.parametrize("name", CASES)
def test_all_fits_of_a_meta_estimator_are_charged(name: str) -> None:
    case = CASES[name]
    with budget() as held:
        case.call()  # and without a warning
    count = len(held.table())
    assert count == case.fits or (case.fits < 0 < count <= (case.most or 0))
    assert all(row.epsilon <= 0.2 for row in held.table())


@pytest.mark.parametrize("name", SINGLE)
def test_wrappers_of_one_fit_are_charged_once(name: str) -> None:
    with budget() as held:
        SINGLE[name]()
    assert [row.epsilon for row in held.table()] == [pytest.approx(EPSILON, abs=1e-9)]


PROCESSES = """
import json, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "this model may not learn|classes is not given")
import joblib
from dpftrl_fast import PrivacyBudget
from meta_cases import *
from sklearn.base import clone

calls = {
    "cross_validate": lambda: cross_validate(regressor(), X, Y, cv=3, n_jobs=2),
    "GridSearchCV": lambda: search(squares(), {"epsilon": [0.1, 0.2]}, n_jobs=2).fit(X, Y),
    "OneVsRest": lambda: OneVsRestClassifier(classifier(), n_jobs=2).fit(X, THREE),
    "search of OneVsRest": lambda: search(
        OneVsRestClassifier(classifier(batch_size=5), n_jobs=2), {"estimator__epsilon": [0.1, 0.2]},
        n_jobs=2).fit(X, THREE),
    "BaggingRegressor": lambda: BaggingRegressor(
        regressor(), n_estimators=4, bootstrap=False, n_jobs=2).fit(X, Y),
    "RFECV": lambda: len(RFECV(regressor(), cv=3, step=2, n_jobs=2).fit(X, Y).ranking_),
    "stack": lambda: stack(n_jobs=2).fit(X, Y),
    "own": lambda: joblib.Parallel(2)(joblib.delayed(regressor().fit)(X, Y) for _ in range(4)),
}
if __name__ == "__main__":
    found = {}
    for backend in sys.argv[1:]:
        with joblib.parallel_backend(backend):
            for name, call in calls.items():
                with PrivacyBudget(100.0, 1e-6) as budget:
                    call()
                found[f"{backend} {name}"] = len(budget.table())
    with PrivacyBudget(100.0, 1e-6) as inside:
        kept = cross_validate(regressor(), X, Y, cv=3, n_jobs=2, return_estimator=True)["estimator"]
    for model in kept:
        clone(model).fit(X, Y)  # outside, though it comes from a worker
        model.fit(X, Y)
    found["after the block"] = len(inside.table())
    outer = PrivacyBudget(100.0, 1e-6)
    cross_validate(regressor(budget=outer), X, Y, cv=3, n_jobs=2)
    found["parameter"] = len(outer.table())
    print(json.dumps(found))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "backend",
    [
        "loky",
        pytest.param("multiprocessing", marks=pytest.mark.slow),
        pytest.param("threading", marks=pytest.mark.slow),
    ],
)
def test_fits_in_other_processes_and_threads_are_charged(backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROCESSES)
    support = str(Path(__file__).parents[1] / "support")
    paths = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(program), backend],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    counts = {"cross_validate": 3, "GridSearchCV": 7, "OneVsRest": 3, "search of OneVsRest": 21,
              "BaggingRegressor": 4, "stack": 8, "own": 4}  # fmt: skip
    for name, count in counts.items():
        assert found[f"{backend} {name}"] == count, name
    # Three folds of two rounds, one or two rounds on all rows, and the fit on the chosen features.
    assert found[f"{backend} RFECV"] in (8, 9)
    assert (found["after the block"], found["parameter"]) == (3, 3)


# ---- Refusals ----


@every
@pytest.mark.parametrize("users", [False, True])
def test_a_fit_beyond_the_budget_is_refused_before_a_row_is_read(cls: Any, users: bool) -> None:
    X, y = rows(cls)
    given = {"groups": np.arange(60) // 2} if users else {}
    counted = Counted(X)
    model = make(cls, epsilon=0.5).fit(X, y)
    before = pickle.dumps(model)
    with budget(0.4) as held, pytest.raises(BudgetExceeded) as caught:
        model.fit(counted, y, **given)
    assert counted.read == 0 and held.table() == [] and pickle.dumps(model) == before
    assert caught.value.asked == pytest.approx(0.5, abs=1e-6) and caught.value.left == 0.4
    with budget(0.5) as held:
        model.fit(counted, y, **given)
    assert counted.read > 0 and len(held.table()) == 1


@every
def test_a_fit_whose_budget_another_takes_meanwhile_is_refused_before_its_first_step(
    cls: Any,
) -> None:
    X, y = rows(cls)
    held = budget(0.5)
    rival = make(cls, epsilon=0.5, budget=held)
    taken: list[Any] = []

    def take() -> None:
        if not taken:
            taken.append(rival)
            rival.fit(X, y)

    model = make(cls, epsilon=0.5, budget=held, **first_of(cls))
    with pytest.raises(BudgetExceeded):
        model.fit(Counted(X, take), y)
    assert learned(model) == set() and len(held.table()) == 1
    steps: list[Any] = []
    with pytest.raises(BudgetExceeded):
        model.fit(Source(X, y, lambda: steps.append(1)), y)
    assert steps == []


@every
def test_a_fit_that_is_refused_for_another_reason_is_not_charged(cls: Any) -> None:
    X, y = rows(cls)
    bad = X.copy()
    bad[7, 1] = np.nan
    with budget() as held:
        for call in (
            lambda: make(cls).fit(bad, y),
            lambda: make(cls).fit(X, y[:-1]),
            lambda: make(cls).fit(X[:, 0], y),
            lambda: make(cls, batch_size=61).fit(X, y),
            lambda: make(cls, delta=2.0).fit(X, y),
            lambda: make(cls).fit(object(), y),
        ):
            with pytest.raises((TypeError, ValueError)):
                call()
    assert held.table() == []


@every
def test_a_seed_is_refused(cls: Any) -> None:
    X, y = rows(cls)
    stream = make(cls, noise_seed=1, horizon=60)
    with budget() as held:
        with pytest.raises(ValueError, match="noise_seed must be None inside a privacy budget"):
            make(cls, noise_seed=1).fit(X, y)
        with pytest.raises(ValueError, match="noise_seed must be None inside a privacy budget"):
            stream.partial_fit(X[:10], y[:10], **first_of(cls))
    assert held.table() == []
    with pytest.raises(TypeError, match="budget must be a PrivacyBudget or None, got float"):
        make(cls, budget=1.0).fit(X, y)


@every
def test_a_fitted_estimator_with_a_seed_is_not_spent(cls: Any) -> None:
    X, y = rows(cls)
    spent_on = budget()
    with pytest.raises(ValueError, match="must have a fresh key to be private"):
        spent_on.spend(make(cls, noise_seed=1).fit(X, y))
    assert spent_on.spent == 0.0
    spent_on.spend(make(cls).fit(X, y))
    assert len(spent_on.table()) == 1


@pytest.mark.filterwarnings("ignore:When fitting BaggingRegressor with sample_weight")
def test_ensembles_that_draw_rows_several_times_are_refused() -> None:
    bagging = BaggingRegressor(regressor(), n_estimators=2)
    calls = {
        "bagging": lambda: bagging.fit(ROWS, NUMBERS),
        "boosting": lambda: AdaBoostRegressor(regressor()).fit(ROWS, NUMBERS),
        "weights": lambda: BaggingRegressor(regressor(), n_estimators=2, bootstrap=False).fit(
            ROWS, NUMBERS, sample_weight=np.linspace(1, 2, len(NUMBERS))
        ),
        "folds": lambda: cross_validate(bagging, ROWS, NUMBERS, cv=3, error_score="raise"),
        "search": lambda: GridSearchCV(bagging, {"n_estimators": [1, 2]}, cv=3).fit(ROWS, NUMBERS),
    }
    for name, call in calls.items():
        with budget() as held, pytest.raises(ValueError, match="each row at most once"):
            call()
        assert held.table() == [], name
    for call in (calls["bagging"], calls["boosting"], calls["weights"]):
        with pytest.warns(UserWarning, match="draws rows with replacement or by weights"):
            call()


def test_a_search_ends_at_the_first_fit_beyond_the_budget() -> None:
    with budget() as counting:
        regressor().fit(ROWS, NUMBERS)
    held = budget(compose([counting] * 4).epsilon(DELTA))
    search = GridSearchCV(regressor(), {"momentum": [0.0, 0.5]}, cv=3, error_score="raise")
    with held, pytest.raises(BudgetExceeded):
        search.fit(ROWS, NUMBERS)
    assert len(held.table()) == 4 and held.spent <= held.epsilon


# ---- Crashes ----


@every
def test_the_charge_is_on_the_disk_before_the_first_step(cls: Any, tmp_path: Path) -> None:
    X, y = rows(cls)
    held = budget(path=tmp_path / "budget")
    seen: list[int] = []
    source = Source(X, y, lambda: seen.append((tmp_path / "budget").read_bytes().count(b"\n")))
    with held:
        make(cls, **first_of(cls)).fit(source, y)
    assert seen == [2]  # the terms and the charge


KILLED = """
import os, signal, sys
from test_budget import *
X, y = rows(DPFTRLRegressor)
with budget(path=sys.argv[1]):
    regressor().fit(Source(X, y, lambda: os.kill(os.getpid(), signal.SIGKILL)), y)
"""


@pytest.mark.process
def test_a_fit_that_is_killed_before_its_first_step_stays_charged(tmp_path: Path) -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "budget")],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    (row,) = PrivacyBudget.open(tmp_path / "budget").table()
    assert row.epsilon == pytest.approx(EPSILON, abs=1e-9)


def test_an_interrupted_fit_stays_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    step = GLMRun.step

    def stops(run: Any, batch: Any) -> None:
        if run.steps_taken == 2:
            raise KeyboardInterrupt
        step(run, batch)

    monkeypatch.setattr(GLMRun, "step", stops)
    model = regressor()
    with budget() as held, pytest.raises(KeyboardInterrupt):
        model.fit(ROWS, NUMBERS)
    assert len(held.table()) == 1 and learned(model) == set()


# ---- Streams ----


@every
def test_a_stream_is_charged_in_full_at_its_first_step(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, epsilon=0.5, horizon=60)
    with budget() as held:
        for start in range(0, 60, 10):
            part = slice(start, start + 10)
            model.partial_fit(X[part], y[part], **(first_of(cls) if start == 0 else {}))
            assert [row.epsilon for row in held.table()] == [model.epsilon_]
    assert held.spent == model.plan_.epsilon(DELTA)


@every
def test_a_stream_that_comes_into_a_block_is_charged_there(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, epsilon=0.5, horizon=60)
    small, large, first = budget(0.4), budget(), budget(99.0)
    with first:
        model.partial_fit(X[:10], y[:10], **first_of(cls))
    coefficients = model.coef_.copy()
    with small, pytest.raises(BudgetExceeded):
        model.partial_fit(X[10:20], y[10:20])
    assert model.n_steps_ == 1 and np.array_equal(model.coef_, coefficients)
    with large, first:
        model.partial_fit(X[10:20], y[10:20])
        model.partial_fit(X[20:30], y[20:30])
    model.partial_fit(X[30:40], y[30:40])
    assert [len(one.table()) for one in (small, large, first)] == [0, 1, 1]


@every
def test_a_stream_is_refused_before_its_batch_is_read(cls: Any) -> None:
    X, y = rows(cls)
    counted = Counted(X[:10])
    model = make(cls, epsilon=0.5, horizon=60)
    with budget(0.4) as held, pytest.raises(BudgetExceeded):
        model.partial_fit(counted, y[:10], **first_of(cls))
    assert counted.read == 0 and held.table() == [] and "_stream" not in vars(model)
    with budget() as held:
        with pytest.raises(ValueError, match="between 1 and 60 rows"):
            model.partial_fit(np.tile(X, (2, 1)), np.tile(y, 2), **first_of(cls))
        assert held.table() == []
        bad = X[:10].copy()
        bad[3] = np.nan  # keeps its slot
        model.partial_fit(bad, y[:10], **first_of(cls))
    assert len(held.table()) == 1 and model.n_steps_ == 1


# ---- Neighbours ----


@every
def test_charges_and_refusals_do_not_depend_on_values(cls: Any) -> None:
    X, y = rows(cls)
    large, other = X.copy(), y.copy()
    large[5], other[5] = 1e300, y[5] * 0 + 1
    zero = X.copy()
    zero[5] = 0.0
    said = []
    for data, targets in ((X, y), (large, other), (zero, y), (scipy.sparse.csr_array(X), y)):
        with budget(0.8) as held:
            make(cls, epsilon=0.5).fit(data, targets)
            with pytest.raises(BudgetExceeded) as caught:
                make(cls, epsilon=0.7).fit(data, targets)
        said.append((held.table(), str(held), str(caught.value)))
    assert said[1:] == said[:1] * 3


@every
def test_bad_rows_of_a_source_are_charged_alike(cls: Any) -> None:
    X, y = rows(cls)
    bad = X.copy()
    bad[5] = np.nan
    tables = []
    for data in (X, bad):
        with budget() as held:
            model = make(cls, **first_of(cls)).fit(Source(data, y, lambda: None), y)
        assert model.n_steps_ == 6
        tables.append(held.table())
    assert tables[0] == tables[1]


# ---- Copies and pickles ----


@every
def test_copies_and_pickles_share_the_budget(cls: Any) -> None:
    X, y = rows(cls)
    held = budget()
    model = make(cls, budget=held).fit(X, y)
    stored = io.BytesIO()
    joblib.dump(model, stored)
    stored.seek(0)
    copies = [
        clone(model),
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        joblib.load(stored),
        cls(**model.get_params()),
    ]
    for other in copies:
        assert other.get_params()["budget"] is held
        other.fit(X, y)
    assert len(held.table()) == 7
    assert "budget" not in repr(make(cls)) and "PrivacyBudget" in repr(model)


LATER = """
import pickle, sys
from dpftrl_fast import PrivacyBudget
from sklearn.base import clone
from test_budget import *
model = pickle.loads(bytes.fromhex(sys.argv[1]))
X, y = rows(type(model))
clone(pickle.loads(pickle.dumps(clone(model)))).fit(X, y)
"""


@pytest.mark.process
def test_an_estimator_that_was_pickled_in_a_block_is_charged_in_another_process() -> None:
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    model = make(DPFTRLClassifier)
    with budget() as outer, budget(99.0) as inner:
        inside = pickle.dumps(model)
    outside = pickle.dumps(model)
    for sent, count in ((inside, 1), (outside, 1)):  # the second is not charged
        subprocess.run(
            [sys.executable, "-c", LATER, sent.hex()],
            env={**os.environ, "PYTHONPATH": paths},
            check=True,
        )
        assert (len(outer.table()), len(inner.table())) == (count, count)
    # Here the blocks are over.
    X, y = rows(DPFTRLClassifier)
    pickle.loads(inside).fit(X, y)
    clone(pickle.loads(inside)).fit(X, y)
    assert len(outer.table()) == 1
    assert pickle.loads(pickle.dumps(pickle.loads(inside))).__getstate__().keys() == (
        model.__getstate__().keys()
    )


def test_an_estimator_whose_budget_is_gone_is_refused() -> None:
    held = budget()
    model = DPFTRLRegressor(x_norm_bound=1.0, y_bound=1.0, batch_size=10, budget=held)
    model.fit(ROWS, NUMBERS)
    sent = pickle.dumps(model)
    del held, model
    model = pickle.loads(sent)
    assert model.predict(ROWS).shape == (60,)
    with pytest.raises(FileNotFoundError, match="is missing"):
        model.fit(ROWS, NUMBERS)
