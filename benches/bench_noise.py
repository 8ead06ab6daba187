# SPDX-License-Identifier: Apache-2.0
"""Tree noise beside torch, NumPy and MKL.

`pytest benches/bench_noise.py` times each call. `python benches/bench_noise.py` alternates them,
which a shared machine asks for, and prints the table of docs/results/benchmarks.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import noise_workloads as work
import numpy as np
import pytest
import torch

import dpftrl_fast as dpf
from dpftrl_fast.reference import variance_factor

NODE_SIZE = 2**24
TREE_SIZE = 10**7
STEPS = 255
SMALL_STEPS = 1023


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


NODES: dict[str, Callable[[int], work.Call | None]] = {
    "ours, 8 rounds": lambda n: work.node(n, rounds=8),
    "ours, 12 rounds": lambda n: work.node(n, rounds=12),
    "ours, 20 rounds": lambda n: work.node(n, rounds=20),
    "torch normal_": work.torch_normal,
    "NumPy PCG64 float32": work.numpy_normal,
    "MKL SFMT inverse CDF": work.mkl_normal,
}

TREES: dict[str, Callable[[int], Any]] = {
    "vanilla, stored": lambda n: work.Tree(n, "vanilla", "stored"),
    "vanilla, stored, 2 threads": lambda n: work.Tree(n, "vanilla", "stored", 2),
    "vanilla, regenerate": lambda n: work.Tree(n, "vanilla", "regenerate"),
    "vanilla, torch": work.TorchVanilla,
    "honaker, stored": lambda n: work.Tree(n, "honaker", "stored"),
    "honaker, stored, 2 threads": lambda n: work.Tree(n, "honaker", "stored", 2),
    "honaker, torch": work.TorchHonaker,
}


@pytest.mark.parametrize("name", NODES)
def test_node(benchmark: Any, name: str) -> None:
    size = NODE_SIZE if benchmark.enabled else 2**16
    benchmark.group = f"one node, {size} normals"
    call = NODES[name](size)
    if call is None:
        pytest.skip("the package mkl is not installed: this baseline is optional")
    work.check_normal(benchmark(call))


@pytest.mark.parametrize("target", dpf.build_info()["targets"])
def test_kernel(benchmark: Any, target: str) -> None:
    size = NODE_SIZE if benchmark.enabled else 2**16
    benchmark.group = f"one node by target, {size} normals"
    work.check_normal(benchmark(work.kernel(size, target)))


@pytest.mark.parametrize("name", TREES)
def test_step(benchmark: Any, name: str) -> None:
    size, steps = (TREE_SIZE, STEPS) if benchmark.enabled else (2**14, 21)
    variant = name.split(",")[0]
    benchmark.group = f"{variant} step, d = {size}, {steps} steps"
    tree = TREES[name](size)

    def run() -> Any:
        for _ in range(steps):
            last = tree.step()
        return last

    last = benchmark.pedantic(run, rounds=1)
    work.check_normal(last, float(variance_factor(steps, variant)) ** 0.5)


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_small_step(benchmark: Any, variant: Any, size: int) -> None:
    benchmark.group = f"step at d = {size}, NumPy out, {SMALL_STEPS} steps"

    def run() -> np.ndarray[Any, Any]:
        tree = work.Tree(size, variant, "stored")
        for _ in range(SMALL_STEPS):
            tree.step()
        return tree.out

    expected = dpf.TreeNoise(size, 1.0, seed=1, variant=variant).prefix(SMALL_STEPS)
    assert (benchmark(run) == expected).all()


@pytest.mark.parametrize("kind", ["ours", "reference", "reference, pure Python"])
def test_reference(benchmark: Any, kind: str) -> None:
    size, steps = (10**4, 15) if benchmark.enabled else (300, 3)
    benchmark.group = f"honaker step, d = {size}, against dpftrl_fast.reference"
    if kind == "ours":
        tree: Any = work.Tree(size, "honaker", "stored")
    else:
        tree = work.ReferenceTree(size, "honaker", python="Python" in kind)

    def run() -> Any:
        for _ in range(steps):
            last = tree.step()
        return last

    last = benchmark.pedantic(run, rounds=1)
    expected = dpf.TreeNoise(size, 1.0, seed=1).prefix(steps)
    np.testing.assert_array_equal(np.asarray(last, np.float32), expected)


def alternate(calls: dict[str, work.Call], rounds: int) -> dict[str, float]:
    """Median seconds of each call, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return {name: float(np.median(t)) for name, t in times.items()}


def step_means(size: int, steps: int) -> dict[str, float]:
    """Mean seconds of a step over t = 1..steps; the trees take turns at every step."""
    trees = {name: make(size) for name, make in TREES.items()}
    times: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(steps):
        for name, tree in trees.items():
            begin = time.perf_counter()
            tree.step()
            times[name].append(time.perf_counter() - begin)
    return {name: float(np.mean(t)) for name, t in times.items()}


def row(work_done: str, wanted: str, got: float) -> None:
    print(f"| {work_done} | {wanted} | {got:.2f} |", flush=True)


def table() -> None:
    info = dpf.build_info()
    print(
        f"{info['compiler']}, {info['build_type']}, target {info['active_target']}, "
        f"torch {torch.__version__}, NumPy {np.__version__}; one thread unless said\n"
    )
    torch.set_num_threads(1)
    nodes = {name: call for name, make in NODES.items() if (call := make(NODE_SIZE)) is not None}
    t = alternate(nodes, 15)
    for name, seconds in t.items():
        print(f"{name:24s} {seconds / NODE_SIZE * 1e9:6.3f} ns a normal")
    kernels = {name: work.kernel(NODE_SIZE, name) for name in info["targets"]}
    for name, seconds in alternate(kernels, 7).items():
        print(f"kernel {name:17s} {seconds / NODE_SIZE * 1e9:6.3f} ns a normal, 12 rounds")
    print("\n| ratio | at least / at most | measured |\n|---|---|---|")
    row("one node: torch / ours", ">= 2", t["torch normal_"] / t["ours, 12 rounds"])
    row("one node: NumPy / ours", ">= 4.5", t["NumPy PCG64 float32"] / t["ours, 12 rounds"])
    row("one node: torch / ours, 20 rounds", ">= 1", t["torch normal_"] / t["ours, 20 rounds"])
    if "MKL SFMT inverse CDF" in t:
        row("one node: MKL / ours", ">= 1", t["MKL SFMT inverse CDF"] / t["ours, 12 rounds"])

    calls = {
        "node": work.node(TREE_SIZE),
        "node, 2 threads": work.node(TREE_SIZE, threads=2),
        "stream": work.stream(TREE_SIZE),
    }
    m = alternate(calls, 15)
    s = step_means(TREE_SIZE, STEPS)
    node, vector = m["node"], m["stream"] / 3
    live = sum(bin(k).count("1") for k in range(1, STEPS + 1)) / STEPS
    row("vanilla step, stored / one node", "<= 1.6", s["vanilla, stored"] / node)
    row("vanilla step, regenerate / one node", "<= 2.2", s["vanilla, regenerate"] / node)
    row("vanilla step: torch / ours", ">= 2.5", s["vanilla, torch"] / s["vanilla, stored"])
    row(
        "vanilla step: torch / ours, 2 threads",
        ">= 5",
        s["vanilla, torch"] / s["vanilla, stored, 2 threads"],
    )
    limit = 2 * node + (live + 3) * vector
    row("Honaker step / (two nodes + stream)", "<= 1.15", s["honaker, stored"] / limit)
    row("Honaker step: torch / ours", ">= 6", s["honaker, torch"] / s["honaker, stored"])
    row(
        "Honaker step: torch / ours, 2 threads",
        ">= 12",
        s["honaker, torch"] / s["honaker, stored, 2 threads"],
    )
    row("one node: 1 thread / 2 threads", ">= 1.8", node / m["node, 2 threads"])
    for size in (1, 100):
        for variant in ("vanilla", "honaker"):

            def run(size: int = size, variant: str = variant) -> None:
                tree = work.Tree(size, variant, "stored")
                step, out = tree.noise.step, tree.out
                for _ in range(SMALL_STEPS):
                    step(out)

            seconds = alternate({"run": run}, 31)["run"] / SMALL_STEPS
            row(f"{variant} step at d = {size}, microseconds", "< 2", seconds * 1e6)

    def steps(tree: Any, count: int) -> work.Call:
        def call() -> None:
            for _ in range(count):
                tree.step()

        return call

    size = 10**4
    r = alternate(
        {
            "ours": steps(work.Tree(size, "honaker", "stored"), 3),
            "numpy": steps(work.ReferenceTree(size, "honaker"), 3),
            "python": steps(work.ReferenceTree(size, "honaker", python=True), 3),
        },
        3,
    )
    row("reference (NumPy) / ours, d = 10^4", ">= 5", r["numpy"] / r["ours"])
    row("reference (pure Python) / ours, d = 10^4", ">= 100", r["python"] / r["ours"])
    print(
        f"\nat d = 10^7: node {node * 1e3:.2f} ms, one vector of memory traffic "
        f"{vector * 1e3:.2f} ms, mean number of live nodes {live:.2f}"
    )
    for name, seconds in s.items():
        print(f"{name:28s} {seconds * 1e3:7.2f} ms a step")


if __name__ == "__main__":
    sys.exit(table())
