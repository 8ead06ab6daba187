# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL over Flower's secure aggregation, in a simulation with clients in other processes.

The server gets masked vectors and unmasks their sum. It sees no single update, adds the noise of
the plan and takes the step. Usage: python simulation.py
"""

from __future__ import annotations

import logging

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated.flower import AskClients, answer_client_id
from dpftrl_fast.federated.flower.secure import SecAggStrategy, secagg_mods

USERS, ROUNDS, FEATURES, DELTA = 8, 4, 8, 1e-5

# ---- The client ----

# They clip the update of the app, cut it into whole numbers, and mask these.
client = ClientApp(mods=secagg_mods)


def user_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


answer_client_id(client, user_of)


def examples(user: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs and labels of a user; user -1 stands for the public test data."""
    rng = np.random.default_rng([7, user + 1])
    x = rng.normal(size=(60 if user >= 0 else 4000, FEATURES))
    return x, (x[:, 0] - x[:, 1] + 0.5 * rng.normal(size=len(x)) > 0).astype(float)


@client.train()
def train(message: Message, context: Context) -> Message:
    x, y = examples(user_of(context))
    w = message.content["arrays"]["weights"].numpy().astype(float)
    for _ in range(3):
        w -= x.T @ (1 / (1 + np.exp(-x @ w)) - y) / len(x)
    arrays = ArrayRecord({"weights": Array(w.astype(np.float32))})
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


# ---- The server ----

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    plan = PrivacyPlan.calibrate(
        epsilon=8.0,
        delta=DELTA,
        clip_norm=1.0,
        participation=accounting.MinSeparation(ROUNDS, ROUNDS, 1),
    )
    strategy = SecAggStrategy(
        FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=USERS),
        plan=plan,
        report_goal=USERS,
        delta=DELTA,
        client_id=AskClients(),
        reconstruction_threshold=0.6,
    )
    with strategy:
        strategy.start(grid, ArrayRecord({"weights": Array(np.zeros(FEATURES, np.float32))}))
        x, y = examples(-1)
        right = (x @ strategy.arrays["weights"].numpy() > 0) == (y > 0.5)
        print(f"{strategy.rounds_done} rounds, accuracy on test data {right.mean():.3f}")
        print(f"epsilon {strategy.epsilon_spent():.3f} at delta {DELTA}", flush=True)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.WARNING)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, client, num_supernodes=USERS, backend_config=resources)
