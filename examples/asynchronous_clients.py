# SPDX-License-Identifier: Apache-2.0
"""Clients at their own pace: a step for every 50 updates that arrive, with user-level privacy.

Two thousand clients have 20 rows each of one linear model, and computers of different speeds. Each
trains when it is idle, on the model of that moment. The clock is simulated.

    python examples/asynchronous_clients.py
"""

from __future__ import annotations

import heapq

import numpy as np

import dpftrl_fast as dpf
from dpftrl_fast import accounting
from dpftrl_fast.federated import BufferedServer

CLIENTS, ROWS, FEATURES, BUFFER, STEPS = 2000, 20, 20, 50, 120
rng = np.random.default_rng(0)
truth = rng.normal(size=FEATURES) / np.sqrt(FEATURES)
X = rng.normal(size=(CLIENTS, ROWS, FEATURES))
Y = X @ truth + 0.1 * rng.normal(size=(CLIENTS, ROWS))
# Every update takes the same work: its duration follows from the computer, not from the data.
SECONDS = 20 * rng.lognormal(sigma=1.0, size=CLIENTS)


def trained(client: int, model: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the update of a client: ten gradient steps on its own rows."""
    w = model["w"].copy()
    for _ in range(10):
        w -= 0.1 * X[client].T @ (X[client] @ w - Y[client]) / ROWS
    return {"w": w - model["w"]}


# A client takes part at most 4 times, and 25 steps or more lie between two of its arrivals.
plan = dpf.PrivacyPlan.calibrate(
    epsilon=8.0,
    delta=1e-5,
    clip_norm=0.5,
    participation=accounting.MinSeparation(STEPS, 4, 25),
)
server = BufferedServer(
    {"w": np.zeros(FEATURES)}, plan=plan, buffer_size=BUFFER, max_staleness=10, learning_rate=0.7
)

# Events: (time, client, update and token of a training that ends then, or None for an idle client).
events: list[tuple[float, int, tuple[dict[str, np.ndarray], str, int] | None]] = []
for client in range(CLIENTS):
    heapq.heappush(events, (rng.exponential(40.0), client, None))
staleness, refused = [], 0
while not server.done:
    now, client, done = heapq.heappop(events)
    if done is not None:
        update, token, begun = done
        age = server.rounds_done - begun
        if server.add(client, update, token=token) is None:
            staleness.append(age)
        else:
            refused += 1
    else:
        ticket = server.check_out(client)
        if ticket.token is not None:
            work = trained(client, server.parameters), ticket.token, ticket.model
            heapq.heappush(events, (now + SECONDS[client], client, work))
    if done is not None or ticket.token is None:
        heapq.heappush(events, (now + rng.exponential(40.0), client, None))

error = np.linalg.norm(server.parameters["w"] - truth) / np.linalg.norm(truth)
print(f"{server.rounds_done} steps, {len(staleness)} updates, {refused} too old or refused")
print(f"staleness: median {np.median(staleness):.0f}, largest {max(staleness)} steps")
print(f"distance to the true model: {error:.2f} of its norm")
print(plan.describe(1e-5))
