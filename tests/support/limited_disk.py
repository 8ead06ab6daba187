# SPDX-License-Identifier: Apache-2.0
"""A small federated run in a folder, and the same as a user with limits of the system.

`python limited_disk.py limits` lets no file grow beyond a size, in turn for many sizes;
`python limited_disk.py read-only` takes the permission to write from folders and files. Both give
up root first, play until the system refuses, and then finish the run without the limit.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from federated_run import DELTA, GOAL, KEY, START, packed, trained

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import MinSeparation
from dpftrl_fast.federated import BufferedServer, ServerDPFTRL

PLAN = PrivacyPlan(0.5, 3.0, MinSeparation(3, 2, 2))
FILES = {"run.json", "checkpoint", "kept"}  # the log is smaller than all of them
USERS = [f"client {i}" for i in range(9)]


@dataclass(frozen=True)
class Finished:
    """What has left a run: the model after each round, by its number, and the epsilon."""

    released: dict[int, str]
    epsilon: float

    def is_end_of(self, whole: Finished) -> bool:
        """Return whether this is how a run ends: with its last model, and nothing but its own."""
        return (
            PLAN.steps in self.released
            and self.released.items() <= whole.released.items()
            and self.epsilon == whole.epsilon
        )


def opened(folder: Path | None, job: str = "rounds", key: bytes = KEY) -> Any:
    """Open a run: a server that asks for cohorts, or one of buffered rounds."""
    options: dict[str, Any] = {"key": key, "threads": 1, "checkpoint_every": 2}
    if job == "buffered":
        return BufferedServer(START, plan=PLAN, buffer_size=GOAL, folder=folder, **options)
    return ServerDPFTRL(START, plan=PLAN, report_goal=GOAL, folder=folder, **options)


def played(
    folder: Path | None, released: dict[int, str], job: str = "rounds", key: bytes = KEY
) -> Any:
    """Play a run to its end; a step that fails is tried once more, as the docs allow."""
    with opened(folder, job, key) as server:
        released[server.rounds_done] = packed(server.parameters)
        while server.rounds_done < PLAN.steps:
            number = server.rounds_done + 1
            (_arrivals if job == "buffered" else _round)(server, number)
            released[number] = packed(server.parameters)
        return server


def _round(server: ServerDPFTRL, number: int) -> None:
    now = server.begin_round(USERS[number % 3 :: 2])
    for user in now.cohort:
        now.add(user, trained(str(user), number, server.parameters))
    _twice(server, number, server.end_round, server.end_round)


def _arrivals(server: BufferedServer, number: int) -> None:
    model = server.parameters
    for user in [f"{number}-{i}" for i in range(GOAL)]:
        token = server.check_out(user).token
        assert token is not None
        update = trained(user, number, model)
        _twice(
            server,
            number,
            lambda user=user, update=update, token=token: server.add(user, update, token=token),
            lambda user=user: server.check_out(user),
        )


def _twice(server: Any, number: int, call: Callable[[], Any], again: Callable[[], Any]) -> None:
    """Call; where the disk refuses, and the step was not taken, call again."""
    try:
        call()
    except OSError:
        if server.rounds_done < number:
            try:
                again()
            except OSError:
                if server.rounds_done < number:
                    raise


def finished(folder: Path | None, job: str = "rounds") -> Finished:
    """Play a run to its end, from wherever its folder is."""
    released: dict[int, str] = {}
    with played(folder, released, job) as server:
        return Finished(released, server.epsilon(DELTA))


def stopped(folder: Path, whole: Finished) -> OSError | None:
    """Play until the system refuses; return its error."""
    released: dict[int, str] = {}
    try:
        played(folder, released)
    except OSError as error:
        assert released.items() <= whole.released.items()
        return error
    return None


def limits(place: Path, whole: Finished) -> None:
    """Let no file grow beyond a size: a part of a write is taken, as on a full disk."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = set()
    for begun, size in product((False, True), (*range(0, 700, 100), *range(700, 6000, 500))):
        folder = place / f"{begun}-{size}"
        if begun:
            opened(folder).close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        error = stopped(folder, whole)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        if error is not None:
            named = str(error)
            assert str(folder) in named, named
            refused.update(name for name in FILES if name in named)
        assert finished(folder).is_end_of(whole), size
    assert refused == FILES, refused


def read_only(place: Path, whole: Finished) -> None:
    """Take the permission to write from the folder above, the folder, and files in it."""
    place.chmod(0o500)
    error = stopped(place / "run", whole)
    assert isinstance(error, PermissionError) and error.filename == str(place / "run"), error
    place.chmod(0o700)
    folder = place / "run"
    opened(folder).close()
    for path, mode in ((folder, 0o500), (folder / "steps-0.log", 0o400), (folder / "lock", 0o400)):
        before = path.stat().st_mode
        path.chmod(mode)
        error = stopped(folder, whole)
        assert isinstance(error, PermissionError) and str(folder) in str(error), error
        path.chmod(before & 0o777)
    assert finished(folder).is_end_of(whole)


def main(job: str) -> None:
    with tempfile.TemporaryDirectory() as place:  # all is loaded before root is given up
        finished(Path(place) / "run")
    whole = finished(None)
    os.umask(0o077)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    assert os.geteuid() != 0
    jobs: dict[str, Callable[[Path, Finished], None]] = {"limits": limits, "read-only": read_only}
    os.fsync = lambda handle: None
    with tempfile.TemporaryDirectory() as place:
        jobs[job](Path(place), whole)
    print("all held")


if __name__ == "__main__":
    main(*sys.argv[1:])
