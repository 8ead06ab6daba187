# SPDX-License-Identifier: Apache-2.0
"""Clients' updates through the server, beside a plain sum of the same bytes.

`pytest benches/bench_federated.py` times single updates one after another.
`python benches/bench_federated.py [clients]` streams that many updates of 10^6 numbers (10,000
unless told) and prints the table of docs/federated/sums.md. Contenders take turns within the
stream, which a shared machine asks for; each has another update of a set that no cache holds, so
that its bytes come from memory. Everything runs in one thread.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import math
import platform
import resource
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.federated.sums.grid import noisy_sum, sum_unit
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.federated.sums.round_sum import RoundSum

Array = np.ndarray[Any, np.dtype[Any]]
Update = dict[str, Array]
Call = Callable[[Update], Any]

CLIENTS, ROUNDS, POOL = 10_000, 1600, 64
CLIP_NORM = 1.0
ONE = {"w": (10**6,)}
# A next-word model of 999,524 numbers in eight arrays.
WORDS = {
    "embedding": (5203, 96),
    "lstm_x": (96, 640),
    "lstm_h": (160, 640),
    "lstm_bias": (640,),
    "dense": (160, 96),
    "dense_bias": (96,),
    "output": (96, 3300),
    "output_bias": (3300,),
}
MODELS: dict[str, dict[str, tuple[int, ...]]] = {"one array": ONE, "next-word model": WORDS}


def make_updates(shapes: dict[str, tuple[int, ...]], count: int) -> list[Update]:
    rng = np.random.default_rng(1)
    return [
        {
            name: 0.003 * rng.standard_normal(shape, dtype=np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(count)
    ]


def zeros(shapes: dict[str, tuple[int, ...]]) -> Update:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@numba.njit
def _add_into(total, values):
    for i in range(total.size):
        total[i] += values[i]


class PlainSum:
    """What is to be reached: the sum in float32, without clipping."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        self.total = zeros(shapes)

    def __call__(self, update: Update) -> None:
        for name, total in self.total.items():
            np.add(total, update[name], out=total)


class NumbaSum(PlainSum):
    def __call__(self, update: Update) -> None:
        for name, total in self.total.items():
            _add_into(total.ravel(), update[name].ravel())


class NumPyClipped(PlainSum):
    """What one would write: the norm by dot products in float32, a scaled copy, a sum."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__(shapes)
        self.scaled = zeros(shapes)

    def __call__(self, update: Update) -> None:
        square = sum(float(np.vdot(array, array)) for array in update.values())
        factor = np.float32(min(1.0, CLIP_NORM / math.sqrt(square)))
        for name, total in self.total.items():
            np.multiply(update[name], factor, out=self.scaled[name])
            np.add(total, self.scaled[name], out=total)


class Ours:
    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        layout = ModelLayout(zeros(shapes))
        unit = sum_unit(CLIP_NORM, layout.size, CLIENTS * ROUNDS)
        self.sums = RoundSum(layout, CLIP_NORM, unit)

    def __call__(self, update: Update) -> None:
        self.sums.add(update)

    @property
    def total(self) -> Update:
        layout, sums = self.sums.layout, self.sums
        unflat: Update = layout.unflatten(sums.total * sums.unit)
        return unflat


CONTENDERS: dict[str, Callable[[dict[str, tuple[int, ...]]], Any]] = {
    "np.add, float32": PlainSum,
    "Numba sum, float32": NumbaSum,
    "NumPy: clip and add, float32": NumPyClipped,
    "ours: clip, exact sum": Ours,
}


def peaked(updates: list[Update]) -> list[Update]:
    """Half of each norm in one coordinate, so that sums go to int64 at once."""
    changed = [dict(update) for update in updates]
    for update in changed:
        first = next(iter(update))
        update[first] = update[first].copy()
        update[first].flat[0] = 3.0
    return changed


def check(name: str, result: Update, updates: list[Update]) -> None:
    """Compare with float64 NumPy."""
    clip = name.startswith(("ours", "NumPy"))
    for part in result:
        expected = np.zeros(result[part].shape)
        for update in updates:
            norm = math.sqrt(sum(np.sum(a.astype(np.float64) ** 2) for a in update.values()))
            expected += update[part] * (min(1.0, CLIP_NORM / norm) if clip else 1.0)
        np.testing.assert_allclose(result[part], expected, rtol=3e-6, atol=1e-7 * len(updates))


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("model", MODELS)
def test_one_update(benchmark: Any, model: str, name: str) -> None:
    benchmark.group = f"one update of 10^6 float32, {model}"
    shapes = MODELS[model]
    updates = make_updates(shapes, POOL if benchmark.enabled else 2)
    contender = CONTENDERS[name](shapes)
    for update in updates[:2]:
        contender(update)
    check(name, contender.total, updates[:2])
    place = iter(range(10**9))
    benchmark(lambda: contender(updates[next(place) % len(updates)]))


def test_round_of_the_server(benchmark: Any) -> None:
    clients = 200 if benchmark.enabled else 5
    benchmark.group = f"round of {clients} clients with 10^6 numbers"
    updates = make_updates(ONE, POOL if benchmark.enabled else 2)
    server = make_server(clients, 100)

    def run() -> Any:
        return whole_round(server, updates, clients)[1]

    model = benchmark.pedantic(run, rounds=3 if benchmark.enabled else 1)
    assert model["w"].shape == (10**6,) and np.isfinite(model["w"]).all()


def make_server(clients: int, rounds: int) -> ServerDPFTRL:
    plan = PrivacyPlan(CLIP_NORM, 4.0, accounting.MinSeparation(rounds, rounds, 1))
    return ServerDPFTRL(zeros(ONE), plan=plan, report_goal=clients, threads=1)


def whole_round(
    server: ServerDPFTRL, updates: list[Update], clients: int
) -> tuple[dict[str, float], Any]:
    times = [time.perf_counter()]
    now = server.begin_round(range(clients))
    times.append(time.perf_counter())
    for client in now.cohort:
        problem = now.add(client, updates[int(client) % len(updates)], token=now.token)
        assert problem is None
    times.append(time.perf_counter())
    model = server.end_round()
    times.append(time.perf_counter())
    return dict(zip(("begin", "updates", "end"), np.diff(times).tolist(), strict=True)), model


def stream(shapes: dict[str, tuple[int, ...]], clients: int) -> dict[str, list[float]]:
    """Seconds of each contender for each turn, of a quarter of the set; so many clients in all."""
    updates = make_updates(shapes, POOL)
    special = peaked(updates)
    contenders = {name: make(shapes) for name, make in CONTENDERS.items()}
    calls: dict[str, tuple[Any, list[Update]]] = {
        name: (contender, updates) for name, contender in contenders.items()
    }
    calls["ours, half of the norm in one number"] = Ours(shapes), special
    for call, of in calls.values():
        for update in of[:2]:
            call(update)
    for name, contender in contenders.items():
        check(name, contender.total, updates[:2])
    turn = POOL // 4
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    start = 0
    for done in range(0, clients, turn):
        count = min(turn, clients - done)
        for name, (call, of) in calls.items():
            chosen = [of[(start + k) % POOL] for k in range(count)]
            start += turn  # not touched for three turns, 192 MB ago
            begin = time.perf_counter()
            for update in chosen:
                call(update)
            seconds[name].append(time.perf_counter() - begin)
    return seconds


def main(clients: int) -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__},")
    print(f"Numba {numba.__version__}, one thread, {clients} clients of 10^6 float32")
    for model, shapes in MODELS.items():
        seconds = stream(shapes, clients)
        print(f"\n{model}: seconds, ms a client, ratio to np.add: of all, median of the turns")
        base = np.array(seconds["np.add, float32"])
        for name, each in seconds.items():
            total, ratios = sum(each), np.array(each) / base
            print(
                f"{name:38s} {total:7.2f}  {total / clients * 1e3:6.3f}"
                f"  {total / base.sum():5.2f}  {np.median(ratios):5.2f}"
            )

    updates = make_updates(ONE, POOL)
    server = make_server(clients, 100)
    whole_round(server, updates, clients)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times, _ = whole_round(server, updates, clients)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"\nround of {clients} clients by ServerDPFTRL, 10^6 numbers:")
    total = sum(times.values())
    for name, value in times.items():
        print(f"  {name:8s} {value:8.4f} s  {value / total:7.2%}")
    print(f"  peak memory grew by {grown / 1024:.1f} MB")

    noise = server.plan.noise(10**6, seed=1, threads=1)
    out, sums, value = np.zeros(10**6, np.float32), np.zeros(10**6, np.int64), np.zeros(10**6)
    steps = []
    for _ in range(64):
        begin = time.perf_counter()
        noise.step(out)
        noisy_sum(sums, out, 2.0**-31, value)
        steps.append(time.perf_counter() - begin)
    print(
        f"  noise, made and added: mean {np.mean(steps) * 1e3:.2f} ms, {np.mean(steps) / total:.2%}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else CLIENTS)
