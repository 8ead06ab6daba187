# SPDX-License-Identifier: Apache-2.0
"""
Federated learning: Shakespeare
===============================

A server learns to predict the next word from the text on many devices. It sees clipped sums of
updates only, and adds correlated noise to them. The unit of privacy is a user with all its text.

First a small run that you can follow, on made-up users. Then the results of a recurrent network on
the speakers of Shakespeare's plays, from the experiments that this repository keeps.
"""

# %%
# Users and their text
# --------------------
#
# Each of 5,000 made-up users quotes four random lines of Sonnet 18. The vocabulary is public.

from itertools import pairwise

import numpy as np

SONNET = """shall i compare thee to a summer's day
thou art more lovely and more temperate
rough winds do shake the darling buds of may
and summer's lease hath all too short a date
sometime too hot the eye of heaven shines
and often is his gold complexion dimm'd
and every fair from fair sometime declines
by chance or nature's changing course untrimm'd
but thy eternal summer shall not fade
nor lose possession of that fair thou owest
nor shall death brag thou wander'st in his shade
when in eternal lines to time thou growest
so long as men can breathe or eyes can see
so long lives this and this gives life to thee"""
lines = [line.split() for line in SONNET.splitlines()]
words = sorted({word for line in lines for word in line})
number = {word: k for k, word in enumerate(words)}
pairs = [np.array([(number[a], number[b]) for a, b in pairwise(line)]) for line in lines]
USERS, V = 5_000, len(words)
quoted = np.random.default_rng(0).permuted(np.tile(np.arange(14), (USERS, 1)), axis=1)[:, :4]
print(f"{USERS:,} users, {V} words")


def update(table, user):
    """Return the change of a user's local training: one step of softmax regression."""
    here, following = np.concatenate([pairs[line] for line in quoted[user]]).T
    scores = np.exp(table[here])
    change = np.zeros((V, V))
    np.add.at(change, here, -scores / scores.sum(axis=1, keepdims=True))
    np.add.at(change, (here, following), 1.0)
    return change / len(here)


# %%
# A plan from the population
# --------------------------
#
# 60 rounds of 100 reports. Users come when they like. ``plan_rounds`` asks as many that 100 answer,
# finds out how far apart two participations of a user are at least, and takes the mechanism with
# the least noise for that pattern.

from dpftrl_fast import accounting as acc
from dpftrl_fast.federated import ServerDPFTRL, plan_rounds

DELTA, ROUNDS, GOAL, MOMENTUM, RATE = 1e-6, 60, 100, 0.9, 10.0
found = plan_rounds(
    population=USERS, rounds=ROUNDS, epsilon=0.5, delta=DELTA, report_goal=GOAL, clip_norm=0.1,
    answers=0.9, workload=acc.Workload(momentum=MOMENTUM),
)  # fmt: skip
print(found.describe())

# %%
# The rounds
# ----------
#
# Users are asked in turn; a tenth of them do not answer. The server turns away users whom the plan
# does not allow. It clips, sums, adds the noise and takes the step.


def perplexity(table):
    """Return exp of the mean loss over the sonnet: how many words the model hesitates between."""
    here, following = np.concatenate(pairs).T
    scores = table[here] - np.log(np.exp(table[here]).sum(axis=1, keepdims=True))
    return np.exp(-scores[np.arange(len(here)), following].mean())


def train(plan):
    """Run all rounds; return the server and the perplexity after each round."""
    server = ServerDPFTRL(
        {"table": np.zeros((V, V))}, plan=plan, report_goal=GOAL, momentum=MOMENTUM,
        learning_rate=RATE, noise_seed=0,
    )  # fmt: skip
    rng, curve = np.random.default_rng(1), []
    for t in range(ROUNDS):
        asked = (np.arange(found.cohort_size) + t * found.cohort_size) % USERS
        now = server.begin_round(asked.tolist())
        for user in now.cohort:
            if rng.random() < 0.9:
                now.add(user, {"table": update(server.parameters["table"], user)}, token=now.token)
        server.end_round()
        curve.append(perplexity(server.parameters["table"]))
    return server, curve


server, private = train(found.plan)
replaced = server.epsilon(DELTA, neighbours="replace-one")
print(f"epsilon {server.epsilon(DELTA):.3f} (replace-one {replaced:.3f}) at delta {DELTA:g}")

# %%
# For comparison: independent noise in each round at the same epsilon, which is DP-FedAvg without
# sampling, and the same training without noise, on a sample of the users.

import dpftrl_fast as dpf
from dpftrl_fast import mechanisms as mech

independent = dpf.PrivacyPlan.calibrate(
    epsilon=0.5, delta=DELTA, clip_norm=0.1, participation=found.plan.participation,
    mechanism=mech.Identity(),
)  # fmt: skip
_, uncorrelated = train(independent)

table, velocity, plain = np.zeros((V, V)), 0.0, []
for _ in range(ROUNDS):
    changes = [update(table, user) for user in range(50)]
    clipped = [change * min(1.0, 0.1 / np.linalg.norm(change)) for change in changes]
    velocity = MOMENTUM * velocity + np.mean(clipped, axis=0)
    table = table + RATE * velocity
    plain.append(perplexity(table))

import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
figure, axes = plt.subplots(figsize=(7.2, 4), layout="constrained")
rounds = np.arange(1, ROUNDS + 1)
axes.plot(rounds, uncorrelated, color="tab:orange", label="independent noise")
axes.plot(rounds, private, color="tab:blue", label="mechanism of the planner")
axes.plot(rounds, plain, "--", color="tab:gray", label="no noise")
axes.set_yscale("log")
axes.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
axes.set_yticks([], minor=True)
axes.set(xlabel="round", ylabel="perplexity", title="Epsilon 0.5 for one user (replace-one 1.06)")
axes.grid(alpha=0.3)
_ = axes.legend(frameon=False)

# %%
# The private model's text
# ------------------------
#
# The likeliest next word, again and again. Lines that many users quote can be learnt privately.
# Words of a single user could not: they are below the noise.

model = server.parameters["table"]
for first in ("shall", "so", "rough"):
    line = [first]
    while len(line) < 9:
        line.append(words[model[number[line[-1]]].argmax()])
    print(" ".join(line))

# %%
# The speakers of the plays
# -------------------------
#
# A recurrent network with 59,672 parameters on 1,242 speakers of 37 plays as users: 64 rounds, each
# user in four of them (``dpftrl-fast experiment federated``). Sampled cohorts are shown for
# comparison: devices that connect when they like cannot be sampled.

import json
from pathlib import Path

results = Path("..", "results", "federated.jsonl")  # beside the folder of this page
rows = [json.loads(line) for line in results.read_text().splitlines()]
ways = {  # and the noise multiplier of each at epsilon 4, 8 and 16
    "planned": ("DP-FTRL, mechanism of the planner", (6.3746, 3.6110, 2.1127)),
    "ftrl": ("DP-FTRL, tree restarted each pass", (4.0236, 2.2792, 1.3336)),
    "amplified": ("DP-FedAvg, sampled cohorts", (0.8707, 0.6455, 0.4874)),
    "fixed": ("DP-FedAvg, no sampling", (1.9174, 1.0862, 0.6355)),
}


def accuracies(way, sigma):
    """Return the test accuracies, in percent, of the runs with this noise."""
    return [
        100 * row["values"]["accuracy"] for row in rows
        if row["experiment"] == "shakespeare" and row["setting"]["stage"] == "test"
        and row["setting"]["method"] == way and row["setting"]["momentum"] == 0.9
        and round(row["setting"]["noise_multiplier"], 4) == sigma
    ]  # fmt: skip


figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
for way, (label, sigmas) in ways.items():
    values = np.array([accuracies(way, sigma) for sigma in sigmas])
    mean, spread = values.mean(axis=1), values.std(axis=1)
    line = "--" if way == "amplified" else "-"
    axes.plot([4, 8, 16], mean, line, marker="o", label=label)
    axes.fill_between([4, 8, 16], mean - spread, mean + spread, alpha=0.2, linewidth=0)
axes.set_xscale("log")
axes.set_xticks([4, 8, 16], ["4", "8", "16"])
axes.set_xticks([], minor=True)
axes.set(
    xlabel="epsilon for one user replaced by zero, at delta 1e-4",
    ylabel="next words predicted (%)",
    title="Speakers of Shakespeare's plays, mean and standard deviation of 3 seeds",
)
axes.grid(alpha=0.3)
_ = axes.legend(frameon=False)
