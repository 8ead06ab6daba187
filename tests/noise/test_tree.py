# SPDX-License-Identifier: Apache-2.0
"""`TreeNoise` against `dpftrl_fast.reference`, to the bit, and against sums made by hand."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import reference

DTYPES = ["float32", "float64"]
VARIANTS = ["vanilla", "honaker"]
MEMORIES: list[Any] = ["stored", "regenerate", 2]


def assert_same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_run_is_the_references(memory: Any, variant: str, dtype: str) -> None:
    options: dict[str, Any] = {"seed": 5, "variant": variant, "dtype": dtype, "offset": 250}
    noise = dpf.TreeNoise(20, 1.3, memory=memory, threads=2, **options)
    expected = reference.TreeNoise(20, 1.3, **options)
    for length, complete in ((37, True), (5, False), (1, True), (16, True), (9, False)):
        for t in range(1, length + 1):
            assert noise.t == t - 1
            take = "step" if t % 4 == 3 else "residual"
            assert_same_bits(getattr(noise, take)(), getattr(expected, take)())
            if t % 5 == 0:
                at = 3 * t + 1
                assert_same_bits(noise.prefix(at), expected.prefix(at))
        noise.restart(complete=complete)
        expected.restart(complete=complete)
    assert (noise.tree, noise.t) == (5, 0)
    noise.advance_to(100)
    expected.advance_to(100)
    assert_same_bits(noise.residual(), expected.residual())
    assert_same_bits(noise.node(3, 9), expected.node(3, 9))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rounds", [8, 12, 20])
@pytest.mark.parametrize(("purpose", "number"), [("tree", 0), ("covariance", 1), ("clip-norm", 2)])
def test_streams_are_the_references(rounds: int, dtype: str, purpose: Any, number: int) -> None:
    noise = dpf.TreeNoise(
        700, 0.9, seed=b"a seed", rounds=rounds, dtype=dtype, purpose=purpose, offset=2**35 - 700
    )
    expected = reference.TreeNoise(
        700, 0.9, seed=b"a seed", rounds=rounds, dtype=dtype, purpose=number, offset=2**35 - 700
    )
    for _ in range(3):
        assert_same_bits(noise.step(), expected.step())
    assert_same_bits(noise.node(46, 0), expected.node(46, 0))
    assert_same_bits(noise.node(0, 2**46 - 1), expected.node(0, 2**46 - 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rare_radius_words_are_met_by_the_reference_too(dtype: str) -> None:
    noise = dpf.TreeNoise(300_000, 1.0, seed=3, dtype=dtype)
    expected = reference.TreeNoise(300_000, 1.0, seed=3, dtype=dtype)
    got = noise.node(0, 0)
    assert_same_bits(got, expected.node(0, 0))
    assert np.abs(got).max() > 4.4  # radii of rare words
    if dtype == "float64":  # and near 0: the pairs are 64 coordinates apart
        rows = got[: 300_000 // 128 * 128].reshape(-1, 2, 64)
        assert np.hypot(rows[:, 0], rows[:, 1]).min() < 2**-6.5


def test_threads_and_splits_give_one_vector() -> None:
    size = 100_000
    for dtype, variant in itertools.product(DTYPES, VARIANTS):
        options: dict[str, Any] = {"seed": 8, "dtype": dtype, "variant": variant}
        whole = dpf.TreeNoise(size, 2.0, threads=1, **options)
        threaded = dpf.TreeNoise(size, 2.0, threads=3, **options)
        cuts = [0, 1, 4097, 60_001, size]
        parts = [
            dpf.TreeNoise(b - a, 2.0, threads=2, memory="regenerate", offset=a, **options)
            for a, b in itertools.pairwise(cuts)
        ]
        for _ in range(5):
            expected = whole.residual()
            assert_same_bits(threaded.residual(), expected)
            assert_same_bits(np.concatenate([part.residual() for part in parts]), expected)


# --- by hand ----------------------------------------------------------------------------------


def table(noise: dpf.TreeNoise) -> Any:
    """Nodes of the present tree, in exact small integers: rounding plays no part."""
    return lambda level, index: noise.node(level, index).astype(np.float64)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("complete", [False, True])
def test_vanilla_by_hand(memory: Any, complete: bool) -> None:
    noise = dpf.TreeNoise(4, 1.0, seed=1, variant="vanilla", memory=memory, dtype="float64")
    z = table(noise)
    b = [z(0, 0), z(1, 0), z(1, 0) + z(0, 2), z(2, 0), z(2, 0) + z(0, 4)]
    b8 = z(3, 0)
    for t in range(1, 6):
        got = noise.step() if t < 5 else noise.residual()
        np.testing.assert_array_equal(got, b[t - 1] if t < 5 else b[4] - b[3])
        for s in range(1, 6):
            np.testing.assert_array_equal(noise.prefix(s), b[s - 1])
    noise.restart(complete=complete)
    carry = b8 if complete else b[4]
    # The first residual after a restart: b_8 - b_5 + b'_1 with completion, b'_1 without.
    first = carry + z(0, 0)
    np.testing.assert_array_equal(noise.residual(), first - b[4])
    np.testing.assert_array_equal(noise.prefix(1), z(0, 0))
    np.testing.assert_array_equal(noise.step(), carry + z(1, 0))
    np.testing.assert_array_equal(
        noise.residual(), ((carry + z(1, 0)) + z(0, 2)) - (carry + z(1, 0))
    )
    three = (carry + z(1, 0)) + z(0, 2)
    fourth = three + 0.0
    if complete:
        fourth = carry + z(2, 0)
    noise.restart(complete=complete)
    np.testing.assert_array_equal(noise.step(), fourth + z(0, 0))
    assert (noise.tree, noise.t) == (2, 1)


@pytest.mark.parametrize("memory", MEMORIES)
def test_honaker_by_hand(memory: Any) -> None:
    noise = dpf.TreeNoise(4, 1.0, seed=2, variant="honaker", memory=memory, dtype="float64")
    z = table(noise)
    r01 = z(1, 0) + (z(0, 0) + z(0, 1)) * 0.5
    r23 = z(1, 1) + (z(0, 2) + z(0, 3)) * 0.5
    r03 = z(2, 0) + (r01 + r23) * 0.5
    w = [1.0, 1 / 1.5, 1 / 1.75]
    expected = [z(0, 0) * w[0], r01 * w[1], r01 * w[1] + z(0, 2) * w[0], r03 * w[2]]
    for t in range(4):
        np.testing.assert_array_equal(noise.step(), expected[t])
    noise.restart()
    np.testing.assert_array_equal(noise.step(), expected[3] + z(0, 0) * w[0])


def test_a_restart_takes_fresh_nodes() -> None:
    noise = dpf.TreeNoise(1000, 1.0, seed=4)
    trees = []
    for _ in range(4):
        trees.append(noise.node(0, 0))
        noise.step()
        noise.restart()
    for a, b in itertools.combinations(trees, 2):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.15
        assert not (a == b).any()


def test_std_scales_and_is_rounded_to_the_dtype() -> None:
    assert dpf.TreeNoise(1, 0.1).std == float(np.float32(0.1))
    assert dpf.TreeNoise(1, 0.1, dtype="float64").std == 0.1
    unit = dpf.TreeNoise(100, 1.0, seed=1).step()
    assert_same_bits(dpf.TreeNoise(100, 0.1, seed=1).step(), unit * np.float32(0.1))
    assert_same_bits(dpf.TreeNoise(100, np.float32(0.1), seed=1).step(), unit * np.float32(0.1))


def test_returned_arrays_are_the_callers_own() -> None:
    for memory, variant in itertools.product(MEMORIES, VARIANTS):
        noise = dpf.TreeNoise(8, 1.0, seed=6, memory=memory, variant=variant)
        expected = reference.TreeNoise(8, 1.0, seed=6, variant=variant)
        returned: list[np.ndarray] = []
        for call in range(40):
            take = "step" if call % 3 else "residual"
            out = getattr(noise, take)()
            assert_same_bits(out, getattr(expected, take)())
            out[:] = np.nan  # whatever the caller does to it
            noise.prefix(call + 1)[:] = np.nan
            returned.append(out)
            for _, _, _, vector in noise.state_dict()["vectors"]:
                vector[:] = np.nan
            if call % 15 == 14:
                noise.restart(complete=True)
                expected.restart(complete=True)
        assert all(np.isnan(out).all() for out in returned)


def test_unseeded_objects_are_unrelated() -> None:
    a, b = dpf.TreeNoise(50, 1.0), dpf.TreeNoise(50, 1.0)
    assert not (a.step() == b.step()).any()
    assert not a.reproducible
    assert dpf.TreeNoise(1, 1.0, seed=0).reproducible


def test_attributes() -> None:
    noise = dpf.TreeNoise(
        3, 2.0, seed=1, variant="vanilla", memory=2, dtype="float64", rounds=20, threads=2, offset=7
    )
    assert (noise.size, noise.std, noise.variant, noise.memory) == (3, 2.0, "vanilla", 2)
    assert (noise.dtype, noise.rounds, noise.threads, noise.offset) == (np.float64, 20, 2, 7)
    assert not noise.node_used
    noise.node(0, 0)
    assert noise.node_used
    assert "vanilla" in repr(noise)
    assert "reproducible, not private" in repr(noise)
    assert "reproducible" not in repr(dpf.TreeNoise(1, 1.0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_memory_bounds(variant: Any) -> None:
    for memory, bound in (("stored", None), ("regenerate", 1), (1, 1), (3, 3)):
        noise = dpf.TreeNoise(4, 1.0, seed=1, variant=variant, memory=memory)  # type: ignore[arg-type]
        for t in range(1, 200):
            noise.step()
            assert noise.allocated_vectors <= (t.bit_length() + 1 if bound is None else bound)
