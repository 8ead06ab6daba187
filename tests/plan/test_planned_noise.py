# SPDX-License-Identifier: Apache-2.0
"""The noise of a plan keeps to what the plan's epsilon was stated for."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

import dpftrl_fast as dpf
from dpftrl_fast import accounting
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.planned_noise import PlannedNoise


def plan(steps: int, every: int | None = None, complete: Any = False) -> dpf.PrivacyPlan:
    return dpf.PrivacyPlan(
        clip_norm=1.0,
        noise_multiplier=2.0,
        participation=dpf.SinglePass(steps),
        mechanism=Tree(restart_every=every, complete=complete),
    )


@pytest.mark.parametrize("method", ["step", "residual"])
def test_steps_past_the_declared_ones_are_refused(method: str) -> None:
    noise = plan(4).noise(3, seed=1)
    for _ in range(4):
        getattr(noise, method)()
    before = noise.state_dict()
    with pytest.raises(ValueError, match="all 4 declared steps are taken"):
        getattr(noise, method)()
    assert noise.state_dict()["t"] == before["t"] == noise.steps_taken == noise.steps == 4


@pytest.mark.parametrize("complete", [False, True, "all"])
@pytest.mark.parametrize("method", ["step", "residual"])
def test_it_restarts_where_the_plan_says(complete: Any, method: str) -> None:
    noise = plan(11, 3, complete).noise(5, seed=1)
    by_hand = dpf.TreeNoise(5, 2.0, seed=1)
    for i in range(11):
        if i > 0 and i % 3 == 0:
            by_hand.restart(complete=bool(complete))
        np.testing.assert_array_equal(getattr(noise, method)(), getattr(by_hand, method)())
    assert (noise.tree, noise.t, noise.steps_taken) == (3, 2, 11)
    with pytest.raises(ValueError, match="all 11 declared"):
        getattr(noise, method)()


TREES: dict[str, Any] = {
    "vanilla": Tree("vanilla"),
    "vanilla, all completed": Tree("vanilla", restart_every=5, complete="all"),
    "lengths": Tree(tree_lengths=[5, 1, 7, 20], complete=[True, False, True, False]),
    "trees that end early": Tree(restart_every=6),
}


@pytest.mark.parametrize("name", [*MECHANISMS, *TREES])
@pytest.mark.parametrize("parts", [[33], [1, 4, 0, 9, 3, 16], [8] * 4 + [1]])
def test_many_steps_go_through_the_plans_restarts(name: str, parts: list[int]) -> None:
    made = dpf.PrivacyPlan(1.0, 2.0, dpf.SinglePass(33), {**MECHANISMS, **TREES}[name])
    noise, one = made.noise(5, seed=1, dtype="float64"), made.noise(5, seed=1, dtype="float64")
    for n in parts:
        rows = noise.next_steps(n)
        np.testing.assert_array_equal(rows, np.array([one.step() for _ in range(n)]).reshape(n, 5))
        assert (noise._block, noise.t) == (one._block, one.t)
    assert noise.steps_taken == 33
    assert noise.next_steps(0).shape == (0, 5)


@pytest.mark.parametrize("name", MECHANISMS)
def test_many_steps_past_the_declared_ones_are_refused_whole(name: str) -> None:
    made = dpf.PrivacyPlan(1.0, 2.0, dpf.SinglePass(9), MECHANISMS[name])
    noise = made.noise(3, seed=1)
    noise.next_steps(3)
    before, room = str(noise.state_dict()), np.full((7, 3), 5.0, np.float32)
    with pytest.raises(ValueError, match="n must be at most 6, since 3 of 9 declared steps"):
        noise.next_steps(7, room)
    with pytest.raises(ValueError, match=r"out must be .* 18 elements"):
        noise.next_steps(6, room)
    assert str(noise.state_dict()) == before and (room == 5.0).all()
    noise.next_steps(6, room[:6])
    with pytest.raises(ValueError, match="n must be at most 0"):
        noise.next_steps(1)
    again = made.noise(3, seed=1)
    np.testing.assert_array_equal(again.next_steps(9)[3:], room[:6])


def test_many_steps_wait_for_their_turn_and_refuse_a_call_from_within() -> None:
    noise = plan(100, 7).noise(3, seed=1)

    class Inside(np.ndarray):  # whose memory is looked at in the middle of the call
        def __dlpack__(self, **_: Any) -> Any:
            noise.step()

    with pytest.raises(TypeError, match="in the middle of a call"):
        noise.next_steps(
            2,
            type(
                "Lent",
                (),
                {"__dlpack__": Inside.__dlpack__, "__dlpack_device__": lambda self: (1, 0)},
            )(),
        )
    assert noise.steps_taken == 0


def test_restart_and_node_are_the_plans_and_advance_to_stays_inside() -> None:
    noise = plan(10, 4).noise(2, seed=1)
    noise.step()
    with pytest.raises(ValueError, match="by itself, 2 times, as its plan says"):
        noise.restart()
    with pytest.raises(ValueError, match="prefixes only"):
        noise.node(0, 0)
    with pytest.raises(ValueError, match="at most 4"):
        noise.advance_to(5)
    noise.advance_to(4)
    for _ in range(6):
        noise.step()
    assert noise.steps_taken == 10
    last = plan(10, 4).noise(2, seed=1)
    for _ in range(9):
        last.step()
    with pytest.raises(ValueError, match="at most 2"):
        last.advance_to(3)


def test_prefixes_past_the_end_of_a_tree_are_refused() -> None:
    noise = plan(8, every=5, complete=True).noise(3, seed=1, dtype="float64")
    bare = dpf.TreeNoise(3, noise.std, seed=1, dtype="float64")
    for t in (1, 5, 8):  # of the first tree: its steps, and where it is completed
        np.testing.assert_array_equal(noise.prefix(t), bare.prefix(t))
    for t in (6, 7, 9, 16):
        with pytest.raises(ValueError, match="at most 5, or 8, where the plan ends this tree"):
            noise.prefix(t)
    for _ in range(8):
        noise.step()
    assert noise.tree == 1
    noise.prefix(3)
    for t in (4, 8):  # the second has three steps and is not completed
        with pytest.raises(ValueError, match="at most 3, where"):
            noise.prefix(t)


def test_a_state_of_another_plan_is_refused() -> None:
    other = dpf.TreeNoise(2, 2.0, seed=1)
    other.step()
    other.restart()
    other.step()
    noise = plan(10, 4).noise(2, seed=1)
    with pytest.raises(
        ValueError, match="run of 10 steps in the plan's 3 trees, got one at step 1 of tree 1"
    ):
        noise.load_state_dict(other.state_dict())
    long = plan(20, 4).noise(2, seed=1)
    for _ in range(13):
        long.step()
    with pytest.raises(ValueError, match="run of 10 steps"):
        noise.load_state_dict(long.state_dict())
    assert (noise.tree, noise.t) == (0, 0)
    again = plan(20, 4).noise(2, seed=2)
    again.load_state_dict(long.state_dict())
    np.testing.assert_array_equal(again.step(), long.step())


def test_a_state_past_the_end_of_a_block_is_refused() -> None:
    """Its next noise would be of a tree that is longer than the accounted one."""
    plan = dpf.PrivacyPlan(1.0, 1.0, accounting.SinglePass(9), Tree(restart_every=4))
    state = plan.noise(2, memory="regenerate").state_dict()
    for earlier, end in (([], 4), ([[4, 1]], 4), ([[4, 2]], 1)):
        noise = plan.noise(2, memory="regenerate")
        with pytest.raises(ValueError, match="state must be of a run of 9 steps"):
            noise.load_state_dict({**state, "t": end + 1, "earlier_trees": earlier})
        noise.load_state_dict({**state, "t": end, "earlier_trees": earlier})
        assert noise.t == end


def test_a_state_whose_nodes_were_looked_at_is_refused() -> None:
    other = dpf.TreeNoise(2, 2.0, seed=1)
    other.step()
    noise = plan(10).noise(2, seed=1)
    noise.load_state_dict(other.state_dict())
    other.node(0, 0)
    with pytest.raises(ValueError, match="run without a call of node"):
        noise.load_state_dict(other.state_dict())


@pytest.mark.parametrize("method", ["step", "residual"])
@pytest.mark.parametrize("complete", [False, True, "all", [True, False, True, False]])
def test_listed_trees_with_their_own_completion(complete: Any, method: str) -> None:
    lengths = [3, 5, 1, 4]
    listed = dataclasses.replace(plan(13), mechanism=Tree(tree_lengths=lengths, complete=complete))
    noise, by_hand = listed.noise(5, seed=1), dpf.TreeNoise(5, 2.0, seed=1)
    taken = 0
    for tree, n in enumerate(lengths):
        if tree:
            before = complete[tree - 1] if isinstance(complete, list) else complete
            by_hand.restart(complete=bool(before))
        for t in range(1, n + 1):
            np.testing.assert_array_equal(getattr(noise, method)(), getattr(by_hand, method)())
            taken += 1
            assert (noise.tree, noise.t, noise.steps_taken) == (tree, t, taken)
    with pytest.raises(ValueError, match="all 13 declared"):
        getattr(noise, method)()


def test_states_of_listed_trees_at_every_step() -> None:
    listed = dataclasses.replace(
        plan(13), mechanism=Tree(tree_lengths=[3, 5, 1, 4], complete=[True, False, True, False])
    )
    other = dataclasses.replace(
        listed,
        mechanism=Tree(tree_lengths=[3, 5, 1, 4], complete=[False, False, True, False]),
    )
    noise = listed.noise(5, seed=1)
    for taken in range(14):
        state = noise.state_dict()
        again = listed.noise(5, seed=2)
        again.load_state_dict(state)
        assert again.steps_taken == noise.steps_taken == taken
        if taken > 3:  # the first tree was completed
            with pytest.raises(ValueError, match="in the plan's 4 trees, got one at step"):
                other.noise(5, seed=1).load_state_dict(state)
        else:
            other.noise(5, seed=1).load_state_dict(state)
        if taken < 13:
            np.testing.assert_array_equal(noise.step(), again.step())


def test_a_tree_for_every_step_of_a_very_long_run() -> None:
    noise = plan(2**40, 1, True).noise(3, seed=1, dtype="float64")
    by_hand = dpf.TreeNoise(3, 2.0, seed=1, dtype="float64")
    for i in range(50):
        if i:
            by_hand.restart(complete=True)
        np.testing.assert_array_equal(noise.step(), by_hand.step())
    assert (noise.tree, noise.t, noise.steps_taken, noise.steps) == (49, 1, 50, 2**40)
    again = plan(2**40, 1, True).noise(3, seed=1, dtype="float64")
    again.load_state_dict(noise.state_dict())
    np.testing.assert_array_equal(again.step(), noise.step())
    with pytest.raises(ValueError, match="at most 1, where the plan ends this tree"):
        again.advance_to(2)


def test_a_released_plan_makes_the_same_noise() -> None:
    released = dataclasses.replace(plan(10, 4, True), bound="released")
    np.testing.assert_array_equal(
        released.noise(3, seed=1).step(), plan(10, 4, True).noise(3, seed=1).step()
    )


@pytest.mark.parametrize("planned", [False, True])
def test_a_state_behind_its_own_object_is_refused_unless_asked_for(planned: bool) -> None:
    plan = dpf.PrivacyPlan(1.0, 1.0, accounting.SinglePass(9))
    noise = plan.noise(2) if planned else dpf.TreeNoise(2, 1.0)  # keys from the operating system
    noise.step()
    early, position = noise.state_dict(), noise.state_dict(key=False)
    second = noise.step()
    for state in (early, position):
        with pytest.raises(ValueError, match="used twice"):
            noise.load_state_dict(state)
    assert noise.t == 2
    noise.load_state_dict(position, allow_fork=True)
    np.testing.assert_array_equal(noise.step(), second)


FORK = """
import os, sys
import dpftrl_fast as dpf

secret, seeded = dpf.TreeNoise(3, 1.0), dpf.TreeNoise(3, 1.0, seed=1)
pid = os.fork()
if pid == 0:
    seeded.step()
    for call in (secret.step, secret.residual):
        try:
            call()
        except RuntimeError as error:
            assert "forked" in str(error) and secret.t == 0
        else:
            os._exit(1)
    secret.load_state_dict(secret.state_dict())  # on purpose
    secret.step()
    os._exit(7)
secret.step()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_copy_of_a_secret_source_refuses_to_go_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr


def test_a_shared_key_gives_slices_and_is_not_marked() -> None:
    key = bytes(range(32))
    whole = dpf.TreeNoise(1000, 1.0, key=key)
    part = dpf.TreeNoise(300, 1.0, key=key, offset=500)
    assert not whole.reproducible
    np.testing.assert_array_equal(whole.step()[500:800], part.step())
    with pytest.raises(ValueError, match="32 bytes, got 3"):
        dpf.TreeNoise(3, 1.0, key=b"abc")
    with pytest.raises(TypeError, match="key must be bytes, got str"):
        dpf.TreeNoise(3, 1.0, key="x" * 32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a seed or a key"):
        dpf.TreeNoise(3, 1.0, key=key, seed=1)


def test_a_long_sum_does_not_drift() -> None:
    """A plain running sum of 30,000 times 0.1 is off by more than 1e-9, ours by one rounding."""
    n = 30_000
    sums = dpf.PrefixSum(1, n, clip_norm=1.0, noise_multiplier=1e-3, seed=1)
    noise = sums.plan.noise(1, seed=1, dtype="float64")
    record = np.array([0.1])
    for _ in range(n):
        value, b = sums.add(record), noise.step()
    exact = n * 0.1  # one rounding: n is a small integer
    assert abs((value - b).item() - exact) <= noise.grid / 2
    assert abs((sums._running._sum + sums._running._low).item() - exact) < 4e-12
    assert abs(sum([0.1] * n) - exact) > 1e-9


# ---- Calls that come in between ----


def planned(name: str, steps: int = 8) -> PlannedNoise:
    made = dpf.PrivacyPlan(
        clip_norm=1.0,
        noise_multiplier=2.0,
        participation=dpf.SinglePass(steps),
        mechanism=MECHANISMS[name],
    )
    return made.noise(3, seed=0)


class Calling:
    """An `out` that calls back when it is asked where it lies: after the checks of a step."""

    def __init__(self, call: Any) -> None:
        self.call, self.array = call, np.zeros(3, np.float32)

    def __dlpack_device__(self) -> tuple[int, int]:
        self.call()
        return (1, 0)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("taken", [0, 3, 7])
def test_a_call_from_within_a_step_is_refused(name: str, taken: int) -> None:
    noise, plain = planned(name), planned(name)
    for _ in range(taken):
        noise.step(), plain.step()
    state = noise.state_dict()
    calls = [
        noise.step,
        noise.residual,
        noise.state_dict,
        lambda: noise.advance_to(noise.t + 1),
        lambda: noise.load_state_dict(state, allow_fork=True),
    ]
    for call in calls:
        with pytest.raises(TypeError, match="in the middle of a call on this thread"):
            noise.step(Calling(call))
        assert noise.steps_taken == taken
    assert np.array_equal(noise.step(), plain.step())
    assert noise.steps_taken == taken + 1


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_signal_handler_takes_no_step_past_the_declared_ones(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = planned(name, 5)
    for _ in range(4):
        noise.step()
    real = PlannedNoise._restart_if_due

    def interrupted(self: PlannedNoise) -> None:
        real(self)
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(PlannedNoise, "_restart_if_due", interrupted)
    before = signal.signal(signal.SIGUSR1, lambda *_: noise.step())
    try:
        with pytest.raises(RuntimeError, match="in the middle of a call"):
            noise.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert noise.steps_taken == 4


class SteppingCore:
    """A compiled source in which another thread takes a step after each call."""

    def __init__(self, core: Any) -> None:
        self._core = core

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if not callable(found):
            return found

        def call(*args: Any) -> Any:
            result = found(*args)
            self._core.step(None)
            return result

        return call


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_state_is_that_of_one_moment(name: str) -> None:
    noise, plain, resumed = planned(name), planned(name), planned(name)
    for _ in range(2):
        noise.step(), plain.step()
    noise._core = SteppingCore(noise._core)
    resumed.load_state_dict(noise.state_dict())
    for _ in range(6):
        assert np.array_equal(resumed.step(), plain.step())


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("stepped", [0, 1, 4])
@pytest.mark.parametrize("saved", [False, True])
def test_the_noise_that_is_carried_is_that_at_the_end_of_the_block(
    name: str, stepped: int, saved: bool
) -> None:
    noise, plain = planned(name, 4), planned(name, 4)
    for _ in range(stepped):
        noise.step()
    noise.advance_to(4)
    if saved:
        other = planned(name, 4)
        other.load_state_dict(noise.state_dict())
        noise = other
    assert np.array_equal(noise.carried(), plain.prefix(4))
