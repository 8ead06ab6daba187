# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the private estimators against non-private fits and plain loops.

`pytest benches/bench_estimators.py` times the calls one after another.
`python benches/bench_estimators.py` alternates them, for shared machines, and prints the ratios of
docs/results/benchmarks.md. Everything runs in one thread: BLAS is limited before NumPy is imported
in a script, and through threadpoolctl under pytest. Least squares is in bench_least_squares.py.

Groups:

- "flights": one pass over the 267,346 flights, dense float32, batches of 256, by the estimator and
  by its engine, beside a pass of gradient descent by NumPy and BLAS (two products and an update a
  batch) and an epoch of scikit-learn's SGDRegressor (one update a row). The last two are not
  private.
- "reference": 20 batches of the flights by the engine and by `dpftrl_fast.reference`.
- "multinomial": the clipped sum of 4096 x 784 rows with 10 classes, beside NumPy and BLAS, which
  use that the norm of a gradient is the norm of the slopes times that of the row.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import functools
import platform
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from sklearn.linear_model import SGDRegressor

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.datasets import flights
from dpftrl_fast.kernels import clipped_sum
from dpftrl_fast.linear_model import DPFTRLRegressor
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.reference import TreeNoise, convex
from dpftrl_fast.tables import Encoder
from dpftrl_fast.tables.schema import Schema

B, CLIP_NORM, ROW_BOUND, CONSTANT = 256, 0.3, 15**0.5 / 4, 0.25
RATE = 0.9  # 1/lambda
SOME = 20 * B

Array = np.ndarray[Any, np.dtype[Any]]
Call = Callable[[], Array]


@functools.cache
def rows() -> tuple[Array, Array]:
    """The flights without their constant column, and the targets."""
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as folder:
        paths = flights(folder)
        schema = Schema.load(paths["schema"])
        table = Encoder(schema).encode(parquet.read_table(paths["train"]))
    X = table.matrix(schema.n_features).tocsr()[:, :-1].astype(np.float32).toarray()
    return X, table.target


@functools.cache
def with_constant() -> tuple[Array, Array]:
    X, y = rows()
    return np.hstack([X, np.full((len(X), 1), CONSTANT, np.float32)]), y.astype(np.float32)


# ---- A pass over the flights ----


def estimator() -> Call:
    X, y = rows()
    model = DPFTRLRegressor(
        1.0, 1e-6, clip_norm=CLIP_NORM, x_norm_bound=ROW_BOUND, intercept_scaling=CONSTANT,
        learning_rate=RATE, batch_size=B, threads=1, mechanism="tree",
    )  # fmt: skip

    def fit() -> Array:
        model.fit(X, y)
        return np.append(model.coef_tail_, model.intercept_tail_ / CONSTANT)

    return fit


@functools.cache
def plan_of(count: int) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-6, clip_norm=CLIP_NORM, participation=SinglePass(-(-count // B)),
        mechanism="tree", bound="released",
    )  # fmt: skip


def engine_run(X: Array, y: Array, seed: int | None) -> GLMRun:
    objective = Objective(
        "squared", X.shape[1], clip_norm=CLIP_NORM, row_bound=ROW_BOUND, constant=CONSTANT
    )
    run = GLMRun(
        objective, plan_of(len(y)), learning_rate=RATE, batch_size=B, threads=1, noise_seed=seed
    )
    for start in range(0, len(y), B):
        run.step(Batch(X[start : start + B], y[start : start + B]))
    return run


def engine() -> Call:
    X, y = rows()
    return lambda: engine_run(X, y, None).tail[0]


def blas() -> Call:
    """Mini-batch gradient descent in float32, without averages."""
    X, y = with_constant()

    def epoch() -> Array:
        theta = np.zeros(X.shape[1], np.float32)
        rate = np.float32(RATE / B)
        for start in range(0, len(y), B):
            batch = X[start : start + B]
            residual = batch @ theta
            residual -= y[start : start + B]
            theta -= rate * (batch.T @ residual)
        return theta

    return epoch


def scikit_learn() -> Call:
    X, y = with_constant()

    def epoch() -> Array:
        model = SGDRegressor(
            learning_rate="constant", eta0=0.01, penalty=None, fit_intercept=False, shuffle=False
        )
        return np.asarray(model.partial_fit(X, y).coef_)

    return epoch


FLIGHTS: dict[str, Callable[[], Call]] = {
    "estimator, fit": estimator,
    "engine, all steps": engine,
    "NumPy/BLAS, not private": blas,
    "SGDRegressor.partial_fit": scikit_learn,
}


def check_flights(theta: Array) -> None:
    """The model explains what linear models explain of the training rows."""
    X, y = with_constant()
    error = X @ theta.astype(np.float32) - y
    assert 0.80 < 1 - np.mean(error**2) / np.var(y) < 0.83


# ---- Against the reference ----


def some() -> tuple[Array, Array]:
    X, y = rows()
    return X[:SOME], y[:SOME]


def engine_some() -> Call:
    X, y = some()
    return lambda: engine_run(X, y, 1).last[0]


def reference_some() -> Call:
    X, y = some()
    lists, targets, plan = X.tolist(), y.tolist(), plan_of(SOME)

    def run() -> Array:
        noise = TreeNoise(
            X.shape[1] + 1, plan.clip_norm * plan.noise_multiplier, seed=1, dtype="float64"
        )
        batches = [
            (lists[start : start + B], targets[start : start + B], None)
            for start in range(0, SOME, B)
        ]
        state = convex.run(
            batches, "squared", columns=X.shape[1], clip_norm=CLIP_NORM, noise=noise,
            learning_rate=RATE, batch_size=B, steps=plan.steps, row_bound=ROW_BOUND,
            constant=CONSTANT, grid=plan.noise_spec.grid("float64"),
        )  # fmt: skip
        return np.array(state.iterates[-1])

    return run


REFERENCE: dict[str, Callable[[], Call]] = {
    "engine, 20 steps": engine_some,
    "reference, 20 steps": reference_some,
}


@functools.cache
def expected_some() -> Array:
    return reference_some()()


def check_some(theta: Array) -> None:
    np.testing.assert_allclose(theta, expected_some(), rtol=1e-9, atol=1e-12)


# ---- Multinomial ----

CLASSES = 10


@functools.cache
def images() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(1)
    X = rng.standard_normal((4096, 784), dtype=np.float32)
    theta = rng.standard_normal((CLASSES, 784)) / 28
    return X, rng.integers(CLASSES, size=4096).astype(np.float64), theta


def multinomial() -> Call:
    X, y, theta = images()
    out = np.empty_like(theta)
    return lambda: clipped_sum(X, y, theta, clip_norm=9.0, loss="multinomial", out=out)


def multinomial_numpy(dtype: Any) -> Call:
    X, y, theta = images()
    theta, one = theta.astype(dtype), np.eye(CLASSES, dtype=dtype)[y.astype(int)]

    def call() -> Array:
        data = X.astype(dtype, copy=False)
        slopes = data @ theta.T
        slopes -= slopes.max(axis=1, keepdims=True)
        np.exp(slopes, out=slopes)
        slopes /= slopes.sum(axis=1, keepdims=True)
        slopes -= one
        norms = np.sqrt(np.vecdot(data, data) * np.vecdot(slopes, slopes))
        slopes *= np.minimum(1, 9.0 * (1 - 2.0**-20) / norms)[:, None].astype(dtype)
        return np.asarray(slopes.T @ data)

    return call


MULTINOMIAL: dict[str, Callable[[], Call]] = {
    "ours": multinomial,
    "NumPy/BLAS, float64": lambda: multinomial_numpy(np.float64),
    "NumPy/BLAS, float32": lambda: multinomial_numpy(np.float32),
}


def check_multinomial(total: Array) -> None:
    np.testing.assert_allclose(total, multinomial_numpy(np.float64)(), rtol=0, atol=2e-2)


GROUPS: dict[str, tuple[dict[str, Callable[[], Call]], Callable[[Array], None]]] = {
    "flights": (FLIGHTS, check_flights),
    "reference": (REFERENCE, check_some),
    "multinomial": (MULTINOMIAL, check_multinomial),
}


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, (calls, _) in GROUPS.items() for name in calls]
)
def test_estimators(benchmark: Any, group: str, name: str) -> None:
    calls, check = GROUPS[group]
    if group != "multinomial":
        try:
            rows()
        except FileNotFoundError as error:
            pytest.skip(str(error))
    benchmark.group = group
    with threadpoolctl.threadpool_limits(1):
        call = calls[name]()
        check(call())
        benchmark.pedantic(call, rounds=5, warmup_rounds=1)


def alternate(group: str, rounds: int) -> dict[str, list[float]]:
    calls, check = GROUPS[group]
    made = {name: make() for name, make in calls.items()}
    for call in made.values():
        check(call())
    times: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, call in made.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def main(rounds: int) -> None:
    print(f"{platform.machine()} {platform.processor()}, Python {platform.python_version()}")
    print(f"NumPy {np.__version__}, one thread, {rounds} rounds")
    for group, base, count in (
        ("flights", "NumPy/BLAS, not private", rounds),
        ("reference", "engine, 20 steps", max(3, rounds // 5)),
        ("multinomial", "NumPy/BLAS, float64", rounds),
    ):
        times = alternate(group, count)
        print(f"\n{group:28}  median    minimum   ratio to {base}: of medians, of minima")
        for name, spent in times.items():
            median, least = float(np.median(spent)), min(spent)
            ratios = median / float(np.median(times[base])), least / min(times[base])
            print(
                f"{name:28} {median * 1e3:9.2f} {least * 1e3:9.2f} ms  "
                f"{ratios[0]:8.2f} {ratios[1]:8.2f}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
