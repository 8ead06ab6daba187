# SPDX-License-Identifier: Apache-2.0
"""The stream in `jax.numpy` has the bits of the core, under `jit` as XLA compiles by default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mechanism_cases import TOEPLITZ

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from dpftrl_fast import PrivacyPlan, SinglePass, TreeNoise  # noqa: E402
from dpftrl_fast.jax import key_words, node_normals, plan_residuals, stream  # noqa: E402
from dpftrl_fast.mechanisms import BandedToeplitz, Tree  # noqa: E402
from dpftrl_fast.reference.stream import (  # noqa: E402
    box_muller,
    chacha_block,
    key_from_seed,
    node_counter,
    normals,
)

KEY = key_from_seed(11)
WORDS = key_words(KEY)


def differing(a: Any, b: Any) -> int:
    """Count numbers with other bits."""
    ours, theirs = (np.asarray(x, np.float32).view(np.uint32) for x in (a, b))
    return int((ours != theirs).sum())


@pytest.mark.parametrize(
    ("level", "index", "tree"), [(0, 0, 0), (0, 2**31 + 5, 0), (5, 3, 2**16 + 1), (46, 0, 9)]
)
@pytest.mark.parametrize(
    ("start", "size"), [(0, 1), (0, 256), (255, 2), (1000, 5000), (2**36 - 300, 300)]
)
def test_normals_of_nodes(level: int, index: int, tree: int, start: int, size: int) -> None:
    node = {"level": level, "index": index, "tree": tree, "start": start, "size": size}
    assert differing(node_normals(WORDS, **node), normals(KEY, **node)) == 0


@pytest.mark.parametrize("rounds", [8, 12, 20])
def test_rounds_and_purposes(rounds: Any) -> None:
    for purpose in (0, 3, 255):
        options: dict[str, Any] = {"size": 700, "rounds": rounds, "purpose": purpose}
        expected = normals(KEY, tree=0, level=0, index=4, start=0, **options)
        assert differing(node_normals(WORDS, index=4, **options), expected) == 0


def test_a_long_vector_is_that_of_the_core() -> None:
    size = 10**6
    core = TreeNoise(size, 1.0, key=KEY)
    assert differing(node_normals(WORDS, index=77, size=size), core.node(0, 77)) == 0


def test_products_are_rounded_by_themselves() -> None:
    """XLA contracts a product and a sum, but not where the product passes through an integer."""
    a, b, c = np.random.default_rng(2).standard_normal((3, 10_000)).astype(np.float32)
    plain = jax.jit(lambda a, b, c: a * b + c)
    assert differing(plain(a, b, c), a * b + c) > 100
    guarded = jax.jit(lambda a, b, c: stream.times(a, b, stream.zero_of(a)) + c)
    assert differing(guarded(a, b, c), a * b + c) == 0
    # Constants of a program, too.
    constant = jax.jit(lambda c: stream.times(0.1, c, stream.zero_of(c)) + jnp.float32(0.3))
    assert differing(constant(c), np.float32(0.1) * c + np.float32(0.3)) == 0


def test_the_words_of_rare_radii() -> None:
    """Radius words near 0 have low halves from blocks of their own, few of them or all."""
    rng = np.random.default_rng(0)
    numbers = np.arange(3000, dtype=np.uint32)
    extension = np.array(node_counter(0, 2, 0, 0, 0), np.uint32)
    for share in (0.0001, 0.5):
        high = rng.integers(2**18, 2**32, (8, 3000), dtype=np.uint32)
        rare = rng.random(high.shape) < share
        high[rare] = rng.integers(0, 2**18, rare.sum())
        low = np.asarray(
            stream._low_words(*map(jnp.asarray, (WORDS, extension, numbers, high)), 12)
        )
        assert rare.any()
        expected = np.zeros_like(high)
        for j, i in np.argwhere(rare)[:200]:
            expected[j, i] = chacha_block(KEY, (i, *map(int, extension)))[j]
            assert low[j, i] == expected[j, i]
        assert not low[~rare].any()


def test_all_radii_and_angles() -> None:
    rng = np.random.default_rng(1)
    ends = [0, 1, 2, 3, 2**18 - 1, 2**18, 2**31 - 1, 2**31, 2**31 + 1, 2**32 - 1]
    high = np.r_[np.repeat(ends, 10), rng.integers(0, 2**32, 10**5)].astype(np.uint32)
    low = np.where(high < 2**18, rng.permutation(np.resize(ends, high.size)), 0).astype(np.uint32)
    angle = np.r_[np.tile(ends, 10), rng.integers(0, 2**32, 10**5)].astype(np.uint32)
    expected = box_muller(high.astype(np.uint64) << 32 | low, angle, "float32")
    found = jax.jit(stream._box_muller)(high, low, angle)
    assert differing(np.stack(found), np.stack(expected)) == 0


# ---- Residuals ----

PLANS = {
    name: PrivacyPlan(0.3, 2.0, SinglePass(9), mechanism=mechanism)
    for name, mechanism in TOEPLITZ.items()
    if mechanism.restart_every is None
} | {"scaled bands": PrivacyPlan(0.3, 2.0, SinglePass(9), BandedToeplitz((1.5, 0.5, 0.25)))}


@pytest.mark.parametrize("name", PLANS)
def test_residuals_are_those_of_the_core(name: str) -> None:
    plan = PLANS[name]
    core = plan.noise(3000, key=KEY, offset=500)
    expected = np.stack([core.residual() for _ in range(9)])
    init, residual = plan_residuals(plan, 3000, start=500)
    step, state = jax.jit(residual), init()
    for x in expected:
        found, state = step(WORDS, state)
        assert differing(found, x) == 0

    def body(state: Any, _: Any) -> Any:
        found, state = residual(WORDS, state)
        return state, found

    _, rows = jax.jit(lambda s: jax.lax.scan(body, s, None, length=10))(init())
    assert differing(rows[:9], expected) == 0

    @jax.jit
    def unrolled() -> Any:  # key and position are constants
        state, rows = init(), []
        for _ in range(2):
            x, state = residual(WORDS, state)
            rows.append(x)
        return jnp.stack(rows)

    assert differing(unrolled(), expected[:2]) == 0
    assert np.isnan(rows[9]).all()  # past the plan's end


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (PrivacyPlan(1.0, 2.0, SinglePass(9), Tree()), "without restarts, got"),
        (
            PrivacyPlan(1.0, 2.0, SinglePass(9), TOEPLITZ["a buffer, in blocks"]),
            "without restarts, got",
        ),
        (PrivacyPlan(1.0, 2.0, SinglePass(2**32)), "without restarts, got"),
        (PrivacyPlan(1.0, 2.0, SinglePass(2**32), TOEPLITZ["identity"]), "at most 2\\^31 steps"),
    ],
)
def test_plans_that_are_refused(plan: PrivacyPlan, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_residuals(plan, 3)


def test_arguments_that_are_refused() -> None:
    with pytest.raises(TypeError, match="plan must be a PrivacyPlan, got int"):
        plan_residuals(3, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounds must be"):
        plan_residuals(PLANS["identity"], 3, rounds=10)
    with pytest.raises(ValueError, match="size must be"):
        plan_residuals(PLANS["identity"], 0)
    with pytest.raises(TypeError, match=r"uint32 of shape \(8,\)"):
        node_normals(WORDS.astype(np.int32), size=3)
    with pytest.raises(ValueError, match="key must be 32 bytes, got 3"):
        key_words(b"abc")
    with pytest.raises(ValueError, match="rounds must be"):
        node_normals(WORDS, size=3, rounds=10)
