# SPDX-License-Identifier: Apache-2.0
"""Private training in the Trainer of transformers, in Lightning and with Accelerate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision_ops
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from dpftrl_fast.torch import TrainingRun, make_private
from dpftrl_fast.torch.frameworks import lightning_callback, make_trainer_private

torchvision_ops.declare()

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
        #: What each call was told of the batch's tokens.
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
    return transformers.Trainer(model, args, train_dataset=Rows(), optimizers=(sgd(model), None))


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


# ---- Lightning ----

INPUTS = torch.arange(30.0).reshape(10, 3) / 10
DATA = TensorDataset(INPUTS, INPUTS.sum(1))


def adam_with_schedule(module: nn.Module) -> Any:
    adam = torch.optim.Adam(module.parameters(), 0.1)
    return [adam], [torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)]


def module_of(configure: Callable[[nn.Module], Any] = sgd, *, call: str = "layer") -> Any:
    """A LightningModule whose step calls its network, itself, or two networks."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 1)
            self.automatic_optimization = call != "by hand"
            self.passes = 0
            if call.startswith("two"):
                self.other = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(x)
            return found + self.other(x) if call.startswith("two") else found

        def training_step(self, batch: list[Tensor], place: int) -> Tensor | None:
            self.passes += 1
            x, y = batch
            found = self(x) if call.endswith("self") else self.layer(x)
            if call == "two":
                found = found + self.other(x)
            loss = nn.functional.mse_loss(found[:, 0], y)
            if call != "by hand":
                return loss
            self.manual_backward(loss)
            self.optimizers().step()
            return None

        def configure_optimizers(self) -> Any:
            return configure(self)

    return Module()


def lightning_trainer(folder: Path, callback: Any, **changes: Any) -> Any:
    lightning = pytest.importorskip("lightning.pytorch")
    settings = {
        "max_epochs": EPOCHS,
        "callbacks": [callback],
        "default_root_dir": folder,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **changes,
    }
    return lightning.Trainer(**settings)


def callback_of(**changes: Any) -> Any:
    pytest.importorskip("lightning.pytorch")
    return lightning_callback(DataLoader(DATA, BATCH), epochs=EPOCHS, **{**BUDGET, **changes})


def weights_by_hand(configure: Callable[[nn.Module], Any] = sgd) -> Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(3, 1)
    found = configure(layer)
    optimizer, schedulers = (
        (found, []) if isinstance(found, torch.optim.SGD) else (found[0][0], found[1])
    )
    private = make_private(
        layer, optimizer, DataLoader(DATA, BATCH), epochs=EPOCHS, order_seed=1, key=KEY, **BUDGET
    )
    for _ in range(EPOCHS):
        for x, y in private.data_loader.batches():
            nn.functional.mse_loss(layer(x)[:, 0], y).backward()
            private.optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    return layer.weight.detach()


@pytest.mark.parametrize(
    ("configure", "call"),
    [(sgd, "layer"), (sgd, "self"), (sgd, "by hand"), (adam_with_schedule, "layer")],
    ids=["network", "module", "manual optimisation", "Adam with a schedule"],
)
def test_a_fit_has_the_bits_of_a_loop(tmp_path: Path, configure: Any, call: str) -> None:
    callback, module = callback_of(order_seed=1, key=KEY), module_of(configure, call=call)
    trainer = lightning_trainer(tmp_path, callback)
    trainer.fit(module, callback.batches)
    assert torch.equal(module.layer.weight, weights_by_hand(configure))
    assert trainer.global_step == callback.ledger.steps_taken == module.passes == 4
    assert callback.ledger.epsilon_spent() == callback.private.data_loader.plan.epsilon(1e-5)
    assert without_key(tmp_path)


def test_a_fit_does_not_resume_from_a_checkpoint_without_key(tmp_path: Path) -> None:
    callback = callback_of()
    lightning_trainer(tmp_path, callback).fit(module_of(), callback.batches)
    (checkpoint,) = tmp_path.rglob("*.ckpt")
    callback = callback_of()
    trainer = lightning_trainer(tmp_path, callback)
    with pytest.raises(ValueError, match=r"resume the run from its folder \(TrainingRun\)"):
        trainer.fit(module_of(), callback.batches, ckpt_path=checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accumulate_grad_batches": 2}, "must be 1, since a step"),
        ({"gradient_clip_val": 0.5}, "gradient_clip_val must be left out, got 0.5"),
        ({"max_epochs": 3}, r"for the 2 whole epochs .*got max_epochs=3"),
        ({"max_steps": 3}, r"no limits of steps or batches\), got .*max_steps=3"),
        ({"limit_train_batches": 1}, "no limits of steps or batches.*limit_train_batches=1"),
        ({"fast_dev_run": True}, "no limits of steps or batches"),
    ],
)
def test_a_lightning_trainer_with_other_steps_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    module, callback = module_of(), callback_of()
    with pytest.raises(ValueError, match=message):
        lightning_trainer(tmp_path, callback, **changes).fit(module, callback.batches)
    trainer = lightning_trainer(tmp_path, callback, max_steps=4)
    trainer.fit(module, callback.batches)
    assert trainer.global_step == callback.ledger.steps_taken == 4


def test_a_fit_without_the_batches_of_the_callback_is_refused(tmp_path: Path) -> None:
    callback = callback_of()
    with pytest.raises(ValueError, match=r"trainer.fit\(module, callback.batches\)"):
        lightning_trainer(tmp_path, callback).fit(module_of(), DataLoader(DATA, BATCH))
    assert callback.ledger.steps_taken == 0
    with pytest.raises(ValueError, match=r"a callback is for one trainer\.fit"):
        lightning_trainer(tmp_path, callback).fit(module_of(), callback.batches)


def test_a_module_after_a_fit_that_was_refused(tmp_path: Path) -> None:
    """Its optimiser is made private by the callback that is in use, and by no other."""
    module, wrong, right = (
        module_of(),
        callback_of(clip_norm=-1.0),
        callback_of(order_seed=1, key=KEY),
    )
    with pytest.raises(ValueError, match="clip_norm must be"):
        lightning_trainer(tmp_path, wrong).fit(module, wrong.batches)
    lightning_trainer(tmp_path, right).fit(module, right.batches)
    assert torch.equal(module.layer.weight, weights_by_hand())


def test_optimisers_that_cannot_be_made_private(tmp_path: Path) -> None:
    def scheduled(module: nn.Module) -> Any:
        made = sgd(module)
        return {"optimizer": made, "lr_scheduler": torch.optim.lr_scheduler.StepLR(made, 1)}

    callback = callback_of()
    with pytest.raises(ValueError, match="give keep_optimizer=True"):
        lightning_trainer(tmp_path, callback).fit(module_of(scheduled), callback.batches)
    callback = callback_of(keep_optimizer=True)
    lightning_trainer(tmp_path, callback).fit(module_of(scheduled), callback.batches)
    assert callback.ledger.steps_taken == 4

    def two(module: nn.Module) -> Any:
        return [sgd(module), sgd(module)]

    callback = callback_of()
    with pytest.raises(ValueError, match="must return one optimiser"):
        lightning_trainer(tmp_path, callback).fit(module_of(two), callback.batches)


def test_a_step_of_two_networks_is_refused(tmp_path: Path) -> None:
    callback = callback_of()
    with pytest.raises(ValueError, match="expected a call of the model that was made private"):
        lightning_trainer(tmp_path, callback).fit(module_of(call="two"), callback.batches)
    callback = callback_of()
    lightning_trainer(tmp_path, callback).fit(module_of(call="two by self"), callback.batches)
    assert callback.ledger.steps_taken == 4


def test_what_the_callback_has_before_a_fit() -> None:
    callback = callback_of()
    with pytest.raises(ValueError, match=r"made when trainer\.fit begins"):
        _ = callback.ledger
    with pytest.raises(ValueError, match="'auto' takes each example alone"):
        callback_of(grad_sample_mode="vmap")
    assert (len(callback.batches), callback.batches.batch_size) == (2, BATCH)


# ---- Accelerate ----


@pytest.fixture
def accelerated() -> Iterator[Callable[..., Any]]:
    """Make an `Accelerator`; what all of a process share is as it was afterwards."""
    accelerate = pytest.importorskip("accelerate")

    def reset() -> None:
        accelerate.state.AcceleratorState._reset_state(True)
        accelerate.state.GradientState._reset_state()

    reset()
    yield functools.partial(accelerate.Accelerator, cpu=True)
    reset()


@pytest.mark.parametrize("kept", [False, True], ids=["DPFTRL", "kept"])
@pytest.mark.parametrize("when", ["before", "after", "both"])
def test_accelerate_prepares_in_any_order(
    tmp_path: Path, accelerated: Callable[..., Any], when: str, kept: bool
) -> None:
    accelerator = accelerated()
    torch.manual_seed(0)
    model: Any = nn.Linear(3, 1)
    optimizer: Any = sgd(model)
    loader: Any = DataLoader(DATA, BATCH)
    if when != "after":
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    options = {**BUDGET, "order_seed": 1, "key": KEY, "keep_optimizer": kept}
    private = make_private(model, optimizer, loader, epochs=EPOCHS, **options)
    noise = private.noise
    model, optimizer, loader, ledger = private
    if when != "before":
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(EPOCHS):
        for x, y in loader.batches():
            accelerator.backward(nn.functional.mse_loss(model(x)[:, 0], y))
            optimizer.step()
            optimizer.zero_grad()
    expected = weights_by_hand(lambda m: sgd(m))
    assert torch.allclose(model.weight, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.weight, expected) or kept
    assert ledger.steps_taken == 4
    accelerator.save_state(str(tmp_path))
    assert without_key(tmp_path)
    torch.save(noise.state_dict(secrets=True), tmp_path / "secret.pt")
    assert not without_key(tmp_path)


def prepared(accelerator: Any, **loading: Any) -> tuple[Any, Any, Any]:
    model = nn.Linear(3, 1)
    loader = DataLoader(DATA, BATCH, **loading)
    found: tuple[Any, Any, Any] = accelerator.prepare(model, sgd(model), loader)
    return found


def test_accelerate_with_other_steps_is_refused(accelerated: Callable[..., Any]) -> None:
    made = prepared(accelerated(gradient_accumulation_steps=2))
    with pytest.raises(ValueError, match=r"must be 1.*got 2: .*in pieces \(loader.in_pieces\)"):
        make_private(*made, epochs=EPOCHS, **BUDGET)


def test_accelerate_with_a_scaler_or_a_shuffle_is_refused(accelerated: Callable[..., Any]) -> None:
    accelerator = accelerated()
    model, optimizer, loader = prepared(accelerator)
    optimizer.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="must be 'bf16' or 'no' for private training"):
        make_private(model, optimizer, loader, epochs=EPOCHS, **BUDGET)
    optimizer.scaler = None
    with pytest.raises(ValueError, match=r"must not shuffle or sample .*got \w*RandomSampler"):
        make_private(
            model, optimizer, prepared(accelerator, shuffle=True)[2], epochs=EPOCHS, **BUDGET
        )
    private = make_private(model, optimizer, loader, epochs=EPOCHS, **BUDGET)
    for pieces in private.data_loader.in_pieces(2):
        for _, (x, y) in pieces:
            accelerator.backward(nn.functional.mse_loss(model(x)[:, 0], y))
        private.optimizer.step()
    assert private.ledger.steps_taken == 2


def test_a_run_in_a_folder_resumes_with_accelerate(
    tmp_path: Path, accelerated: Callable[..., Any]
) -> None:
    expected = weights_by_hand()
    for epoch in range(EPOCHS):  # each in a program of its own
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        options = {**BUDGET, "order_seed": 1, "key": KEY}
        loader = DataLoader(DATA, BATCH)
        private = make_private(model, sgd(model), loader, epochs=EPOCHS, **options)
        with TrainingRun(tmp_path / "run", model, private.optimizer, private.data_loader) as run:
            accelerator = accelerated()
            model, optimizer = accelerator.prepare(model, private.optimizer)
            assert private.data_loader.epoch == epoch
            for _, (x, y) in run:
                accelerator.backward(nn.functional.mse_loss(model(x)[:, 0], y))
                optimizer.step()
    assert torch.equal(model.weight, expected)
    assert private.ledger.steps_taken == 4
