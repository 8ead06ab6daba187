# SPDX-License-Identifier: Apache-2.0
"""
Auditing a run
==============

Does a program keep the epsilon that it states? An audit inserts made-up records, *canaries*, by the
toss of a coin. It guesses the coins from all that the program releases, and compares its success
with the stated guarantee.

The noise of an audit has new keys each time, so the last digits vary from build to build.
"""

# %%
# A sound running sum
# -------------------
#
# Each canary has a coordinate of its own, so that one run holds a thousand independent repetitions.
# The score of a canary is Gaussian. Being in the data shifts it by mu, the privacy loss in units of
# the noise.

import dpftrl_fast as dpf
from dpftrl_fast import audit


def stated(size):
    """Make the private sum that is audited: 16 steps, noise multiplier 1."""
    return dpf.PrefixSum(size, steps=16, clip_norm=1.0, noise_multiplier=1.0)


sound = audit.audit_prefix_sum(stated, random_state=0)
print(sound.describe())

# %%
# A faulty loop
# -------------
#
# A loop written by hand, with a typical mistake: gradients are averaged over half the batch, so
# that a record weighs one and a half clip norms. The loss still falls and every shape is right. The
# audit sees it.

import numpy as np

CANARIES, STEPS, RUNS = 1000, 16, 4
plan = dpf.PrivacyPlan(1.0, 1.0, dpf.SinglePass(STEPS))
worst = int(np.argmax(audit.worst_uses(plan)))  # a record shows most if it comes at this step


def noisy_sums(batches, weight):
    """Yield the noisy sum of clipped gradients after each batch, as a training loop would."""
    noise, total = plan.noise(CANARIES, dtype="float64"), np.zeros(CANARIES)
    for gradients in batches:
        norms = np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1.0)
        total += weight * (gradients / norms * (1 - 2**-20)).sum(axis=0)
        yield np.floor((total + noise.step()) / noise.grid + 0.5) * noise.grid


def audited(weight):
    """Audit the loop with records of this weight."""
    coins = np.random.default_rng(0).random((RUNS, CANARIES)) < 0.5
    releases = []
    for included in coins:
        batches = [np.zeros((0, CANARIES))] * STEPS
        batches[worst] = 100.0 * np.eye(CANARIES)[included]
        releases.append(list(noisy_sums(batches, weight)))
    return audit.audit_releases(
        np.concatenate(releases, axis=1), coins.ravel(), plan, runs=RUNS, subject="the loop"
    )


right, wrong = audited(1.0), audited(1.5)
print("as planned:", right.verdict)
print("records too heavy:", wrong.verdict)

# %%
# The scores
# ----------
#
# The curves are the laws that the plan implies: without the canary, and with it. On the right the
# scores of canaries that are in the data lie farther out than the plan allows.

import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
figure, both = plt.subplots(
    1, 2, figsize=(9.6, 3.8), sharex=True, sharey=True, layout="constrained"
)
x = np.linspace(-4, 7, 300)
for axes, result, title in ((both[0], right, "as planned"), (both[1], wrong, "records too heavy")):
    for scores, mean, name in (
        (result.scores_out, 0.0, "canary out"), (result.scores_in, result.mu_expected, "canary in"),
    ):  # fmt: skip
        bars = axes.hist(scores, bins=50, range=(-4, 7), density=True, alpha=0.4, label=name)
        colour = bars[2][0].get_facecolor()[:3]
        law = np.exp(-((x - mean) ** 2) / 2) / np.sqrt(2 * np.pi)
        axes.plot(x, law, color=colour, label=f"{name}, stated law")
    axes.set(
        title=f"{title}: {result.verdict.partition(':')[0]}",
        xlabel="score (standard deviations of the stated noise)",
    )
both[0].set_ylabel("density")
_ = both[0].legend(frameon=False, fontsize=8)

# %%
# In numbers
# ----------
#
# mu is measured with its standard error. ``dpftrl-fast audit`` and the functions of
# ``dpftrl_fast.audit`` do the same for estimators, PyTorch training and federated servers.

for name, result in (("as planned", right), ("records too heavy", wrong)):
    print(
        f"{name}: mu stated {result.mu_expected:.2f}, "
        f"measured {result.mu_measured:.2f} +- {result.mu_stderr:.2f}"
    )
epsilon = plan.epsilon(1e-6)
replaced = plan.epsilon(1e-6, neighbours="replace-one")
print(f"epsilon stated at delta 1e-6: {epsilon:.3f} (replace-one {replaced:.3f})")
