# SPDX-License-Identifier: Apache-2.0
"""
Private images: Fashion-MNIST
=============================

First a multinomial regression on 60,000 images of clothes, trained here. Then the accuracies of a
convolutional network, which takes minutes to train, from the results that this repository keeps.
The unit of privacy is an image.
"""

# %%
# The images
# ----------
#
# The Debian package ``dataset-fashion-mnist`` has the four files. Without it this page takes the
# 1,797 small digits that come with scikit-learn.

import numpy as np

from dpftrl_fast.datasets import fashion_mnist

try:
    images = fashion_mnist()
    title, side = "Fashion-MNIST", 28
    X, y, X_test, y_test = images.images, images.labels, images.test_images, images.test_labels
except FileNotFoundError:
    from sklearn.datasets import load_digits

    title, side = "digits of scikit-learn", 8
    X, y = load_digits(return_X_y=True)
    X, y, X_test, y_test = X[:1437], y[:1437], X[1437:], y[1437:]


def unit(rows):
    """Return rows of norm 1: each image by itself, so that no row says anything of another."""
    rows = rows.astype(np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)


train, test = unit(X), unit(X_test)
print(f"{title}: {len(train):,} images to fit, {len(test):,} held out")

# %%
# One private classifier
# ----------------------
#
# Images come in a fixed order, in five epochs. Nothing is sampled.

from dpftrl_fast.linear_model import DPFTRLClassifier


def classifier(epsilon):
    """Return a classifier with public settings."""
    return DPFTRLClassifier(
        epsilon=epsilon, delta=1e-5, classes=np.arange(10), x_norm_bound=1.0, epochs=5,
        batch_size=len(train) // 100, noise_seed=0,
    )  # fmt: skip


model = classifier(3.0).fit(train, y)
print(model.plan_.describe(model.delta_))
print(f"accuracy on held-out images: {model.score(test, y_test):.3f}")

# %%
# Its weights
# -----------
#
# Each class has an image of weights. They are private: they can be published like any number that
# is computed from the noisy sums.

import matplotlib.pyplot as plt

plt.rcParams.update({"figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})
names = ["T-shirt", "trousers", "pullover", "dress", "coat"]
names += ["sandal", "shirt", "sneaker", "bag", "boot"]
figure, panels = plt.subplots(2, 5, figsize=(8.4, 3.8), layout="constrained")
for k, axes in enumerate(panels.flat):
    weights = model.coef_[k].reshape(side, side)
    largest = np.abs(weights).max()
    axes.imshow(weights, cmap="RdBu", vmin=-largest, vmax=largest)
    axes.set_title(names[k] if side == 28 else str(k), fontsize=9)
    axes.axis("off")
_ = figure.suptitle("Weights of the private classifier: blue for, red against")

# %%
# A network: accuracy against epsilon
# -----------------------------------
#
# A network of two convolutions, 5 epochs in batches of 250, trained in four ways with the same
# tuning (``dpftrl-fast experiment images``). Amplified DP-SGD needs each batch to be a fresh random
# sample of all images. Where that is possible and epsilon is small, it wins. In a fixed order the
# mechanism of the planner is the best.

import json
from pathlib import Path

results = Path("..", "results", "images.jsonl")  # beside the folder of this page
rows = [json.loads(line) for line in results.read_text().splitlines()]
tested = [
    row for row in rows
    if row["experiment"] == "images-fashion-mnist" and row["setting"]["stage"] == "test"
    and row["setting"]["momentum"] == 0.9
]  # fmt: skip
ways = {
    "planned": "DP-FTRL, mechanism of the planner",
    "ftrl": "DP-FTRL, tree restarted each epoch",
    "amplified": "DP-SGD, sampled batches",
    "fixed": "DP-SGD, fixed batches",
}
figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
for way, label in ways.items():
    found = {}
    for row in tested:
        setting = row["setting"]
        tree = (setting.get("restart"), setting.get("complete"), setting.get("variant"))
        if setting["method"] == way and setting["epochs"] == 5 and (
            way != "ftrl" or tree == (1, True, "honaker")
        ):  # fmt: skip
            found.setdefault(setting["epsilon"], []).append(row["values"]["accuracy"])
    epsilons = sorted(found)
    values = [np.array(found[epsilon]) for epsilon in epsilons]
    mean, spread = (np.array([f(v) for v in values]) for f in (np.mean, np.std))
    axes.plot(epsilons, mean, "--" if way == "amplified" else "-", marker="o", label=label)
    axes.fill_between(epsilons, mean - spread, mean + spread, alpha=0.2, linewidth=0)
axes.set_xscale("log")
axes.set_xticks([1, 4, 20], ["1", "4", "20"])
axes.set_xticks([], minor=True)
axes.set(
    xlabel="epsilon for one image replaced by zero, at delta 1e-5",
    ylabel="accuracy on 10,000 test images",
    title="Fashion-MNIST, mean and standard deviation of 5 seeds",
)
axes.grid(alpha=0.3)
_ = axes.legend(frameon=False, loc="lower right")
