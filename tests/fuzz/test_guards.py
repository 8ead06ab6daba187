# SPDX-License-Identifier: Apache-2.0
"""States of guards and ledgers, plans, patterns, mechanisms, events and ids."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import attempt, fuzz, json_bytes, mutated, mutated_bytes, value_of
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import participation_from_dict
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.mechanisms import Tree, mechanism_from_dict
from dpftrl_fast.mechanisms.workload import Workload

PATTERNS = [
    accounting.SinglePass(9),
    accounting.FixedEpochs(3, 3),
    accounting.FixedEpochs(2, 4, reshuffle=False),
    accounting.MinSeparation(12, 3, 2),
    accounting.FixedOrder([1, 2, 3, 1, -1, 4]),
    accounting.FixedOrder.from_steps([[1, 5], [2], [], [1], [5, 5]]),
]
TREES = Tree(restart_every=3, complete=True)


# ---- Guards ----


MAKERS: list[Any] = [partial(Guard, pattern) for pattern in PATTERNS[:5]]
MAKERS += [partial(Ledger, PATTERNS[3], 2.0, TREES, realised=True)]
MAKERS += [partial(Ledger, PATTERNS[1], 2.0, TREES)]
MAKERS += [partial(Ledger, PATTERNS[0], 2.0, MECHANISMS["two taps"])]


def take_steps(guard: Any, steps: int) -> None:
    for step in range(steps):
        ids = guard.expected()
        guard.admit([10 * step + 1, 10 * step + 2] if ids is None else ids)


def test_states_of_guards() -> None:
    kept: list[list[dict[str, Any]]] = []
    for make in MAKERS:
        states = []
        for steps in (0, 1, 2, 4):
            guard = make()
            take_steps(guard, steps)
            states.append(guard.state_dict())
        states += [
            {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in s.items()}
            for s in states
        ]
        kept.append(states)
    everything = [state for states in kept for state in states]

    def one(rng: random.Random) -> Any:
        i = rng.randrange(len(kept))
        guard = MAKERS[i]()
        take_steps(guard, rng.choice((0, 0, 1, 2)))
        state = mutated(rng.choice(kept[i]), rng, everything)
        result = attempt(lambda: guard.load_state_dict(state), snapshot=guard.state_dict)
        if not isinstance(result, Exception):
            attempt(lambda: guard.load_state_dict(guard.state_dict()))
            attempt(lambda: guard.eligible([1, 2, 99]))
            if guard.steps_taken < guard.steps:
                attempt(lambda: take_steps(guard, 1))
            if hasattr(guard, "values"):
                attempt(guard.values)
        return result

    fuzz("guards", one)


def test_ids_of_a_step() -> None:
    def one(rng: random.Random) -> Any:
        guard = rng.choice(MAKERS)()
        take_steps(guard, rng.choice((0, 1)))
        ids = value_of(rng, plain=False) if rng.random() < 0.5 else mutated([1, 2, 3], rng)
        call = rng.choice((guard.admit, guard.eligible))
        return attempt(lambda: call(ids), snapshot=guard.state_dict)

    fuzz("ids", one)


# ---- Plans ----

PLANS = [
    PrivacyPlan(1.0, 2.0, pattern, mechanism)
    for pattern in PATTERNS[:5]
    for mechanism in (
        Tree(),
        MECHANISMS["two taps"],
        MECHANISMS["two buffers"],
        MECHANISMS["bands"],
    )
] + [
    PrivacyPlan(0.5, 3.0, PATTERNS[1], TREES),
    PrivacyPlan(1.0, 2.0, PATTERNS[0], Tree(tree_lengths=(4, 5))),
]
PLAIN_PLANS = [plan.to_dict() for plan in PLANS]
LEAST_SQUARES = [
    LeastSquaresPlan(1.0, 1.0, 13.0, PATTERNS[0]).to_dict(),
    LeastSquaresPlan(1.0, 2.0, 3.0, PATTERNS[3], complete=False, constant=1.0).to_dict(),
    LeastSquaresPlan(1.0, 2.0, 3.0, PATTERNS[0], mechanism=MECHANISMS["two taps"]).to_dict(),
]


def test_plans() -> None:
    def one(rng: random.Random) -> Any:
        plain = rng.random() < 0.5
        data = mutated(rng.choice(PLAIN_PLANS), rng, PLAIN_PLANS, plain=plain)
        result = attempt(lambda: PrivacyPlan.from_dict(data))
        if not isinstance(result, Exception):
            again = PrivacyPlan.from_dict(json.loads(json.dumps(result.to_dict())))
            assert again == result
        return result

    fuzz("plans", one)


def test_statements_of_odd_plans() -> None:
    def one(rng: random.Random) -> Any:
        data = mutated(rng.choice(PLAIN_PLANS), rng, PLAIN_PLANS, plain=True)
        plan = attempt(lambda: PrivacyPlan.from_dict(data))
        # Longer runs are as exact as short ones, and take longer than a fuzzer should.
        if isinstance(plan, Exception) or plan.steps > 10**4:
            return plan
        delta = value_of(rng, plain=True) if rng.random() < 0.5 else 1e-6
        return attempt(lambda: (plan.epsilon(delta), plan.describe(delta)))

    fuzz("statements", one, share=0.3)


def test_plans_of_least_squares() -> None:
    def one(rng: random.Random) -> Any:
        data = mutated(rng.choice(LEAST_SQUARES), rng, LEAST_SQUARES + PLAIN_PLANS)
        return attempt(lambda: LeastSquaresPlan.from_dict(data))

    fuzz("least-squares plans", one)


def test_files_of_plans(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    kept = [json.dumps(data, indent=2).encode() for data in PLAIN_PLANS]

    def one(rng: random.Random) -> Any:
        if rng.random() < 0.5:
            path.write_bytes(mutated_bytes(rng.choice(kept), rng, kept))
        else:
            data = mutated(rng.choice(PLAIN_PLANS), rng, PLAIN_PLANS, plain=True)
            path.write_bytes(json_bytes(data, rng))
        return attempt(lambda: PrivacyPlan.load(path))

    fuzz("files of plans", one)


def test_patterns_mechanisms_and_workloads() -> None:
    readers: list[tuple[Any, list[Any]]] = [
        (participation_from_dict, [pattern.to_dict() for pattern in PATTERNS]),
        (mechanism_from_dict, [mechanism.to_dict() for mechanism in MECHANISMS.values()]),
        (Workload.from_dict, [Workload().to_dict()]),
    ]
    everything = [data for _, kept in readers for data in kept]

    def one(rng: random.Random) -> Any:
        read, kept = rng.choice(readers)
        data = mutated(rng.choice(kept), rng, everything)
        return attempt(lambda: read(data))

    fuzz("patterns and mechanisms", one)


# ---- Numbers of the accounting, and events ----


def test_numbers_of_the_accounting() -> None:
    calls = [
        accounting.epsilon,
        accounting.delta,
        accounting.noise_multiplier,
        accounting.dp_event,
        accounting.sensitivity_squared,
    ]
    good: list[Any] = [1.0, 2.0, 1e-6, 4, 0.5, PATTERNS[0]]

    def one(rng: random.Random) -> Any:
        call = rng.choice(calls)
        count = 2 if call in (accounting.dp_event, accounting.sensitivity_squared) else 3
        args = [
            value_of(rng, plain=False) if rng.random() < 0.4 else rng.choice(good)
            for _ in range(count)
        ]
        if call is accounting.sensitivity_squared:
            args = args[:1]
        return attempt(lambda: call(*args))

    fuzz("numbers", one)
