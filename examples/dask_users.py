# SPDX-License-Identifier: Apache-2.0
"""Train on users whose rows lie in Dask partitions, dense or sparse, with the server in the caller.

`python examples/dask_users.py` needs dask[distributed], pandas and SciPy. Rows stay on the workers,
which return sums of clipped updates of whole users.
"""

from __future__ import annotations

import traceback
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse
from dask import compute, delayed
from distributed import Client

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import PartialSum, ServerDPFTRL, SumSpec

USERS, GOAL, ROUNDS, FEATURES, DELTA = 2_000, 200, 20, 10, 1e-5  # 2 passes of 10 rounds


def table() -> pd.DataFrame:
    """Return rows of users in any order: many zeros, the target follows from the first column."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20 * USERS, FEATURES)) * (rng.random((20 * USERS, FEATURES)) < 0.3)
    x[:, 0] = rng.choice([-1.0, 1.0], len(x))
    frame = pd.DataFrame(x, columns=[f"x{j}" for j in range(FEATURES)])
    return frame.assign(user=rng.integers(USERS, size=len(x)), y=x[:, 0])


def as_csr(part: pd.DataFrame) -> tuple[Any, Any, Any]:
    """Return a partition as a sparse matrix, targets and users."""
    x = scipy.sparse.csr_array(part.filter(regex="^x").to_numpy())
    return x, part["y"].to_numpy(), part["user"].to_numpy()


def as_dense(part: pd.DataFrame) -> tuple[Any, Any, Any]:
    """Return a partition as a dense matrix, targets and users."""
    x, y, users = as_csr(part)
    return x.toarray(), y, users


def update_of(x: Any, y: Any, model: dict[str, Any]) -> dict[str, Any]:
    """Return a user's model after training, minus the model that it was sent."""
    w = model["w"].copy()
    for _ in range(5):  # logistic regression
        w += 0.5 * x.T @ (y / (1.0 + np.exp(y * (x @ w)))) / len(y)
    return {"w": w - model["w"]}


def sum_of(spec: SumSpec, part: Any, cohort: set[int], model: dict[str, Any]) -> dict[str, Any]:
    """Return the users of the cohort in a partition, and the clipped sum of their updates."""
    partial = PartialSum(spec)
    x, y, users = part
    for user in np.unique(users).tolist():
        if user in cohort:
            rows = np.flatnonzero(users == user)
            try:
                partial.add(user, update_of(x[rows], y[rows], model))
            except Exception:
                traceback.print_exc()  # the log of a worker is as secret as its users' data
    return partial.answer()


def train(parts: list[Any]) -> ServerDPFTRL:
    """Train on all partitions."""
    plan = PrivacyPlan.calibrate(
        epsilon=8.0,
        delta=DELTA,
        clip_norm=0.5,
        participation=accounting.FixedEpochs(ROUNDS // 2, 2),
        workload=accounting.Workload(momentum=0.9),
    )
    # Pass folder= to keep the run.
    server = ServerDPFTRL({"w": np.zeros(FEATURES)}, plan=plan, report_goal=GOAL, momentum=0.9)
    while server.rounds_done < ROUNDS:
        may = np.flatnonzero(server.eligible(range(USERS))).tolist()
        now = server.begin_round(may[:GOAL])
        cohort, model = set(now.cohort), server.parameters
        sums = [delayed(sum_of, pure=False)(now.sum_spec, part, cohort, model) for part in parts]
        for part in compute(*sums):
            if part["clients"] and (problem := now.add_sum(**part)):
                print("a part is not in the sum (not private):", problem)
        server.end_round()
    return server


def main() -> None:
    """Train on dense and on sparse partitions."""
    rows = table()
    x, y = as_dense(rows)[:2]
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        frame = dd.from_pandas(rows, npartitions=4).shuffle("user")  # each user in one partition
        for form in (as_dense, as_csr):
            parts = [delayed(form)(part).persist() for part in frame.to_delayed()]
            server = train(parts)
            accuracy = np.mean(np.sign(x @ server.parameters["w"]) == y)  # of all rows: not private
            print(f"{form.__name__}: accuracy {accuracy:.2f}")
    spent, replaced = server.epsilon(DELTA), server.epsilon(DELTA, neighbours="replace-one")
    print(f"epsilon of each run: {spent:.3f} at delta {DELTA} (replace-one {replaced:.3f})")


if __name__ == "__main__":
    main()
