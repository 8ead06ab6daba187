# SPDX-License-Identifier: Apache-2.0
"""Writing ahead: what a journal takes, replays and refuses."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from journal_cases import IDENTITY, KEY, begun, digests

from dpftrl_fast.run import Diverged, RunJournal


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


def test_a_run_goes_on_from_the_last_checkpoint_and_replays_the_rest(tmp_path: Path) -> None:
    begun(tmp_path / "run", 7, every=3)
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        assert journal.resume() == {"step": 6, "key": KEY}
        assert (journal.step, journal.last, journal.replaying) == (6, 7, True)
        seven, eight = digests(journal, 8)[6:]
        assert not journal.write_ahead(7, seven)
        assert not journal.replaying
        assert journal.write_ahead(8, eight)
        assert (journal.start, journal.abandoned, journal.forked) == (1, (), False)


def test_another_sum_for_a_step_that_was_written_ahead_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run", 5, every=2)
    with RunJournal(tmp_path / "run", IDENTITY) as journal:
        journal.resume()
        for _ in range(2):  # and stays refused
            with pytest.raises(Diverged, match="step 5 was written ahead with another") as caught:
                journal.write_ahead(5, journal.digest(5, np.array([5.1])))
            assert (caught.value.step, caught.value.last, journal.step) == (5, 5, 4)
        assert not journal.write_ahead(5, digests(journal, 5)[4])


def test_a_restart_abandons_the_rest_and_begins_a_generation(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 9, every=4)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        with pytest.raises(Diverged):
            journal.write_ahead(9, bytes(32))
        journal.recover({"step": 8, "key": b"fresh"})
        assert (journal.step, journal.last, journal.start) == (8, 8, 9)
        assert journal.abandoned == ((1, 9),)
        assert journal.write_ahead(9, bytes(32))
        assert journal.write_ahead(10, bytes(32))
        with pytest.raises(ValueError, match="steps written ahead after step 10, got none"):
            journal.recover({})
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.resume() == {"step": 8, "key": b"fresh"}
        assert (journal.step, journal.last) == (8, 10)
        assert not journal.write_ahead(9, bytes(32))
        with pytest.raises(Diverged):
            journal.write_ahead(10, digests(journal, 10)[9])
        journal.recover({"step": 9, "key": b"fresher"})
        assert journal.abandoned == ((1, 9), (9, 10))
    assert sorted(p.name for p in folder.glob("steps-*")) == ["steps-2.log"]


def test_what_was_kept_for_a_step_comes_back_until_the_next_checkpoint(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run")
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for i, digest in enumerate(digests(journal, 3), 1):
            assert journal.kept() is None
            journal.write_ahead(i, digest, {"sum": np.full(2, i)})
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for i, digest in enumerate(digests(journal, 3), 1):
            kept = journal.kept()
            assert kept is not None and kept["sum"].tolist() == [i, i]
            assert not journal.write_ahead(i, digest)
            if i == 2:
                journal.checkpoint({})
                assert [p.name for p in folder.glob("kept-*")] == ["kept-0-3.npz"]
        assert journal.kept() is None


def test_a_recovery_drops_all_that_was_kept_before_it(tmp_path: Path) -> None:
    """Un-noised sums, also those of steps after the one that the recovery begins with."""
    folder = tmp_path / "run"
    with RunJournal(folder, IDENTITY) as journal:
        journal.checkpoint({"step": 0})
        for step in range(1, 5):
            journal.write_ahead(step, journal.digest(step), {"sum": step})
    assert len([*folder.glob("kept-*")]) == 4
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.write_ahead(1, journal.digest(1))
        journal.recover({"step": 1})
        assert not [*folder.glob("kept-*")]


def test_a_checkpoint_during_a_replay_keeps_what_was_written_ahead(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", 5)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.write_ahead(1, digests(journal, 1)[0])
        journal.checkpoint({"step": 1})
    with RunJournal(folder, IDENTITY) as journal:
        assert journal.resume() == {"step": 1}
        assert (journal.step, journal.last) == (1, 5)


def test_a_checkpoint_during_a_replay_knows_of_what_was_written_ahead(tmp_path: Path) -> None:
    """A log that lost the records after it would let a run take these steps with other sums."""
    folder = tmp_path / "run"
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.checkpoint({})
        for step in range(1, 5):
            journal.write_ahead(step, journal.digest(step))
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        for step in (1, 2):
            journal.write_ahead(step, journal.digest(step))
        journal.checkpoint({})
    log = folder / "steps-0.log"
    log.write_bytes(log.read_bytes()[: 3 * 64])  # the header, and two records of four
    with pytest.raises(ValueError, match=r"the log must hold the steps up to 4, .* up to 2"):
        RunJournal(folder, IDENTITY)


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunJournal(folder, IDENTITY) as journal:
        one = journal.digest("x")
        with pytest.raises(RuntimeError, match="expected a checkpoint before the first step"):
            journal.write_ahead(1, one)
        assert journal.resume() is None
        journal.checkpoint({})
        with pytest.raises(RuntimeError, match="expected one call of resume, got another"):
            journal.resume()
        for step in (0, 2, True, 1.0):
            with pytest.raises(ValueError, match="step must be the next one, 1, got"):
                journal.write_ahead(step, one)  # type: ignore[arg-type]
        for digest in (b"short", bytearray(32), "x" * 32):
            with pytest.raises(ValueError, match="digest must be the 32 bytes"):
                journal.write_ahead(1, digest)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"state\['a'\]\[1\] must be .*, got set"):
            journal.checkpoint({"a": [1, set()]})
        with pytest.raises(TypeError, match="got dtype object"):
            journal.checkpoint({"a": np.array([None])})
        with pytest.raises(TypeError, match="got float"):
            journal.digest(1.0)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not pickled"):
            journal.__reduce__()
    with pytest.raises(RuntimeError, match="closed"):
        journal.checkpoint({})
    with RunJournal(folder, IDENTITY) as journal:
        for call in (lambda: journal.checkpoint({}), lambda: journal.write_ahead(1, one)):
            with pytest.raises(RuntimeError, match="expected a call of resume first"):
                call()


def test_digests_tell_dtype_shape_order_bits_and_run(tmp_path: Path) -> None:
    a = np.arange(4.0)
    with RunJournal(tmp_path / "a", {}) as one, RunJournal(tmp_path / "b", {}) as two:
        seen = {
            one.digest(a),
            one.digest(a.astype(np.float32)),
            one.digest(a.reshape(2, 2)),
            one.digest(a[:2], a[2:]),
            one.digest(a[::-1]),
            one.digest(-a[:1]),
            one.digest(a[:1]),
            one.digest("12"),
            one.digest(12),
            one.digest("1", "2"),
            one.digest("1str;2"),  # what runs together without lengths
            one.digest("1str:1;2"),
            one.digest(b"12"),
            one.digest(),
            two.digest(a),
        }
        assert len(seen) == 15
        assert one.digest(a[::2]) == one.digest(a[::2].copy())
        assert one.digest(np.zeros((2, 0))) != one.digest(np.zeros((0, 2)))
