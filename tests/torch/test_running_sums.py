# SPDX-License-Identifier: Apache-2.0
"""Running sums of `DPFTRL`: what their roundings add to the change that one example makes.

Two runs that differ in one example are rounded differently in every later step. Whoever knows both
can choose the later batches so that the differences add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch import DPFTRL
from dpftrl_fast.torch.flat.update import FlatFTRL, Rates
from dpftrl_fast.torch.flat.views import FlatViews
from dpftrl_fast.torch.gradients.clipped_sums import contribution_limit

Sum = Callable[[Any, Any, Any], tuple[Any, Any]]

DTYPES = [torch.float32, torch.float64]
UNIT = {torch.float32: Fraction(1, 2**24), torch.float64: Fraction(1, 2**53)}


def kahan(s: Any, low: Any, g: Any) -> tuple[Any, Any]:
    """Kahan's sum: it rounds low + g."""
    y = low + g
    total = s + y
    return total, y - (total - s)


def pair(s: Any, low: Any, g: Any) -> tuple[Any, Any]:
    """The sum of the library, in NumPy."""

    def two_sum(a: Any, b: Any) -> tuple[Any, Any]:
        total = a + b
        part = total - a
        return total, (a - (total - part)) + (b - part)

    total, error = two_sum(s, g)
    return two_sum(total, low + error)


def worst_batches(add: Sum, examples: int, steps: int, tries: int = 300) -> Iterator[Any]:
    """Yield the sums of batches, (with, without) one example of step steps/2, both in float32.

    After that step, two batches at a time: one that takes the small parts of both sums to either
    side of the half of a last place of a large batch, or on it, and the large batch.
    """
    rng, kind = np.random.default_rng(0), np.float32
    limit = contribution_limit(1.0, examples, steps=steps)
    top = kind(examples * limit)
    one, two = (kind(0.0), kind(0.0)), (kind(0.0), kind(0.0))
    for step in range(steps // 2):
        with_it, without = top, kind((examples - 1) * limit) if step == steps // 2 - 1 else top
        one, two = add(*one, with_it), add(*two, without)
        yield with_it, without
    place = float(np.spacing(top / kind(2) * kind(1.01)))
    for _ in range((steps - steps // 2) // 2):
        larger = max(one[1], two[1], key=abs)
        room = float(np.spacing(abs(larger)))
        halves = (np.floor(larger / place) + rng.integers(-3, 4, tries) + 0.5) * place
        off = rng.choice([-0.45, -0.375, -0.3, 0.3, 0.375, 0.45], tries) * room
        small = (halves - float(larger) + off).astype(kind)
        places = rng.integers(int(0.55 * top / place), int(0.95 * top / place), tries)
        large = (places * place * rng.choice([-1, 1], tries)).astype(kind)
        with np.errstate(all="ignore"):
            ends = [add(*add(np.full(tries, s), np.full(tries, low), small), large)
                    for s, low in (one, two)]  # fmt: skip
        change = sum(np.float64(a) - np.float64(b) for a, b in zip(*ends, strict=True))
        best = int(np.argmax(change))
        for g in (small[best], large[best]):
            one, two = add(*one, g), add(*two, g)
            yield g, g


def held(update: FlatFTRL) -> list[Fraction]:
    vectors = update.vectors()
    parts = vectors["sum"].tolist(), vectors["sum_low"].tolist()
    return [Fraction(a) + Fraction(b) for a, b in zip(*parts, strict=True)]


def made(size: int, dtype: torch.dtype, fused: bool) -> tuple[FlatFTRL, list[torch.Tensor]]:
    start = [torch.zeros(size, dtype=dtype)]
    update = FlatFTRL(
        FlatViews(start, [1], block_size=2),
        start,
        dtype=dtype,
        batch_size=1,
        radius=None,
        momentum=False,
        groups=1,
        grid=2.0**-7,
        fused=fused,
        threads=1,
    )
    return update, start


def step(update: FlatFTRL, t: int, g: torch.Tensor, values: list[torch.Tensor]) -> None:
    rates = [Rates(1.0, 0.0, False, 0.0)]
    update.step(t, [g], torch.zeros_like(g), rates, values, lambda x: float(x.norm()))


@pytest.fixture(scope="module")
def batches() -> list[Any]:
    """Batches that are the worst for Kahan's sum."""
    return list(worst_batches(kahan, 65536, 800))


def change(add: Sum, given: list[Any]) -> float:
    ends = []
    for which in (0, 1):
        s = low = np.float32(0.0)
        for batch in given:
            s, low = add(s, low, batch[which])
        ends.append(Fraction(float(s)) + Fraction(float(low)))
    return float(ends[0] - ends[1])


def test_the_batches_are_allowed_and_tell_a_rounded_sum_apart(batches: list[Any]) -> None:
    differ = [abs(float(a) - float(b)) for a, b in batches if a != b]
    assert len(differ) == 1 and differ[0] <= 1.0
    assert max(abs(float(a)) for a, _ in batches) <= 65536
    assert change(kahan, batches) > 1.1  # the attack works where sums are rounded


@pytest.mark.parametrize("examples", [1024, 65536])
def test_an_adversary_who_chooses_all_batches_gains_nothing(
    batches: list[Any], examples: int
) -> None:
    assert change(pair, batches) <= 1.0
    assert change(pair, list(worst_batches(pair, examples, 600))) <= 1.0


def test_one_example_changes_all_running_sums_by_at_most_the_clip_norm(batches: list[Any]) -> None:
    plan = PrivacyPlan(1.0, 4.0, SinglePass(len(batches)))
    ends = []
    for which in (0, 1):
        w = torch.nn.Parameter(torch.zeros(1))
        optimizer = DPFTRL([w], lr=1.0, plan=plan, batch_size=65536)
        for batch in batches:
            w.grad = torch.tensor([batch[which]])
            optimizer.step()
        assert optimizer._update is not None
        ends.append(held(optimizer._update)[0])
    assert ends[0] - ends[1] <= 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_a_sum_is_that_of_exact_arithmetic_within_the_stated_error(
    fused: bool, dtype: torch.dtype, seed: int
) -> None:
    """The error of a step is at most u^2 (|s_(t-1)| + |s_t|), whatever the sizes and the signs."""
    generator = torch.Generator().manual_seed(seed)
    size, steps = 5, 300
    update, values = made(size, dtype, fused)
    exact, bound = [Fraction(0)] * size, [Fraction(0)] * size
    for t in range(1, steps + 1):
        scale = 2.0 ** torch.randint(-30, 10, (size,), generator=generator).double()
        g = (torch.randn(size, generator=generator, dtype=torch.float64) * scale).to(dtype)
        if t % 50 == 0:  # what is left is small
            g = -update.vectors()["sum"].clone()
        before = exact
        exact = [s + Fraction(x) for s, x in zip(exact, g.tolist(), strict=True)]
        bound = [
            b + UNIT[dtype] ** 2 * (abs(s) + abs(r)) * Fraction(101, 100)
            for b, s, r in zip(bound, before, exact, strict=True)
        ]
        kept = g.clone()
        step(update, t, g, values)
        assert torch.equal(g, kept)  # the caller's
    for have, want, most in zip(held(update), exact, bound, strict=True):
        assert abs(have - want) <= most


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_compiled_pass_and_torch_have_the_same_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    runs = [made(7, dtype, fused) for fused in (False, True)]
    for t in range(1, 200):
        g = torch.randn(7, generator=generator, dtype=torch.float64) * 2.0 ** (t % 40)
        for update, values in runs:
            step(update, t, g.to(dtype), values)
    for name, vector in runs[0][0].vectors().items():
        assert torch.equal(vector, runs[1][0].vectors()[name])


def test_the_limit_covers_the_roundings_of_running_sums() -> None:
    for examples, steps in [(250, 10_000), (65536, 2_048), (1, 1)]:
        limit = Fraction(contribution_limit(1.0, examples, steps=steps))
        running = UNIT[torch.float32] ** 2 * steps**2 * examples * limit
        written = UNIT[torch.float32] * examples * limit
        assert limit + 2 * (running + written) <= 1
    assert contribution_limit(1.0, 250, steps=10_000) > 1.0 - 2.2e-4
    assert contribution_limit(1.0, 250, torch.float64, steps=10**6) > 1.0 - 2e-6
    with pytest.raises(ValueError, match="steps must be"):
        contribution_limit(1.0, 250, steps=0)
