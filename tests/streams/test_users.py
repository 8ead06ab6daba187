# SPDX-License-Identifier: Apache-2.0
"""Users of a running sum: one contribution a step, as often as declared, refused or dropped."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, SinglePass
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation

NAN = float("nan")


def make(steps: int = 6, **change: Any) -> PrefixSum:
    options = {"clip_norm": 1.0, "noise_multiplier": 2.0, "seed": 1, **change}
    return PrefixSum(2, steps, **options)


def un_noised(sums: PrefixSum) -> np.ndarray:
    return sums._running._sum + sums._running._low


def test_rows_of_a_user_are_clipped_together() -> None:
    sums = make()
    rows = [[0.3, 0.0], [0.0, 9.0], [0.3, 0.0], [NAN, 1.0]]
    sums.add(rows, users=["ann", "bob", "ann", "ann"])
    np.testing.assert_allclose(un_noised(sums), [0.6, 1.0], rtol=1e-5)
    assert sums.records == 4
    far = make()
    far.add(np.full((1000, 2), 5.0), users=[7] * 1000)
    assert np.linalg.norm(un_noised(far)) <= 1.0


def test_the_order_of_rows_does_not_matter_and_labels_have_one_form() -> None:
    rows, users = np.eye(2)[[0, 1, 1, 0]], [3, 5, 3, 9]
    given = make()
    given.add(rows, users=users)
    for order in ([3, 1, 0, 2], [2, 0, 3, 1]):
        sums = make()
        sums.add(rows[order], users=[str(users[i]) for i in order])
        assert (sums.value == given.value).all()
        with pytest.raises(ValueError, match="id 5, who may not take part now"):
            sums.add([[0.0, 0.0]], users=[5])


@pytest.mark.parametrize("surplus", ["refuse", "drop"])
def test_a_single_pass(surplus: Any) -> None:
    sums = make(surplus=surplus)
    sums.add([[0.5, 0.0], [0.25, 0.0]], users=["ann", "bob"])
    before = un_noised(sums).copy()
    if surplus == "refuse":
        with pytest.raises(ValueError, match="SinglePass"):
            sums.add([[0.1, 0.0], [0.2, 0.0]], users=["ann", "eve"])
        assert sums.t == 1 and (un_noised(sums) == before).all()
    sums.add([[0.2, 0.0]] if surplus == "refuse" else [[0.1, 0.0], [0.2, 0.0]],
             users=["eve"] if surplus == "refuse" else ["ann", "eve"])  # fmt: skip
    assert sums.t == 2
    np.testing.assert_allclose(un_noised(sums) - before, [0.2, 0.0])


def test_a_minimum_separation_and_a_number_of_participations() -> None:
    pattern = MinSeparation(steps=9, max_participations=2, min_separation=3)
    sums = make(9, participation=pattern, surplus="drop")
    one = {"users": ["ann"]}
    moved = []
    for _ in range(9):
        before = un_noised(sums).copy()
        sums.add([[0.5, 0.0]], **one)
        moved.append((un_noised(sums) - before)[0])
    assert moved == [0.5, 0, 0, 0.5, 0, 0, 0, 0, 0]
    assert sums.epsilon(1e-6) == sums.plan.epsilon(1e-6)
    assert sums.plan.participation == pattern
    refusing = make(9, participation=pattern)
    refusing.add([[0.5, 0.0]], **one)
    with pytest.raises(ValueError, match="MinSeparation"):
        refusing.add([[0.5, 0.0]], **one)


def test_a_uuid_is_its_text() -> None:
    sums, user = make(), uuid4()
    sums.add([[0.1, 0.0]], users=[user])
    with pytest.raises(ValueError, match="who may not take part now"):
        sums.add([[0.1, 0.0]], users=[str(user)])


def test_a_user_moves_the_sums_by_a_declared_participation_only() -> None:
    """Whatever a user does, the steps that it moves are a participation of the pattern."""
    rng = np.random.default_rng(5)
    for _ in range(30):
        steps, most, gap = 12, int(rng.integers(1, 4)), int(rng.integers(1, 5))
        pattern = MinSeparation(steps, most, gap)
        comes = [rng.integers(0, 4, rng.integers(0, 6)) for _ in range(steps)]
        rows = [rng.normal(size=(len(ids), 2)) * 10 for ids in comes]
        paths = []
        for without in (None, 2):
            sums = make(steps, participation=pattern, surplus="drop")
            path = [[Fraction(0)] * 2]
            for ids, x in zip(comes, rows, strict=True):
                keep = ids != without
                sums.add(x[keep], users=ids[keep])
                parts = zip(sums._running._sum, sums._running._low, strict=True)
                path.append([Fraction(a) + Fraction(b) for a, b in parts])
            paths.append(path)
        gaps = [[a - b for a, b in zip(*both, strict=True)] for both in zip(*paths, strict=True)]
        moved = [sum((y - x) ** 2 for x, y in zip(*pair, strict=True)) for pair in pairwise(gaps)]
        assert max(moved) <= 1  # exactly: a contribution is at most the clip norm
        at = np.flatnonzero([square > Fraction(1, 10**20) for square in moved])
        assert len(at) <= most and (np.diff(at) >= gap).all()


def test_epochs_have_the_same_users_again() -> None:
    sums = make(4, participation=FixedEpochs(2, 2))
    for ids in ([1, 2], [3], [2, 1], [3]):
        sums.add(np.ones((len(ids), 2)), users=ids)
    again = make(4, participation=FixedEpochs(2, 2))
    again.add(np.ones((2, 2)), users=[1, 2])
    with pytest.raises(ValueError, match="FixedEpochs"):
        again.add(np.ones((1, 2)), users=[1])


@pytest.mark.parametrize("bounds", [None, (-1, 1)])
def test_many_steps_with_one_user_each(bounds: Any) -> None:
    change = {} if bounds is None else {"clip_norm": None, "bounds": bounds}
    rows, users = np.random.default_rng(1).normal(size=(6, 2)), [1, 2, 1, 3, 2, 4]
    one, many = (make(surplus="drop", **change) for _ in range(2))
    expected = [one.add(row, users=[user]) for row, user in zip(rows, users, strict=True)]
    assert (many.add_steps(rows, users=users) == expected).all()
    assert (un_noised(many) == un_noised(one)).all()
    refusing = make(**change)
    with pytest.raises(ValueError, match="step 3 must have users"):
        refusing.add_steps(rows, users=users)
    assert refusing.t == 0
    assert refusing.add_steps(rows[:2], users=[1, 2]).shape == (2, 2)


def test_with_bounds_a_user_has_one_row_a_step() -> None:
    sums = make(clip_norm=None, bounds=(0, 1))
    with pytest.raises(ValueError, match="one row each in a step with bounds"):
        sums.add(np.ones((2, 2)), users=[1, 1])
    assert sums.t == 0


def test_an_interrupted_step_of_users_ends_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = make()

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(sums._running.noise), "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sums.add([[1.0, 0.0]], users=[1])
    with pytest.raises(RuntimeError, match="interrupted"):
        sums.add([[1.0, 0.0]], users=[2])


BAD: list[tuple[Any, Any, str]] = [
    ([[1.0, 0.0]], {"users": [1, 2]}, r"shape \(1,\), one a row, got \(2,\)"),
    ([[1.0, 0.0]], {"users": [None]}, "integer or a text, got NoneType"),
    ([[1.0, 0.0]], {"users": np.array([1.5])}, "whole"),
    ([[1.0, 0.0]], {"users": np.array(["2020"], "datetime64[D]")}, "users must be integers"),
    ([[1.0, 0.0]], {}, "in every step or in none"),
]


@pytest.mark.parametrize(("rows", "named", "message"), BAD)
def test_bad_users_change_nothing(rows: Any, named: Any, message: str) -> None:
    sums = make()
    sums.add([[0.1, 0.0]], users=[9])
    with pytest.raises((TypeError, ValueError), match=message):
        sums.add(rows, **named)
    assert sums.t == 1
    sums.add([[0.1, 0.0]], users=[8])


def test_users_are_needed_where_the_pattern_counts_them() -> None:
    sums = make(4, participation=FixedEpochs(2, 2))
    with pytest.raises(TypeError, match="users must be given for each row with FixedEpochs"):
        sums.add([[1.0, 0.0]])
    nameless = make()
    nameless.add([[1.0, 0.0]])
    with pytest.raises(ValueError, match="in every step or in none"):
        nameless.add([[1.0, 0.0]], users=[1])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"participation": SinglePass(7)}, ValueError, "of the 6 steps of the stream"),
        ({"participation": FixedOrder([1, 2, 3, 1, 2, 3])}, TypeError, "SinglePass, MinSepar"),
        ({"participation": 3}, TypeError, "SinglePass, MinSepar"),
        ({"surplus": "keep"}, ValueError, "surplus must be"),
        ({"participation": FixedEpochs(3, 2), "surplus": "drop"}, ValueError, "surplus='drop'"),
        ({"whole": 1}, TypeError, "whole must be"),
    ],
)
def test_bad_arguments(change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(**change)


def test_many_steps_leave_the_records_of_the_caller_as_they_are() -> None:
    """Which users were dropped is private: they were NaN in the caller's array."""
    pattern = MinSeparation(6, 1, 1)
    sums = make(participation=pattern, surplus="drop")
    rows = np.ones((3, 2))
    rows.flags.writeable = False  # which was refused
    sums.add_steps(rows, users=["ann", "ann", "bob"])
    assert (rows == 1.0).all()
    writable = np.ones((3, 2))
    sums.add_steps(writable, users=["ann", "bob", "cat"])
    assert (writable == 1.0).all()
    np.testing.assert_allclose(un_noised(sums), np.full(2, 3 * 0.5**0.5), rtol=1e-5)
    expected = make(participation=pattern, surplus="drop")
    for user in ["ann", "ann", "bob", "ann", "bob", "cat"]:
        expected.add(np.ones((1, 2)), users=[user])
    assert (sums.value == expected.value).all()


@pytest.mark.parametrize("kept", [False, True])
def test_no_steps_are_a_call_too(kept: bool, tmp_path: Path) -> None:
    sums = make(participation=MinSeparation(6, 1, 1))
    if kept:
        sums.save(tmp_path / "sum", checkpoint_every=9)
    assert sums.add_steps(np.zeros((0, 2)), users=[]).shape == (0, 2)
    assert sums.add(np.zeros((0, 2)), users=[]).shape == (2,)
    sums.add_steps(np.ones((2, 2)), users=[1, 2])
    if kept:
        del sums
        sums = PrefixSum.open(tmp_path / "sum")  # repeats all calls
    assert sums.t == 3
    with pytest.raises(ValueError, match="id 2"):
        sums.add([[1.0, 0.0]], users=[2])


@pytest.mark.parametrize("rule", [{}, {"clip_norm": None, "bounds": (0.0, 2.0)}])
def test_labels_refuse_nothing_where_surplus_is_dropped(rule: dict[str, Any]) -> None:
    """What is no user, and a user's further rows with bounds: refused, they told of a label."""
    nobody: list[Any] = [None, NAN, "", 0.5, b"x", object()]
    rows = np.full((len(nobody) + 2, 2), 1.5)
    sums, expected = (make(2, surplus="drop", **rule) for _ in range(2))
    sums.add(rows, users=["ann", *nobody, "bob"])
    padded = np.where(np.arange(len(rows))[:, None] % (len(rows) - 1) == 0, rows, NAN)
    expected.add(padded, users=[f"u{i}" for i in range(len(rows))])
    assert sums.records == len(rows) and (un_noised(sums) == un_noised(expected)).all()
    assert (sums.value == expected.value).all()
    sums = make(4, surplus="drop", **rule)
    sums.add_steps(np.full((4, 2), 1.5), users=np.array(["ann", None, "ann", "bob"], object))
    assert sums.t == 4 and (un_noised(sums) == un_noised(expected)).all()
    if rule:
        twice = make(2, surplus="drop", **rule)
        twice.add([[1.5, 1.5], [0.0, 0.0], [1.5, 1.5], [NAN, 7.0]], users=["a", "a", "b", "b"])
        assert twice.records == 4 and (un_noised(twice) == un_noised(expected)).all()
    for label in nobody:
        with pytest.raises((TypeError, ValueError), match="user"):
            make(2, **rule).add(np.ones((1, 2)), users=np.array([label], object))
