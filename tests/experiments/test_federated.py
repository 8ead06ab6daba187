# SPDX-License-Identifier: Apache-2.0
"""The federated experiment: methods by their definition, the grid, the search, the command."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from command_line import run, run_json
from next_token_cases import SIZES, some_clients

from dpftrl_fast import accounting as acc
from dpftrl_fast.experiments.climbing import climb
from dpftrl_fast.experiments.federated import command as federated
from dpftrl_fast.experiments.federated import methods as federated_methods
from dpftrl_fast.experiments.federated import report as federated_report
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.federated.grid import all_methods, grid, held_out
from dpftrl_fast.experiments.federated.methods import (
    Budget,
    Method,
    Setting,
    cohorts,
    ftrl_plan,
    noise_multiplier_of,
    train,
)
from dpftrl_fast.experiments.federated.report import claims_table, scores_table, search_tables
from dpftrl_fast.experiments.federated.search import (
    Found,
    epsilons_at_goals,
    largest_noise,
    largest_passing,
)
from dpftrl_fast.experiments.federated.tuning import Fitted, Stage
from dpftrl_fast.experiments.fitted import Cell
from dpftrl_fast.experiments.results import Results
from dpftrl_fast.experiments.study import Laboratory

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def population():
    return Population(some_clients(), SIZES, 256)


# ---- Methods ----

SETTING = Setting(0.5, 0.15, 2.0)
ALL = Budget(8.0, 1e-4, 40, 1)  # one round of all


def rounds_of(method, budget, population, *, noise, seed=0, setting=SETTING):
    found = [population.sizes.initial(seed)]
    train(
        method, budget, population, setting, noise=noise, seed=seed,
        each_round=lambda number, theta: found.append(theta),
    )  # fmt: skip
    return found


@pytest.mark.parametrize("kind", ["ftrl", "fixed", "amplified"])
def test_noise_has_the_multiplier_and_is_divided_by_the_goal(kind, population):
    budget = Budget(8.0, 1e-4, 40 if kind != "amplified" else 80, 1)
    ends = [
        rounds_of(Method(kind, 0.9), budget, population, noise=noise)[-1] for noise in (50.0, 1e-9)
    ]
    noise = (ends[0] - ends[1]) * budget.report_goal / SETTING.server_rate
    assert float(noise.std()) == pytest.approx(0.15 * 50.0, rel=0.05)
    assert abs(float(noise.mean())) < 5 * 7.5 / math.sqrt(SIZES.parameters)


def test_without_noise_one_round_is_the_mean_of_clipped_updates(population):
    first, end = rounds_of(Method("ftrl", 0.9), ALL, population, noise=1e-9)
    updates = [population.update(k, first, 0.5).astype(np.float64) for k in range(40)]
    norms = [np.linalg.norm(u) for u in updates]
    assert min(norms) < 0.15 < max(norms)
    mean = sum(u * min(1.0, 0.15 / n) for u, n in zip(updates, norms, strict=True)) / 40
    np.testing.assert_allclose(end - first, 2.0 * mean, atol=1e-6)


@pytest.mark.parametrize("kind", ["ftrl", "fixed"])
def test_a_client_less_changes_the_sum_by_no_more_than_the_clip_norm(kind, population, monkeypatch):
    ends = [rounds_of(Method(kind), ALL, population, noise=1.0)[1].astype(np.float64)]
    whole = population.update
    for left_out in (3, 11):
        monkeypatch.setattr(
            population, "update",
            lambda k, *rest, left_out=left_out: whole(k, *rest) * np.float32(k != left_out),
        )  # fmt: skip
        ends.append(rounds_of(Method(kind), ALL, population, noise=1.0)[1])
    for end in ends[1:]:
        change = np.linalg.norm(ends[0] - end) * 40 / 2.0
        assert 0.0 < change <= 0.15 * (1 + 1e-4)


def test_updates_that_are_not_finite_count_as_zero(population, monkeypatch):
    whole = population.update

    def update(client, *rest):
        return whole(client, *rest) * np.float32(np.nan if client == 5 else 1.0)

    monkeypatch.setattr(population, "update", update)
    nan = rounds_of(Method("fixed"), ALL, population, noise=1.0)[1]
    monkeypatch.setattr(population, "update", lambda k, *rest: whole(k, *rest) * (k != 5))
    assert np.array_equal(nan, rounds_of(Method("fixed"), ALL, population, noise=1.0)[1])


@pytest.mark.parametrize(
    "method", [m for m in all_methods(2) if m.kind in ("ftrl", "planned") and m.momentum]
)
def test_ftrl_is_the_server_of_the_library(method, population):
    from dpftrl_fast.federated import ServerDPFTRL

    budget, noise = Budget(8.0, 1e-4, 15, 2), 1e-6  # too little to matter: seeds differ
    wanted = rounds_of(method, budget, population, noise=noise)
    plan = ftrl_plan(method, budget, 40, SETTING.clip_norm, noise)
    server = ServerDPFTRL(
        SIZES.arrays(wanted[0]), plan=plan, report_goal=15, learning_rate=2.0,
        momentum=method.momentum, noise_seed=0,
    )  # fmt: skip
    for ids, theta in zip(cohorts(method, budget, 40, 0), wanted[1:], strict=True):
        now = server.begin_round([int(i) for i in ids])
        assert len(now.cohort) == len(ids)  # nobody is turned away: the plan has declared them
        sent = np.concatenate([array.ravel() for array in server.parameters.values()])
        for client in now.cohort:
            update = population.update(int(client), sent, 0.5)
            assert now.add(client, SIZES.arrays(update), token=now.token) is None
        found = server.end_round()
        flat = np.concatenate([array.ravel() for array in found.values()])
        np.testing.assert_allclose(flat, theta, atol=2e-4)


def test_runs_follow_from_their_seed(population):
    budget = Budget(8.0, 1e-4, 20, 2)
    for method in (Method("ftrl", 0.9, 1), Method("amplified")):
        a, b, c = (rounds_of(method, budget, population, noise=1.0, seed=s)[-1] for s in (0, 0, 1))
        assert np.array_equal(a, b) and not np.array_equal(a, c)


@pytest.mark.parametrize("method", all_methods(3))
def test_cohorts_are_what_the_plan_declares(method):
    budget, clients = Budget(8.0, 1e-4, 20, 3), 103
    found = list(cohorts(method, budget, clients, 0))
    assert len(found) == 3 * 6
    if method.kind == "amplified":
        return
    passes = [found[:6], found[6:12], found[12:]]
    for a_pass in passes:
        assert np.array_equal(np.sort(np.concatenate(a_pass)), np.arange(clients))
    same = [np.array_equal(passes[0][0], a_pass[0]) for a_pass in passes[1:]]
    assert not any(same) if method.kind == "fixed" or method.restart else all(same)
    if method.kind in ("ftrl", "planned"):
        guard = ftrl_plan(method, budget, clients, 0.3, 1.0).guard()
        for ids in found:
            guard.admit(ids)


def test_samples_have_the_expected_size():
    budget = Budget(8.0, 1e-4, 50, 20)
    sizes = [len(ids) for ids in cohorts(Method("amplified"), budget, 1000, 0)]
    assert len(sizes) == 400
    assert np.mean(sizes) == pytest.approx(50, abs=5 * math.sqrt(47.5 / 400))
    assert np.var(sizes) == pytest.approx(47.5, rel=0.3)


def test_noise_keeps_the_budget():
    budget = Budget(8.0, 1e-4, 78, 4)
    for method in all_methods(4):
        if method.kind in ("ftrl", "planned"):
            noise = noise_multiplier_of(method, budget, 1242)
            assert 7.99 < ftrl_plan(method, budget, 1242, 0.3, noise).epsilon(1e-4) <= 8.0
    fixed = noise_multiplier_of(Method("fixed"), budget, 1242)
    assert fixed == acc.noise_multiplier(8.0, 1e-4, 4)
    pytest.importorskip("dp_accounting")
    amplified = noise_multiplier_of(Method("amplified"), budget, 1242, quick=True)
    assert acc.dpsgd_epsilon(amplified, 78 / 1242, 64, 1e-4) <= 8.0 and amplified < fixed


# ---- The grid, the rates, the search ----


def test_the_reduced_grid_is_scaled_and_the_full_one_has_all_methods():
    for data in ("shakespeare", "online-retail"):
        full, reduced = grid(data, "full"), grid(data, "reduced")
        methods = {cell.method for cell in full.cells}
        assert methods == set(all_methods(6)) and len(full.cells) == 14 * 4
        assert {cell.method for cell in reduced.cells} <= methods
        assert len(set(reduced.cells)) == len(reduced.cells)
        assert full.sizes.embedding == 96 and full.most_examples == 256
        assert reduced.sizes.vocabulary == reduced.words + 4
    large = grid("shakespeare-96", "reduced")
    assert large.sizes == grid("shakespeare", "full").sizes and large.most_examples == 256
    assert {cell.method for cell in large.cells} <= set(all_methods(6)) and large == grid(
        "shakespeare-96", "full"
    )
    names = [method.name for method in all_methods(6)]
    assert len(set(names)) == len(names) == 14
    assert held_out(1242) == 124 and held_out(3) == 1


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_the_reduced_grid_compares_all_mechanisms_at_three_epsilons(momentum):
    epsilons = {}
    for method, budget in grid("shakespeare", "reduced").cells:
        epsilons.setdefault(method, set()).add(budget.epsilon)
    for kind in ("planned", "fixed", "amplified"):
        assert epsilons[Method(kind, momentum)] == {4.0, 8.0, 16.0}
    assert epsilons[Method("ftrl", momentum, 1)] == {4.0, 8.0, 16.0}


def test_rates_are_climbed_until_both_neighbours_are_worse():
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return [-((k - (-3, 2)[place]) ** 2) for place, k in pairs]

    assert climb(score, [0, 1], lowest=-5, highest=5) == [-3, 2]
    assert len(set(asked)) == len(asked)
    assert sorted(k for place, k in asked if place == 1) == [0, 1, 2, 3]
    assert climb(score, [0, 1], lowest=-5, highest=5, rounds=1) == [-1, 2]
    alike = climb(lambda pairs: [0.5 for _ in pairs], [0], lowest=-5, highest=5)
    assert alike == [-5]


def fitted_at(noises, means):
    method = Method("ftrl", 0.9, 1)
    return [
        Fitted(Cell(method, Budget(e, 1e-4, 78, 4)), (mean, mean), SETTING, noise)
        for e, noise, mean in zip((4.0, 8.0, 16.0), noises, means, strict=True)
    ]


@pytest.fixture
def searched(monkeypatch, tmp_path, population):
    """The search with an accuracy that is 0.2/(1 + noise), and the noises it fits."""
    asked = []

    def accuracy(method, budget, population, setting, *, noise, seed):
        asked.append(noise)
        return 0.2 / (1.0 + noise)

    monkeypatch.setattr("dpftrl_fast.experiments.federated.tuning.train", accuracy)
    laboratory = Laboratory("demo", Results(tmp_path / "results.jsonl"))
    noises = (4.0, 2.0, 1.0)
    fitted = fitted_at(noises, [0.2 / (1 + noise) for noise in noises])

    def search(target):
        return largest_noise(laboratory, Stage("test", population, {}), fitted, target, 2)

    return search, asked


@pytest.mark.parametrize(
    ("target", "largest", "fits"), [(0.05, 3.0, 6), (0.019, 9.53, 10), (0.12, 2 / 3, 8)]
)
def test_the_largest_noise_is_found(searched, target, largest, fits):
    search, asked = searched
    found = search(target)
    assert found.noise <= largest < found.misses <= found.noise * 2 ** (1 / 8) * 1.0001
    assert found.accuracy == 0.2 / (1.0 + found.noise) >= target
    assert len(asked) == fits
    epsilon = found.cell.budget.epsilon
    assert epsilon == ftrl_plan(*found.cell, 40, 1.0, found.noise).epsilon(1e-4)


@pytest.mark.parametrize("target", [0.19, 0.001])
def test_accuracies_beyond_the_range_are_not_found(searched, target):
    assert searched[0](target) is None


def test_halving_stays_between_the_ends():
    assert largest_passing(lambda x: x < 7.0, 1.0, 64.0, halvings=1) == (1.0, 8.0)
    low, high = largest_passing(lambda x: x < 7.0, 1.0, 64.0, halvings=30)
    assert low == pytest.approx(7.0) and high == pytest.approx(7.0) and low < 7.0 <= high


def test_more_clients_with_as_much_noise_on_the_mean_cost_less():
    budget = Budget(7.0, 1e-4, 78, 4)
    found = Found(Cell(Method("ftrl", 0.9, 1), budget), 0.05, 2.0, 0.051, 2.2)
    rows = epsilons_at_goals(found, 1242, (1, 2, 16))
    assert [row["clients"] for row in rows] == [1242, 2484, 19872]
    assert [row["noise_multiplier"] / row["report_goal"] for row in rows] == [2.0 / 78] * 3
    epsilons = [row["epsilon"] for row in rows]
    assert epsilons == sorted(epsilons, reverse=True)
    zeta = ftrl_plan(*found.cell, 1242, 1.0, 2.0).sensitivity_squared
    assert epsilons[2] == pytest.approx(acc.epsilon(32.0, zeta, 1e-4), rel=1e-3)
    first, second = search_tables("demo", [found], 1242)
    assert len(first.rows) == 1 and len(second.rows) == len(federated_report._FACTORS)
    assert search_tables("demo", [], 1242) == []
    # No printed epsilon is below the one that it stands for.
    low = found._replace(cell=Cell(found.cell.method, replace(budget, epsilon=4.3541)))
    first, second = search_tables("demo", [low], 1242)
    assert first.rows[0][-1] == "4.36"
    exact = epsilons_at_goals(found, 1242, federated_report._FACTORS)
    for row, facts in zip(second.rows, exact, strict=True):
        assert facts["epsilon"] <= float(row[-1]) < facts["epsilon"] + 0.01


def test_claims_say_in_a_word_what_differs():
    budget = Budget(8.0, 1e-4, 78, 4)
    scores = {
        Method("ftrl", 0.9, 1): (0.092, 0.09, 0.091),
        Method("ftrl", 0.0, 1): (0.085, 0.085, 0.085),
        Method("ftrl", 0.9, 1, "vanilla"): (0.09, 0.092, 0.09),
        Method("ftrl", 0.9): (0.06, 0.06, 0.06),
        Method("fixed", 0.9): (0.08, 0.08, 0.08),
        Method("amplified", 0.9): (0.1, 0.1, 0.1),
        Method("amplified", 0.0): (0.1, 0.1, 0.1),
    }
    fitted = [Fitted(Cell(m, budget), tuple(v), SETTING, 1.0) for m, v in scores.items()]
    rows = {row[0]: row[2:] for row in claims_table("title", fitted).rows}
    ours = "DP-FTRLM, restart 1"
    assert rows[f"{ours}: above DP-FedAvg, not amplified"] == ("+1.10", "0.06", "yes")
    assert rows[f"{ours}: above DP-FedAvg, amplified"] == ("-0.90", "0.06", "no")
    assert rows[f"{ours}: above no momentum"] == ("+0.60", "0.06", "yes")
    assert rows[f"{ours}: above vanilla"] == ("+0.03", "0.09", "no difference")
    assert rows[f"{ours}: above no restart"] == ("+3.10", "0.06", "yes")
    assert rows["DP-FTRL, restart 1: above DP-FedAvg, amplified"][-1] == "no"
    assert rows["DP-FedAvgM, amplified: above no momentum"] == ("+0.00", "0.00", "no difference")
    assert len(rows) == 7
    assert scores_table("title", fitted).rows[0] == (ours, "9.10 (0.10)")


# ---- The whole ----


@pytest.fixture
def small(monkeypatch):
    """A few clients, and a noise multiplier that is found at once."""
    monkeypatch.setattr(federated_methods, "dpsgd_noise_multiplier", lambda e, *rest: 8.0 / e)
    monkeypatch.setattr(federated, "FEDERATED", {"shakespeare": lambda data, words: some_clients()})


def test_the_command_writes_results_tables_and_figures_and_resumes(small, tmp_path):
    arguments = ("experiment", "federated", "--quick", "--out", tmp_path / "o")
    arguments += ("--only", "shakespeare")
    first = run_json(*arguments)["experiments"]["shakespeare"]
    # three methods, two epsilons: three rates, two fits; the noise of one, twice; and the search
    assert first["done"] >= 6 * (3 + 2) + 2 * 2 and len(first["rows"]) >= 6
    assert first["figures"] == ["federated_shakespeare.png"]
    names = {path.name for path in (tmp_path / "o").iterdir()}
    assert names == {"results.jsonl", "shakespeare.md", *first["figures"]}
    assert (tmp_path / "o" / "federated_shakespeare.png").read_bytes()[:8] == PNG
    before = [(tmp_path / "o" / name).read_bytes() for name in ("results.jsonl", "shakespeare.md")]
    shown = run(*arguments)
    assert "DP-FTRLM" in shown.stdout and "0 new fits" in shown.stdout
    assert before == [
        (tmp_path / "o" / name).read_bytes() for name in ("results.jsonl", "shakespeare.md")
    ]


def test_the_table_of_report_goals_is_one_of_the_experiments(tmp_path):
    arguments = ("experiment", "federated", "--quick", "--out", tmp_path, "--only", "report-goals")
    found = run_json(*arguments)["experiments"]["report-goals"]
    assert found["rows"] and (tmp_path / "report-goals.md").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--full", "--quick"), "--full and --quick exclude each other"),
        (
            ("--only", "words"),
            "experiment must be one of 'report-goals', 'shakespeare', got 'words'",
        ),
    ],
)
def test_bad_arguments_are_refused(small, tmp_path, arguments, words):
    result = run("experiment", "federated", *arguments, "--out", tmp_path, code=2)
    assert words in result.stderr


def test_sizes_have_names(tmp_path):
    with pytest.raises(
        ValueError, match="size must be one of 'quick', 'reduced', 'full', got 'small'"
    ):
        next(federated.run_federated([], tmp_path, size="small"))
