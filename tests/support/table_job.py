# SPDX-License-Identifier: Apache-2.0
"""A daily job that keeps a table in a folder, for tests that kill it.

Usage: python table_job.py FOLDER DAY [SECONDS]. The job of a day adds the events of the day in two
batches, releases it, and writes the whole table to FOLDER/released. It is killed after so many
seconds from its first call, or at once at a call that changes the disk if SECONDS is "call N".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import dpftrl_fast as dpf

DAYS, KEYS = 10, ("a", "b", "c")


def begin(folder: Path, seed: int | None = 11) -> None:
    table = dpf.PrivateCounter(
        KEYS, DAYS, 2.0, start="2013-01-01", period="1D", unit="user", user_periods=4, user_gap=2,
        keys_per_period=2, events_per_key=2, values=(-1.0, 3.0), late="next", spare_keys=1,
        seed=seed, mechanism="tree",
    )  # fmt: skip
    table.save(folder / "table")
    table.close()


def events(day: int, half: int) -> dict[str, Any]:
    """Events of a day, some late and some early."""
    rng = np.random.default_rng([day, half])
    n = 200
    offset = rng.choice([0, 0, 0, -1, 1], n) * 86400 + rng.integers(0, 86400, n)
    return {
        "time": np.datetime64("2013-01-01", "s") + day * 86400 + offset,
        "key": np.array([*KEYS, "d"])[rng.integers(0, 4, n)],
        "user": rng.integers(0, 150, n),
        "value": rng.normal(1, 2, n),
    }


def job(folder: Path, day: int) -> None:
    with dpf.PrivateCounter.open(folder / "table") as table:
        for half in range(2):
            table.add(events(day, half), batch=f"day {day}, half {half}")
            if half == 0:
                table.checkpoint()
        if day == 5:
            table.declare(["d"])
        table.release(np.datetime64("2013-01-02", "D") + day)
        figures = table._released
        lines = [f"{i} {row.tobytes().hex()}\n" for i, row in enumerate(figures)]
        with (folder / "released").open("a") as file:
            file.write("".join(lines))


def released(folder: Path) -> dict[int, set[str]]:
    """The bits of the figures of each period, of all times at which they were written."""
    found: dict[int, set[str]] = {}
    for line in (folder / "released").read_text().splitlines():
        place, _, bits = line.partition(" ")
        found.setdefault(int(place), set()).add(bits)
    return found


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    folder, day = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        kind, _, number = sys.argv[3].partition(" ")
        if kind == "call":
            left = int(number)
            for name in ("fsync", "replace"):
                original = getattr(os, name)

                def counted(*args: Any, original: Any = original) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        _kill()
                    return original(*args)

                setattr(os, name, counted)
        else:
            threading.Thread(target=lambda: (time.sleep(float(kind)), _kill())).start()
    job(folder, day)
    if len(sys.argv) > 3:
        _kill()  # it was faster


if __name__ == "__main__":
    main()
