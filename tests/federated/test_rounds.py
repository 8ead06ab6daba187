# SPDX-License-Identifier: Apache-2.0
"""Rounds: who may take part, what becomes of each update, and calls that are wrong."""

from __future__ import annotations

import copy
import hashlib
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.federated import PrivateRounds, Round, ServerDPFTRL, client_id
from dpftrl_fast.federated import cohorts as cohorts_module
from dpftrl_fast.federated.ids import ClientIds
from dpftrl_fast.mechanisms import Tree

MODEL = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(3)}
SINGLE = PrivacyPlan(1.0, 2.0, SinglePass(4))
KEY = bytes(range(32))
_DAY = np.timedelta64(1, "D")  # a kind of integer, to NumPy


def rounds_of(plan: PrivacyPlan = SINGLE, **options: Any) -> PrivateRounds:
    return PrivateRounds(MODEL, plan=plan, report_goal=2, key=KEY, threads=1, **options)


def update(value: float = 0.1) -> dict[str, Any]:
    return {"w": np.full((2, 2), value, np.float32), "b": np.full(3, value)}


def end_with(rounds: PrivateRounds, clients: list[Any]) -> Round:
    now = rounds.begin_round(clients)
    rounds.end_round()
    return now


# ---- Ids ----


def test_ids_of_names_and_numbers() -> None:
    assert client_id(0) == 0 and client_id(np.int32(7)) == 7 and client_id(2**63 - 1) == 2**63 - 1
    names = [client_id(f"play {i}/speaker") for i in range(1000)]
    assert len({*names}) == 1000 and all(0 <= n < 2**63 for n in names)
    assert max(names) > 2**62  # all bits are used
    nurse = hashlib.sha256(b"dpftrl_fast/client/v1\x00Nurse").digest()
    assert client_id("Nurse") == int.from_bytes(nurse, "big") >> 193
    assert client_id("5") == 5 and client_id("05") != 5 and client_id("-5") != client_id("5")
    assert client_id(str(2**63)) != client_id(str(2**64)) and client_id("\ud800") != client_id(
        "\ud801"
    )


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, None, b"x", ("a",), np.zeros(1, int), _DAY])
def test_what_is_no_client(wrong: Any) -> None:
    with pytest.raises(TypeError, match="a client must be an integer or a name, got"):
        client_id(wrong)
    with pytest.raises(TypeError, match="a client must be"):
        rounds_of().begin_round([1, wrong])
    now = rounds_of().begin_round([1])
    assert "a client must be" in str(now.add(wrong, update()))


@pytest.mark.parametrize("wrong", [-1, 2**63, ""])
def test_a_client_out_of_range(wrong: Any) -> None:
    with pytest.raises(ValueError, match="a client's n"):
        client_id(wrong)
    assert "a client's n" in str(rounds_of().begin_round([1]).add(wrong, update()))


def test_an_integer_and_its_digits_are_one_user() -> None:
    rounds = rounds_of()
    now = rounds.begin_round([7, "7", "007"])
    assert now.cohort == (7, "007")
    rounds.end_round()
    assert rounds.eligible(["7", np.int8(7), "8"]).tolist() == [False, False, True]


def test_a_run_keeps_the_ids_that_it_began_with() -> None:
    """A folder of version 1 has the hash of "7" for "7", and 7 for 7."""
    plan = PrivacyPlan(1.0, 4.0, SinglePass(5))
    old = cohorts_module.Cohorts(plan)
    old._ids = ClientIds(1)
    old.record(old.choose(["7", 8]).members)
    state = old.state_dict()
    assert "ids_version" not in state
    again = cohorts_module.Cohorts(plan)
    again.load_state_dict(state)
    assert again.eligible(["7", 7, 8, "8"]).tolist() == [False, True, False, True]
    assert again.state_dict().keys() == state.keys()
    plain = cohorts_module.Cohorts(plan)
    plain._ids = ClientIds(2)
    plain.record(plain.choose(["7", 8]).members)
    state = plain.state_dict()
    assert state["ids_version"] == 2 and sorted(state["ids"].tolist()) == [7, 8]
    again = cohorts_module.Cohorts(plan)
    again.load_state_dict(state)
    assert again.eligible(["7", 7, 8, "8", 9]).tolist() == [False, False, False, False, True]
    assert again.state_dict().keys() == state.keys()
    with pytest.raises(ValueError, match="ids_version must be at most 3, got 4"):
        again.load_state_dict({**state, "ids_version": 4})


def test_two_names_with_one_id_are_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedIds, "_digest", lambda self, text: bytes(8))
    rounds = rounds_of()
    now = rounds.begin_round(["a", "b"])
    assert now.cohort == ("a",)
    assert now.turned_away == {"b": "has the same id as another client of this round"}
    rounds.end_round()
    assert not rounds.eligible(["c"])[0]


# ---- Who may take part ----


def test_a_single_pass_has_each_client_once() -> None:
    rounds = rounds_of()
    now = rounds.begin_round(["a", "b"])
    assert (now.number, now.cohort, now.turned_away, now.absent) == (1, ("a", "b"), {}, 0)
    rounds.end_round()  # nobody answered: they have taken part all the same
    assert rounds.eligible(["b", "c"]).tolist() == [False, True]
    now = rounds.begin_round(iter(["b", "c"]))
    assert now.cohort == ("c",) and "took part in an earlier round" in now.turned_away["b"]
    assert now.add("b", update()) == now.turned_away["b"]


def test_a_separation_is_counted_in_rounds_across_restarts() -> None:
    plan = PrivacyPlan(1.0, 2.0, MinSeparation(9, 3, 3), mechanism=Tree(restart_every=2))
    rounds = rounds_of(plan)
    seen = []
    for _ in range(9):
        seen.append("a" in end_with(rounds, ["a"]).cohort)
    assert seen == [True, False, False] * 3
    with pytest.raises(ValueError, match="all 9 declared rounds are done"):
        rounds.begin_round(["b"])
    assert rounds.eligible(["b"]).tolist() == [False]
    twice = rounds_of(PrivacyPlan(1.0, 2.0, MinSeparation(9, 2, 3)))
    assert ["a" in end_with(twice, ["a"]).cohort for _ in range(9)].count(True) == 2


def test_a_fixed_order_has_its_own_clients_and_empty_slots_for_the_absent() -> None:
    plan = PrivacyPlan(1.0, 2.0, FixedOrder.from_steps([[3, 1], [], [1, 2], [9]]))
    rounds = rounds_of(plan)
    now = rounds.begin_round([3, 2])
    assert now.cohort == (3,) and now.absent == 1
    assert now.turned_away == {2: "not one of the users that the plan has in this round"}
    assert now.add(1, update()) == "not in the cohort of this round"
    rounds.end_round()
    assert end_with(rounds, [1, 2, 3]).cohort == ()
    assert end_with(rounds, [2, 1]).absent == 0
    assert end_with(rounds, []).absent == 1
    assert rounds.rounds_done == 4


def test_an_order_that_lists_a_client_twice_in_a_round_takes_one_update() -> None:
    rounds = rounds_of(PrivacyPlan(1.0, 2.0, FixedOrder.from_steps([[4, 4], [4]])))
    now = rounds.begin_round([4])
    assert (now.cohort, now.absent) == ((4,), 0)
    assert now.add(4, update()) is None and now.add(4, update()) is not None
    rounds.end_round()


@pytest.mark.parametrize("reshuffle", [True, False])
def test_later_epochs_have_the_clients_of_the_first(reshuffle: bool) -> None:
    plan = PrivacyPlan(1.0, 2.0, FixedEpochs(2, 4, reshuffle), mechanism=Tree(restart_every=4))
    rounds = rounds_of(plan)
    end_with(rounds, ["a", "b"])
    assert end_with(rounds, ["b", "c"]).cohort == ("c",)
    now = end_with(rounds, ["a", "c", "new"])
    assert (now.cohort, now.absent, [*now.turned_away]) == (("a",), 1, ["c", "new"])
    assert end_with(rounds, []).absent == 1
    now = end_with(rounds, ["c", "new"])  # after the restart
    assert now.cohort == (("c", "new") if reshuffle else ())


def test_what_a_guard_expects() -> None:
    assert Guard(SinglePass(3)).expected() is None
    assert Guard(MinSeparation(3, 2, 1)).expected() is None
    order = Guard(FixedOrder.from_steps([[7, 3, 7], []]))
    for wanted in ([3, 7, 7], []):
        expected = order.expected()
        assert expected is not None and expected.tolist() == wanted
        order.admit(expected)
    assert order.expected() is None  # all steps are taken
    epochs = Guard(FixedEpochs(2, 3, reshuffle=True), Tree(restart_every=3))
    for free, ids in [(True, [9, 4]), (True, []), (False, [4, 9]), (True, [1]), (True, [4])]:
        expected = epochs.expected()
        assert (expected is None) == free
        assert expected is None or expected.tolist() == sorted(ids)
        epochs.admit(ids)
    expected = epochs.expected()
    assert expected is not None and expected.tolist() == [1]


# ---- What becomes of an update ----


def nan_in(name: str) -> dict[str, Any]:
    bad = update()
    bad[name].reshape(-1)[-1] = np.nan
    return bad


class Broken(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise OSError("gone")


MALFORMED = {
    "a broken mapping": (Broken(update()), "cannot be read: OSError"),
    "a list": ([np.zeros((2, 2)), np.zeros(3)], "expected a mapping from names to arrays"),
    "none": (None, "expected a mapping"),
    "missing": ({"w": update()["w"]}, "lacks 'b'"),
    "extra": ({**update(), "x": np.zeros(1)}, "has 'x' too"),
    "shape": ({**update(), "b": np.zeros((3, 1))}, "must have shape"),
    "integers": ({**update(), "b": np.zeros(3, int)}, "must be of float16, float32 or float64"),
    "objects": ({**update(), "b": np.array([None] * 3)}, "must be of float16"),
    "no array": ({**update(), "b": [0.0] * 3}, "must be a NumPy array"),
    "NaN": (nan_in("w"), "must be finite"),
    "infinity": ({**update(), "b": np.array([0, np.inf, 0])}, "must be finite"),
}


@pytest.mark.parametrize("kind", list(MALFORMED))
def test_a_malformed_update_leaves_an_empty_slot_and_the_round_goes_on(kind: str) -> None:
    bad, words = MALFORMED[kind]
    rounds, without = rounds_of(), rounds_of()
    now = rounds.begin_round(["a", "b", "c"])
    assert now.add("a", update()) is None
    reason = now.add("b", bad)
    assert reason is not None and words in reason
    assert now.add("b", update()) == "answered already in this round"
    assert now.add("c", update(0.2)) is None
    metrics = now.metrics()
    assert (metrics["accepted"], metrics["missing"], [*metrics["refused"]]) == (2, 1, ["b"])
    assert metrics["private"] is False
    other = without.begin_round(["a", "b", "c"])
    other.add("c", update(0.2))
    other.add("a", update())
    assert rounds.end_round().tobytes() == without.end_round().tobytes()


def test_huge_and_tiny_updates_are_clipped_not_dropped() -> None:
    rounds = rounds_of(PrivacyPlan(1.0, 1e-9, SinglePass(4)), dtype="float64")
    for value, norm in ((1e300, 1.0), (1e-300, 0.0), (5e-324, 0.0)):
        now = rounds.begin_round([f"of {value}"])
        change = {"w": np.zeros((2, 2)), "b": np.full(3, value)}
        assert now.add(now.cohort[0], change) is None
        change = rounds.end_round("residual") * 2
        assert np.linalg.norm(change) == pytest.approx(norm, abs=1e-6)


def test_the_token_says_which_run_and_round() -> None:
    rounds = rounds_of()
    first = rounds.begin_round(["a"])
    rounds.end_round()
    now = rounds.begin_round(["b", "c"])
    assert now.token.endswith("-2") and now.token != first.token
    for token in (first.token, "", 7, np.zeros(3)):
        reason = now.add("b", update(), token=token)
        assert reason is not None and "of another run or round" in reason
    assert now.add("b", update(), token=now.token) is None  # its slot was still open
    assert now.add("c", update()) is None
    foreign = rounds_of().begin_round(["b"]).token
    assert foreign.split("-")[0] != now.token.split("-")[0]


def test_late_and_abandoned_rounds() -> None:
    rounds, same = rounds_of(), rounds_of()
    now = rounds.begin_round(["a", "b"])
    now.add("a", update())
    rounds.abandon_round()
    assert now.ended and now.add("b", update()) == "the round was abandoned"
    again = rounds.begin_round(["a", "d"])  # nobody has taken part
    assert again.cohort == ("a", "d") and again.token == now.token
    again.add("d", update())
    value = rounds.end_round()
    assert again.add("a", update()) == "late: the round has ended"
    assert again.metrics()["refused"] == {"a": "late: the round has ended"}
    other = same.begin_round(["d"])
    other.add("d", update())
    assert value.tobytes() == same.end_round().tobytes()


def test_metrics_keep_the_reason_for_which_a_slot_is_empty() -> None:
    rounds = rounds_of()
    now = rounds.begin_round([1, 2, 3])
    now.add(1, nan_in("w"))
    now.add(1, update())  # sent once more
    now.add(2, update(), token="old")
    now.add(2, nan_in("b"))
    now.add(3, update())
    now.add(True, update())  # is nobody, not client 1
    rounds.end_round()
    now.add(1, update())
    refused = now.metrics()["refused"]
    assert list(refused) == [1, 2, "of type bool"]
    assert "must be finite" in refused[1] and "must be finite" in refused[2]


def test_an_update_that_comes_while_a_round_ends_is_in_it_or_late() -> None:
    """Of the sum that leaves no update is missing that was taken, and none is in the next one."""
    plan = PrivacyPlan(1.0, 1e-9, MinSeparation(30, 30, 1))
    rounds = rounds_of(plan, dtype="float64")
    with ThreadPoolExecutor(3) as pool:
        for number in range(30):
            now = rounds.begin_round(range(60))
            answers = pool.map(lambda i, now=now: now.add(i, update(0.01)), range(60))
            if number % 3 == 2:
                rounds.abandon_round()
                assert {*answers} <= {None, "the round was abandoned"}
                now = rounds.begin_round([])
                answers = iter([])
            change = rounds.end_round("residual") * 2
            taken = list(answers).count(None)
            assert taken == now.metrics()["accepted"]
            np.testing.assert_allclose(change, 0.01 * taken, rtol=0, atol=1e-6)


def test_the_divisor_is_the_goal_whoever_answers() -> None:
    plan = PrivacyPlan(1.0, 1e-9, SinglePass(4))
    rounds = rounds_of(plan, dtype="float64")
    sums = []
    for count in (0, 1, 2, 5):
        now = rounds.begin_round([f"{count}-{i}" for i in range(count)])
        for client in now.cohort:
            assert now.add(client, update(0.1)) is None
        sums.append(rounds.end_round("residual"))
    for count, mean in zip((0, 1, 2, 5), sums, strict=True):
        np.testing.assert_allclose(mean, 0.1 * count / 2, atol=1e-7)


def test_any_order_of_clients_gives_the_same_bits() -> None:
    generator = np.random.default_rng(0)
    updates = {
        f"c{i}": {
            "w": generator.normal(0, 10.0 ** generator.integers(-6, 6), (2, 2)),
            "b": generator.normal(size=3).astype(np.float16),
        }
        for i in range(50)
    }
    found = set()
    for seed in range(5):
        rounds, clients = rounds_of(), list(updates)
        random.Random(seed).shuffle(clients)
        now = rounds.begin_round(updates)
        for client in clients:
            assert now.add(client, updates[client]) is None
        found.add(rounds.end_round().tobytes())
    assert len(found) == 1


def test_updates_from_several_threads() -> None:
    generator = np.random.default_rng(0)
    updates = {
        i: {"w": u[:4].reshape(2, 2), "b": u[4:]}
        for i, u in enumerate(generator.normal(size=(200, 7)))
    }
    rounds, alone = rounds_of(), rounds_of()
    now, other = rounds.begin_round(updates), alone.begin_round(updates)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda i: now.add(i % 200, updates[i % 200]), range(400)))
    assert answers.count(None) == 200 and now.metrics()["accepted"] == 200
    for client, change in updates.items():
        other.add(client, change)
    assert rounds.end_round().tobytes() == alone.end_round().tobytes()


def test_sums_and_residuals_are_two_views_of_one_release() -> None:
    sums, residuals = rounds_of(), rounds_of()
    total = np.zeros(7)
    for i in range(4):
        values = []
        for rounds, release in ((sums, "sum"), (residuals, "residual")):
            rounds.begin_round([i]).add(i, update(i))
            values.append(rounds.end_round(release))  # type: ignore[arg-type]
        total += values[1]
        np.testing.assert_allclose(total, values[0], rtol=0, atol=1e-12)
        values[0][:] = 0  # the caller's own


# ---- Wrong calls ----


def test_calls_out_of_order_change_nothing() -> None:
    rounds, same = rounds_of(), rounds_of()
    for call in (rounds.end_round, rounds.abandon_round):
        with pytest.raises(RuntimeError, match="expected an open round, got"):
            call()
    now = rounds.begin_round(["a"])
    with pytest.raises(RuntimeError, match="end_round or abandon_round first, got an open round 1"):
        rounds.begin_round(["b"])
    with pytest.raises(RuntimeError, match="end_round or abandon_round first"):
        rounds.checkpoint()
    with pytest.raises(ValueError, match="release must be one of 'sum', 'residual', got 'mean'"):
        rounds.end_round("mean")  # type: ignore[arg-type]
    assert now.add("a", update()) is None
    same.begin_round(["a"]).add("a", update())
    assert rounds.end_round().tobytes() == same.end_round().tobytes()


def test_wrong_cohorts_change_nothing() -> None:
    rounds = rounds_of()
    for wrong in ("abc", b"ab", 5, None):
        with pytest.raises(TypeError, match="clients must be an iterable of ids, got"):
            rounds.begin_round(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"clients must be distinct, .* at the places 0 and 2"):
        rounds.begin_round(["a", "b", "a"])
    with pytest.raises(ValueError, match=r"clients must be distinct, .* at the places 0 and 1"):
        rounds.begin_round([np.int64(5), 5])
    assert rounds.round is None and rounds.begin_round(["a", "b"]).turned_away == {}


def test_cohorts_beyond_what_the_integers_hold_are_refused() -> None:
    rounds = rounds_of()
    rounds._sums._members = 2**40
    with pytest.raises(ValueError, match=r"must have at most \d+ clients together, got"):
        rounds.begin_round(["a"])
    assert rounds.round is None


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"report_goal": 0}, ValueError, "report_goal must be an integer >= 1"),
        ({"report_goal": 2.0}, TypeError, "report_goal must be an integer"),
        ({"plan": 3}, TypeError, "plan must be a PrivacyPlan, got int"),
        ({"dtype": "float16"}, ValueError, "dtype must be 'float32' or 'float64'"),
        ({"memory": 0}, ValueError, "memory must be an integer in"),
        ({"threads": 0}, ValueError, "threads must be an integer"),
        ({"key": b"short"}, ValueError, "key must be 32 bytes, got 5"),
        ({"noise_seed": 1.5, "key": None}, TypeError, "noise_seed must be an integer, got float"),
        ({"spare_recoveries": -1}, ValueError, "spare_recoveries must be an integer"),
        ({"report_goal": 2**40}, ValueError, r"contributions \+ noise must be at most"),
        (
            {"plan": PrivacyPlan(1e-9, 1e308, SinglePass(4)), "dtype": "float64"},
            ValueError,
            r"contributions \+ noise must be at most",
        ),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    options = {"plan": SINGLE, "report_goal": 2, "key": KEY, **wrong}
    with pytest.raises(error, match=words):
        PrivateRounds(MODEL, **options)


def test_the_key_is_never_shown_and_nothing_is_pickled() -> None:
    rounds = rounds_of()
    server = ServerDPFTRL(MODEL, plan=SINGLE, report_goal=2, key=KEY)
    for thing in (rounds, server):
        assert KEY.hex() not in repr(thing) and repr(KEY) not in repr(thing)
        with pytest.raises(TypeError, match="is not pickled"):
            pickle.dumps(thing)
    now = rounds.begin_round(["a"])
    assert repr(now) == "Round(1, clients=1)"
    assert KEY.hex() not in now.token


@pytest.mark.parametrize("name", ["recover", "allow_fork"])
@pytest.mark.parametrize("wrong", ["no", 1, None, np.ones(2)])
def test_a_flag_is_a_bool(name: str, wrong: Any, tmp_path: Path) -> None:
    for folder in (None, tmp_path / "run"):
        with pytest.raises(TypeError, match=f"{name} must be a bool, got {type(wrong).__name__}"):
            rounds_of(folder=folder, **{name: wrong})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_part_of_a_run_is_copied(copied: Any) -> None:
    """Two copies would admit a user, or take an update, once each."""
    rounds = rounds_of()
    parts = [rounds, rounds.begin_round([1]), rounds._cohorts._guard, rounds._sums]
    for part in (*parts, rounds._sums.running):
        with pytest.raises(TypeError, match="pickled"):
            copied(part)
