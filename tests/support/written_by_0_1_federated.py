# SPDX-License-Identifier: Apache-2.0
"""Small federated runs that 0.1 was killed in, and how they go on: see `written_by_0_1`."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

import numpy as np
from written_by_0_1 import Array, plan, to_hex

from dpftrl_fast.federated import AdaptiveClipping, PrivateRounds, ServerDPFTRL

Json = dict[str, Any]

GOAL, DELTA = 4, 1e-6
START = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3)}
KINDS: dict[str, Json] = {
    "adam": {
        "plan": "vanilla_released", "optimizer": "adam", "learning_rate": 0.25,
        "memory": "regenerate", "dtype": "float64", "checkpoint_every": 5,
    },
    "clipping": {  # the clip norm changes in a round that is taken again
        "plan": "epochs", "checkpoint_every": 100,
        "clipping": AdaptiveClipping(noise_multiplier=5.0, quantile=0.75, learning_rate=1.0),
    },
    "restarted": {
        "plan": "apart", "momentum": 0.5, "nesterov": True, "spare_restarts": 1,
        "checkpoint_every": 5,
    },
    "rounds": {"plan": "restarts_all"},
}  # fmt: skip


def cohort(kind: str, number: int) -> list[int | str]:
    """Return who is there in a round; some of them may not take part."""
    if kind == "clipping":  # in each epoch the same at the same place
        return [f"client {i}" for i in range(number % 4, 24, 4)]
    if kind in ("adam", "rounds"):
        return [5 * number + i for i in range(5)]
    return [f"client {(7 * i + 5 * number) % 30}" for i in range(8)]


def trained(client: int | str, number: int, model: dict[str, Array]) -> Any:
    """Return a client's update: a function of who it is, of the round and of the model."""
    sent = "".join(to_hex(array) for array in model.values())
    seed = list(hashlib.sha256(f"{client} {number} {sent}".encode()).digest())
    rng = np.random.default_rng(seed)
    update = {
        name: (rng.integers(-16, 17, array.shape) / 64).astype(array.dtype)
        for name, array in model.items()
    }
    if seed[0] % 10 == 0:
        update["b"][1] = np.nan
    return None if seed[0] % 10 == 1 else update


def run(
    kind: str, folder: Path, *, until: int | None = None, restart: bool = False, **secret: Any
) -> list[Json]:
    """Run in a folder from where it stands; return what leaves each round, and at the end."""
    options = {**KINDS[kind], "folder": folder, "report_goal": GOAL, "threads": 1, **secret}
    options["plan"] = plan(options["plan"])
    if "recover" in inspect.signature(PrivateRounds).parameters:  # version 0.1 says restart
        options["recover"] = restart
        options["spare_recoveries"] = options.pop("spare_restarts", 0)
    else:
        options["restart"] = restart
    if kind == "rounds":
        return _rounds(options, until)
    found: list[Json] = []
    with ServerDPFTRL(START, **options) as server:
        found.append(_seen(server))
        last = server.plan.steps if until is None else until
        while server.rounds_done < last:
            number, model = server.rounds_done + 1, server.parameters
            now = server.begin_round(cohort(kind, number))
            turned_away = sorted(map(str, now.turned_away))
            for client in now.cohort:
                update = trained(client, number, model)
                if update is not None:
                    now.add(client, update, token=now.token)
            server.end_round()
            found.append({**_seen(server), "turned away": turned_away})
    return found


def _seen(server: ServerDPFTRL) -> Json:
    return {
        "round": server.rounds_done,
        "parameters": {name: to_hex(array) for name, array in server.parameters.items()},
        "clip norm": server.clip_norm.hex(),
        "epsilon": server.epsilon(DELTA).hex(),
        "reproducible": server.reproducible,
    }


def _rounds(options: Json, until: int | None) -> list[Json]:
    """Run without an update rule: what leaves a round goes into the caller's own state."""
    found: list[Json] = []
    first = {"total": np.zeros(9), "notes": ["a", 1, None]}
    with PrivateRounds(START, identity={"who": "numbers"}, state=first, **options) as rounds:
        state: Any = rounds.state
        total = state["total"]
        for value in rounds.replay("residual"):
            total = total + value
            found.append({"replayed": to_hex(value)})
        last = rounds.plan.steps if until is None else until
        while rounds.rounds_done < last:
            number = rounds.rounds_done + 1
            now = rounds.begin_round(cohort("rounds", number))
            for client in now.cohort:
                update = trained(client, number, START)
                if update is not None:
                    now.add(client, update)
            value = rounds.end_round("residual")
            total = total + value
            found.append({"round": number, "left": to_hex(value), "total": to_hex(total)})
            if number % 4 == 0:
                rounds.checkpoint({**state, "total": total})
        found.append({"epsilon": rounds.epsilon(DELTA).hex()})
    return found
