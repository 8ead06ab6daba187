# SPDX-License-Identifier: Apache-2.0
"""Steps of streams in a folder: one sum for the noise of each, one charge, one turn a user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stream_kills
from estimator_cases import first_of, learned, make, rows
from kept_cases import assert_same, every, feed, interrupted, kill
from processes import child

from dpftrl_fast import PrivacyBudget
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.run import BudgetExceeded, Diverged, RunJournal
from dpftrl_fast.run.step_log import StepLog

pytestmark = pytest.mark.filterwarnings("ignore::dpftrl_fast.convex.glm.outlook.LearningWarning")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


# ---- No noise on two sums ----


@every
@pytest.mark.parametrize("steps_before", [0, 2])
def test_other_rows_are_refused_and_the_same_ones_repeated(
    tmp_path: Path, cls: Any, steps_before: int
) -> None:
    X, y = rows(cls)
    folder, at, first = tmp_path / "stream", 10 * steps_before, first_of(cls)
    model = make(cls, horizon=60, noise_seed=3)
    stream = model.keep_stream(folder)
    if at:
        model.partial_fit(X[:at], y[:at], **first)
    part = slice(at, at + 25)
    interrupted(lambda: model.partial_fit(X[part], y[part], **first))
    assert not hasattr(model, "coef_") if at == 0 else model.n_steps_ == steps_before
    kill(stream)
    messages = set()
    for value in (0.123, np.nan, 1e300, -0.0):
        model = make(cls, horizon=60, noise_seed=3)
        with model.keep_stream(folder) as stream:
            assert stream.position == at
            before = learned(model)
            other = X.copy()
            other[at + 3] = value
            with pytest.raises(Diverged, match="the same noise must not be added") as caught:
                model.partial_fit(other[part], y[part], **first)
            assert (caught.value.step, caught.value.last) == (steps_before + 1, steps_before + 2)
            assert caught.value.__suppress_context__
            messages.add(str(caught.value))
            assert learned(model) == before and stream.position == at
            if value == -0.0:  # nothing has changed: this object continues too
                model.partial_fit(X[part], y[part], **first)
                plain = make(cls, horizon=60, noise_seed=3)
                plain.partial_fit(X[: at + 25], y[: at + 25], **first)
                assert_same(model, plain)
    assert len(messages) == 1 and "0.123" not in messages.pop()


@every
def test_a_later_step_of_a_call_that_differs_is_refused_and_releases_nothing(
    tmp_path: Path, cls: Any
) -> None:
    X, y = rows(cls)
    folder, first = tmp_path / "stream", first_of(cls)
    model = make(cls, horizon=60, noise_seed=3)
    stream = model.keep_stream(folder)
    interrupted(lambda: model.partial_fit(X[:30], y[:30], **first))
    with pytest.raises(RuntimeError, match="close it and call keep_stream again"):
        model.partial_fit(X[:30], y[:30], **first)  # the rows are in its sums
    kill(stream)
    model = make(cls, horizon=60, noise_seed=3)
    other = X.copy()
    other[25] = 0.0
    with model.keep_stream(folder) as stream:
        with pytest.raises(Diverged) as caught:
            model.partial_fit(other[:30], y[:30], **first)
        assert caught.value.step == 3 and not hasattr(model, "coef_")
        with pytest.raises(RuntimeError, match="close it and call keep_stream again"):
            model.partial_fit(X[:30], y[:30], **first)
    with model.keep_stream(folder) as stream:  # the same object, opened again
        assert stream.position == 0
        model.partial_fit(X[:30], y[:30], **first)
    assert_same(model, make(cls, horizon=60, noise_seed=3).partial_fit(X[:30], y[:30], **first))


@every
def test_the_key_on_disk_is_that_of_the_steps(tmp_path: Path, cls: Any) -> None:
    """A first call may be refused after its key was written: the next one has another key."""
    X, y = rows(cls)
    small = PrivacyBudget(1e-3, 1e-6)
    model = make(cls, horizon=60)
    stream = model.keep_stream(tmp_path / "stream", checkpoint_every=100)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BudgetExceeded), small:
        patch.setattr(
            "dpftrl_fast.linear_model.callers.budgets.Spending.look_ahead", lambda *_: None
        )
        model.partial_fit(X[:10], y[:10], **first_of(cls))
    assert (tmp_path / "stream" / "checkpoint.npz").exists()
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    released = model.coef_last_
    kill(stream)
    again = make(cls, horizon=60)
    with again.keep_stream(tmp_path / "stream"):
        again.partial_fit(X[:10], y[:10], **first_of(cls))
    np.testing.assert_array_equal(again.coef_last_, released)


@every
@pytest.mark.parametrize("place", ["before_release", "write_ahead", "append"])
def test_an_interrupted_first_call_is_not_begun_again_with_another_key(
    tmp_path: Path, cls: Any, place: str
) -> None:
    X, y = rows(cls)
    model, first = make(cls, horizon=60), first_of(cls)
    stream = model.keep_stream(tmp_path / "stream")
    owner: Any = StepLog if place == "append" else StreamJournal
    done = getattr(owner, place)

    def late(*given: Any, **named: Any) -> None:
        done(*given, **named)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, place, late)
        model.partial_fit(X[:10], y[:10], **first)
    assert not hasattr(model, "coef_")
    for part in (slice(10), slice(10, 20)):
        with pytest.raises(RuntimeError, match="step 1 of this stream was interrupted"):
            model.partial_fit(X[part], y[part], **first)
    stream.close()
    with model.keep_stream(tmp_path / "stream") as stream:
        if stream.position == 0:
            model.partial_fit(X[:10], y[:10], **first)
        assert model.n_steps_ == 1 and stream.position == 10


@every
def test_a_call_that_was_interrupted_is_not_in_the_state_that_close_writes(
    tmp_path: Path, cls: Any
) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60, noise_seed=3)
    write_ahead = RunJournal.write_ahead

    def late(self: RunJournal, *given: Any) -> None:
        write_ahead(self, *given)
        raise KeyboardInterrupt

    with model.keep_stream(tmp_path / "stream", checkpoint_every=100) as stream:
        model.partial_fit(X[:10], y[:10], **first_of(cls))
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(RunJournal, "write_ahead", late)
            model.partial_fit(X[10:20], y[10:20])
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 0
        feed(model, X, y, 0, 10)
    plain = make(cls, horizon=60, noise_seed=3)
    feed(plain, X, y, 0)
    assert_same(model, plain)


@every
def test_a_model_that_cannot_be_written_is_not_released(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    model, first = make(cls, horizon=60, noise_seed=3), first_of(cls)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with model.keep_stream(tmp_path / "stream") as stream:
        model.partial_fit(X[:10], y[:10], **first)
        for name, refusal in (("write_ahead", OSError), ("checkpoint", OSError)):
            with pytest.MonkeyPatch.context() as patch, pytest.raises(refusal):
                patch.setattr(RunJournal, name, full)
                model.partial_fit(X[10:20], y[10:20])
            assert model.n_steps_ == 1 and stream.position == 10
        with pytest.raises(RuntimeError, match="step 2 of this stream was interrupted"):
            model.partial_fit(X[10:20], y[10:20])
    with model.keep_stream(tmp_path / "stream") as stream:
        feed(model, X, y, stream.position, 10)
    plain = make(cls, horizon=60, noise_seed=3)
    feed(plain, X, y, 0)
    assert_same(model, plain)


@every
def test_a_model_is_on_the_disk_before_it_is_released(
    tmp_path: Path, cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(cls)
    publish, seen = cls._publish, []

    def published(self: Any, parameters: Any, targets: Any, run: Any, *rest: Any) -> None:
        folder = tmp_path / "then"
        shutil.copytree(tmp_path / "stream", folder)
        monkeypatch.setattr(cls, "_publish", publish)
        other = make(cls, horizon=60, noise_seed=3)
        with other.keep_stream(folder, allow_fork=True) as stream:
            seen.append((run.steps_taken, other.n_steps_, stream.position))
        monkeypatch.setattr(cls, "_publish", published)
        shutil.rmtree(folder)
        publish(self, parameters, targets, run, *rest)

    monkeypatch.setattr(cls, "_publish", published)
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "stream"):
        feed(model, X, y, 0, 20)
    assert seen == [(2, 2, 20), (4, 4, 40), (6, 6, 60)]


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (DPFTRLRegressor, "charged"),
        (DPFTRLLeastSquares, "seeded"),
        (DPFTRLClassifier, "users"),
        pytest.param(DPFTRLRegressor, "seeded", marks=slow),
        pytest.param(DPFTRLRegressor, "users", marks=slow),
        pytest.param(DPFTRLLeastSquares, "charged", marks=slow),
        pytest.param(DPFTRLLeastSquares, "users", marks=slow),
        pytest.param(DPFTRLClassifier, "seeded", marks=slow),
        pytest.param(DPFTRLClassifier, "charged", marks=slow),
    ],
)
def test_killed_at_every_call_of_the_system(tmp_path: Path, cls: Any, kind: str) -> None:
    program = [sys.executable, "-W", "error", stream_kills.__file__, tmp_path, cls.__name__, kind]
    with child(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said
    assert said == "all held\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@every
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_copy_of_a_kept_stream_refuses(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60, threads=1, noise_seed=3)
    with model.keep_stream(tmp_path / "stream"):
        model.partial_fit(X[:10], y[:10], **first_of(cls))
        process = os.fork()
        if process == 0:
            code = 1
            try:
                model.partial_fit(X[10:20], y[10:20])
            except RuntimeError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        assert model.partial_fit(X[10:20], y[10:20]).n_steps_ == 2


# ---- Users ----


@every
def test_users_are_known_after_a_crash(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls, n=12)
    users = np.array(["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"], dtype=object)
    users[5] = None
    new = partial(make, cls, batch_size=4, horizon=12, noise_seed=3)
    expected, first = new(), first_of(cls)
    feed(expected, X, y, 0, 4, groups=users)
    model = new()
    stream = model.keep_stream(tmp_path / "stream")
    model.partial_fit(X[:4], y[:4], groups=users[:4], **first)
    kill(stream)
    model = new()
    stream = model.keep_stream(tmp_path / "stream")
    assert stream.position == 4
    interrupted(lambda: model.partial_fit(X[4:8], y[4:8], groups=users[4:8]))
    kill(stream)
    model = new()
    with model.keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 4
        with pytest.raises(ValueError, match="took part in an earlier step"):
            model.partial_fit(X[4:8], y[4:8], groups=np.array([*users[5:8], "c"], dtype=object))
        # Those who take part are recorded with the sum: other ones with it would be forgotten.
        others = np.array([None if u is None else f"{u}{u}" for u in users[4:8]], dtype=object)
        with pytest.raises(Diverged):
            model.partial_fit(X[4:8], y[4:8], groups=others)
        model.partial_fit(X[4:8], y[4:8], groups=users[4:8])
        with pytest.raises(ValueError, match="took part in an earlier step"):
            model.partial_fit(X[8:], y[8:], groups=np.array([*users[8:11], "h"], dtype=object))
        model.partial_fit(X[8:], y[8:], groups=users[8:])
    assert_same(model, expected)


@every
def test_a_step_that_the_guard_refuses_is_not_written_ahead(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls, n=6)
    model = make(cls, batch_size=2, horizon=6)
    with model.keep_stream(tmp_path / "stream") as stream:
        model.partial_fit(X[:2], y[:2], groups=["a", "b"], **first_of(cls))
        with pytest.raises(ValueError, match="took part"):
            model.partial_fit(X[2:4], y[2:4], groups=["c", "a"])
        assert stream._journal.last == 1
        model.partial_fit(X[2:4], y[2:4], groups=["c", "d"])
        assert model.n_steps_ == 2


def test_ids_of_rows_without_a_user_are_distinct(tmp_path: Path) -> None:
    one, other = (
        StreamJournal(tmp_path / k, {}, threading.RLock(), checkpoint_every=1, allow_fork=False)
        for k in "ab"
    )
    ids = [j.stand_in(t, row) for j in (one, other) for t in (1, 2, 11) for row in (0, 1, 11, 111)]
    assert len({*ids}) == len(ids) and all(0 <= number < 2**63 for number in ids)
    assert one.stand_in(1, 11) == ids[2]
    for journal in (one, other):
        journal.close()


# ---- Budgets ----


@every
@pytest.mark.parametrize("place", ["begin", "write_ahead", "before_release", None])
def test_a_stream_is_charged_once(tmp_path: Path, cls: Any, place: str | None) -> None:
    X, y = rows(cls)
    budget = PrivacyBudget(4.0, 1e-6)
    new = partial(make, cls, horizon=60, budget=budget)
    model = new()
    stream = model.keep_stream(tmp_path / "stream")
    begin = StreamJournal.begin

    def late(self: StreamJournal, state: Any) -> None:
        begin(self, state)
        raise KeyboardInterrupt

    call = partial(model.partial_fit, X[:10], y[:10], **first_of(cls))
    if place is None:
        call()
    elif place == "begin":
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(StreamJournal, "begin", late)
            call()
        assert budget.table() == []
    else:
        interrupted(call, place)
    kill(stream)
    later = PrivacyBudget(4.0, 1e-6)
    for charges in (0, 1):
        model = new()
        stream = model.keep_stream(tmp_path / "stream")
        assert len(later.table()) == charges
        with later:
            feed(model, X, y, stream.position, 10, 30 + 10 * charges)
        assert len(budget.table()) == len(later.table()) == 1
        kill(stream)
    assert budget.table()[0].label.endswith(f"stream {stream.name}")
    other = new()
    with other.keep_stream(tmp_path / "other"):
        other.partial_fit(X[:10], y[:10], **first_of(cls))
    assert len(budget.table()) == 2


@every
def test_a_forked_stream_is_not_charged_but_refused(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    budget = PrivacyBudget(4.0, 1e-6)
    model = make(cls, horizon=60, budget=budget)
    with model.keep_stream(tmp_path / "stream"):
        model.partial_fit(X[:10], y[:10], **first_of(cls))
    shutil.copytree(tmp_path / "stream", tmp_path / "copy")
    fork = make(cls, horizon=60, budget=budget)
    with fork.keep_stream(tmp_path / "copy", allow_fork=True) as stream:
        assert stream.position == 10
        with pytest.raises(ValueError, match="inside a privacy budget must not be resumed"):
            fork.partial_fit(X[10:20], y[10:20])
        assert fork.n_steps_ == 1
    assert len(budget.table()) == 1


def test_streams_of_a_class_with_a_long_name_are_charged_each(tmp_path: Path) -> None:
    cls: Any = type("L" * 300, (DPFTRLRegressor,), {"__init__": DPFTRLRegressor.__init__})
    X, y = rows(DPFTRLRegressor)
    budget = PrivacyBudget(4.0, 1e-6)
    for name in ("one", "other"):
        model = make(cls, horizon=60, budget=budget)
        with model.keep_stream(tmp_path / name):
            model.partial_fit(X[:10], y[:10])
    assert len(budget.table()) == 2
