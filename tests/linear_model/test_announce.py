# SPDX-License-Identifier: Apache-2.0
"""Warnings of several fits on the same rows, outside a budget: once a call, with the total."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from estimator_cases import make, recorded_noises
from meta_cases import CASES, SINGLE, THREE, TWO, X, Y, classifier, regressor
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin, clone
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, cross_val_score
from sklearn.multiclass import OneVsRestClassifier

from dpftrl_fast import PrivacyBudget
from dpftrl_fast.accounting import compose
from dpftrl_fast.linear_model import DPFTRLLeastSquares, DPFTRLRegressor

FITS = re.compile(r"makes up to (\d+) fits on the same rows")
WORKER = re.compile("this fit is in a worker, which does not see the fits of other workers")
TOTAL = re.compile(r"together up to epsilon (\S+) at delta (\S+) \(replace-one: (\S+)\)")


def said(call: Callable[[], Any]) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [one for one in seen if "mu^2" in str(one.message)]


@pytest.mark.parametrize("name", CASES)
def test_each_call_warns_once_with_its_fits_and_their_epsilon(name: str) -> None:
    case = CASES[name]
    (warning,) = said(case.call)
    text = str(warning.message)
    assert warning.category is UserWarning and "not private" in text and "PrivacyBudget" in text
    assert warning.filename.endswith("meta_cases.py")  # the line that made the call
    with PrivacyBudget(100.0, 1e-6) as budget:
        case.call()
    if case.most is None:
        assert FITS.search(text) is None and "makes several fits" in text
        return
    count = int(FITS.search(text)[1])  # type: ignore[index]
    total, delta, other = map(float, TOTAL.search(text).groups())  # type: ignore[union-attr]
    assert count == (case.most or case.fits) and delta == 1e-6
    assert len(budget.table()) <= count
    replaced = compose([budget]).epsilon(1e-6, neighbours="replace-one")
    assert budget.spent <= total and replaced <= other
    if len(budget.table()) == count:
        # A search over epsilons may refit the smaller one; the largest is announced.
        slack = 1.1 if name.startswith("GridSearchCV") else 1.002
        assert total <= budget.spent * slack and other <= replaced * slack


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_fit_does_not_warn(name: str) -> None:
    assert said(SINGLE[name]) == []


def test_every_call_warns_and_clones_alone_do_not() -> None:
    for _ in range(3):
        assert len(said(lambda: cross_val_score(regressor(), X, Y, cv=2))) == 1
    search = GridSearchCV(regressor(), {"momentum": [0.0]}, cv=2)
    assert said(lambda: clone(search)) == []
    for _ in range(2):
        assert len(said(lambda: search.fit(X, Y))) == 1
    best = search.best_estimator_
    assert said(lambda: best.fit(X, Y)) == []
    assert len(said(lambda: cross_val_score(best, X, Y, cv=2))) == 1


def test_the_warning_comes_before_anything_is_spent() -> None:
    for name in ("cross_validate", "OneVsRestClassifier", "BaggingRegressor", "StackingRegressor"):
        with recorded_noises() as noises, warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match=r"mu\^2"):
                CASES[name].call()
            assert noises == []


def test_runs_of_a_noise_multiplier_are_counted_without_an_epsilon() -> None:
    model = make(DPFTRLRegressor, epsilon=None, noise_multiplier=20.0)
    (warning,) = said(lambda: cross_val_score(model, X, Y, cv=3))
    assert FITS.search(str(warning.message))[1] == "3"  # type: ignore[index]
    assert TOTAL.search(str(warning.message)) is None


def test_fits_of_different_epsilon_and_delta() -> None:
    two = [("a", regressor()), ("b", make(DPFTRLLeastSquares, epsilon=0.4))]
    (warning,) = said(lambda: VotingRegressor(two).fit(X, Y))
    assert "fits of epsilon 0.1 and 0.4 together" in str(warning.message)
    two = [("a", regressor()), ("b", regressor(delta=1e-7))]
    (warning,) = said(lambda: VotingRegressor(two).fit(X, Y))
    assert TOTAL.search(str(warning.message)) is None and "up to 2 fits" in str(warning.message)


def test_unknown_numbers_are_not_guessed() -> None:
    folds = iter([(np.arange(30), np.arange(30, 60)), (np.arange(30, 60), np.arange(30))])
    (warning,) = said(lambda: cross_val_score(regressor(), X, Y, cv=folds))
    assert "makes several fits" in str(warning.message)
    drawn = RandomizedSearchCV(regressor(), {"epsilon": [0.1, 9.0]}, n_iter=1, cv=2, random_state=0)
    (warning,) = said(lambda: drawn.fit(X, Y))
    assert "makes several fits" in str(warning.message)


class Twice(RegressorMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Another library's meta-estimator."""

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator

    def fit(self, X: Any, y: Any) -> Any:
        self.fitted_ = [clone(self.estimator).fit(X, y) for _ in range(2)]
        return self


def test_other_meta_estimators_may_fit_several_times() -> None:
    (warning,) = said(lambda: Twice(regressor()).fit(X, Y))
    assert str(warning.message).startswith("Twice makes several fits")


def test_the_message_does_not_depend_on_values() -> None:
    other, targets = X.copy(), Y.copy()
    other[5], targets[5] = 1e300, -1.0
    bad = X.copy()
    bad[5] = np.nan
    texts = []
    for data, y in ((X, Y), (other, targets), (bad, Y)):
        seen = said(partial(cross_val_score, regressor(), data, y, cv=3, error_score=np.nan))
        texts.append([str(one.message) for one in seen])
    assert len(texts[0]) == 1 and texts[1:] == texts[:1] * 2


PROGRAM = """
import json, multiprocessing, sys, tempfile, warnings
import joblib
from dpftrl_fast import PrivacyBudget
from meta_cases import *
warnings.filterwarnings("ignore", "this model may not learn|classes is not given")

small = classifier(batch_size=5)
calls = {
    "OneVsRest": lambda n: OneVsRestClassifier(classifier(), n_jobs=n).fit(X, THREE),
    "OneVsOne": lambda n: OneVsOneClassifier(small, n_jobs=n).fit(X, THREE),
    "cross_validate": lambda n: cross_validate(regressor(), X, Y, cv=9, n_jobs=n),
    "Bagging": lambda n: BaggingRegressor(
        regressor(), n_estimators=4, bootstrap=False, n_jobs=n).fit(X, Y),
    "outputs": lambda n: MultiOutputRegressor(regressor(), n_jobs=n).fit(X, np.stack([Y, Y], 1)),
    "search of OneVsRest": lambda n: search(
        OneVsRestClassifier(small, n_jobs=n), {"estimator__epsilon": [0.1, 0.2]}, n_jobs=n
    ).fit(X, THREE),
    "SequentialFeatureSelector": lambda n: SequentialFeatureSelector(
        regressor(), n_features_to_select=1, cv=9, n_jobs=n).fit(X, Y),
}

def said(call):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [(str(one.message), one.filename) for one in seen if "mu^2" in str(one.message)]

def loop(n, **given):
    model = regressor(**given)
    return lambda: joblib.Parallel(n)(joblib.delayed(model.fit)(X, Y) for _ in range(3))

def started(method, **given):
    model = regressor(**given)
    with multiprocessing.get_context(method).Pool(2) as pool:
        pool.starmap(model.fit, [(X, Y)] * 3)

if __name__ == "__main__":
    found = {}
    for name, call in calls.items():
        found[name] = [said(lambda: call(1)), []]
        with joblib.parallel_backend(sys.argv[1]):
            print("call", name, file=sys.stderr)
            found[name][1] = said(lambda: call(2))
    with tempfile.TemporaryDirectory() as folder, joblib.parallel_backend(sys.argv[1]):
        budget = PrivacyBudget(100.0, 1e-6, path=folder + "/budget")
        print("call loop", file=sys.stderr)
        loop(2)()
        print("call loop of one worker", file=sys.stderr)
        loop(1)()
        print("call budget", file=sys.stderr)
        loop(2, budget=budget)()
        with budget:
            loop(2)()
            calls["OneVsRest"](2)
        for method in ("fork", "spawn", "forkserver"):
            print("call", method, file=sys.stderr)
            started(method)
            print("call budget", file=sys.stderr)
            started(method, budget=budget)
        found["charged"] = len(budget.table())
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
def test_calls_with_workers_warn_as_those_without(backend: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
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
    assert found.pop("charged") == 3 + 3 + 3 + 3 * 3
    for name, (alone, beside) in found.items():
        assert len(alone) == 1 and alone == beside, name  # with the same total, at the same line
        assert alone[0][1] == str(program)
    # Warnings of worker processes, which no filter of the calling process sees.
    workers: dict[str, int] = {}
    for line in done.stderr.splitlines():
        if line.startswith("call "):
            current = line[5:]
            workers.setdefault(current, 0)
        elif "mu^2" in line:
            assert WORKER.search(line), line
            workers[current] += 1
    for name in [*found, "budget", "loop of one worker"]:
        assert workers[name] == 0, name
    for name in ("loop", "fork", "spawn", "forkserver"):
        assert workers[name] > 0, name


def test_a_fit_in_a_worker_warns_before_anything_is_spent() -> None:
    model = regressor()
    with (
        recorded_noises() as noises,
        warnings.catch_warnings(),
        joblib.parallel_backend("threading"),
    ):
        warnings.filterwarnings("error", message=WORKER.pattern)
        with pytest.raises(UserWarning, match=WORKER.pattern):
            joblib.Parallel(2)(joblib.delayed(model.fit)(X, Y) for _ in range(2))
        assert noises == []
        assert len(said(lambda: model.fit(X, Y))) == 0


def test_the_warning_of_a_worker_does_not_depend_on_values() -> None:
    bad = X.copy()
    bad[5] = 1e300

    def texts(data: Any) -> list[str]:
        def call() -> None:
            with joblib.parallel_backend("threading"):
                joblib.Parallel(2)(joblib.delayed(regressor().fit)(data, Y) for _ in range(2))

        return [str(one.message) for one in said(call)]

    assert texts(X) == texts(bad) and len(texts(X)) == 2


def test_another_thread_that_holds_the_estimator_does_not_silence_a_call() -> None:
    """A thread which is not joblib's looks at its own calls only."""
    model, here, there = classifier(batch_size=5), threading.Event(), threading.Event()

    class Waiting(OneVsRestClassifier):  # type: ignore[misc]
        def fit(self, X: Any, y: Any) -> Any:
            super().fit(X, y)
            there.set()
            assert here.wait(60)
            return self

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = threading.Thread(target=Waiting(model).fit, args=(X, THREE))
        other.start()
        assert there.wait(60)
        copied = clone(model)
        here.set()
        other.join()
    assert len(said(lambda: cross_val_score(copied, X, TWO, cv=2))) == 1


def test_threads_do_not_warn_again() -> None:
    inner = OneVsRestClassifier(classifier(batch_size=5))

    def call() -> None:
        with joblib.parallel_backend("threading"):
            GridSearchCV(inner, {"estimator__epsilon": [0.1, 0.2]}, cv=3, n_jobs=2).fit(X, THREE)

    assert len(said(call)) == 1
