# SPDX-License-Identifier: Apache-2.0
"""Runs that go on from their folder, after errors, interrupts, lost files and restarts."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from federated_run import DELTA, GOAL, KEY, KINDS, START, packed, trained

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.federated import AdaptiveClipping, PrivateRounds, ServerDPFTRL
from dpftrl_fast.federated.optimizers import FTRLUpdate
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal

PLAN = PrivacyPlan(0.5, 3.0, SinglePass(6))


# ---- The rounds since the last checkpoint ----


def server(folder: Path | None, **options: Any) -> ServerDPFTRL:
    options = {"plan": PLAN, "key": KEY, "threads": 1, "checkpoint_every": 100, **options}
    return ServerDPFTRL(START, report_goal=GOAL, folder=folder, **options)


def play(server: ServerDPFTRL, rounds: int, salt: str = "") -> None:
    for _ in range(rounds):
        number = server.rounds_done + 1
        now = server.begin_round([f"{salt}{number}-{i}" for i in range(5)])
        for client in now.cohort:
            now.add(client, trained(client, number, server.parameters))
        server.end_round()


def test_no_client_is_asked_again_for_a_round_that_was_written_ahead(tmp_path: Path) -> None:
    whole = server(None)
    play(whole, 6)
    first = server(tmp_path / "run")
    play(first, 4)
    before = packed(first.parameters)
    first.close()  # no checkpoint since round 0
    with server(tmp_path / "run") as second:
        assert (second.rounds_done, packed(second.parameters)) == (4, before)
        assert not second.eligible(["2-3"])[0]
        play(second, 2)
        assert packed(second.parameters) == packed(whole.parameters)
        assert second.epsilon(DELTA) == whole.epsilon(DELTA) == PLAN.epsilon(DELTA)


def test_a_round_that_was_open_begins_anew_and_takes_the_same_answers(tmp_path: Path) -> None:
    first = server(tmp_path / "run")
    now = first.begin_round(["a", "b"])
    token = now.token
    now.add("a", START)
    first.close()
    assert now.add("b", START) == "the round was abandoned"
    with server(tmp_path / "run") as second:
        again = second.begin_round(["a", "b"])  # nobody has taken part
        assert again.token == token and again.turned_away == {}
        assert again.add("b", START, token=token) is None
    with server(tmp_path / "other") as other:
        other.begin_round(["a", "b"])
        assert other.round is not None
        assert "of another run or round" in str(other.round.add("a", START, token=token))


def test_the_rounds_of_a_wrapper_and_its_own_state(tmp_path: Path) -> None:
    def opened() -> PrivateRounds:
        return PrivateRounds(
            START,
            plan=PLAN,
            report_goal=GOAL,
            folder=tmp_path / "run",
            identity={"strategy": "mine"},
            state={"moments": np.zeros(9)},
            key=KEY,
        )

    left = []
    with opened() as rounds:
        for i in range(4):
            now = rounds.begin_round([2 * i, 2 * i + 1])
            now.add(2 * i, START)
            left.append(rounds.end_round("residual"))
            if i == 1:
                rounds.checkpoint({"moments": np.ones(9)})
        assert rounds.state is not None and rounds.state["moments"][0] == 1
    with opened() as rounds:
        assert rounds.state is not None and rounds.state["moments"].tolist() == [1.0] * 9
        assert (rounds.rounds_done, rounds.replaying) == (2, True)
        with pytest.raises(RuntimeError, match=r"expected replay\(\) to be exhausted first"):
            rounds.begin_round([9])
        with pytest.raises(RuntimeError, match=r"expected replay\(\) to be exhausted first"):
            rounds.checkpoint({})
        with pytest.raises(ValueError, match="release must be one of"):
            next(rounds.replay("both"))  # type: ignore[arg-type]
        again = list(rounds.replay("residual"))
        assert [part.tobytes() for part in again] == [part.tobytes() for part in left[2:]]
        assert not rounds.replaying and rounds.rounds_done == 4
        rounds.begin_round([9])


# ---- Folders ----


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    server(tmp_path / "run", momentum=0.5).close()
    with pytest.raises(ValueError, match="of another run: they differ in update"):
        server(tmp_path / "run", momentum=0.4)
    said = r"differ in plan; plan\.noise_multiplier: the folder has 3\.0, this run 3\.1$"
    with pytest.raises(ValueError, match=said):
        server(tmp_path / "run", momentum=0.5, plan=PrivacyPlan(0.5, 3.1, SinglePass(6)))
    with pytest.raises(ValueError, match="of another run: they differ in spare_restarts"):
        server(tmp_path / "run", momentum=0.5, spare_recoveries=1)
    with server(tmp_path / "run", momentum=0.5) as one:
        with pytest.raises(RuntimeError, match="in use by another run of this process"):
            server(tmp_path / "run", momentum=0.5)
        assert one.rounds_done == 0


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "made", [server, lambda f: PrivateRounds(START, plan=PLAN, report_goal=GOAL, folder=f)]
)
def test_a_closed_run_takes_no_call(made: Any, kept: bool, tmp_path: Path) -> None:
    one = made(tmp_path / "run" if kept else None)
    now = one.begin_round(["a"])
    one.close()
    one.close()
    assert now.add("a", START) == "the round was abandoned"
    way = "open its folder with a new object" if kept else "it was kept in memory only"
    for call in (one.end_round, one.abandon_round, one.checkpoint, lambda: one.begin_round([])):
        with pytest.raises(RuntimeError, match=f"this run is closed: {way}"):
            call()
    assert one.rounds_done == 0 and one.epsilon(DELTA) > 0
    if kept:
        made(tmp_path / "run").close()


TREES = PrivacyPlan(0.5, 3.0, SinglePass(6), Tree(restart_every=2))
CLIPPING = AdaptiveClipping(noise_multiplier=5.0, quantile=0.5, learning_rate=0.2)
# For each fact that identifies a run: runs that differ in it, at least one of which states another
# epsilon or would add the same noise to another sum.
OTHERS: dict[str, list[dict[str, Any]]] = {
    "kind": [],  # no other kind can be made here, see below
    "plan": [
        {"plan": replace(TREES, clip_norm=0.6)},
        {"plan": replace(TREES, noise_multiplier=3.5)},
        {"plan": replace(TREES, participation=SinglePass(8))},
        {"plan": replace(TREES, mechanism=Tree(restart_every=2, complete=True))},
        {"plan": replace(TREES, bound="released")},
    ],
    "parameters": [{"parameters": {"w": np.zeros(3)}}, {"parameters": {"v": np.zeros(2)}}],
    "report_goal": [{"report_goal": 5}],
    "clipping": [
        {"clipping": CLIPPING},
        {"clipping": replace(CLIPPING, noise_multiplier=2.0)},
    ],
    "spare_restarts": [{"spare_recoveries": 1}, {"spare_recoveries": 2}],
    "dtype": [{"dtype": "float64"}],
}


def private_rounds(folder: Path, **options: Any) -> PrivateRounds:
    options = {"parameters": {"w": np.zeros(2)}, "plan": TREES, "report_goal": 4, **options}
    return PrivateRounds(options.pop("parameters"), folder=folder, key=KEY, threads=1, **options)


@pytest.mark.parametrize("fact", OTHERS)
def test_a_folder_is_refused_for_every_fact_that_differs(tmp_path: Path, fact: str) -> None:
    with private_rounds(tmp_path / "run") as rounds:
        identity = rounds._identity()
        assert identity.keys() == OTHERS.keys(), "a fact of the identity has no run that differs"
    for options in OTHERS[fact]:
        with pytest.raises(ValueError, match=f"of another run: they differ in {fact};"):
            private_rounds(tmp_path / "run", **options)
    other = {**identity, fact: ["another"]}
    with pytest.raises(ValueError, match=f"of another run: they differ in {fact};"):
        RunJournal(tmp_path / "run", other)
    private_rounds(tmp_path / "run").close()


@pytest.mark.parametrize("fact", OTHERS)
def test_a_caller_cannot_name_a_fact_of_the_run_again(tmp_path: Path, fact: str) -> None:
    """It would stand in the folder in place of what the run is."""
    with pytest.raises(ValueError, match=f"more facts than the run's own, got {fact} again"):
        private_rounds(tmp_path / "run", identity={fact: None, "data": 1})
    assert not (tmp_path / "run").exists()


def test_adaptive_clipping_is_part_of_what_a_run_is(tmp_path: Path) -> None:
    """Without it, a folder of estimates would state the epsilon of the plan alone."""
    private_rounds(tmp_path / "run", clipping=CLIPPING).close()
    changed = [{"noise_multiplier": 6.0}, {"quantile": 0.6}, {"learning_rate": 0.3}]
    assert {name for change in changed for name in change} == {*vars(CLIPPING)}
    for clipping in (None, *(replace(CLIPPING, **change) for change in changed)):
        with pytest.raises(ValueError, match="of another run: they differ in clipping;"):
            private_rounds(tmp_path / "run", clipping=clipping)
    with private_rounds(tmp_path / "run", clipping=CLIPPING) as rounds:
        assert rounds.epsilon(DELTA) > TREES.epsilon(DELTA)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"learning_rate": 0.5}, {"learning_rate": 0.6}),
        ({"momentum": 0.5}, {"momentum": 0.4}),
        ({"momentum": 0.5, "nesterov": True}, {"nesterov": False}),
        ({"optimizer": "adam"}, {"optimizer": "ftrl"}),
        ({"optimizer": "adam"}, {"learning_rate": 0.3}),
        ({"optimizer": "adam"}, {"betas": (0.8, 0.99)}),
        ({"optimizer": "adam"}, {"eps": 1e-2}),
        ({"identity": {"data": 1}}, {"identity": {"data": 2}}),
    ],
    ids=str,
)
def test_a_server_is_refused_for_every_setting_that_differs(
    tmp_path: Path, options: dict[str, Any], change: dict[str, Any]
) -> None:
    with server(tmp_path / "run", **options) as one:
        shown = one._update.options()
        named = {"optimizer", "learning_rate", "betas", "eps", "momentum", "nesterov"}
        assert shown.keys() <= named, "a setting of the update has no run that differs"
    with pytest.raises(ValueError, match=r"of another run: they differ in (update|data);"):
        server(tmp_path / "run", **{**options, **change})


def test_a_copy_states_no_epsilon(tmp_path: Path) -> None:
    with server(tmp_path / "run") as one:
        play(one, 1)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with pytest.raises(ValueError, match="allow_fork=True"):
        server(tmp_path / "copy")
    with server(tmp_path / "copy", allow_fork=True) as copy:
        assert copy.forked and copy.rounds_done == 1
        assert "forked: the guarantee is void" in repr(copy)
        with pytest.raises(ValueError, match="no epsilon can be stated: this folder is a copy"):
            copy.epsilon(DELTA)


def test_the_folder_has_the_key_and_whether_it_is_private(tmp_path: Path) -> None:
    with server(tmp_path / "run", key=None, noise_seed=3) as one:
        play(one, 2)
    with server(tmp_path / "run", key=None) as two:
        assert two.reproducible and "reproducible, not private" in repr(two)
        play(two, 1)
    whole = server(None, key=None, noise_seed=3)
    play(whole, 3)
    assert packed(two.parameters) == packed(whole.parameters)
    with pytest.raises(ValueError, match="a noise_seed or a key, got both"):
        server(None, noise_seed=3)


def test_a_disk_that_fails_leaves_the_round_to_be_ended_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = server(None)
    play(whole, 2)
    with server(tmp_path / "run") as one:
        play(one, 1)
        now = one.begin_round([f"2-{i}" for i in range(5)])
        for client in now.cohort:
            now.add(client, trained(client, 2, one.parameters))

        def full(*args: Any) -> None:
            raise OSError(28, "No space left on device")

        before = packed(one.parameters)
        with monkeypatch.context() as patch:
            patch.setattr("dpftrl_fast.run.journal_files.write_sealed", full)
            with pytest.raises(OSError, match="No space left"):
                one.end_round()
        assert (one.rounds_done, packed(one.parameters)) == (1, before)
        assert now.add("2-0", START) == "late: the round has ended"
        assert packed(one.end_round()) == packed(whole.parameters)


def test_an_interrupted_step_goes_on_from_the_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = server(None)
    play(whole, 2)
    one = server(tmp_path / "run")
    play(one, 1)

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpftrl_fast.federated.sums.running_sum.RunningSum.step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play(one, 1)
    for call in (one.end_round, one.abandon_round, one.checkpoint, lambda: one.begin_round([])):
        with pytest.raises(RuntimeError, match="interrupted half-way: resume from the folder"):
            call()
    one.close()
    with server(tmp_path / "run") as two:
        assert packed(two.parameters) == packed(whole.parameters)


def test_an_interrupt_when_a_round_was_just_written_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder goes on; the object must not keep its state as if the round had not been."""
    whole = server(None)
    play(whole, 3)
    one = server(tmp_path / "run")
    play(one, 1)
    write_ahead = RunJournal.write_ahead

    def interrupted(*args: Any) -> None:
        write_ahead(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunJournal, "write_ahead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play(one, 1)
    for call in (one.end_round, one.abandon_round, one.checkpoint, lambda: one.begin_round([])):
        with pytest.raises(RuntimeError, match="interrupted half-way: resume from the folder"):
            call()
    one.close()
    with server(tmp_path / "run") as two:
        assert two.rounds_done == 2
        play(two, 1)
        assert packed(two.parameters) == packed(whole.parameters)


def test_a_step_of_the_update_rule_that_fails_is_not_kept(tmp_path: Path) -> None:
    class Fails(FTRLUpdate):
        failing = False

        def step(self, value: Any) -> None:
            if self.failing:
                raise MemoryError
            super().step(value)

    def opened(folder: Path | None) -> ServerDPFTRL:
        return server(folder, optimizer=lambda theta: Fails(theta, 1.0))

    whole = opened(None)
    play(whole, 3)
    one = opened(tmp_path / "run")
    play(one, 1)
    Fails.failing = True
    with pytest.raises(MemoryError):
        play(one, 1)
    Fails.failing = False
    for call in (one.checkpoint, lambda: one.begin_round([])):
        with pytest.raises(RuntimeError, match="interrupted half-way: resume from the folder"):
            call()
    one.close()
    with opened(tmp_path / "run") as two:
        assert two.rounds_done == 2
        play(two, 1)
        assert packed(two.parameters) == packed(whole.parameters)


@pytest.mark.parametrize("part", ["keep", "write", "fsync"])
def test_a_round_that_could_not_be_written_may_be_abandoned_for_another(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its noise is then on one sum only, also where its record may be on the disk."""

    def fails(*args: Any) -> None:
        raise OSError(5, "Input/output error")

    whole = server(None)
    play(whole, 3)
    one = server(tmp_path / "run")
    play(one, 1)
    with monkeypatch.context() as patch:
        if part == "keep":
            patch.setattr("dpftrl_fast.run.journal_files.write_sealed", fails)
        else:  # of the log only
            patch.setattr(
                "dpftrl_fast.run.step_log.os", SimpleNamespace(**{**vars(os), part: fails})
            )
        with pytest.raises(OSError, match="Input/output"):
            play(one, 1)
    one.abandon_round()
    if part == "fsync":  # nobody knows what the disk has: the folder decides
        with pytest.raises(OSError, match="open the run again"):
            play(one, 1, "others ")
        one.close()
        one = server(tmp_path / "run")
        assert one.rounds_done == 2 and one.eligible(["others 2-1"])[0]
        play(one, 1)
        assert packed(one.parameters) == packed(whole.parameters)
    else:
        other = server(None)
        play(other, 1)
        play(other, 1, "others ")
        play(one, 1, "others ")
        one.close()
        one = server(tmp_path / "run")
        assert one.rounds_done == 2 and one.eligible(["2-1", "others 2-1"]).tolist() == [
            True,
            False,
        ]
        assert packed(one.parameters) == packed(other.parameters)
    one.close()


# ---- Restarts with fresh noise ----


def test_a_lost_sum_needs_a_recovery_with_fresh_noise_that_is_paid(tmp_path: Path) -> None:
    with server(tmp_path / "run") as one:
        play(one, 2)
        one.checkpoint()
        checkpointed = packed(one.parameters)
        token = one.begin_round([]).token
        one.abandon_round()
        play(one, 2)
    (lost,) = (tmp_path / "run").glob("kept-0-4.npz")
    lost.unlink()
    with pytest.raises(ValueError, match=r"the sum of round 4 is missing .* recover=True"):
        server(tmp_path / "run")
    with pytest.raises(ValueError, match=r"this recovery is not covered: it puts steps 3 to 4"):
        server(tmp_path / "run", recover=True)
    epsilon = RunAccount(PLAN).epsilon_after(4, 3, DELTA)
    assert epsilon > PLAN.epsilon(DELTA)
    with server(tmp_path / "run", recover=True, accept_epsilon=(epsilon, DELTA)) as two:
        assert not two.begin_round([]).token.startswith(token.split("-")[0])  # another model
        two.abandon_round()
        assert two.rounds_done == 2 and packed(two.parameters) == checkpointed
        assert two.epsilon(DELTA) == epsilon == two.epsilon_spent(DELTA)
        assert two.eligible(["3-0", "1-0"]).tolist() == [True, False]
        play(two, 3, "again ")
        five = packed(two.parameters)
    with server(tmp_path / "run") as three:
        assert (three.rounds_done, packed(three.parameters)) == (5, five)
        assert three.epsilon(DELTA) == epsilon
        play(three, 1, "again ")


@pytest.mark.usefixtures("fine_grid")
def test_the_noise_before_a_recovery_stays_and_that_after_it_is_new(tmp_path: Path) -> None:
    def empty(server: ServerDPFTRL, rounds: int) -> Any:
        for _ in range(rounds):
            server.begin_round([])
            server.end_round()
        return server.parameters["b"] * GOAL

    plan = PrivacyPlan(0.5, 3.0, SinglePass(6), mechanism=Tree(variant="vanilla"))
    with server(tmp_path / "run", plan=plan, spare_recoveries=1, dtype="float64") as one:
        noise = plan.noise(9, key=KEY, dtype="float64")
        at_2 = [noise.step() for _ in range(2)][-1][6:]
        start = START["b"] * GOAL
        empty(one, 2)
        one.checkpoint()
        empty(one, 2)
    with server(
        tmp_path / "run", plan=plan, spare_recoveries=1, dtype="float64", recover=True
    ) as two:
        state = two._rounds._sums.running._noise.state_dict()
        key = bytes.fromhex(state["key"])
        assert key != KEY
        after = empty(two, 3)
        fresh = plan.noise(9, key=key, dtype="float64")
        at_3 = [fresh.step() for _ in range(3)][-1][6:]
        # Both noises are rounded to the grid of the sums.
        unit = two._rounds._sums.sums.unit
        np.testing.assert_allclose(after, start + at_2 + at_3, rtol=1e-12, atol=unit)


def test_adaptive_clipping_does_not_support_recoveries() -> None:
    plan = KINDS["clipping"]["plan"]
    clipping = AdaptiveClipping(noise_multiplier=5.0)
    for options in ({"recover": True}, {"spare_recoveries": 1}):
        with pytest.raises(ValueError, match="does not support spare_recoveries and recover"):
            server(None, plan=plan, clipping=clipping, **options)
