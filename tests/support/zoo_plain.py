# SPDX-License-Identifier: Apache-2.0
"""Cases written in torch alone, as tutorials write them, and one layer of Opacus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.layers import DPLSTM
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from zoo import CLASSES, ROWS, WORDS, Batch, Case, classified, contrasted, numbers, pixels, rebuilt
from zoo import tokens as of_tokens


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = self._block(3, 4), self._block(4, 8)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out, self.last = self._block(8, 4), nn.Conv2d(4, 3, 1)

    @staticmethod
    def _block(given: int, made: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (given, made):
            layers += [nn.Conv2d(channels, made, 3, padding=1, bias=False), nn.BatchNorm2d(made)]
            layers += [nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down(x)
        up = self.up(self.deep(self.pool(first)))
        return self.last(self.out(torch.cat([first, up], 1)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A classifier of texts by the last state of a recurrent layer."""

    def __init__(self, make: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.layer = make(8, 6, batch_first=True)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layer(self.embedding(x))[0][:, -1])  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A transformer of torch, with positions of one row."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 8), nn.Embedding(12, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        places = self.positions(torch.arange(x.shape[1], device=x.device))
        return self.out(self.encoder(self.words(x) + places).mean(1))  # type: ignore[no-any-return]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, stride=4)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(2))
        self.places = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 16))
        self.channels = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + self.places(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return self.out((x + self.channels(self.norms[1](x))).mean(1))  # type: ignore[no-any-return]


class Siamese(nn.Module):
    """Two images pass one network each: all layers are used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 4)
        )

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        difference = self.network(x) - self.network(other)
        return (difference.square().sum(1) + 1e-3).sqrt()  # type: ignore[no-any-return]


class Tied(nn.Module):
    """An embedding that is used as a weight, too, by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(WORDS, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(self.embedding(x).mean(1)).tanh()
        return nn.functional.linear(hidden, self.embedding.weight)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = convolutional(nn.GroupNorm(2, 4)), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.first, x, use_reentrant=False))  # type: ignore[no-any-return]


def convolutional(norm: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), norm, nn.ReLU(inplace=True),
        nn.AvgPool2d(2), nn.Flatten(),
    )  # fmt: skip


def frozen_norm() -> nn.Module:
    """A network whose BatchNorm keeps the statistics of public data, as in fine-tuning."""
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    norm.requires_grad_(False)

    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Any:
            super().train(mode)
            self[0][1].eval()
            return self

    return Frozen(convolutional(norm), nn.Linear(64, CLASSES))


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(48, 12), nn.ReLU(), nn.Linear(12, 48), nn.Unflatten(1, (3, 4, 4))
    )


def compiled() -> nn.Module:
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, CLASSES))
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def pairs() -> Batch:
    return {**pixels(5)(), "other": torch.randn(ROWS, 3, 5, 5), "y": torch.tensor([0, 1, 0, 1])}


def next_words() -> Batch:
    return {**of_tokens(), "y": torch.randint(0, WORDS, (ROWS,))}


CASES = {
    "U-Net": Case(UNet, pixels(8), rebuilt),
    "LSTM of Opacus": Case(lambda: Recurrent(DPLSTM), of_tokens, classified),
    "LSTM": Case(lambda: Recurrent(nn.LSTM), of_tokens, classified),
    "GRU": Case(lambda: Recurrent(nn.GRU), of_tokens, classified),
    "TransformerEncoder": Case(Encoder, of_tokens, classified),
    "MLP-Mixer": Case(Mixer, pixels(), classified),
    "autoencoder": Case(autoencoder, pixels(4), rebuilt),
    "siamese": Case(Siamese, pairs, contrasted),
    "tied weight": Case(Tied, next_words, classified),
    "frozen BatchNorm": Case(frozen_norm, pixels(), classified),
    "checkpoints": Case(Checkpointed, pixels(), classified),
    "torch.compile before": Case(compiled, numbers(8), classified),
}
