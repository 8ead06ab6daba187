# SPDX-License-Identifier: Apache-2.0
"""Train a small network privately, for five epochs in a fixed order."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.torch import make_private

# torch warns of hooks on layers whose inputs need no gradient; that is intended here.


def up(epsilon: float) -> str:
    """Return an epsilon with three decimals, rounded up."""
    return f"{math.ceil(1000 * epsilon) / 1000:.3f}"


torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the data of an example, and the first weights
inputs = torch.randn(10_000, 8)
labels = (inputs[:, 0] * inputs[:, 1] > 0).long()
data, test = TensorDataset(inputs[:9_500], labels[:9_500]), (inputs[9_500:], labels[9_500:])

epochs, batch_size = 5, 125
network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
model, optimizer, loader, ledger = make_private(
    network,
    torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9),
    DataLoader(data, batch_size=batch_size),
    epsilon=8.0,
    delta=1e-6,
    epochs=epochs,
    clip_norm=1.0,
)
print(loader.plan.describe(ledger.target_delta))

for epoch in range(epochs):
    for _, (x, y) in loader:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        correct = (network(test[0]).argmax(1) == test[1]).float().mean()
    print(f"epoch {epoch + 1} of {epochs}: accuracy on test data {correct:.3f}")
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {up(ledger.epsilon_spent())} at delta {ledger.target_delta}", end=" ")
print(f"(replace-one {up(replaced)})")
