# SPDX-License-Identifier: Apache-2.0
"""What a restarted run owes, from the joint law of all that it gives out.

A run with restarts releases noisy sums, each a row of weights on independent nodes. With A the uses
behind each row and M its nodes, the run is one Gaussian mechanism with, over what an id may do,
mu^2 = max u^T A^T (M M^T)^-1 A u. That is computed here from the definition of the tree, row by
row, and knows nothing of stretches, counts under nodes, or sums of several zeta.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mechanism_cases import TOEPLITZ
from numpy.typing import NDArray
from toeplitz_oracle import strategy

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.mechanisms import BandedToeplitz, Mechanism, Tree
from dpftrl_fast.run.account import RunAccount

SIGMA = 50.0
Node = tuple[int, ...]  # stretch, tree, level, index
Use = tuple[int, int]  # stretch, step


def average(level: int, index: int, honaker: bool) -> Counter[Node]:
    """A node, or the average that ends in it: the mean over the two ways to know its sum."""
    found: Counter[Node] = Counter({(level, index): 1.0})  # type: ignore[dict-item]
    if honaker and level:
        for child in (2 * index, 2 * index + 1):
            for node, weight in average(level - 1, child, honaker).items():
                found[node] += weight / 2
    return found


def prefix(t: int, honaker: bool, place: tuple[int, int]) -> Counter[Node]:
    """The noise of step t of a tree, by nodes."""
    found: Counter[Node] = Counter()
    for level in range(t.bit_length()):
        if t >> level & 1:
            whole = 1 / (2 - 2.0**-level) if honaker else 1.0
            for node, weight in average(level, (t >> level) - 1, honaker).items():
                found[(*place, *node)] += whole * weight
    return found


def toeplitz_prefix(t: int, mechanism: Mechanism, place: tuple[int, int]) -> Counter[Node]:
    """The noise of step t of a block, by independent vectors: rows of C^-1, added up."""
    weights = np.linalg.inv(strategy(mechanism, [t])).sum(axis=0)
    return Counter({(*place, 0, i): w for i, w in enumerate(weights)})


def prefixes_of(plan: PrivacyPlan) -> Callable[[int, tuple[int, int]], Counter[Node]]:
    """The noise of a step of a block, of any mechanism."""
    mechanism = plan.mechanism
    if isinstance(mechanism, Tree):
        return lambda t, place: prefix(t, mechanism.variant == "honaker", place)
    return lambda t, place: toeplitz_prefix(t, mechanism, place)


def plus(a: Counter[Node], b: Counter[Node]) -> Counter[Node]:
    return Counter({node: a[node] + b[node] for node in {*a, *b}})


def released(plan: PrivacyPlan, account: RunAccount) -> list[tuple[Counter[Node], list[Use]]]:
    """Noise and uses behind each sum that leaves, in their order."""
    noise_at, runs = prefixes_of(plan), plan.layout
    stretches = [*account.abandoned, (account.start, plan.steps)]
    rows: list[tuple[Counter[Node], list[Use]]] = []
    noise: Counter[Node] = Counter()  # on the running sum, for good
    uses: list[Use] = []
    for s, (first, last) in enumerate(stretches):
        after = {first - 1: (noise, uses)}
        carry, tree, leaf = noise, None, 0
        for step in range(first, last + 1):
            here = plan.layout.locate(step)[0]
            if here != tree:
                if tree is not None:
                    completed = getattr(runs.run_of(tree), "completed", False)  # type: ignore
                    end = next(2**k for k in range(99) if 2**k >= leaf) if completed else leaf
                    carry = plus(carry, noise_at(end, (s, tree)))
                tree, leaf = here, 0
            leaf += 1
            uses = [*uses, (s, step)]
            after[step] = plus(carry, noise_at(leaf, (s, here))), uses
            rows.append(after[step])
        if s + 1 < len(stretches):
            noise, uses = after[stretches[s + 1][0] - 1]
    return rows


def gram(rows: list[tuple[Counter[Node], list[Use]]]) -> tuple[NDArray[np.float64], list[Use]]:
    """A^T (M M^T)^-1 A, and the uses that its rows are of."""
    nodes = sorted({node for noise, _ in rows for node in noise})
    uses = sorted({use for _, those in rows for use in those})
    m = np.array([[noise[node] for node in nodes] for noise, _ in rows])
    a = np.array([[float(use in those) for use in uses] for _, those in rows])
    half = np.linalg.solve(np.linalg.cholesky(m @ m.T), a)
    return half.T @ half, uses


def steps_of_an_id(plan: PrivacyPlan) -> Iterator[set[int]]:
    """All that the pattern allows one id to do, but for what it could do besides."""
    pattern, trees, steps = plan.participation, plan.layout, range(1, plan.steps + 1)
    if isinstance(pattern, SinglePass):
        yield from ({step} for step in steps)
    elif isinstance(pattern, MinSeparation):
        for count in range(1, pattern.max_participations + 1):
            for chosen in itertools.combinations(steps, count):
                if all(b - a >= pattern.min_separation for a, b in itertools.pairwise(chosen)):
                    yield set(chosen)
    elif isinstance(pattern, FixedOrder):
        for one in set(pattern.ids.tolist()):
            per_step = np.split(pattern.ids, pattern.offsets[1:-1])
            yield {step for step, ids in zip(steps, per_step, strict=True) if one in ids}
    else:
        n = pattern.steps_per_epoch
        deals = trees.count if pattern.reshuffle else 1
        for places in itertools.product(range(n), repeat=deals):
            yield {s for s in steps if (s - 1) % n == places[trees.locate(s)[0] % deals]}


def most(form: NDArray[np.float64]) -> float:
    """The largest value of a form over contributions of norm 1, of any sign."""
    if (form < -1e-9).any():
        signs = itertools.product((1.0, -1.0), repeat=len(form))
        return max(float(np.array(s) @ form @ np.array(s)) for s in signs)
    return float(form.sum())


#: One whose columns have negative inner products too.
CASES: dict[str, Mechanism] = {**TOEPLITZ, "signs": BandedToeplitz((1.0, -0.5, 0.25))}


def some_tree(chance: random.Random) -> Tree:
    return Tree(
        variant=chance.choice(["honaker", "vanilla"]),
        restart_every=chance.choice([None, 2, 3, 4, 5]),
        complete=chance.choice([False, True, "all"]),
    )


def some_plan(chance: random.Random, kind: str, mechanism: Mechanism | None = None) -> PrivacyPlan:
    least = 1 if mechanism is None else mechanism.bands  # type: ignore[attr-defined]
    while True:
        plan = _some_plan(chance, kind, mechanism or some_tree(chance), least)
        if plan is not None:
            return plan


def _some_plan(
    chance: random.Random, kind: str, mechanism: Mechanism, least: int
) -> PrivacyPlan | None:
    steps = chance.randint(1, 9)
    order = [0, *(chance.randrange(-1, 3) for _ in range(steps - 1))]
    chance.shuffle(order)
    patterns = {
        "pass": SinglePass(steps),
        "separation": MinSeparation(steps, chance.randint(1, 3), chance.randint(1, 4)),
        "order": FixedOrder(order),
        "epochs": FixedEpochs(chance.randint(1, 3), chance.randint(1, 3)),
        "one order": FixedEpochs(chance.randint(1, 3), chance.randint(1, 3), reshuffle=False),
    }
    pattern: Any = patterns[kind]
    if pattern.steps < least:
        return None
    bound = chance.choice(["exact", "released"])
    return PrivacyPlan(1.0, SIGMA, pattern, mechanism, bound)  # type: ignore[arg-type]


def restarted(plan: PrivacyPlan, chance: random.Random, times: int) -> RunAccount:
    account = RunAccount(plan)
    for _ in range(times):
        last = chance.randint(account.start, plan.steps)
        step = chance.randint(account.start, min(last + 1, plan.steps))
        account = account.recovered(last, step, accept_epsilon=(1e9, 1e-4))
    return account


KINDS = ["pass", "separation", "order", "epochs", "one order"]


@pytest.mark.parametrize("times", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_gives_away_more_than_it_owes(kind: str, times: int) -> None:
    chance = random.Random(f"{kind} {times}")
    tight = 0
    for _ in range(40):
        plan = some_plan(chance, kind)
        account = restarted(plan, chance, times)
        form, uses = gram(released(plan, account))
        owed = account.happened.mu_squared * SIGMA**2
        worst = 0.0
        for steps in steps_of_an_id(plan):
            mine = [i for i, (_, step) in enumerate(uses) if step in steps]
            worst = max(worst, most(form[np.ix_(mine, mine)]))
        assert worst <= owed * (1 + 1e-9), (plan, account.abandoned, account.start)
        tight += worst >= owed * (1 - 1e-9)
    assert tight > 4


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_of_a_toeplitz_mechanism_gives_away_more_than_it_owes(kind: str, name: str) -> None:
    chance = random.Random(f"{kind} {name}")
    tight = 0
    for times in (0, 1, 1, 2, 2, 3):
        plan = some_plan(chance, kind, CASES[name])
        account = restarted(plan, chance, times)
        form, uses = gram(released(plan, account))
        owed = account.happened.mu_squared * SIGMA**2
        worst = 0.0
        for steps in steps_of_an_id(plan):
            mine = [i for i, (_, step) in enumerate(uses) if step in steps]
            worst = max(worst, most(form[np.ix_(mine, mine)]))
        assert worst <= owed * (1 + 1e-9), (plan, account.abandoned, account.start)
        tight += worst >= owed * (1 - 1e-6)
    assert tight > 0


@pytest.mark.parametrize("kind", KINDS)
def test_no_id_shifts_more_nodes_than_are_counted(kind: str) -> None:
    """For the floor: nodes, the sum of their shifts and the largest, leaf by leaf."""
    chance = random.Random(kind)
    for _ in range(60):
        plan = some_plan(chance, kind)
        if plan.bound == "released" and plan.mechanism.variant == "honaker":
            continue  # the shift is another one there
        account = restarted(plan, chance, chance.randint(0, 2))
        rows = released(plan, account)
        leaves = {}
        for s, (first, last) in enumerate([*account.abandoned, (account.start, plan.steps)]):
            count: Counter[int] = Counter()
            for step in range(first, last + 1):
                tree = plan.layout.locate(step)[0]
                count[tree] += 1
                leaves[s, step] = (s, tree, count[tree] - 1)
        nodes = {node for noise, _ in rows for node in noise}
        touched = [one.touched for one in account.happened.mechanisms]
        for steps in steps_of_an_id(plan):
            mine = [leaf for (_, step), leaf in leaves.items() if step in steps]
            shifts = [
                n
                for *place, level, index in nodes
                if (n := sum(list(at) == place and leaf >> level == index for *at, leaf in mine))
            ]
            assert len(shifts) <= sum(each.nodes for each in touched)
            assert sum(shifts) <= sum(each.total for each in touched)
            assert max(shifts, default=0) <= max(each.largest for each in touched)
