# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum --time``: tables of events, daily jobs, refusals."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from command_line import run, run_json
from pyarrow import parquet

from dpftrl_fast import PrivateCounter

RNG = np.random.default_rng(4)
EVENTS = [
    (f"2013-01-{day:02d}T{hour:02d}:30", key, f"u{user}", int(value))
    for day in range(1, 8)
    for hour, key, user, value in zip(
        RNG.integers(0, 24, 60), RNG.choice(["EWR", "JFK", "XXX"], 60),
        RNG.integers(0, 20, 60), RNG.integers(-20, 200, 60), strict=True,
    )
]  # fmt: skip
NAMES = ["when", "origin", "who", "delay"]


def write(path: Path, events: Any = EVENTS) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([NAMES, *events])
    return path


def words(path: Path, out: Path, **change: object) -> list[object]:
    options = {
        "time": "when", "start": "2013-01-01", "periods": 7, "noise-seed": 1, "out": out,
        "group-by": "origin", "keys": "EWR, JFK", **change,
    }  # fmt: skip
    bounds = options.pop("bounds", ())
    given = [x for key, value in options.items() if value is not None for x in (f"--{key}", value)]
    return ["sum", path, *(["--bounds", *bounds] if bounds else []), *given]  # type: ignore[misc]


def rows_of(out: Path) -> list[dict[str, str]]:
    with out.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


SETTINGS: list[tuple[dict[str, object], dict[str, Any]]] = [
    ({}, {}),
    ({"user": "who"}, {"unit": "user-period", "user": "who"}),
    (
        {"user": "who", "user-periods": 3, "keys-per-period": 2, "events-per-key": 4},
        {"unit": "user", "user": "who", "user_periods": 3, "keys_per_period": 2,
         "events_per_key": 4},
    ),
    (
        {"column": "delay", "bounds": (-30, 120), "figures": "window", "window": 3},
        {"values": (-30, 120), "value": "delay", "figures": "window", "window": 3},
    ),
    ({"figures": "period", "mechanism": "tree"}, {"figures": "period", "mechanism": "tree"}),
]  # fmt: skip


@pytest.mark.parametrize(("options", "settings"), SETTINGS)
def test_figures_are_those_of_the_class(
    options: dict[str, object], settings: dict[str, Any], tmp_path: Path
) -> None:
    path, out = write(tmp_path / "e.csv"), tmp_path / "o.csv"
    facts = run_json(*words(path, out, **options))
    counter = PrivateCounter.calibrate(
        ["EWR", "JFK"], 7, epsilon=1.0, delta=1e-6, start="2013-01-01", period="1D", seed=1,
        time="when", key="origin", **settings,
    )  # fmt: skip
    counter.add(
        {name: list(column) for name, column in zip(NAMES, zip(*EVENTS, strict=True), strict=True)}
    )
    counter.release()
    table, found = counter.table(), rows_of(out)
    assert list(found[0]) == list(table) and len(found) == 14
    for name in list(table)[3:]:
        assert [float(row[name]) for row in found] == list(table[name])
    assert [row["key"] for row in found[:2]] == ["EWR", "JFK"]
    assert found[0]["period_start"] == "2013-01-01" and found[0]["period_end"] == "2013-01-02"
    assert facts["epsilon"] == counter.epsilon(1e-6) <= 1.0
    assert facts["neighbours"] == f"{counter.unit}, removed"


def test_files_of_other_kinds_and_numbers_for_times(tmp_path: Path) -> None:
    out, expected = tmp_path / "o.csv", tmp_path / "x.csv"
    value = {"column": "delay", "bounds": (-30, 120)}
    run(*words(write(tmp_path / "e.csv"), expected, **value))
    columns = dict(zip(NAMES, map(list, zip(*EVENTS, strict=True)), strict=True))
    table = pa.table({**columns, "when": np.array(columns["when"], "datetime64[ms]")})
    (tmp_path / "folder").mkdir()
    parquet.write_table(table, tmp_path / "folder" / "a.parquet")
    european = [(t, k, u, f"{v},0") for t, k, u, v in EVENTS]
    with (tmp_path / "f.csv").open("w", encoding="utf-16") as file:
        csv.writer(file, delimiter=";").writerows([NAMES, *european])
    for path, more in (("folder", {}), ("f.csv", {"delimiter": ";", "decimal": ","})):
        run(*words(tmp_path / path, out, **value, **more), "--force")
        assert out.read_bytes() == expected.read_bytes()
    numbered = [(i // 60, *event[1:]) for i, event in enumerate(EVENTS)]
    run(*words(write(tmp_path / "n.csv", numbered), out, start=0, period=1, **value), "--force")
    figures = [[row["count"] for row in rows_of(file)] for file in (out, expected)]
    assert figures[0] == figures[1] and rows_of(out)[2]["period_start"] == "1"


def test_a_daily_job_and_one_that_runs_twice(tmp_path: Path) -> None:
    whole, out, folder = tmp_path / "whole.csv", tmp_path / "o.csv", tmp_path / "job"
    run(*words(write(tmp_path / "all.csv"), whole))
    lines = whole.read_bytes().splitlines()
    for day in range(1, 8):
        today = [event for event in EVENTS if event[0].startswith(f"2013-01-{day:02d}")]
        path = write(tmp_path / f"day{day}.csv", today)
        for _ in range(2):  # the second run finds its batch in the folder
            seed = None if folder.exists() else 1
            until = f"2013-01-{day + 1:02d}"
            change: dict[str, object] = {"noise-seed": seed, "folder": folder, "until": until}
            facts = run_json(*words(path, out, **change))
            assert facts["periods_released"] == day
            assert out.read_bytes().splitlines() == lines[: 1 + 2 * day]
    result = run(*words(path, out, folder=folder, until=until, periods=8, **{"noise-seed": None}),
                 code=2)  # fmt: skip
    assert "the options must be those of the first run" in result.stderr
    result = run(*words(path, out, folder=folder, until=until, keys="EWR,LGA",
                        **{"noise-seed": None}), code=2)  # fmt: skip
    assert "first run" in result.stderr


def test_a_table_without_an_end(tmp_path: Path) -> None:
    path, out = write(tmp_path / "e.csv"), tmp_path / "o.csv"
    facts = run_json(*words(path, out, periods=None, until="2013-01-08"))
    assert facts["periods"] == 2**20 and facts["periods_released"] == 7
    assert facts["epsilon"] <= 1.0 and len(rows_of(out)) == 14
    assert len(facts["mechanism"]["decay"]) == 10


def test_a_picture_and_the_standard_output(tmp_path: Path) -> None:
    path, picture = write(tmp_path / "e.csv"), tmp_path / "p.png"
    result = run(*words(path, Path("-"), plot=picture))
    assert result.stdout.startswith("period_start,period_end,key,count,")
    assert picture.read_bytes()[1:4] == b"PNG"
    assert "7 of 7 periods, 2 keys" in result.stderr.replace("\n", " ")
    assert "running totals (counts since the start)" in result.stderr
    assert "noise multiplier" in result.stderr and "finite tail" in result.stderr
    result = run(*words(path, tmp_path / "d.csv", figures="period"))
    assert "counts of each period" in result.stdout


def test_validate_says_why_events_do_not_count(tmp_path: Path) -> None:
    events = [*EVENTS, ("soon", "EWR", "u", 1), ("2012-12-31", "EWR", "", "?")]
    path, out = write(tmp_path / "e.csv", events), tmp_path / "o.csv"
    options = {"user": "who", "column": "delay", "bounds": (-30, 120)}
    report = run_json(*words(path, out, **options), "--validate")
    assert "NOT private" in report["label"] and not out.exists()
    unknown = sum(event[1] == "XXX" for event in EVENTS)
    assert report["events"] == len(events)
    assert report["of a key that is not declared"] == unknown
    assert (report["without a time"], report["outside of the periods"]) == (1, 1)
    assert report["without a user"] == 1
    assert report["that count, before bounding"] == len(EVENTS) - unknown
    assert report["of these, beyond the bounds of a user (they are dropped)"] > 0
    outside = sum(not -30 <= event[3] <= 120 for event in EVENTS)
    assert report["with a value outside of the bounds (it is clipped)"] == outside


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start": None}, "--start is needed with --time"),
        ({"periods": None}, "--until is needed with --folder, and without --periods"),
        ({"keys": None}, "--group-by and --keys, the public list of keys, go together"),
        ({"keys": "EWR,,JFK"}, "--keys must be keys, separated by commas"),
        ({"column": "delay"}, "--column and --bounds, the public bounds of its values"),
        ({"user-periods": 3}, "--user-periods needs --user"),
        ({"rows": 5}, "--rows is of rows in file order"),
        ({"folder": "job"}, "--until is needed with --folder"),
        ({"figures": "daily"}, "figures must be"),
        ({"late": "never"}, "late must be"),
        ({"start": "soon"}, "start must be a time"),
        ({"period": "1M"}, "period must be a length of time"),
        ({"time": "then"}, "expected one column 'then'"),
        ({"until": "later"}, "until must be a time"),
        ({"level": 1.5}, "--level must be"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    path, out = write(tmp_path / "e.csv"), tmp_path / "o.csv"
    if "folder" in change:
        change = {"folder": tmp_path / "job"}
    result = run(*words(path, out, **change), code=2)
    assert message in result.stderr.replace("\n", " "), result.stderr
    assert not out.exists() and not (tmp_path / "job").exists()


def test_no_message_depends_on_the_events(tmp_path: Path) -> None:
    """One event replaced by wrong cells: all but the private figures is the same."""
    told = []
    for odd in (EVENTS[5], ("?", "nowhere", "", "x"), ("1e999", '"', "\x00", "nan")):
        path, out = write(tmp_path / "e.csv", [*EVENTS[:5], odd, *EVENTS[6:]]), tmp_path / "o.csv"
        options = {"user": "who", "column": "delay", "bounds": (-30, 120)}
        result = run(*words(path, out, **options), "--force")
        lines = [line.split(",")[:3] for line in out.read_text().splitlines()]
        told.append((result.stdout, result.stderr, lines))
    assert told[0] == told[1] == told[2]


def test_a_file_that_ends_in_an_error_is_not_counted_in_part(tmp_path: Path) -> None:
    """Its first blocks have no label yet: run again with the whole file, they counted twice."""
    rng = np.random.default_rng(0)
    lines = [f"0,{x}\n" for x in rng.integers(0, 10**18, 300_000)]  # more than a block
    packed = gzip.compress("".join(["when,padding\n", *lines]).encode(), 1)
    path, out = tmp_path / "day.csv.gz", tmp_path / "o.csv"
    given = {"start": 0, "period": 1, "periods": 2, "until": 1, "folder": tmp_path / "job"}
    given |= {"group-by": None, "keys": None}
    path.write_bytes(packed[: len(packed) * 9 // 10])
    run(*words(path, out, **given), code=2)
    path.write_bytes(packed)
    run(*words(path, out, **given, **{"noise-seed": None}))
    assert abs(float(rows_of(out)[0]["count"]) - 300_000) < 100


def test_an_end_that_is_no_number_closes_no_period(tmp_path: Path) -> None:
    """It was taken for the end of the table, which cannot be undone."""
    path, folder = write(tmp_path / "e.csv", [(1, "EWR", "u1", 0)]), tmp_path / "job"
    given = words(path, tmp_path / "o.csv", start=0, period=1, folder=folder, until="3x")
    error = run(*given, code=2).stderr
    assert "--until must be a number, as --period is, got '3x'" in error and not folder.exists()


@pytest.mark.parametrize("role", ["user", "time", "column"])
def test_a_column_that_is_named_key_is_read(role: str, tmp_path: Path) -> None:
    """It was replaced by the word that stands for all events, where no keys are declared."""
    events = [(i % 7, i, i % 11) for i in range(70)]
    names = {"time": "when", "user": "who", "column": "delay"}
    found = []
    for change in ({}, {role: "key"}):
        used, path = {**names, **change}, tmp_path / "e.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([used.values(), *events])
        more: dict[str, object] = {"start": 0, "period": 1, "bounds": (0, 10), "group-by": None}
        run(*words(path, tmp_path / "o.csv", **{**used, **more, "keys": None}), "--force")
        found.append((tmp_path / "o.csv").read_bytes())
    assert found[0] == found[1]
    assert abs(float(rows_of(tmp_path / "o.csv")[-1]["count"]) - 70) < 40


def test_a_batch_that_is_skipped_is_told_and_one_without_a_name_is_refused(tmp_path: Path) -> None:
    """Tomorrow's file of the same name was skipped without a word."""
    path, out = write(tmp_path / "e.csv"), tmp_path / "o.csv"
    given: dict[str, object] = {"folder": tmp_path / "job", "until": "2013-01-03"}
    assert "skipped" not in run(*words(path, out, **given)).stderr
    error = run(*words(path, out, **given, **{"noise-seed": None})).stderr
    assert "note: the batch 'e.csv' was added before: it is skipped" in error
    error = run(*words(Path("-"), out, **given, **{"noise-seed": None}), code=2).stderr
    assert "--batch is needed with --folder and the standard input" in error


@pytest.mark.parametrize("numeric", [False, True])
def test_another_file_of_the_same_name_closes_no_period(numeric: bool, tmp_path: Path) -> None:
    """An export that replaces its file each day was skipped, and its day closed as noise."""
    days = ["0", "1", "2", "3"] if numeric else [f"2013-01-0{day}" for day in (1, 2, 3, 4)]
    path, out = tmp_path / "today.csv", tmp_path / "o.csv"
    given: dict[str, object] = {"start": days[0], "periods": 3, "figures": "period"}
    given |= {"period": 1} if numeric else {}
    given |= {"folder": tmp_path / "job", "group-by": None, "keys": None, "noise-seed": None}
    given["epsilon"] = 5000.0

    def day(number: int, events: int, *, code: int = 0, **more: object) -> Any:
        write(path, [(days[number], "EWR", "u", 0)] * events)
        return run(*words(path, out, until=days[number + 1], **given, **more), code=code)

    def counts() -> list[float]:
        return [float(row["count"]) for row in rows_of(out)]

    day(0, 50)
    before = out.read_bytes()
    day(0, 50)  # the same job again
    assert out.read_bytes() == before
    told = {day(1, events, code=2).stderr for events in (70, 0)}  # by public facts alone
    assert len(told) == 1
    assert "the batch 'today.csv' was added before the last release" in told.pop()
    assert out.read_bytes() == before
    with PrivateCounter.open(tmp_path / "job") as counter:
        assert counter.periods_closed == 1
    day(1, 70, batch=days[1])
    assert counts() == pytest.approx([50, 70], abs=8)
    with PrivateCounter.open(tmp_path / "job") as counter:  # a job that was killed before a release
        counter.add({"when": [2 if numeric else days[2]] * 30, "key": ["all"] * 30}, batch=days[2])
    assert "it is skipped" in day(2, 30, batch=days[2]).stderr
    assert counts() == pytest.approx([50, 70, 30], abs=8)


@pytest.mark.parametrize("text", ["when\n", "when", "when\r\n"])
def test_a_day_without_events_is_released_as_any_other(text: str, tmp_path: Path) -> None:
    """It was refused, which told that nobody came."""
    folder, out, path = tmp_path / "job", tmp_path / "o.csv", tmp_path / "day.csv"
    given: dict[str, object] = {"folder": folder, "group-by": None, "keys": None}
    path.write_bytes(text.encode())
    table = tmp_path / "day.parquet"
    parquet.write_table(pa.table({"when": pa.array([], pa.timestamp("us"))}), table)
    run(*words(path, out, until="2013-01-02", **given))
    run(*words(table, out, until="2013-01-03", **given, **{"noise-seed": None}))
    found = [row["count"] for row in rows_of(out)]
    none = PrivateCounter.calibrate(
        ["all"], 7, epsilon=1.0, delta=1e-6, start="2013-01-01", period="1D", seed=1
    )
    assert [float(count) for count in found] == list(none.release(until="2013-01-03")["count"])
    run(*words(path, out, **given), "--validate")
    error = run(*words(path, out, start="x", period=1), code=2).stderr
    assert "--start must be a number, as --period is, got 'x'" in error
