# SPDX-License-Identifier: Apache-2.0
"""Train a small network privately with Lightning."""

from __future__ import annotations

import tempfile

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.torch.frameworks import lightning_callback

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the data of an example, and the first weights
inputs, unseen = torch.randn(2_000, 8), torch.randn(500, 8)
data = TensorDataset(inputs, (inputs[:, 0] > 0).long())
epochs = 3


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))

    def training_step(self, batch: list[Tensor], place: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


module = Classifier()
private = lightning_callback(
    DataLoader(data, batch_size=100), epochs=epochs, epsilon=8.0, delta=1e-5, clip_norm=1.0
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        max_epochs=epochs,
        callbacks=[private],
        default_root_dir=folder,  # of checkpoints, which hold no key
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, private.batches)
accuracy = (module.layers(unseen).argmax(1) == (unseen[:, 0] > 0)).float().mean()
print(f"accuracy on test data {accuracy:.2f}")
print(f"{trainer.global_step} steps, of which the ledger has {private.ledger.steps_taken}")
replaced = private.ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {private.ledger.epsilon_spent():.3f} at delta 1e-05", end=" ")
print(f"(replace-one {replaced:.3f})")
