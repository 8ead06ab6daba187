# SPDX-License-Identifier: Apache-2.0
"""The paper's tables of StackOverflow, to the digit, and the smaller figures beside them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast.experiments.federated.report_goals import (
    DELTA,
    NOISE_PER_REPORT,
    ORDERS,
    REPORT_GOALS,
    ROUNDS,
    SINGLE_PASS,
    epsilons,
    pass_sensitivity,
    smallest_goal,
    study,
)
from dpftrl_fast.experiments.results import Results
from dpftrl_fast.experiments.study import Laboratory


def paper_epsilon(sigma, zeta):
    """Epsilon of the paper's accountant, by its formula in plain floats."""
    return min(
        alpha * zeta / (2 * sigma**2)
        + math.log((alpha - 1) / alpha)
        - (math.log(DELTA) + math.log(alpha)) / (alpha - 1)
        for alpha in [1 + k / 10 for k in range(1, 100)] + list(range(12, 64))
    )


def paper_zeta(population, goal):
    per = population // goal
    return math.ceil(ROUNDS / per) * (math.floor(math.log2(min(per, ROUNDS))) + 1)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("goals") / "results.jsonl"
    return study(Laboratory("report-goals", Results(path)), quick=True), path


def test_the_published_pairs_are_reproduced_to_the_digit(report):
    rows = report[0].data
    assert len(rows) == len(SINGLE_PASS) + len(REPORT_GOALS) == 11
    for row in rows:
        assert f"{row['rdp']:.2f}" == f"{row['published']:.2f}"
        assert row["released"] < row["exact"] < row["rdp"]
        assert row["zeta_released"] < row["zeta"]
    for (population, goal, _), row in zip(REPORT_GOALS, rows[len(SINGLE_PASS) :], strict=True):
        sigma = 0.00149 * goal
        assert (row["population"], row["goal"]) == (population, goal)
        assert row["zeta"] == paper_zeta(population, goal)
        assert row["rdp"] == pytest.approx(paper_epsilon(sigma, row["zeta"]), rel=1e-12)
        assert row["exact"] == acc.epsilon(sigma, row["zeta"], 1e-6)
        assert acc.delta(sigma, row["zeta_released"], row["released"]) <= 1e-6


def test_exact_figures_of_the_single_pass(report):
    found = [round(row["exact"], 3) for row in report[0].data[: len(SINGLE_PASS)]]
    assert found == [17.667, 7.342, 3.920, 2.424, 1.649]
    assert {row["zeta"] for row in report[0].data[: len(SINGLE_PASS)]} == {11}


def test_the_tables_and_the_figure(report):
    tables, figures = report[0].tables, report[0].figures
    assert [len(table.rows) for table in tables] == [5, 6]
    for table in tables:
        published, rdp = table.heading.index("epsilon published"), -3
        assert all(row[published] == row[rdp] for row in table.rows)
        assert "| exact | released |" in table.markdown()
    assert [*figures] == ["federated_report_goals.png"]
    assert figures["federated_report_goals.png"].startswith(b"\x89PNG\r\n\x1a\n")


def test_no_figure_but_the_papers_own_is_below_its_epsilon(report):
    data = report[0].data
    rows = [row for table in report[0].tables for row in table.rows]
    for values, row in zip(data, rows, strict=True):
        for text, name in zip(row[-2:], ("exact", "released"), strict=True):
            assert values[name] <= float(text) < values[name] + 0.01
    assert all(table.heading[-3].endswith("to nearest") for table in report[0].tables)


def test_the_docs_have_the_tables_of_the_code(report):
    text = (Path(__file__).parents[2] / "docs" / "results" / "federated.md").read_text()
    for table in report[0].tables:
        for row in table.rows:
            assert f"| {' | '.join(row)} |" in text


def test_a_second_run_takes_everything_from_the_results(report):
    laboratory = Laboratory("report-goals", Results(report[1]))
    assert study(laboratory, quick=True).data == report[0].data
    assert laboratory.done == 0


@pytest.mark.parametrize(("population", "goal"), [(5_000, 1), (342_477, 214), (20_000, 9_000)])
def test_sensitivities_are_the_papers(population, goal):
    assert pass_sensitivity(population, goal) == paper_zeta(population, goal)
    released = pass_sensitivity(population, goal, "released")
    assert 0 < released <= pass_sensitivity(population, goal)


def test_a_goal_beyond_the_population_is_refused():
    for goal in (0, 11, -1):
        with pytest.raises(ValueError, match=rf"goal must be an integer in \[1, 10\], got {goal}"):
            pass_sensitivity(10, goal)
    with pytest.raises(ValueError, match="no report goal up to 10 has epsilon"):
        smallest_goal(10, 1.0)


@pytest.mark.parametrize(
    ("accountant", "epsilon"),
    [("rdp", 20_000.0), ("exact", 40.0), ("exact", 400.0), ("released", 40.0)],
)
def test_the_smallest_goal_is_the_first_that_is_enough(accountant, epsilon):
    population = 20_000
    bound = "released" if accountant == "released" else "exact"

    def at(goal):
        zeta = pass_sensitivity(population, goal, bound)
        if accountant == "rdp":
            return acc.epsilon(NOISE_PER_REPORT * goal, zeta, DELTA, "rdp", orders=ORDERS)
        return acc.epsilon(NOISE_PER_REPORT * goal, zeta, DELTA)

    found = smallest_goal(population, epsilon, accountant)
    first = next(goal for goal in range(1, population) if at(goal) <= epsilon)
    assert found == first


def test_epsilons_have_a_figure_for_each_accountant():
    found = epsilons(2.33, 11, 9.5)
    assert [*found] == ["rdp", "exact", "released"]
    assert found["exact"] > found["released"] == acc.epsilon(2.33, 9.5, 1e-6)
