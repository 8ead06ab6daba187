# SPDX-License-Identifier: Apache-2.0
"""Kills kept streams at every call that changes a disk, and checks what is left of them.

A program of its own, as `journal_kills`. Usage: python stream_kills.py FOLDER ESTIMATOR KIND, where
KIND is "seeded" (the models are those of a stream that nothing stopped), "charged" (a key from the
system, and a budget) or "users".
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from estimator_cases import first_of, make, rows
from journal_kills import killed_at
from journal_run import releases

from dpftrl_fast import PrivacyBudget, linear_model
from dpftrl_fast.convex.glm.outlook import LearningWarning

ROWS, BATCH = 35, 10


def job(cls: Any, kind: str, folder: Path) -> None:
    """Take the stream from where it is; append every released model to a file."""
    X, y = rows(cls, n=ROWS)
    options: dict[str, Any] = {"horizon": ROWS, "batch_size": BATCH, "threads": 1}
    call = 13  # rows: some calls take two steps, one takes none
    if kind == "seeded":
        options["noise_seed"] = 3
    if kind == "charged":
        options["budget"] = PrivacyBudget(1.0, 1e-6, path=folder / "budget")
    if kind == "users":
        call = BATCH
    model = make(cls, **options)
    every = 2 if kind == "users" else 1
    with model.keep_stream(folder / "stream", checkpoint_every=every) as stream:
        while True:
            if hasattr(model, "coef_"):
                line = f"{model.n_steps_} {model.coef_last_.tobytes().hex()}\n"
                with (folder / "released").open("a") as file:
                    file.write(line)
            if stream.closed:
                break
            part = slice(stream.position, stream.position + call)
            users = [None if u == 17 else f"user {u}" for u in range(ROWS)][part]
            more = {"groups": users} if kind == "users" else {}
            model.partial_fit(X[part], y[part], **more, **first_of(cls))


def kill_at_every_call(cls: Any, kind: str, folder: Path, after: bool) -> int:
    """Return the number of calls that change a disk."""
    whole = folder / f"whole{after}"
    whole.mkdir()
    job(cls, kind, whole)
    wanted = releases(whole / "released")
    assert {*wanted} >= {1, 4} and all(len(values) == 1 for values in wanted.values())
    call = 0
    while True:
        call += 1
        run = folder / f"run{after}{call}"
        run.mkdir()
        if not killed_at(call, after, partial(job, cls, kind, run)):
            return call
        before = releases(run / "released")
        job(cls, kind, run)
        found = releases(run / "released")
        assert {*found} >= {4} and {*before} <= {*found}
        # One step has one model, whether it was released before or after: one noise on one sum.
        assert all(len(values) == 1 for values in found.values()), (call, found)
        if kind == "seeded":
            assert all(wanted.get(step, values) == values for step, values in found.items())
        if kind == "charged":
            assert len(PrivacyBudget.open(run / "budget").table()) == 1
        names = {path.name for path in (run / "stream").iterdir()}
        assert names == {"lock", "run.json", "checkpoint.npz", "steps-0.log"}


def main(folder: Path, estimator: str, kind: str) -> None:
    # A killed process loses nothing that the system has: only a failing machine does.
    os.fsync = lambda handle: None
    warnings.simplefilter("ignore", LearningWarning)
    for after in (False, True):
        calls = kill_at_every_call(getattr(linear_model, estimator), kind, folder, after)
        assert calls > 40, calls
    print("all held")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
