# SPDX-License-Identifier: Apache-2.0
"""
Choosing a mechanism
====================

A run of T steps releases T noisy sums. A *mechanism* says how the noise of the steps is correlated.
At the same epsilon, some mechanisms leave far less noise in the sums than others. This page ranks
them for one run, before any data are read.

The run: 10 epochs over 100 fixed batches, in the same order in every epoch, at epsilon 8.
"""

# %%
# The table
# ---------
#
# ``plan_mechanism`` computes the noise multiplier that each mechanism needs for the epsilon, and
# the error that remains. *vectors* is the memory, in vectors of the size of the model.

import dpftrl_fast as dpf
from dpftrl_fast import accounting as acc

EPSILON, DELTA = 8.0, 1e-5
epochs = acc.FixedEpochs(steps_per_epoch=100, epochs=10)
table = acc.plan_mechanism(EPSILON, DELTA, epochs)
print(table)

# %%
# The noise over the steps
# ------------------------
#
# Independent noise, which is DP-SGD without sampling, adds up: its error grows like the square root
# of the number of steps. Correlated noise cancels in the sums.

import matplotlib.pyplot as plt
import numpy as np

from dpftrl_fast import mechanisms as mech

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
light = acc.plan_mechanism(EPSILON, DELTA, epochs, max_vectors=3).best
tree = next(row for row in table if isinstance(row.mechanism, mech.Tree))
independent = next(row for row in table if isinstance(row.mechanism, mech.Identity))
shown = ((independent, "tab:gray"), (tree, "tab:orange"), (light, "tab:blue"))

figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
steps = np.arange(1, epochs.steps + 1)
for row, colour in shown:
    std = row.noise_multiplier * row.error().per_step
    label = f"{row.words} (rms {row.rms_std:.1f})"
    axes.plot(steps, std, color=colour, linewidth=1.6, label=label)
axes.set(
    xlabel="step", ylabel="standard deviation of the sum (clip norms)", ylim=(0, None),
    title="Noise in the running sum at epsilon 8 (replace-one 19.1)",
)  # fmt: skip
axes.grid(alpha=0.3)
_ = axes.legend(frameon=False)

# %%
# All mechanisms, with their memory
# ---------------------------------
#
# Taps are made again from the key and need no memory, but more normals a step. Buffers and bands
# keep vectors. No mechanism can be below the dotted line.

figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
rows = list(table)[::-1]
places = np.arange(len(rows))
colours = ["tab:blue" if row.vectors <= 3 else "tab:cyan" for row in rows]
axes.barh(places, [row.rms_std for row in rows], color=colours)
for place, row in zip(places, rows, strict=True):
    text = f"{row.rms_std:.1f}, {row.vectors} vector{'s' * (row.vectors != 1)}"
    axes.text(row.rms_std + 0.5, place, text, va="center", fontsize=8)
axes.axvline(table.lower_bound, color="tab:red", linestyle=":", label="lower bound")
axes.set_yticks(places, [row.words for row in rows])
axes.set(xlabel="rms error of a running sum (clip norms)", xlim=(0, 52))
_ = axes.legend(frameon=False, loc="center right")

# %%
# From a row to a plan
# --------------------
#
# The plan makes the noise and states the epsilon, for records replaced by zero and for records
# replaced by another one.

plan = dpf.PrivacyPlan.from_schedule(light, clip_norm=1.0)
print(plan.describe(delta=DELTA))
