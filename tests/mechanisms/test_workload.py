# SPDX-License-Identifier: Apache-2.0
"""Workloads and the errors of mechanisms: against dense matrices, and against noise itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan, ToeplitzNoise, TreeNoise, _core, reference
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech

Matrix = np.ndarray[Any, Any]

N = 60
RATES = [0.3 + 0.2 * np.cos(t / 7) for t in range(N)]
FALLING = [0.5] * 20 + [0.05] * 20 + [0.0] * 20
WORKLOADS = [
    acc.Workload(),
    acc.Workload(0.9),
    acc.Workload(0.5, weight_decay=0.04),
    acc.Workload(0.0, weight_decay=0.1, learning_rates=RATES),
    acc.Workload(0.9, learning_rates=FALLING),
    acc.Workload(0.7, weight_decay=0.2, learning_rates=RATES),
    acc.Workload(0.7, weight_decay=0.2, learning_rates=[0.25] * N),
]
TOEPLITZ = [
    mech.Identity(),
    mech.Identity(restart_every=25),
    mech.BandedInverse.square_root(5),
    mech.BandedInverse.anticorrelated(0.9, restart_every=17),
    mech.BandedInverse([1.0, 0.4, -0.3]),
    mech.BufferedToeplitz([0.98, 0.5], [0.25, 0.2]),
    mech.BufferedToeplitz([0.9], [0.3], restart_every=20),
    mech.BandedToeplitz([1.0, 0.5, 0.375]),
    mech.BandedToeplitz([2.0, 0.5, 0.3, 0.1], restart_every=31),
]
TREES = [
    mech.Tree(),
    mech.Tree("vanilla"),
    mech.Tree(restart_every=13, complete=True),
    mech.Tree("vanilla", restart_every=20),
    mech.Tree(restart_every=7),
    mech.Tree("vanilla", restart_every=11, complete="all"),
]


def sgd(workload: acc.Workload, noise: Matrix) -> Matrix:
    """Run torch.optim.SGD's recursion on zero gradients with noise; return the scaled iterates."""
    rates = workload.learning_rates or [1.0] * len(noise)
    theta, buffer, rows = np.zeros(noise.shape[1:]), np.zeros(noise.shape[1:]), []
    for rate, x in zip(rates, noise, strict=True):
        buffer = workload.momentum * buffer + (x + workload.weight_decay * theta)
        theta = theta - rate * buffer
        rows.append(theta)
    return -(1.0 - workload.momentum) / max(rates) * np.array(rows)


def lower(column: Matrix) -> Matrix:
    n = len(column)
    age = np.subtract.outer(np.arange(n), np.arange(n))
    return np.where(age >= 0, column[np.maximum(age, 0)], 0.0)


def residuals(mechanism: Any, steps: int) -> Matrix:
    """Return the inverse of the strategy, block by block."""
    rows = np.zeros((steps, steps))
    every = mechanism.restart_every or steps
    for first in range(0, steps, every):
        m = min(every, steps - first)
        rows[first : first + m, first : first + m] = np.linalg.inv(lower(mechanism.strategy(m)))
    return rows


def tree_prefixes(tree: mech.Tree, steps: int) -> Matrix:
    """Return a square root of the covariance of the noise in the running sums."""
    layout = tree.layout(steps)
    lengths = [(run.steps, run.end) for run in layout.runs for _ in range(run.count)]
    blocks = [np.array(reference.covariance(end, tree.variant), float) for _, end in lengths]
    first = np.concatenate([[0], np.cumsum([len(b) for b in blocks])])
    root = np.zeros((first[-1], first[-1]))
    for at, block in zip(first, blocks, strict=False):
        root[at : at + len(block), at : at + len(block)] = np.linalg.cholesky(block)
    rows = []
    for i, (n, _) in enumerate(lengths):
        carried = root[first[1 : i + 1] - 1].sum(axis=0)
        rows += [carried + root[first[i] + t] for t in range(n)]
    return np.array(rows)


def std(rows: Matrix) -> Matrix:
    return np.asarray(np.sqrt((rows * rows).sum(axis=1)))


@pytest.mark.parametrize("workload", WORKLOADS, ids=range(len(WORKLOADS)))
@pytest.mark.parametrize("mechanism", TOEPLITZ, ids=range(len(TOEPLITZ)))
def test_toeplitz_mechanisms_agree_with_matrices(mechanism: Any, workload: acc.Workload) -> None:
    wanted = std(sgd(workload, residuals(mechanism, N)))
    found = acc.mechanism_error(mechanism, N, workload)
    np.testing.assert_allclose(found.per_step, wanted, rtol=1e-10)
    assert found.rms == pytest.approx(np.sqrt(np.mean(wanted**2)))
    assert (found.last, found.worst) == (found.per_step[-1], found.per_step.max())


@pytest.mark.parametrize("workload", WORKLOADS, ids=range(len(WORKLOADS)))
@pytest.mark.parametrize("tree", TREES, ids=range(len(TREES)))
def test_trees_agree_with_matrices(tree: mech.Tree, workload: acc.Workload) -> None:
    prefixes = tree_prefixes(tree, N)
    wanted = std(sgd(workload, np.diff(prefixes, axis=0, prepend=0.0)))
    np.testing.assert_allclose(acc.mechanism_error(tree, N, workload).per_step, wanted, rtol=1e-10)


def test_a_long_inverse_under_a_schedule_agrees_with_matrices() -> None:
    n = 200
    workload = acc.Workload(0.9, 0.05, np.linspace(1.0, 0.1, n).tolist())
    bands = mech.BandedToeplitz(mech.BandedInverse.square_root(90).strategy(90).tolist())
    wanted = std(sgd(workload, residuals(bands, n)))
    np.testing.assert_allclose(acc.mechanism_error(bands, n, workload).per_step, wanted, rtol=1e-10)


SIMULATED = [
    mech.BandedInverse.square_root(4, restart_every=25),
    mech.BufferedToeplitz([0.75], [0.25]),
    mech.BandedToeplitz([1.0, 0.5, 0.25]),
]


@pytest.mark.parametrize("workload", [WORKLOADS[1], WORKLOADS[5]], ids=["momentum", "schedule"])
@pytest.mark.parametrize("mechanism", SIMULATED, ids=range(3))
def test_toeplitz_noise_has_the_error(mechanism: Any, workload: acc.Workload) -> None:
    size = 20_000
    rows: list[Matrix] = []
    layout = mechanism.layout(N)
    for run in layout.runs:
        for _ in range(run.count):
            noise = ToeplitzNoise(
                size, 1.0, mechanism, seed=len(rows).to_bytes(32, "big"), dtype="float64"
            )
            rows += [noise.residual().copy() for _ in range(run.steps)]
    found = np.sqrt(np.mean(sgd(workload, np.array(rows)) ** 2, axis=1))
    wanted = acc.mechanism_error(mechanism, N, workload).per_step
    np.testing.assert_allclose(found, wanted, rtol=5.0 / np.sqrt(2 * size))


def test_the_noise_of_a_tree_has_the_error() -> None:
    size, workload = 20_000, WORKLOADS[5]
    noise = TreeNoise(size, 1.0, seed=bytes(32), dtype="float64")
    rows = np.array([noise.residual().copy() for _ in range(N)])
    found = np.sqrt(np.mean(sgd(workload, rows) ** 2, axis=1))
    wanted = acc.mechanism_error(mech.Tree(), N, workload).per_step
    np.testing.assert_allclose(found, wanted, rtol=5.0 / np.sqrt(2 * size))


# (mechanism, steps, unit rms, unit last; with momentum 0.9), figures of an independent program.
FIGURES = [
    (mech.BandedInverse.square_root(4), 1000, 7.06925534, 9.9375, 6.92144696, 9.83240229),
    (mech.BandedInverse.square_root(2000), 2000, 1.77984383, 1.86699718, 1.41489536, 1.52583927),
    (
        mech.BandedToeplitz(mech.BandedInverse.square_root(100).strategy(100).tolist()),
        2000,
        3.11858208,
        4.19488713,
        2.91296465,
        4.04455239,
    ),
    (mech.BandedInverse.anticorrelated(0.9), 1000, 2.44846891, 3.31511689, 2.23718573, 3.16227766),
    (
        mech.BufferedToeplitz([0.98, 0.5], [0.25, 0.25]),
        10_000,
        5.22666437,
        7.26815064,
        5.10816676,
        7.18343666,
    ),
    (
        mech.BandedInverse([1, -0.5, -0.25, -0.15]),
        1000,
        2.50741999,
        3.35894329,
        2.26474549,
        3.182026,
    ),
    (mech.BufferedToeplitz([0.98], [0.3]), 2000, 2.4306773, 3.13266359, 2.10536771, 2.88781474),
    (mech.BandedInverse.square_root(8), 1050, 4.94215374, 6.88767612, 4.78592954, 6.77633027),
]


@pytest.mark.parametrize(("mechanism", "steps", "rms", "last", "smooth", "smooth_last"), FIGURES)
def test_figures(
    mechanism: Any, steps: int, rms: Any, last: Any, smooth: Any, smooth_last: Any
) -> None:
    plain = acc.mechanism_error(mechanism, steps)
    smoothed = acc.mechanism_error(mechanism, steps, acc.Workload(0.9))
    assert plain.rms == pytest.approx(rms, rel=1e-8)
    assert plain.worst == pytest.approx(last, rel=1e-8)
    assert smoothed.rms == pytest.approx(smooth, rel=1e-8)
    assert smoothed.worst == pytest.approx(smooth_last, rel=1e-8)


def test_noise_std_is_the_short_form() -> None:
    tree = mech.Tree(restart_every=16, complete=True)
    found = acc.noise_std(acc.SinglePass(50), tree, momentum=0.5)
    for got, workload in ((found.prefix, acc.Workload()), (found.smoothed, acc.Workload(0.5))):
        np.testing.assert_array_equal(got, acc.mechanism_error(tree, 50, workload).per_step)
    blt = mech.BufferedToeplitz([0.9], [0.1])
    np.testing.assert_array_equal(
        acc.noise_std(9, blt).prefix, acc.mechanism_error(blt, acc.SinglePass(9)).per_step
    )


def test_a_workload_is_a_value() -> None:
    workload = acc.Workload(0.9, 0.1, np.array([1, 2]))  # type: ignore[arg-type]
    assert workload == acc.Workload(0.9, 0.1, (1.0, 2.0)) and hash(workload)
    assert acc.Workload.from_dict(workload.to_dict()) == workload
    assert workload.decay == 0.2 and workload.relative_rates(2).tolist() == [0.5, 1.0]  # type: ignore[union-attr]
    assert acc.Workload(learning_rates=[3.0] * 4).relative_rates(4) is None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number >= 0 and < 1"),
        ({"momentum": "a"}, TypeError, "momentum must be"),
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be"),
        ({"weight_decay": float("inf")}, ValueError, "weight_decay must be"),
        ({"learning_rates": []}, ValueError, "learning_rates must hold one rate a step, got 0"),
        ({"learning_rates": [0.0, 0]}, ValueError, "at least one rate > 0, got zeros only"),
        ({"learning_rates": [1.0, -1.0]}, ValueError, "each of learning_rates must be"),
        ({"learning_rates": [1.0, float("nan")]}, ValueError, "each of learning_rates must be"),
        ({"learning_rates": [1.0, None]}, TypeError, "each of learning_rates must be"),
        ({"learning_rates": 0.1}, TypeError, "learning_rates must be a sequence of numbers"),
        ({"learning_rates": "11"}, TypeError, "learning_rates must be a sequence of numbers"),
        ({"weight_decay": 1e10, "learning_rates": [1e300]}, ValueError, "rate must be finite"),
    ],
)
def test_a_workload_refuses(arguments: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        acc.Workload(**arguments)


def test_dictionaries_of_other_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="exactly the keys"):
        acc.Workload.from_dict({"momentum": 0.5})
    with pytest.raises(TypeError, match="must be a mapping"):
        acc.Workload.from_dict([])  # type: ignore[arg-type]


def test_mechanism_error_refuses() -> None:
    tree = mech.Tree()
    with pytest.raises(ValueError, match="one rate for each of the 5 steps, got 2"):
        acc.mechanism_error(tree, 5, acc.Workload(learning_rates=[1, 1]))
    with pytest.raises(TypeError, match="workload must be a Workload, got float"):
        acc.mechanism_error(tree, 5, 0.9)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="mechanism must be"):
        acc.mechanism_error(5, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at most 2\^26"):
        acc.mechanism_error(tree, 2**26 + 1)
    with pytest.raises(ValueError, match="number of taps or bands, 4, got 3"):
        acc.mechanism_error(mech.BandedInverse.square_root(4), 3)


@pytest.mark.parametrize("size", [1e-30, 1e16, 1e17, 1e30])
@pytest.mark.parametrize("rates", [None, np.linspace(1.0, 0.1, 50).tolist()])
def test_bands_of_any_size_have_the_error_of_the_noise_that_they_scale(
    size: float, rates: list[float] | None
) -> None:
    workload = acc.Workload(0.5, 0.01, rates)
    for bands in ((1.0, -0.5), (1.0, 0.5, 0.25)):
        scaled = mech.BandedToeplitz([size * band for band in bands])
        per_step = acc.mechanism_error(scaled, 50, workload).per_step * size
        expected = acc.mechanism_error(mech.BandedToeplitz(bands), 50, workload).per_step
        np.testing.assert_allclose(per_step, expected, rtol=1e-12)


@pytest.mark.parametrize(
    "workload",
    [acc.Workload(weight_decay=10.0), acc.Workload(0.9, 5.0), acc.Workload(0.0, 1e300)],
)
@pytest.mark.parametrize("mechanism", [mech.Identity(), mech.Tree(), mech.Tree(restart_every=100)])
def test_an_error_that_overflows_is_refused(mechanism: Any, workload: acc.Workload) -> None:
    pattern = acc.FixedEpochs(10, 100)
    calibrate = partial(PrivacyPlan.calibrate, epsilon=8.0, delta=1e-5, clip_norm=1.0)
    for call in (
        lambda: acc.mechanism_error(mechanism, 1000, workload),
        lambda: acc.plan_mechanism(8.0, 1e-5, pattern, workload=workload),
        lambda: calibrate(participation=pattern, workload=workload),
    ):
        with pytest.raises(ValueError, match="must stay finite"):
            call()


def test_a_schedule_that_asks_for_too_much_work_is_refused() -> None:
    n = 2**18 + 8
    workload = acc.Workload(learning_rates=[1.0] * (n - 1) + [0.5])
    slow = mech.BandedToeplitz([1.0, 1.0])  # its inverse does not fall
    with pytest.raises(ValueError, match=r"at most 2\^36 operations"):
        acc.mechanism_error(slow, n, workload)


def test_the_core_refuses_what_does_not_fit() -> None:
    one, out = np.ones(1), np.empty(4)
    with pytest.raises(ValueError, match="blocks must add up"):
        _core.workload_error(one, 0.0, 0.0, None, [(3, 1)], out)
    with pytest.raises(ValueError, match="blocks must add up"):
        _core.workload_error_buffers(one, one, 0.0, 0.0, None, [(0, 1)], out)
    with pytest.raises(ValueError, match="rates must have 4 elements, got 1"):
        _core.workload_error(one, 0.0, 0.0, one, [(4, 1)], out)
    with pytest.raises(ValueError, match="at least one coefficient"):
        _core.workload_error(np.ones(0), 0.0, 0.0, None, [(4, 1)], out)
    with pytest.raises(TypeError, match="float64"):
        _core.workload_error(np.ones(1, np.float32), 0.0, 0.0, None, [(4, 1)], out)
    with pytest.raises(ValueError, match="trees must add up"):
        _core.workload_error_trees([(3, 1, False)], "honaker", 0.0, 0.1, None, out)
    with pytest.raises(ValueError, match="variant must be"):
        _core.workload_error_trees([(4, 1, False)], "other", 0.0, 0.1, None, out)
