# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast bench``: a quick timing of the noise; ``benches/`` has the full benchmarks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from dpftrl_fast import TreeNoise, build_info
from dpftrl_fast._validate import positive_integer
from dpftrl_fast.cli.options import Json
from dpftrl_fast.cli.output import friendly, print_json, show

_REPEATS = 5


@friendly
def command(
    size: Annotated[int, typer.Option(help="Normals per call.")] = 1 << 22,
    threads: Annotated[int, typer.Option(help="Threads of the tree noise.")] = 1,
    json_: Json = False,
) -> None:
    """Time the tree noise against the normals of NumPy and torch."""
    positive_integer("--size", size)
    calls = _calls(size, threads)
    seconds = _medians(calls)
    ours = seconds[next(iter(calls))]
    rows: list[dict[str, Any]] = [
        {"name": name, "ns_per_normal": 1e9 * value / size, "ratio": value / ours}
        for name, value in seconds.items()
    ]
    build = dict(build_info())
    if json_:
        print_json({"size": size, "threads": threads, "build": build, "rows": rows})
        return
    target = build.get("active_target", "?")
    table = Table(title=f"{size:,} float32 normals, median of {_REPEATS}; target {target}")
    for heading in ("", "ns a normal", "time against ours"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        table.add_row(row["name"], f"{row['ns_per_normal']:.2f}", f"{row['ratio']:.2f}")
    show(table)


def _calls(size: int, threads: int) -> dict[str, Callable[[], object]]:
    out = np.empty(size, dtype=np.float32)
    ours = TreeNoise(size, 1.0, seed=0, threads=threads)
    slow = TreeNoise(size, 1.0, seed=0, threads=threads, rounds=20)
    numpy_generator = np.random.default_rng(0)
    calls: dict[str, Callable[[], object]] = {
        f"dpftrl_fast, ChaCha12, {threads} thread(s)": lambda: ours.node(0, 0, out=out),
        f"dpftrl_fast, ChaCha20, {threads} thread(s)": lambda: slow.node(0, 0, out=out),
        "numpy PCG64": lambda: numpy_generator.standard_normal(dtype=np.float32, out=out),
    }
    try:
        import torch
    except ModuleNotFoundError:
        return calls
    tensor = torch.empty(size)
    calls[f"torch normal_, {torch.get_num_threads()} thread(s)"] = tensor.normal_
    return calls


def _medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(_REPEATS):  # interleaved, so that a busy moment of the machine affects all
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}
