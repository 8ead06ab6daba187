# SPDX-License-Identifier: Apache-2.0
"""A plan's first steps, and a plan with a later end."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech

STEPS = 9
MECHANISMS = {
    "tree": mech.Tree(),
    "vanilla": mech.Tree("vanilla"),
    "restarts": mech.Tree(restart_every=4),
    "completed": mech.Tree(restart_every=3, complete=True),
    "all completed": mech.Tree(restart_every=3, complete="all"),
    "vanilla, completed": mech.Tree("vanilla", restart_every=5, complete="all"),
    "lengths": mech.Tree(tree_lengths=[3, 3, 3], complete=[True, False, True]),
    "identity": mech.Identity(),
    "taps": mech.BandedInverse.square_root(4),
    "taps in blocks": mech.BandedInverse([1.0, -0.5], restart_every=4),
    "signed taps": mech.BandedInverse([1.0, 0.5, -0.25]),
    "bands": mech.BandedToeplitz([1.0, 0.5]),
    "buffers": mech.BufferedToeplitz([0.9, 0.5], [0.2, 0.25]),
    "buffers in blocks": mech.BufferedToeplitz([0.9], [0.5], restart_every=4),
}
PATTERNS = [
    acc.SinglePass(STEPS),
    acc.FixedEpochs(3, 3),
    acc.FixedEpochs(3, 3, reshuffle=False),
    acc.MinSeparation(STEPS, 3, 2),
    acc.FixedOrder([1, 2, 1, 3, 2, -1, 1, 4, 4]),
]


# ---- The outputs of a plan, as sums of independent normals ----


def tree_noise(layout):
    """Return the running sums' noise at each step: rows over all nodes of all trees."""
    rows, carry, nodes = [], {}, []

    def plus(x, y, weight=1.0):
        return {k: x.get(k, 0.0) + weight * y.get(k, 0.0) for k in {*x, *y}}

    def node(tree, level, index):
        name = (tree, level, index)
        if name not in nodes:
            nodes.append(name)
        own = {name: 1.0}
        if layout.variant == "vanilla" or level == 0:
            return own
        for child in (2 * index, 2 * index + 1):
            own = plus(own, node(tree, level - 1, child), 0.5)
        return own

    def prefix(tree, t):
        total = {}
        for level in range(t.bit_length()):
            if t >> level & 1:
                weight = 1.0 if layout.variant == "vanilla" else 1.0 / (2.0 - 0.5**level)
                total = plus(total, node(tree, level, (t >> level) - 1), weight)
        return total

    for tree in range(layout.count):
        run = layout.run_of(tree)
        rows += [plus(carry, prefix(tree, t)) for t in range(1, run.steps + 1)]
        carry = plus(carry, prefix(tree, run.end))
    return np.array([[row.get(name, 0.0) for name in nodes] for row in rows])


def noise_rows(layout):
    if isinstance(layout, mech.TreeLayout):
        return tree_noise(layout)
    steps = layout.steps
    residual = np.zeros((steps, steps))
    at = 0
    for block in range(layout.count):
        size = layout.run_of(block).steps
        column = layout.mechanism.inverse(size)
        for i in range(size):
            residual[at + i : at + size, at + i] = column[: size - i]
        at += size
    return np.cumsum(residual, axis=0)


def sets_of_uses(pattern, layout):
    """Yield the steps (from 0) that one id may take part in, with their multiplicities."""
    steps = range(pattern.steps)
    if isinstance(pattern, acc.SinglePass):
        yield from ([i] for i in steps)
    elif isinstance(pattern, acc.MinSeparation):
        for count in range(1, pattern.max_participations + 1):
            for uses in combinations(steps, count):
                if all(j - i >= pattern.min_separation for i, j in pairwise(uses)):
                    yield list(uses)
    elif isinstance(pattern, acc.FixedEpochs):
        period = pattern.steps_per_epoch
        blocks = layout.blocks_of(np.arange(pattern.steps))
        choices = layout.count if pattern.reshuffle else 1
        for places in product(range(period), repeat=choices):
            yield [i for i in steps if i % period == places[blocks[i] if choices > 1 else 0]]
    else:
        at = pattern.step_of_uses()
        for one in np.unique(pattern.ids):
            yield at[pattern.ids == one].tolist()


def true_zeta(plan, t):
    """Return the largest squared shift of the first t outputs, in units of their noise."""
    rows = noise_rows(plan.layout)[:t]
    precision = np.linalg.inv(rows @ rows.T)
    signed = isinstance(plan.mechanism, mech.BandedInverse)
    most = 0.0
    for uses in sets_of_uses(plan.participation, plan.layout):
        seen = [i for i in uses if i < t]
        for signs in product((1.0, -1.0), repeat=max(0, len(seen) - 1)) if signed else [()]:
            given = np.zeros(t)
            np.add.at(given, seen, [1.0, *signs][: len(seen)] if signed and seen else 1.0)
            shift = np.cumsum(given)
            most = max(most, float(shift @ precision @ shift))
    return most


# ---- The first steps ----


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_prefix_is_bounded(name, pattern):
    bounds = ("exact", "released")
    plans = [PrivacyPlan(1.0, 2.0, pattern, MECHANISMS[name], bound) for bound in bounds]
    before = {bound: 0.0 for bound in bounds}
    for t in range(1, STEPS + 1):
        truth = true_zeta(plans[0], t)
        for plan in plans:
            found = plan.guarantee_at(t).as_one()[1]
            assert found >= truth * (1 - 1e-9)
            figure = plan.epsilon_at(t, 1e-5)
            assert before[plan.bound] * (1 - 1e-12) <= figure <= plan.epsilon(1e-5)
            assert figure >= acc.epsilon(2.0, truth * (1 - 1e-9), 1e-5) if truth else True
            before[plan.bound] = figure
    for plan in plans:
        assert plan.epsilon_at(STEPS, 1e-5) == plan.epsilon(1e-5)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_single_pass_is_exact_at_every_prefix(name):
    """Not only bounded: no smaller zeta is true (of trees, of the released prefixes)."""
    if "completed" in name or name == "lengths":
        pytest.skip("a completion at t counts before it is read")
    plan = PrivacyPlan(1.0, 2.0, acc.SinglePass(STEPS), MECHANISMS[name], "released")
    for t in range(1, STEPS + 1):
        assert plan.guarantee_at(t).as_one()[1] == pytest.approx(true_zeta(plan, t), rel=1e-9)


def test_the_oracle_rejects_a_figure_that_is_too_small():
    plan = PrivacyPlan(1.0, 2.0, acc.SinglePass(STEPS), mech.Tree("vanilla"))
    assert true_zeta(plan, 8) > plan.guarantee_at(3).as_one()[1]


def test_a_stream_without_an_end_at_many_steps():
    plan = PrivacyPlan(1.0, 4.0, acc.SinglePass.unbounded(), mech.BufferedToeplitz.unbounded())
    figures = [plan.epsilon_at(2**n, 1e-6) for n in range(47)]
    assert figures == sorted(figures) and figures[-1] == plan.epsilon(1e-6)
    assert figures[0] < 0.5 * figures[-1] and figures[20] < 0.95 * figures[-1]
    assert plan.epsilon_at(100, 1e-6, neighbours="replace-one") > 2 * figures[6]


def test_an_order_without_anyone_at_first_has_the_figure_of_the_plan():
    plan = PrivacyPlan(1.0, 2.0, acc.FixedOrder([-1, -1, 3]), mech.Tree())
    assert plan.epsilon_at(2, 1e-5) == plan.epsilon(1e-5)


@pytest.mark.parametrize("t", [0, STEPS + 1, 1.0, None, True])
def test_steps_that_the_plan_does_not_have(t):
    plan = PrivacyPlan(1.0, 2.0, acc.SinglePass(STEPS))
    with pytest.raises((TypeError, ValueError), match="t must be an integer in \\[1, 9\\]"):
        plan.epsilon_at(t, 1e-5)


# ---- A later end ----

CONTINUED = {
    "tree": (mech.Tree(), acc.SinglePass(37), acc.SinglePass(100)),
    "vanilla": (mech.Tree("vanilla"), acc.SinglePass(64), acc.SinglePass(65)),
    "same": (mech.Tree(), acc.SinglePass(37), acc.SinglePass(37)),
    "restarts": (mech.Tree(restart_every=10), acc.SinglePass(25), acc.SinglePass(60)),
    "completed": (
        mech.Tree(restart_every=10, complete=True), acc.FixedEpochs(5, 5), acc.FixedEpochs(5, 9)
    ),
    "at a restart": (
        mech.Tree(restart_every=10, complete=True), acc.SinglePass(20), acc.SinglePass(45)
    ),
    "all completed": (
        mech.Tree(restart_every=10, complete="all"), acc.SinglePass(20), acc.SinglePass(40)
    ),
    "identity": (mech.Identity(), acc.SinglePass(20), acc.SinglePass(40)),
    "taps": (
        mech.BandedInverse.square_root(4), acc.MinSeparation(30, 2, 9), acc.MinSeparation(60, 5, 9)
    ),
    "bands": (mech.BandedToeplitz([1.0, 0.5]), acc.SinglePass(20), acc.SinglePass(40)),
    "buffers": (
        mech.BufferedToeplitz([0.75, 0.5], [0.25, 0.125]), acc.SinglePass(20), acc.SinglePass(2**20)
    ),
    "blocks": (
        mech.BufferedToeplitz([0.75], [0.25], restart_every=8), acc.SinglePass(20),
        acc.SinglePass(50),
    ),
    "order": (mech.Tree(), acc.FixedOrder([1, 2, 1]), acc.FixedOrder([1, 2, 1, 5, 2])),
}  # fmt: skip


@pytest.mark.parametrize("memory", ["stored", "regenerate"])
@pytest.mark.parametrize("name", CONTINUED)
def test_the_noise_continues_as_if_declared_from_the_start(name, memory):
    mechanism, now, later = CONTINUED[name]
    plan = PrivacyPlan(1.0, 2.0, now, mechanism)
    longer = plan.extended(later)
    assert longer == PrivacyPlan(1.0, 2.0, later, mechanism)
    assert longer.epsilon(1e-5) >= plan.epsilon(1e-5)
    options = {"dtype": "float64", "key": bytes(range(32)), "memory": memory, "threads": 1}
    whole, first = longer.noise(3, **options), plan.noise(3, **options)
    for _ in range(plan.steps):
        assert (first.step() == whole.step()).all()
    with pytest.raises(ValueError, match="declared steps are taken"):
        first.step()
    again = longer.noise(3, dtype="float64", memory=memory, threads=1)
    again.load_state_dict(first.state_dict())
    for _ in range(min(longer.steps - plan.steps, 40)):
        assert (again.step() == whole.step()).all()


@pytest.mark.parametrize("part", [3, 11, 19])
def test_a_state_from_the_middle_continues_too(part):
    mechanism, now, later = CONTINUED["completed"]
    plan = PrivacyPlan(1.0, 2.0, now, mechanism)
    options = {"dtype": "float64", "key": bytes(range(32)), "threads": 1}
    whole, first = plan.extended(later).noise(2, **options), plan.noise(2, **options)
    for _ in range(part):
        first.residual(), whole.residual()
    again = plan.extended(later).noise(2, dtype="float64", threads=1)
    again.load_state_dict(first.state_dict())
    for _ in range(45 - part):
        assert (again.residual() == whole.residual()).all()


CLOSED = "must leave the noise of the present"


@pytest.mark.parametrize(
    ("mechanism", "now", "later", "error", "words"),
    [
        (mech.Tree(complete="all"), acc.SinglePass(5), acc.SinglePass(9), ValueError, CLOSED),
        (
            mech.Tree(restart_every=10, complete="all"), acc.SinglePass(25), acc.SinglePass(60),
            ValueError, CLOSED,
        ),
        (
            mech.Tree(tree_lengths=[2, 3]), acc.SinglePass(5), acc.SinglePass(6), ValueError,
            "tree_lengths",
        ),
        (mech.Tree(), acc.SinglePass(5), acc.SinglePass(4), ValueError, "at least the 5 steps"),
        (
            mech.Tree(), acc.SinglePass(5), acc.MinSeparation(9, 1, 1), TypeError,
            "must be a longer SinglePass, got MinSeparation",
        ),
        (mech.Tree(), acc.SinglePass(5), 9, TypeError, "participation must be one of"),
        (
            mech.Tree(), acc.FixedEpochs(5, 2), acc.FixedEpochs(6, 2), ValueError,
            "must allow in its first 10 steps what FixedEpochs",
        ),
        (
            mech.Tree(), acc.FixedEpochs(5, 2), acc.FixedEpochs(5, 3, reshuffle=False), ValueError,
            "must allow in its first 10 steps",
        ),
        (
            mech.Tree(), acc.MinSeparation(9, 2, 3), acc.MinSeparation(20, 1, 3), ValueError,
            "must allow in its first 9 steps",
        ),
        (
            mech.Tree(), acc.MinSeparation(9, 2, 3), acc.MinSeparation(20, 2, 4), ValueError,
            "must allow in its first 9 steps",
        ),
        (
            mech.Tree(), acc.FixedOrder([1, 2]), acc.FixedOrder([1, 3, 2]), ValueError,
            "must allow in its first 2 steps",
        ),
    ],
)  # fmt: skip
def test_ends_that_cannot_be_moved(mechanism, now, later, error, words):
    plan = PrivacyPlan(1.0, 2.0, now, mechanism)
    with pytest.raises(error, match=words):
        plan.extended(later)


def test_a_longer_stretch_may_allow_more_uses():
    plan = PrivacyPlan(1.0, 2.0, acc.MinSeparation(9, 2, 3), mech.Tree())
    assert plan.extended(acc.MinSeparation(30, 5, 2)).participation.max_participations == 5


# ---- Neighbours ----


@pytest.mark.parametrize(("bad", "most"), [(np.nan, 1), (np.inf, 1), (1e300, 2), (-1e300, 2)])
def test_a_row_moves_the_released_sums_by_no_more_than_the_figure_says(bad, most):
    """The same noise, and one row replaced by a bad one: how far the normals of the noise move."""
    mechanism, steps, at = mech.BufferedToeplitz.unbounded(), 60, 7
    rows = np.random.default_rng(3).normal(size=(steps, 4))
    other = rows.copy()
    other[at] = bad
    released, seen = [], []
    for data in (rows, other):
        sums = PrefixSum(4, steps, 0.5, 1e-7, mechanism=mechanism, seed=4)  # a fine grid
        released.append(np.array([sums.add(row) for row in data]))
        seen.append((sums.t, repr(sums)))
    assert seen[0] == seen[1] and seen[0][0] == steps  # the slot is kept
    moved = np.diff(released[0] - released[1], axis=0, prepend=0.0)
    assert not moved[:at].any()
    column = mechanism.strategy(steps)
    before = np.subtract.outer(range(steps), range(steps))
    strategy = np.where(before >= 0, column[np.maximum(before, 0)], 0.0)
    shift = np.linalg.norm(strategy @ moved) / 0.5
    # A bad row counts as zero; an extreme one is clipped, and replaces another.
    limit = most * np.sqrt(acc.sensitivity_squared(acc.SinglePass(steps), mechanism))
    assert 0.5 * limit < shift <= limit * (1 + 1e-5)


def test_the_figure_for_computed_noise_needs_fewer_steps():
    plan = PrivacyPlan(1.0, 4.0, acc.SinglePass.unbounded(), mech.BufferedToeplitz.unbounded())
    with pytest.raises(ValueError, match=r"steps must be at most 2\^26"):
        plan.computed_epsilon(1e-6, 3)
