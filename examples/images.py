# SPDX-License-Identifier: Apache-2.0
"""Train the paper's network on Fashion-MNIST privately, for five epochs, with a progress bar.

python examples/images.py [epochs] [images]     (apt-get install dataset-fashion-mnist)
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.datasets import fashion_mnist
from dpftrl_fast.torch.make_private import make_private


def up(epsilon: float) -> str:
    """Return an epsilon with three decimals, rounded up."""
    return f"{math.ceil(1000 * epsilon) / 1000:.3f}"


epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
training_images = int(sys.argv[2]) if len(sys.argv) > 2 else 60_000
torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the first weights


def tensors(images: np.ndarray, labels: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.from_numpy(images.astype(np.float32)).view(-1, 1, 28, 28)
    return pixels / 127.5 - 1.0, torch.from_numpy(labels.astype(np.int64))


data = fashion_mnist()
train = TensorDataset(*tensors(data.images[:training_images], data.labels[:training_images]))
test_x, test_y = tensors(data.test_images, data.test_labels)

network = nn.Sequential(
    nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
    nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
    nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
)  # fmt: skip
model, optimizer, loader, ledger = make_private(
    network,
    torch.optim.SGD(network.parameters(), lr=0.125, momentum=0.9),
    DataLoader(train, batch_size=250),
    epsilon=8.0,
    delta=1e-5,
    epochs=epochs,
    clip_norm=1.0,
)
print(f"{sum(p.numel() for p in network.parameters()):,} parameters")
print(loader.plan.describe(ledger.target_delta))

steps, begun = loader.plan.steps // epochs, time.monotonic()
for epoch in range(1, epochs + 1):
    for step, (_, (x, y)) in enumerate(loader, 1):
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if sys.stdout.isatty() or step == steps:
            bar = ("#" * (30 * step // steps)).ljust(30, ".")
            so_far = f"progress in epsilon {up(ledger.epsilon_so_far())}"
            print(f"\repoch {epoch}/{epochs} [{bar}] {so_far}", end="", flush=True)
    with torch.no_grad():
        accuracy = (network(test_x).argmax(1) == test_y).float().mean()
    print(f", test accuracy {accuracy:.3f} after {time.monotonic() - begun:.0f} s")
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {up(ledger.epsilon_spent())} at delta {ledger.target_delta}", end=" ")
print(f"(replace-one {up(replaced)})")
