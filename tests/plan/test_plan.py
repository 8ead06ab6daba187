# SPDX-License-Identifier: Apache-2.0
"""The plan: validation, the numbers it states, and the noise it makes."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_options import with_tree

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.guard.state import declaration
from dpftrl_fast.accounting.planner.schedules import plan_schedule
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, support_floor, touched
from dpftrl_fast.accounting.sensitivity.squared import squared_of
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.mechanisms import BandedInverse, Tree
from dpftrl_fast.noise.tree import TreeNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run import RunAccount

FAST = settings(max_examples=60, deadline=None, derandomize=True)
PLAN = PrivacyPlan(clip_norm=0.3, noise_multiplier=2.33, participation=acc.SinglePass(1600))


def floor_of(plan, scale=1):
    """The floor of a single pass: each touched node has one contribution."""
    zeta = plan.sensitivity_squared
    return support_floor(plan.noise_multiplier / scale, zeta, Touched(zeta, zeta, 1))


PLANS = st.builds(
    PrivacyPlan,
    clip_norm=st.floats(1e-100, 1e100),
    noise_multiplier=st.floats(-1, 4).map(lambda x: 10.0**x),
    participation=st.builds(acc.SinglePass, st.integers(1, 10**9)),
    mechanism=st.builds(
        Tree,
        st.sampled_from(["vanilla", "honaker"]),
        st.one_of(st.none(), st.integers(1, 10**9)),
        complete=st.sampled_from([False, True, "all"]),
    ),
)
DELTAS = st.floats(-11, -0.1).map(lambda x: 10.0**x)


def test_defaults_and_derived_values():
    assert PLAN.mechanism == Tree("honaker", restart_every=None, tree_lengths=None, complete=False)
    assert PLAN.steps == 1600
    assert PLAN.sensitivity_squared == 11
    assert PLAN.mu == pytest.approx(math.sqrt(11) / 2.33, rel=1e-15)
    assert PLAN.delta_floor == floor_of(PLAN)
    assert PLAN.guarantee.touched == Touched(11, 11, 1)
    assert PLAN.bound == "exact"
    assert PLAN.layout == Tree().layout(1600)


@pytest.mark.parametrize(
    ("sigma", "eps"),
    [(1.13, 17.667), (2.33, 7.342), (4.03, 3.920), (6.21, 2.424), (8.83, 1.649)],
)
def test_stackoverflow_table(sigma, eps):
    plan = PrivacyPlan(1.0, sigma, acc.SinglePass(1600))
    assert plan.epsilon(1e-6) == pytest.approx(eps, abs=5e-4)


def test_restarts_and_completion_reach_the_accountant():
    def zeta(**options):
        return PrivacyPlan(1.0, 1.0, acc.SinglePass(100), Tree(**options)).sensitivity_squared

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
        with pytest.raises(ValueError, match=r"neighbours must be one of 'zero-out', 'rep"):
            PLAN.epsilon(1e-6, neighbours=wrong)
        with pytest.raises(ValueError, match=r"neighbours must be one of 'zero-out', 'rep"):
            PLAN.delta(1.0, neighbours=wrong)


@FAST
@given(PLANS, DELTAS, st.sampled_from(["zero-out", "replace-one"]))
def test_epsilon_and_delta_agree(plan, delta, neighbours):
    try:
        eps = plan.epsilon(delta, neighbours=neighbours)
    except ValueError:
        assert delta <= floor_of(plan, 1 if neighbours == "zero-out" else 2)
        return
    assert plan.delta(eps, neighbours=neighbours) <= delta * (1 + 1e-12)
    bare = acc.epsilon(plan.noise_multiplier, plan.sensitivity_squared, delta)
    assert bare <= eps
    if neighbours == "zero-out" and plan.delta_floor < 1e-9 * delta:
        assert eps <= bare * (1 + 1e-5) + 1e-6


@FAST
@given(PLANS, DELTAS)
def test_neighbours_are_ordered(plan, delta):
    if delta > floor_of(plan, 2):
        assert plan.epsilon(delta) <= plan.epsilon(delta, neighbours="replace-one")


@FAST
@given(
    st.floats(-4, 4).map(lambda x: 10.0**x),
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
        mechanism=Tree(variant="vanilla", restart_every=restart_every, complete=complete),
    )
    assert plan.epsilon(delta) <= eps
    assert plan.delta_floor < delta
    assert (plan.clip_norm, plan.participation) == (0.3, acc.SinglePass(steps))
    assert plan.mechanism == Tree("vanilla", restart_every, complete=complete)
    # The least noise: one double less does not keep it.
    less = dataclasses.replace(plan, noise_multiplier=math.nextafter(plan.noise_multiplier, 0.0))
    try:
        assert less.epsilon(delta) > eps
    except ValueError:
        assert delta <= less.delta_floor


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"epsilon": math.nan}, ValueError, "epsilon must be a finite number > 0, got nan"),
        ({"epsilon": math.inf}, ValueError, "epsilon must be a finite number > 0, got inf"),
        ({"epsilon": "1"}, TypeError, "epsilon must be a finite number > 0, got str"),
        ({"delta": 0.0}, ValueError, "delta must be a finite number > 0 and < 1, got 0.0"),
        ({"delta": math.nan}, ValueError, "delta must be a finite number > 0 and < 1, got nan"),
        ({"clip_norm": 0}, ValueError, r"clip_norm must be a finite number in \[.*, got 0.0"),
        ({"participation": 1600}, TypeError, "participation must be one of .*, got int"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"complete": "some"}, ValueError, "complete must be False, True, .*, got 'some'"),
        (
            {"variant": "other"},
            ValueError,
            "variant must be one of .*, got 'other'",
        ),
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
        PrivacyPlan.calibrate(**with_tree({**good, **wrong}))


@pytest.mark.parametrize("name", ["clip_norm", "noise_multiplier"])
def test_positive_numbers(name):
    bounds = {"clip_norm": r"in \[1e-100, 1e\+100\]", "noise_multiplier": "> 0"}
    words = rf"^{name} must be a finite number {bounds[name]}, got "
    for wrong in [math.nan, math.inf, 0, 0.0, -1.0, -math.inf]:
        with pytest.raises(ValueError, match=words):
            dataclasses.replace(PLAN, **{name: wrong})
    for wrong in ["1", None, True, [1.0], 1j]:
        with pytest.raises(TypeError, match=words):
            dataclasses.replace(PLAN, **{name: wrong})


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"participation": 1600}, TypeError, "participation must be one of .*, got int"),
        ({"mechanism": "tree"}, TypeError, "mechanism must be a mechanism .*, got str"),
        ({"mechanism": Tree}, TypeError, "mechanism must be a mechanism .*, got type"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"restart_every": True}, TypeError, "restart_every must be an integer >= 1, got bool"),
        ({"complete": "some"}, ValueError, "complete must be False, True, .*, got 'some'"),
        ({"complete": 0}, TypeError, "complete must be False, True, .*, got int"),
        (
            {"variant": "other"},
            ValueError,
            "variant must be one of .*, got 'other'",
        ),
        ({"variant": None}, ValueError, "variant must be one of 'honaker', 'vanilla', got None"),
        ({"complete": [True, False]}, ValueError, "one bool for each of 1 trees, got 2"),
        ({"bound": "level"}, ValueError, "bound must be one of 'exact', 'released', got 'level'"),
        ({"tree_lengths": [800, 799]}, ValueError, "add up to the 1600 steps of the run, got 1599"),
        (
            {"tree_lengths": [1600.0]},
            TypeError,
            "each of tree_lengths must be an integer in .*, got float",
        ),
        ({"tree_lengths": [1600], "restart_every": 3}, ValueError, "tree_lengths, got both"),
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
        dataclasses.replace(PLAN, **with_tree(wrong))


def test_wrong_epsilon_and_delta():
    for wrong in [0.0, 1.0, -1e-6, math.nan]:
        with pytest.raises(ValueError, match="delta must be a finite number > 0 and < 1, got"):
            PLAN.epsilon(wrong)
        with pytest.raises(ValueError, match="delta must be a finite number > 0 and < 1, got"):
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
        np.float32(0.5),
        np.float64(4),
        acc.SinglePass(np.int64(10)),
        mechanism=Tree(restart_every=np.int32(5)),
    )
    assert [
        type(x) for x in (plan.clip_norm, plan.noise_multiplier, plan.mechanism.restart_every)
    ] == [
        float,
        float,
        int,
    ]
    assert json.loads(json.dumps(plan.to_dict())) == plan.to_dict()


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


def test_noise_passes_its_options_on():
    calls = []
    plan = dataclasses.replace(PLAN, mechanism=Tree("vanilla"))
    spec = dataclasses.replace(plan.noise_spec, purpose="covariance")

    def make(*args, **options):
        calls.append((args, options))

    given = {"seed": b"s", "memory": 3, "dtype": "float64", "rounds": 20, "threads": 1, "offset": 9}
    spec.source(5, **given, make=make)
    options = given | {
        "purpose": "covariance",
        "key": None,
        "layout": Tree("vanilla").layout(1600),
    }
    assert calls == [((5, math.nextafter(0.3 * 2.33, 1)), options)]  # the nearest is too small
    made, same = plan.noise(5, **given), plan.noise_spec.source(5, **given)
    assert made.state_dict() == same.state_dict()
    assert (made.threads, made.offset, made.rounds, made.dtype) == (1, 9, 20, np.float64)
    assert made.memory == same.memory == 3
    assert made.step().tolist() == same.step().tolist()
    key = bytes(range(32))
    assert plan.noise(5, key=key).step().tolist() == plan.noise(5, key=key).step().tolist()
    assert not plan.noise(5, key=key).reproducible


def test_noise_without_a_seed_is_not_reproducible():
    assert not PLAN.noise(5).reproducible
    assert PLAN.noise(5, seed=1).reproducible


def test_noise_beyond_the_floors_reach_is_refused():
    for size, offset in [(2**36 + 1, 0), (2, 2**36 - 1), (np.int64(2**37), 0)]:
        with pytest.raises(ValueError, match=r"offset \+ size must be at most 2\^36 = 68719476736"):
            PLAN.noise(size, offset=offset)
    with pytest.raises((TypeError, ValueError)):
        PLAN.noise(0)


# ---- Patterns of several participations ----

CIFAR = acc.FixedEpochs(100, 100)


@pytest.mark.parametrize(
    ("every", "sigma"), [(100, 6.91), (500, 8.26), (2000, 12.04), (None, 31.28)]
)
def test_published_noise_multipliers_of_fixed_epochs(every, sigma):
    plan = PrivacyPlan.calibrate(
        epsilon=23.0,
        delta=1e-5,
        clip_norm=1.0,
        participation=CIFAR,
        mechanism=Tree(restart_every=every),
    )
    assert plan.noise_multiplier == pytest.approx(sigma, abs=5e-3)
    assert plan.epsilon(1e-5) <= 23.0
    less = dataclasses.replace(plan, noise_multiplier=math.nextafter(plan.noise_multiplier, 0.0))
    assert less.epsilon(1e-5) > 23.0


def test_a_published_epsilon_with_restarts_and_completion():
    plan = PrivacyPlan(1.0, 46.3, CIFAR, mechanism=Tree(restart_every=2000, complete=True))
    assert plan.sensitivity_squared == 4129
    assert plan.epsilon(1e-5) == pytest.approx(6.4275, abs=5e-5)
    listed = PrivacyPlan(
        1.0,
        46.3,
        CIFAR,
        mechanism=Tree(tree_lengths=[2000] * 5, complete=[True, True, True, True, False]),
    )
    assert listed.epsilon(1e-5) == plan.epsilon(1e-5)
    assert listed.layout == plan.layout
    assert listed != plan  # values as declared


SEVERAL = [
    acc.FixedEpochs(4, 3),
    acc.FixedEpochs(4, 3, reshuffle=False),
    acc.FixedOrder([1, 2, 3, 1, 4, 1, -1, 2]),
    acc.MinSeparation(9, 3, 2),
]


@pytest.mark.parametrize("pattern", SEVERAL)
@pytest.mark.parametrize("bound", ["exact", "released"])
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.parametrize("complete", [False, True, "all"])
def test_the_fields_reach_the_accountant(pattern, bound, variant, complete):
    plan = PrivacyPlan.calibrate(
        epsilon=2.0,
        delta=1e-6,
        clip_norm=0.5,
        participation=pattern,
        mechanism=Tree(variant=variant, restart_every=4, complete=complete),
        bound=bound,
    )
    zeta = acc.sensitivity_squared(
        pattern, Tree(variant=variant, restart_every=4, complete=complete), bound=bound
    )
    assert plan.sensitivity_squared == zeta
    nodes = touched(plan.layout, pattern, bound)
    assert plan.guarantee.touched == nodes
    assert plan.delta_floor == support_floor(plan.noise_multiplier, zeta, nodes)
    assert plan.epsilon(1e-6) <= 2.0 < plan.epsilon(1e-6, neighbours="replace-one")
    assert plan.mu == pytest.approx(math.sqrt(zeta) / plan.noise_multiplier)
    exact = PrivacyPlan.calibrate(
        epsilon=2.0,
        delta=1e-6,
        clip_norm=0.5,
        participation=pattern,
        mechanism=Tree(variant=variant, restart_every=4, complete=complete),
    )
    assert plan.noise_multiplier <= exact.noise_multiplier


def test_epsilon_grows_with_participation():
    def epsilon(pattern, **options):
        return PrivacyPlan(1.0, 5.0, pattern, Tree(**options)).epsilon(1e-6)

    one, two = acc.MinSeparation(12, 1, 3), acc.MinSeparation(12, 2, 3)
    assert epsilon(acc.SinglePass(12)) == epsilon(one) < epsilon(two)
    assert epsilon(two, restart_every=6) < epsilon(two)


def test_the_sensitivity_is_computed_once(monkeypatch):
    calls = []

    def counted(*args, **options):
        calls.append(args)
        return squared_of(*args, **options)

    monkeypatch.setattr("dpftrl_fast.accounting.statement.statement.squared_of", counted)
    plan = PrivacyPlan.calibrate(
        epsilon=2.0,
        delta=1e-6,
        clip_norm=1.0,
        participation=acc.MinSeparation(9, 3, 2),
        mechanism=Tree(),
        bound="released",
    )
    plan.epsilon(1e-6), plan.delta(1.0), plan.describe(1e-6)
    assert len(calls) == 1
    guard, ledger, counting = plan.guard(), plan.ledger(), plan.ledger(realised=True)
    for each in (guard, ledger, counting):
        each.admit([1, 2])
    assert ledger.epsilon_spent(1e-6) == plan.epsilon(1e-6)
    assert counting.epsilon_spent(1e-6, realised=True) <= plan.epsilon(1e-6)
    louder = plan.with_noise(plan.noise_multiplier / 2, clip_norm=3.0)
    assert louder.with_noise(plan.noise_multiplier, clip_norm=1.0).mu == plan.mu < louder.mu
    assert louder == dataclasses.replace(
        plan, noise_multiplier=plan.noise_multiplier / 2, clip_norm=3.0
    )
    assert RunAccount(plan).epsilon(1e-6) == acc.compose([plan]).epsilon(1e-6)
    assert len(calls) == 1
    other = dataclasses.replace(plan, mechanism=Tree(restart_every=3))
    assert other.sensitivity_squared < plan.sensitivity_squared
    assert len(calls) == 2
    assert not {"_origin", "guarantee"} & {*plan.to_dict()}
    assert "_origin" not in repr(plan)


FULL = {
    "restarts and completion": {"mechanism": Tree("vanilla", restart_every=4, complete=True)},
    "all completed": {"mechanism": Tree("honaker", restart_every=5, complete="all")},
    "tree lengths": {"mechanism": Tree("honaker", tree_lengths=(3, 5, 4))},
    "lengths and completions": {
        "mechanism": Tree("vanilla", tree_lengths=(3, 5, 4), complete=(True, False, True))
    },
    "released": {"bound": "released"},
    "released, with completion": {
        "mechanism": Tree("vanilla", restart_every=4, complete=True),
        "bound": "released",
    },
    "no tree": {"mechanism": BandedInverse((1.0, -0.5), restart_every=4)},
}


@pytest.mark.parametrize("name", FULL)
def test_guards_and_ledgers_are_of_the_whole_plan(name):
    plan = PrivacyPlan(0.5, 2.5, acc.MinSeparation(12, 3, 4), **FULL[name])
    guard, ledger = plan.guard(), plan.ledger()
    trees = [[run.steps, run.count] for run in plan.layout.runs]
    declared = json.loads(guard.state_dict()["declaration"])
    assert declared == json.loads(
        declaration(plan.participation, plan.mechanism.layout(plan.steps))
    )
    if isinstance(plan.mechanism, Tree):
        assert [[steps, count] for steps, _, count in declared["trees"]] == trees
        assert [done for _, done, _ in declared["trees"]] == [
            run.completed for run in plan.layout.runs
        ]
    declared = json.loads(ledger.state_dict()["declaration"])
    assert (declared["noise_multiplier"], declared["bound"]) == (2.5, plan.bound)
    if isinstance(plan.mechanism, Tree):
        assert declared["variant"] == plan.mechanism.variant
    # The same ledger by hand, which computes its guarantee itself.
    own = acc.Ledger(plan.participation, 2.5, plan.mechanism, bound=plan.bound)
    assert own.state_dict()["declaration"] == ledger.state_dict()["declaration"]
    assert own.guarantee == ledger.guarantee == plan.guarantee
    assert ledger.epsilon(1e-6) == plan.epsilon(1e-6) == own.epsilon(1e-6)
    assert not (ledger.state_dict().keys() & {"values"})
    if isinstance(plan.mechanism, Tree):
        assert {"values", "node_counts"} <= plan.ledger(realised=True).state_dict().keys()


def test_a_ledgers_figure_is_computed_once_whoever_asks_first(monkeypatch):
    calls = []

    def counted(*args, **options):
        calls.append(args)
        return squared_of(*args, **options)

    monkeypatch.setattr("dpftrl_fast.accounting.statement.statement.squared_of", counted)
    plan = PrivacyPlan(1.0, 2.0, acc.MinSeparation(9, 3, 2))
    ledger = plan.ledger()
    assert not calls
    assert ledger.epsilon(1e-6) == plan.epsilon(1e-6)
    two = LeastSquaresPlan.calibrate(
        epsilon=2.0,
        delta=1e-6,
        x_norm_bound=1.0,
        y_bound=1.0,
        participation=acc.SinglePass(9),
        complete=False,
    )
    before = len(calls)
    two.epsilon(1e-6), two.covariance.epsilon(1e-6), two.bias.ledger().epsilon(1e-6)
    assert len(calls) == before == 2


def test_plans_compare_by_value():
    def plan(**options):
        return PrivacyPlan(
            1.0, 2.0, acc.FixedOrder([1, 2, 1]), **with_tree({"tree_lengths": [2, 1], **options})
        )

    assert plan(complete=[True, False]) == plan(complete=(True, False))
    assert hash(plan(complete=np.array([True, False]))) == hash(plan(complete=(True, False)))
    assert plan() != plan(bound="released")
    computed = plan()
    computed.epsilon(1e-6)
    assert computed == plan()


def test_a_plan_of_a_schedule():
    table = plan_schedule(
        2.0, 1e-6, steps_per_epoch=4, epochs=3, complete=(False, True, "all"), bound="released"
    )
    for row in table:
        plan = PrivacyPlan.from_schedule(row, clip_norm=0.5)
        assert plan.epsilon(row.delta) <= row.epsilon
        assert (plan.clip_norm, plan.bound, plan.mechanism) == (0.5, "released", row.mechanism)
        assert plan.layout == Tree(restart_every=row.restart_every, complete=row.complete).layout(
            12
        )
        assert plan.sensitivity_squared == row.sensitivity_squared
    exact = plan_schedule(2.0, 1e-6, steps_per_epoch=4, epochs=3, bound="exact").best
    plan = PrivacyPlan.from_schedule(exact, clip_norm=0.5)
    assert plan.bound == exact.bound == "exact"
    assert plan.sensitivity_squared == exact.sensitivity_squared
    for wrong in (None, {"noise_multiplier": 1.0}, table):
        with pytest.raises(TypeError, match="schedule must be a row of plan_schedule or plan"):
            PrivacyPlan.from_schedule(wrong, clip_norm=1.0)


def test_a_plan_of_a_row_of_mechanisms():
    pattern = acc.FixedEpochs(4, 5)
    table = acc.plan_mechanism(2.0, 1e-6, pattern, max_vectors=3)
    for row in table.rows:
        plan = PrivacyPlan.from_schedule(row, clip_norm=0.5)
        assert (plan.mechanism, plan.participation) == (row.mechanism, pattern)
        assert plan.sensitivity_squared == row.sensitivity_squared
        assert plan.epsilon(1e-6) <= 2.0
    sampled = dataclasses.replace(table.rows[0], needs_sampling=True)
    with pytest.raises(ValueError, match="must be a mechanism without sampling"):
        PrivacyPlan.from_schedule(sampled, clip_norm=1.0)


def test_very_many_trees():
    plan = PrivacyPlan(
        1.0, 2.0, acc.SinglePass(2**40), mechanism=Tree(restart_every=1, complete=True)
    )
    assert plan.sensitivity_squared == 1
    assert plan.layout.count == 2**40
    assert plan.noise(2, seed=1, dtype="float64").steps == 2**40


def test_computed_noise_costs_a_little_and_more_with_the_sums() -> None:
    plan = PrivacyPlan(1.0, 4.0, acc.SinglePass(1000))
    exact = plan.epsilon(1e-6)
    found = [plan.computed_epsilon(1e-6, d) for d in (1, 100, 10**4, 10**6)]
    assert exact < found[0] < found[1] < found[2] < found[3] < exact + 0.02
    other = plan.computed_epsilon(1e-6, 100, neighbours="replace-one")
    assert 0 < other - plan.epsilon(1e-6, neighbours="replace-one") < 0.001


def test_computed_noise_is_that_of_the_grid_of_the_plan() -> None:
    """The clip norm moves the grid by powers of two only."""
    added = {
        clip: PrivacyPlan(clip, 4.0, acc.SinglePass(1000)).computed_epsilon(1e-6, 10**4)
        for clip in (1.0, 2.0, 1.4, 1e-30)
    }
    assert added[1.0] == added[2.0] and added[1.0] < added[1.4]
    assert added[1e-30] - added[1.0] < 1e-3


@pytest.mark.parametrize(
    ("steps", "dimension", "sigma", "delta"),
    [(10**6, 10**9, 4.0, 1e-6), (1000, 100, 4.0, 1e-300), (1000, 100, 0.01, 1e-6)],
)
def test_no_epsilon_for_computed_noise_where_the_bound_is_of_no_use(
    steps: int, dimension: int, sigma: float, delta: float
) -> None:
    plan = PrivacyPlan(1.0, sigma, acc.SinglePass(steps))
    with pytest.raises(ValueError, match=r"no useful epsilon .* use fewer coordinates or steps"):
        plan.computed_epsilon(delta, dimension)


@pytest.mark.parametrize("dimension", [0, -1, 2**36 + 1, 1.5, True, "7"])
def test_dimensions_of_computed_noise_are_checked(dimension: object) -> None:
    plan = PrivacyPlan(1.0, 4.0, acc.SinglePass(10))
    with pytest.raises((TypeError, ValueError), match=r"dimension must be an integer"):
        plan.computed_epsilon(1e-6, dimension)  # type: ignore[arg-type]
