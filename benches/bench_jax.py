# SPDX-License-Identifier: Apache-2.0
"""A step of noise inside `jax.jit`, beside jax_privacy's of the same mechanism.

`pytest benches/bench_jax.py` times each call. `python benches/bench_jax.py [rounds]` alternates
them, which a shared machine asks for, and prints the versions and the ratios.

Both add the noise of one step to a sum of 10^7 float32 numbers, whose buffer is given away
(donated), and so are the buffers of jax_privacy's state. jax_privacy draws from JAX's default
generator, has one rounding fewer (no grid), and no record of the steps taken.
"""

from __future__ import annotations

import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

import dpftrl_fast as dpf  # noqa: E402
from dpftrl_fast.mechanisms import BandedToeplitz, BufferedToeplitz  # noqa: E402
from dpftrl_fast.optax import residual_noise  # noqa: E402

SIZE, STEPS, THREADS, STD = 10**7, 10_000, 2, 2.0
DECAY, SCALE, BANDS = (0.96875, 0.5), (0.25, 0.125), (1.0, 0.5, 0.25, 0.125)
MECHANISMS: dict[str, Any] = {
    "two buffers": BufferedToeplitz(DECAY, SCALE),
    "4 bands": BandedToeplitz(BANDS),
}


class Ours:
    def __init__(self, name: str, size: int, transport: Any = "auto") -> None:
        plan = dpf.PrivacyPlan(1.0, STD, dpf.SinglePass(STEPS), mechanism=MECHANISMS[name])
        self.noise = residual_noise(plan, noise_seed=1, threads=THREADS, transport=transport)
        self.state = self.noise.init(jnp.zeros(size))
        self.update = jax.jit(self.noise.update, donate_argnums=0)
        self.sums = jnp.zeros(size)

    def __call__(self) -> Any:
        self.sums, self.state = self.update(self.sums, self.state)
        return self.sums.block_until_ready()


class Theirs:
    def __init__(self, name: str, size: int) -> None:
        noise_addition = pytest.importorskip("jax_privacy.noise_addition")
        from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

        if name == "two buffers":
            strategy = buffered_toeplitz.BufferedToeplitz.build(DECAY, SCALE, dtype=jnp.float32)
            matrix = strategy.inverse_as_streaming_matrix()
        else:
            matrix = toeplitz.inverse_as_streaming_matrix(jnp.array(BANDS))
        privatizer = noise_addition.matrix_factorization_privatizer(
            matrix, stddev=STD, prng_key=jax.random.key(1)
        )
        # One buffer is given away once only.
        self.state = jax.tree.map(jnp.copy, privatizer.init(jnp.zeros(size)))
        self.update = jax.jit(privatizer.update, donate_argnums=(0, 1))
        self.sums = jnp.zeros(size)

    def __call__(self) -> Any:
        self.sums, self.state = self.update(self.sums, self.state)
        return jax.block_until_ready((self.sums, self.state))[0]


class Core:
    """The noise alone, without JAX."""

    def __init__(self, name: str, size: int) -> None:
        plan = dpf.PrivacyPlan(1.0, STD, dpf.SinglePass(STEPS), mechanism=MECHANISMS[name])
        self.noise = plan.noise(size, seed=1, threads=THREADS)
        self.out = np.zeros(size, np.float32)

    def __call__(self) -> Any:
        return self.noise.residual(self.out)


def covariance(steps: int, name: str) -> np.ndarray[Any, Any]:
    """Covariance of the running sums of the noise of a coordinate, from the definition."""
    column = np.zeros(steps)
    if name == "two buffers":
        column[0] = 1
        for decay, scale in zip(DECAY, SCALE, strict=True):
            column[1:] += scale * decay ** np.arange(steps - 1)
    else:
        column[: len(BANDS)] = BANDS[:steps]
    lower = np.array(
        [[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)]
    )
    inverse = np.linalg.inv(lower)
    sums = np.tril(np.ones((steps, steps))) @ inverse
    return STD**2 * sums @ sums.T


def check(call: Any, name: str, steps: int = 6) -> None:
    """Both sides add the noise of the mechanism: running sums have its covariance."""
    rows = np.stack([np.array(call(), copy=True) for _ in range(steps)])
    found = rows @ rows.T / rows.shape[1]
    expected = covariance(steps, name)
    spread = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert np.abs(found - expected).max() < 8 * (spread / np.sqrt(rows.shape[1])).max()


@pytest.mark.parametrize("side", [Ours, Theirs], ids=["dpftrl_fast", "jax_privacy"])
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_noise_in_jit(benchmark: Any, name: str, side: Any) -> None:
    size = SIZE if benchmark.enabled else 2**14
    benchmark.group = f"noise of a step inside jit, {name}, d = {size}"
    check(side(name, 2**14), name)
    call = side(name, size)
    call()
    benchmark(call)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((x.partition(": ")[2] for x in lines if x.startswith("model name")), "unknown")


def main(rounds: int) -> None:
    packages = ("jax", "jaxlib", "optax", "jax_privacy", "numpy")
    print(", ".join(f"{name} {version(name)}" for name in packages))
    target = dpf.build_info()["active_target"]
    print(f"Python {platform.python_version()}, {processor()}, {target}")
    for name in MECHANISMS:
        check(Ours(name, 2**14), name)
        check(Theirs(name, 2**14), name)
        calls = {
            "core alone": Core(name, SIZE),
            "dpftrl_fast": Ours(name, SIZE),
            "dpftrl_fast by callback": Ours(name, SIZE, "callback"),
            "jax_privacy": Theirs(name, SIZE),
        }
        for call in calls.values():
            for _ in range(4):
                call()
        times: dict[str, list[tuple[float, float]]] = {side: [] for side in calls}
        for _ in range(rounds):
            for side, call in calls.items():
                begin = time.perf_counter(), time.process_time()
                call()
                times[side].append((time.perf_counter() - begin[0], time.process_time() - begin[1]))
        best = {side: np.array(found).min(axis=0) for side, found in times.items()}
        middle = {side: np.median(found, axis=0) for side, found in times.items()}
        print(f"{name}, d = {SIZE}, {THREADS} threads, {rounds} rounds: ms best (median), CPU ms")
        for side in calls:
            wall, cpu = 1e3 * best[side]
            print(f"  {side:24s} {wall:7.1f} ({1e3 * middle[side][0]:.1f}) {cpu:7.1f}", end="")
            ratios = (
                best["jax_privacy"][0] / best[side][0],
                middle["jax_privacy"][0] / middle[side][0],
            )
            print(f"   jax_privacy takes {ratios[0]:.1f} ({ratios[1]:.1f}) times as long")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
