# SPDX-License-Identifier: Apache-2.0
"""A small run on a `RunJournal`, which can be killed anywhere, and what must hold of it.

The "noise" of a step is a hash of a key and the step. Every release is a line in a file: the step
and the noisy sum.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.run.journal import RunJournal

KEY = "the same in every process"
IDENTITY = {"plan": "hashes", "shape": [3]}


def noise(key: str, step: int) -> NDArray[np.float64]:
    digest = hashlib.sha256(f"{key} {step}".encode()).digest()
    return np.frombuffer(digest[:24], "<u8").astype(np.float64)


def gradient(step: int) -> NDArray[np.float64]:
    return np.array([step, step**2, 1 / step])


def run(folder: Path, released: Path, steps: int, every: int, keep: bool = False) -> None:
    with RunJournal(folder, IDENTITY) as journal:
        state = journal.resume()
        if state is None:
            state = {"key": KEY, "sum": np.zeros(3)}
            journal.checkpoint(state)
        total = state["sum"]
        while journal.step < steps:
            step = journal.step + 1
            kept = journal.kept()
            part = gradient(step) if kept is None else kept["part"]
            journal.write_ahead(step, journal.digest(part), {"part": part} if keep else None)
            total = total + part
            with released.open("a") as file:
                file.write(f"{step} {(total + noise(state['key'], step)).tobytes().hex()}\n")
            if step % every == 0:
                journal.checkpoint({"key": state["key"], "sum": total})
        journal.checkpoint({"key": state["key"], "sum": total})


def expected(steps: int) -> dict[int, str]:
    total = np.zeros(3)
    out = {}
    for step in range(1, steps + 1):
        total = total + gradient(step)
        out[step] = (total + noise(KEY, step)).tobytes().hex()
    return out


def releases(released: Path) -> dict[int, set[str]]:
    """What left, by step; a last line that was cut off by the kill is left out."""
    out: dict[int, set[str]] = {}
    if released.exists():
        for line in released.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, value = line.split()
                out.setdefault(int(step), set()).add(value)
    return out
