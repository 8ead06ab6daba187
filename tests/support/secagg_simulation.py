# SPDX-License-Identifier: Apache-2.0
"""SecAgg+ in a Flower simulation with clients in processes; usage: secagg_simulation.py FOLDER.

One of six users always fails, one sends NaN. The model is compared with that of the open path, of
the same clients in this process, and the result written to FOLDER/result.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flower_cases import LocalGrid, arrays, client_app, fedavg, model, private, record
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from secagg_cases import secure
from simulated_clients import CLIENTS, leaves_a_trace, simulate, two_are_bad

from dpftrl_fast.federated.flower.secure import secagg_mods

ROUNDS = 3
FOLDER = Path(sys.argv[1])


app = client_app(two_are_bad, [*secagg_mods, leaves_a_trace(FOLDER)])
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    named: dict[str, Any] = {"strategy": fedavg(min_available_nodes=CLIENTS), "momentum": 0.5}
    strategy = secure(**named)
    strategy.start(grid, record(model()), ROUNDS)
    processes = len(list(FOLDER.glob("process-*")))
    openly = private(**named)
    openly.start(LocalGrid(client_app(two_are_bad), CLIENTS), record(model()), ROUNDS)
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
    simulate(server, app)
