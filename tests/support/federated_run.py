# SPDX-License-Identifier: Apache-2.0
"""Small federated runs in a folder, as a program whose runs can be killed after any call.

`python federated_run.py` reads lines "KIND FOLDER RELEASED WHEN" and runs each in a process of its
own, forked from this one once everything is imported, which kills itself at the WHEN-th Python call
(0: never, and "-": never, and no calls are counted), or, for "NAME:WHEN", at the WHEN-th time that
a function of this name begins or ends. After each it prints "PLACE killed" with the functions that
it died in, or "CALLS done". What leaves a run is appended to RELEASED: the round and the model, a
line a round; at the end "end" with epsilon and the clip norm.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, SinglePass
from dpftrl_fast.federated import AdaptiveClipping, BufferedServer, ServerDPFTRL
from dpftrl_fast.mechanisms import BandedInverse, BufferedToeplitz, Tree

KEY = hashlib.sha256(b"the same in every process").digest()
GOAL, POPULATION, DELTA = 4, 60, 1e-6
START = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3)}
EPOCHS = FixedEpochs(4, 3)
KINDS: dict[str, dict[str, Any]] = {
    "momentum": {
        "plan": PrivacyPlan(
            0.5, 3.0, MinSeparation(12, 4, 3), mechanism=Tree(restart_every=5, complete=True)
        ),
        "momentum": 0.9,
        "nesterov": True,
        "checkpoint_every": 3,
    },
    "adam": {
        "plan": PrivacyPlan(0.5, 3.0, SinglePass(12), bound="released"),
        "optimizer": "adam",
        "learning_rate": 0.1,
        "memory": "regenerate",
        "dtype": "float64",
        "checkpoint_every": 100,
    },
    "clipping": {
        "plan": PrivacyPlan(0.5, 3.0, EPOCHS, mechanism=Tree(restart_every=4, complete=True)),
        "clipping": AdaptiveClipping(noise_multiplier=5.0, quantile=0.9, learning_rate=1.0),
        "checkpoint_every": 1,
    },
    "buffered": {
        "plan": PrivacyPlan(
            0.5, 3.0, MinSeparation(12, 4, 3), BufferedToeplitz((0.96875, 0.5), (0.25, 0.125))
        ),
        "momentum": 0.9,
        "checkpoint_every": 3,
    },
    "taps": {
        "plan": PrivacyPlan(0.5, 3.0, EPOCHS, BandedInverse((1.0, -0.875), restart_every=4)),
        "clipping": AdaptiveClipping(noise_multiplier=5.0, quantile=0.9, learning_rate=1.0),
        "checkpoint_every": 2,
    },
    "asynchronous": {
        "plan": PrivacyPlan(0.5, 3.0, MinSeparation(12, 4, 3)),
        "momentum": 0.9,
        "checkpoint_every": 3,
        "max_staleness": 3,
    },
}


def cohort(kind: str, number: int) -> list[str]:
    """Who is there in a round; some of them may not take part."""
    if kind in ("clipping", "taps"):  # in each epoch the same at the same place
        return [f"client {i}" for i in range(POPULATION) if i % 4 == (number - 1) % 4]
    if kind == "adam":
        return [f"client {i}" for i in range(5 * number - 5, 5 * number)]
    return [f"client {i}" for i in random.Random(number).sample(range(POPULATION), 8)]


def trained(client: str, number: int, model: dict[str, NDArray[Any]]) -> Any:
    """A client's update: a function of who it is, of the round and of the model."""
    seed = hashlib.sha256(f"{client} {number}".encode() + packed(model).encode()).digest()
    generator = np.random.default_rng(list(seed))
    update = {
        name: generator.normal(0, 0.3, array.shape).astype(array.dtype)
        for name, array in model.items()
    }
    fate = seed[0] % 10
    if fate == 0:
        update["b"][1] = np.nan
    if fate == 1:
        del update["w"]
    return None if fate == 2 else update


def packed(model: dict[str, NDArray[Any]]) -> str:
    return b"".join(array.tobytes() for array in model.values()).hex()


def run(kind: str, folder: Path | None, released: Path) -> None:
    if kind == "asynchronous":
        return run_asynchronous(kind, folder, released)
    with ServerDPFTRL(
        START, report_goal=GOAL, folder=folder, key=KEY, threads=1, **KINDS[kind]
    ) as server:
        leave(released, server.rounds_done, server)
        while server.rounds_done < server.plan.steps:
            number, model = server.rounds_done + 1, server.parameters
            now = server.begin_round(cohort(kind, number))
            arriving = list(now.cohort)
            random.SystemRandom().shuffle(arriving)
            for client in arriving:
                update = trained(client, number, model)
                if update is not None:
                    now.add(client, update, token=now.token)
            server.end_round()
            leave(released, number, server)
        with released.open("a") as file:
            file.write(f"end {server.epsilon(DELTA)!r} {server.clip_norm!r}\n")


def run_asynchronous(kind: str, folder: Path | None, released: Path) -> None:
    """Clients of the last four models arrive: who they are follows from the step and the place."""
    with BufferedServer(
        START, buffer_size=GOAL, folder=folder, key=KEY, threads=1, **KINDS[kind]
    ) as server:
        leave(released, server.rounds_done, server)
        while not server.done:
            number, chances = server.rounds_done + 1, random.Random(server.rounds_done + 1)
            current = server.check_out("nobody").token
            while server.rounds_done < number:
                client = f"client {chances.randrange(POPULATION)}"
                model = {name: array + number for name, array in START.items()}
                update = trained(client, number, model) or {}
                age = min(chances.randrange(4), number - 1)
                token = f"{str(current).rpartition('-')[0]}-{number - age}"
                server.add(client, update, token=token)
            leave(released, number, server)
        with released.open("a") as file:
            file.write(f"end {server.epsilon(DELTA)!r} {server.clip_norm!r}\n")


def leave(released: Path, number: int, server: ServerDPFTRL | BufferedServer) -> None:
    with released.open("a") as file:
        file.write(f"{number} {packed(server.parameters)}\n")


def releases(released: Path) -> dict[str, set[str]]:
    """What left, by round; a last line that was cut off by the kill is left out."""
    out: dict[str, set[str]] = {}
    for line in released.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            number, value = line[:-1].split(" ", 1)
            out.setdefault(number, set()).add(value)
    return out


def run_and_die(kind: str, folder: Path, released: Path, when: str, place: int) -> None:
    """Run; at a call, write where it is and kill this process as nothing can be caught."""
    *name, count = when.split(":")
    left, seen = int(count.replace("-", "0")), 0

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal left, seen
        if event not in ("call", "return"):
            return
        seen += event == "call"
        left -= frame.f_code.co_name == name[0] if name else event == "call"
        if left == 0 and count != "0":
            names = []
            while frame is not None:
                names.append(frame.f_code.co_name)
                frame = frame.f_back
            os.write(place, ",".join(names).encode())
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = lambda handle: None  # a killed process loses nothing that the system has
    if count.isdigit():
        sys.setprofile(watch)
    run(kind, folder, released)
    sys.setprofile(None)
    os.write(place, str(seen).encode())


def serve() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        kind, folder, released, when = line.split()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(read)
                run_and_die(kind, Path(folder), Path(released), when, write)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read) as pipe:
            place = pipe.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(place, "killed" if killed else "done" if status == 0 else "failed", flush=True)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:  # whatever is compiled or loaded late
            run(kind, None, Path(folder) / kind)
    serve()
