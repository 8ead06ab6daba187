# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum``: kinds of files, the standard input and output, ``--validate``, refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import typer.testing
from command_line import run, run_json
from pyarrow import parquet

from dpftrl_fast import PrefixSum, PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.cli.app import app
from dpftrl_fast.cli.sums import rows as row_sums
from dpftrl_fast.mechanisms import mechanism_from_dict

VALUES = [1.5, 2.25, 10.0, 0.0, 7.5, 3.0, 1.0]
PLAIN = "town,x\n" + "".join(f"Ä,{value}\n" for value in VALUES)
EUROPEAN = "town;x\n" + "".join(f"Ä;{value * 1000:,.2f}\n" for value in VALUES).translate(
    {ord("."): ",", ord(","): "."}
)


def words(path: Path, out: object, **change: object) -> list[object]:
    options = {"column": "x", "rows": 8, "every": 2, "noise-seed": 1, "out": out, **change}
    high = options.pop("high", 10)
    given = [x for key, value in options.items() for x in (f"--{key}", value)]
    return ["sum", path, "--bounds", 0, high, *given]


def result_of(tmp_path: Path, path: Path, **change: object) -> np.ndarray[Any, Any]:
    out = tmp_path / "sums.csv"
    run(*words(path, out, **change), "--force")
    return np.atleast_1d(np.genfromtxt(out, delimiter=",", names=True))


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    (tmp_path / "t.csv").write_text(PLAIN, encoding="utf-8")
    return tmp_path / "t.csv"


# ---- Kinds of files ----


@pytest.mark.parametrize(
    ("name", "content", "options"),
    [
        ("a.csv", PLAIN.encode("cp1252"), {"encoding": "cp1252"}),
        ("b.csv", PLAIN.encode("utf-16"), {}),
        ("c.csv", PLAIN.replace("\n", "\r").encode(), {}),
        ("d.csv.gz", gzip.compress(PLAIN.encode()), {}),
        ("e.txt", PLAIN.replace(",", "\t").encode(), {"delimiter": r"\t"}),
        ("f.tsv", PLAIN.replace(",", "\t").encode(), {}),
        ("g.csv", PLAIN.replace("1.0\n", "true\n").replace(",0.0", ",FALSE").encode(), {}),
    ],
)
def test_files_of_all_kinds_have_the_same_sums(
    tmp_path: Path, plain: Path, name: str, content: bytes, options: dict[str, object]
) -> None:
    expected = result_of(tmp_path, plain)
    (tmp_path / name).write_bytes(content)
    assert result_of(tmp_path, tmp_path / name, **options).tolist() == expected.tolist()


def test_numbers_with_marks(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text(EUROPEAN, encoding="utf-8")
    (tmp_path / "p.csv").write_text(EUROPEAN.replace(".", "").replace(",", "."), encoding="utf-8")
    expected = result_of(tmp_path, tmp_path / "p.csv", delimiter=";", high=10_000)
    marks = {"decimal": ",", "thousands": ".", "delimiter": ";"}
    found = result_of(tmp_path, tmp_path / "e.csv", high=10_000, **marks)
    assert found.tolist() == expected.tolist()
    without = result_of(tmp_path, tmp_path / "e.csv", delimiter=";", high=10_000)
    assert without.tolist() != expected.tolist()


def test_parquet_and_folders_of_it(tmp_path: Path, plain: Path) -> None:
    expected = result_of(tmp_path, plain).tolist()
    parquet.write_table(pa.table({"x": VALUES}), tmp_path / "t.parquet")
    assert result_of(tmp_path, tmp_path / "t.parquet").tolist() == expected
    (tmp_path / "parts").mkdir()
    parquet.write_table(pa.table({"x": VALUES[:3]}), tmp_path / "parts/a.parquet")
    parquet.write_table(pa.table({"x": VALUES[3:]}), tmp_path / "parts/b.pq")
    assert result_of(tmp_path, tmp_path / "parts").tolist() == expected


def test_a_column_of_bool_is_one_of_zeros_and_ones(tmp_path: Path) -> None:
    bits = [True, False, None, True, True]
    parquet.write_table(pa.table({"x": bits}), tmp_path / "b.parquet")
    (tmp_path / "n.csv").write_text("x\n1\n0\n?\n1\n1\n", encoding="utf-8")
    found = result_of(tmp_path, tmp_path / "b.parquet", high=1)
    assert found.tolist() == result_of(tmp_path, tmp_path / "n.csv", high=1).tolist()


@pytest.mark.parametrize(
    "column",
    [pa.array(["1", "2"]), pa.array([0, 1], pa.timestamp("s")), pa.array([[1], [2]]),
     pa.array([b"1", b"2"]), pa.array([None, None])],
)  # fmt: skip
def test_a_column_that_is_no_number_is_refused_by_its_type(
    tmp_path: Path, column: pa.Array
) -> None:
    parquet.write_table(pa.table({"x": column}), tmp_path / "t.parquet")
    for more in ([], ["--validate"]):
        result = run(*words(tmp_path / "t.parquet", tmp_path / "s.csv"), *more, code=2)
        assert "column 'x' must hold a number or boolean, got " in result.stderr
        assert result.stdout == "" and not (tmp_path / "s.csv").exists()


@pytest.mark.parametrize("every", [1, 2, 3, 7, 8, 50])
@pytest.mark.parametrize("rows", [7, 8, 23])
def test_sums_of_blocks_are_those_of_single_steps(
    tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch, every: int, rows: int
) -> None:
    monkeypatch.setattr(row_sums, "_ROWS", 4)
    facts = run_json(*words(plain, tmp_path / "s.csv", rows=rows, every=every))
    table = np.atleast_1d(np.genfromtxt(tmp_path / "s.csv", delimiter=",", names=True))
    steps = -(-rows // every)
    mechanism = mechanism_from_dict(facts["mechanism"])
    plan = PrivacyPlan(10, facts["noise_multiplier"], SinglePass(steps), mechanism)
    running = PrefixSum(1, steps, 10, plan.noise_multiplier, mechanism=plan.mechanism, seed=1)
    expected = []
    for step in range(steps):
        cells = VALUES[step * every : (step + 1) * every]
        expected.append(float(running.add(np.reshape(cells, (-1, 1)).astype(float))[0]))
    assert table["private_sum"].tolist() == expected
    assert table["row"].tolist() == [min((step + 1) * every, rows) for step in range(steps)]
    assert facts["private_sum"] == expected[-1] and facts["steps"] == steps


# ---- Standard input and output ----


def piped(text: bytes, *arguments: object, code: int = 0) -> Any:
    result = typer.testing.CliRunner().invoke(app, [str(a) for a in arguments], input=text)
    assert result.exit_code == code, result.output
    return result


def test_standard_input_and_output(tmp_path: Path, plain: Path) -> None:
    expected = (tmp_path / "sums.csv", result_of(tmp_path, plain))[0].read_text("utf-8")
    arguments = words(Path("-"), "-")
    result = piped(PLAIN.encode(), *arguments)
    assert result.stdout == expected
    assert "one record replaced by zero" in result.stderr and "not private" in result.stderr
    result = piped(PLAIN.encode("utf-16"), *arguments, "--json")
    assert result.stdout == expected and json.loads(result.stderr)["out"] == "-"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sums.csv", "t.csv"]


def test_a_budget_is_shown_beside_the_output(tmp_path: Path, plain: Path) -> None:
    run("budget", "new", tmp_path / "b", "--epsilon", 2, "--delta", 1e-6)
    given = [x for x in words(plain, "-", budget=tmp_path / "b") if x not in ("--noise-seed",)]
    given.remove(1)
    result = run(*given)
    assert (
        result.stdout.startswith("row,private_sum,std,low,high\n2,")
        and result.stdout.count("\n") == 5
    )
    assert "Budget" in result.stderr


# ---- Validation ----


def test_validate_counts_and_releases_nothing(tmp_path: Path, plain: Path) -> None:
    text = PLAIN.replace("2.25", "2,25,").replace("7.5", "12").replace("3.0", "none")
    plain.write_text(text, encoding="utf-8")
    run("budget", "new", tmp_path / "b", "--epsilon", 2, "--delta", 1e-6)
    before = (tmp_path / "b").read_bytes()
    arguments = ["sum", plain, "--column", "x", "--bounds", 0, 10, "--rows", 8, "--validate",
                 "--budget", tmp_path / "b"]  # fmt: skip
    output = run(*arguments).stdout
    for part in ("NOT private", "line with more fields", "above the bounds", "a word for a missing",
                 "declared slot without a row", "first line"):  # fmt: skip
        assert part in output
    report = run_json(*arguments)
    assert report["rows_declared"] == 8 and report["rows_in_file"] == 7
    assert {f["kind"]: (f["count"], f["first"]) for f in report["findings"]} == {
        "line with more fields than the header": (1, 3),
        "above the bounds: clipped": (1, 6),
        "a word for a missing number, such as NA": (1, 7),
        "declared slot without a row: it adds nothing": (1, 9),
    }
    assert (tmp_path / "b").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "t.csv"]


def test_validate_of_a_clean_file_finds_nothing(plain: Path) -> None:
    report = run_json(*words(plain, "-", rows=7), "--validate")
    assert report["findings"] == [] and report["rows_invalid"] == 0
    assert "first line" not in run(*words(plain, "-", rows=7), "--validate").stdout


# ---- Refusals ----


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty file"),
        (b"town,x\n", "a header and no row"),
        (PLAIN.replace(",", ";").encode(), "--delimiter"),
        (PLAIN.split("\n", 1)[1].encode(), "the first line must be a header"),
        (PLAIN.replace("town", "x").encode(), "columns 1 and 2 have one name"),
        (PLAIN.encode("utf-16-le"), "--encoding"),
        (PLAIN.replace("town", "Ö").encode("cp1252"), "--encoding"),
        (gzip.compress(PLAIN.encode()), "a gzip file"),
        (PLAIN.replace("\n", "\r\r\n").encode(), "several carriage returns"),
        (b'"' + PLAIN.encode(), "a quote is not closed"),
        (b"x" * 200_000 + b"," + PLAIN.encode(), "field larger than field limit"),
    ],
)
def test_a_file_that_is_refused_costs_nothing(tmp_path: Path, content: bytes, part: str) -> None:
    """For fits and predictions the reader is the same: see tests/tables/test_header.py."""
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    run("budget", "new", tmp_path / "b", "--epsilon", 2, "--delta", 1e-6)
    before = (tmp_path / "b").read_bytes()
    schema = {"rows": 8, "target": {"name": "x", "bounds": [0, 10]}, "columns": {}}
    (tmp_path / "s.json").write_text(json.dumps(schema), encoding="utf-8")
    fit = ["fit", path, "--schema", tmp_path / "s.json", "--out", tmp_path / "m"]
    for arguments in (words(path, tmp_path / "s.csv"), words(path, "-"), fit):
        given = [x for x in arguments if x != "--noise-seed" and x != 1]
        for more in ([], ["--budget", tmp_path / "b"], ["--validate"]):
            result = run(*given, *more, code=2)
            assert part in result.stderr and result.stderr.startswith("error: ")
            assert len(result.stderr.splitlines()) == 1 and result.stdout == ""
    assert (tmp_path / "b").read_bytes() == before
    assert not (tmp_path / "s.csv").exists() and not (tmp_path / "m").exists()


def test_outputs_that_are_refused(tmp_path: Path, plain: Path) -> None:
    before = plain.read_bytes()
    (tmp_path / "link.csv").hardlink_to(plain)
    for out in (plain, tmp_path / "link.csv"):
        result = run(*words(plain, out), "--force", code=2)
        assert "--out must be another file than DATA" in result.stderr
    result = run(*words(plain, tmp_path), "--force", code=2)
    assert "is a folder" in result.stderr
    given = words(plain, "x")
    result = run(*given[:-2], code=2)
    assert "--out is needed" in result.stderr
    assert plain.read_bytes() == before


# ---- Privacy ----

ODD = ["", "x", "nan", "1e999", "-1e300", '"', '"1', "1,2,3", "\r", "é", "1\r2", "true", "0" * 2000,
       "\ufeff", "9" * 400]  # fmt: skip


@pytest.mark.parametrize("codec", ["utf-8", "cp1252", "utf-16-le"])
@pytest.mark.parametrize("odd", ODD)
def test_neighbours_differ_in_the_sums_only_and_by_the_bounds(
    tmp_path: Path, codec: str, odd: str
) -> None:
    """One row is replaced by an odd one: nothing else changes, in any message or slot."""
    seen = []
    for line in (odd, "0"):
        lines = ["x,y", *(f"{value},1" for value in VALUES)]
        lines[4] = f"{line},1" if "," not in line else line
        path = tmp_path / "t.csv"
        path.write_bytes("\n".join([*lines, ""]).encode(codec, "replace"))
        result = run(*words(path, "-", rows=7, every=1, encoding=codec))
        rows = [row.split(",") for row in result.stdout.splitlines()[1:]]
        told = [line for line in result.stderr.splitlines() if "private sum" not in line]
        seen.append(([row[0] for row in rows], np.array([float(row[1]) for row in rows]), told))
    (slots, found, told), (_, zero, _) = seen
    assert slots == seen[1][0] and told == seen[1][2]
    difference = found - zero
    assert np.all(difference[:3] == 0)  # the steps before
    assert np.all(np.abs(difference[3:]) <= 10 + 1e-3) and np.ptp(difference[3:]) <= 1e-3
