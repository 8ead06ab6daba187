# SPDX-License-Identifier: Apache-2.0
"""States of the torch optimisers and of the loader."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402
from dpftrl_runs import parameters, plan_of, run  # noqa: E402
from fuzzing import attempt, frozen, fuzz, mutated  # noqa: E402

from dpftrl_fast import PrivacyPlan, accounting  # noqa: E402
from dpftrl_fast.mechanisms import Tree  # noqa: E402
from dpftrl_fast.torch import DPFTRL, ResidualNoise  # noqa: E402
from dpftrl_fast.torch.loader import FixedOrderLoader  # noqa: E402

KEY = bytes(range(32))
TREES = plan_of(12, 1.0, mechanism=Tree(restart_every=5, complete=True))


def dpftrl(steps: int) -> Any:
    members = parameters()
    found = DPFTRL(members, 0.1, plan=TREES, batch_size=4, momentum=0.9, l1=1e-3, key=KEY)
    run(found, members, 0, min(steps, 5))
    found.param_groups[0]["lr"] = 0.05  # the states of the first steps are of a constant rate
    run(found, members, 5, steps)
    return found


def residual(steps: int) -> Any:
    members = parameters()
    found = ResidualNoise(members, plan=TREES, batch_size=4, key=KEY)
    for _ in range(steps):
        for p in members:
            p.grad = torch.ones_like(p)
        found.add_()
    return found


def arrays_of(value: Any) -> Any:
    """Tensors as arrays, which the mutations know; `tensors_of` is the way back."""
    if isinstance(value, torch.Tensor):
        return value.numpy().copy()
    if isinstance(value, dict):
        return {key: arrays_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(arrays_of(item) for item in value)
    return value


def tensors_of(value: Any, rng: random.Random) -> Any:
    if isinstance(value, np.ndarray) and rng.random() < 0.98:
        try:
            return torch.from_numpy(value.copy())
        except (TypeError, ValueError):
            return value
    if isinstance(value, dict):
        return {key: tensors_of(item, rng) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and len(value) < 100:
        return type(value)(tensors_of(item, rng) for item in value) if _flat(value) else value
    return value


def _flat(value: Any, depth: int = 0) -> bool:
    return depth < 20 and all(
        _flat(x, depth + 1) for x in value if isinstance(x, (list, tuple)) and x is not value
    )


@pytest.mark.parametrize("make", [dpftrl, residual])
def test_states_of_optimisers(make: Any) -> None:
    kept = [arrays_of(make(steps).state_dict(secrets=True)) for steps in (0, 1, 4, 6, 11)]
    kept += [make(steps).state_dict() for steps in (0, 3)]
    fresh = make(0)
    first = fresh.state_dict(secrets=True)
    after = make(3)

    def one(rng: random.Random) -> Any:
        nonlocal fresh
        state = tensors_of(mutated(rng.choice(kept), rng, kept), rng)
        held = fresh if rng.random() < 0.8 else after
        fork = rng.random() < 0.5
        result = attempt(
            lambda: held.load_state_dict(state, allow_fork=fork),
            snapshot=lambda: held.state_dict(secrets=True),
        )
        if not isinstance(result, Exception):
            attempt(held.state_dict)
            attempt(lambda: held.state_dict(secrets=True))
            if held is fresh:
                held.load_state_dict(first, allow_fork=True)
                if frozen(held.state_dict(secrets=True)) != frozen(first):
                    fresh = make(0)
        return result

    fuzz(f"torch: {make.__name__}", one)


def test_states_of_loaders() -> None:
    plan = PrivacyPlan(1.0, 2.0, accounting.FixedEpochs(5, 3), Tree(restart_every=5))
    data = torch.utils.data.TensorDataset(torch.zeros(10, 1))
    kept = []
    for seed, position in ((1, 0), (2, 3), (1, 7)):
        loader = FixedOrderLoader(data, 2, plan, order_seed=seed)
        loader._position = position
        kept.append(loader.state_dict())

    def one(rng: random.Random) -> Any:
        loader = FixedOrderLoader(data, 2, plan)
        state = mutated(rng.choice(kept), rng, kept)
        return attempt(lambda: loader.load_state_dict(state), snapshot=loader.state_dict)

    fuzz("loaders", one)
