# SPDX-License-Identifier: Apache-2.0
"""What a restart that the plan does not have costs: against lists of who took part where."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
    sensitivity_squared,
    sensitivity_squared_by_id,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.noise.tree import TreeNoise
from dpftrl_fast.run.account import RunAccount, _covers


def listed_trees(
    lengths: list[int], completed: list[bool], stretches: list[tuple[int, int]]
) -> tuple[list[int], list[bool]]:
    """Lengths and completions of the trees that stretches of a run have, step by step."""
    where = [(tree, leaf) for tree, n in enumerate(lengths) for leaf in range(1, n + 1)]
    out: list[int] = []
    whole: list[bool] = []
    for first, last in stretches:
        before = -1
        for tree, leaf in where[first - 1 : last]:
            if tree != before:
                out.append(0)
                whole.append(False)
                before = tree
            out[-1] += 1
            whole[-1] = completed[tree] and leaf == lengths[tree]
    return out, whole


def test_trees_between_are_the_plans_cut_at_both_ends() -> None:
    chance = random.Random(0)
    for _ in range(500):
        lengths = [chance.randint(1, 4) for _ in range(chance.randint(1, 6))]
        completed = [chance.random() < 0.5 for _ in lengths]
        steps = sum(lengths)
        trees = Tree(tree_lengths=lengths, complete=completed).layout(steps)
        first = chance.randint(1, steps)
        last = chance.randint(first, steps)
        cut, whole = listed_trees(lengths, completed, [(first, last)])
        assert trees.between(first, last) == Tree(tree_lengths=cut, complete=whole).layout(
            last - first + 1
        )
    for first, last in ((0, 1), (2, 1), (1, steps + 1)):
        with pytest.raises(IndexError):
            trees.between(first, last)


@pytest.mark.parametrize("complete", [False, True, "all"])
@pytest.mark.parametrize("epochs", [True, False])
def test_what_happened_is_at_least_what_each_id_did(epochs: bool, complete: bool) -> None:
    """The steps as they were really taken, in one list: its zeta, id by id, is at most ours."""
    chance = random.Random(1)
    tight = 0
    for _ in range(60):
        n, passes, every = chance.randint(2, 4), chance.randint(1, 4), chance.randint(1, 9)
        steps = n * passes
        ids = [(t % n) if epochs else chance.randrange(4) for t in range(steps)]
        pattern = FixedEpochs(n, passes) if epochs else FixedOrder(ids)
        plan = PrivacyPlan(
            1.0, 2.0, pattern, mechanism=Tree(restart_every=every, complete=complete)
        )
        account = RunAccount(plan)
        for _ in range(chance.randint(1, 3)):
            last = chance.randint(account.start, steps)
            step = chance.randint(account.start, min(last + 1, steps))
            account = account.recovered(last, step, accept_epsilon=(1e9, 1e-6))
        stretches = [*account.abandoned, (account.start, steps)]
        trees = plan.layout
        lengths = [trees.run_of(i).steps for i in range(trees.count)]
        completed = [trees.run_of(i).completed for i in range(trees.count)]
        cut, whole = listed_trees(lengths, completed, stretches)
        really = FixedOrder([ids[t - 1] for a, b in stretches for t in range(a, b + 1)])
        values = sensitivity_squared_by_id(really, Tree(tree_lengths=cut, complete=whole))[1]
        owed = account.happened.mu_squared * 4
        assert owed >= values.max()
        tight += owed <= values.max() * 1.0001
    assert tight > 5


def test_two_full_runs_where_an_id_can_be_in_both() -> None:
    plan = PrivacyPlan(1.0, 2.0, SinglePass(16))
    account = RunAccount(plan).recovered(16, 1, accept_epsilon=(99.0, 1e-6))
    assert account.happened.mu_squared == 2 * 5 / 4
    plan = PrivacyPlan(1.0, 2.0, MinSeparation(16, 2, 8))
    zeta = sensitivity_squared(plan.participation)
    account = RunAccount(plan).recovered(16, 9, accept_epsilon=(99.0, 1e-6))
    # The whole first run, and eight leaves of which an id has at most one.
    assert account.happened.mu_squared == (zeta + 4) / 4


@pytest.mark.parametrize(
    "plan",
    [
        PrivacyPlan(1.0, 2.0, SinglePass(20)),
        PrivacyPlan(1.0, 2.0, SinglePass(20), mechanism=Tree(restart_every=6, complete=True)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(4, 5), mechanism=Tree(restart_every=4, complete=True)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(4, 5), mechanism=Tree(restart_every=8, complete="all")),
        PrivacyPlan(1.0, 2.0, FixedEpochs(4, 5), mechanism=Tree(restart_every=8), bound="released"),
        PrivacyPlan(
            1.0, 2.0, FixedEpochs(4, 5), bound="released", mechanism=Tree(variant="vanilla")
        ),
        PrivacyPlan(1.0, 2.0, MinSeparation(20, 3, 5), mechanism=Tree(restart_every=10)),
    ],
    ids=str,
)
def test_spare_recoveries_cover_a_restart_within_a_tree_wherever_it_is(plan: PrivacyPlan) -> None:
    account = RunAccount(plan, spare_recoveries=1)
    stated = account.epsilon(1e-6)
    assert stated > plan.epsilon(1e-6)
    trees = plan.layout
    for step, last in itertools.combinations_with_replacement(range(1, 21), 2):
        if trees.locate(step)[0] == trees.locate(last)[0]:
            after = account.recovered(last, step)
            assert after.epsilon(1e-6) == stated >= after.happened.epsilon(1e-6)
    with pytest.raises(ValueError, match="steps 18 to 20 into a second tree, and 1 spare"):
        for _ in range(20):
            account = account.recovered(20, 18)
            assert account.happened.epsilon(1e-6) <= account.epsilon(1e-6) == stated


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(
    "pattern", [SinglePass(20), FixedEpochs(4, 5), MinSeparation(20, 3, 5)], ids=str
)
def test_spare_recoveries_cover_a_restart_within_a_block_of_any_mechanism(
    name: str, pattern: Participation
) -> None:
    plan = PrivacyPlan(1.0, 2.0, pattern, MECHANISMS[name])
    account = RunAccount(plan, spare_recoveries=1)
    stated = account.epsilon(1e-6)
    assert stated > plan.epsilon(1e-6)
    blocks = plan.layout
    for step, last in ((1, 1), (1, 3), (2, 4), (6, 6), (6, 7), (9, 12), (18, 20), (20, 20)):
        assert blocks.locate(step)[0] == blocks.locate(last)[0]
        after = account.recovered(last, step)
        assert after.epsilon(1e-6) == stated >= after.happened.epsilon(1e-6)
    if blocks.count == 1:
        account = account.recovered(20, 1)
        assert account.epsilon(1e-6) == stated
    with pytest.raises(ValueError, match="into a second tree, and 1 spare"):
        for _ in range(20):
            account = account.recovered(20, max(1, account.start))


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_noise_of_a_stretch_is_that_of_its_blocks(name: str) -> None:
    """After a recovery at step 6: fresh noise from the first step of a block on."""
    plan = PrivacyPlan(1.0, 3.0, SinglePass(11), MECHANISMS[name])
    account = RunAccount(plan).recovered(7, 6, accept_epsilon=(99.0, 1e-6))
    noise = account.noise(3, seed=1, dtype="float64")
    same = plan.noise(3, seed=1, dtype="float64")
    assert (noise.steps, noise.std) == (6, 3.0)
    assert np.array_equal(noise.step(), same.step())
    for step in range(7, 12):
        assert noise.t == step - 6 if plan.layout.count == 1 else noise.t <= 3
        last = noise.step()
        assert np.array_equal(noise.current(), last)
    with pytest.raises(ValueError, match="all 6 declared steps are taken"):
        noise.step()


def test_a_spare_recovery_costs_the_worst_tree_wherever_it_is() -> None:
    lengths = (4, 12, 4)
    pattern = FixedEpochs(4, 5)
    plan = PrivacyPlan(1.0, 2.0, pattern, mechanism=Tree(tree_lengths=lengths))
    account = RunAccount(plan, spare_recoveries=1)
    _, spare = account.guarantee.mechanisms
    worst = max(sensitivity_squared(FixedEpochs(4, -(-n // 4)), Tree()) for n in lengths)
    assert spare.sensitivity_squared == worst == sensitivity_squared(FixedEpochs(4, 3), Tree())
    for step, last in ((5, 16), (1, 4), (17, 20), (9, 12)):
        assert account.recovered(last, step).epsilon(1e-6) == account.epsilon(1e-6)


def test_a_spare_recovery_is_one_more_run_where_the_order_stays() -> None:
    pattern = FixedEpochs(4, 4, reshuffle=False)
    plan = PrivacyPlan(1.0, 2.0, pattern, mechanism=Tree(restart_every=4))
    account = RunAccount(plan, spare_recoveries=2)
    assert account.guarantee.mechanisms == 3 * plan.guarantee.mechanisms
    assert account.recovered(16, 1).epsilon(1e-6) == account.epsilon(1e-6)  # the whole run again


def test_spare_recoveries_are_cheap_where_trees_are_short() -> None:
    plan = PrivacyPlan(1.0, 8.0, FixedEpochs(100, 20), mechanism=Tree(restart_every=100))
    one_tree = sensitivity_squared(SinglePass(100))
    for spare in (0, 1, 3):
        stated = RunAccount(plan, spare_recoveries=spare).guarantee
        assert stated.mu_squared * 64 == 20 * one_tree + spare * one_tree
    with pytest.raises(ValueError, match="not covered"):
        RunAccount(plan, spare_recoveries=1).recovered(1999, 1)  # nearly all trees a second time


def test_a_restart_that_is_not_covered_is_refused_below_its_epsilon() -> None:
    plan = PrivacyPlan(1.0, 8.0, FixedEpochs(10, 4), mechanism=Tree(restart_every=10))
    account = RunAccount(plan)
    assert account.epsilon(1e-6) == plan.epsilon(1e-6)
    becomes = account.epsilon_after(25, 22, 1e-6)
    assert becomes > account.epsilon(1e-6)
    assert account.epsilon_after(25, 22, 1e-6, neighbours="replace-one") > becomes
    with pytest.raises(ValueError, match=r"this recovery is not covered: .* 22 to 25 .* 0 spare"):
        account.recovered(25, 22)
    for low in (np.nextafter(becomes, 0), 0.1):
        with pytest.raises(ValueError, match="accept_epsilon must be at least"):
            account.recovered(25, 22, accept_epsilon=(float(low), 1e-6))
    for wrong in ((float("nan"), 1e-6), (9.0, float("nan")), (9.0, 2.0)):
        with pytest.raises(ValueError, match="accepted"):
            account.recovered(25, 22, accept_epsilon=wrong)
    after = account.recovered(25, 22, accept_epsilon=(becomes, 1e-6))
    assert after.epsilon(1e-6) == becomes
    with pytest.raises(ValueError, match="not covered"):
        after.recovered(23, 23)  # what was accepted was that restart, not another
    with pytest.raises(ValueError, match="it begins another tree at step 26, and 0 spare"):
        account.recovered(25, 26)


def test_the_noise_of_a_stretch_restarts_where_the_plan_does() -> None:
    plan = PrivacyPlan(1.0, 3.0, SinglePass(11), mechanism=Tree(restart_every=4, complete=True))
    account = RunAccount(plan).recovered(7, 6, accept_epsilon=(99.0, 1e-6))
    noise = account.noise(3, seed=1, dtype="float64")
    assert (noise.steps, noise.std) == (6, 3.0)
    trees = []
    for _ in range(6):
        noise.step()
        trees.append((noise.tree, noise.t))
    assert trees == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
    with pytest.raises(ValueError, match="all 6 declared steps are taken"):
        noise.step()
    whole, same = RunAccount(plan).noise(3, seed=1), plan.noise(3, seed=1)
    assert all(np.array_equal(whole.step(), same.step()) for _ in range(11))


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
def test_current_noise_is_what_step_returned(variant: str, memory: str | int) -> None:
    plan = PrivacyPlan(
        1.0, 3.0, SinglePass(11), mechanism=Tree(variant=variant, restart_every=4, complete=True)
    )
    noise = plan.noise(5, memory=memory, dtype="float64")  # type: ignore[arg-type]
    assert noise.current().tolist() == [0.0] * 5
    for _ in range(11):
        last = noise.step()
        assert np.array_equal(noise.current(), last)


@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("purpose", ["tree", "covariance"])
def test_current_noise_between_two_trees(complete: bool, purpose: str) -> None:
    noise = TreeNoise(4, 1.0, purpose=purpose)  # type: ignore[arg-type]
    for steps in (3, 2, 1):
        for _ in range(steps):
            last = noise.step()
        noise.restart(complete)
        assert (noise.t, noise.tree) != (0, 0)
        assert np.array_equal(noise.current(), last)


def one(zeta: float, nodes: int, total: int, largest: int, **more: Any) -> Guarantee:
    mechanism = GaussianMechanism(1.0, zeta, Touched(nodes, total, largest))
    return Guarantee((mechanism,), **more)


STATED = one(11, 11, 100, 1)
# What is stated and what is owed: worse in one figure only, and better or equal in all others.
WORSE = {
    "mu": (STATED, one(12, 11, 50, 1)),
    "nodes": (STATED, one(11, 12, 50, 1)),
    "floor for zero-out": (one(11, 11, 50, 2), STATED),
    "floor for replace-one": (STATED, one(11, 11, 50, 2)),
}


@pytest.mark.parametrize("figure", WORSE)
def test_a_recovery_is_covered_only_where_every_figure_is(figure: str) -> None:
    def figures(of: Guarantee) -> dict[str, float]:
        kinds: tuple[Any, Any] = ("zero-out", "replace-one")
        floors = {f"floor for {kind}": of.floor(neighbours=kind) for kind in kinds}
        return {"mu": of.mu_squared, "nodes": of.touched.nodes, **floors}

    stated, owed = WORSE[figure]
    had, due = figures(stated), figures(owed)
    assert [name for name in had if had[name] < due[name]] == [figure]
    assert _covers(stated, stated) and _covers(owed, owed)
    assert not _covers(stated, owed)


def test_a_recovery_is_covered_only_where_the_other_guarantee_is_too() -> None:
    """The guarantee that is stated near the floor must cover what is owed there."""
    low = one(9, 9, 9, 1)
    stated = one(11, 11, 100, 1, otherwise=lambda: low)
    for owed, covered in ((low, True), (STATED, False), (one(9, 9, 9, 2), False)):
        assert _covers(stated, one(11, 11, 100, 1, otherwise=lambda owed=owed: owed)) is covered
    assert _covers(replace(stated, otherwise=None), STATED)


@pytest.mark.parametrize("spare", [1, 2, 3])
@pytest.mark.parametrize(
    "plan",
    [
        PrivacyPlan(1.0, 2.0, SinglePass(16)),
        PrivacyPlan(1.0, 2.0, MinSeparation(16, 2, 8), bound="released"),
        PrivacyPlan(1.0, 2.0, FixedEpochs(4, 4), mechanism=Tree(restart_every=4, complete=True)),
        PrivacyPlan(1.0, 2.0, FixedEpochs(4, 4, reshuffle=False)),
    ],
    ids=str,
)
def test_spare_recoveries_cover_so_many_and_no_more(plan: PrivacyPlan, spare: int) -> None:
    account = RunAccount(plan, spare_recoveries=spare)
    stated = account.guarantee
    assert len(stated.mechanisms) == 1 + spare
    assert stated.mu_squared > RunAccount(plan, spare_recoveries=spare - 1).guarantee.mu_squared
    for _ in range(spare):
        account = account.recovered(16, 13)
        assert account.guarantee.mu_squared == stated.mu_squared >= account.happened.mu_squared
        assert stated.touched.nodes >= account.happened.touched.nodes
    worst = RunAccount(PrivacyPlan(1.0, 2.0, SinglePass(1)), spare_recoveries=spare)
    for _ in range(spare):
        worst = worst.recovered(1, 1)
    with pytest.raises(ValueError, match=f"not covered: .* and {spare} spare recoveries"):
        worst.recovered(1, 1)


def test_nobody_in_a_stretch_owes_nothing() -> None:
    plan = PrivacyPlan(1.0, 2.0, FixedOrder([5, 5, -1, -1]))
    account = RunAccount(plan).recovered(4, 3, accept_epsilon=(99.0, 1e-6))
    assert account.happened.mu_squared == plan.sensitivity_squared / 4


def test_wrong_arguments() -> None:
    plan = PrivacyPlan(1.0, 2.0, SinglePass(10))
    with pytest.raises(TypeError, match="plan must be a PrivacyPlan, got int"):
        RunAccount(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="spare_recoveries"):
        RunAccount(plan, -1)
    for abandoned, start in (
        (((1, 11),), 1),
        (((0, 3),), 2),
        (((1, 4),), 6),  # step 5 would be in no stretch
        (((1, 10),), 11),  # no step is left
        ((), 2),
        (((3, 5),), 4),  # steps 1 and 2 would be in no stretch
        (((1, 5), (7, 8)), 7),
        (((1, 5), (4, 6)), 3),  # before the stretch that it goes on from
    ):
        with pytest.raises(ValueError, match="must be"):
            RunAccount(plan, 0, abandoned, start)
    for last, step in ((11, 1), (4, 6), (4, 0), (10, 11)):
        with pytest.raises(ValueError, match="must be"):
            RunAccount(plan).recovered(last, step)
