# SPDX-License-Identifier: Apache-2.0
"""Private training in the Trainer of transformers, in Lightning and with Accelerate."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dpftrl_fast.torch import make_private
from dpftrl_fast.torch.frameworks import make_trainer_private

pytestmark = pytest.mark.filterwarnings("ignore")  # of the tools, among themselves

BUDGET: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-5, "clip_norm": 1.0}
KEY = bytes(range(100, 132))
EPOCHS, BATCH = 2, 5


def without_key(folder: Path) -> bool:
    """Whether files were written and none of them holds the key, as bytes or in words."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [path for path in files if KEY in (b := path.read_bytes()) or KEY.hex().encode() in b]
    assert files
    return not found


# ---- Trainer ----


class Rows(Dataset[dict[str, Tensor]]):
    """Ten rows for a network that computes its loss, as those of transformers."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        row = torch.arange(3.0) - place / 3
        return {"x": row, "labels": row.sum()}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 1)
        #: Whether a loss of the batch's tokens was asked for, as language models of transformers do.
        self.counts: list[Any] = []

    def forward(self, x: Tensor, labels: Tensor, **others: Any) -> dict[str, Tensor]:
        self.counts.append(others.get("num_items_in_batch"))
        return {"loss": nn.functional.mse_loss(self.layer(x)[:, 0], labels)}


def sgd(network: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(network.parameters(), 0.1, momentum=0.5)


def trainer_of(folder: Path, network: nn.Module | None = None, **changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH,
        "save_strategy": "epoch",
        "lr_scheduler_type": "constant",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    model = Network() if network is None else network
    args = transformers.TrainingArguments(str(folder), **settings)
    return transformers.Trainer(
        model, args, train_dataset=Rows(), optimizers=(sgd(model), None)
    )


def by_hand(**changes: Any) -> Tensor:
    """The weights after a loop of one's own, with the noise of `KEY`."""
    network = Network()
    loader = DataLoader(Rows(), batch_size=BATCH)
    options = {**BUDGET, "order_seed": 1, "key": KEY, **changes}
    private = make_private(network, sgd(network), loader, epochs=EPOCHS, **options)
    for _ in range(EPOCHS):
        for _, batch in private.data_loader:
            private.model(**batch)["loss"].backward()
            private.optimizer.step()
    return network.layer.weight.detach()


@pytest.mark.parametrize("changes", [{}, {"keep_optimizer": True}], ids=["DPFTRL", "kept"])
def test_a_trainer_has_the_bits_of_a_loop(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = trainer_of(tmp_path)
    private = make_trainer_private(trainer, **BUDGET, order_seed=1, key=KEY, **changes)
    trainer.train()
    assert torch.equal(trainer.model.layer.weight, by_hand(**changes))
    assert trainer.state.global_step == private.ledger.steps_taken == 4
    assert trainer.model.counts and not any(count is not None for count in trainer.model.counts)
    assert without_key(tmp_path)
    secret = private.noise.state_dict(secrets=True)
    torch.save(secret, tmp_path / "secret.pt")  # the search would find it
    assert not without_key(tmp_path)


def test_a_trainer_does_not_resume_from_a_checkpoint_without_key(tmp_path: Path) -> None:
    first = trainer_of(tmp_path)
    make_trainer_private(first, **BUDGET)
    first.train()
    again = trainer_of(tmp_path)
    make_trainer_private(again, **BUDGET)
    with pytest.raises(ValueError, match=r"resume the run from its folder \(TrainingRun\)"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize(
    ("changes", "message", "remedy"),
    [
        ({"gradient_accumulation_steps": 2}, "must be 1, since a step", {}),
        ({"max_grad_norm": 0.5}, "max_grad_norm must be left out, got 0.5", {}),
        ({"num_train_epochs": 1.5}, "train for whole epochs", {"num_train_epochs": 1}),
        ({"max_steps": 3}, "train for whole epochs", {"num_train_epochs": 2}),
        ({"auto_find_batch_size": True}, "batch size is part of the plan", {}),
    ],
)
def test_a_trainer_with_other_steps_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str, remedy: dict[str, Any]
) -> None:
    trainer = trainer_of(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        make_trainer_private(trainer, **BUDGET)
    trainer = trainer_of(tmp_path, save_strategy="no", **remedy)
    private = make_trainer_private(trainer, **BUDGET)
    trainer.train()
    assert trainer.state.global_step == private.ledger.steps_taken


def test_a_sampler_of_ones_own_is_refused(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    weighted = torch.utils.data.WeightedRandomSampler([1.0] * 10, 10)
    own = DataLoader(Rows(), batch_size=BATCH, sampler=weighted)
    usual = trainer.get_train_dataloader
    trainer.get_train_dataloader = lambda: own
    with pytest.raises(ValueError, match=r"at random or in order.*got WeightedRandomSampler"):
        make_trainer_private(trainer, **BUDGET)
    trainer.get_train_dataloader = usual
    assert make_trainer_private(trainer, **BUDGET).data_loader.batch_size == BATCH


def test_what_the_trainer_decides_is_not_given(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="epochs must be left out"):
        make_trainer_private(trainer_of(tmp_path), epochs=2, **BUDGET)
    with pytest.raises(ValueError, match="'auto' takes each example alone"):
        make_trainer_private(trainer_of(tmp_path), grad_sample_mode="vmap", **BUDGET)
    with pytest.raises(TypeError, match="trainer must be a transformers Trainer, got Linear"):
        make_trainer_private(nn.Linear(1, 1), **BUDGET)
