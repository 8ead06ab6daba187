# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast audit``: verdicts, exit codes, files, pictures and refusals."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from audit_cases import less_noise
from command_line import run, run_json
from fitting_cases import CLASSES, REGRESSION, SEVERAL, USERS, features, lines

from dpftrl_fast.audit.tables import largest_record
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

pytest.importorskip("sklearn")

# A false alarm once in 10^8.
SMALL = ("--canaries", 256, "--coin-seed", 1, "--confidence", 1 - 1e-8, "--noise-multiplier", 1)


def files(folder: Path, schema: dict[str, Any]) -> tuple[Path, Path]:
    data, declared = folder / "rows.csv", folder / "schema.json"
    data.write_text("\n".join(["a,c,y,k,m,who", *lines()]) + "\n", encoding="utf-8")
    declared.write_text(json.dumps(schema), encoding="utf-8")
    return data, declared


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--task", "classification", "--label-flip"),
        ("--task", "multinomial", "--mechanism", "tree"),
        ("--loss", "huber", "--loss-param", 0.5, "--momentum", 0.5, "--rows", 3000),
        ("--method", "least-squares", "--canaries", 64),
    ],
)
def test_our_own_estimators_are_consistent(options: tuple[Any, ...]) -> None:
    found = run_json("audit", *SMALL, *options)
    assert found["verdict"] == "consistent" and found["violations"] == []
    assert found["private"] is True
    assert found["neighbours"] == ("replace-one" if "--label-flip" in options else "zero-out")
    assert found["steps"] == (12 if 3000 in options else 16)
    assert abs(found["mu_measured"] - found["mu_expected"]) < 6 * found["mu_stderr"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "options",
    [(), ("--task", "classification"), ("--task", "multinomial"), ("--method", "least-squares")],
)
def test_nothing_is_warned_of_that_only_a_training_needs(options: tuple[Any, ...]) -> None:
    """Warnings about learning go to the owner of a model, and an audit has none."""
    canaries = 16 if "least-squares" in options else 256
    found = run("audit", "--epsilon", 4, "--canaries", canaries, "--runs", 2, *options)
    assert found.stderr == "" and "verdict" in found.stdout


def test_other_warnings_of_an_audited_estimator_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpftrl_fast.linear_model import DPFTRLRegressor

    take = DPFTRLRegressor.partial_fit

    def partial_fit(self: Any, *given: Any, **named: Any) -> Any:
        warnings.warn("the disk is nearly full", UserWarning, stacklevel=2)
        return take(self, *given, **named)

    monkeypatch.setattr(DPFTRLRegressor, "partial_fit", partial_fit)
    with pytest.warns(UserWarning, match="nearly full"):
        run("audit", *SMALL, "--runs", 1)


def test_the_exit_code_is_1_where_the_guarantee_is_violated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "verdict: consistent" in run("audit", *SMALL).stdout
    less_noise(monkeypatch, 0.5)
    assert "verdict: violated" in run("audit", *SMALL, code=1).stdout
    data = json.loads(run("audit", *SMALL, "--json", code=1).stdout)
    assert data["verdict"] == "violated" and "noise over the stated noise" in data["violations"]


@pytest.mark.parametrize(
    ("schema", "options"),
    [
        (REGRESSION, ()),
        (REGRESSION, ("--method", "least-squares", "--canaries", 16, "--label-flip")),
        (CLASSES, ("--label-flip",)),
        (SEVERAL, ()),
    ],
)
def test_a_row_of_a_file(schema: dict[str, Any], options: tuple[Any, ...], tmp_path: Path) -> None:
    data, declared = files(tmp_path, schema)
    given = [*SMALL, "--rows", 1000, "--schema", declared, *options]
    result = run("audit", data, *given)
    assert "NOT private" in result.stderr and "verdict: consistent" in result.stdout
    found = json.loads(run("audit", data, *given, "--json").stdout)
    assert found["private"] is False and found["steps"] == 4


def test_the_row_is_that_of_the_largest_gradient(tmp_path: Path) -> None:
    rows = lines()
    data, _ = files(tmp_path, REGRESSION)
    table = TableReader(data, Schema.from_dict(REGRESSION))
    x, y = largest_record(table, loss="squared")
    X, Y = features(rows)
    assert np.linalg.norm(x) * abs(y) == pytest.approx(
        (np.linalg.norm(X, axis=1) * np.abs(Y)).max(), rel=1e-6
    )
    with pytest.raises(ValueError, match="an audit inserts single records"):
        largest_record(TableReader(data, Schema.from_dict({**REGRESSION, **USERS})), loss="squared")


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run("audit", *SMALL, "--plot", tmp_path / "scores.png")
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--schema", "x.json"), "DATA and --schema must be given together"),
        (("--loss", "logistic"), "--loss must be one of squared"),
        (("--task", "classification", "--loss-param", 1), "--loss-param is not supported"),
        (("--method", "least-squares", "--momentum", 0.5), "--momentum is not supported by least"),
        (("--method", "least-squares", "--task", "multinomial"), "least squares needs a numeric"),
        (("--rows", 0), "--rows must be an integer >= 1"),
        (("--rows", 10**6), "the steps of an audit must be an integer in"),
        (("--epsilon", 1, "--noise-multiplier", 2), "epsilon"),
        (("--confidence", 2), "confidence must be"),
    ],
)
def test_what_does_not_fit_is_refused(options: tuple[Any, ...], words: str) -> None:
    result = run("audit", *options, code=2)
    assert result.stderr.startswith("error: ") and words in result.stderr
    assert "Traceback" not in result.output
