# SPDX-License-Identifier: Apache-2.0
"""What the image experiments report: tables, the paper's claims, figures, the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from dpftrl_fast.experiments.fitted import (  # noqa: E402
    Cell,
    mechanism_name,
    mechanisms_tables,
)
from dpftrl_fast.experiments.images import tuning as images_tuning  # noqa: E402
from dpftrl_fast.experiments.images.command import study  # noqa: E402
from dpftrl_fast.experiments.images.data import Images  # noqa: E402
from dpftrl_fast.experiments.images.grid import Group  # noqa: E402
from dpftrl_fast.experiments.images.methods import Budget, Method, ftrl_plan  # noqa: E402
from dpftrl_fast.experiments.images.report import (  # noqa: E402
    claims_table,
    figures,
    pairs_table,
    scores_table,
    settings_table,
)
from dpftrl_fast.experiments.images.tuning import Fitted  # noqa: E402
from dpftrl_fast.experiments.results import Results  # noqa: E402
from dpftrl_fast.experiments.study import Laboratory  # noqa: E402
from dpftrl_fast.mechanisms import BandedToeplitz, Identity  # noqa: E402

DOCS = Path(__file__).parents[2] / "docs"
PNG = b"\x89PNG\r\n\x1a\n"


def fitted_group(scores, *, epsilons=(4.0,), batch=250, restart=1):
    """Cells of a group with their scores, from {method: scores at each epsilon}."""
    fitted = [
        Fitted(Cell(method, Budget(epsilon, 1e-5, batch, 5)), tuple(found), 0.125)
        for method, columns in scores.items()
        for epsilon, found in zip(epsilons, columns, strict=True)
    ]
    return Group(batch, 5, tuple(one.cell for one in fitted), restart), fitted


OURS = Method("ftrl", 0.9, 1, True)
NAME = "DP-FTRLM, restart 1, completed"


def test_pairs_are_shown_with_their_deviations_and_the_error_of_their_difference():
    scores = {
        OURS: [(0.82, 0.80, 0.81)],
        Method("ftrl", 0.9, 1, False): [(0.79, 0.77, 0.78)],
        Method("ftrl", 0.9, 1, True, "vanilla"): [(0.81, 0.80, 0.80)],
        Method("ftrl", 0.9): [(0.8, 0.8, 0.8)],
        Method("amplified", 0.9): [(0.85, 0.85, 0.85)],
        Method("fixed", 0.0): [(0.1, 0.1, 0.1)],  # without momentum: no pair
    }
    group, fitted = fitted_group(scores)
    assert pairs_table("title", group, fitted).rows == [
        (NAME, "DP-SGDM, amplified", "4", "81.0 (1.0)", "85.0 (0.0)", "-4.0 (0.6)", "below"),
        (NAME, "DP-FTRLM, vanilla, restart 1, completed", "4", "81.0 (1.0)", "80.3 (0.6)",
         "+0.7 (0.7)", "alike"),
        (NAME, "DP-FTRLM, restart 1", "4", "81.0 (1.0)", "78.0 (1.0)", "+3.0 (0.8)", "above"),
    ]  # fmt: skip
    assert scores_table("title", fitted).rows[0] == (NAME, "81.0 (1.0)")
    assert settings_table("title", fitted).rows[0] == (NAME, "2^-3")


def test_claims_hold_in_a_word():
    high, middle, spread = (0.9, 0.9, 0.9), (0.8, 0.8, 0.8), (0.7, 0.9, 0.8)
    completed = "completion helps at restart 1"
    for ours, other, strict, at_least in (
        ([high, high], [middle, middle], "holds", "holds"),
        ([high, middle], [middle, spread], "holds in part", "holds"),
        ([high, middle], [middle, high], "holds in part", "holds in part"),
        ([middle, middle], [spread, middle], "does not hold", "holds"),
        ([middle, middle], [high, high], "does not hold", "does not hold"),
    ):
        scores = {OURS: ours, Method("ftrl", 0.9, 1, True, "vanilla"): other,
                  Method("ftrl", 0.9, 1, False): other}  # fmt: skip
        group, fitted = fitted_group(scores, epsilons=(1.0, 4.0))
        rows = {row[0]: row[1:] for row in claims_table("title", group, fitted).rows}
        assert {name: row[0] for name, row in rows.items()} == {
            "Honaker at least vanilla": at_least, completed: strict
        }  # fmt: skip
        assert all(sum(map(int, row[1:])) == 2 for row in rows.values())


@pytest.mark.parametrize("batch", [250, 1000])
def test_claims_beside_dp_sgd_are_about_what_the_paper_says(batch):
    sgd = [(0.8, 0.8), (0.8, 0.8)]
    scores = {OURS: [(0.7, 0.7), (0.9, 0.9)], Method("amplified", 0.9): sgd,
              Method("fixed", 0.9): sgd}  # fmt: skip
    group, fitted = fitted_group(scores, epsilons=(1.0, 20.0), batch=batch)
    rows = claims_table("title", group, fitted).rows
    assert rows[0] == (
        "DP-FTRL above DP-SGD over fixed batches, at every epsilon", "holds in part", "1", "0", "1"
    )  # fmt: skip
    # amplified: with the large batch, at the largest epsilon
    assert [row[1:] for row in rows[1:]] == ([("holds", "1", "0", "0")] if batch == 1000 else [])
    assert len(pairs_table("title", group, fitted).rows) == 4


def test_claims_about_the_planners_mechanism_are_beside_the_tree_and_dp_sgd():
    planned, low, high = Method("planned", 0.9), (0.8, 0.8, 0.8), (0.9, 0.9, 0.9)
    scores = {
        planned: [high, high, low],
        OURS: [low, low, low],
        Method("fixed", 0.9): [low, low, low],
        Method("amplified", 0.9): [high, low, high],
    }
    group, fitted = fitted_group(scores, epsilons=(1.0, 4.0, 20.0))  # fmt: skip
    rows = {row[0]: row[1:] for row in claims_table("title", group, fitted).rows}
    start = "the planner's mechanism"
    assert {name: row for name, row in rows.items() if name.startswith(start)} == {
        f"{start} at least the tree, at every epsilon": ("holds", "2", "1", "0"),
        f"{start} above the tree, at epsilon 1 to 4": ("holds", "2", "0", "0"),
        f"{start} above DP-SGD over fixed batches, at every epsilon":
            ("holds in part", "2", "1", "0"),
        f"{start} at least amplified DP-SGD, at every epsilon": ("holds in part", "1", "1", "1"),
    }  # fmt: skip
    pairs = pairs_table("title", group, fitted).rows
    assert len(pairs) == len(set(pairs)) == 3 * 3 + 2 * 3  # each pair once


def test_the_noise_of_mechanisms_is_shown_where_the_planner_chose_one():
    budget, tree = Budget(8.0, 1e-5, 250, 5), ftrl_plan(OURS, Budget(8.0, 1e-5, 250, 5), 6_000)
    assert mechanisms_tables("title", [(OURS, budget, tree)]) == []
    method = Method("planned", 0.9)
    plan = ftrl_plan(method, budget, 6_000)
    (table,) = mechanisms_tables("title", [(method, budget, plan), (OURS, budget, tree)])
    (_, _, name, _, rms), (_, _, trees, _, beside) = table.rows
    assert name == mechanism_name(plan.mechanism) and trees == "trees of 24 steps"
    assert float(rms) < float(beside)
    assert [mechanism_name(each) for each in (Identity(), BandedToeplitz((1.0, 0.5)))] == [
        "independent noise", "2 bands",
    ]  # fmt: skip


def test_figures_have_panels_with_lines_to_compare():
    middle = [(0.7, 0.8), (0.8, 0.9)]
    group, fitted = fitted_group(
        {OURS: middle, Method("amplified", 0.9): middle}, epsilons=(1.0, 20.0)
    )
    found = figures("images-digits", [(group, fitted)])
    assert list(found) == ["images_digits.png"]  # one schedule alone is no figure of schedules
    group, fitted = fitted_group({OURS: middle, Method("ftrl", 0.9): middle}, epsilons=(1.0, 20.0))
    found = figures("images-digits", [(group, fitted)])
    assert list(found) == ["images_digits_trees.png"]
    assert found["images_digits_trees.png"][:8] == PNG


# ---- The committed results ----

COMMITTED = sorted((DOCS / "results").glob("images*.jsonl"))
SIZES = {"images-fashion-mnist": (60_000, 10_000), "images-digits": (4_000, 1_000)}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.name)
def test_the_tables_of_the_docs_are_those_of_the_committed_rows(monkeypatch, path, name):
    def missing(*arguments, **options):
        raise AssertionError(f"a row of {name} is missing in {path}")

    monkeypatch.setattr(images_tuning, "_fit", missing)
    monkeypatch.setattr(images_tuning, "dpsgd_noise_multiplier", missing)
    rows, test_rows = SIZES[name]
    labels = torch.zeros(rows), torch.zeros(test_rows)
    images = Images(labels[0], labels[0], labels[1], labels[1])  # only their number matters
    report = study(images, Laboratory(name, Results(path)), "reduced")
    text = (DOCS / "results" / "experiments.md").read_text()
    for table in report.tables:
        assert table.markdown() in text
    for figure in report.figures:
        assert f"images/{figure}" in text and (DOCS / "images" / figure).exists()
