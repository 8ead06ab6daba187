# SPDX-License-Identifier: Apache-2.0
"""Run twenty epochs within one budget: the planner picks the restarts, the guard checks the order.

SGD on clipped residuals estimates a mean, in fixed batches that are assigned anew at restarts.
"""

from __future__ import annotations

import numpy as np

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc

rng = np.random.default_rng(1)  # public: the data of an example, and their order
rows = rng.normal(0.5, 1.0, size=(20_000, 8))
batch, epochs, clip_norm, delta = 500, 20, 1.0, 1e-6
steps_per_epoch = len(rows) // batch

table = acc.plan_schedule(8.0, delta, steps_per_epoch, epochs)
print(table)
plan = PrivacyPlan.from_schedule(table.best, clip_norm=clip_norm)

noise, guard = plan.noise(rows.shape[1], dtype="float64"), plan.guard()
mean, order, tree = np.zeros(rows.shape[1]), rng.permutation(len(rows)), 0
for step in range(1, plan.steps + 1):
    if plan.layout.locate(step)[0] != tree:  # a restart: batches may be assigned anew
        tree, order = tree + 1, rng.permutation(len(rows))
    place = (step - 1) % steps_per_epoch
    ids = order[place * batch : (place + 1) * batch]
    guard.admit(ids)  # refuses undeclared ids before anything is released
    residuals = mean - rows[ids]
    norms = np.linalg.norm(residuals, axis=1, keepdims=True)
    clipped = residuals * np.minimum(1.0, clip_norm * (1 - 2**-20) / np.maximum(norms, 1e-300))
    noisy = clipped.sum(axis=0) + noise.residual()
    noisy = np.floor(noisy / noise.grid + 0.5) * noise.grid  # no low-order bits of the sum
    mean -= 0.5 * noisy / batch

print(plan.describe(delta))
print(f"largest error of the mean: {np.abs(mean - 0.5).max():.3f}")
