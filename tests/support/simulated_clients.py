# SPDX-License-Identifier: Apache-2.0
"""Clients of a Flower simulation in processes of their own: one fails, one sends NaN."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from flower_cases import step_of
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

CLIENTS = 6


def two_are_bad(user: int, round_: int, sent: dict[str, Any]) -> dict[str, Any]:
    if user == 2:
        raise RuntimeError("out of battery")
    after = step_of(user, round_, sent)
    return {**after, "scale": np.array(np.nan, np.float32)} if user == 4 else after


def leaves_a_trace(folder: Path) -> Any:
    """Return a mod by which each process of clients leaves a file in a folder."""

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        (folder / f"process-{os.getpid()}").touch()
        return call_next(message, context)

    return mod


def simulate(server: ServerApp, app: ClientApp) -> None:
    """Run the simulation with two processes of clients."""
    run_simulation(
        server,
        app,
        num_supernodes=CLIENTS,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
            "init_args": {"num_cpus": 2, "include_dashboard": False},
        },
    )
