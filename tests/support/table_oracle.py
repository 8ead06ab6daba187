# SPDX-License-Identifier: Apache-2.0
"""Tables over time once more, in loops of plain Python; and the participation of a difference."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import dpftrl_fast as dpf

PARTS = 65536


class Event(NamedTuple):
    """An event whose time is a number; None where a cell is missing."""

    time: float | None
    key: Any
    user: Any
    value: float | None


#: A call: events to add, or the time of a release.
Call = list[Event] | float


class Facts(NamedTuple):
    """A table of numeric times from 0 on."""

    keys: tuple[str, ...] = ("a", "b", "c")
    periods: int = 6
    period: int = 2
    unit: str = "user-period"
    user_periods: int | None = None
    user_gap: int = 1
    keys_per_period: int = 1
    events_per_key: int = 1
    values: tuple[float, float] | None = None
    late: str = "drop"

    def counter(self, noise_multiplier: float = 1e-300, **more: Any) -> dpf.PrivateCounter:
        """Return the table; with the default noise its sums are released as they are."""
        facts = self._asdict()
        keys, periods = facts.pop("keys"), facts.pop("periods")
        options = {"seed": 1, "mechanism": "tree", **more}
        return dpf.PrivateCounter(
            list(keys), periods, noise_multiplier, start=0, **facts, **options
        )


def columns(events: Sequence[Event]) -> dict[str, list[Any]]:
    names = Event._fields
    return {name: [event[i] for event in events] for i, name in enumerate(names)}


def parts_of(facts: Facts, value: float | None) -> int:
    if facts.values is None:
        return 0
    low, high = (Fraction(bound) for bound in facts.values)
    x = Fraction(0 if value is None or not math.isfinite(value) else value)
    x = min(max(x, low), high)
    return round((x - (low + high) / 2) / ((high - low) / 2) * PARTS)


def oracle(facts: Facts, calls: Sequence[Call]) -> list[list[int]]:
    """Un-noised sums of every period that is closed: events of each key, then parts of values."""
    held: dict[int, list[Event]] = {}
    last: dict[Any, int] = {}
    uses: dict[Any, int] = {}
    closed: list[list[int]] = []
    for call in calls:
        if isinstance(call, list):
            for event in call:
                t = event.time
                if t is None or not math.isfinite(t) or event.key not in facts.keys:
                    continue
                if facts.unit != "event" and event.user is None:
                    continue
                place = math.floor(t / facts.period)
                if not 0 <= place < facts.periods:
                    continue
                if place < len(closed):
                    if facts.late == "drop" or len(closed) == facts.periods:
                        continue
                    place = len(closed)
                held.setdefault(place, []).append(event)
            continue
        while len(closed) < facts.periods and (len(closed) + 1) * facts.period <= call:
            place = len(closed)
            counts, sums = [0] * len(facts.keys), [0] * len(facts.keys)
            seen: dict[Any, dict[str, int]] = {}
            there = []
            for number, event in enumerate(held.get(place, [])):
                who = number if facts.unit == "event" else str(event.user)
                mine = seen.setdefault(who, {})
                if facts.unit == "user" and who not in there:
                    rested = place - last.get(who, -(10**9)) >= facts.user_gap
                    if not rested or uses.get(who, 0) >= (facts.user_periods or 0):
                        continue
                    there.append(who)
                if event.key not in mine and len(mine) == facts.keys_per_period:
                    continue
                if mine.get(event.key, 0) == facts.events_per_key:
                    continue
                mine[event.key] = mine.get(event.key, 0) + 1
                counts[facts.keys.index(event.key)] += 1
                sums[facts.keys.index(event.key)] += parts_of(facts, event.value)
            for who in there:
                last[who], uses[who] = place, uses.get(who, 0) + 1
            closed.append(counts + (sums if facts.values else []))
    return closed


def sums_of(facts: Facts, calls: Sequence[Call], **more: Any) -> list[list[int]]:
    """The same from a `PrivateCounter` without noise to speak of."""
    table = facts.counter(**more)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no period is closed")  # clocks that go back
        for call in calls:
            if not isinstance(call, list):
                table.release(call)
            elif table.periods_closed < facts.periods:
                table.add(columns(call))
            else:
                with pytest.raises(ValueError, match="the table is over"):
                    table.add(columns(call))
    running = table._released.copy()
    running[:, len(facts.keys) :] *= PARTS
    found = np.diff(running, axis=0, prepend=0.0)
    assert (found == np.rint(found)).all()
    return found.astype(int).tolist()


def keeps(facts: Facts, one: list[list[int]], other: list[list[int]]) -> bool:
    """Whether the sums of neighbours differ by what one unit may contribute, exactly."""
    most = min(facts.keys_per_period, len(facts.keys)) * facts.events_per_key**2
    steps = []
    for step, (x, y) in enumerate(zip(one, other, strict=True)):
        d = [a - b for a, b in zip(x, y, strict=True)]
        n = len(facts.keys)
        square = sum(c * c for c in d[:n]) * PARTS**2 + sum(v * v for v in d[n:])
        if square > most * PARTS**2 * (2 if facts.values else 1):
            return False
        if sum(c != 0 for c in d[:n]) > facts.keys_per_period:
            return False
        if any(d):
            steps.append(step)
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    uses = 1 if facts.unit != "user" else facts.user_periods or 0
    return len(steps) <= uses and all(gap >= facts.user_gap for gap in gaps)
