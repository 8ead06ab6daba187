# SPDX-License-Identifier: Apache-2.0
"""A step of private least squares against its parts, and the solvers.

`pytest benches/bench_least_squares.py` times them one after another.
`python benches/bench_least_squares.py` alternates them, as a shared machine requires, and prints
the ratios of docs/sklearn/least_squares.md; with `large` it runs 400 steps of 256 rows at p = 4000
instead and prints time and memory. Everything runs in one thread: BLAS is limited before NumPy is
imported if this file runs as a script, and through threadpoolctl, if installed, under pytest.

A step scales the rows, adds their product to the packed sum, makes the noise of the step and writes
the noisy sum. Models are solved for separately.
"""

from __future__ import annotations

import contextlib
import os
import sys

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import platform
import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.linalg import blas

from dpftrl_fast import TreeNoise
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.solver import Minimiser
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.kernels.least_squares import RankUpdate
from dpftrl_fast.kernels.packed import add_noise, packed_size
from dpftrl_fast.rounding import release_grid

B, P = 256, 1000
Call = Callable[[], Any]


def rows(p: int, dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return (rng.standard_normal((B, p)) / np.sqrt(p)).astype(dtype), rng.standard_normal(B)


def ours() -> Call:
    (X, y), size = rows(P), packed_size(P)
    total, low, bias = np.zeros(size), np.zeros(size), np.empty(P)
    update = RankUpdate(P, x_norm_bound=1.0, y_bound=1.0)
    noise, noisy = TreeNoise(size, 1.0, threads=1), np.empty(size, np.float32)

    def step() -> Any:
        update.add(X, y, total, low, bias)
        noise.step(noisy)
        add_noise(total, low, noisy, release_grid(1.0))
        return noisy

    return step


def syrk(dtype: str) -> Call:
    X, _ = rows(P, dtype)
    product = blas.dsyrk if dtype == "float64" else blas.ssyrk
    out = np.zeros((P, P), dtype, order="F")
    return lambda: product(1.0, X.T, c=out, lower=1, overwrite_c=1)


def tree() -> Call:
    noise, out = TreeNoise(packed_size(P), 1.0, threads=1), np.empty(packed_size(P), np.float32)
    return lambda: noise.step(out)


def numpy_step() -> Call:
    """Without packing: a float64 product, a sum of p x p matrices, noise of a whole matrix."""
    X, y = rows(P)
    W, s = np.zeros((P, P)), np.zeros(P)
    noise, out = TreeNoise(P * P, 1.0, threads=1), np.empty((P, P), np.float32)

    def step() -> Any:
        nonlocal W, s
        rows64 = X.astype(np.float64)
        W += rows64.T @ rows64
        s += rows64.T @ y
        noise.step(out)
        return W + (out + out.T) / 2

    return step


def solver(name: Any) -> Call:
    rng = np.random.default_rng(1)
    A = rng.standard_normal((P, 2 * P)) / np.sqrt(P)
    packed = (A @ A.T)[np.triu_indices(P)].astype(np.float32)
    minimise, b, start = Minimiser(P, solver=name), rng.standard_normal((1, P)), np.zeros((1, P))
    return lambda: minimise(1, packed, b, 1.0, start)


CALLS: dict[str, Callable[[], Call]] = {
    "our step": ours,
    "dsyrk of the batch": lambda: syrk("float64"),
    "ssyrk of the batch": lambda: syrk("float32"),
    "tree step on p(p+1)/2": tree,
    "NumPy, whole matrices": numpy_step,
    "model by Cholesky": lambda: solver("cholesky"),
    "model by conjugate gradients": lambda: solver("cg"),
}


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    try:
        import threadpoolctl
    except ImportError:
        yield
    else:
        with threadpoolctl.threadpool_limits(1):
            yield


def check() -> None:
    """The step's sum without noise is the product of the scaled rows."""
    X, y = rows(P)
    total, low, bias = np.zeros(packed_size(P)), np.zeros(packed_size(P)), np.empty(P)
    RankUpdate(P, x_norm_bound=1.0, y_bound=1.0).add(X, y, total, low, bias)
    X64 = X.astype(np.float64)
    X64 *= np.minimum(1, (1 - 2.0**-20) / np.linalg.norm(X64, axis=1))[:, None]
    np.testing.assert_allclose(total, (X64.T @ X64)[np.triu_indices(P)], atol=1e-12)
    np.testing.assert_allclose(bias, X64.T @ np.clip(y, -1, 1), atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_least_squares(benchmark: Any, name: str) -> None:
    benchmark.group = f"least squares, {B} x {P} float32"
    with one_blas_thread():
        check()
        benchmark(CALLS[name]())


def large(p: int = 4000, steps: int = 400) -> None:
    """Run with a model every 100 steps and in the end, and print time and memory."""
    plan = LeastSquaresPlan.calibrate(
        epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0, participation=SinglePass(steps)
    )
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(p) / np.sqrt(p)
    model = LeastSquares(plan, p, solve_every=100, threads=1)
    spent, solving = 0.0, 0.0
    for t in range(1, steps + 1):
        X = rng.standard_normal((B, p), dtype=np.float32) / np.float32(np.sqrt(p))
        y = np.asarray(X @ theta, dtype=np.float64)
        start = time.perf_counter()
        model.step(Batch(X, y))
        took = time.perf_counter() - start
        spent += took
        if t % 100 == 0:
            solving += took
            print(f"step {t}: {model.solves[-1]}, {took:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    steps_only = (spent - solving) / (steps - 4)
    print(f"p = {p}: {spent:.0f} s, {steps_only * 1e3:.0f} ms a step without a model, "
          f"{peak:.2f} GiB at most")  # fmt: skip


def main(rounds: int) -> None:
    print(f"{platform.processor() or platform.machine()}, NumPy {np.__version__}, one thread")
    check()
    calls = {name: make() for name, make in CALLS.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    best = {name: min(spent) * 1e3 for name, spent in times.items()}
    median = {name: float(np.median(spent)) * 1e3 for name, spent in times.items()}
    for name in calls:
        print(f"{name:30} median {median[name]:7.2f} ms, minimum {best[name]:7.2f} ms")
    for kind, table in (("median", median), ("minimum", best)):
        base = table["dsyrk of the batch"] + table["tree step on p(p+1)/2"]
        print(f"our step / (dsyrk + tree step), {kind}: {table['our step'] / base:.2f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["large"]:
        large()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
