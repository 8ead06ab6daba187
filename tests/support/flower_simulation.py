# SPDX-License-Identifier: Apache-2.0
"""A Flower simulation with clients in processes of their own; usage: flower_simulation.py FOLDER.

One of six users always fails, one sends NaN. The result is compared with that of the same clients
in this process, and written to FOLDER/result.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flower_cases import LocalGrid, arrays, client_app, model, record
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from simulated_clients import CLIENTS, leaves_a_trace, simulate, two_are_bad

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated.flower import AskClients, DPFTRLStrategy, dpftrl_mod

ROUNDS = 2
FOLDER = Path(sys.argv[1])


def some_use_the_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    user = int(context.node_config["partition-id"])
    return dpftrl_mod(message, context, call_next) if user % 2 else call_next(message, context)


app = client_app(two_are_bad, [some_use_the_mod, leaves_a_trace(FOLDER)])
server = ServerApp()


def trained(grid: Grid) -> tuple[DPFTRLStrategy, Any]:
    strategy = DPFTRLStrategy(
        FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS),
        plan=PrivacyPlan(0.3, 6.0, accounting.MinSeparation(ROUNDS, ROUNDS, 1)),
        report_goal=CLIENTS,
        delta=1e-5,
        client_id=AskClients(),
        momentum=0.5,
        report_metrics=True,
        noise_seed=7,
    )
    return strategy, strategy.start(grid, record(model()))


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy, result = trained(grid)
    processes = len(list(FOLDER.glob("process-*")))
    _, alone = trained(LocalGrid(app, CLIENTS))
    expected, found = arrays(alone.arrays), arrays(result.arrays)
    counts = result.train_metrics_clientapp.values()
    report = {
        "processes": processes,
        "same bits as in one process": list(found) == list(expected)
        and all(np.array_equal(found[name], array) for name, array in expected.items()),
        "refused": strategy.refused,
        "accepted": [metrics["accepted (not private)"] for metrics in counts],
    }
    (FOLDER / "result.json").write_text(json.dumps(report), "utf-8")


if __name__ == "__main__":
    simulate(server, app)
