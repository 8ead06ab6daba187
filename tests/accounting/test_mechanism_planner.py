# SPDX-License-Identifier: Apache-2.0
"""The planner of mechanisms: its targets, its limits, and that every row keeps its budget."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.accounting.planner import mechanisms as planner
from dpftrl_fast.accounting.planner.lower_bound import nuclear_norm
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    calibrated_noise_multiplier,
    touched,
)

A, B = acc.FixedEpochs(100, 100), acc.SinglePass(2000)
C, D = acc.MinSeparation(2000, 20, 100), acc.FixedEpochs(100, 10)


def matrix(workload: acc.Workload, steps: int) -> np.ndarray[Any, Any]:
    """The workload's matrix, from the recursion in the documentation of `Workload`."""
    rates = workload.relative_rates(steps)
    u, v, rows = np.zeros(steps), np.zeros(steps), []
    for t, x in enumerate(np.eye(steps)):
        v = workload.momentum * v + (1 - workload.momentum) * x - workload.decay * u
        u = u + (1.0 if rates is None else rates[t]) * v
        rows.append(u)
    return np.array(rows)


@pytest.fixture(scope="module")
def table() -> acc.MechanismTable:
    return acc.plan_mechanism(8, 1e-5, D)


# (pattern, vectors, momentum, the most rms at epsilon 8 and delta 1e-5)
TARGETS = [
    (A, None, 0.0, 49.7),
    (A, 3, 0.0, 52.2),
    (A, 0, 0.9, 46.6),
    (B, 3, 0.0, 1.97),
    (C, None, 0.0, 12.2),
    (D, None, 0.0, 6.95),
]


@pytest.mark.parametrize(("pattern", "vectors", "momentum", "most"), TARGETS)
def test_targets(pattern: Any, vectors: int | None, momentum: float, most: float) -> None:
    workload = acc.Workload(momentum)
    found = acc.plan_mechanism(8, 1e-5, pattern, workload=workload, max_vectors=vectors)
    assert found.best.rms_std <= most
    assert found.lower_bound is None or found.lower_bound < found.best.rms_std
    assert vectors is None or all(row.vectors <= vectors for row in found)


def test_rows_are_ranked_and_keep_the_budget(table: acc.MechanismTable) -> None:
    assert [row.rms_std for row in table] == sorted(row.rms_std for row in table)
    assert table.best is table[0] and len(table) == len(table[:]) == len(table.rows)
    for row in table:
        layout = row.mechanism.layout(1000)
        zeta = acc.sensitivity_squared(D, row.mechanism, bound="released")
        assert zeta == row.sensitivity_squared
        assert row.noise_multiplier == calibrated_noise_multiplier(
            8, 1e-5, zeta, touched(layout, D, "released")
        )
        error = row.error()
        found = [row.noise_multiplier * x for x in (error.rms, error.last, error.worst)]
        assert found == [row.rms_std, row.last_std, row.worst_std]
        if isinstance(row.mechanism, mech.ToeplitzMechanism):
            assert row.mechanism.rounded("float32") == row.mechanism


def test_every_kind_is_in_the_table(table: acc.MechanismTable) -> None:
    assert {row.words: (row.vectors, row.normals) for row in table} == {
        "100 bands": (99, 1),
        "2 buffers (BLT)": (2, 1),
        "1 buffer (BLT)": (1, 1),
        "16 taps": (0, 16),
        "8 taps": (0, 8),
        "4 taps": (0, 4),
        "2 taps": (0, 2),
        "64 taps, square root": (0, 64),
        "16 taps, square root": (0, 16),
        "tree every 100 steps, completed": (9, 2),
        "DP-SGD, independent noise": (0, 1),
    }


def test_the_tree_is_that_of_the_planner_of_schedules() -> None:
    rows = acc.plan_mechanism(8, 1e-5, B, rank_by="worst").rows
    (tree,) = (row for row in rows if isinstance(row.mechanism, mech.Tree))
    wanted = acc.plan_schedule(8, 1e-5, participation=B, rank_by="worst").best
    assert tree.mechanism == wanted.mechanism and tree.worst_std == wanted.worst_std
    assert tree.noise_multiplier == wanted.noise_multiplier


def test_limits() -> None:
    one = acc.plan_mechanism(8, 1e-5, D, max_normals=1, max_vectors=7)
    costs = {row.words: (row.vectors, row.normals) for row in one}
    assert costs["8 taps"] == (7, 1) and "16 taps" not in costs  # the last normals are kept
    assert "8 bands" in costs and all(row.normals == 1 for row in one)
    none = acc.plan_mechanism(8, 1e-5, D, max_normals=1, max_vectors=0)
    assert [row.words for row in none] == ["DP-SGD, independent noise"]
    short = acc.plan_mechanism(8, 1e-5, acc.SinglePass(1))
    assert {row.words for row in short} == {"DP-SGD, independent noise", "one tree"}
    assert acc.plan_mechanism(8, 1e-5, acc.SinglePass(3)).best.mechanism.layout(3).steps == 3


@pytest.mark.parametrize("rank_by", ["last", "worst"])
def test_ranked_by_another_error(rank_by: Any) -> None:
    found = acc.plan_mechanism(8, 1e-5, D, max_vectors=2, rank_by=rank_by)
    errors = [getattr(row, f"{rank_by}_std") for row in found]
    assert errors == sorted(errors) and errors[0] < 9.116


@pytest.mark.parametrize(
    "pattern", [acc.FixedOrder([0, 1, -1, 0, 2, 2]), acc.MinSeparation(40, 9, 1)]
)
def test_other_patterns(pattern: Any) -> None:
    found = acc.plan_mechanism(2, 1e-6, pattern)
    assert found.best.rms_std <= min(row.rms_std for row in found)
    assert (found.lower_bound is None) == isinstance(pattern, acc.FixedOrder)
    assert best_mechanism(2, 1e-6, pattern).layout(pattern.steps).steps == pattern.steps


def test_text_and_json(table: acc.MechanismTable) -> None:
    text = str(table)
    assert text.startswith("epsilon 8 at delta 1e-05 (neighbours: one record's")
    assert "no mechanism has a smaller rms than 5.508" in text and "2 buffers (BLT)" in text
    first = json.loads(json.dumps(table.to_dicts()))[0]
    assert mech.mechanism_from_dict(first["mechanism"]) == table.best.mechanism
    assert acc.Workload.from_dict(first["workload"]) == acc.Workload()
    assert first["vectors"] == 99 and first["words"] == "100 bands"


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    acc.plan_mechanism(8, 1e-5, D, max_vectors=0, progress=lambda *x: seen.append(x))
    assert [done for done, _ in seen] == [*range(1, len(seen) + 1)] and seen[-1][1] == len(seen)


# ---- The best one, quickly ----

BEST = [
    (A, acc.Workload(), 3, mech.BufferedToeplitz, 52.2),
    (A, acc.Workload(0.9), 3, mech.BandedInverse, 46.6),
    (B, acc.Workload(), 3, mech.BufferedToeplitz, 1.97),
    (C, acc.Workload(), 3, mech.BufferedToeplitz, 12.85),
    (D, acc.Workload(), None, mech.BandedToeplitz, 6.96),
    (D, acc.Workload(), 0, mech.BandedInverse, 7.34),
    (D, acc.Workload(0.9), 3, mech.BandedInverse, 5.55),
]


@pytest.mark.parametrize(("pattern", "workload", "vectors", "kind", "most"), BEST)
def test_the_best_mechanism(
    pattern: Any, workload: acc.Workload, vectors: int | None, kind: type, most: float
) -> None:
    found = best_mechanism(8, 1e-5, pattern, workload=workload, max_vectors=vectors)
    assert isinstance(found, kind) and isinstance(found, mech.ToeplitzMechanism)
    sigma = acc.noise_multiplier(8, 1e-5, acc.sensitivity_squared(pattern, found))
    assert sigma * acc.mechanism_error(found, pattern, workload).rms <= most
    assert found.rounded("float32") == found
    assert vectors is None or found.vectors <= vectors


@pytest.mark.parametrize("rank_by", ["rms", "last"])
def test_two_taps_are_the_best_ones_under_any_schedule(rank_by: Any) -> None:
    pattern, generator = acc.SinglePass(86), np.random.default_rng(0)
    for _ in range(6):
        rates = generator.random(86) * (generator.random(86) < 0.7)
        workload = acc.Workload(0.9, 1.5, [0.1, *rates[1:].tolist()])

        def score(mechanism: mech.Mechanism, workload: acc.Workload = workload) -> float:
            zeta = acc.sensitivity_squared(pattern, mechanism)
            error = acc.mechanism_error(mechanism, pattern, workload)
            return float(np.sqrt(zeta) * getattr(error, rank_by))

        found = mech.optimise("anticorrelated", pattern, workload, rank_by=rank_by)
        tried = [mech.BandedInverse.anticorrelated(lam) for lam in np.linspace(0.02, 0.98, 49)]
        least = min(map(score, tried))
        assert score(found) <= 1.001 * least
        best = best_mechanism(
            2, 1e-5, pattern, workload=workload, max_vectors=None, rank_by=rank_by
        )
        assert score(best) <= (1.001 + planner.WORTH) * least


def test_trees_are_ranked_by_the_bound_of_the_plan() -> None:
    # A bound of "exact" has less noise only where the zeta of the released prefixes is larger.
    pattern = acc.MinSeparation(64, 3, 5)
    search = {
        bound: planner._Search(pattern, acc.Workload(), None, None, "rms", bound)
        for bound in ("exact", "released")
    }
    for bound, one in search.items():
        zeta = acc.sensitivity_squared(pattern, mech.Tree(), bound=bound)
        error = acc.mechanism_error(mech.Tree(), 64).rms
        assert one.score(mech.Tree()) == pytest.approx(np.sqrt(zeta) * error)
    two = mech.BandedInverse.anticorrelated(0.5)
    assert search["exact"].score(two) == search["released"].score(two)
    assert search["exact"].score(mech.Tree()) != search["released"].score(mech.Tree())


def test_of_equal_errors_the_cheaper_one_is_chosen() -> None:
    two = best_mechanism(8, 1e-5, A, workload=acc.Workload(0.9))
    assert isinstance(two, mech.BandedInverse) and two.bands == 2
    assert best_mechanism(8, 1e-5, acc.SinglePass(1)) == mech.Identity()
    assert best_mechanism(8, 1e-5, D, max_vectors=0, max_normals=1) == mech.Identity()


# ---- Lower bound ----


@pytest.mark.parametrize(
    ("pattern", "wanted"), [(A, 36.3381201), (B, 3.12207433), (C, 13.9623409), (D, 9.17713014)]
)
def test_lower_bounds(pattern: Any, wanted: float) -> None:
    found = acc.plan_mechanism(8, 1e-5, pattern, max_vectors=0, max_normals=1).lower_bound
    assert found == pytest.approx(wanted * 0.600229072, rel=1e-8)


@pytest.mark.parametrize(
    "workload",
    [
        acc.Workload(),
        acc.Workload(0.9),
        acc.Workload(0.0, 0.1),
        acc.Workload(0.7, 0.2, np.linspace(0.5, 0.1, 50).tolist()),
    ],
    ids=range(4),
)
def test_the_nuclear_norm_is_the_sum_of_singular_values(workload: acc.Workload) -> None:
    wanted = np.linalg.svd(matrix(workload, 50), compute_uv=False).sum()
    assert nuclear_norm(workload, 50) == pytest.approx(wanted, rel=1e-9)
    if workload.learning_rates is None:
        for steps in (1, 2):
            wanted = np.linalg.svd(matrix(workload, steps), compute_uv=False).sum()
            assert nuclear_norm(workload, steps) == pytest.approx(wanted, rel=1e-12)


def test_no_nuclear_norm_of_long_runs_or_of_rates_0() -> None:
    assert nuclear_norm(acc.Workload(0.9), 5001) is None
    assert nuclear_norm(acc.Workload(), 5001) is not None
    assert nuclear_norm(acc.Workload(learning_rates=[1, 0]), 2) is None


# ---- A comparison that needs sampling ----


def test_amplified_dpsgd_is_a_row_and_never_the_best() -> None:
    pytest.importorskip("dp_accounting", reason="needs the package dp-accounting")
    found = acc.plan_mechanism(
        8, 1e-5, D, max_vectors=0, max_normals=1, batch_size=500, population=50_000
    )
    first = found[0]
    assert first.needs_sampling and first.mechanism == mech.Identity()
    assert "needs sampling" in first.words and found.best is found[1]
    epsilon = acc.dpsgd_epsilon(first.noise_multiplier, 0.01, 1000, 1e-5, "pld")
    assert 7.95 < epsilon <= 8
    assert found.notes == ()


def test_without_the_package_the_row_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> float:
        raise ModuleNotFoundError

    monkeypatch.setattr(planner, "dpsgd_noise_multiplier", missing)
    found = acc.plan_mechanism(
        8, 1e-5, D, max_vectors=0, max_normals=1, batch_size=1, population=10
    )
    assert len(found) == 1 and "pip install dp-accounting" in found.notes[0]
    assert found.notes[0] in str(found)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_vectors": -1}, ValueError, "max_vectors must be an integer >= 0, got -1"),
        ({"max_vectors": 1.0}, TypeError, "max_vectors must be an integer >= 0"),
        ({"max_normals": 0}, ValueError, "max_normals must be an integer >= 1, got 0"),
        ({"rank_by": "smoothed"}, ValueError, "rank_by must be one of"),
        ({"workload": 0.9}, TypeError, "workload must be a Workload"),
        ({"workload": acc.Workload(learning_rates=[1.0])}, ValueError, "one rate for each of"),
        ({"epsilon": -1.0}, ValueError, "epsilon must be"),
        ({"delta": 0.0}, ValueError, "delta must be"),
        ({"participation": 1000}, TypeError, "participation must be"),
        ({"participation": acc.SinglePass(2**27)}, ValueError, r"at most 2\^26"),
    ],
)
@pytest.mark.parametrize("function", [acc.plan_mechanism, best_mechanism])
def test_refuses(function: Any, options: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        function(**{"epsilon": 8.0, "delta": 1e-5, "participation": D, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 5}, "batch_size and population must be given together"),
        ({"population": 5}, "batch_size and population must be given together"),
        ({"batch_size": 6, "population": 5}, "batch_size must be at most the population, 5, got 6"),
        ({"batch_size": 0, "population": 5}, "batch_size must be an integer >= 1"),
    ],
)
def test_refuses_a_sample_that_is_none(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        acc.plan_mechanism(8, 1e-5, D, **options)
