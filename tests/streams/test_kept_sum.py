# SPDX-License-Identifier: Apache-2.0
"""Running sums in a folder: killed anywhere, they resume with the same bits; later ends."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, SinglePass
from dpftrl_fast.accounting import FixedEpochs, MinSeparation
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Tree
from dpftrl_fast.run.journal import RunJournal

NAN = float("nan")
CASES: dict[str, Any] = {
    "plain": {"clip_norm": 1.0},
    "tree": {"clip_norm": 1.0, "mechanism": Tree(restart_every=4, complete=True)},
    "buffers": {"clip_norm": 1.0, "mechanism": BufferedToeplitz((0.9,), (0.3,))},
    "history": {"clip_norm": 1.0, "history": True},
    "bounds": {"bounds": ([0.0, -1.0], [1.0, 4.0]), "dtype": "float32"},
    "regenerate": {
        "clip_norm": 1.0, "mechanism": BandedInverse((1.0, -0.5)), "memory": "regenerate",
    },
}  # fmt: skip


def make(case: str = "plain", steps: int = 12, **change: Any) -> PrefixSum:
    given = {"noise_multiplier": 2.0, "seed": 4, **CASES[case], **change}
    return PrefixSum(2, steps, **given)


def days(case: str = "plain") -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.normal(size=(n, 2)) for n in (3, 0, 5, 1, 4, 2, 7, 3, 1, 2, 2, 2)]


@pytest.mark.parametrize("case", CASES)
def test_a_sum_that_is_closed_every_day_is_one_that_is_not(case: str, tmp_path: Path) -> None:
    whole, sums = make(case), make(case)
    sums.save(tmp_path / "sum", facts={"column": "x", "every": 3})
    for day in days():
        expected = whole.add(day)
        assert (sums.add(day) == expected).all()
        sums.close()
        with pytest.raises(RuntimeError, match="was closed: open it"):
            sums.add(day)
        sums = PrefixSum.open(tmp_path / "sum")
        assert (sums.value == expected).all() and sums.t == whole.t
        assert sums.records == whole.records and sums.reproducible
    assert sums.plan == whole.plan and sums.epsilon(1e-6) == whole.epsilon(1e-6)
    assert repr(sums) == repr(whole) and sums.facts == {"column": "x", "every": 3}
    if case == "history":
        assert (sums.values == whole.values).all() and sums.values.shape == (12, 2)
        assert (sums.window(3, 7) == sums.values[6] - sums.values[2]).all()
        assert (sums.window(0) == sums.value).all() and (sums.window(12) == 0).all()
    sums.close()


@pytest.mark.parametrize("every", [1, 3])
def test_calls_of_many_steps_counts_and_users(every: int, tmp_path: Path) -> None:
    """Each kind of call, in an object that forgets its folder before the state is written."""
    pattern = MinSeparation(12, 3, 2)
    new = partial(make, history=True)
    calls: dict[str, tuple[dict[str, Any], list[Any]]] = {
        "steps": ({}, [lambda s: s.add_steps(np.full((4, 2), 0.2))] * 3),
        "counts": ({}, [lambda s: s.add_counts([[3, 4], [5, 6]])] * 5),
        "users": (
            {"participation": pattern, "surplus": "drop"},
            [lambda s, k=k: s.add(np.eye(2), users=["ann", k]) for k in range(12)],
        ),
        "a user a step": (
            {"participation": pattern, "surplus": "drop"},
            [lambda s: s.add_steps(np.full((3, 2), 0.2), users=[5, 6, 5])] * 4,
        ),
    }
    for name, (change, each) in calls.items():
        whole, sums = new(**change), new(**change)
        folder = tmp_path / f"{name}"
        sums.save(folder, checkpoint_every=every)
        for call in each:
            expected = call(whole)
            assert np.array_equal(call(sums), expected)
            sums._journal._journal.close()  # type: ignore[union-attr]  # no state is written
            sums = PrefixSum.open(folder, checkpoint_every=every)
            assert sums.t == whole.t and (sums.values == whole.values).all()
        sums.close()


def test_a_call_that_was_written_ahead_is_taken_and_no_other(tmp_path: Path) -> None:
    whole, sums = make(), make()
    sums.save(tmp_path / "sum")
    for each in (whole, sums):
        each.add([[0.1, 0.2]])

    def die(*given: Any) -> None:
        raise KeyboardInterrupt

    sums._running.take = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        sums.add([[0.3, 0.4], [0.5, 0.0]])
    with pytest.raises(RuntimeError, match="a call of this stream was interrupted"):
        sums.add([[9.0, 0.0]])
    sums.close()
    expected = whole.add([[0.3, 0.4], [0.5, 0.0]])
    with PrefixSum.open(tmp_path / "sum") as again:
        assert again.t == 2 and again.records == 3
        assert (again.value == expected).all()
        assert (again.add([[0.7, 0.0]]) == whole.add([[0.7, 0.0]])).all()


@pytest.mark.parametrize("at", ["write_ahead", "checkpoint"])
def test_a_failing_disk_takes_no_step_twice(at: str, tmp_path: Path) -> None:
    whole, sums = make(), make()
    sums.save(tmp_path / "sum")

    def fail(*given: Any, **named: Any) -> None:
        raise OSError("no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunJournal, at, fail)
        with pytest.raises(OSError, match="no space left"):
            sums.add([[0.3, 0.4]])
    with pytest.raises(RuntimeError, match="interrupted"):
        sums.add([[0.9, 0.4]])
    sums.close()
    taken = at == "checkpoint"
    with PrefixSum.open(tmp_path / "sum") as again:
        assert again.t == int(taken)
        expected = whole.add([[0.3, 0.4]])
        if not taken:
            again.add([[0.3, 0.4]])
        assert (again.value == expected).all()


PROGRAM = """
import sys
import numpy as np
from dpftrl_fast import PrefixSum
folder, day, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rows = np.random.default_rng(day).normal(size=(50, 3))
try:
    sums = PrefixSum.open(folder)
except (FileNotFoundError, ValueError):
    sums = PrefixSum(3, 10, 1.0, 2.0, seed=9)
    sums.save(folder)
print("ready", flush=True)
if sums.t < day:
    sums.add(rows)
np.save(out + ".npy", sums.value)
print(sums.epsilon(1e-6))
sums.close()
"""


@pytest.mark.slow
def test_a_daily_job_that_is_killed_at_random(tmp_path: Path) -> None:
    """Twenty kills in ten days: the sums of each day, and the epsilon, are those of no kill."""
    rng = np.random.default_rng(1)
    plain = PrefixSum(3, 10, 1.0, 2.0, seed=9)
    killed, folder = 0, tmp_path / "sum"
    for day in range(1, 11):
        expected = plain.add(np.random.default_rng(day).normal(size=(50, 3)))
        args = [sys.executable, "-c", PROGRAM, str(folder), str(day), str(tmp_path / "out")]
        for _ in range(2):
            with subprocess.Popen(args, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                process.stdout.readline()
                try:
                    process.wait(timeout=float(rng.uniform(0, 0.03)))
                except subprocess.TimeoutExpired:
                    os.kill(process.pid, signal.SIGKILL)
                    killed += 1
        done = subprocess.run(args, capture_output=True, text=True, check=True)
        assert float(done.stdout.split()[-1]) == plain.epsilon(1e-6)
        assert (np.load(tmp_path / "out.npy") == expected).all()
    assert killed >= 10


def test_a_copy_has_no_guarantee(tmp_path: Path) -> None:
    sums = make()
    sums.save(tmp_path / "sum")
    sums.close()
    shutil.copytree(tmp_path / "sum", tmp_path / "copy")
    with pytest.raises(ValueError, match="was copied"):
        PrefixSum.open(tmp_path / "copy")
    forked = PrefixSum.open(tmp_path / "copy", allow_fork=True)
    with pytest.raises(ValueError, match="no epsilon can be stated"):
        forked.epsilon(1e-6)
    forked.close()


def test_what_is_no_folder_of_a_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"one of PrefixSum\.save"):
        PrefixSum.open(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds none"):
        PrefixSum.open(tmp_path / "empty")
    with RunJournal(tmp_path / "other", {"kind": "another"}):
        pass
    with pytest.raises(ValueError, match="of another run"):
        PrefixSum.open(tmp_path / "other")
    sums, other = make(), make()
    sums.save(tmp_path / "sum")
    with pytest.raises(RuntimeError):
        PrefixSum.open(tmp_path / "sum")
    with pytest.raises(ValueError, match=r"is kept in .* already"):
        sums.save(tmp_path / "again")
    sums.close()
    with pytest.raises(ValueError, match=r"PrefixSum\.open resumes it"):
        other.save(tmp_path / "sum")
    other.add([0.1, 0.2])
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(other)


def test_the_folder_holds_secrets_and_messages_hold_none(tmp_path: Path) -> None:
    sums = make(seed=None)
    sums.save(tmp_path / "sum")
    sums.add([0.123456, 0.2])
    assert (tmp_path / "sum").stat().st_mode & 0o777 == 0o700
    assert "0.123456" not in repr(sums)
    sums.close()


def test_earlier_sums_are_kept_on_request() -> None:
    sums = make()
    for call in (lambda: sums.values, lambda: sums.window(0)):
        with pytest.raises(ValueError, match="kept with history=True"):
            call()
    kept = make("bounds", history=True)
    assert kept.values.shape == (0, 2)
    expected = [kept.add(day) for day in days()]
    assert (kept.values == expected).all()
    with pytest.raises(ValueError, match="since must be"):
        kept.window(5, 4)
    with pytest.raises(ValueError, match="until must be"):
        kept.window(5, 13)


# ---- A later end ----


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("case", ["buffers", "regenerate"])
def test_a_later_end_continues_the_noise(case: str, kept: bool, tmp_path: Path) -> None:
    whole, sums = make(case, 20), make(case, 8)
    assert sums.epsilon(1e-6) < whole.epsilon(1e-6)
    if kept:
        sums.save(tmp_path / "sum")
    for day in days()[:6]:
        assert (sums.add(day) == whole.add(day)).all()
    with pytest.raises(ValueError, match=r"accept_epsilon must be at least .* for 20 steps, got 0"):
        sums.extend(20, accept_epsilon=(0.1, 1e-6))
    assert sums.steps == 8
    sums.extend(20, accept_epsilon=(whole.epsilon(1e-6), 1e-6))
    if kept:
        sums.close()
        sums = PrefixSum.open(tmp_path / "sum")
    assert sums.plan == whole.plan and sums.epsilon(1e-6) == whole.epsilon(1e-6)
    for day in days()[:6] + days()[:8]:
        assert (sums.add(day) == whole.add(day)).all()
    assert sums.t == 20
    sums.close()


def test_a_later_end_of_users() -> None:
    sums = make("buffers", 4, surplus="drop")
    sums.add(np.eye(2), users=[1, 2])
    sums.extend(6, accept_epsilon=(100.0, 1e-6))
    before = sums._running._sum.copy()
    sums.add(np.eye(2), users=[1, 2])
    assert (sums._running._sum == before).all()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"steps": 4}, ValueError, "12 steps|later|more"),
        ({"steps": 12}, ValueError, "12 steps|later|more"),
        ({}, TypeError, "steps must be"),
        ({"steps": 20, "participation": SinglePass(20)}, TypeError, "got both"),
        ({"participation": FixedEpochs(10, 2)}, (TypeError, ValueError), "kind|SinglePass"),
        ({"steps": 20, "accept_epsilon": 3.0}, TypeError, r"pair \(epsilon, delta\)"),
        ({"steps": 20, "accept_epsilon": (NAN, 1e-6)}, ValueError, "epsilon of accept_epsilon"),
        ({"steps": 20, "accept_epsilon": (1.0, 2.0)}, ValueError, "delta of accept_epsilon"),
    ],
)
def test_bad_ends(given: Any, error: Any, message: str) -> None:
    sums = make("buffers")
    sums.add([0.1, 0.2])
    with pytest.raises(error, match=message):
        sums.extend(**{"accept_epsilon": (100.0, 1e-6), **given})
    assert sums.steps == 12 and sums.t == 1
