# SPDX-License-Identifier: Apache-2.0
"""Train a ResNet of torchvision privately: `fix_model` replaces its BatchNorm.

python examples/torch_resnet.py                           a small ResNet with random weights
python examples/torch_resnet.py --pretrained resnet18     fine-tuned; its BatchNorm is frozen
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision.models import get_model
from torchvision.models.resnet import BasicBlock, ResNet

from dpftrl_fast.torch import fix_model, make_private

parser = argparse.ArgumentParser()
parser.add_argument("--pretrained", metavar="NAME", help="a ResNet of torchvision, with weights")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=32)
arguments = parser.parse_args()

torch.set_num_threads(1)  # the layers are too small for more
torch.manual_seed(0)  # public: the data of an example, and the first weights
SIZE, CLASSES = 16, 2


def striped(count: int) -> TensorDataset:
    """Return noisy images of stripes; the class is whether they are upright."""
    labels = torch.randint(CLASSES, (count,))
    waves = torch.sin(1.2 * torch.arange(SIZE) + 6.28 * torch.rand(count, 1))
    upright = waves[:, None, :].expand(-1, SIZE, -1)
    images = torch.where(labels[:, None, None] == 1, upright, upright.transpose(1, 2))
    images = images + 0.5 * torch.randn(count, SIZE, SIZE)
    return TensorDataset(images[:, None].repeat(1, 3, 1, 1), labels)


if arguments.pretrained is not None:
    network = get_model(arguments.pretrained, weights="DEFAULT")
    network.fc = nn.Linear(network.fc.in_features, CLASSES)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()  # frozen: its statistics stay those of the pretraining
else:
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
fixed = fix_model(network)
print(fixed)  # what was replaced, and where the function changed
network = fixed.model

train, test = striped(256), striped(100)
model, optimizer, loader, ledger = make_private(
    network,
    torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9),
    DataLoader(train, batch_size=arguments.batch_size),
    epsilon=8.0,
    delta=1e-5,
    epochs=arguments.epochs,
    clip_norm=1.0,
)
for epoch in range(arguments.epochs):
    model.train()
    for x, y in loader.batches():
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 100))
    print(f"epoch {epoch + 1}: accuracy on test data {correct / len(test):.2f}")
replaced = ledger.epsilon_spent(neighbours="replace-one")
print(f"epsilon of the run: {ledger.epsilon_spent():.3f} at delta {ledger.target_delta}", end=" ")
print(f"(replace-one {replaced:.3f})")
