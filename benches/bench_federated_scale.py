# SPDX-License-Identifier: Apache-2.0
"""Many users, many nodes, large models: time, memory and folder of a federated server.

`python benches/bench_federated_scale.py` prints the tables of docs/federated/thousand_nodes.md;
`python benches/bench_federated_scale.py PART ...` those parts alone (`users`, `nodes`, `memory`),
and `--rounds N` fewer rounds of `users`. Each case runs in a process of its own, so that its peak
memory is its own. Times are of the process alone (one thread), without waiting for the disk.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")

import argparse
import json
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan, accounting, mechanisms
from dpftrl_fast.federated import PartialSum
from dpftrl_fast.federated.server import ServerDPFTRL

USERS, ROUNDS, COHORT, CONNECTED, SMALL = 10**6, 2_000, 500, 10_000, 1_000
PATTERNS: Mapping[str, Callable[[int], Any]] = {
    "MinSeparation": lambda rounds: accounting.MinSeparation(rounds, 4, max(1, rounds // 4)),
    "FixedEpochs": lambda rounds: accounting.FixedEpochs(max(1, rounds // 4), 4),
}
BLT = mechanisms.BufferedToeplitz((0.99, 0.9), (0.05, 0.02)).rounded("float32")


def peak() -> float:
    """Return the peak memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def size_of(folder: str) -> float:
    """Return the size of the files in a folder, in MB."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file()) / 1e6


def server_of(pattern: Any, size: int, goal: int, **options: Any) -> ServerDPFTRL:
    plan = PrivacyPlan(1.0, 4.0, pattern, BLT)
    model = {"w": np.zeros(size, np.float32)}
    return ServerDPFTRL(model, plan=plan, report_goal=goal, threads=1, **options)


# ---- Users ----


def users(pattern: str, asked: str, names: bool, rounds: int, count: int = USERS) -> dict[str, Any]:
    """Run all rounds with cohorts out of the connected users; return seconds by call.

    `asked` is "all", the server asks which of all users may take part, or "connected", which of
    10,000. In later passes the plan has the members: all of those are connected, too, and given.
    """
    rng = np.random.default_rng(1)
    everyone: list[Any] = [f"user-{i:07d}" for i in range(count)] if names else [*range(count)]
    before = peak()
    seconds: dict[str, list[float]] = {"eligible": [], "begin": [], "add": [], "end": []}
    update = {"w": np.full(SMALL, 1e-3, np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        server = server_of(PATTERNS[pattern](rounds), SMALL, COHORT, folder=folder)
        in_pass = rounds if pattern == "MinSeparation" else rounds // 4
        cohorts: list[list[Any]] = []
        for number in range(rounds):
            if asked == "all":
                connected = everyone
            else:
                places = rng.choice(count, CONNECTED, replace=False).tolist()
                members = cohorts[number % in_pass] if number >= in_pass else []
                connected = [*{everyone[place] for place in places}.union(members)]
            times = [time.process_time()]
            may = server.eligible(connected)
            times.append(time.process_time())
            if number >= in_pass:
                chosen = connected
            else:
                places = rng.choice(np.flatnonzero(may), COHORT, replace=False).tolist()
                chosen = [connected[place] for place in places]
                cohorts.append(chosen)
            times.append(time.process_time())
            now = server.begin_round(chosen)
            times.append(time.process_time())
            for client in now.cohort:
                now.add(client, update, token=now.token)
            times.append(time.process_time())
            server.end_round()
            times.append(time.process_time())
            spent = np.diff(times)[[0, 2, 3, 4]].tolist()
            for name, value in zip(seconds, spent, strict=True):
                seconds[name].append(value)
        kept = size_of(folder)
    whole = {name: sum(values) for name, values in seconds.items()}
    tenth = max(1, rounds // 10)
    first = {name: statistics.median(values[:tenth]) * 1e3 for name, values in seconds.items()}
    last = {name: statistics.median(values[-tenth:]) * 1e3 for name, values in seconds.items()}
    longest = max(seconds["end"]) * 1e3  # with a checkpoint
    found = {"whole": whole, "first": first, "last": last, "longest": longest}
    return {**found, "mb": peak() - before, "folder": kept}


# ---- Nodes ----


def nodes(count: int, clients: int, size: int = 10**6) -> dict[str, Any]:
    """Run a round in which each node sends the clipped sum of its clients, as bytes.

    Seconds of a node for each client, of the server for each node, and of the whole round at the
    server without the waiting.
    """
    rng = np.random.default_rng(1)
    updates = [
        {"w": 0.003 * rng.standard_normal(size, dtype=np.float32)} for _ in range(min(clients, 16))
    ]
    server = server_of(accounting.SinglePass(2), size, count * clients)
    clock = time.process_time
    begin = clock()
    now = server.begin_round(range(count * clients))
    begun = clock() - begin
    assert PartialSum(now.sum_spec).add(0, updates[0]) is None  # compiled
    begin = clock()
    partial = PartialSum(now.sum_spec)
    for client in range(clients):
        assert partial.add(client, updates[client % len(updates)]) is None
    sent = partial.total.tobytes()
    trained = clock() - begin
    before, begin = peak(), clock()
    for node in range(count):
        own = range(node * clients, (node + 1) * clients)
        total = np.frombuffer(sent, np.int64)
        assert now.add_sum(own, total, token=now.token) is None
    added = clock() - begin
    begin = clock()
    server.end_round()
    ended = clock() - begin
    found = {"client": trained / clients, "node": added / count, "bytes": len(sent)}
    return {**found, "begin": begun, "add": added, "end": ended, "mb": peak() - before}


# ---- Memory and folder ----


def memory(size: int, momentum: float, kept: bool) -> dict[str, Any]:
    """Return bytes a coordinate of a server and its folder, and seconds of a round's end."""
    update = {"w": np.full(size, 1e-4, np.float32)}
    small = server_of(accounting.SinglePass(2), SMALL, 2)
    small.begin_round([0, 1]).add(0, {"w": update["w"][:SMALL]})
    small.end_round()
    with tempfile.TemporaryDirectory() as place:
        folder = {"folder": place, "checkpoint_every": 4} if kept else {}
        before = peak()
        server = server_of(accounting.SinglePass(8), size, 2, momentum=momentum, **folder)
        ends, sizes = [], []
        for number in range(8):
            now = server.begin_round([2 * number, 2 * number + 1])
            for client in now.cohort:
                now.add(client, update)
            begin = time.process_time()
            server.end_round()
            ends.append(time.process_time() - begin)
            sizes.append(size_of(place) * 1e6 / size)
        grown = (peak() - before) * 2**20 / size
    return {"bytes": grown, "folder": sizes, "ends": ends}


# ---- Table ----


def alone(part: str, *arguments: Any) -> dict[str, Any]:
    """Run one case in a process of its own."""
    words = [sys.executable, __file__, "--case", json.dumps([part, *arguments])]
    result = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def users_table(rounds: int) -> None:
    print(f"\n{USERS} users, {rounds} rounds, cohorts of {COHORT}, {SMALL} parameters, a folder")
    print("milliseconds a round (first tenth of the rounds, last tenth), seconds in all")
    for pattern in PATTERNS:
        for asked in ("connected", "all"):
            some = rounds if asked == "connected" else max(20, rounds // 100)
            for names in (False, True):
                found = alone("users", pattern, asked, names, some)
                kind = "names" if names else "integers"
                print(f"{pattern}, {asked}, {kind}, {some} rounds: ", end="")
                for name, value in found["whole"].items():
                    first, last = found["first"][name], found["last"][name]
                    print(f"{name} {first:.2f} {last:.2f} ({value:.1f} s), ", end="")
                print(f"longest end {found['longest']:.0f} ms, ", end="")
                print(f"{found['mb']:.0f} MB, folder {found['folder']:.1f} MB", flush=True)


def nodes_table() -> None:
    print("\nnodes that send sums of 10 clients, 10^6 parameters, seconds of the server's process:")
    for count in (1, 10, 100, 1_000):
        found = alone("nodes", count, 10)
        print(
            f"{count}: begin {found['begin']:.4f}, add {found['add']:.3f}, end {found['end']:.3f}; "
            f"{found['node'] * 1e3:.2f} ms a node, {found['client'] * 1e3:.2f} ms a client at the "
            f"node, {found['bytes'] / 1e6:.1f} MB a node, {found['mb']:.0f} MB more",
            flush=True,
        )


def memory_table() -> None:
    print("\nbytes a coordinate: of the server (peak), of its folder (smallest, largest); s an end")
    for size in (10**6, 10**7):
        for momentum in (0.0, 0.9):
            for kept in (False, True):
                found = alone("memory", size, momentum, kept)
                low, high = min(found["folder"]), max(found["folder"])
                end = statistics.median(found["ends"])
                print(
                    f"{size} momentum {momentum} {'folder' if kept else 'memory'}: "
                    f"{found['bytes']:.1f}, {low:.1f} to {high:.1f}; {end:.3f}",
                    flush=True,
                )


def test_nodes(benchmark: Any) -> None:
    count = 100 if benchmark.enabled else 2
    found = benchmark.pedantic(lambda: nodes(count, 2), rounds=1)
    assert found["bytes"] == 8 * 10**6


@pytest.mark.parametrize("asked", ["connected", "all"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_users(benchmark: Any, pattern: str, asked: str) -> None:
    count = USERS if benchmark.enabled else 2 * CONNECTED
    rounds = 8
    found = benchmark.pedantic(lambda: users(pattern, asked, False, rounds, count), rounds=1)
    assert set(found["whole"]) == {"eligible", "begin", "add", "end"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=["users", "nodes", "memory"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--case")
    given = parser.parse_args()
    if given.case is not None:
        part, *arguments = json.loads(given.case)
        print(json.dumps({"users": users, "nodes": nodes, "memory": memory}[part](*arguments)))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    if "users" in given.parts:
        users_table(given.rounds)
    if "nodes" in given.parts:
        nodes_table()
    if "memory" in given.parts:
        memory_table()


if __name__ == "__main__":
    main()
