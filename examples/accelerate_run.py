# SPDX-License-Identifier: Apache-2.0
"""Train a small network privately with Accelerate."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.torch import make_private

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the data of an example, and the first weights
inputs, unseen = torch.randn(2_000, 8), torch.randn(500, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
epochs = 3

accelerator = Accelerator(cpu=True)
network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
network, optimizer, loader = accelerator.prepare(
    network,
    torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9),
    DataLoader(data, batch_size=100),
)
model, optimizer, loader, ledger = make_private(
    network, optimizer, loader, epsilon=8.0, delta=1e-5, epochs=epochs, clip_norm=1.0
)
for _ in range(epochs):
    for x, y in loader.batches():
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
accuracy = (model(unseen.to(accelerator.device)).argmax(1).cpu() == (unseen[:, 0] > 0)).float()
print(f"accuracy on test data {accuracy.mean():.2f}")
print(f"{ledger.steps_taken} steps", end=", ")
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {ledger.epsilon_spent():.3f} at delta 1e-05", end=" ")
print(f"(replace-one {replaced:.3f})")
