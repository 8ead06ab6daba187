# SPDX-License-Identifier: Apache-2.0
"""Sums released by the source of the noise have the bits of array operations on its residual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, Identity, Tree

STEPS, BLOCK = 24, 11
MECHANISMS: dict[str, Any] = {
    "honaker": Tree(restart_every=BLOCK, complete=True),
    "vanilla": Tree("vanilla", restart_every=BLOCK),
    "identity": Identity(),
    "taps": BandedInverse((1.0, -0.5, 0.25, 0.0, -0.125), restart_every=BLOCK),
    "buffers": BufferedToeplitz((0.984375, 0.75, 0.5), (0.125, 0.25, 0.0625), restart_every=BLOCK),
    "bands": BandedToeplitz((2.0, 0.5, 0.375)),
}


def plan_of(mechanism: Any) -> dpf.PrivacyPlan:
    return dpf.PrivacyPlan(1.0, 3.0, dpf.SinglePass(STEPS), mechanism)


class Sums:
    """float32 sums, a coordinate without one if there are more than two, and float64 sums."""

    def __init__(self, size: int, dtype: Any) -> None:
        cut = size // 3
        self.narrow, self.wide = np.zeros(cut, np.float32), np.zeros(size - cut - (cut > 0))
        self.pieces = np.array([[0, cut, 0], [size - self.wide.size, size, 1]], np.int64)
        self.remainder = np.zeros(size, dtype)

    @property
    def at(self) -> Any:
        return np.array([self.narrow.ctypes.data, self.wide.ctypes.data], np.int64)

    def fill(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.narrow[:] = rng.normal(size=self.narrow.size) * 10
        self.wide[:] = rng.normal(size=self.wide.size)
        self.wide *= 10.0 ** rng.integers(-3, 12, self.wide.size)

    def release(self, noise: Any, **options: Any) -> None:
        noise.release(self.pieces, self.at, self.remainder, **options)

    def release_by_operations(self, noise: Any, grid: float, divisor: int) -> None:
        kind = self.remainder.dtype.type
        for (start, stop, _), g in zip(self.pieces, (self.narrow, self.wide), strict=True):
            r = self.remainder[start:stop]
            x = r + (noise[start:stop] + g).astype(kind)
            w = np.floor(x / kind(grid) + kind(0.5)) * kind(grid)
            r[...] = x - w
            g[...] = w.astype(g.dtype) / g.dtype.type(divisor)

    def everything(self) -> list[Any]:
        return [x.tobytes() for x in (self.narrow, self.wide, self.remainder)]


def bytes_of(state: Any) -> Any:
    """A state whose vectors are their bytes."""
    vectors = [(*head, vector.tobytes()) for *head, vector in state.get("vectors", [])]
    return {**state, "vectors": vectors}


@pytest.mark.parametrize("memory", ["stored", "regenerate", 1, 3])
@pytest.mark.parametrize("name", MECHANISMS)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("release"), st.integers(1, 5)),
            st.tuples(st.sampled_from(["step", "residual"]), st.integers(1, 2)),
            st.tuples(st.just("skip"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["resume", "resume without vectors"]), st.just(0)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([(1, 0), (7, 253), (70, 90)]),
    st.sampled_from([1, 3, 64]),
)
def test_any_run(
    name: str, memory: Any, calls: Any, dtype: Any, place: tuple[int, int], divisor: int
) -> None:
    size, offset = place
    plan = plan_of(MECHANISMS[name])
    options: dict[str, Any] = {"seed": 3, "dtype": dtype, "offset": offset, "memory": memory}
    one, other = plan.noise(size, **options), plan.noise(size, **options)
    found, expected = Sums(size, dtype), Sums(size, dtype)
    for call, count in calls:
        count = min(count, STEPS - one.steps_taken)
        if call.startswith("resume"):
            state = one.state_dict(key="without" not in call)
            one = plan.noise(size, **options)
            one.load_state_dict(state)
        elif call == "skip":
            left = STEPS - one.steps_taken
            if MECHANISMS[name].restart_every is not None:
                left = min(left, BLOCK - one.t)
            one.advance_to(one.t + min(count, left))
            other.advance_to(one.t)
        for i in range(count if call in ("release", "step", "residual") else 0):
            if call != "release":
                assert (getattr(one, call)() == getattr(other, call)()).all()
                continue
            found.fill(i)
            expected.fill(i)
            found.release(one, divisor=divisor)
            expected.release_by_operations(other.residual(), other.grid, divisor)
            assert found.everything() == expected.everything()
        assert one.steps_taken == other.steps_taken
    if not any(call.startswith("resume") for call, _ in calls):
        assert bytes_of(one.state_dict()) == bytes_of(other.state_dict())
        assert one.allocated_vectors == other.allocated_vectors


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_pieces_of_many_tiles(name: str, threads: int) -> None:
    size, plan = 40_000, plan_of(MECHANISMS[name])
    one, other = (plan.noise(size, seed=1, threads=threads, offset=1000) for _ in range(2))
    found, expected = Sums(size, "float32"), Sums(size, "float32")
    for step in range(STEPS):
        found.fill(step)
        expected.fill(step)
        found.release(one, divisor=3)
        expected.release_by_operations(other.residual(), other.grid, 3)
        assert found.everything() == expected.everything()


def test_all_releases_together_are_the_rounded_running_sum() -> None:
    plan = plan_of(MECHANISMS["buffers"])
    noise, again = (plan.noise(5, seed=1, dtype="float64") for _ in range(2))
    sums = Sums(5, "float64")
    released, exact = np.zeros(3), np.zeros(3)
    rng = np.random.default_rng(5)
    for _ in range(STEPS):
        sums.wide[:] = rng.normal(size=3)
        exact += sums.wide
        sums.release(noise)
        released += sums.wide
    exact += again.next_steps(STEPS)[-1][2:]
    assert (np.abs(released - exact) <= 0.51 * noise.grid).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pieces": [[0, 4, 0], [3, 5, 0]]}, "one after the other"),
        ({"pieces": [[0, 4, 0], [4, 6, 0]]}, "within the 5 elements of the noise"),
        ({"pieces": [[-1, 4, 0], [4, 5, 0]]}, "one after the other"),
        ({"pieces": [[0, 4, 0]]}, "must have 6 elements"),
        ({"pieces": [0, 4, 0, 4, 5, 0]}, r"shape \(k, 3\)"),
        ({"pieces": [[0, 4, 0], [4, 5, 1]], "beside": 18}, "addresses of numbers"),
        ({"at": np.zeros(2)}, "int64"),
        ({"at": np.zeros(2, np.int64)}, "addresses of numbers"),
        ({"at": [1, 2]}, "at must be an ndarray, got list"),
        ({"remainder": np.zeros(5)}, "float32"),
        ({"remainder": np.zeros(4, np.float32)}, "remainder must be .* 5 elements"),
        ({"remainder": np.zeros(6, np.float32)}, "remainder must be .* 5 elements"),
        ({"divisor": 0}, "divisor must be"),
        ({"divisor": 2.0}, "divisor must be"),
        ({"divisor": 2**53 + 1}, "divisor must be"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    noise = plan_of(Identity()).noise(5, seed=1)
    sums = np.ones(5, np.float32)
    change = dict(change)
    address, beside = sums.ctypes.data, change.pop("beside", 16)
    right: dict[str, Any] = {
        "pieces": [[0, 4, 0], [4, 5, 0]],
        "at": np.array([address, address + beside], np.int64),
        "remainder": np.zeros(5, np.float32),
        "divisor": 2,
    }
    given_ = {**right, **change}
    given_["pieces"] = np.array(given_["pieces"], np.int64)
    with pytest.raises((ValueError, TypeError), match=message):
        noise.release(**given_)
    assert sums.tolist() == [1.0] * 5
    assert noise.steps_taken == 0


def test_no_step_past_the_declared_ones() -> None:
    noise, sums = plan_of(Identity()).noise(5, seed=1), Sums(5, "float32")
    for _ in range(STEPS):
        sums.release(noise)
    before = sums.everything()
    with pytest.raises(ValueError, match="all 24 declared steps are taken"):
        sums.release(noise)
    assert sums.everything() == before
