# SPDX-License-Identifier: Apache-2.0
"""Audit a training loop of your own: does it keep the epsilon that its plan states?

`python examples/audited_loop.py`

A thousand made-up records, the canaries, have a gradient along a coordinate of their own, far above
the clip norm. A coin decides which of them are in the data. The audit guesses the coins from all
that the loop releases.
"""

from collections.abc import Iterable, Iterator

import numpy as np

import dpftrl_fast as dpf
from dpftrl_fast import audit

CANARIES, STEPS, RUNS = 1000, 16, 4


def noisy_sums(
    plan: dpf.PrivacyPlan, batches: Iterable[np.ndarray], clip_norm: float
) -> Iterator[np.ndarray]:
    """The loop that is audited: yield the noisy sum of clipped gradients after each batch."""
    noise, total = plan.noise(CANARIES, dtype="float64"), np.zeros(CANARIES)
    for gradients in batches:
        norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1e-12)
        total += (gradients * np.minimum(1.0, clip_norm * (1 - 2**-20) / norms)).sum(axis=0)
        yield np.floor((total + noise.step()) / noise.grid + 0.5) * noise.grid


def audited(plan: dpf.PrivacyPlan, clip_norm: float) -> audit.AuditResult:
    """Audit the loop, run with a clip norm that should be the plan's."""
    coins = np.random.default_rng(0).random((RUNS, CANARIES)) < 0.5
    releases = []
    for included in coins:
        batches = [np.zeros((0, CANARIES))] * STEPS
        batches[WORST_STEP] = 100.0 * np.eye(CANARIES)[included]
        releases.append(list(noisy_sums(plan, batches, clip_norm)))
    sums, included = np.concatenate(releases, axis=1), coins.ravel()
    return audit.audit_releases(sums, included, plan, runs=RUNS, subject="the loop")


plan = dpf.PrivacyPlan(1.0, 1.0, dpf.SinglePass(STEPS))
WORST_STEP = int(np.argmax(audit.worst_uses(plan)))  # a record shows most if it comes here
print(audited(plan, clip_norm=plan.clip_norm).describe())
print()
print("clipped to 1.5 by mistake:", audited(plan, clip_norm=1.5).verdict)
