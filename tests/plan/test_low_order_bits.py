# SPDX-License-Identifier: Apache-2.0
"""The low-order bits of private running sums and of linear models tell nothing of a record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from low_order_bits import FEW, MANY, scores
from mechanism_cases import MECHANISMS

import dpftrl_fast as dpf
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.mechanisms.run_error import per_step_std
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.noise.toeplitz import ToeplitzNoise
from dpftrl_fast.rounding import noisy_sum

Array = np.ndarray[Any, np.dtype[np.float64]]
D, T, SIGMA = 256, 4, 10.0
#: Noise that grows fast in the course of a run.
WILD: dict[str, Any] = {
    "independent": mech.Identity(),
    "a tree a step": mech.Tree(restart_every=1),
    "a sum of sums": mech.BandedToeplitz([1.0, -1.0]),
    "exponential": mech.BandedToeplitz([1.0, -2.0]),
}
counts = pytest.mark.parametrize(
    "runs", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"]
)


def record(number: int, norm: float, size: int = D) -> Array:
    g = np.random.default_rng(number).normal(size=size)
    return np.asarray(g * norm / np.linalg.norm(g))


def others(number: int, size: int = D) -> Array:
    """A record of somebody else in each step; none in half of the runs' pairs."""
    if number // 2 % 2:
        return np.zeros((T, size))
    return np.array([record(10 * number + t, 0.5, size) for t in range(T)])


def assert_nothing_is_told(run: Any, grid: float, runs: int) -> None:
    found = scores(run, grid, runs)
    # By chance once in 10^4 runs of all tests.
    assert max(found.values()) < 6.0, found


def attack_prefix_sums(name: str, norm: float, dtype: Any, runs: int) -> None:
    mechanism = MECHANISMS.get(name, "auto")

    def run(has_record: bool, number: int) -> tuple[Array, Array]:
        sums = dpf.PrefixSum(D, T, 1.0, SIGMA, mechanism=mechanism, dtype=dtype, threads=1)
        rest = others(number)
        released = []
        for t in range(T):
            extra = [record(number, norm)] if t == 2 and has_record else []
            released.append(sums.add(np.array([rest[t], *extra])))
        return np.array(released), rest.cumsum(axis=0)

    spec = dpf.PrefixSum(D, T, 1.0, SIGMA, mechanism=mechanism, dtype=dtype).plan.noise_spec
    assert_nothing_is_told(run, spec.grid(dtype), runs)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("name", ["auto", *MECHANISMS])
def test_prefix_sums(name: str, norm: float, dtype: Any) -> None:
    attack_prefix_sums(name, norm, dtype, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("norm", [0.1, 1e-6])
@pytest.mark.parametrize("name", ["tree", "two taps"])
def test_many_prefix_sums(name: str, norm: float, dtype: Any) -> None:
    attack_prefix_sums(name, norm, dtype, MANY)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("log_steps", [1, 6, 9, 10, 12, 16, 20, 22, 24, 26, 28, 36])
@pytest.mark.parametrize("name", [*WILD, *MECHANISMS])
def test_numbers_of_the_noise_are_fine_against_the_grid_or_it_is_refused(
    name: str, log_steps: int, dtype: Any
) -> None:
    """The noise of a running sum must not be on a lattice that shows the sum modulo itself."""
    mechanism: Any = {**WILD, **MECHANISMS}[name]
    steps = max(2**log_steps, getattr(mechanism, "bands", 1))
    if hasattr(mechanism, "rounded"):
        mechanism = mechanism.rounded(dtype)
    spec = dpf.PrivacyPlan(1.0, SIGMA, SinglePass(steps), mechanism=mechanism).noise_spec
    largest = spec.std(dtype) * spec.layout.largest_std
    try:
        noise = spec.source(1, dtype=dtype, threads=1)
    except ValueError as error:
        assert "numbers are fine enough" in str(error)
        assert math.isinf(largest) or largest * float(np.finfo(dtype).eps) > spec.grid(dtype) / 512
        assert dtype == "float32" or name in WILD
        return
    assert float(np.spacing(np.array(largest, dtype))) <= noise.grid / 32
    if steps <= 2**16:
        found = per_step_std(spec.layout, Workload())
        assert largest >= found.max() * spec.std(dtype) * (1 - 1e-9)


def test_noise_that_outgrows_float32_would_show_the_sum() -> None:
    """What is refused: the bits of the sum below the spacing of the noise are those released."""
    mechanism = mech.BandedToeplitz([1.0, -1.0])
    spec = dpf.PrivacyPlan(1.0, SIGMA, SinglePass(30_000), mechanism=mechanism).noise_spec
    with pytest.raises(ValueError, match=r"grows to 3e.06 times .* take dtype='float64', or a"):
        spec.source(8, dtype="float32")
    noise = ToeplitzNoise(64, spec.std("float32"), mechanism, dtype="float32", threads=1)
    for _ in range(30_000):
        values = noise.step()
    coarse = values[np.abs(values) > 2.0**22]  # multiples of 1/2
    released = noisy_sum(np.full(coarse.size, 0.1), np.zeros(coarse.size), coarse, 2.0**-4)
    assert coarse.size > 32 and np.unique(released % 0.5).tolist() == [0.125]  # that of the sum
    assert spec.grid("float32") == 2.0**-4
    fine = spec.source(8, dtype="float64")
    assert fine.grid == spec.grid("float64")


def test_the_attack_tells_sums_that_are_not_rounded() -> None:
    """Noise in double precision does not hide such bits by itself."""
    plan = dpf.PrefixSum(D, T, 1.0, SIGMA).plan

    def run(has_record: bool, number: int) -> tuple[Array, Array]:
        noise, rest = plan.noise(D, dtype="float64"), np.zeros((T, D))
        total, released = np.zeros(D), []
        for t in range(T):
            total = total + (record(number, 0.1) if t == 2 and has_record else 0.0)
            released.append(total + noise.step())
        return np.array(released), rest

    found = scores(run, plan.noise_spec.grid("float64"), 60)
    assert found["small values"] > 8 and found["last places of all"] > 8, found


@counts
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_linear_models(loss: str, runs: int) -> None:
    plan = dpf.PrivacyPlan(1.0, SIGMA, SinglePass(T))
    objective = Objective(loss, 64, clip_norm=1.0, row_bound=1.0)

    def run(has_record: bool, number: int) -> tuple[Array, Array]:
        # The rate is a power of two: the iterates show the noisy sums to the last bit.
        model = GLMRun(objective, plan, learning_rate=1.0, batch_size=1, threads=1)
        released = []
        for t in range(T):
            X = record(number, 0.05, 64)[None] if t == 0 and has_record else np.zeros((1, 64))
            model.step(Batch(X, np.ones(1)))
            released.append(-model.theta[0])
        return np.array(released), np.zeros((T, 64))

    assert_nothing_is_told(run, plan.noise_spec.grid("float64"), runs)


@counts
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_least_squares(dtype: Any, runs: int) -> None:
    plan = LeastSquaresPlan(1.0, 1.0, SIGMA, SinglePass(T))
    p = 20

    def run(has_record: bool, number: int) -> tuple[Array, Array]:
        model = LeastSquares(plan, p, solve_every=1, dtype=dtype, threads=1)
        released = []
        for t in range(T):
            X = record(number, 0.01, p)[None] if t == 2 and has_record else np.zeros((1, p))
            model.step(Batch(X, np.ones(1)))
            released.append(model.released()[1].astype(np.float64))
        return np.array(released), np.zeros((T, p * (p + 1) // 2))

    assert_nothing_is_told(run, plan.covariance.noise_spec.grid(dtype), runs)
