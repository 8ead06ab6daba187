# SPDX-License-Identifier: Apache-2.0
"""The plan: validation, the numbers it states, the noise it makes, and its text and JSON forms."""

import dataclasses
import doctest
import importlib
import json
import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.support import support_floor
from dpftrl_fast.noise import TreeNoise
from dpftrl_fast.plan import PrivacyPlan

FAST = settings(max_examples=60, deadline=None, derandomize=True)
PLAN = PrivacyPlan(clip_norm=0.3, noise_multiplier=2.33, participation=acc.SinglePass(1600))

PLANS = st.builds(
    PrivacyPlan,
    clip_norm=st.floats(1e-100, 1e100),
    noise_multiplier=st.floats(-1, 4).map(lambda x: 10.0**x),
    participation=st.builds(acc.SinglePass, st.integers(1, 10**9)),
    restart_every=st.one_of(st.none(), st.integers(1, 10**9)),
    complete=st.sampled_from([False, True, "all"]),
    variant=st.sampled_from(["vanilla", "honaker"]),
)
DELTAS = st.floats(-11, -0.1).map(lambda x: 10.0**x)


@pytest.mark.parametrize(
    "module",
    [
        "plan",
        "accounting",
        "accounting._rounding",
        "accounting.gaussian",
        "accounting.participation",
        "accounting.rdp",
        "accounting.sensitivity",
        "accounting.support",
    ],
)
def test_docstring_examples(module):
    assert doctest.testmod(importlib.import_module(f"dpftrl_fast.{module}")).failed == 0


def test_defaults_and_derived_values():
    assert (PLAN.restart_every, PLAN.complete, PLAN.variant) == (None, False, "honaker")
    assert PLAN.steps == 1600
    assert PLAN.sensitivity_squared == 11
    assert PLAN.mu == pytest.approx(math.sqrt(11) / 2.33, rel=1e-15)
    assert PLAN.delta_floor == support_floor(2.33, 11)


@pytest.mark.parametrize(
    ("sigma", "eps"),
    [(1.13, 17.667), (2.33, 7.342), (4.03, 3.920), (6.21, 2.424), (8.83, 1.649)],
)
def test_stackoverflow_table(sigma, eps):
    plan = PrivacyPlan(1.0, sigma, acc.SinglePass(1600))
    assert plan.epsilon(1e-6) == pytest.approx(eps, abs=5e-4)


def test_restarts_and_completion_reach_the_accountant():
    def zeta(**options):
        return PrivacyPlan(1.0, 1.0, acc.SinglePass(100), **options).sensitivity_squared

    assert zeta() == 7
    assert zeta(complete="all") == 8
    assert zeta(restart_every=50) == 6
    assert zeta(restart_every=50, complete=True) == 7


def test_the_floor_is_part_of_delta():
    # A floor large enough to be seen: 9 levels at sigma 0.2.
    plan = PrivacyPlan(1.0, 0.2, acc.SinglePass(256))
    floor = plan.delta_floor
    assert 1e-6 < floor < 1e-2
    exact = acc.delta(0.2, 9, 160.0)
    assert plan.delta(160.0) == pytest.approx(exact + floor, rel=1e-6)
    assert plan.delta(1e6) == pytest.approx(floor, rel=1e-6)
    assert plan.epsilon(2 * floor) == pytest.approx(acc.epsilon(0.2, 9, floor), rel=1e-6)
    assert plan.epsilon(2 * floor) > acc.epsilon(0.2, 9, 2 * floor)
    for delta in [floor, floor / 2, 1e-300]:
        with pytest.raises(ValueError, match="delta must be above the floor of the noise stream"):
            plan.epsilon(delta)


def test_replace_one_doubles_mu():
    half = PrivacyPlan(0.3, 2.33 / 2, acc.SinglePass(1600))
    assert PLAN.epsilon(1e-6, neighbours="replace-one") == half.epsilon(1e-6)
    assert PLAN.delta(5.0, neighbours="replace-one") == half.delta(5.0)
    for wrong in ["add-remove", None, 2]:
        with pytest.raises(ValueError, match='neighbours must be "zero-out" or "replace-one", got'):
            PLAN.epsilon(1e-6, neighbours=wrong)
        with pytest.raises(ValueError, match='neighbours must be "zero-out" or "replace-one", got'):
            PLAN.delta(1.0, neighbours=wrong)


@FAST
@given(PLANS, DELTAS, st.sampled_from(["zero-out", "replace-one"]))
def test_epsilon_and_delta_agree(plan, delta, neighbours):
    try:
        eps = plan.epsilon(delta, neighbours=neighbours)
    except ValueError:
        scale = 1 if neighbours == "zero-out" else 2
        floor = support_floor(plan.noise_multiplier / scale, plan.sensitivity_squared)
        assert delta <= floor
        return
    assert plan.delta(eps, neighbours=neighbours) <= delta * (1 + 1e-12)
    bare = acc.epsilon(plan.noise_multiplier, plan.sensitivity_squared, delta)
    assert bare <= eps
    if neighbours == "zero-out" and plan.delta_floor < 1e-9 * delta:
        assert eps <= bare * (1 + 1e-5) + 1e-6


@FAST
@given(PLANS, DELTAS)
def test_neighbours_are_ordered(plan, delta):
    floor = support_floor(plan.noise_multiplier / 2, plan.sensitivity_squared)
    if delta > floor:
        assert plan.epsilon(delta) <= plan.epsilon(delta, neighbours="replace-one")


@FAST
@given(
    st.one_of(st.just(0.0), st.floats(-4, 4).map(lambda x: 10.0**x)),
    st.floats(-300, -0.1).map(lambda x: 10.0**x),
    st.integers(1, 10**9),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.sampled_from([False, True, "all"]),
)
def test_calibrate_keeps_the_budget(eps, delta, steps, restart_every, complete):
    plan = PrivacyPlan.calibrate(
        epsilon=eps,
        delta=delta,
        clip_norm=0.3,
        participation=acc.SinglePass(steps),
        restart_every=restart_every,
        complete=complete,
        variant="vanilla",
    )
    assert plan.epsilon(delta) <= eps
    assert plan.delta_floor < delta
    assert (plan.clip_norm, plan.participation) == (0.3, acc.SinglePass(steps))
    assert (plan.restart_every, plan.complete) == (restart_every, complete)
    assert plan.variant == "vanilla"
    # The least noise: one double less does not keep it.
    less = dataclasses.replace(plan, noise_multiplier=math.nextafter(plan.noise_multiplier, 0.0))
    try:
        assert less.epsilon(delta) > eps
    except ValueError:
        assert delta <= less.delta_floor


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"epsilon": math.nan}, ValueError, "epsilon must be a finite number >= 0, got nan"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be a finite number >= 0, got inf"),
        ({"epsilon": "1"}, TypeError, "epsilon must be a finite number >= 0, got str"),
        ({"delta": 0.0}, ValueError, "delta must be a number with 0 < x < 1, got 0.0"),
        ({"delta": math.nan}, ValueError, "delta must be a number with 0 < x < 1, got nan"),
        ({"clip_norm": 0}, ValueError, "clip_norm must be a finite number > 0, got 0.0"),
        ({"participation": 1600}, TypeError, "participation must be a SinglePass, got int"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"complete": "some"}, ValueError, "complete must be False, True or \"all\", got 'some'"),
        ({"variant": "other"}, ValueError, 'variant must be "vanilla" or "honaker", got \'other\''),
    ],
)
def test_calibrate_refuses(wrong, error, message):
    good = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "clip_norm": 1.0,
        "participation": acc.SinglePass(10),
    }
    with pytest.raises(error, match=message):
        PrivacyPlan.calibrate(**{**good, **wrong})


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier"])
def test_positive_numbers(name):
    for wrong in [math.nan, math.inf, 0, 0.0, -1.0, -math.inf]:
        with pytest.raises(ValueError, match=rf"^{name} must be a finite number > 0, got "):
            dataclasses.replace(PLAN, **{name: wrong})
    for wrong in ["1", None, True, [1.0], 1j]:
        with pytest.raises(TypeError, match=rf"^{name} must be a finite number > 0, got "):
            dataclasses.replace(PLAN, **{name: wrong})


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"participation": 1600}, TypeError, "participation must be a SinglePass, got int"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"restart_every": True}, TypeError, "restart_every must be an integer >= 1, got bool"),
        ({"complete": "some"}, ValueError, "complete must be False, True or \"all\", got 'some'"),
        ({"complete": 0}, TypeError, 'complete must be False, True or "all", got int'),
        ({"variant": "other"}, ValueError, 'variant must be "vanilla" or "honaker", got \'other\''),
        ({"variant": None}, ValueError, 'variant must be "vanilla" or "honaker", got None'),
        ({"clip_norm": 1e-100, "noise_multiplier": 1e-250}, ValueError, "clip_norm . noise_mul"),
        ({"clip_norm": 1e100, "noise_multiplier": 1e250}, ValueError, "clip_norm . noise_mul"),
        (
            {"clip_norm": 1e-101},
            ValueError,
            r"clip_norm must be a finite number in \[1e-100, 1e\+100\], got 1e-101",
        ),
    ],
)
def test_other_fields(wrong, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(PLAN, **wrong)


def test_wrong_epsilon_and_delta():
    for wrong in [0.0, 1.0, -1e-6, math.nan]:
        with pytest.raises(ValueError, match="delta must be a number with 0 < x < 1, got"):
            PLAN.epsilon(wrong)
        with pytest.raises(ValueError, match="delta must be a number with 0 < x < 1, got"):
            PLAN.describe(wrong)
    for wrong in [-1.0, math.nan, math.inf]:
        with pytest.raises(ValueError, match="epsilon must be a finite number >= 0, got"):
            PLAN.delta(wrong)


def test_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PLAN.noise_multiplier = 1.0
    assert hash(dataclasses.replace(PLAN)) == hash(PLAN)


def test_numpy_scalars_become_plain_numbers():
    plan = PrivacyPlan(
        np.float32(0.5), np.float64(4), acc.SinglePass(np.int64(10)), restart_every=np.int32(5)
    )
    assert [type(x) for x in (plan.clip_norm, plan.noise_multiplier, plan.restart_every)] == [
        float,
        float,
        int,
    ]
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


@FAST
@given(PLANS)
def test_json_round_trip_is_exact(plan):
    text = json.dumps(plan.to_dict(), allow_nan=False)
    again = PrivacyPlan.from_dict(json.loads(text))
    assert again == plan
    assert type(again.complete) is type(plan.complete)
    assert json.dumps(again.to_dict()) == text


def test_the_written_form():
    assert PLAN.to_dict() == {
        "format": "dpftrl_fast.PrivacyPlan",
        "version": 1,
        "clip_norm": 0.3,
        "noise_multiplier": 2.33,
        "participation": {"kind": "SinglePass", "steps": 1600},
        "restart_every": None,
        "complete": False,
        "variant": "honaker",
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "other"}, ValueError, "format must be 'dpftrl_fast.PrivacyPlan', got 'other'"),
        ({"version": 2}, ValueError, "version must be 1, got 2"),
        ({"version": True}, ValueError, "version must be 1, got True"),
        ({"epsilon": 1.0}, ValueError, r"got also \['epsilon'\]"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier must be a finite number"),
        ({"noise_multiplier": "2"}, TypeError, "noise_multiplier must be a finite number"),
        ({"participation": {"kind": "x"}}, ValueError, "participation kind must be 'SinglePass'"),
        ({"participation": 3}, TypeError, "participation must be a mapping, got int"),
    ],
)
def test_from_dict_refuses(change, error, message):
    with pytest.raises(error, match=message):
        PrivacyPlan.from_dict({**PLAN.to_dict(), **change})


def test_from_dict_refuses_what_is_incomplete_or_no_mapping():
    for key in PLAN.to_dict():
        d = PLAN.to_dict()
        del d[key]
        with pytest.raises(ValueError, match=rf"{key}"):
            PrivacyPlan.from_dict(d)
    with pytest.raises(TypeError, match="a plan must be a mapping, got list"):
        PrivacyPlan.from_dict([])


def test_describe():
    lines = PLAN.describe(1e-6).splitlines()
    assert "neighbours: one record's gradients replaced by zero" in lines[0]
    assert lines[0].startswith("epsilon 7.342 at delta 1e-06")
    assert lines[1].startswith("epsilon 17 at delta 1e-06")
    assert "replaced by another's" in lines[1]
    assert "1600 steps" in lines[3]
    assert lines[3].endswith("one tree, honaker")
    assert lines[4] == "clip norm 0.3, noise multiplier 2.33, zeta 11, mu 1.424"


@FAST
@given(PLANS, DELTAS)
def test_described_epsilon_is_rounded_up(plan, delta):
    if delta <= plan.delta_floor:
        with pytest.raises(ValueError, match="above the floor"):
            plan.describe(delta)
        return
    text = plan.describe(delta)
    shown = float(re.match(r"epsilon (\S+) at", text).group(1))
    true = plan.epsilon(delta)
    assert true <= shown <= true * 1.0011


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one tree, honaker"),
        ({"complete": True}, "one tree, honaker"),
        ({"complete": "all"}, "one tree, completed, honaker"),
        ({"restart_every": 20, "variant": "vanilla"}, "a new tree every 20 steps, vanilla"),
        ({"restart_every": 20, "complete": True}, "every 20 steps, completed before it, honaker"),
        ({"restart_every": 20, "complete": "all"}, "every 20 steps, each completed, honaker"),
    ],
)
def test_described_trees(options, text):
    described = dataclasses.replace(PLAN, **options).describe(1e-6).splitlines()[3]
    assert described.endswith(text)


def test_describe_without_a_replace_one_guarantee():
    plan = PrivacyPlan(1.0, 0.3, acc.SinglePass(16))
    delta = math.sqrt(plan.delta_floor * support_floor(0.15, 5))
    lines = plan.describe(delta).splitlines()
    assert lines[0].startswith("epsilon ")
    assert lines[1].startswith("no epsilon at delta")


def test_noise_is_the_plans():
    noise = PLAN.noise(5, seed=7)
    same = TreeNoise(5, 0.3 * 2.33, seed=7, variant="honaker")
    for _ in range(6):
        np.testing.assert_array_equal(noise.step(), same.step())


SCALES = st.floats(-8, 8).map(lambda x: 10.0**x)


@FAST
@given(L=SCALES, sigma=SCALES, dtype=st.sampled_from(["float32", "float64"]))
def test_the_standard_deviation_is_the_plans_rounded_up(L, sigma, dtype):
    std = PrivacyPlan(L, sigma, acc.SinglePass(3)).noise(1, dtype=dtype).std
    exact = Fraction(L) * Fraction(sigma)
    below = np.nextafter(np.dtype(dtype).type(std), np.dtype(dtype).type(0))
    assert Fraction(float(below)) < exact <= Fraction(std)


def test_noise_passes_its_options_on(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "dpftrl_fast.plan.PlannedNoise", lambda *args, **options: calls.append((args, options))
    )
    dataclasses.replace(PLAN, variant="vanilla").noise(
        5, seed=b"s", memory=3, dtype="float64", rounds=20, threads=2, offset=9
    )
    options = {
        "seed": b"s",
        "variant": "vanilla",
        "memory": 3,
        "dtype": "float64",
        "rounds": 20,
        "threads": 2,
        "offset": 9,
        "key": None,
        "steps": PLAN.steps,
        "restart_every": PLAN.restart_every,
        "complete": bool(PLAN.complete),
    }
    assert calls == [((5, math.nextafter(0.3 * 2.33, 1)), options)]  # the nearest is too small


def test_noise_without_a_seed_is_not_reproducible():
    assert not PLAN.noise(5).reproducible
    assert PLAN.noise(5, seed=1).reproducible


def test_noise_beyond_the_floors_reach_is_refused():
    for size, offset in [(2**36 + 1, 0), (2, 2**36 - 1), (np.int64(2**37), 0)]:
        with pytest.raises(ValueError, match=r"offset \+ size must be at most 2\^36 = 68719476736"):
            PLAN.noise(size, offset=offset)
    with pytest.raises((TypeError, ValueError)):
        PLAN.noise(0)
