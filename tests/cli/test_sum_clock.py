# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum --folder``: a clock past the end, days out of order, several days at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import run, run_json

from dpftrl_fast import PrivateCounter


@dataclass
class Jobs:
    """The daily jobs of a table of nine days, in a folder."""

    place: Path
    numeric: bool = False

    @property
    def folder(self) -> Path:
        return self.place / "job"

    @property
    def out(self) -> Path:
        return self.place / "o.csv"

    def day(self, number: int) -> str:
        return str(number) if self.numeric else f"2026-03-{number + 1:02d}"

    def run(
        self, number: int, *, until: int | None = None, events: int = 40, code: int = 0,
        **more: object,
    ) -> str:  # fmt: skip
        """Run the job of a day; return all that it says on stderr, in one line."""
        path = self.place / "events.csv"
        path.write_text("when\n" + f"{self.day(number)}\n" * events)
        given: dict[str, object] = {
            "time": "when", "start": self.day(0), "periods": 9, "folder": self.folder,
            "batch": self.day(number), "period": 1 if self.numeric else "1D",
            "until": self.day(number + 1 if until is None else until), "figures": "period",
            "epsilon": 5000, "delta": 1e-6, "out": self.out, **more,
        }  # fmt: skip
        words = [x for key, value in given.items() for x in (f"--{key}", value)]
        said: Any = run("sum", path, *words, code=code).stderr
        return " ".join(str(said).split())

    def counts(self) -> list[int]:
        """The figures, whose noise is far below 5, in tens."""
        with PrivateCounter.open(self.folder) as table:
            return [round(x / 10) * 10 for x in table.table()["count"]]


@pytest.fixture(params=[False, True])
def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, request.param)


def test_a_time_past_the_end_is_refused_and_the_next_job_works(jobs: Jobs) -> None:
    came = jobs.day(20) if jobs.numeric else repr(jobs.day(20))
    words = f"less than one period past {jobs.day(9)}, the end of the table, got {came}"
    budget = jobs.place / "b"
    run("budget", "new", budget, "--epsilon", 5000, "--delta", 1e-6)
    assert f"{words}: nothing is closed" in jobs.run(0, until=20, code=2, budget=budget)
    assert not jobs.folder.exists() and not jobs.out.exists()
    assert run_json("budget", "show", budget)["spent"] == 0
    jobs.run(0, budget=budget)
    before = jobs.out.read_bytes()
    told = {jobs.run(1, until=20, events=n, code=2) for n in (0, 7)}
    assert len(told) == 1 and f"{words}: nothing is closed" in told.pop()
    assert jobs.out.read_bytes() == before
    assert "skipped" not in jobs.run(1)
    assert jobs.counts() == [40, 40]


def test_a_day_that_is_run_after_a_later_one_is_told(jobs: Jobs) -> None:
    """It was published as noise about zero, without a word."""
    jobs.run(0)
    assert f"closed 2 periods, {jobs.day(1)} to {jobs.day(2)}" in jobs.run(2)
    again = jobs.run(2)  # after a crash
    assert "it is skipped" in again and "closed" not in again
    before = jobs.out.read_bytes()
    told = jobs.run(1)
    assert f"warning: no period is closed: until must be after {jobs.day(3)}, where the" in told
    assert "events of closed periods do not count, so run missed periods in order" in told
    assert jobs.out.read_bytes() == before
    assert "no period" not in jobs.run(1)  # the same job again
    assert "clos" not in jobs.run(3)
    assert jobs.counts() == [40, 0, 40, 40]


def test_what_is_told_depends_on_no_event(jobs: Jobs) -> None:
    told = []
    for place, events in (("x", 0), ("y", 40)):
        (jobs.place / place).mkdir()
        mine = Jobs(jobs.place / place, jobs.numeric)
        given = {"late": "next"}
        said = [mine.run(0, events=events), mine.run(4, events=events, **given, code=2)]
        said += [mine.run(4, events=events), mine.run(2, events=events)]
        said += [mine.run(8, events=events), mine.run(8, events=events)]
        said += [mine.run(7, events=events, batch="late", code=2)]
        told.append([line.replace(str(mine.place), "") for line in said])
    assert told[0] == told[1]
    assert f"closed 4 periods, {jobs.day(1)} to {jobs.day(4)}" in told[0][2]
    assert "the table is over: all 9 periods" in told[0][-1]
    assert "nothing is added" in told[0][-1]


def test_without_a_folder_all_periods_are_closed_without_a_word(jobs: Jobs) -> None:
    path = jobs.place / "events.csv"
    path.write_text(f"when\n{jobs.day(0)}\n")
    given = ["--time", "when", "--start", jobs.day(0), "--periods", 9, "--out", jobs.out]
    given += ["--period", 1] if jobs.numeric else []
    assert "closed" not in run("sum", path, *given).stderr
