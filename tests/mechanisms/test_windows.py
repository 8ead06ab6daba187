# SPDX-License-Identifier: Apache-2.0
"""The error of windows against the matrix of all noise, and against the noise itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mechanism_cases import MECHANISMS

from dpftrl_fast import PrivacyPlan, SinglePass
from dpftrl_fast.accounting import noise_std
from dpftrl_fast.audit.covariance import noise_factor
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Layout,
    Mechanism,
    Tree,
    window_std,
    window_stds,
)

MORE: dict[str, Mechanism] = {
    "vanilla": Tree("vanilla"),
    "vanilla trees, all completed": Tree("vanilla", restart_every=5, complete="all"),
    "trees that end early": Tree(restart_every=5),
}
ALL = {**MECHANISMS, **MORE}


def brute_force(layout: Layout) -> np.ndarray[Any, Any]:
    """Standard deviation of n_t - n_s at [t, s], from the whole matrix of noise."""
    f = noise_factor(layout)
    f = np.vstack([np.zeros(f.shape[1]), f])
    return np.array([[float(np.linalg.norm(x - y)) for y in f] for x in f])


def check(layout: Layout) -> None:
    want = brute_force(layout)
    for until in range(1, layout.steps + 1):
        found = [window_std(layout, since, until) for since in range(until)]
        np.testing.assert_allclose(found, want[until, :until], rtol=1e-12)
    for width in range(1, layout.steps + 2):
        pairs = [want[t, max(t - width, 0)] for t in range(1, layout.steps + 1)]
        np.testing.assert_allclose(window_stds(layout, width), pairs, rtol=1e-11)


@pytest.mark.parametrize("name", ALL)
def test_all_windows_of_each_mechanism(name: str) -> None:
    check(ALL[name].layout(27))


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["vanilla", "honaker"]),
)
def test_any_trees(trees: list[tuple[int, bool]], variant: Any) -> None:
    lengths, completed = [n for n, _ in trees], [done for _, done in trees]
    tree = Tree(variant, tree_lengths=lengths, complete=completed)
    check(tree.layout(sum(lengths)))


numbers = st.floats(0.015625, 0.96875, width=32)


@given(
    st.one_of(
        st.builds(lambda d, every: BandedInverse((1.0, -d), every), numbers, st.integers(2, 12)),
        st.builds(
            lambda a, b, every: BufferedToeplitz(
                (max(a, b) + 0.015625, min(a, b)), (0.5, 0.25), every
            ),
            numbers,
            numbers,
            st.integers(1, 12),
        ),
        st.builds(lambda c, every: BandedToeplitz((1.0, c), every), numbers, st.integers(2, 12)),
    ),
    st.integers(2, 30),
    st.integers(1, 15),
)
def test_any_blocks(mechanism: Any, steps: int, first: int) -> None:
    layout = mechanism.layout(steps)
    check(layout)
    if first < steps:  # three runs of unlike blocks
        check(layout.between(first, steps))


@pytest.mark.parametrize("name", ALL)
def test_a_window_from_the_start_is_the_running_sum(name: str) -> None:
    layout = ALL[name].layout(50)
    want = noise_std(50, ALL[name]).prefix
    np.testing.assert_allclose(window_stds(layout, 50), want, rtol=1e-12)
    np.testing.assert_array_equal(window_stds(layout, 10**30), window_stds(layout, 50))


@pytest.mark.parametrize("name", ALL)
def test_windows_of_the_noise_itself(name: str) -> None:
    """Of the noise that a plan makes: other spreads, by 3 %, would be seen."""
    steps, width, size = 13, 5, 40_000
    layout = ALL[name].layout(steps)
    plan = PrivacyPlan(1.0, 1.0, SinglePass(steps), ALL[name])
    noise = plan.noise(size, seed=5, dtype="float64")
    sums = np.array([np.zeros(size), *(noise.step() for _ in range(steps))])
    found = [(sums[t] - sums[max(t - width, 0)]).std() for t in range(1, steps + 1)]
    want = window_stds(layout, width)
    assert (np.abs(found / want - 1) < 5 / math.sqrt(2 * size)).all()
    assert 5 / math.sqrt(2 * size) < 0.03


@given(st.integers(1, 2**34 - 1), st.integers(1, 63), st.integers(1, 63))
def test_windows_far_into_a_tree(base: int, u: int, v: int) -> None:
    """Within 64 leaves of a subtree nothing else of the tree counts."""
    if u == v:
        return
    since, until = sorted((u, v))
    long, short = Tree().layout(2**40), Tree().layout(64)
    start = 64 * base
    assert window_std(long, start + since, start + until) == window_std(short, since, until)


def test_long_trees_at_every_chunk_and_table() -> None:
    steps, width = 2**20 + 3, 2**18 - 5
    for tree in (Tree(), Tree("vanilla", restart_every=2**15 + 1, complete=True)):
        layout = tree.layout(steps)
        found = window_stds(layout, width)
        for t in (1, 2**14, 2**18, 2**18 + 1, 2**19 - 1, 2**20, steps):
            want = window_std(layout, max(t - width, 0), t)
            assert found[t - 1] == pytest.approx(want, rel=1e-14)


@pytest.mark.parametrize("every", [None, 40_000])
def test_long_blocks(every: int | None) -> None:
    """The Fourier transforms in pieces, and sums that grow, against sums of squares."""
    steps = 100_000
    for mechanism in (
        BufferedToeplitz((0.9990234375, 0.875), (0.0625, 0.25), every),
        BandedInverse((1.0, -0.875), every),
        Identity(every),
    ):
        layout = mechanism.layout(steps)
        for width in (3, 5000, 70_000):
            found = window_stds(layout, width)
            for t in (width, 40_001, 40_003, 60_000, 80_001, 84_999, steps):
                want = window_std(layout, max(t - width, 0), t)
                assert found[t - 1] == pytest.approx(want, rel=1e-11)
            if isinstance(mechanism, Identity):
                wide = np.minimum(np.arange(1, steps + 1), width)
                np.testing.assert_allclose(found**2, wide, rtol=1e-11)


def test_what_is_refused() -> None:
    layout = Tree().layout(8)
    for since, until in ((-1, 3), (3, 3), (4, 3), (0, 9), (8, 9)):
        with pytest.raises(ValueError, match="must be an integer"):
            window_std(layout, since, until)
    with pytest.raises(TypeError, match="since must be an integer"):
        window_std(layout, 1.5, 3)  # type: ignore[arg-type]
    for width in (0, -1):
        with pytest.raises(ValueError, match="width must be an integer"):
            window_stds(layout, width)
    with pytest.raises(ValueError, match=r"at most 2\^26"):
        window_stds(Tree().layout(2**26 + 1), 1)
    with pytest.raises(ValueError, match=r"at most 2\^26"):
        window_std(Identity().layout(2**26 + 1), 0, 2**26 + 1)
    growing = BandedToeplitz((1.0, 3.0)).layout(2000)
    for call in (lambda: window_std(growing, 0, 2000), lambda: window_stds(growing, 7)):
        with pytest.raises(ValueError, match="must stay finite"):
            call()


def test_another_layout_is_a_clear_error() -> None:
    class Other:
        steps = 3

    other: Layout = Other()  # type: ignore[assignment]
    for call in (lambda: window_std(other, 0, 1), lambda: window_stds(other, 1)):
        with pytest.raises(TypeError, match=r"no error of windows is registered .* Other"):
            call()
