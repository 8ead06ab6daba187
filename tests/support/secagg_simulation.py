# SPDX-License-Identifier: Apache-2.0
"""SecAgg+ in a Flower simulation with clients in processes; usage: secagg_simulation.py FOLDER.

One of six users always fails, one sends NaN. The model is compared with that of the open path, of
the same clients in this process, and the result written to FOLDER/result.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flower_cases import LocalGrid, arrays, client_app, fedavg, model, private, record, step_of
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from secagg_cases import secure

from dpftrl_fast.federated.flower.secure import secagg_mods

ROUNDS, CLIENTS = 3, 6
FOLDER = Path(sys.argv[1])


def bad(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
    if user == 2:
        raise RuntimeError("out of battery")
    after = step_of(user, round_, sent)
    return {**after, "scale": np.array(np.nan, np.float32)} if user == 4 else after


def leaves_a_trace(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    (FOLDER / f"process-{os.getpid()}").touch()
    return call_next(message, context)


app = client_app(bad, [*secagg_mods, leaves_a_trace])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    named: dict[str, Any] = {"strategy": fedavg(min_available_nodes=CLIENTS), "momentum": 0.5}
    strategy = secure(**named)
    strategy.start(grid, record(model()), ROUNDS)
    processes = len(list(FOLDER.glob("process-*")))
    openly = private(**named)
    openly.start(LocalGrid(client_app(bad), CLIENTS), record(model()), ROUNDS)
    expected, found = arrays(openly.arrays), arrays(strategy.arrays)
    report = {
        "processes": processes,
        "rounds": strategy.rounds_done,
        "failures": strategy.failures,
        "refused by the open path": {n: sorted(of) for n, of in openly.refused.items()},
        "same bits": list(found) == list(expected)
        and all(np.array_equal(found[name], array) for name, array in expected.items()),
        "moved": not np.array_equal(found["scale"], model()["scale"]),
    }
    (FOLDER / "result.json").write_text(json.dumps(report), "utf-8")


if __name__ == "__main__":
    run_simulation(
        server,
        app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
