# SPDX-License-Identifier: Apache-2.0
"""Networks that people train, with random weights, as small as their libraries build them.

A `Case` has a network, a batch and the loss of a training loop over it. Everything is made from
configurations: nothing is downloaded. Dropout is off, so that two passes can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torchvision_ops  # noqa: F401  # before transformers, timm and torchvision are imported
from torch import Tensor, nn
from torch.utils.data import Dataset

ROWS, LENGTH, WORDS, CLASSES = 4, 6, 19, 3

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A network, how its batches look and the loss that a loop computes."""

    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    slow: bool = False
    frozen: Callable[[nn.Module], None] | None = field(default=None)


class Rows(Dataset[Batch]):
    """Examples of a batch, one by one."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def __getitem__(self, i: int) -> Batch:
        return {name: values[i] for name, values in self.batch.items()}


# Losses of training loops: all are means over the examples.


def own_loss(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that models of transformers compute."""
    return model(**batch).loss  # type: ignore[no-any-return]


def classified(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def of_logits(model: nn.Module, batch: Batch) -> Tensor:
    """Of a model of transformers, by a criterion."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return nn.functional.cross_entropy(model(**inputs).logits, batch["labels"])


def rebuilt(model: nn.Module, batch: Batch) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["x"])


def contrasted(model: nn.Module, batch: Batch) -> Tensor:
    distances = model(batch["x"], batch["other"])
    return torch.where(batch["y"] == 0, distances, (2 - distances).clamp(min=0)).mean()


# Batches.


def words(*names: str, mask: bool = True) -> Callable[[], Batch]:
    def make() -> Batch:
        ids = torch.randint(3, WORDS, (ROWS, LENGTH))
        batch = {"input_ids": ids}
        if mask:
            batch["attention_mask"] = torch.ones_like(ids)
            batch["attention_mask"][1, 4:] = 0
            batch["attention_mask"][2, 3:] = 0
            ids[batch["attention_mask"] == 0] = 0
        if "labels" in names:
            batch["labels"] = torch.randint(0, CLASSES, (ROWS,))
        if "next" in names:
            batch["labels"] = torch.randint(0, WORDS, (ROWS, LENGTH))
        return batch

    return make


def pixels(side: int = 16, channels: int = 3) -> Callable[[], Batch]:
    return lambda: {
        "x": torch.randn(ROWS, channels, side, side),
        "y": torch.randint(0, CLASSES, (ROWS,)),
    }


def numbers(*shape: int) -> Callable[[], Batch]:
    return lambda: {"x": torch.randn(ROWS, *shape), "y": torch.randint(0, CLASSES, (ROWS,))}


def tokens() -> Batch:
    return {"x": torch.randint(1, WORDS, (ROWS, LENGTH)), "y": torch.randint(0, CLASSES, (ROWS,))}
