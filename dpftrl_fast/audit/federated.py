# SPDX-License-Identifier: Apache-2.0
"""Audit of a federated server: canaries are clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.audit.canaries import Canaries, canaries_of
from dpftrl_fast.audit.models import sums_of_models
from dpftrl_fast.audit.releases import audit_runs, worst_uses
from dpftrl_fast.audit.result import AuditResult
from dpftrl_fast.federated import ServerDPFTRL
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Vector = NDArray[np.float64]


def audit_federated(
    plan: PrivacyPlan,
    *,
    make: Callable[..., ServerDPFTRL] = ServerDPFTRL,
    label_flip: bool = False,
    record: ArrayLike | None = None,
    canaries: int | None = None,
    runs: int = 8,
    delta: float = 1e-6,
    confidence: float = 0.999,
    random_state: Any = None,
    report_goal: int = 1,
    learning_rate: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit the models that a federated server publishes, one after every round.

    Parameters
    ----------
    plan : PrivacyPlan
        Of the server. Canaries take part where their mu is largest, all in the same rounds.
    make : callable
        The server's class, or a callable with its arguments.
    label_flip, record, canaries, runs, delta, confidence, random_state
        As for :func:`dpftrl_fast.audit.audit_prefix_sum`; a record is the update of a client.
    report_goal, learning_rate, momentum, nesterov, **options
        Of the server, ``optimizer="ftrl"``. `folder` and `clipping` are not supported.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or the plan does not let the canaries take part in the
        same rounds (a `FixedOrder` that lists other clients).

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.MinSeparation(8, 2, 4))
    >>> audit_federated(plan, canaries=256, momentum=0.9, confidence=1 - 1e-9).verdict
    'consistent'
    """
    goal = positive_integer("report_goal", report_goal)
    for name in ("folder", "clipping", "optimizer"):
        if name in options:
            raise ValueError(
                f"{name} is not supported by an audit: it reads the sums of FTRL in memory with a "
                "fixed clip norm; leave it out"
            )
    uses = worst_uses(plan)
    present = np.diff(uses, prepend=0) > 0

    def run(made: Canaries, coins: NDArray[np.bool_]) -> tuple[PrivacyPlan, Vector]:
        server = make(
            [np.zeros(made.size)],
            plan=plan,
            report_goal=goal,
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            **options,
        )
        updates = made.vectors(coins, plan.clip_norm)
        models = []
        for takes_part in present:
            now = server.begin_round(range(made.count) if takes_part else [])
            if takes_part and len(now.cohort) != made.count:
                raise ValueError(
                    "the plan must let every canary take part in rounds "
                    f"{(np.flatnonzero(present) + 1).tolist()}, got {len(now.cohort)} of "
                    f"{made.count} admitted; audit a MinSeparation or SinglePass plan"
                )
            for client in now.cohort:
                now.add(client, [updates[int(client)]], token=now.token)
            models.append(np.asarray(server.end_round()[0], dtype=np.float64))
        return server.plan, sums_of_models(
            np.array(models), learning_rate / goal, momentum=momentum, nesterov=nesterov
        )

    return audit_runs(
        run,
        canaries_of(canaries, record, label_flip),
        runs=runs,
        delta=delta,
        confidence=confidence,
        random_state=random_state,
        subject="federated server",
    )
