# SPDX-License-Identifier: Apache-2.0
"""A training that is stopped anywhere goes on: same parameters, same epsilon, no noise twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import training_run
from processes import child
from torch import Tensor
from training_run import BATCH, DELTA, EPOCHS, PLAN, STEPS, Training

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.step_log import Diverged
from dpftrl_fast.torch.checkpoint import TrainingRun
from dpftrl_fast.torch.gradients.clipping import (
    AutomaticClipping,
    Clipping,
    FlatClipping,
    PerLayerClipping,
)
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.schedules import refuse_other_settings, settings_of


class Crash(Exception):
    """Stands for a kill: everything in memory is given up, the folder is as it is."""


def crash_at(step: int) -> Any:
    def check(now: int) -> None:
        if now == step:
            raise Crash

    return check


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tensor, float]:
    training = Training()
    epsilon = training.train(tmp_path_factory.mktemp("undisturbed") / "run")
    assert epsilon == PLAN.epsilon(DELTA) == training.ledger.epsilon_spent()
    return training.parameters(), epsilon


def check_stops(
    folder: Path, undisturbed: tuple[Tensor, float], stops: Iterable[int], when: str, **options: Any
) -> None:
    """Train in a folder, stopped before or after each of these steps in turn, to the end."""
    left: dict[int, set[bytes]] = defaultdict(set)

    def note(step: int, noisy: bytes) -> None:
        left[step].add(noisy)

    for stop in stops:
        training = Training(left=note)
        if left:  # what a new process finds in its generators is something else
            torch.manual_seed(99)
        with pytest.raises(Crash):
            training.train(folder, **{when: crash_at(stop)}, **options)
    training = Training(left=note)
    torch.manual_seed(99)
    epsilon = training.train(folder, **options)
    assert torch.equal(training.parameters(), undisturbed[0])
    assert epsilon == undisturbed[1]
    assert sorted(left) == list(range(1, STEPS + 1))
    assert all(len(values) == 1 for values in left.values())


ways_to_stop = pytest.mark.parametrize(
    ("every", "keep_sums", "when"),
    [
        (every, keep_sums, when)
        for every, keep_sums in ((1, False), (3, False), (100, False), (3, True))
        for when in ("before_step", "after_step")
    ],
)


@ways_to_stop
def test_stopped_at_every_step(
    tmp_path: Path,
    undisturbed: tuple[Tensor, float],
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    keep_sums: bool,
    when: str,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine does not fail here
    options = {"checkpoint_every": every, "keep_sums": keep_sums}
    # Without a checkpoint all steps are taken again each time.
    stops = (1, 5, STEPS) if every > STEPS else range(1, STEPS + 1)
    check_stops(tmp_path / "run", undisturbed, stops, when, **options)


@pytest.mark.slow
@ways_to_stop
def test_stopped_once_at_any_step(
    tmp_path: Path,
    undisturbed: tuple[Tensor, float],
    monkeypatch: pytest.MonkeyPatch,
    every: int,
    keep_sums: bool,
    when: str,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    options = {"checkpoint_every": every, "keep_sums": keep_sums}
    for step in range(1, STEPS + 1):
        check_stops(tmp_path / str(step), undisturbed, [step], when, **options)


@pytest.mark.slow
def test_killed_twice_from_outside(tmp_path: Path, undisturbed: tuple[Tensor, float]) -> None:
    chance = random.Random(2)
    program = [sys.executable, training_run.__file__, tmp_path / "run", tmp_path / "out.npz"]
    root = Path(__file__).parents[2]
    kills = sorted(chance.sample(range(2, STEPS), 2))
    seen: list[int] = []
    for kill in (*kills, None):
        with child(program, stdout=subprocess.PIPE, text=True, cwd=root) as process:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(int(line))
                if seen[-1] == kill:
                    process.kill()
                    break
            process.stdout.read()
            process.wait(240)
        assert process.returncode == (0 if kill is None else -9)
    assert seen[-1] == STEPS
    out = np.load(tmp_path / "out.npz")
    assert out["epsilon"] == PLAN.epsilon(DELTA)
    assert np.array_equal(out["parameters"], undisturbed[0].numpy())


def test_an_order_that_was_drawn_is_kept(tmp_path: Path) -> None:
    orders = []
    for crash in (6, None):
        training = Training(order_seed=None)
        if crash:
            with pytest.raises(Crash):
                training.train(tmp_path / "run", after_step=crash_at(crash))
        else:
            training.train(tmp_path / "run")
        orders.append([training.loader.ids(step).tolist() for step in range(1, STEPS + 1)])
    assert orders[0] == orders[1]


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_the_optimisers_stopped_twice(tmp_path: Path, kind: str) -> None:
    whole = Training(kind=kind)
    whole.train(tmp_path / "whole")
    for stops in ((1, 2), (4, 5), (5, 9), (8, STEPS)):
        folder = tmp_path / str(stops)
        for stop in stops:
            with pytest.raises(Crash):
                Training(kind=kind).train(folder, after_step=crash_at(stop), checkpoint_every=3)
        training = Training(kind=kind)
        assert training.train(folder) == PLAN.epsilon(DELTA)
        assert torch.equal(training.parameters(), whole.parameters())


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_the_optimisers_restarted(tmp_path: Path, kind: str) -> None:
    """Stopped at 8 with a checkpoint at 5, and again at 10: epsilon and steps are right."""
    folder = tmp_path / "run"
    with pytest.raises(Crash):
        Training(kind=kind).train(folder, after_step=crash_at(8), checkpoint_every=5)
    with pytest.raises(Crash):
        Training(kind=kind).train(
            folder,
            after_step=crash_at(10),
            checkpoint_every=4,
            recover=True,
            accept_epsilon=(9.0, DELTA),
        )
    shutil.copytree(folder, tmp_path / "copy")
    results = []
    for name in ("run", "copy"):
        training = Training(kind=kind)
        with training.run(tmp_path / name, allow_fork=name == "copy") as run:
            assert run.account.abandoned == ((1, 8),) and run.replaying
            stated = run.account.epsilon(DELTA)
            for _ in range(training.loader.epoch, EPOCHS):
                for _, (x, y) in run:
                    training.model.backward(x, y)
                    training.optimizer.step()
                training.scheduler.step()
        noisy = training.optimizer if training.noise is None else training.noise
        assert noisy.steps_taken == training.ledger.steps_taken == STEPS
        assert PLAN.epsilon(DELTA) < stated < 9.0
        if name == "run":
            assert training.ledger.epsilon_spent() == training.ledger.epsilon_so_far() == stated
        results.append(training.parameters())
    assert torch.equal(*results)


def test_the_noise_that_an_optimiser_stands_on_is_found(tmp_path: Path) -> None:
    """Else a new process would put other noise on the sums of steps that may have left."""
    whole = Training(kind="residual")
    whole.train(tmp_path / "whole")
    for crash in (2, None):
        training = Training(kind="residual")
        accumulator = training.loader.accumulator
        assert accumulator is not None
        accumulator.noise, training.noise = training.noise, None  # as make_private does it
        if crash:
            with pytest.raises(Crash):
                training.train(tmp_path / "run", after_step=crash_at(crash))
        else:
            training.train(tmp_path / "run")
    assert torch.equal(training.parameters(), whole.parameters())

    training = Training(kind="residual")
    training.noise = None
    with pytest.raises(TypeError, match="got Adam, which makes no noise"):
        training.run(tmp_path / "none")
    training = Training(kind="residual")
    assert training.loader.accumulator is not None
    training.loader.accumulator.noise = Training(kind="residual").noise
    with pytest.raises(ValueError, match="noise must be that of the run"):
        training.run(tmp_path / "other")


@pytest.mark.usefixtures("fine_grid")
def test_a_restart_of_dpftrl_leaves_the_old_noise_on_the_sum() -> None:
    plan = replace(PLAN, participation=SinglePass(9), mechanism=Tree(restart_every=4))
    w = torch.nn.Parameter(torch.zeros(3))
    optimizer = DPFTRL([w], 1.0, plan=plan, batch_size=1, noise_seed=5)
    old = plan.noise(3, seed=5)
    for _ in range(6):
        w.grad = torch.ones(3)
        optimizer.step()
        last = old.step()
    account = RunAccount(plan).recovered(8, 7, accept_epsilon=(9.0, DELTA))
    optimizer.recover(account)
    state = optimizer.state_dict(secrets=True)
    fresh = account.noise(3)
    fresh.load_state_dict({**fresh.state_dict(), **state["noise"]["common"]})
    for t in (7, 8, 9):
        w.grad = torch.ones(3)
        optimizer.step()
        expected = -(t + torch.from_numpy(last) + torch.from_numpy(fresh.step()))
        assert torch.allclose(w, expected, rtol=1e-6, atol=1e-5)
        assert optimizer.steps_taken == t
    w.grad = torch.ones(3)
    with pytest.raises(ValueError, match="all 9 declared steps are taken"):
        optimizer.step()


# ---- Steps that come with another sum ----


def stopped(folder: Path, step: int = 8, **options: Any) -> None:
    """A run with checkpoints at steps 0 and 5 that is stopped after a step."""
    with pytest.raises(Crash):
        Training().train(folder, after_step=crash_at(step), checkpoint_every=5, **options)


def other_weights(training: Training) -> Any:
    """Let step 6 see another model, as a change of the code would."""

    def change(step: int) -> None:
        if step == 6:
            with torch.no_grad():
                next(training.model.parameters()).add_(0.01)

    return change


def test_another_sum_is_refused_before_anything_leaves(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    left: list[tuple[int, bytes]] = []
    training = Training(left=lambda *what: left.append(what))
    with pytest.raises(Diverged, match=r"step 6 was written .* up to 8 may have been released"):
        training.train(tmp_path / "run", before_step=other_weights(training))
    assert left == []


def test_the_same_sums_of_other_examples_are_refused(tmp_path: Path) -> None:
    """The guard has counted the examples that were written ahead."""
    sums = [torch.ones(3), torch.zeros(2, 2)]
    run = Training().run(tmp_path / "run")
    run._write_ahead(1, np.array([0, 1]), sums)
    run.close()  # and the process ends
    with pytest.raises(Diverged), Training().run(tmp_path / "run") as run:
        assert run.replaying
        run._write_ahead(1, np.array([0, 2]), sums)
    with pytest.raises(Diverged), Training().run(tmp_path / "run") as run:
        run._write_ahead(1, np.array([0, 1]), [torch.ones(3), torch.ones(2, 2)])


def test_kept_sums_cannot_diverge(tmp_path: Path, undisturbed: tuple[Tensor, float]) -> None:
    stopped(tmp_path / "run", keep_sums=True)
    training = Training()
    training.train(tmp_path / "run", before_step=other_weights(training), keep_sums=True)
    assert torch.equal(training.parameters(), undisturbed[0])


def test_a_restart_is_refused_until_its_epsilon_is_accepted(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    for options in ({}, {"accept_epsilon": (PLAN.epsilon(DELTA), DELTA)}):
        with pytest.raises(ValueError, match=r"steps 6 to 8 into a second tree, and 0 spare"):
            Training().run(tmp_path / "run", recover=True, **options)
    left: list[tuple[int, bytes]] = []
    training = Training(left=lambda *what: left.append(what))
    with training.run(tmp_path / "run", recover=True, accept_epsilon=(9.0, DELTA)) as run:
        assert (run.step, run.account.abandoned, run.account.start) == (5, ((1, 8),), 6)
        assert not run.replaying
        accepted = run.epsilon(DELTA)
    assert PLAN.epsilon(DELTA) < accepted < 9.0
    # It goes on, is stopped again, and states what was accepted.
    for crash in (9, 11, None):
        training = Training(left=lambda *what: left.append(what))
        if crash:
            with pytest.raises(Crash):
                training.train(tmp_path / "run", after_step=crash_at(crash), checkpoint_every=2)
        else:
            assert training.train(tmp_path / "run") == accepted
    assert training.ledger.steps_taken == STEPS
    assert training.optimizer.noise.steps == STEPS - 5


def test_fresh_noise_lies_on_all_later_sums_and_the_old_one_stays(tmp_path: Path) -> None:
    """What leaves after the restart: the sums, n_5 of the old noise, and the fresh noise."""
    stopped(tmp_path / "run")
    left: list[tuple[int, bytes]] = []
    training = Training(left=lambda *what: left.append(what))
    reference = PLAN.noise(26, seed=11)
    for _ in range(5):
        old = reference.step()
    with training.run(tmp_path / "run", recover=True, accept_epsilon=(9.0, DELTA)) as run:
        fresh = run.account.noise(26)
        fresh.load_state_dict(training.optimizer.noise.state_dict())
        total = training.optimizer.total.clone()
        assert not fresh.reproducible and fresh.steps_taken == 0
        for _, (x, y) in run:
            training.model.backward(x, y)
            before = training.optimizer.total.clone()
            training.optimizer.step()
            noisy = torch.frombuffer(bytearray(left[-1][1]), dtype=torch.float32)
            assert torch.equal(noisy, training.optimizer.total + torch.from_numpy(fresh.step()))
            assert not torch.equal(before, training.optimizer.total)
    # The total of step 5 was the raw sum: now it has n_5 in it.
    raw = Training()
    with pytest.raises(Crash):
        raw.train(tmp_path / "raw", after_step=crash_at(5))
    assert torch.equal(total, raw.optimizer.total + torch.from_numpy(old))


def test_spare_restarts_state_more_from_the_start_and_the_same_to_the_end(tmp_path: Path) -> None:
    stopped(tmp_path / "run", spare_recoveries=1)
    with pytest.raises(ValueError, match="differ in spare_restarts"):
        Training().run(tmp_path / "run", spare_recoveries=2)
    with Training().run(tmp_path / "run", spare_recoveries=1) as run:
        stated = run.epsilon(DELTA)
        assert stated > PLAN.epsilon(DELTA)
    training = Training()
    with training.run(tmp_path / "run", spare_recoveries=1):
        assert training.ledger.epsilon_spent() == training.ledger.epsilon_so_far() == stated
    stopped(tmp_path / "run", 7, spare_recoveries=1, recover=True)
    training = Training()
    assert training.train(tmp_path / "run", spare_recoveries=1) == stated
    # Nothing was written ahead that is not in a checkpoint: nothing to abandon.
    with Training().run(tmp_path / "run", spare_recoveries=1, recover=True) as run:
        assert len(run.account.abandoned) == 1


# ---- What is refused ----


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order_seed": 4}, "state must be of the same order"),
        ({"plan": replace(PLAN, noise_multiplier=7.0)}, "differ in plan"),
        ({"hidden": 5}, "differ in parameters"),
        ({"examples": BATCH * 4 - 1}, "differ in examples"),
    ],
)
def test_another_run_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    stopped(tmp_path / "run")
    training = Training(**options)
    before = training.parameters()
    with pytest.raises(ValueError, match=words):
        training.run(tmp_path / "run")
    assert torch.equal(training.parameters(), before)
    Training().train(tmp_path / "run")  # and the folder is let go


# For each fact that identifies a run: one that differs in it.
OTHERS: dict[str, dict[str, Any]] = {
    "plan": {"plan": replace(PLAN, mechanism=Tree(restart_every=4))},
    "spare_restarts": {"spare_recoveries": 1},
    "batch_size": {"batch": BATCH - 1, "examples": (BATCH - 1) * 4},
    "examples": {"examples": BATCH * 4 - 1},
    "clipping": {"clipping": AutomaticClipping(1.0)},
    "optimizer": {"kind": "dpftrl"},
    "parameters": {"hidden": 5},
    "extra": {"extra": {}},
}


@pytest.mark.parametrize("fact", OTHERS)
def test_a_folder_is_refused_for_every_fact_that_differs(tmp_path: Path, fact: str) -> None:
    training = Training()
    with training.run(tmp_path / "run") as run:
        identity = run._identity(run.account)
        assert identity.keys() == OTHERS.keys(), "a fact of the identity has no run that differs"
    options = dict(OTHERS[fact])
    of_run = {name: options.pop(name) for name in ("spare_recoveries", "extra") if name in options}
    with pytest.raises(ValueError, match=rf"they differ in (\w+, )*{fact}\b"):
        Training(**options).run(tmp_path / "run", **of_run)
    with pytest.raises(ValueError, match=f"they differ in {fact};"):
        RunJournal(tmp_path / "run", {**identity, fact: ["another"]})
    Training().run(tmp_path / "run").close()


@pytest.mark.parametrize(
    "other",
    [AutomaticClipping(1.0), PerLayerClipping.equal(1.0, 4), FlatClipping(0.5)],
    ids=str,
)
def test_a_run_goes_on_with_its_own_clipping_only(tmp_path: Path, other: Clipping) -> None:
    """Also where the norm is the same: a replayed step would not be of the same sums."""
    stopped(tmp_path / "run")
    with pytest.raises(ValueError, match="they differ in clipping;"):
        Training(clipping=other).run(tmp_path / "run")


# ---- Settings of another run ----


@pytest.mark.parametrize("stop", [5, None], ids=["killed midway", "finished"])
@pytest.mark.parametrize(
    ("kind", "first", "other", "words"),
    [
        ("small", {}, {"lr": 0.2}, "lr: the folder has 0.1, this run 0.2"),
        ("dpftrl", {}, {"lr": 0.2}, "lr: the folder has 0.1, this run 0.2"),
        ("dpftrl", {}, {"momentum": 0.8}, "momentum: the folder has 0.9, this run 0.8"),
        ("adam", {}, {"momentum": 0.8}, r"betas\[0\]: the folder has 0.9, this run 0.8"),
        ("dpftrl", {}, {"gamma": 0.5}, "scheduler.gamma: the folder has 0.7, this run 0.5"),
        # A rate that a scheduler scales by 0 at first.
        ("small", {"warmup": True}, {"lr": 0.2}, "lr: the folder has 0.1, this run 0.2"),
        (
            "small",
            {"clipping": AutomaticClipping(1.0, 0.01)},
            {"clipping": AutomaticClipping(1.0, 0.02)},
            "clipping.gamma: the folder has 0.01, this run 0.02",
        ),
    ],
)
def test_other_settings_are_refused(
    tmp_path: Path,
    stop: int | None,
    kind: str,
    first: dict[str, Any],
    other: dict[str, Any],
    words: str,
) -> None:
    """They would be replaced by those of the folder, and a user would compare a run with itself."""
    options = {"checkpoint_every": 2}
    if stop is None:
        Training(kind=kind, **first).train(tmp_path / "run", **options)
    else:
        with pytest.raises(Crash):
            Training(kind=kind, **first).train(
                tmp_path / "run", before_step=crash_at(stop), **options
            )
    training = Training(kind=kind, **{**first, **other})
    before = training.parameters()
    with pytest.raises(ValueError, match=f"got others: {words}. For a run"):
        training.run(tmp_path / "run", **options)
    assert torch.equal(training.parameters(), before)
    same = Training(kind=kind, **first)  # whatever rate the scheduler has come to
    same.train(tmp_path / "run", **options)
    undisturbed = Training(kind=kind, **first)
    undisturbed.train(tmp_path / "other", **options)
    assert torch.equal(same.parameters(), undisturbed.parameters())


def test_a_rate_is_changed_between_steps_and_stays(tmp_path: Path) -> None:
    first = Training()
    with first.run(tmp_path / "run") as run:
        for group in first.optimizer.param_groups:
            group["lr"] = 0.03
        for number, (_, (x, y)) in enumerate(run):
            first.model.backward(x, y)
            first.optimizer.step()
            if number == 1:
                break
    second = Training()
    with second.run(tmp_path / "run"):
        assert second.optimizer.param_groups[0]["lr"] == 0.03
    with Training().run(tmp_path / "run") as run:  # after a second checkpoint too
        assert run.step == 2
    with pytest.raises(ValueError, match=r"lr: the folder has 0\.1, this run 0.03"):
        Training(lr=0.03).run(tmp_path / "run")


def test_settings_of_each_group() -> None:
    a, b = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    groups = [{"params": [a]}, {"params": [b], "lr": torch.tensor(0.25)}]
    adam = torch.optim.AdamW(groups, lr=0.5, foreach=True)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(adam, [3, 5], 0.5)
    found = settings_of(adam.param_groups, FlatClipping(2.0), {"s": scheduler, "other": object()})
    assert found["param_groups[0].lr"] == 0.5 and found["param_groups[1].lr"] == 0.25
    assert found["param_groups[1].betas"] == [0.9, 0.999]
    assert found["clipping.clip_norm"] == 2.0
    assert (found["s.milestones"], found["s.gamma"]) == ([3, 5], 0.5)
    assert not [name for name in found if "foreach" in name or "last_epoch" in name]
    for _ in range(4):
        adam.step()
        scheduler.step()
    assert adam.param_groups[0]["lr"] == 0.25
    again = settings_of(adam.param_groups, FlatClipping(2.0), {"s": scheduler})
    assert again == found
    refuse_other_settings({**found, "of another version": 1}, again)


def test_a_folder_without_settings_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of before settings were kept: they keep them from then on."""
    whole = TrainingRun._state

    def of_before(run: TrainingRun) -> dict[str, Any]:
        state = whole(run)
        del state["settings"]
        return state

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_state", of_before)
        stopped(tmp_path / "run", 5)
    Training(lr=0.2).run(tmp_path / "run").close()
    with Training().run(tmp_path / "run"):
        pass
    with pytest.raises(ValueError, match=r"lr: the folder has 0\.1, this run 0.2"):
        Training(lr=0.2).run(tmp_path / "run")


def test_where_a_run_resumes_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, options = tmp_path / "run", {"checkpoint_every": 3}

    def told() -> str:
        return capsys.readouterr().err.removeprefix(f"dpftrl_fast: {folder}: ").strip()

    with pytest.raises(Crash):
        Training().train(folder, before_step=crash_at(6), **options)
    assert told() == ""  # a new run
    with pytest.raises(Crash):
        Training().train(folder, before_step=crash_at(8), **options)
    assert told() == (
        "resumed at step 3 of 12; the steps up to 5, which were begun before, are repeated"
    )
    with Training().run(folder, **options) as run:
        told()
        assert run.replaying
    Training().train(folder, **options)
    assert told().startswith("resumed at step 6 of 12")
    Training().train(folder, **options)
    assert told() == "all 12 steps were taken before: the model is the one in the folder"


def test_buffers_of_the_model_come_back(tmp_path: Path) -> None:
    def made() -> tuple[Training, Tensor]:
        training = Training()
        buffer = torch.zeros(3)
        training.model.register_buffer("seen", buffer)
        return training, buffer

    training, buffer = made()
    with training.run(tmp_path / "run", checkpoint_every=1) as run:
        for _, (x, y) in run:
            training.model.backward(x, y)
            training.optimizer.step()
            buffer += torch.arange(3)
    again, found = made()
    found += 9
    with again.run(tmp_path / "run") as run:
        assert run.step == 4
        assert torch.equal(found, 4 * torch.arange(3.0))
        assert torch.equal(again.parameters(), training.parameters())


def test_wrong_calls(tmp_path: Path) -> None:
    training = Training()
    with training.run(tmp_path / "run") as run:
        with pytest.raises(RuntimeError, match="in use"):
            Training().run(tmp_path / "run")
        with pytest.raises(ValueError, match="in no other folder"):
            training.run(tmp_path / "other")
        for _, (x, y) in run:
            with pytest.raises(ValueError, match=r"expected optimizer.step\(\) before"):
                run.checkpoint()
            training.model.backward(x, y)
            training.optimizer.step()
            run.checkpoint()
            break
    with pytest.raises(ValueError, match="got one at step 1"):
        training.run(tmp_path / "other")
    training = Training()
    training.loader._accumulator = None
    with pytest.raises(ValueError, match="must have an accumulator attached"):
        training.run(tmp_path / "third")


def test_a_ledger_that_counts_more_steps_than_the_run_is_not_saved(
    tmp_path: Path, undisturbed: tuple[Tensor, float]
) -> None:
    training = Training()
    words = "ledger must be at step 0, as the run, got step 1"
    with pytest.raises(ValueError, match=words), training.run(tmp_path / "run") as run:
        training.ledger.record(range(4))
        with pytest.raises(ValueError, match=words):
            run.checkpoint()
    training = Training()  # finds the folder as it was before
    training.train(tmp_path / "run")
    assert torch.equal(training.parameters(), undisturbed[0])


def test_a_step_after_the_folder_was_let_go_is_refused(tmp_path: Path) -> None:
    """It would not be written ahead: a run that goes on from the folder would not know of it."""
    training = Training()
    with training.run(tmp_path / "run") as run:
        for _, (x, y) in run:
            training.model.backward(x, y)
            training.optimizer.step()
    for _, (x, y) in training.loader:
        training.model.backward(x, y)
        with pytest.raises(RuntimeError, match="this journal is closed"):
            training.optimizer.step()
        break
    assert training.optimizer.noise.steps_taken == 4


def test_a_copy_states_no_epsilon(tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(ValueError, match="was copied"):
        Training().run(tmp_path / "copy")
    training = Training()
    with training.run(tmp_path / "copy", allow_fork=True) as run:
        for call in (lambda: run.epsilon(DELTA), training.ledger.epsilon_spent):
            with pytest.raises(ValueError, match="no epsilon can be stated"):
                call()


def test_batches_without_ids(tmp_path: Path, undisturbed: tuple[Tensor, float]) -> None:
    """They are those of the run, and have its checkpoints."""
    for stop in (7, None):
        training = Training()
        run = training.run(tmp_path / "run", checkpoint_every=3)
        for _ in range(training.loader.epoch, EPOCHS):
            for x, y in run.batches():
                training.model.backward(x, y)
                training.optimizer.step()
                if run.step == stop:
                    break
            if run.step == stop:
                break
            training.scheduler.step()
        run.close()
        if stop is not None:
            with RunJournal(tmp_path / "run", run._identity(run.account)) as journal:
                journal.resume()
                assert (journal.step, journal.last) == (6, 7)
    assert torch.equal(training.parameters(), undisturbed[0])


def test_pieces_and_unfinished_batches(tmp_path: Path, undisturbed: tuple[Tensor, float]) -> None:
    for first in (True, False):
        training = Training()
        with training.run(tmp_path / "run", checkpoint_every=2) as run:
            for _ in range(training.loader.epoch, EPOCHS):
                for pieces in run.in_pieces(BATCH):
                    if first and run.step == 6:
                        break
                    for _, (x, y) in pieces:
                        training.model.backward(x, y)
                    training.optimizer.step()
                else:
                    training.scheduler.step()
                    continue
                break
    assert torch.equal(training.parameters(), undisturbed[0])


def test_the_noise_of_a_checkpoint_is_small_when_it_is_made_again() -> None:
    noise = PLAN.noise(10**6, memory="regenerate")
    noise.step()
    assert len(json.dumps(noise.state_dict())) < 1024
