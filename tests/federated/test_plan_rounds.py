# SPDX-License-Identifier: Apache-2.0
"""`plan_rounds`: the paper's pairs, the accountant's figures, and searches against brute force."""

from __future__ import annotations

import json
import math
import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.experiments.federated.report_goals import (
    DELTA,
    ORDERS,
    REPORT_GOALS,
    ROUNDS,
    SINGLE_PASS,
    smallest_goal,
)
from dpftrl_fast.federated import ServerDPFTRL, plan_rounds
from dpftrl_fast.mechanisms import BandedInverse, Tree
from tests.support.command_line import run, run_json

PAPER = {"answers": 1.0, "mechanism": "tree each pass", "participation": "passes"}
SMALL = {"population": 2_000, "rounds": 50, "epsilon": 4.0, "delta": 1e-5}


@pytest.mark.parametrize("published", REPORT_GOALS, ids=str)
def test_the_papers_report_goals(published):
    population, goal, epsilon = published
    found = {
        bound: plan_rounds(
            population, ROUNDS, None, DELTA, report_goal=goal, noise_ratio=0.00149, bound=bound,
            **PAPER,
        )
        for bound in ("exact", "released")
    }  # fmt: skip
    plan = found["exact"].plan
    per = population // goal
    assert plan.sensitivity_squared == math.ceil(ROUNDS / per) * (
        math.floor(math.log2(min(per, ROUNDS))) + 1
    )
    assert plan.noise_multiplier == 0.00149 * goal
    rdp = acc.epsilon(plan.noise_multiplier, plan.sensitivity_squared, DELTA, "rdp", orders=ORDERS)
    assert f"{rdp:.2f}" == f"{epsilon:.2f}"
    exact = acc.epsilon(plan.noise_multiplier, plan.sensitivity_squared, DELTA)
    for bound, row in found.items():
        if goal == 100:  # the noise is so small that its finite tail has delta 0.28
            assert row.epsilon_zero_out is row.epsilon_replace_one is None
            assert "no epsilon" in row.describe()
        else:
            assert row.epsilon_zero_out == row.plan.epsilon(DELTA)
            assert exact * (0.5 if bound == "released" else 1.0) <= row.epsilon_zero_out < rdp
    if goal > 100:
        assert found["released"].epsilon_zero_out < found["exact"].epsilon_zero_out


@pytest.mark.parametrize(("sigma", "epsilon"), SINGLE_PASS)
def test_the_papers_single_pass(sigma, epsilon):
    found = plan_rounds(
        342_477, ROUNDS, None, DELTA, report_goal=100, noise_ratio=sigma / 100, bound="exact",
        **PAPER,
    )  # fmt: skip
    assert found.plan.sensitivity_squared == 11 and found.participations == 1
    rdp = acc.epsilon(found.plan.noise_multiplier, 11, DELTA, "rdp", orders=ORDERS)
    assert f"{rdp:.2f}" == f"{epsilon:.2f}"


def test_the_smallest_goal_is_that_of_the_papers_table():
    found = plan_rounds(
        342_477, ROUNDS, 9.76, DELTA, noise_ratio=0.00149, bound="exact", **PAPER
    )  # fmt: skip
    assert found.report_goal == smallest_goal(342_477, 9.76) == 4_599
    assert found.epsilon_zero_out <= 9.76 and found.noise_ratio <= 0.00149


@pytest.mark.parametrize(
    ("population", "rounds", "goal", "answers"),
    [(10_000, 300, 90, 0.9), (5_000, 64, 300, 0.75), (1_000, 40, 1_000, 1.0), (999, 20, 30, 0.6)],
)
@pytest.mark.parametrize("mechanism", ["auto", Tree(), "tree each pass"], ids=str)
def test_figures_of_any_time_are_the_accountants(population, rounds, goal, answers, mechanism):
    found = plan_rounds(
        population, rounds, 8.0, 1e-6, report_goal=goal, answers=answers, mechanism=mechanism
    )
    cohort = next(n for n in range(goal, 10**6) if n * answers >= goal * (1 - 1e-12))
    assert found.cohort_size == cohort
    apart = max(b for b in range(1, rounds + population) if b * cohort <= population)
    assert found.rounds_per_pass == apart
    pattern = acc.SinglePass(rounds)
    if apart < rounds:
        pattern = acc.MinSeparation(rounds, math.ceil(rounds / apart), apart)
    assert found.plan.participation == pattern
    assert (found.min_separation, found.participations) == (
        min(apart, rounds),
        math.ceil(rounds / apart),
    )
    zeta = acc.sensitivity_squared(pattern, found.mechanism, bound="released")
    assert found.plan.sensitivity_squared == zeta
    assert found.epsilon_zero_out == found.plan.epsilon(1e-6) <= 8.0
    assert found.plan.with_noise(found.plan.noise_multiplier * (1 - 1e-9)).epsilon(1e-6) > 8.0
    assert found.epsilon_replace_one == found.plan.epsilon(1e-6, neighbours="replace-one")
    unit = acc.mechanism_error(found.mechanism, rounds).rms
    assert found.error == pytest.approx(unit * found.plan.noise_multiplier / goal, rel=1e-12)


@pytest.mark.parametrize("answers", [0.9, 0.7, 0.3, 1.0])
def test_a_cohort_is_the_goal_over_the_share_without_rounding_of_floats(answers):
    for goal in range(1, 400):
        found = plan_rounds(
            10_000, 1, 1.0, 1e-6, report_goal=goal, answers=answers, mechanism=Tree()
        )
        assert found.cohort_size == -(-goal * 10 // round(answers * 10))


@pytest.mark.parametrize("participation", ["any time", "passes"])
def test_the_population_is_enough_for_the_cohorts_and_for_no_larger_ones(participation):
    found = plan_rounds(
        103, 20, 8.0, 1e-3, report_goal=9, participation=participation, mechanism=Tree()
    )
    assert found.cohort_size == 10 and found.rounds_per_pass == 10 and found.participations == 2

    def full_rounds(cohort):
        guard, full = found.plan.guard(), 0
        for _ in range(found.rounds):
            fixed = guard.expected()
            users = np.arange(103)[guard.eligible(np.arange(103))] if fixed is None else fixed
            full += users.size >= cohort
            guard.admit(users[:cohort])
        return full

    assert full_rounds(10) == 20
    assert full_rounds(11) < 20


def test_over_selection_uses_up_users_and_leaves_the_divisor():
    few, many = (
        plan_rounds(**SMALL, report_goal=100, answers=answers, mechanism=Tree())
        for answers in (1.0, 0.5)
    )
    assert (few.cohort_size, many.cohort_size) == (100, 200)
    assert few.report_goal == many.report_goal == 100
    assert (few.participations, many.participations) == (3, 5)
    assert few.plan.noise_multiplier < many.plan.noise_multiplier


@pytest.mark.parametrize(
    ("name", "target", "options"),
    [
        ("noise_ratio", 0.05, {"mechanism": Tree()}),
        ("noise_ratio", 0.06, {"mechanism": Tree(), "answers": 0.7}),
        ("noise_ratio", 0.02, {"mechanism": "tree each pass", "participation": "passes"}),
        ("noise_ratio", 0.3, {"mechanism": BandedInverse.square_root(4)}),
        ("error", 0.1, {}),
        ("error", 0.1, {"workload": acc.Workload(0.9), "neighbours": "replace-one"}),
    ],
)
def test_the_smallest_goal_is_the_first_that_is_enough(name, target, options):
    found = plan_rounds(**SMALL, **{name: target}, **options)
    first = next(
        goal
        for goal in range(1, 2_000)
        if getattr(plan_rounds(**SMALL, report_goal=goal, **options), name) <= target
    )
    assert found.report_goal == first > 1
    assert found.plan == plan_rounds(**SMALL, report_goal=first, **options).plan


def test_a_budget_for_replace_one_is_kept_and_used_up():
    found = plan_rounds(**SMALL, report_goal=100, neighbours="replace-one")
    assert found.epsilon_replace_one <= 4.0 and found.epsilon_zero_out < 2.0
    less = found.plan.with_noise(found.plan.noise_multiplier * (1 - 1e-9))
    assert less.epsilon(1e-5, neighbours="replace-one") > 4.0


def test_all_reports_that_the_server_can_take_are_the_goal():
    assert plan_rounds(**SMALL, most_reports=300).report_goal == 300
    assert plan_rounds(**SMALL, most_reports=10**6).report_goal == 1_800  # 0.9 of the population
    rows = plan_rounds(**SMALL, most_reports=300).alternatives()
    assert [row.report_goal for row in rows] == [75, 150, 300]


def test_alternatives_keep_the_budget_or_the_ratio():
    for row in plan_rounds(**SMALL, report_goal=100).alternatives([50, 500]):
        assert row.plan == plan_rounds(**SMALL, report_goal=row.report_goal).plan
    fixed = plan_rounds(**{**SMALL, "epsilon": None}, report_goal=100, noise_ratio=0.05)
    rows = fixed.alternatives()
    assert [row.noise_ratio for row in rows] == pytest.approx([0.05] * 5, rel=1e-15)
    assert len({row.epsilon_zero_out for row in rows}) == 5


def test_the_figures_are_data_and_the_code_makes_the_server():
    found = plan_rounds(**SMALL, report_goal=100, workload=acc.Workload(0.9), clip_norm=0.5)
    facts = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    plan = PrivacyPlan.from_dict(facts["plan"])
    assert plan == found.plan and plan.clip_norm == 0.5
    names = {"ServerDPFTRL": ServerDPFTRL, "model": [np.zeros(2)], "plan": plan}
    with eval(facts["code"], names) as server:
        assert server.report_goal == 100 and server.plan == found.plan
        assert server._update.options()["momentum"] == 0.9
    assert facts["epsilon"] == server.epsilon(1e-5)
    with pytest.raises(FrozenInstanceError):
        found.report_goal = 1


def test_a_delta_that_is_too_large_is_said():
    assert "delta should be well below" not in plan_rounds(**SMALL, report_goal=9).describe()
    large = plan_rounds(**{**SMALL, "delta": 1e-3}, report_goal=9)
    assert "delta should be well below 1/population, 5.0e-04" in large.describe()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"report_goal": 1_801}, r"cohort of 2002 users .* got 2000: lower report_goal to 1800"),
        ({"report_goal": 301, "most_reports": 300}, "must be at most most_reports 300, got 301"),
        ({}, "report_goal, most_reports, noise_ratio or error must be given, got none"),
        ({"report_goal": 9, "error": 0.1}, "at most one of report_goal, noise_ratio and error"),
        ({"epsilon": None, "report_goal": 9}, "both report_goal and noise_ratio must be given"),
        ({"error": 1e-9}, r"error must be one that .* 1800 reaches, got 1e-09: at goal"),
        ({"noise_ratio": 1e-9, "most_reports": 70}, "a report goal up to 70 reaches"),
        ({"report_goal": 9, "answers": 0.0}, "answers must be a finite number > 0 and <= 1"),
        ({"report_goal": 9, "answers": math.nan}, "answers must be a finite number > 0 and <= 1"),
        ({"report_goal": 9, "rounds": 0}, "rounds must be an integer in"),
        ({"report_goal": 9, "participation": "never"}, "participation must be one of 'passes'"),
        ({"report_goal": 9, "mechanism": "tree each day"}, "mechanism must be 'auto', 'tree' or"),
        ({"report_goal": 9, "delta": 1.0}, "delta must be"),
    ],
)
def test_refusals_name_the_remedy(changed, message):
    with pytest.raises(ValueError, match=message):
        plan_rounds(**{**SMALL, **changed})


# ---- The docs and the command line ----

DOCS = Path(__file__).parents[2] / "docs"


def test_the_docs_have_the_table_of_the_code():
    found = plan_rounds(
        342_477, 1_600, 8.0, 1e-6, report_goal=1_000, workload=acc.Workload(momentum=0.9)
    )
    text = (DOCS / "federated" / "start.md").read_text()
    for row in found.alternatives():
        figures = f"{row.plan.noise_multiplier:.3f} | {row.noise_ratio:.5f} | {row.error:.5f}"
        cohorts = f"{row.cohort_size:,} | {row.min_separation:,} | {row.participations}"
        assert f"| {row.report_goal:,} | {cohorts} | {figures} |" in text


def test_the_docs_show_what_the_command_prints():
    command, shown = re.findall(
        r"```\n\$ dpftrl-fast (plan-rounds [^\n]*)\n(.*?)```",
        (DOCS / "runs" / "cli.md").read_text(),
        re.DOTALL,
    )[0]
    printed = [line.rstrip() for line in run(*command.split()).stdout.splitlines()]
    for line in shown.splitlines():
        assert line == " ..." or line in printed


OPTIONS = ("plan-rounds", "--population", 2_000, "--rounds", 50, "--delta", 1e-5)


def test_the_command_prints_the_same_figures(tmp_path):
    out = tmp_path / "plan.json"
    options = ("--epsilon", 4, "--report-goal", 100, "--momentum", 0.9, "--goal", 50, "--goal", 80)
    facts = run_json(*OPTIONS, *options, "--out", out)
    found = plan_rounds(**SMALL, report_goal=100, workload=acc.Workload(0.9))
    assert facts.items() >= found.to_dict().items()
    assert [row["report_goal"] for row in facts["alternatives"]] == [50, 80]
    assert facts["alternatives"][1]["error"] == found.alternatives([80])[0].error
    assert PrivacyPlan.load(out) == found.plan and facts["out"] == str(out)
    assert "exists; --force" in run(*OPTIONS, *options, "--out", out, code=2).stderr


def test_the_command_shows_the_table_and_the_call(tmp_path):
    shown = run(*OPTIONS, "--epsilon", 4, "--error", 0.05, "--mechanism", "tree-each-pass",
                "--participation", "passes", "--neighbours", "replace-one",
                "--out", tmp_path / "p.json")  # fmt: skip
    found = plan_rounds(**SMALL, error=0.05, neighbours="replace-one", mechanism="tree each pass",
                        participation="passes")  # fmt: skip
    assert f"{found.report_goal:,}  (divisor" in shown.stdout
    assert f"{found.plan.noise_multiplier:.6g}" in shown.stdout
    assert f"PrivacyPlan.load('{tmp_path / 'p.json'}'), report_goal={found.report_goal})" in (
        shown.stdout.replace("\n", "")
    )


def test_the_command_says_that_there_is_no_epsilon():
    shown = run(*OPTIONS, "--report-goal", 100, "--noise-ratio", 0.001)
    assert "no epsilon can be stated at delta 1e-05" in shown.stderr and "none" in shown.stdout
    assert run_json(*OPTIONS, "--report-goal", 100, "--noise-ratio", 0.001)["epsilon"] is None
    assert "both report_goal and noise_ratio" in run(*OPTIONS, code=2).stderr


def test_a_population_without_one_answer_is_told_what_to_raise() -> None:
    with pytest.raises(ValueError, match="got 1: raise answers or population"):
        plan_rounds(1, 5, 8.0, 1e-6, report_goal=1)
