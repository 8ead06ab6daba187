# SPDX-License-Identifier: Apache-2.0
"""Mistakes before the first step: each has its sentence, and what it says to do works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset
from torch_cases import cross_entropy

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.torch import DPFTRL, make_private, unwrap
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.make_private import PrivateTraining
from dpftrl_fast.torch.same_data import examples_hash

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (24,), generator=GENERATOR)
DATA = TensorDataset(X, Y)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def private(
    model: nn.Module | None = None,
    optimizer: Any = None,
    loader: Any = None,
    **options: Any,
) -> PrivateTraining:
    model = network() if model is None else model
    return make_private(
        model,
        SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer,
        DataLoader(DATA, batch_size=8) if loader is None else loader,
        **{"noise_multiplier": 2.0, "delta": 1e-5, "epochs": 1, "clip_norm": 0.5, **options},
    )


def train(run: PrivateTraining) -> None:
    for _, (x, y) in run.data_loader:
        cross_entropy(run.model(x), y).backward()
        run.optimizer.step()
    assert run.ledger.steps_taken == 3


# ---- Arguments ----


@pytest.mark.parametrize(
    ("name", "here"),
    [("max_grad_norm", "clip_norm="), ("target_epsilon", "epsilon="), ("target_delta", "delta=")],
)
@pytest.mark.parametrize("kept", [False, True])
def test_names_of_opacus_lead_to_those_here(name: str, here: str, kept: bool) -> None:
    with pytest.raises(TypeError, match=f"make_private has no argument '{name}'.*: use {here}"):
        private(**{name: 1.0}, keep_optimizer=kept)
    with pytest.raises(TypeError, match="make_private has no argument 'memry', nor has"):
        private(memry="stored", keep_optimizer=kept)
    train(private(memory="regenerate", keep_optimizer=kept))


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, float("nan")])
def test_epsilon_must_be_above_zero(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        private(epsilon=epsilon, noise_multiplier=None)


def test_another_loader_and_another_epoch_are_refused_with_a_remedy() -> None:
    run = private()
    for x, y in DataLoader(DATA, batch_size=8):
        with pytest.raises(ValueError, match="make_private returned"):
            cross_entropy(run.model(x), y).backward()
            run.optimizer.step()
        break
    run = private()
    train(run)
    with pytest.raises(ValueError, match=r"got another epoch: .* declare as many epochs"):
        train(run)


# ---- The first pass ----


def test_evaluation_mode_is_refused_at_the_first_pass() -> None:
    run = private()
    run.model.eval()
    with pytest.raises(ValueError, match=r"got evaluation mode: call model.train\(\) first"):
        train(run)
    assert run.ledger.steps_taken == 0
    run.model.train()
    _, (x, _) = next(iter(run.data_loader))
    run.model.eval()
    with torch.no_grad():  # the other remedy
        run.model(x)
    run.model.train()
    train(run)
    run.model.eval()
    run.model(x)  # between batches, and later


def test_evaluation_mode_is_refused_with_vmap() -> None:
    run = private(grad_sample_mode="vmap", criterion=cross_entropy)
    model: Any = run.model
    model.eval()
    _, (x, y) = next(iter(run.data_loader))
    with pytest.raises(ValueError, match="got evaluation mode"):
        model.backward(x, y)
    model.train()
    for _, (x, y) in run.data_loader:
        model.backward(x, y)
        run.optimizer.step()
    assert run.ledger.steps_taken == 3


UNPACKED = {
    "as they are": lambda ids: ids,
    "as a tensor": torch.tensor,
    "with the same memory": torch.from_numpy,
}


@pytest.mark.parametrize("kind", UNPACKED)
def test_ids_in_place_of_the_batch_are_told_apart(kind: str) -> None:
    run = private()
    for x, _ in run.data_loader:  # who is used to other loaders calls ids x
        with pytest.raises(ValueError, match=r"write `for ids, \(x, y\) in loader`"):
            run.model(UNPACKED[kind](x))
        break
    train(run)


@pytest.mark.parametrize("name", ["to", "cuda", "float"])
def test_ids_that_are_moved_as_rows_are_told_apart(name: str) -> None:
    run = private()
    for x, _ in run.data_loader:
        with pytest.raises(AttributeError, match=r"write `for ids, \(x, y\) in loader`"):
            getattr(x, name)("cpu")
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            x.nothing  # type: ignore[attr-defined]  # noqa: B018
        assert isinstance(x, np.ndarray) and x.dtype == np.int64
        assert torch.equal(X[x], X[torch.from_numpy(x)])
        break
    train(run)


def test_numbers_that_an_embedding_is_trained_on_are_no_ids() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(24, 3), nn.Linear(3, 3))
    loader = DataLoader(TensorDataset(torch.arange(24), Y), batch_size=8)
    train(private(model, loader=loader))


# ---- The data ----


def test_a_data_set_that_is_read_in_order_only_is_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(X, Y, strict=True))

    with pytest.raises(ValueError, match=r"__len__ and __getitem__.*got Stream: read it once into"):
        private(loader=DataLoader(Stream(), batch_size=8))
    rows: Any = list(Stream())
    train(private(loader=DataLoader(rows, batch_size=8)))


def test_a_sampler_of_shards_is_refused() -> None:
    sampler = DistributedSampler(DATA, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match=r"got DistributedSampler:.* give it the whole data set"):
        private(loader=DataLoader(DATA, batch_size=8, sampler=sampler))
    train(private())


class Augmented(torch.utils.data.Dataset[Any]):
    """Rows with noise of the global numbers, or of a generator of its own."""

    def __init__(self, own: bool, shift: float = 0.0) -> None:
        self.rng = np.random.default_rng() if own else None
        self.shift = shift

    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> Any:
        noise = torch.rand(4) if self.rng is None else torch.tensor(self.rng.random(4))
        return {"x": X[place] + noise + self.shift, "name": f"example {place}"}


def test_the_hash_of_examples_tells_data_sets_apart() -> None:
    assert examples_hash(DATA, "s") == examples_hash(TensorDataset(X.clone(), Y.clone()), "s")
    for other in (TensorDataset(X[12:], Y[12:]), TensorDataset(X + 1, Y), TensorDataset(X, Y + 1)):
        assert examples_hash(other, "s") != examples_hash(DATA, "s")
    assert examples_hash(DATA, "other") != examples_hash(DATA, "s")  # it reveals nothing by itself
    before = torch.rand(1, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(1)
    found = examples_hash(Augmented(False), "s")
    assert torch.equal(torch.rand(1), before)  # the user's random numbers are where they were
    assert found is not None and found == examples_hash(Augmented(False), "s")
    assert found != examples_hash(Augmented(False, shift=1.0), "s")
    for unknown in (Augmented(True), [object()] * 3, 3, None, []):
        assert examples_hash(unknown, "s") is None or unknown == []


# ---- Noise, devices, wrappers ----


@pytest.mark.parametrize("multiplier", [1e-9, 0.3])
def test_a_multiplier_without_an_epsilon_is_named(multiplier: float) -> None:
    with pytest.raises(
        ValueError, match=rf"noise_multiplier must be .* got {multiplier}: give epsilon instead"
    ):
        private(noise_multiplier=multiplier)
    train(private(noise_multiplier=None, epsilon=8.0))
    plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(3))
    with pytest.raises(ValueError, match="delta must be"):  # no matter of the multiplier
        TrainingLedger(plan, 2.0)


def test_a_model_on_two_devices_is_refused() -> None:
    model = network()
    model[2].to("meta")
    with pytest.raises(ValueError, match="one device, got cpu, meta: move the model to one of"):
        private(model)
    for p in model[2].parameters():
        p.requires_grad_(False)  # what is not trained may lie anywhere
    private(model, SGD(model[0].parameters(), lr=0.1))
    whole = network().to("meta")
    with pytest.raises(ValueError, match=r"on the CPU or on a CUDA device, .* got meta: move the"):
        private(whole)
    train(private(whole.to_empty(device="cpu")))


@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_a_compiled_network_is_refused_and_its_remedy_trains() -> None:
    compiled: Any = torch.compile(network(), backend="eager")
    with pytest.raises(ValueError, match=r"unwrap\(model\), since private passes are not compiled"):
        private(compiled)
    found = []
    for net in (network(), unwrap(compiled)):
        run = private(net, noise_seed=1, order_seed=1)
        model: Any = run.model if found else torch.compile(run.model, backend="eager")
        train(run._replace(model=model))
        found.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*found)


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_a_wrapper_for_processes_is_refused() -> None:
    wrapped = nn.parallel.DistributedDataParallel(network())
    with pytest.raises(ValueError, match=r"in a DistributedDataParallel: give model.module"):
        private(wrapped)
    train(private(wrapped.module))
    with pytest.raises(ValueError, match=r"in a DataParallel: give model.module"):
        private(nn.DataParallel(network()))


@pytest.mark.usefixtures("one_process")
def test_sharded_parameters_are_refused() -> None:
    model: Any = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match=r"whole on each process.* call make_private without"):
        private(model)
    train(private(network()))


# ---- Steps that are not those of the run ----


@pytest.mark.parametrize("closure", [(), (lambda: 0.0,)])
def test_the_optimiser_that_went_takes_no_step(closure: tuple[Any, ...]) -> None:
    model = network()
    old = SGD(model.parameters(), lr=0.1)
    run = private(model, old)
    before = [p.detach().clone() for p in model.parameters()]
    _, (x, y) = next(iter(run.data_loader))
    cross_entropy(run.model(x), y).backward()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="the one that it was given, which adds no noise: write"):
        old.step(*closure)
    for p, value in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, value)
        p.grad = None
    train(run)
    # One that is kept is the one that steps.
    again = network()
    kept = SGD(again.parameters(), lr=0.1)
    assert private(again, kept, keep_optimizer=True).optimizer is kept
    # One of a call that was refused is the user's as before.
    other = network()
    free = SGD(other.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="clip_norm"):
        private(other, free, clip_norm=-1.0)
    free.step()


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("make", [SGD, Adam], ids=["becomes DPFTRL", "kept"])
def test_a_gradient_scaler_is_refused(make: Any, unscale: bool) -> None:
    model = network()
    run = private(model, make(model.parameters(), lr=0.1))
    scaler = torch.amp.GradScaler("cpu")
    _, (x, y) = next(iter(run.data_loader))
    scaler.scale(cross_entropy(run.model(x), y)).backward()
    if unscale:
        scaler.unscale_(run.optimizer)
    with pytest.raises(ValueError, match=r"got a GradScaler, .* without it"):
        scaler.step(run.optimizer)
    assert run.ledger.steps_taken == 0
    train(run)
    # One that is switched off does nothing.
    off = torch.amp.GradScaler("cpu", enabled=False)
    run = private()
    for _, (x, y) in run.data_loader:
        off.scale(cross_entropy(run.model(x), y)).backward()
        off.step(run.optimizer)
        off.update()
    assert run.ledger.steps_taken == 3


def test_a_gradient_scaler_is_refused_without_make_private() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = DPFTRL([p], 0.1, plan=PrivacyPlan(1.0, 2.0, accounting.SinglePass(3)), batch_size=1)
    p.grad = torch.ones(2)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    with pytest.raises(ValueError, match="got a GradScaler"):
        scaler.step(optimizer)
    assert optimizer.steps_taken == 0 and torch.equal(p, torch.zeros(2))
    optimizer.step()
    assert optimizer.steps_taken == 1
