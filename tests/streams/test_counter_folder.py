# SPDX-License-Identifier: Apache-2.0
"""Tables that are kept in a folder: saved, opened, killed by signals, interrupted, copied."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import table_job
from processes import child
from table_oracle import Call, Event, Facts, columns

import dpftrl_fast as dpf
from dpftrl_fast.streams.running_sum import RunningSum

JOB = Path(table_job.__file__)


def without_kills(folder: Path) -> dict[int, set[str]]:
    folder.mkdir()
    table_job.begin(folder)
    for day in range(table_job.DAYS):
        table_job.job(folder, day)
    return table_job.released(folder)


def test_killed_anywhere_a_daily_job_has_the_same_bits(tmp_path: Path) -> None:
    wanted = without_kills(tmp_path / "whole")
    assert len(wanted) == table_job.DAYS and all(len(bits) == 1 for bits in wanted.values())
    folder, chance = tmp_path / "killed", random.Random(7)
    folder.mkdir()
    table_job.begin(folder)
    kills = 0
    for day in range(table_job.DAYS):
        for _ in range(2):
            # 3 states and a call that is written ahead change the disk about 20 times.
            when = f"call {chance.randint(1, 22)}"
            program = [sys.executable, JOB, folder, str(day), when]
            with child(program, cwd=tmp_path, stderr=subprocess.PIPE) as process:
                assert process.wait() == -9
            kills += 1
        table_job.job(folder, day)
    assert kills == 20
    found = table_job.released(folder)
    assert found == wanted  # also what was written before a kill
    folders = [folder / "table", tmp_path / "whole" / "table"]
    with dpf.PrivateCounter.open(folders[0]) as table, dpf.PrivateCounter.open(folders[1]) as whole:
        assert table.epsilon(1e-6) == whole.epsilon(1e-6)
        assert table.describe(1e-6) == whole.describe(1e-6)
        assert table.table().equals(whole.table())
        assert table.keys == [*table_job.KEYS, "d"]


@pytest.mark.slow
def test_killed_at_every_write(tmp_path: Path) -> None:
    wanted = without_kills(tmp_path / "whole")
    for call in range(1, 40):
        folder = tmp_path / f"run{call}"
        folder.mkdir()
        table_job.begin(folder)
        for day in range(2):
            program = [sys.executable, JOB, folder, str(day), f"call {call}"]
            with child(program, cwd=tmp_path) as process:
                assert process.wait() == -9
            table_job.job(folder, day)
        found = table_job.released(folder)
        assert found == {place: wanted[place] for place in range(2)}


# ---- Saving and opening ----

BATCHES: list[Call] = [
    [Event(t, key, user, 0.5) for t in range(12) for user, key in ((1, "a"), (2, "b"))],
    3,
    [Event(t, "c", 3, 1.5) for t in range(12)],
    8,
    [Event(9, "a", "x", 2.5)],
    12,
]
FACTS = Facts(unit="user", user_periods=3, user_gap=2, keys_per_period=2, values=(0, 2))


def run(table: dpf.PrivateCounter, calls: list[Call]) -> None:
    for call in calls:
        if isinstance(call, list):
            table.add(columns(call))
        else:
            table.release(call)


@pytest.mark.parametrize("at", range(len(BATCHES) + 1))
def test_saved_at_any_call_it_continues(tmp_path: Path, at: int) -> None:
    whole = FACTS.counter(2.0)
    run(whole, BATCHES)
    table = FACTS.counter(2.0)
    run(table, BATCHES[:at])
    table.save(tmp_path / "table")
    with pytest.raises(ValueError, match="is kept in"):
        table.save(tmp_path / "other")
    table.close()
    for part in (BATCHES[at : at + 1], BATCHES[at + 1 :]):
        with dpf.PrivateCounter.open(tmp_path / "table", threads=1) as table:
            run(table, part)
    assert table.table().equals(whole.table())
    assert table.epsilon(1e-6) == whole.epsilon(1e-6)
    with pytest.raises(RuntimeError, match="was closed"):
        table.add(columns([]))
    with pytest.raises(RuntimeError, match="was closed"):
        table.release()


@pytest.mark.parametrize("earlier", [False, True])
def test_a_label_is_stale_after_an_earlier_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool
) -> None:
    """Folders from before this was kept open, and refuse nothing."""
    if earlier:
        state_of = dpf.PrivateCounter._state

        def state(table: dpf.PrivateCounter) -> dict[str, Any]:
            found = state_of(table)
            del found["label_periods"]
            return found

        monkeypatch.setattr(dpf.PrivateCounter, "_state", state)
    table = FACTS.counter(2.0)
    table.add(columns([]), batch="one")
    assert not table.is_stale_batch("one", 4) and not table.is_stale_batch("two", 4)
    table.release(2)
    table.add(columns([]), batch="two")
    table.save(tmp_path / "table")
    table.close()
    with dpf.PrivateCounter.open(tmp_path / "table") as table:
        assert table.has_batch("one") and not table.add(columns([]), batch="one")
        assert not table.is_stale_batch("one", 2)  # nothing further to close
        assert table.is_stale_batch("one", 4) is not earlier
        assert table.is_stale_batch("one") is not earlier
        assert not table.is_stale_batch("two", 4)  # no release since
        table.release(4)
        assert not table.is_stale_batch("two", 4)
        assert table.is_stale_batch("two", 6) is not earlier


def test_the_folder_is_of_one_table(tmp_path: Path) -> None:
    table = FACTS.counter(2.0)
    with pytest.raises(ValueError, match="kept in no folder"):
        table.checkpoint()
    table.save(tmp_path / "table")
    with pytest.raises(RuntimeError):
        dpf.PrivateCounter.open(tmp_path / "table")
    table.close()
    table.close()
    with pytest.raises(ValueError, match="holds a table"):
        FACTS.counter(2.0).save(tmp_path / "table")
    with pytest.raises(FileNotFoundError, match=r"must be one of PrivateCounter\.save"):
        dpf.PrivateCounter.open(tmp_path / "none")
    sums = dpf.PrefixSum(1, 10, 1.0, 4.0)
    sums.save(tmp_path / "sums")
    sums.close()
    with pytest.raises(ValueError):
        dpf.PrivateCounter.open(tmp_path / "sums")
    with pytest.raises(ValueError):
        dpf.PrefixSum.open(tmp_path / "table")
    assert (tmp_path / "table").stat().st_mode & 0o777 == 0o700


def test_a_copy_states_no_epsilon(tmp_path: Path) -> None:
    table = FACTS.counter(2.0)
    table.save(tmp_path / "table")
    table.close()
    shutil.copytree(tmp_path / "table", tmp_path / "copy")
    with pytest.raises(ValueError):
        dpf.PrivateCounter.open(tmp_path / "copy")
    with dpf.PrivateCounter.open(tmp_path / "copy", allow_fork=True) as copy:
        for stated in (lambda: copy.epsilon(1e-6), lambda: copy.describe(1e-6)):
            with pytest.raises(ValueError, match="no epsilon can be stated"):
                stated()


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = FACTS.counter(2.0)
    monkeypatch.setattr(dpf.PrivateCounter, "_version", 3)
    table.save(tmp_path / "table")
    table.close()
    monkeypatch.undo()
    with pytest.raises(ValueError, match="must have version 2, got 3"):
        dpf.PrivateCounter.open(tmp_path / "table")


# ---- Interruptions ----


def interrupted(monkeypatch: pytest.MonkeyPatch, table: dpf.PrivateCounter, owner: Any) -> None:
    name = "take_all" if owner is RunningSum else "write_ahead"
    original: Callable[..., Any] = getattr(owner, name)

    def once(*args: Any, **named: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, once)
    with pytest.raises(KeyboardInterrupt):
        table.release(4)
    monkeypatch.setattr(owner, name, original)


def test_after_an_interruption_a_table_in_memory_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FACTS.counter(2.0)
    run(table, BATCHES[:1])
    interrupted(monkeypatch, table, RunningSum)
    for call in (lambda: table.release(4), lambda: table.add(columns([])), lambda: table.save("x")):
        with pytest.raises(RuntimeError, match="keep tables in a folder"):
            call()


@pytest.mark.parametrize("journal", [True, False])
def test_after_an_interruption_the_folder_completes_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: bool
) -> None:
    from dpftrl_fast.streams.call_journal import CallJournal

    whole = FACTS.counter(2.0)
    run(whole, [BATCHES[0], 4])
    table = FACTS.counter(2.0)
    table.save(tmp_path / "table")
    run(table, BATCHES[:1])
    interrupted(monkeypatch, table, CallJournal if journal else RunningSum)
    with pytest.raises(RuntimeError):
        table.release(4)
    table.close()
    with dpf.PrivateCounter.open(tmp_path / "table") as table:
        assert table.periods_closed == (0 if journal else 2)
        assert len(table.release(4)) == (6 if journal else 0)
        assert table.table().equals(whole.table())


def test_a_state_that_cannot_be_written_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpftrl_fast.run.journal import RunJournal

    whole = FACTS.counter(2.0)
    run(whole, [BATCHES[0], 4])
    table = FACTS.counter(2.0)
    table.save(tmp_path / "table")
    run(table, BATCHES[:1])

    def full(*args: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(RunJournal, "checkpoint", full)
        with pytest.raises(OSError, match="no space"):
            table.release(4)
    table.release(4)
    assert table.table().equals(whole.table())
    table.close()


def test_many_users_in_a_folder(tmp_path: Path) -> None:
    """The state keeps users in arrays: 24 bytes each, and few more for the held events."""
    table = FACTS.counter(2.0)
    n = 50_000
    table.add({"time": np.zeros(n), "key": ["a"] * n, "user": np.arange(n), "value": np.ones(n)})
    table.save(tmp_path / "table")
    size = (tmp_path / "table" / "checkpoint.npz").stat().st_size
    assert size < 45 * n
    table.release(2)
    size = (tmp_path / "table" / "checkpoint.npz").stat().st_size
    assert size < 30 * n
    table.close()


def test_an_error_in_a_with_block_leaves_what_a_kill_would(tmp_path: Path) -> None:
    """A job that failed within its batch is run again: no event of it may count twice."""
    with dpf.PrivateCounter(["a"], 3, 4.0, start=0, period=1, seed=1) as days:
        days.save(tmp_path / "job")
        days.add({"time": [0], "key": ["a"]}, batch="before")
        days.checkpoint()
    part: dict[str, Any] = {"time": [0] * 50, "key": ["a"] * 50}
    with (
        pytest.raises(OSError, match="no more rows"),
        dpf.PrivateCounter.open(tmp_path / "job") as days,
    ):
        days.add(part)
        raise OSError("no more rows")
    with dpf.PrivateCounter.open(tmp_path / "job") as days:
        assert days.has_batch("before") and not days.has_batch("file")
        assert days._held.rows.events.sum() == 1
        days.add(part, batch="file")
    with dpf.PrivateCounter.open(tmp_path / "job") as days:
        assert days._held.rows.events.sum() == 51 and days.has_batch("file")


def test_the_table_of_an_interrupted_release_has_the_periods_it_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    days = dpf.PrivateCounter(["a", "b"], 3, 4.0, start=0, period=1, seed=1)
    first = days.release(until=1)

    def fails(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunningSum, "_release", fails)
        days.release(until=2)
    assert days.periods_closed == 2 and days.table().equals(first)
