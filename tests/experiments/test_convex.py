# SPDX-License-Identifier: Apache-2.0
"""The experiments: results that resume, baselines by their definition, quick runs, figures."""

from __future__ import annotations

import itertools
import json
import math
import struct
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
from command_line import run, run_json

from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import SparseRows
from dpftrl_fast.datasets import InstEval
from dpftrl_fast.experiments.convex import counter
from dpftrl_fast.experiments.convex.bounds import excess_risk_bound, regret_bound
from dpftrl_fast.experiments.convex.command import (
    fashion,
    flights,
    insteval,
    run_experiments,
    theory,
)
from dpftrl_fast.experiments.convex.dpsgd import dpsgd, fixed_batches_sigma
from dpftrl_fast.experiments.convex.methods import (
    AMPLIFIED,
    FIXED,
    FTRL,
    PLANNED,
    gradient_method,
    least_squares,
)
from dpftrl_fast.experiments.convex.problem import Problem
from dpftrl_fast.experiments.convex.tuning import Grid, Run, tuned
from dpftrl_fast.experiments.results import Results
from dpftrl_fast.experiments.study import Job, Laboratory
from dpftrl_fast.linear_model import DPFTRLRegressor

PNG = b"\x89PNG\r\n\x1a\n"


def png_size(content):
    assert content[:8] == PNG
    return struct.unpack(">II", content[16:24])


def problem(n=600, p=4, classes=1, seed=0):
    """Rows of norm at most 1 that a linear model explains."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(np.float32)
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1)
    truth = np.linspace(0.8, -0.8, p)
    y = np.clip(X @ truth + 0.05 * rng.standard_normal(n), -1, 1)
    if classes > 1:
        y = np.argmax(X @ rng.standard_normal((p, classes)), axis=1).astype(float)
    cut = n * 3 // 4
    return Problem(X[:cut], y[:cut], X[cut:], y[cut:], classes=classes, constant=0.5)


# ---- Results ----


def test_results_are_found_again_by_experiment_setting_and_seed(tmp_path):
    path = tmp_path / "folder" / "results.jsonl"
    results = Results(path)
    results.add("a", {"epsilon": 1.0, "p": 3}, 0, {"score": np.float64(0.5)})
    results.add("a", {"epsilon": 1.0, "p": 3}, 1, {"score": 0.25})
    again = Results(path)
    assert len(again) == 2
    assert again.get("a", {"p": 3, "epsilon": 1.0}, 1) == {"score": 0.25}
    for other in (("b", {"epsilon": 1.0, "p": 3}, 0), ("a", {"epsilon": 1.0}, 0),
                  ("a", {"epsilon": 1.0, "p": 3}, 2)):  # fmt: skip
        assert again.get(*other) is None


def test_a_line_that_was_cut_short_is_dropped_and_written_anew(tmp_path):
    path = tmp_path / "results.jsonl"
    Results(path).add("a", {}, 0, {"score": 0.5})
    whole = path.read_bytes()
    for cut in (1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        results = Results(path)
        assert len(results) == 1
        results.add("a", {}, 7, {"score": 0.75})
        assert Results(path).get("a", {}, 7) == {"score": 0.75}
        assert all(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("line", ["{}", "x", "[1]", '{"experiment": "a", "setting": 3, "seed": 0}'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, line):
    path = tmp_path / "results.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match="expected a row of results in line 1 of"):
        Results(path)
    assert path.read_text() == line + "\n"


def test_a_second_writer_is_refused_and_loses_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    first, second = Results(path), Results(path)
    first.add("a", {}, 0, {"score": 0.5})
    with pytest.raises(FileExistsError, match="another process writes to"):
        second.add("a", {}, 1, {"score": 0.5})
    first.add("a", {}, 2, {"score": 0.5})
    assert len(Results(path)) == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(tmp_path, value):
    results = Results(tmp_path / "results.jsonl")
    with pytest.raises(ValueError, match="score must be finite"):
        results.add("a", {}, 0, {"score": value})
    assert not results.path.exists()


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    made = []

    def work(seed):
        if seed == 2 and not made.count("stopped"):
            made.append("stopped")
            raise KeyboardInterrupt
        made.append(seed)
        return {"score": float(seed)}

    jobs = [Job({"p": 1}, seed, partial(work, seed)) for seed in range(4)]
    path = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt):
        Laboratory("a", Results(path)).run("t", jobs)
    laboratory = Laboratory("a", Results(path))
    assert [v["score"] for v in laboratory.run("t", jobs)] == [0, 1, 2, 3]
    assert made == [0, 1, "stopped", 2, 3] and laboratory.done == 2


# ---- Baselines ----


def test_dpsgd_over_fixed_batches_is_its_recursion():
    data = problem(40)
    objective = Objective("squared", 4, clip_norm=0.2)
    found = dpsgd(
        objective, data.X, data.y, sigma=0.3, learning_rate=0.5, batch_size=8, epochs=2,
        amplified=False, seed=5,
    )  # fmt: skip
    normals = np.random.default_rng([5, 20210103])
    theta, iterates = np.zeros(4), []
    for _ in range(2):
        for start in range(0, 30, 8):
            iterates.append(theta)
            total = np.zeros(4)
            for x, y in zip(data.X[start : start + 8], data.y[start : start + 8], strict=True):
                gradient = (x.astype(float) @ theta - y) * x.astype(float)
                total += gradient * min(1, 0.2 / np.linalg.norm(gradient))
            theta = theta - 0.5 / 8 * (total + 0.2 * 0.3 * normals.standard_normal(4))
    np.testing.assert_allclose(found.last[0], theta, atol=1e-6)
    np.testing.assert_allclose(found.tail[0], np.mean(iterates[4:], axis=0), atol=1e-6)


def test_dpsgd_on_samples_takes_each_row_with_the_same_probability():
    X = np.eye(50)  # without noise and clipping, theta[i] counts how often row i was taken
    found = dpsgd(
        Objective("linear", 50, clip_norm=2.0), X, -np.ones(50), sigma=1e-12, learning_rate=10.0,
        batch_size=10, epochs=200, amplified=True, seed=0,
    )  # fmt: skip
    taken = found.last[0]
    assert np.allclose(taken, np.round(taken), atol=1e-6)
    steps, q = 1000, 0.2
    assert abs(taken.sum() - 50 * steps * q) < 4 * np.sqrt(50 * steps * q * (1 - q))
    assert np.all(abs(taken - steps * q) < 5 * np.sqrt(steps * q * (1 - q)))
    assert len(set(np.round(taken))) > 5  # fixed batches would take each as often


def test_dpsgd_clips_users_as_one():
    X, y = np.ones((6, 1)), -np.ones(6)
    users = np.array([0, 3, 4, 6])
    options = {"sigma": 1e-12, "learning_rate": 3.0, "batch_size": 3, "epochs": 1, "seed": 0}
    for rows in (X, SparseRows.of(scipy.sparse.csr_array(X))):
        found = dpsgd(
            Objective("linear", 1, clip_norm=2.5), rows, y, users=users, amplified=False, **options
        )
        assert found.last[0, 0] == pytest.approx(2.5 + 1 + 2, abs=1e-4)


def test_the_noise_of_dpsgd_over_fixed_batches_is_exact():
    sigma = fixed_batches_sigma(3.0, 1e-5, 5)
    assert acc.epsilon(sigma, 5, 1e-5) == pytest.approx(3.0, rel=1e-9)


@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.slow)])
def test_the_noise_of_amplified_dpsgd_keeps_the_budget_and_wastes_none(accountant):
    pytest.importorskip("dp_accounting")
    sigma = acc.dpsgd_noise_multiplier(3.0, 1e-5, 0.05, 20, accountant)
    assert sigma < fixed_batches_sigma(3.0, 1e-5, 1)
    spent = [acc.dpsgd_epsilon(sigma * f, 0.05, 20, 1e-5, accountant) for f in (1.0, 0.99)]
    assert spent[0] <= 3.0 < spent[1]


def test_methods_are_the_estimators_and_score_the_test_rows():
    data = problem()
    options = {"epsilon": 5.0, "delta": 1e-5, "batch_size": 50, "epochs": 2, "clip_norm": 0.5}
    found = gradient_method(FTRL, data, learning_rate=0.5, seed=3, **options)
    model = DPFTRLRegressor(
        x_norm_bound=1.0,
        intercept_scaling=0.5,
        learning_rate=0.5,
        noise_seed=3,
        mechanism="tree",
        **options,
    ).fit(data.X, data.y)
    assert found["tail"] == pytest.approx(model.score(data.Z, data.z), abs=1e-6)
    model.set_params(average="last")
    assert found["last"] == pytest.approx(model.score(data.Z, data.z), abs=1e-6)
    with pytest.raises(ValueError, match="sigma must be given"):
        gradient_method(AMPLIFIED, data, learning_rate=0.5, seed=3, **options)


@pytest.mark.parametrize("method", [FTRL, PLANNED, FIXED, AMPLIFIED])
@pytest.mark.parametrize("classes", [1, 3])
def test_all_methods_learn_with_little_noise(method, classes):
    data = problem(2000, classes=classes)
    found = gradient_method(
        method, data, epsilon=100.0, delta=1e-5, batch_size=50, epochs=5, clip_norm=1.0,
        learning_rate=4.0 if classes > 1 else 0.5, seed=0, sigma=0.3,
    )  # fmt: skip
    best = data.score(data.without_privacy())
    assert 0.8 < best <= 1.0 and best - 0.1 < found["tail"] <= best + 0.03


def test_one_batch_of_all_rows_is_one_release_without_a_tree():
    data = problem()
    few = {"epsilon": 3.0, "delta": 1e-5, "complete": "auto", "seed": 1}
    once = least_squares(data, batch_size=len(data.y), **few)["last"]
    tree = least_squares(data, batch_size=10, **few)["last"]
    assert once > tree  # a prefix of one node with zeta 1
    assert least_squares(data, batch_size=10, **{**few, "epsilon": 1e4})["last"] > 0.9


def test_ridge_without_privacy_is_the_closed_form():
    data = problem()
    X = np.hstack([data.X, np.full((len(data.y), 1), 0.5)])
    wanted = np.linalg.lstsq(
        np.vstack([X, np.sqrt(2.0) * np.eye(5)]), np.append(data.y, np.zeros(5)), rcond=None
    )[0]
    np.testing.assert_allclose(data.without_privacy(2.0)[0], wanted, rtol=1e-4, atol=1e-6)


def test_tuning_takes_the_best_configuration_and_fits_with_fresh_seeds(tmp_path):
    data = problem()
    runs = [Run(method, "row", 3.0, 1e-5, 50, 1) for method in (FTRL, FIXED)]
    path = tmp_path / "results.jsonl"
    laboratory = Laboratory("a", Results(path))
    arguments = {"tune_on": {"row": data.validation(100)}, "test_on": {"row": data}, "seeds": 2}
    outcomes = tuned(laboratory, {}, runs, Grid((0.3,), (1e-4, 0.5, 1e4)), **arguments)
    for outcome in outcomes:
        assert outcome.setting == {"clip_norm": 0.3, "learning_rate": 0.5} and not outcome.at_edge
        assert len(set(outcome.scores)) == 2 and outcome.to_dict()["median"] > 0.2
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["setting"]["stage"] for row in rows].count("tune") == 6
    assert {row["seed"] for row in rows if row["setting"]["stage"] == "test"} == {0, 1}
    again = Laboratory("a", Results(path))
    assert tuned(again, {}, runs, Grid((0.3,), (1e-4, 0.5, 1e4)), **arguments) == outcomes
    assert again.done == 0


# ---- Bounds ----


def test_the_bounds_hold_where_they_are_proved():
    for epsilon in (0.5, 4.0):
        for p in (2, 20):
            found = theory.adversary(2048, p, epsilon, 0)
            assert 0.2 * found["bound"] < found["measured"] < found["bound"]
            found = theory.excess_risk(1024, p, epsilon, 0)
            assert 0 <= found["measured"] < found["bound"]
            found = theory.logistic_regret("theory")(512, p, epsilon, 0)
            assert found["measured"] < found["bound"]


def test_the_regret_bound_is_least_at_the_rate_of_the_theory():
    from dpftrl_fast.ftrl import theory_learning_rate

    rate = theory_learning_rate(100, 2.0, 1.5, 0.7)
    least = regret_bound(100, 2.0, 1.5, 0.7, rate)
    assert least < min(regret_bound(100, 2.0, 1.5, 0.7, rate * f) for f in (0.9, 1.1))
    assert least == pytest.approx(2.0 * np.sqrt(1.5 * (1.5 + 1.4) / 100))


def test_the_risk_bound_has_the_ridge_and_the_noise_of_the_plan():
    from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan

    plan = LeastSquaresPlan(1.0, 0.5, 3.0, acc.SinglePass(4), split=0.5, complete=False)
    sigma, root = 3.0 * np.sqrt(2.0), np.sqrt(100 / (2 - 2**-2))  # 4 steps: one node, variance
    wanted = (2.0**2 * 2.0 * sigma * root + 2 * 2.0 * 0.5 * sigma * root) / 50
    assert excess_risk_bound(plan, 100, 50, 2.0) == pytest.approx(wanted, rel=1e-6)


def test_slopes():
    assert theory.slope([1, 2, 4], [8.0, 4.0, 2.0]) == pytest.approx(-1)
    assert theory.slope([1, 2], [1.0, -1.0]) is None


# ---- Studies on small tables ----


@pytest.fixture
def ready_noise(monkeypatch):
    """The noise of amplified runs is slow to find, and tested above."""
    monkeypatch.setattr(
        "dpftrl_fast.experiments.convex.tuning.dpsgd_noise_multiplier", lambda **_: 1.0
    )


def test_fashion_quick(tmp_path, ready_noise):
    report = fashion.study(
        problem(400, p=9, classes=3), Laboratory("f", Results(tmp_path / "r.jsonl")), quick=True
    )
    assert [row["method"] for row in report.data] == ["no privacy", FTRL, FIXED, AMPLIFIED]
    assert all(0 <= row["median"] <= 1 for row in report.data)
    assert set(report.figures) == {"convex_fashion_mnist.png"}
    assert (
        report.tables[0].heading == ("", "epochs 1")
        and "| DP-FTRL |" in report.tables[0].markdown()
    )


def test_flights_quick(tmp_path, ready_noise):
    report = flights.study(problem(), Laboratory("f", Results(tmp_path / "r.jsonl")), quick=True)
    assert len(report.tables[0].rows) == 8 and len(report.data) == 9
    assert png_size(report.figures["convex_flights.png"])[0] > 500


def test_a_counter_has_less_noise_than_its_tree_and_more_than_the_bound(tmp_path):
    laboratory = Laboratory("counter", Results(tmp_path / "r.jsonl"))
    report = counter.study(laboratory, quick=True)
    rms = {row["method"]: row["rms"] for row in report.data if row["steps"] == 100}
    order = [rms[name] for name in (
        "lower bound", "mechanism of the planner, 3 vectors at most", "square root, all taps",
        "tree, Honaker", "tree, vanilla", "independent noise",
    )]  # fmt: skip
    assert order == sorted(order) and rms["independent noise"] == pytest.approx(math.sqrt(50.5))
    # the matrices, written out: B = C, and the largest singular values of the running sums
    n = 100
    half = scipy.linalg.toeplitz(counter_coefficients(n), np.zeros(n))
    np.testing.assert_allclose(half @ half, np.tril(np.ones((n, n))), atol=1e-9)
    zeta = (half[:, 0] ** 2).sum()
    rows = (half**2).sum(axis=1)
    root, largest = counter.square_root_noise(n)
    assert root == pytest.approx(math.sqrt(zeta * rows.mean()))
    assert largest == pytest.approx(math.sqrt(zeta * rows.max()))
    bound = np.linalg.svd(np.tril(np.ones((n, n))), compute_uv=False).sum() / n
    assert rms["lower bound"] == pytest.approx(bound, rel=1e-4)
    assert len(report.tables[0].rows) == 6 and report.tables[0].rows[3][3] == "3"
    assert png_size(report.figures["convex_counter.png"])[0] > 500


def counter_coefficients(n):
    return [math.comb(2 * j, j) / 4**j for j in range(n)]


def test_insteval_quick(tmp_path, ready_noise):
    rng = np.random.default_rng(0)
    n, students = 400, 30
    who = rng.integers(0, students, n)
    X = scipy.sparse.csr_array(
        (np.ones(2 * n, np.float32), np.stack([who, 30 + rng.integers(0, 5, n)], 1).ravel(),
         np.arange(0, 2 * n + 1, 2)), shape=(n, 35),
    )  # fmt: skip
    X.indices, X.indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)  # as in the data
    table = InstEval(X, rng.integers(1, 6, n).astype(float), who)
    report = insteval.study(
        table, Laboratory("i", Results(tmp_path / "r.jsonl")), quick=True, held_out=60
    )
    assert len(report.tables) == 6
    assert {row["method"] for row in report.data if row.get("unit") == "user"} == {
        FTRL, FIXED, AMPLIFIED,
    }  # fmt: skip
    data = insteval._problem(table, np.arange(300), np.arange(300, 400), by_user=True)
    bounds = data.user_bounds
    assert bounds[0] == 0 and bounds[-1] == 300 and np.all(np.diff(bounds) > 0)
    assert sorted(np.diff(bounds)) == sorted(np.unique(who[:300], return_counts=True)[1])
    for start, stop in itertools.pairwise(bounds):  # one student's indicator
        assert len(set(data.X[start:stop].indices[::2])) == 1
    np.testing.assert_allclose(scipy.sparse.linalg.norm(data.X, axis=1), 1, rtol=1e-6)
    assert insteval.rows_rmse(data, 0.0) == pytest.approx(table.y[300:].std())


# ---- The command ----


def test_the_command_writes_results_tables_and_figures_and_resumes(tmp_path):
    arguments = ("experiment", "convex", "--only", "theory", "--quick", "--out", tmp_path / "o")
    first = run_json(*arguments)["experiments"]["theory"]
    assert first["done"] == 4 * 3 * 2 * 2 - 4 * 2 * 2  # (base: three times)
    before = [(tmp_path / "o" / name).read_bytes() for name in ("results.jsonl", "theory.md")]
    names = {path.name for path in (tmp_path / "o").iterdir()}
    assert names == {"results.jsonl", "theory.md", *first["figures"]} and len(first["figures"]) == 2
    assert len(first["rows"]) == 4 * 3 * 2
    assert {row["measure"] for row in first["rows"]} >= {"FTRL, adversary", "least squares"}
    for figure in first["figures"]:
        assert png_size((tmp_path / "o" / figure).read_bytes())[0] > 500
    shown = run(*arguments)
    assert "least squares" in shown.stdout and "0 new fits" in shown.stdout
    assert before == [
        (tmp_path / "o" / name).read_bytes() for name in ("results.jsonl", "theory.md")
    ]
    assert shown.stderr == ""  # no bars where there is no terminal


def test_an_unknown_experiment_or_folder_is_refused(tmp_path):
    result = run("experiment", "convex", "--only", "mnist", "--out", tmp_path, code=2)
    assert (
        "experiment must be one of 'theory', 'counter', 'flights', 'insteval', 'fashion-mnist', got"
        in result.stderr
    )
    result = run("experiment", "convex", "--data", tmp_path / "none", "--out", tmp_path, code=2)
    assert "--data: no such file or folder" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_data_are_an_error_only_where_they_were_asked_for(tmp_path, monkeypatch):
    def missing(data, laboratory, quick):
        raise FileNotFoundError("expected data, not found")

    monkeypatch.setattr(
        "dpftrl_fast.experiments.convex.command.EXPERIMENTS", {"one": missing, "two": missing}
    )
    ends = list(run_experiments([], tmp_path))
    assert [(end.name, end.report, end.missing) for end in ends] == [
        ("one", None, "expected data, not found"), ("two", None, "expected data, not found"),
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError, match="expected data"):
        list(run_experiments(["two"], tmp_path))
