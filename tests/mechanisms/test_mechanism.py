# SPDX-License-Identifier: Apache-2.0
"""Mechanisms as values: a tree's fields and dictionary, and a mechanism that is not a tree.

`Independent` below is a mechanism of a test: fresh noise for each step, in blocks of a fixed
length. It is defined and registered in this file alone; plans, guards, ledgers, accounts of
recoveries, budgets and files must work with it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, touched
from dpftrl_fast.accounting.sensitivity.squared import squared_of
from dpftrl_fast.mechanisms import Mechanism, Tree, TreeLayout, mechanism_from_dict
from dpftrl_fast.mechanisms.mechanism import register_kind
from dpftrl_fast.mechanisms.run_error import per_step_std
from dpftrl_fast.plan.planned_noise import PlannedTree, source_of
from dpftrl_fast.run import RunAccount


@dataclasses.dataclass(frozen=True)
class Blocks:
    steps: int
    length: int

    @property
    def count(self) -> int:
        return -(-self.steps // self.length)

    @property
    def least_std(self) -> float:
        return 1.0

    @property
    def largest_std(self) -> float:
        return 8.0

    @property
    def noise_limits(self) -> tuple[int, int]:
        return self.steps, self.steps

    @property
    def released_spreads(self) -> bool:
        return False

    def locate(self, step: int) -> tuple[int, int]:
        return (step - 1) // self.length, (step - 1) % self.length + 1

    def steps_before(self, block: int) -> int:
        return min(block * self.length, self.steps)

    def blocks_of(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        return steps // self.length

    def blocks(self) -> Iterator[tuple[Blocks, int]]:
        full, rest = divmod(self.steps, self.length)
        if full:
            yield Blocks(self.length, self.length), full
        if rest:
            yield Blocks(rest, self.length), 1

    def between(self, first: int, last: int) -> Blocks:
        return Blocks(last - first + 1, self.length)

    def describe(self) -> str:
        return f"independent noise in blocks of {self.length}"

    def declaration(self) -> dict[str, Any]:
        return {"blocks": [self.steps, self.length]}

    def noise_declaration(self) -> dict[str, Any]:
        return {}


@dataclasses.dataclass(frozen=True)
class Independent:
    length: int

    any_length = True

    def layout(self, steps: int) -> Blocks:
        return Blocks(steps, self.length)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "independent", "length": self.length}


class IndependentNoise:
    def __init__(self, size: int, std: float, *, layout: Blocks, seed: Any, **options: Any) -> None:
        self.steps, self._size, self._std = layout.steps, size, std
        self._generator = np.random.default_rng(seed)

    def step(self) -> NDArray[np.float64]:
        return self._generator.normal(0.0, self._std, self._size)


@pytest.fixture(autouse=True, scope="module")
def registered() -> None:
    def from_dict(d: Mapping[str, Any]) -> Mechanism:
        return Independent(d["length"])

    register_kind("independent", from_dict)
    squared_of.register(Blocks, lambda layout, pattern, bound: pattern.most_uses())
    touched.register(
        Blocks, lambda layout, pattern, bound="exact": Touched(*[pattern.most_uses()] * 2, 1)
    )
    per_step_std.register(
        Blocks, lambda layout, workload: np.sqrt(np.arange(1.0, layout.steps + 1))
    )
    source_of.register(Blocks, lambda layout: IndependentNoise)


PLAN = PrivacyPlan(0.5, 5.0, acc.MinSeparation(24, 3, 6), Independent(6))


def test_a_mechanism_that_is_not_a_tree_states_an_epsilon() -> None:
    assert PLAN.sensitivity_squared == 3
    assert PLAN.mu == pytest.approx(math.sqrt(3) / 5.0)
    calibrated = PrivacyPlan.calibrate(
        epsilon=2.0, delta=1e-6, clip_norm=0.5, participation=PLAN.participation,
        mechanism=PLAN.mechanism, bound="released",
    )  # fmt: skip
    assert calibrated.epsilon(1e-6) <= 2.0 < calibrated.epsilon(1e-6) * (1 + 1e-12)
    assert "; independent noise in blocks of 6\n" in PLAN.describe(1e-6)
    assert acc.sensitivity_squared(PLAN.participation, PLAN.mechanism) == 3
    ledger = acc.Ledger(PLAN.participation, 5.0, PLAN.mechanism)
    assert ledger.epsilon_spent(1e-6) == PLAN.epsilon(1e-6)
    with pytest.raises(TypeError, match="no realised values"):
        PLAN.ledger(realised=True)
    most = acc.largest_steps(
        PLAN.epsilon(1e-6), 1e-6, 5.0, max_participations=9, min_separation=2,
        mechanism=PLAN.mechanism,
    )  # fmt: skip
    assert most == 6


def test_its_noise_guard_and_error() -> None:
    noise = PLAN.noise(1000, seed=1)
    assert type(noise) is IndependentNoise and noise.steps == 24
    assert np.std(noise.step()) == pytest.approx(2.5, rel=0.1)
    guard = PLAN.guard()
    guard.admit([4])
    again = PLAN.guard()
    again.load_state_dict(guard.state_dict())
    assert again.eligible([4, 5]).tolist() == [False, True]
    np.testing.assert_allclose(acc.noise_std(9, PLAN.mechanism).prefix ** 2, np.arange(1, 10))


def test_a_recovery_adds_the_epsilon_of_its_stretches() -> None:
    account = RunAccount(PLAN)._after(last=10, step=8)
    parts = [
        PrivacyPlan(0.5, 5.0, acc.MinSeparation(steps, 3, 6), Independent(6)) for steps in (10, 17)
    ]
    assert account.epsilon(1e-6) == acc.compose(parts).epsilon(1e-6)
    epochs = PrivacyPlan(0.5, 5.0, acc.FixedEpochs(6, 4), Independent(6))
    assert RunAccount(epochs, spare_recoveries=1).mu > epochs.mu


def test_its_dictionary_and_file() -> None:
    written = PLAN.to_dict()
    assert (written["version"], written["mechanism"]) == (3, PLAN.mechanism.to_dict())
    assert PrivacyPlan.from_dict(json.loads(json.dumps(written))) == PLAN
    with pytest.raises(ValueError, match=r"mechanism kind must be one of .*, got 'other'"):
        PrivacyPlan.from_dict({**written, "mechanism": {"kind": "other"}})
    with pytest.raises(TypeError, match="mechanism must be a mapping, got str"):
        PrivacyPlan.from_dict({**written, "mechanism": "tree"})


# ---- The tree ----


@pytest.mark.parametrize(
    "tree",
    [
        Tree(),
        Tree("vanilla", restart_every=7, complete="all"),
        Tree(tree_lengths=np.array([3, 2]), complete=[True, False]),  # type: ignore[arg-type]
    ],
)
def test_a_tree_is_read_back(tree: Tree) -> None:
    d = json.loads(json.dumps(tree.to_dict()))
    assert d["kind"] == "tree"
    for again in (Tree.from_dict(d), mechanism_from_dict(d)):
        assert again == tree and hash(again) == hash(tree)
    assert isinstance(tree, Mechanism)
    assert tree.any_length is (tree.tree_lengths is None)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"kind": "other"}, ValueError, "a tree must have exactly the keys"),
        ({"more": 1}, ValueError, "a tree must have exactly the keys .*, got .*'more'"),
        ({"variant": "other"}, ValueError, "variant must be one of"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
    ],
)
def test_a_broken_dictionary_of_a_tree(change: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Tree.from_dict({**Tree().to_dict(), **change})
    with pytest.raises(TypeError, match="a tree must be a mapping, got list"):
        Tree.from_dict([])  # type: ignore[arg-type]


def test_numbers_become_plain_ones_and_the_value_is_frozen() -> None:
    tree = Tree(restart_every=np.int32(5), complete=np.True_)  # type: ignore[arg-type]
    assert type(tree.restart_every) is int and tree.complete is True
    assert isinstance(tree.layout(12), TreeLayout)
    with pytest.raises(dataclasses.FrozenInstanceError):
        tree.variant = "vanilla"  # type: ignore[misc]


def test_planned_noise_is_that_of_the_tree() -> None:
    assert source_of(Tree().layout(3)) is PlannedTree
    with pytest.raises(TypeError, match="no noise is registered for layouts of type int"):
        source_of(3)
    for unregistered in (squared_of, touched):
        with pytest.raises(TypeError, match="registered for layouts of type int"):
            unregistered(3, acc.SinglePass(3), "exact")
