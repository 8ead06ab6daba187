# SPDX-License-Identifier: Apache-2.0
"""`PrivateCounter`: the un-noised sums of tables, their bounding, and neighbours of all units."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from table_oracle import PARTS, Call, Event, Facts, columns, keeps, oracle, sums_of

import dpftrl_fast as dpf
from dpftrl_fast.accounting import MinSeparation, SinglePass
from dpftrl_fast.streams.tables.bounding import Held

NAN, INF = float("nan"), float("inf")

TIMES = st.one_of(
    st.integers(-2, 14),
    st.sampled_from([None, NAN, INF, -INF, 1.999, 4.0, 1e300, -1e-300, 2.0**62, 2.0**63]),
)
KEYS = st.sampled_from(["a", "b", "c", "c", "other", None])
USERS = st.sampled_from([0, 1, 2, "1", "x", None])
VALUES = st.one_of(
    st.sampled_from([None, NAN, INF, -INF, 1e308, -1e308, 5e-324]), st.floats(-3, 9, width=32)
)
EVENTS = st.lists(st.builds(Event, TIMES, KEYS, USERS, VALUES), max_size=14)
CLOCKS = st.integers(0, 13)


@st.composite
def facts(draw: Any) -> Facts:
    unit = draw(st.sampled_from(["event", "user-period", "user"]))
    named = unit != "event"
    return Facts(
        unit=unit,
        user_periods=draw(st.integers(1, 3)) if unit == "user" else None,
        user_gap=draw(st.integers(1, 3)) if unit == "user" else 1,
        keys_per_period=draw(st.integers(1, 4)) if named else 1,
        events_per_key=draw(st.integers(1, 3)) if named else 1,
        values=draw(st.sampled_from([None, (-1.0, 1.0), (0.0, 5.0), (2.0, 3.0), (-0.3, 7.7)])),
        late=draw(st.sampled_from(["drop", "next"])),
    )


@st.composite
def programs(draw: Any) -> list[Call]:
    calls: list[Call] = []
    for _ in range(draw(st.integers(1, 5))):
        calls.append(draw(EVENTS))
        calls.append(draw(CLOCKS))
    return [*calls, 12]


# ---- The sums ----


@given(facts(), programs())
def test_the_sums_are_those_of_plain_loops(given_facts: Facts, calls: list[Call]) -> None:
    assert sums_of(given_facts, calls) == oracle(given_facts, calls)


@given(facts(), EVENTS, st.lists(st.integers(0, 14), max_size=4))
def test_any_split_into_batches_gives_the_same_sums(
    given_facts: Facts, events: list[Event], cuts: list[int]
) -> None:
    places = [0, *sorted(cuts), len(events)]
    parts: list[Call] = [events[a:b] for a, b in itertools.pairwise(places)]
    assert sums_of(given_facts, [*parts, 12]) == sums_of(given_facts, [events, 12])


@given(facts(), EVENTS, st.lists(CLOCKS, max_size=4))
def test_any_split_of_the_clock_gives_the_same_sums(
    given_facts: Facts, events: list[Event], clocks: list[int]
) -> None:
    assert sums_of(given_facts, [events, *sorted(clocks), 12]) == sums_of(given_facts, [events, 12])


def test_events_that_are_bounded_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The events are bounded when there are many: no sum depends on the moment."""
    from dpftrl_fast.streams.tables.bounding import Held

    rng = np.random.default_rng(3)
    kinds = Facts(keys_per_period=2, events_per_key=2, values=(0, 5))
    batches: list[Call] = [
        [
            Event(float(rng.uniform(0, 12)), "abc"[rng.integers(3)], int(rng.integers(3)), 1.5)
            for _ in range(7)
        ]
        for _ in range(40)
    ]
    wanted = oracle(kinds, [*batches, 12])
    assert sums_of(kinds, [*batches, 12]) == wanted
    monkeypatch.setattr(Held, "is_long", property(lambda self: True))
    assert sums_of(kinds, [*batches, 12]) == wanted


def test_more_events_than_can_be_exact_are_cut() -> None:
    from dpftrl_fast.streams.tables.bounding import Rows
    from dpftrl_fast.streams.tables.period_sums import sums_of as sums_of_period

    for values, parts in ((None, 1), ((-1, 1), PARTS)):
        table = Facts(unit="event", values=values).counter()
        most = 2**53 // (6 * parts)
        assert table._settings.most_events == most
        one = np.array([0])
        big = Rows(one, one, one, np.array([2**60]), np.array([-(2**62)]))
        sums = sums_of_period(big, table._settings, None)
        assert sums[0] == most
        if values:
            assert sums[3] == -most


# ---- Neighbours ----


def without(given_facts: Facts, calls: list[Call], unit: Any, change: Any) -> list[Call]:
    """The calls with the events of a unit changed, or removed where the change is None."""
    found: list[Call] = []
    number, closed = 0, 0
    for call in calls:
        if not isinstance(call, list):
            closed = max(closed, min(int(call // given_facts.period), given_facts.periods))
            found.append(call)
            continue
        kept = []
        for event in call:
            place = -1
            if event.time is not None and abs(event.time) < 1e9:
                place = int(event.time // given_facts.period)
            if given_facts.late == "next":
                place = closed if 0 <= place < closed else place
            own = {
                "event": number,
                "user-period": (str(event.user), place),
                "user": str(event.user),
            }[given_facts.unit]
            number += 1
            if own != unit:
                kept.append(event)
            elif change is not None:
                kept.extend(change(event))
        found.append(kept)
    return found


@given(facts(), programs(), st.data())
def test_neighbours_differ_by_one_unit(given_facts: Facts, calls: list[Call], data: Any) -> None:
    count = sum(len(call) for call in calls if isinstance(call, list))
    assume(count > 0)
    user = data.draw(st.sampled_from(["0", "1", "2", "x"]))
    unit = {
        "event": data.draw(st.integers(0, count - 1)),
        "user-period": (user, data.draw(st.integers(0, 5))),
        "user": user,
    }[given_facts.unit]
    base = sums_of(given_facts, calls)
    removed = sums_of(given_facts, without(given_facts, calls, unit, None))
    assert keeps(given_facts, base, removed)
    # Anything in its place is such a neighbour of the rest, too.
    value = data.draw(VALUES)
    changes = [lambda event: [event._replace(value=value)], lambda event: [event._replace(key="a")]]
    if given_facts.unit != "event":  # more events, with other keys
        copies = [lambda event: [event._replace(key=key) for key in "cabcab"]]
        changes += copies
    if given_facts.unit != "user-period":  # at other times
        moved = data.draw(TIMES)
        changes.append(lambda event: [event._replace(time=moved)])
    for change in changes:
        other = sums_of(given_facts, without(given_facts, calls, unit, change))
        assert keeps(given_facts, other, removed)


def test_the_check_of_neighbours_finds_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    user = Facts(unit="user", user_periods=2, user_gap=2)
    events = [Event(t, "a", 7, None) for t in (0, 2, 4, 6)]
    assert keeps(user, sums_of(user, [events, 12]), oracle(user, [12]))
    from dpftrl_fast.accounting import Guard

    monkeypatch.setattr(Guard, "eligible", lambda self, ids: np.ones(len(ids), bool))
    monkeypatch.setattr(Guard, "admit", lambda self, ids: None)
    assert not keeps(user, sums_of(user, [events, 12]), oracle(user, [12]))
    wide = Facts(keys_per_period=2, events_per_key=2, values=(0, 1))
    same = [Event(0, key, 7, 1.0) for key in "aabb"]
    many = [Event(0, key, 7, 1.0) for key in "aaabb"]
    assert keeps(wide, sums_of(wide, [many, 12]), oracle(wide, [12]))
    assert sums_of(wide, [many, 12]) == sums_of(wide, [same, 12])
    loose = wide._replace(events_per_key=3)
    assert not keeps(wide, sums_of(loose, [many, 12]), oracle(wide, [12]))


@pytest.mark.parametrize(
    ("change", "square", "pattern"),
    [
        ({"unit": "event"}, 1, SinglePass(6)),
        ({"unit": "event", "values": (0, 1)}, 2, SinglePass(6)),
        ({"keys_per_period": 2, "events_per_key": 3}, 18, SinglePass(6)),
        ({"keys_per_period": 9, "values": (0, 1)}, 6, SinglePass(6)),
        ({"unit": "user", "user_periods": 4}, 1, MinSeparation(6, 4, 1)),
        ({"unit": "user", "user_periods": 2, "user_gap": 3}, 1, MinSeparation(6, 2, 3)),
    ],
)
def test_the_plan_is_of_the_declared_unit(change: Any, square: int, pattern: Any) -> None:
    table = Facts(**change).counter(4.0)
    assert square <= table.plan.clip_norm**2 <= square * (1 + 1e-15)
    assert table.plan.participation == pattern
    assert table.epsilon(1e-6) == table.plan.epsilon(1e-6)


# ---- Nothing but the table depends on the events ----


def faces(table: dpf.PrivateCounter) -> list[Any]:
    """All that is shown beside the figures, and what wrong calls say."""
    seen: list[Any] = [repr(table), str(table), table.describe(1e-6), table.epsilon(1e-6)]
    seen += [
        repr(getattr(table, name))
        for name in sorted(dir(type(table)))
        if not name.startswith("_") and isinstance(getattr(type(table), name), property)
    ]
    seen += [table.std().tolist(), table.add(columns([]), batch="again")]
    for wrong in ({"time": [1]}, {"time": [1], "key": ["a"], "user": []}, 7, columns([])):
        try:
            seen.append(table.add(wrong, batch="again"))
        except (TypeError, ValueError) as error:
            seen.append(str(error))
    for call in (lambda: table.declare(["d"]), lambda: table.release("now"), table.checkpoint):
        with pytest.raises((TypeError, ValueError)) as found:
            call()
        seen.append(str(found.value))
    return seen


@pytest.mark.parametrize("unit", ["event", "user-period", "user"])
def test_no_message_or_attribute_depends_on_the_events(unit: str) -> None:
    kind = Facts(unit=unit, user_periods=2 if unit == "user" else None, values=(0, 1))
    bad = [
        Event(t, k, u, v)
        for t in (None, NAN, 1e300, 0.5, 3)
        for k in (None, "other", "a", object())
        for u in (None, 1.5, 7, object(), 2**200, "")
        for v in (None, NAN, "x", 10**400)
    ]
    found = []
    for events in ([], bad, [Event(0.5, "a", 7, 1.0)] * 1000):
        table = kind.counter(4.0)
        assert table.add(columns(events), batch="again")
        table.release(4)
        table.add(columns(events))
        found.append(faces(table))
    assert found[0] == found[1] == found[2]


# ---- Late events, and keys ----


def test_late_and_early_events() -> None:
    events: list[Call] = [[Event(0, "a", 1, None), Event(5, "b", 1, None)], 4]
    late: list[Call] = [[Event(1, "a", 2, None), Event(-1, "a", 3, None), Event(12, "a", 3, None)]]
    assert sums_of(Facts(), [*events, *late, 12]) == [
        [1, 0, 0], [0, 0, 0], [0, 1, 0], *[[0, 0, 0]] * 3
    ]  # fmt: skip
    assert sums_of(Facts(late="next"), [*events, *late, 12]) == [
        [1, 0, 0], [0, 0, 0], [1, 1, 0], *[[0, 0, 0]] * 3
    ]  # fmt: skip


def test_spare_keys() -> None:
    table = Facts(keys=("a",)).counter(spare_keys=2)
    events = columns([Event(t, "b", t, None) for t in range(12)])
    assert table.plan.clip_norm == 1.0
    table.add(events)
    table.release(2)
    table.declare(["b", "a"])  # from period 2 on: period 1 is open
    table.declare(["b"])
    assert table.keys == ["a", "b"]
    table.add(events)
    table.release()
    shown = table.table("period", keys=["b"])
    assert shown["period_start"].tolist() == [4, 6, 8, 10]
    np.testing.assert_allclose(shown["count"], 2)
    assert len(table.table(keys="a")) == 6
    with pytest.raises(ValueError, match="keys must be at most the 1 spare ones, got 2"):
        table.declare(["d", "e"])
    with pytest.raises(ValueError, match="keys must be declared ones, got 'd'"):
        table.table(keys=["d"])


def test_integers_and_text_are_one_key() -> None:
    table = dpf.PrivateCounter([1, "2"], 1, 1e-300, start=0, period=1, seed=1)
    for keys in ([1, 2], ["1", "2"], np.array([1.0, 2.0]), np.array([1, 2], np.int8)):
        table.add({"time": [0, 0], "key": keys})
    shown = table.release()
    assert shown["key"].tolist() == [1, "2"]
    np.testing.assert_allclose(shown["count"], 4)


# ---- Calls ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unit": "person"}, "unit must be one of"),
        ({"unit": "user"}, "user_periods must be given with unit='user'"),
        ({"user_periods": 2}, "user_periods must be given with unit='user', and only"),
        ({"user_gap": 2}, "user_gap is for unit='user', got 2"),
        ({"unit": "event", "keys_per_period": 2}, "must be 1 with unit='event', got 2 and 1"),
        ({"events_per_key": 0}, "events_per_key must be an integer in"),
        ({"values": (1, 1)}, "values must be (low, high)"),
        ({"values": (0, NAN)}, "the high bound of values must be"),
        ({"values": 3}, "values must be (low, high)"),
        ({"late": "wait"}, "late must be one of 'drop', 'next'"),
        ({"keys": ()}, "keys must hold 1 to 2^24 keys, got 0"),
        ({"keys": ("a", "a")}, "keys must be distinct as text, got 'a' twice"),
        ({"keys": ("1", 1)}, "keys must be distinct as text, got 1 twice"),
        ({"keys": (1.5,)}, "keys must be text or integers, got 1.5"),
        ({"period": 0}, "period must be an integer >= 1, got 0"),
        ({"periods": 0}, "periods must be an integer in"),
    ],
)
def test_wrong_declarations_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        Facts(**change).counter(4.0)
    assert message in str(error.value)


def test_options_and_calls_are_refused_before_anything_changes() -> None:
    table = Facts().counter(4.0)
    with pytest.raises(ValueError, match="window must be given with figures='window'"):
        table.table("window")
    with pytest.raises(ValueError, match="window must be an integer in"):
        table.table("window", window=7)
    with pytest.raises(ValueError, match="sums are of a table with values"):
        table.std(measure="sum")
    with pytest.raises(ValueError, match="a picture is of closed periods"):
        table.plot()
    with pytest.raises(TypeError, match="batch must be a text"):
        table.add(columns([]), batch=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes no argument"):
        Facts().counter(4.0, colour="red")
    assert table.periods_closed == 0


def test_a_label_is_taken_once() -> None:
    table = Facts().counter()
    event = columns([Event(0, "a", 1, None)])
    assert table.add(event, batch="one") and not table.add(event, batch="one")
    assert table.add(columns([Event(0, "a", 2, None)]), batch="two")
    assert table.release(2)["count"].round().tolist() == [2, 0, 0]


@pytest.mark.parametrize(
    ("options", "words", "counts"),
    [
        ({}, "figures: running totals (counts since the start)", [2, 5, 6]),
        ({"figures": "period"}, "figures: counts of each period", [2, 3, 1]),
        (
            {"figures": "window", "window": 2, "values": (0, 1)},
            "figures: counts and sums of the last 2 periods",
            [2, 5, 4],
        ),
    ],
)
def test_the_figures_that_are_returned_are_named(
    options: dict[str, Any], words: str, counts: list[int]
) -> None:
    exact, table = (
        dpf.PrivateCounter(["a"], 3, sigma, start=0, period=1, **options) for sigma in (1e-3, 4.0)
    )
    events = {"time": [0, 0, 1, 1, 1, 2], "key": ["a"] * 6, "value": [0.5] * 6}
    exact.add(events)
    assert exact.release()["count"].round().tolist() == counts
    assert words in table.describe(1e-6).splitlines()
    assert words == f"figures: {table.figures}"


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    given: dict[str, Any] = {"start": 0, "period": 1, "users": "customer"}
    words = r"PrivateCounter takes no argument 'users'; its options are start, period, unit, .*late"
    with pytest.raises(TypeError, match=words):
        dpf.PrivateCounter(["a"], 9, 1.0, **given)
    with pytest.raises(TypeError, match=words):
        dpf.PrivateCounter.calibrate(["a"], 9, epsilon=1.0, delta=1e-6, **given)


def test_a_calibrated_table_keeps_its_budget() -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "start": "2013-01-01", "period": "1D"}
    table = dpf.PrivateCounter.calibrate(["a"], 365, unit="user", user_periods=30, **given)
    assert 0.999 < table.epsilon(1e-6) <= 1.0
    assert "all events of one user, who counts in at most 30 periods" in table.describe(1e-6)
    assert not table.reproducible
    budget = dpf.PrivacyBudget(1.2, 1e-6)
    budget.spend(table, label="days")
    with pytest.raises(dpf.BudgetExceeded):
        budget.spend(table)
    with pytest.raises(ValueError, match="reproducible"):
        budget.spend(Facts().counter())


def test_it_is_not_pickled() -> None:
    import pickle

    with pytest.raises(TypeError, match="it is not pickled"):
        pickle.dumps(Facts().counter())


def test_a_batch_that_fails_while_it_is_bounded_is_not_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was in the table although `add` had raised, and counted twice when it was added again."""
    table = dpf.PrivateCounter(["a"], 3, 4.0, start=0, period=1, seed=1)
    many: dict[str, Any] = {"time": np.zeros(1 << 17), "key": ["a"] * (1 << 17)}

    def fails(*_: Any) -> Any:
        raise MemoryError("no room")

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
        patch.setattr(Held, "bounded", fails)
        table.add(many)
    table.add(many)
    table.release(until=1)
    assert table._running._sum[0] == 1 << 17
