# SPDX-License-Identifier: Apache-2.0
"""Train on users with Ray: actors train the users of a round, the server is in the driver.

`python examples/ray_users.py run` keeps the run in the folder `run`. Actors return sums of clipped
updates, 8 bytes a parameter, however many users they trained.
"""

from __future__ import annotations

import argparse
import traceback
from typing import Any

import numpy as np
import ray

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import PartialSum, ServerDPFTRL, SumSpec

USERS, GOAL, ROUNDS, WORKERS, DELTA = 2_000, 100, 40, 2, 1e-5  # 2 passes of 20 rounds


def examples_of(user: int) -> tuple[Any, Any]:
    """Return the data of one user, wherever they lie."""
    x = np.random.default_rng(user).standard_normal((20, 8))
    return x, np.where(x[:, 0] > 0, 1.0, -1.0)


def update_of(user: int, model: dict[str, Any]) -> dict[str, Any]:
    """Return a user's model after training, minus the model that it was sent."""
    x, y = examples_of(user)
    w = model["w"].copy()
    for _ in range(5):  # logistic regression
        w += 0.5 * x.T @ (y / (1.0 + np.exp(y * (x @ w)))) / len(y)
    return {"w": w - model["w"]}


# A worker that dies is started again, and its users are trained again. Leaving out its whole sum
# would not be private: the data of one user can end a worker, and so remove other users' updates.
@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=3)
class Worker:
    """Trains users, and sums their clipped updates."""

    def sum_of(self, spec: SumSpec, users: list[int], model: dict[str, Any]) -> dict[str, Any]:
        """Return the users that answered, and their sum; one that fails is an empty slot."""
        partial = PartialSum(spec)
        for user in users:
            try:
                partial.add(user, update_of(user, model))
            except Exception:
                traceback.print_exc()  # the log of a worker is as secret as its users' data
        return partial.answer()


def main(folder: str) -> None:
    """Train on two workers."""
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    workers = [Worker.remote() for _ in range(WORKERS)]
    plan = PrivacyPlan.calibrate(
        epsilon=8.0,
        delta=DELTA,
        clip_norm=0.5,
        participation=accounting.FixedEpochs(ROUNDS // 2, 2),
        workload=accounting.Workload(momentum=0.9),
    )
    server = ServerDPFTRL(
        {"w": np.zeros(8)}, plan=plan, report_goal=GOAL, momentum=0.9, folder=folder
    )
    while server.rounds_done < ROUNDS:
        may = np.flatnonzero(server.eligible(range(USERS))).tolist()
        now = server.begin_round(may[:GOAL])
        sent = ray.put(server.parameters)  # once to a machine, however many workers it has
        parts = [
            worker.sum_of.remote(now.sum_spec, now.cohort[rank::WORKERS], sent)
            for rank, worker in enumerate(workers)
        ]
        for part in map(ray.get, parts):
            if part["clients"] and (problem := now.add_sum(**part)):
                print("a part is not in the sum (not private):", problem)
        server.end_round()
    others = [examples_of(user) for user in range(USERS, USERS + 50)]
    x, y = (np.concatenate(each) for each in zip(*others, strict=True))
    print(f"accuracy on other users {np.mean(np.sign(x @ server.parameters['w']) == y):.2f}")
    spent, replaced = server.epsilon(DELTA), server.epsilon(DELTA, neighbours="replace-one")
    print(f"epsilon of the run: {spent:.3f} at delta {DELTA} (replace-one {replaced:.3f})")
    ray.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of the run, a secret: it holds the noise key")
    main(parser.parse_args().folder)
