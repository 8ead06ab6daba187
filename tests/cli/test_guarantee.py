# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast epsilon``, ``calibrate`` and ``plan``: every pattern, and what the words say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from tree_options import with_tree

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.curve.rounding import fixed_up, text_up
from dpftrl_fast.cli import plan as cli_plan
from dpftrl_fast.cli.output import guarantee_facts, rounded_up
from dpftrl_fast.cli.patterns import read_order
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plots import Curve, error_curves_png

CIFAR = ["--examples", 50_000, "--batch-size", 500, "--epochs", 100, "--delta", 1e-5]
PLAN = ["plan", "--epsilon", 8, *CIFAR, "--mechanism", "tree"]
SMALL = ["plan", "--epsilon", 2, "--steps-per-epoch", 4, "--epochs", 6, "--mechanism", "tree"]


def sigma(*arguments: object) -> list[object]:
    return ["epsilon", "--noise-multiplier", 5, *arguments]


@pytest.fixture
def order(tmp_path: Path) -> Path:
    path = tmp_path / "order.txt"
    path.write_text("1\n2\n3\n1\n4\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("arguments", "participation"),
    [
        (["--steps", 1600], acc.SinglePass(1600)),
        (["--rows", 1001, "--batch-size", 10], acc.SinglePass(101)),
        (["--examples", 1001, "--batch-size", 10, "--epochs", 4], acc.FixedEpochs(101, 4)),
        (["--rows", 30, "--epochs", 4, "--no-reshuffle"], acc.FixedEpochs(30, 4, reshuffle=False)),
        (["--steps-per-epoch", 7, "--epochs", 9], acc.FixedEpochs(7, 9)),
        (["--steps", 64, "--max-participations", 4, "--min-separation", 8],
         acc.MinSeparation(64, 4, 8)),
        (["--rows", 100, "--batch-size", 10, "--epochs", 3, "--max-participations", 3,
          "--min-separation", 5], acc.MinSeparation(30, 3, 5)),
    ],
)  # fmt: skip
def test_patterns(arguments: list[object], participation: acc.Participation) -> None:
    facts = run_json(*sigma(*arguments))
    plan = PrivacyPlan(1.0, 5.0, participation)
    assert facts["epsilon"] == plan.epsilon(1e-6) and facts["steps"] == plan.steps
    assert facts["epsilon_replace_one"] == plan.epsilon(1e-6, neighbours="replace-one")
    assert facts["sensitivity_squared"] == plan.sensitivity_squared
    assert facts["neighbours"] == "one record (or user) replaced by zero"
    found = run_json("calibrate", "--epsilon", 3, *arguments)
    wanted = PrivacyPlan.calibrate(
        epsilon=3, delta=1e-6, clip_norm=1, participation=participation, mechanism=Tree()
    )
    assert found["noise_multiplier"] == wanted.noise_multiplier and found["epsilon"] <= 3


def test_the_floor_that_is_shown_is_that_of_the_guarantee_that_is_stated() -> None:
    plan = PrivacyPlan(1.0, 5.0, acc.MinSeparation(64, 4, 8), bound="released")
    delta = 1.2 * plan.guarantee.other.floor()
    stated = plan.guarantee.at(delta)
    assert stated.floor() < delta < plan.guarantee.floor()
    shown = guarantee_facts(plan, delta)["delta"]
    assert f"of which {text_up(stated.floor())} for" in shown
    assert text_up(stated.floor()) != text_up(plan.guarantee.floor())


def test_the_figure_by_rdp_leaves_room_for_the_floor() -> None:
    """At a delta near the floor the difference is large."""
    delta = 3e-13
    facts = run_json(*sigma("--steps", 1600, "--delta", delta))
    plan = PrivacyPlan(1.0, 5.0, acc.SinglePass(1600))
    exact = plan.guarantee.mechanism_delta(delta)
    assert exact < 0.9 * delta
    assert facts["epsilon_rdp"] == acc.epsilon(5.0, 11, exact, "rdp")
    assert facts["epsilon_rdp"] > acc.epsilon(5.0, 11, delta, "rdp")
    assert facts["delta_floor"] == plan.delta_floor


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["--restart-every", 2000], {"restart_every": 2000}),
        (["--restart-epochs", 20], {"restart_every": 2000}),
        (["--restart-epochs", 5, "--complete", "restarts"],
         {"restart_every": 500, "complete": True}),
        (["--complete", "all"], {"complete": "all"}),
        (["--restart-every", 150, "--bound", "released"],
         {"restart_every": 150, "bound": "released"}),
        (["--bound", "released", "--variant", "vanilla"],
         {"variant": "vanilla", "bound": "released"}),
    ],
)  # fmt: skip
def test_trees_bound_and_variant(arguments: list[object], options: dict[str, Any]) -> None:
    facts = run_json("epsilon", "--noise-multiplier", 50, *CIFAR, *arguments)
    plan = PrivacyPlan(1.0, 50.0, acc.FixedEpochs(100, 100), **with_tree(options))
    assert facts["epsilon"] == plan.epsilon(1e-5)
    assert facts["sensitivity_squared"] == plan.sensitivity_squared
    assert (facts["trees"], facts["variant"], facts["bound"]) == (
        plan.layout.count, plan.mechanism.variant, plan.bound
    )  # fmt: skip


def test_known_figures() -> None:
    fixed = ["calibrate", "--epsilon", 23, *CIFAR, "--restart-epochs"]
    assert round(run_json(*fixed, 20)["noise_multiplier"], 2) == 12.04
    readme = ["epsilon", "--noise-multiplier", 46.3, *CIFAR, "--restart-epochs", 20]
    facts = run_json(*readme, "--complete", "restarts")
    assert round(facts["epsilon"], 4) == 6.4275 and round(facts["epsilon_rdp"], 3) == 6.922


def test_an_order_from_a_file(order: Path, tmp_path: Path) -> None:
    assert run_json(*sigma("--order", order))["sensitivity_squared"] == 8
    order.write_text("1\n2\n3\n-1\n\n-1\n1\n4\n", encoding="utf-8")  # three virtual steps
    facts = run_json(*sigma("--order", order))
    assert facts["steps"] == 8 and facts["sensitivity_squared"] == PrivacyPlan(
        1.0, 5.0, acc.FixedOrder([1, 2, 3, -1, -1, -1, 1, 4])
    ).sensitivity_squared  # fmt: skip
    order.write_text("0 1\n2, 0\n\n", encoding="utf-8")
    assert read_order(order) == acc.FixedOrder.from_steps([[0, 1], [2, 0], []])
    np.save(tmp_path / "order.npy", np.array([1, 2, 3, 1, -1, 4]))
    assert read_order(tmp_path / "order.npy") == acc.FixedOrder([1, 2, 3, 1, -1, 4])


def test_words(order: Path) -> None:
    text = " ".join(run(*sigma("--steps", 8)).stdout.split())
    for words in ("(one record (or user) replaced by zero)", "each record (or user) in at most one",
                  "(one record (or user) replaced by another)", "all nodes of the tree",
                  "one tree, honaker", "epsilon by RDP"):  # fmt: skip
        assert words in text
    assert "clip norm" not in text
    text = run(*sigma(*CIFAR, "--restart-epochs", 5, "--bound", "released")).stdout
    for words in ("10000 steps, 100 epochs of 100", "a new tree every 500 steps", "running sums"):
        assert words in " ".join(text.split())
    text = run(*sigma("--steps", 64, "--max-participations", 4, "--min-separation", 8)).stdout
    assert "in at most 4 of them, 8 or more apart" in " ".join(text.split())
    assert "in a listed order" in run(*sigma("--order", order)).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "exactly one of --steps, --rows, --steps-per-epoch and --order must be given, got 0"),
        (["--steps", 5, "--rows", 5], "must be given, got 2"),
        (["--steps", 6, "--epochs", 3], "--epochs needs --rows or --steps-per-epoch, got --steps"),
        (["--steps-per-epoch", 6], "--steps-per-epoch needs --epochs"),
        (
            ["--steps", 6, "--min-separation", 3],
            "--max-participations and --min-separation must be given together",
        ),
        (["--rows", 6, "--batch-size", 0], "batch_size must be an integer >= 1, got 0"),
        (["--rows", 6, "--epochs", 0], "epochs must be an integer in [1, 1099511627776], got 0"),
        (["--steps", 0], "steps must be an integer in [1, 70368744177664], got 0"),
        (["--steps", 2**40 + 1], "in [1, 1099511627776], got 1099511627777"),
        (["--steps", 6, "--max-participations", 0, "--min-separation", 3], "max_participations"),
        (["--steps", 6, "--restart-every", 0], "restart_every must be an integer >= 1"),
        (["--steps", 6, "--restart-epochs", 2], "--restart-epochs needs --epochs"),
        (
            ["--rows", 6, "--epochs", 2, "--restart-epochs", 2, "--restart-every", 2],
            "--restart-every and --restart-epochs exclude each other",
        ),
        (["--order", "nowhere.txt"], "nowhere.txt"),
        (["--steps", 6, "--delta", 1e-30], "delta must be above the floor"),
        (["--steps", 6, "--delta", "nan"], "delta must be"),
    ],
)
def test_mistakes_are_one_line(arguments: list[object], words: str) -> None:
    result = run(*sigma(*arguments), code=2)
    assert words in result.stderr and result.stderr.startswith("error: ")
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("noise", [0, -1, "nan", "inf"])
def test_noise_multipliers_that_are_refused(noise: object) -> None:
    result = run("epsilon", "--noise-multiplier", noise, "--steps", 5, code=2)
    assert "noise_multiplier must be a finite number > 0" in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1\n2.5\n", "line 2: expected ids, got '2.5'"),
        ("1\n-2\n", "got -2"),
        ("1\n2 -1\n", "got -1"),
        ("-1\n-1\n", "virtual steps only"),
        ("", "got an empty file"),
    ],
)
def test_orders_that_are_refused(order: Path, text: str, words: str) -> None:
    order.write_text(text, encoding="utf-8")
    assert words in run(*sigma("--order", order), code=2).stderr
    assert (
        "--order excludes all other options"
        in run(*sigma("--order", order, "--steps", 5), code=2).stderr
    )


def test_an_npy_order_holds_integers_and_no_pickle(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([1.0, 2.0]))
    assert "float64" in run(*sigma("--order", tmp_path / "o.npy"), code=2).stderr
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "got dtype object" in run(*sigma("--order", tmp_path / "o.npy"), code=2).stderr


def test_plan_prints_the_ranked_table() -> None:
    text = run(*PLAN, "--bound", "exact").stdout
    first, second = (line.split() for line in text.splitlines() if line.startswith((" 1 ", " 2 ")))
    assert first == ["1", "500", "restarts", "honaker", "23.783", "1,570", "64.6", "84.5", "90.0"]
    assert second[1] == "1,000"
    for words in ("one record (or user) replaced by zero", "replaced by another", "clip norms"):
        assert words in text
    released = run(*PLAN).stdout
    assert "61.7" in released and "running sums only" in released


def test_plan_as_json_agrees_with_the_planner() -> None:
    facts = run_json(*PLAN, "--momentum", 0.9, "--rank-by", "smoothed", "--variant", "vanilla",
                     "--variant", "honaker", "--complete", "all", "--restart-epochs", 5,
                     "--restart-every", 50)  # fmt: skip
    table = acc.plan_schedule(
        8, 1e-5, 100, 100, momentum=0.9, rank_by="smoothed", variants=("vanilla", "honaker"),
        complete="all", restart_every=(50, 500, None),
    )  # fmt: skip
    assert len(facts["rows"]) == len(table) == 6
    for got, row in zip(facts["rows"], table, strict=True):
        assert {**row.to_dict(), **got} == row.to_dict()
    plan = PrivacyPlan.from_schedule(table.best, clip_norm=1.0)
    assert facts["epsilon_replace_one"] == plan.epsilon(1e-5, neighbours="replace-one")
    assert facts["participation"] == acc.FixedEpochs(100, 100).to_dict()


def test_plan_of_another_pattern(order: Path) -> None:
    separated = ["--steps", 60, "--max-participations", 3, "--min-separation", 8]
    facts = run_json("plan", "--epsilon", 2, *separated, "--mechanism", "tree")
    assert {row["restart_every"] for row in facts["rows"]} == {8, 16, 40, None}
    assert facts["participation"]["kind"] == "MinSeparation"
    assert run_json("plan", "--epsilon", 2, "--order", order)["rows"]


def test_plan_saves_a_row_and_a_figure(tmp_path: Path) -> None:
    out, png = tmp_path / "new" / "plan.json", tmp_path / "e.png"
    options = [*SMALL, "--out", out, "--plot", png]
    result = run(*options, "--row", 2, "--clip-norm", 0.3)
    assert f"wrote {out}" in result.stdout and f"wrote {png}" in result.stdout
    table = acc.plan_schedule(2, 1e-6, 4, 6)
    assert PrivacyPlan.load(out) == PrivacyPlan.from_schedule(table[1], clip_norm=0.3)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.png", "new"]
    assert "--force" in run(*options, code=2).stderr
    facts = run_json(*options, "--force", "--rank-by", "smoothed")
    assert (facts["row"], facts["out"], facts["plot"]) == (1, str(out), str(png))
    assert PrivacyPlan.load(out) == PrivacyPlan.from_schedule(table.best, clip_norm=1.0)


def test_the_title_of_the_figure_is_no_lower_than_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    titles = []
    monkeypatch.setattr(
        cli_plan, "error_curves_png", lambda *_, title, **__: titles.append(title) or b""
    )
    table = acc.plan_schedule(2.0000001, 1.0000001e-6, 4, 2)
    cli_plan._figure(table, PrivacyPlan.from_schedule(table.best, clip_norm=1.0))
    assert titles[0].startswith("epsilon 2.001 (replace-one ")
    assert titles[0].endswith("at delta 1.001e-06")
    assert str(table).startswith("epsilon 2.001 at delta 1.001e-06 ")
    found = guarantee_facts(PrivacyPlan(1.0, 4.0, acc.SinglePass(4)), 1.0000001e-6)
    assert found["delta"].startswith("1.001e-06  (of which ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--row", 0], "--row must be an integer in [1, 5], got "),
        (["--row", 99], "--row must be an integer in [1, 5], got "),
        (["--momentum", 1], "momentum must be"),
        (["--restart-every", 0], "restart_every must be an integer >= 1"),
        (["--clip-norm", "nan"], "clip_norm must be"),
        (["--delta", 1], "delta must be"),
    ],
)
def test_plan_refuses(tmp_path: Path, arguments: list[object], words: str) -> None:
    out = tmp_path / "p.json"
    assert words in run(*SMALL, *arguments, "--out", out, code=2).stderr and not out.exists()


ALL = ["plan", "--epsilon", 8, "--delta", 1e-5, "--steps-per-epoch", 20, "--epochs", 5]


def test_plan_ranks_mechanisms() -> None:
    text = run(*ALL, "--max-vectors", 2).stdout
    assert "mechanisms by rms error" in text and "1 buffer (BLT)" in text
    assert "no mechanism has a smaller rms than" in text and "replaced by another" in text
    facts = run_json(*ALL, "--momentum", 0.9, "--max-vectors", 0, "--max-normals", 4)
    table = acc.plan_mechanism(
        8, 1e-5, acc.FixedEpochs(20, 5), workload=acc.Workload(0.9), max_vectors=0, max_normals=4
    )
    assert len(facts["rows"]) == len(table) == 3
    for got, row in zip(facts["rows"], table, strict=True):
        assert {**row.to_dict(), **got} == row.to_dict()
    assert facts["workload"]["momentum"] == 0.9 and facts["lower_bound"] == table.lower_bound
    assert facts["row"] == 1 and facts["rank_by"] == "rms"
    plan = PrivacyPlan(1.0, table.best.noise_multiplier, table.best.participation,
                       table.best.mechanism, "released")  # fmt: skip
    assert facts["epsilon_replace_one"] == plan.epsilon(1e-5, neighbours="replace-one")


def test_plan_saves_a_mechanism_and_a_figure(tmp_path: Path) -> None:
    out, png = tmp_path / "plan.json", tmp_path / "e.png"
    run(*ALL, "--max-vectors", 1, "--out", out, "--plot", png, "--row", 2, "--clip-norm", 0.3)
    table = acc.plan_mechanism(8, 1e-5, acc.FixedEpochs(20, 5), max_vectors=1)
    plan = PrivacyPlan.load(out)
    assert plan.mechanism == table[1].mechanism and plan.clip_norm == 0.3
    assert plan.noise_multiplier == table[1].noise_multiplier and plan.epsilon(1e-5) <= 8
    assert png.read_bytes().startswith(b"\x89PNG")


def test_an_option_of_trees_ranks_trees() -> None:
    small = ["plan", "--epsilon", 8, "--steps-per-epoch", 4, "--epochs", 2]
    for options in (["--variant", "vanilla"], ["--bound", "exact"], ["--restart-every", 4],
                    ["--complete", "all"], ["--rank-by", "smoothed"]):  # fmt: skip
        assert "restart_every" in run_json(*small, *options)["rows"][0]
    assert "words" in run_json(*small)["rows"][0]


def test_plan_compares_with_sampling() -> None:
    pytest.importorskip("dp_accounting", reason="needs the package dp-accounting")
    rows = ["--rows", 4000, "--batch-size", 40, "--epochs", 1, "--max-vectors", 0]
    facts = run_json("plan", "--epsilon", 8, *rows, "--max-normals", 1, "--sampling")
    assert [row["needs_sampling"] for row in facts["rows"]] == [True, False]
    assert facts["row"] == 2
    refused = run(
        "plan", "--epsilon", 8, *rows, "--max-normals", 1, "--sampling", "--row", 1, code=2
    )
    assert "--row must be the row of a mechanism that needs no sampling, got 1" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--mechanism", "all", "--variant", "vanilla"], "--variant needs --mechanism tree"),
        (["--mechanism", "tree", "--max-vectors", 1], "--max-vectors needs --mechanism all"),
        (["--complete", "all", "--max-normals", 1], "--max-normals needs --mechanism all, got "),
        (["--max-vectors", -1], "max_vectors must be an integer >= 0"),
        (["--sampling"], "--sampling needs --rows or --population"),
        (["--row", 0], "--row must be an integer in"),
    ],
)
def test_plan_of_mechanisms_refuses(arguments: list[object], words: str) -> None:
    assert words in run(*ALL, *arguments, code=2).stderr


def test_the_figure_of_the_errors() -> None:
    short, long = Curve("short", np.arange(1.0, 8.0)), Curve("long", np.full(5000, 2.0))
    png = error_curves_png([short, long], ylabel="y", title="t", legend="l")
    assert png.startswith(b"\x89PNG")
    assert png != error_curves_png([short], ylabel="y")
    assert error_curves_png([Curve("one", np.ones(1))], ylabel="y").startswith(b"\x89PNG")


def test_computed_noise_is_stated_for_a_dimension() -> None:
    facts = run_json(*sigma("--steps", 1000, "--dimension", 10**6))
    plan = PrivacyPlan(1.0, 5.0, acc.SinglePass(1000))
    assert facts["epsilon_computed"] == plan.computed_epsilon(1e-6, 10**6) > facts["epsilon"]
    assert run_json(*sigma("--steps", 1000))["epsilon_computed"] is None
    shown = run(*sigma("--steps", 1000, "--dimension", 10**6)).stdout
    assert "epsilon, computed" in shown and "1000000" in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.00001, "1.0001"), (2.0, "2.0000"), (0.12345000001, "0.1235"), (7.34199999, "7.3420")],
)
def test_privacy_losses_are_printed_rounded_up(value: float, text: str) -> None:
    assert rounded_up(value) == text and float(text) >= value
    assert fixed_up(value, 4) == text


def test_calibrate_says_how_much_less_noise_plan_finds() -> None:
    pattern = ["--steps-per-epoch", 500, "--epochs", 3, "--delta", 1e-6]
    text = " ".join(run("calibrate", "--epsilon", 2, *pattern).stdout.split())
    own, best = (
        float(word) for word in re.findall(r"noise of (\S+) clip .* at most (\S+) for", text)[0]
    )
    run_ = acc.FixedEpochs(500, 3)
    tree = PrivacyPlan.calibrate(
        epsilon=2, delta=1e-6, clip_norm=1, participation=run_, mechanism=Tree()
    )
    assert own == pytest.approx(acc.mechanism_error(Tree(), 1500).rms * tree.noise_multiplier, 1e-3)
    ranked = run_json("plan", "--epsilon", 2, *pattern)
    assert ranked["rows"][0]["rms_std"] <= best < 0.6 * own
    # One step: no mechanism has less noise, and the line is the general one.
    assert '"plan" ranks all' in " ".join(
        run("calibrate", "--epsilon", 2, "--steps", 1).stdout.split()
    )


def test_sampling_is_named_where_it_ranks_first() -> None:
    pytest.importorskip("dp_accounting")
    small = ["plan", "--epsilon", 0.5, "--rows", 4000, "--batch-size", 100, "--epochs", 2]
    text = run(*small, "--sampling").stdout
    facts = run_json(*small, "--sampling")
    assert facts["rows"][0]["needs_sampling"] and facts["row"] == 2
    assert text.startswith("row 2: ")
    assert "no mechanism without sampling has a smaller rms than" in text
    assert "row 1 keeps the budget only if each batch is a Poisson sample" in text
    assert "sampling" not in run(*small).stdout


@pytest.mark.parametrize("command", ["calibrate", "plan"])
def test_an_epsilon_of_zero_is_refused(command: str) -> None:
    result = run(command, "--epsilon", 0, "--steps", 5, code=2)
    assert result.stderr == "error: epsilon must be a finite number > 0, got 0.0\n"
