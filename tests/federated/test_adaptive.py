# SPDX-License-Identifier: Apache-2.0
"""A clip norm from a quantile: its steps, its sensitivity and its noise."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.accounting.curve.gaussian import epsilon as gaussian_epsilon
from dpftrl_fast.federated import AdaptiveClipping, PrivateRounds, ServerDPFTRL
from dpftrl_fast.federated.adaptive_clipping import ClipNorm
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.sums.running_sum import block_key, block_noise
from dpftrl_fast.mechanisms import Tree

KEY = bytes(range(32))
EPOCHS = PrivacyPlan(1.0, 2.0, FixedEpochs(3, 4), mechanism=Tree(restart_every=3))


def plan_of(pattern: Any, **trees: Any) -> PrivacyPlan:
    return PrivacyPlan(1.0, 2.0, pattern, **trees)


# ---- The sensitivity ----


def uses_by_tree(plan: PrivacyPlan, steps: Any) -> list[int]:
    """Squares of the uses in each tree, the last one left out."""
    counts = [0] * plan.layout.count
    for step in steps:
        counts[plan.layout.locate(step)[0]] += 1
    return counts[:-1]


def brute(plan: PrivacyPlan) -> int:
    """Largest sum of squares over every pattern of one user."""
    pattern, most = plan.participation, 0
    for size in range(plan.steps + 1):
        for steps in combinations(range(1, plan.steps + 1), size):
            gaps = [b - a for a, b in pairwise(steps)]
            if isinstance(pattern, SinglePass):
                allowed = size <= 1
            elif isinstance(pattern, MinSeparation):
                allowed = size <= pattern.max_participations and all(
                    gap >= pattern.min_separation for gap in gaps
                )
            else:
                allowed = all(gap % pattern.steps_per_epoch == 0 for gap in gaps)
            if allowed:
                most = max(most, sum(n * n for n in uses_by_tree(plan, steps)))
    return most


@pytest.mark.parametrize("trees", [{"restart_every": 4}, {"tree_lengths": [5, 1, 4, 2]}])
@pytest.mark.parametrize("complete", [False, True])
def test_zeta_against_every_pattern(trees: dict[str, Any], complete: bool) -> None:
    clipping = AdaptiveClipping(noise_multiplier=2.0)
    for pattern in (
        SinglePass(12),
        FixedEpochs(4, 3, reshuffle=False),
        FixedEpochs(2, 6, reshuffle=False),
        *(MinSeparation(12, e, b) for e in (1, 2, 3, 5, 12) for b in (1, 2, 3, 5)),
    ):
        plan = plan_of(pattern, mechanism=Tree(complete=complete, **trees))
        zeta, exact = clipping.sensitivity_squared(plan), brute(plan)
        assert zeta >= exact
        if not isinstance(pattern, FixedEpochs) and (
            isinstance(pattern, SinglePass) or pattern.min_separation == 1
        ):
            assert zeta == exact


@pytest.mark.parametrize("trees", [{"restart_every": 3}, {"tree_lengths": [1, 4, 2]}])
def test_zeta_against_every_way_to_take_part_that_is_let_in(trees: dict[str, Any]) -> None:
    """Which rounds one user can be in is asked of `Cohorts`, round by round."""

    def let_in(plan: PrivacyPlan, steps: Any) -> bool:
        cohorts = Cohorts(plan)
        for step in range(1, plan.steps + 1):
            cohort = cohorts.choose(["user"] if step in steps else [])
            if len(cohort.clients) < (step in steps):
                return False
            cohorts.record(cohort.members)
        return True

    for pattern in (
        SinglePass(7),
        FixedEpochs(1, 7),
        FixedEpochs(7, 1),
        MinSeparation(7, 7, 1),
        MinSeparation(7, 2, 2),
    ):
        plan, found = plan_of(pattern, mechanism=Tree(**trees)), 0
        for chosen in range(2**7):
            steps = [step for step in range(1, 8) if chosen >> (step - 1) & 1]
            uses = uses_by_tree(plan, steps)
            if sum(n * n for n in uses) > found and let_in(plan, steps):
                found = sum(n * n for n in uses)
        assert AdaptiveClipping(noise_multiplier=2.0).sensitivity_squared(plan) == found


def test_zeta_of_every_listed_order_against_counting() -> None:
    generator = np.random.default_rng(7)
    for _ in range(50):
        steps = [generator.integers(0, 4, generator.integers(0, 5)).tolist() for _ in range(9)]
        plan = plan_of(FixedOrder.from_steps(steps), mechanism=Tree(tree_lengths=[3, 1, 4, 1]))
        found = 0
        for user in range(4):
            uses = [number for number, ids in enumerate(steps, 1) for i in ids if i == user]
            found = max(found, sum(n * n for n in uses_by_tree(plan, uses)))
        assert AdaptiveClipping(2.0).sensitivity_squared(plan) == max(found, 1)


def test_zeta_of_reshuffled_epochs_takes_each_tree_at_its_worst() -> None:
    clipping = AdaptiveClipping(noise_multiplier=2.0)
    assert clipping.sensitivity_squared(EPOCHS) == 3
    plan = plan_of(
        FixedEpochs(3, 4), mechanism=Tree(restart_every=5)
    )  # two of a place in a tree of 5
    assert clipping.sensitivity_squared(plan) == 4 + 4
    assert (
        clipping.sensitivity_squared(plan_of(FixedEpochs(3, 4), mechanism=Tree(restart_every=6)))
        == 4
    )


def test_zeta_of_a_listed_order() -> None:
    clipping = AdaptiveClipping(noise_multiplier=2.0)
    order = FixedOrder.from_steps([[1, 2], [1, 3], [2], [1, 2], [], [4, 4, 4, 4, 4, 4]])
    plan = plan_of(order, mechanism=Tree(restart_every=2))
    assert clipping.sensitivity_squared(plan) == max(2**2 + 1, 1 + 2**2, 1)
    touched = clipping.guarantee(plan).touched
    assert (touched.nodes, touched.total, touched.largest) == (2, 3, 2)
    nobody = plan_of(FixedOrder.from_steps([[], [], [], [7]]), mechanism=Tree(restart_every=2))
    assert clipping.sensitivity_squared(nobody) == 1


def test_one_tree_is_refused() -> None:
    clipping = AdaptiveClipping(noise_multiplier=2.0)
    plan = plan_of(SinglePass(5))
    for call in (clipping.sensitivity_squared, clipping.guarantee, clipping.composition):
        with pytest.raises(ValueError, match="must have a plan with restarts"):
            call(plan)
    with pytest.raises(ValueError, match="must have a plan with restarts"):
        PrivateRounds([np.zeros(2)], plan=plan, report_goal=1, clipping=clipping)


def test_what_is_stated_is_both_together() -> None:
    clipping = AdaptiveClipping(noise_multiplier=5.0)
    rounds = PrivateRounds([np.zeros(2)], plan=EPOCHS, report_goal=1, clipping=clipping)
    mu_squared = EPOCHS.sensitivity_squared / 2.0**2 + 3 / 5.0**2
    assert clipping.composition(EPOCHS).mu_squared == pytest.approx(mu_squared, rel=1e-12)
    want = gaussian_epsilon(1.0, mu_squared, 1e-6)
    assert rounds.epsilon(1e-6) == pytest.approx(want, rel=1e-4)
    assert rounds.epsilon(1e-6) > EPOCHS.epsilon(1e-6)
    four = gaussian_epsilon(1.0, 4 * mu_squared, 1e-6)
    assert rounds.epsilon(1e-6, neighbours="replace-one") == pytest.approx(four, rel=1e-4)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"noise_multiplier": 0.0}, ValueError, "noise_multiplier must be a finite number > 0"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier must be a finite number"),
        ({"quantile": 1.5}, ValueError, r"quantile must be a finite number in \[0, 1\], got 1.5"),
        ({"quantile": math.nan}, ValueError, "quantile must be a finite number"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be a finite number > 0"),
        ({"learning_rate": True}, TypeError, "learning_rate must be a finite number > 0, got bool"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        AdaptiveClipping(**{"noise_multiplier": 1.0, **wrong})


def test_clip_norms_whose_noise_a_float32_cannot_hold_are_refused_at_the_beginning() -> None:
    plan = PrivacyPlan(1e-36, 1.0, SinglePass(4), mechanism=Tree(restart_every=2))
    clipping = AdaptiveClipping(noise_multiplier=1.0)
    with pytest.raises(ValueError, match="std must be a finite, normal number"):
        PrivateRounds([np.zeros(2)], plan=plan, report_goal=1, clipping=clipping)
    PrivateRounds([np.zeros(2)], plan=plan, report_goal=1, clipping=clipping, dtype="float64")


# ---- The estimate ----


def test_a_client_moves_the_sum_of_bits_by_a_half_a_use() -> None:
    """Half a unit for a bit that is dropped, a whole one for another's in its place."""
    norms = [0.5, 2.0, 0.9, 1.0, 1.0 + 1e-6]

    def bits(updates: list[float | None]) -> float:
        clipping = AdaptiveClipping(noise_multiplier=5.0)
        rounds = PrivateRounds([np.zeros(1)], plan=EPOCHS, report_goal=1, clipping=clipping)
        now = rounds.begin_round(range(len(updates)))
        for i, norm in enumerate(updates):
            if norm is not None:
                now.add(i, [np.array([norm])])
        rounds.end_round()
        assert rounds._sums._clip is not None
        return rounds._sums._clip._bits / 2

    whole = bits(list(norms))
    assert whole == 0.5 * (3 - 2)
    for i in range(5):
        without = [*norms[:i], None, *norms[i + 1 :]]
        assert abs(bits(without) - whole) == 0.5
        assert abs(bits([*norms[:i], 10.0, *norms[i + 1 :]]) - whole) in (0.0, 1.0)
        assert bits([*norms[:i], math.nan, *norms[i + 1 :]]) == bits(without)


def test_the_norm_after_a_tree_is_that_of_the_formula() -> None:
    clipping = AdaptiveClipping(noise_multiplier=3.0, quantile=0.8, learning_rate=0.5)
    rounds = PrivateRounds(
        [np.zeros(1)], plan=EPOCHS, report_goal=4, clipping=clipping, key=KEY, threads=1
    )
    norms, counted = [1.0], 0.0
    for number in range(1, 13):
        now = rounds.begin_round([f"{(number - 1) % 3}-{i}" for i in range(4)])
        for i, client in enumerate(now.cohort):
            size = 0.3 * (i + 1) * number**0.5
            assert now.add(client, [np.array([size])]) is None
            counted += 0.5 if size <= norms[-1] else -0.5
        rounds.end_round()
        if number % 3:
            assert rounds.clip_norm == pytest.approx(norms[-1])  # changes at restarts only
            continue
        if number == 12:  # the last tree is not read
            assert rounds.clip_norm == pytest.approx(norms[-1])
            break
        noise = reading(KEY, number // 3 - 1, 3.0)
        fraction = min(1.0, max(0.0, 0.5 + (counted + noise) / (4 * 3)))
        norms.append(norms[-1] * math.exp(-0.5 * (fraction - 0.8)))
        assert rounds.clip_norm == pytest.approx(norms[-1], rel=1e-11)
        counted = 0.0
    assert len({*norms}) == 4


def reading(key: bytes, tree: int, noise_multiplier: float) -> float:
    """The noise of one reading, taken from the norm that it leads to."""
    clipping = AdaptiveClipping(noise_multiplier=noise_multiplier, learning_rate=1e-3)
    clip = ClipNorm(
        plan_of(SinglePass(2**20), mechanism=Tree(restart_every=2**10)), clipping, 1, key
    )
    clip.block = tree
    clip.next_block()
    return -math.log(clip.value) / 1e-3 * 2**10


def test_the_noise_of_the_readings_is_gaussian_of_half_the_multiplier() -> None:
    found = np.array(
        [reading(i.to_bytes(32, "big"), tree, 8.0) for i in range(400) for tree in range(5)]
    )
    assert abs(np.mean(found**2) / 4.0**2 - 1) < 5 * math.sqrt(2 / found.size)
    assert not abs(np.mean(found**2) / 3.5**2 - 1) < 5 * math.sqrt(2 / found.size)
    assert abs(found.mean()) < 5 * 4.0 / math.sqrt(found.size)
    by_tree = np.corrcoef(found.reshape(400, 5).T)
    assert np.abs(by_tree - np.eye(5)).max() < 5 / math.sqrt(400)


def test_the_norm_finds_the_quantile() -> None:
    plan = PrivacyPlan(0.01, 1e-3, FixedEpochs(2, 60), mechanism=Tree(restart_every=2))
    generator = np.random.default_rng(5)
    for quantile in (0.3, 0.8):
        clipping = AdaptiveClipping(noise_multiplier=4.0, quantile=quantile, learning_rate=0.5)
        rounds = PrivateRounds(
            [np.zeros(1)], plan=plan, report_goal=50, clipping=clipping, key=KEY, threads=1
        )
        for number in range(120):
            now = rounds.begin_round(range(50 * (number % 2), 50 * (number % 2) + 50))
            for client in now.cohort:
                now.add(client, [generator.uniform(0, 2, 1)])
            rounds.end_round()
        assert rounds.clip_norm == pytest.approx(2 * quantile, abs=0.25)


def test_the_norm_stays_in_its_range() -> None:
    plan = plan_of(SinglePass(8), mechanism=Tree(restart_every=2))
    clipping = AdaptiveClipping(noise_multiplier=1e-3, quantile=0.0, learning_rate=1e6)
    clip = ClipNorm(plan, clipping, 1, KEY)
    clip.count(2)
    clip.next_block()
    assert clip.value == clip.range[0] == 2.0**-20
    clip = ClipNorm(plan, AdaptiveClipping(1e-3, 1.0, 1e6), 1, KEY)
    clip.count(-2)
    clip.next_block()
    assert clip.value == clip.range[1] == 2.0**20


# ---- The noise of the model ----


def model_noise(
    plan: PrivacyPlan, clipping: AdaptiveClipping, size: int, dtype: Any = "float32"
) -> tuple[list[NDArray[np.float64]], list[float]]:
    """What leaves a run in which nobody takes part, and the clip norms of its rounds."""
    rounds = PrivateRounds(
        [np.zeros(size)], plan=plan, report_goal=1, clipping=clipping, key=KEY, dtype=dtype
    )
    left, norms = [], []
    for _ in range(plan.steps):
        norms.append(rounds.clip_norm)
        rounds.begin_round([])
        left.append(rounds.end_round())
    return left, norms


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("complete", [False, True])
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_each_tree_has_noise_of_its_own_clip_norm_and_the_carry_stays(
    complete: bool, variant: Any
) -> None:
    plan = plan_of(
        SinglePass(11), mechanism=Tree(variant=variant, restart_every=3, complete=complete)
    )
    clipping = AdaptiveClipping(noise_multiplier=1.0, quantile=0.9, learning_rate=1.0)
    left, norms = model_noise(plan, clipping, 500, "float64")
    assert len({*norms}) == 4
    carry = np.zeros(500)
    for t in range(11):
        tree, step = divmod(t, 3)
        options: dict[str, Any] = {"dtype": "float64", "memory": "stored", "threads": 1}
        noise = block_noise(plan, tree, 500, norms[t], KEY, **options)
        np.testing.assert_allclose(left[t], carry + noise.prefix(step + 1), rtol=0, atol=1e-8)
        if step == 2:
            carry = carry + noise.prefix(4 if complete else 3)


def test_the_variance_follows_the_clip_norms() -> None:
    size = 40_000
    plan = plan_of(SinglePass(8), mechanism=Tree(variant="vanilla", restart_every=4, complete=True))
    clipping = AdaptiveClipping(noise_multiplier=1.0, quantile=1.0, learning_rate=4.0)
    left, norms = model_noise(plan, clipping, size)
    assert norms[4] > 2 * norms[0] == 2.0
    bits = [1, 1, 2, 1]
    for t, value in enumerate(left):
        want = bits[t % 4] * (2.0 * norms[t]) ** 2 + (4.0 if t >= 4 else 0.0)
        assert abs(np.mean(value**2) / want - 1) < 5 * math.sqrt(2 / size)
    # The two trees have no node in common.
    assert abs(np.corrcoef(left[0], left[4] - left[3])[0, 1]) < 5 / math.sqrt(size)


def test_trees_and_readings_have_keys_of_their_own() -> None:
    keys = {block_key(KEY, purpose, i) for purpose in ("tree", "clip-norm") for i in range(50)}
    assert len(keys) == 100 and KEY not in keys
    assert block_key(bytes(32), "tree", 0) not in keys


def test_a_clip_norm_that_moves_changes_what_updates_are_clipped_to() -> None:
    plan = PrivacyPlan(1.0, 1e-9, FixedEpochs(1, 3), mechanism=Tree(restart_every=1))
    clipping = AdaptiveClipping(noise_multiplier=1e-6, quantile=1.0, learning_rate=math.log(16))
    server = ServerDPFTRL(
        [np.zeros(1)], plan=plan, report_goal=1, clipping=clipping, dtype="float64", key=KEY
    )
    norms = []
    for _ in range(3):
        norms.append(server.clip_norm)
        now = server.begin_round(["a"])
        assert now.add("a", [np.array([1e4])]) is None
        before = server.parameters[0][0]
        server.end_round()
        assert server.parameters[0][0] - before == pytest.approx(norms[-1], rel=1e-5)
    assert norms == pytest.approx([1.0, 16.0, 256.0], rel=1e-4)  # nobody is within it
