# SPDX-License-Identifier: Apache-2.0
"""The clipped gradient sum of 4096 x 1000 float32 rows, against NumPy/BLAS and one read of them.

`pytest benches/bench_gradients.py` times them one after another.
`python benches/bench_gradients.py` alternates them, as a shared machine requires, and prints the
ratios of docs/internals/kernels.md. Everything runs in one thread: BLAS is limited before NumPy is
imported if this file runs as a script, and through threadpoolctl, if installed, under pytest.

Two settings. "memory": every call takes another batch of a set larger than any cache, as in a pass
over large data. "cache": the same 16 MB every time, which a large last-level cache holds.
"""

from __future__ import annotations

import contextlib
import os
import sys

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import itertools
import platform
import time
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
import pytest

from dpftrl_fast.kernels import clipped_sum

N, P = 4096, 1000
BATCHES = 12
CLIP_NORM = 5.0
SETTINGS = ("memory", "cache")

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[Array], Array]


@numba.njit(fastmath={"reassoc"})
def _sum_entries(entries):
    total = np.float32(0.0)
    for i in range(entries.size):  # with an index: LLVM makes vectors of it
        total += entries[i]
    return total


def make_batches() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((N, P), dtype=np.float32) for _ in range(BATCHES)]


_RNG = np.random.default_rng(2)
Y = _RNG.standard_normal(N)
THETA = _RNG.standard_normal(P) / np.sqrt(P)


def ours(loss: Any) -> Call:
    out = np.empty(P)
    return lambda X: clipped_sum(X, Y, THETA, clip_norm=CLIP_NORM, loss=loss, out=out)


def numpy_blas() -> Call:
    """Squared loss in float32: norms by a dot product a row, clipping, and two products."""
    y, theta, clip_norm = Y.astype(np.float32), THETA.astype(np.float32), np.float32(CLIP_NORM)
    slope, norm = np.empty(N, np.float32), np.empty(N, np.float32)
    out = np.empty(P, np.float32)

    def call(X: Array) -> Array:
        np.dot(X, theta, out=slope)
        np.subtract(slope, y, out=slope)
        np.sqrt(np.vecdot(X, X, out=norm), out=norm)
        np.multiply(norm, np.abs(slope), out=norm)
        np.divide(clip_norm, norm, out=norm)
        np.minimum(norm, 1, out=norm)
        np.multiply(slope, norm, out=slope)
        return np.dot(slope, X, out=out)

    return call


def read_once(X: Array) -> Array:
    return np.float64(_sum_entries(X.ravel()))


def numpy_sum(X: Array) -> Array:
    return X.sum()


CALLS: dict[str, Callable[[], Call]] = {
    "ours, squared": lambda: ours("squared"),
    "ours, logistic": lambda: ours("logistic"),
    "ours, huber": lambda: ours("huber"),
    "ours, hinge": lambda: ours("hinge"),
    "NumPy/BLAS, squared": numpy_blas,
    "read once (Numba sum)": lambda: read_once,
    "read once (NumPy sum)": lambda: numpy_sum,
}


def check(name: str, X: Array, result: Array) -> None:
    """Compare with float64 NumPy, which holds all gradients."""
    X64 = X.astype(np.float64)
    if name.startswith("read"):
        np.testing.assert_allclose(float(result), X64.sum(), atol=3.0)
        return
    z = X64 @ THETA
    s = np.where(Y > 0, 1.0, -1.0)
    slope = {
        "squared": z - Y,
        "huber": np.clip(z - Y, -1, 1),
        "logistic": -s / (1 + np.exp(s * z)),
        "hinge": np.where(s * z < 1, -s, 0),
    }[name.split(", ")[1]]
    gradients = slope[:, None] * X64
    norms = np.linalg.norm(gradients, axis=1)
    factors = np.minimum(1, CLIP_NORM * (1 - 2.0**-20) / np.maximum(norms, 1e-300))
    expected = factors @ gradients
    tolerance = 1e-9 if name.startswith("ours") else 1e-2
    np.testing.assert_allclose(result, expected, rtol=0, atol=tolerance)


@contextlib.contextmanager
def one_blas_thread() -> Iterator[str]:
    try:
        import threadpoolctl
    except ImportError:
        yield os.environ.get("OPENBLAS_NUM_THREADS", "not limited")
    else:
        with threadpoolctl.threadpool_limits(1):
            yield "1"


@pytest.fixture(scope="module")
def batches() -> Iterator[list[Array]]:
    with one_blas_thread():
        yield make_batches()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_clipped_gradient_sum(
    benchmark: Any, batches: list[Array], setting: str, name: str
) -> None:
    benchmark.group = f"clipped gradient sum, {N} x {P} float32, rows from {setting}"
    call = CALLS[name]()
    check(name, batches[0], call(batches[0]))
    if setting == "cache":
        benchmark(call, batches[0])
    else:
        order = itertools.cycle(batches)
        benchmark.pedantic(
            call, setup=lambda: ((next(order),), {}), rounds=40, warmup_rounds=BATCHES
        )


def main(rounds: int) -> None:
    print(f"{platform.machine()} {platform.processor()}, Python {platform.python_version()}")
    print(f"NumPy {np.__version__}, Numba {numba.__version__}, one thread, {rounds} rounds")
    batches = make_batches()
    calls = {name: make() for name, make in CALLS.items()}
    for name, call in calls.items():
        check(name, batches[0], call(batches[0]))
    times: dict[tuple[str, str], list[float]] = {(s, n): [] for s in SETTINGS for n in calls}
    order = itertools.cycle(range(1, BATCHES))
    for _ in range(rounds):
        for name, call in calls.items():
            k = next(order)  # last used a whole turn through the set ago
            begin = time.perf_counter()
            call(batches[k])
            times["memory", name].append(time.perf_counter() - begin)
        for name, call in calls.items():
            call(batches[0])
            begin = time.perf_counter()
            call(batches[0])
            times["cache", name].append(time.perf_counter() - begin)
    for setting in SETTINGS:
        print(f"\nrows from {setting}:   median   ratio  minimum   ratio   (to the Numba sum)")
        base = times[setting, "read once (Numba sum)"]
        for name in calls:
            values = times[setting, name]
            median, least = np.median(values), min(values)
            print(
                f"{name:24s} {median * 1e3:6.3f} ms  {median / np.median(base):5.2f}"
                f"  {least * 1e3:6.3f} ms  {least / min(base):5.2f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
