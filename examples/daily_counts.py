# SPDX-License-Identifier: Apache-2.0
"""Publish private running counts of a stream each day, and compare them with the true ones.

Each visitor is counted on one day and in one of five categories. `python examples/daily_counts.py`
"""

import numpy as np

import dpftrl_fast as dpf

DAYS, CATEGORIES, VISITORS = 365, 5, 2000

rng = np.random.default_rng(1)
plan = dpf.PrivacyPlan.calibrate(
    epsilon=1.0, delta=1e-9, clip_norm=1.0, participation=dpf.SinglePass(steps=DAYS)
)
counts = dpf.PrefixSum(
    CATEGORIES, DAYS, plan.clip_norm, plan.noise_multiplier, mechanism=plan.mechanism
)
true = np.zeros(CATEGORIES)
for _ in range(DAYS):
    visits = np.eye(CATEGORIES)[rng.choice(CATEGORIES, VISITORS, p=[0.4, 0.3, 0.2, 0.08, 0.02])]
    private = counts.add(visits)
    true += visits.sum(axis=0)

print(plan.describe(delta=1e-9))
print("true   ", true.astype(int))
print("private", private.round().astype(int))
