# SPDX-License-Identifier: Apache-2.0
"""The error of a run against the dense covariance of its noise, and against the noise itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_options import with_tree

from dpftrl_fast import TreeNoise, _core, reference
from dpftrl_fast.accounting.participation import FixedEpochs, SinglePass
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.mechanisms.run_error import noise_std

VARIANTS = ["vanilla", "honaker"]


def dense(
    lengths: Sequence[int], completed: Sequence[bool], variant: str, momentum: float
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Variances of n_t and of (1 - momentum) v_t by matrices over all prefixes of all trees."""
    ends = [
        1 << (n - 1).bit_length() if done else n for n, done in zip(lengths, completed, strict=True)
    ]
    first = np.concatenate([[0], np.cumsum(ends)])
    covariance = np.zeros((first[-1], first[-1]))
    for start, end in zip(first, ends, strict=False):
        block = [[float(c) for c in row] for row in reference.covariance(end, variant)]
        covariance[start : start + end, start : start + end] = block
    rows = []
    for tree, n in enumerate(lengths):
        for t in range(1, n + 1):
            row = np.zeros(first[-1])
            row[first[1 : tree + 1] - 1] = 1.0  # the last prefix of each earlier tree
            row[first[tree] + t - 1] = 1.0
            rows.append(row)
    steps = len(rows)
    age = np.subtract.outer(np.arange(steps), np.arange(steps))
    smooth = np.where(age >= 0, (1 - momentum) * momentum ** np.maximum(age, 0.0), 0.0)
    prefix = np.array(rows) @ covariance @ np.array(rows).T
    return np.diag(prefix), np.diag(smooth @ prefix @ smooth.T)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_tree_has_the_variance_factor(variant: Any) -> None:
    wanted = [float(reference.variance_factor(t, variant)) for t in range(1, 131)]
    got = noise_std(130, Tree(variant=variant))
    np.testing.assert_allclose(got.prefix**2, wanted, rtol=1e-14)
    np.testing.assert_array_equal(got.smoothed, got.prefix)  # no momentum


def test_the_figures_of_the_paper() -> None:
    std = noise_std(32).prefix
    assert round(std[24] ** 2, 2) == 2.05 and round(std[31] ** 2, 2) == 0.51


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(VARIANTS),
    st.sampled_from([0.0, 0.3, 0.9, 0.999]),
)
def test_dense_covariance(trees: list[tuple[int, bool]], variant: Any, momentum: float) -> None:
    lengths, completed = [n for n, _ in trees], [done for _, done in trees]
    tree = Tree(variant, tree_lengths=lengths, complete=completed)
    got = noise_std(sum(lengths), tree, momentum=momentum)
    prefix, smoothed = dense(lengths, completed, variant, momentum)
    np.testing.assert_allclose(got.prefix**2, prefix, rtol=1e-11)
    np.testing.assert_allclose(got.smoothed**2, smoothed, rtol=1e-9)


@pytest.mark.parametrize("complete", [False, True, "all"])
def test_a_period_is_the_same_as_its_tree_lengths(complete: Any) -> None:
    every = noise_std(23, Tree(restart_every=5, complete=complete), momentum=0.7)
    listed = noise_std(23, Tree(tree_lengths=[5] * 4 + [3], complete=complete), momentum=0.7)
    for a, b in zip(every, listed, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("variant", "complete"), [("honaker", True), ("vanilla", False)])
def test_the_noise_has_this_error(variant: Any, complete: bool) -> None:
    size, gamma, lengths = 40_000, 0.8, [6, 3, 5]
    noise = TreeNoise(size, 1.5, seed=7, variant=variant, dtype="float64")
    prefix, smoothed = [], []
    v = np.zeros(size)
    for tree, n in enumerate(lengths):
        if tree:
            noise.restart(complete)
        for _ in range(n):
            value = noise.step()
            v = gamma * v + value
            prefix.append(value.var())
            smoothed.append(((1 - gamma) * v).var())
    std = noise_std(
        14, Tree(variant=variant, tree_lengths=lengths, complete=complete), momentum=gamma
    )
    error = 5 * np.sqrt(2 / size)  # five standard deviations of a variance's relative error
    for got, wanted in ((prefix, std.prefix), (smoothed, std.smoothed)):
        for scale, right in ((1.5, True), (1.5 * 0.97, False)):
            ratio = np.array(got) / (scale * wanted) ** 2
            assert bool(np.all(np.abs(ratio - 1) < error)) is right


def test_steps_may_be_a_pattern() -> None:
    wanted = noise_std(12, Tree(restart_every=4)).prefix
    for pattern in (SinglePass(12), FixedEpochs(4, 3), np.int64(12)):
        np.testing.assert_array_equal(noise_std(pattern, Tree(restart_every=4)).prefix, wanted)  # type: ignore[arg-type]


def test_long_runs_stay_finite_and_equal_trees_add_up() -> None:
    std = noise_std(1 << 20, Tree(restart_every=1 << 10), momentum=0.99)
    assert np.isfinite(std.smoothed).all()
    steps = np.arange(1, 1025) * 1024
    wanted = np.arange(1, 1025) / (2 - 2.0**-10)  # the last step of each tree
    np.testing.assert_allclose(std.prefix[steps - 1] ** 2, wanted, rtol=1e-12)
    assert np.mean(std.smoothed**2) < np.mean(std.prefix**2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"steps": 0}, ValueError, "steps must be an integer in .*, got 0"),
        ({"steps": 2.0}, TypeError, "steps must be an integer in .*, got float"),
        ({"steps": 2**26 + 1}, ValueError, "at most 2\\^26"),
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1"),
        ({"complete": "last"}, ValueError, "complete must be"),
        (
            {"variant": "binary"},
            ValueError,
            "variant must be one of .*, got 'binary'",
        ),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number >= 0 and < 1, got 1.0"),
        ({"momentum": float("nan")}, ValueError, "momentum must be"),
        ({"momentum": -0.1}, ValueError, "momentum must be"),
        ({"momentum": "0.9"}, TypeError, "momentum must be"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arguments: dict[str, Any] = {"steps": 8, **change}
    with pytest.raises(error, match=words):
        noise_std(arguments.pop("steps"), **with_tree(arguments))


@pytest.mark.parametrize(
    ("trees", "variant", "momentum", "error"),
    [
        ([(3, 1, False)], "honaker", 0.0, ValueError),  # out has 4
        ([(5, 1, False)], "honaker", 0.0, ValueError),
        ([(2, 2**63, False)], "honaker", 0.0, ValueError),
        ([(0, 4, False)], "honaker", 0.0, ValueError),
        ([(-4, 1, False)], "honaker", 0.0, TypeError),
        ([(4, 1, False)], "binary", 0.0, ValueError),
        ([(4, 1, False)], "honaker", float("nan"), ValueError),
    ],
)
def test_the_core_checks_what_it_writes(
    trees: Any, variant: str, momentum: float, error: type[Exception]
) -> None:
    out = np.full((2, 4), -1.0)
    with pytest.raises(error):
        _core.prefix_error(trees, variant, momentum, out[0], out[1])
    assert np.all(out == -1.0)


def test_the_core_refuses_arrays_that_it_cannot_write_whole() -> None:
    run, out = [(4, 1, False)], np.zeros(4)
    for wrong in (out, np.zeros(3), np.zeros(4, np.float32), np.zeros(8)[::2]):
        with pytest.raises((ValueError, TypeError), match="out must be"):
            _core.prefix_error(run, "honaker", 0.0, out, wrong)
