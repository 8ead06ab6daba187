# SPDX-License-Identifier: Apache-2.0
"""The vmap mode in the ordinary loop: each example alone, and its gradients clipped alone."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import (
    MODELS,
    REFUSED_BY_OPACUS,
    accumulator,
    cross_entropy,
    flat_sums,
    grads,
    one_by_one,
)

from dpftrl_fast.torch import PerExampleLoss, make_private, model_state_dict, unwrap
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import FlatClipping

ROWS = 6
ALONE = "ignore:examples pass one after the other:UserWarning"


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    model, inputs, classes = {**MODELS, **REFUSED_BY_OPACUS}[name]
    x, y = inputs(ROWS), torch.randint(0, classes, (ROWS,))
    return model().to(dtype), (x.to(dtype) if x.is_floating_point() else x), y


def begun(sums: Accumulator, rows: int = ROWS) -> None:
    sums.begin(range(rows))
    sums.expect(rows)


def one_pass(
    model: nn.Module, call: Callable[[Any], Tensor], clip_norm: float = 0.1, **options: Any
) -> tuple[list[Tensor], Tensor]:
    """The sums after a step's backward pass, and the loss."""
    sums = accumulator(model, FlatClipping(clip_norm), ROWS)
    module = VmapModule(model, None, sums, **options)
    begun(sums)
    loss = call(module)
    loss.backward()  # type: ignore[no-untyped-call]
    sums.finish()
    return grads(model), loss.detach()


def assert_same(got: list[Tensor], expected: list[Tensor], within: float = 1e-5) -> None:
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b.double(), rtol=within, atol=within)


@pytest.mark.parametrize("name", {**MODELS, **REFUSED_BY_OPACUS})
@pytest.mark.parametrize("chunk", [None, 1, 4])
def test_sums_are_those_of_one_example_at_a_time(name: str, chunk: int | None) -> None:
    model, x, y = made(name)
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    with torch.no_grad():
        expected = cross_entropy(model(x), y)
    got, loss = one_pass(model, lambda m: cross_entropy(m(x), y), chunk_size=chunk)
    torch.testing.assert_close(loss, expected)
    assert_same(got, flat_sums(samples, 0.1))


@pytest.mark.parametrize("chunk", [1, 4])
def test_the_sum_of_losses(chunk: int) -> None:
    model, x, y = made("layers")
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))

    def loss(module: Any) -> Tensor:
        return nn.functional.cross_entropy(module(x), y, reduction="sum")

    got, _ = one_pass(model, loss, chunk_size=chunk, loss_reduction="sum")
    assert_same(got, flat_sums(samples, 0.1))


class Noted(torch.autograd.Function):
    """Identity, whose backward pass is noted."""

    generate_vmap_rule = True
    events: ClassVar[list[str]] = []

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        Noted.events.append("backward")
        return gradient


@pytest.mark.parametrize("chunk", [1, 2])
def test_the_gradients_of_one_chunk_are_in_memory_at_a_time(chunk: int) -> None:
    model = Apply(lambda f, x: f(Noted.apply(f(x))), nn.Linear(4, 4))  # type: ignore[no-untyped-call]
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module = VmapModule(model, None, sums, chunk_size=chunk, loss_reduction="sum")
    add = sums.add

    def noted(samples: Any) -> None:
        Noted.events.append("added")
        add(samples)

    sums.add = noted  # type: ignore[method-assign]
    begun(sums)
    out = module(torch.ones(ROWS, 4))
    Noted.events.clear()
    out.sum().backward()
    assert Noted.events == ["backward", "added"] * (ROWS // chunk)


@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_replacing_an_example_changes_the_sums_by_two_clip_norms_at_most(chunk: int) -> None:
    """Also if the model mixes what it gets, and where the others' gradients are not moved."""

    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0) + x.sum() * 1e3

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), Mixing(), nn.Linear(5, 3))
    x, y = torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)
    first, _ = one_pass(model, lambda m: cross_entropy(m(x), y), 0.5, chunk_size=chunk)
    x[2] = 1e4
    second, _ = one_pass(model, lambda m: cross_entropy(m(x), y), 0.5, chunk_size=chunk)
    moved = math.sqrt(
        sum(float((a - b).square().sum()) for a, b in zip(first, second, strict=True))
    )
    assert 0.0 < moved <= 2 * 0.5


def test_random_numbers_are_those_of_the_outputs_that_are_seen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64, bias=False), nn.Dropout(0.5))
    for chunk in (1, 2, None):
        seen: list[Tensor] = []

        def loss(module: Any, seen: list[Tensor] = seen) -> Tensor:
            seen.append(module(torch.ones(ROWS, 1)))
            return seen[0].sum()

        (got,), _ = one_pass(model, loss, 1e6, chunk_size=chunk, loss_reduction="sum")
        kept = seen[0].detach() != 0
        assert len({tuple(row) for row in kept.tolist()}) == ROWS
        torch.testing.assert_close(got[:, 0], 2.0 * kept.sum(0).double(), rtol=1e-3, atol=1e-3)


class Output(NamedTuple):
    loss: Tensor | None
    scores: Tensor


class Tagger(nn.Module):
    """A model as transformers builds them: names of arguments, labels of -100, its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, padding_idx=0)
        self.places = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 3)

    def forward(
        self, words: Tensor, mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Output:
        places = torch.arange(words.shape[1], device=words.device).unsqueeze(0)
        x = self.words(words) + self.places(places)
        if mask is not None:
            x = x * mask.unsqueeze(-1) + (x * mask.unsqueeze(-1)).mean(1, keepdim=True)
        scores = self.out(x)
        loss = None
        if labels is not None:
            loss = cross_entropy(scores.flatten(0, 1), labels.flatten())
        return Output(loss, scores)


def tags() -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(0)
    words = torch.randint(1, 9, (ROWS, 5))
    labels = torch.randint(0, 3, (ROWS, 5))
    words[1, 3:], labels[1, 3:] = 0, -100
    labels[4, 1:] = -100
    return Tagger().double(), {"words": words, "mask": (words > 0).double(), "labels": labels}


def alone(model: nn.Module, batch: dict[str, Tensor], left_out: tuple[int, ...] = ()) -> Any:
    """Losses and gradients of one example after the other, zeros of some."""
    losses, samples = [], []
    for i in range(ROWS):
        loss = model(**{key: x[i : i + 1] for key, x in batch.items()}).loss
        found = torch.autograd.grad(loss, list(model.parameters()))
        samples.append([torch.zeros_like(g) if i in left_out else g for g in found])
        losses.append(loss.detach())
    return torch.stack(losses), [torch.stack(column) for column in zip(*samples, strict=True)]


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_a_loss_inside_of_the_model_is_the_mean_of_each_examples_own(chunk: int | None) -> None:
    model, batch = tags()
    losses, samples = alone(model, batch)
    got, loss = one_pass(model, lambda m: m(**batch).loss, chunk_size=chunk)
    torch.testing.assert_close(loss, losses.mean())
    assert_same(got, flat_sums(samples, 0.1))
    got, loss = one_pass(model, lambda m: m(**batch).loss, chunk_size=chunk, loss_reduction="sum")
    torch.testing.assert_close(loss, losses.sum())
    assert_same(got, flat_sums(samples, 0.1))


@pytest.mark.parametrize("chunk", [1, 4, None])
def test_an_example_without_a_target_counts_as_zero(chunk: int | None) -> None:
    model, batch = tags()
    batch["labels"][2] = -100
    losses, samples = alone(model, batch, (2,))
    assert losses[2].isnan()
    got, loss = one_pass(model, lambda m: m(**batch).loss, chunk_size=chunk)
    torch.testing.assert_close(loss, losses.nansum() / ROWS)
    assert_same(got, flat_sums(samples, 0.1))


def test_a_loss_that_is_nan_for_all_is_shown() -> None:
    model, batch = tags()
    batch["labels"][:] = -100
    got, loss = one_pass(model, lambda m: m(**batch).loss)
    assert loss.isnan() and not any(g.any() for g in got)


@pytest.mark.parametrize("chunk", [1, 2])
def test_an_example_that_is_not_finite_counts_as_zero(chunk: int) -> None:
    model, x, y = made("layers", torch.float32)
    x[3] = math.nan
    kept = [0, 1, 2, 4, 5]
    samples = one_by_one(model, cross_entropy, x[kept], y[kept], list(model.parameters()))
    got, _ = one_pass(model, lambda m: cross_entropy(m(x), y), chunk_size=chunk)
    assert_same(got, flat_sums(samples, 0.1))


def test_half_precision() -> None:
    model, x, y = made("linear", torch.bfloat16)
    reference = copy.deepcopy(model).double()
    samples = one_by_one(reference, cross_entropy, x.double(), y, list(reference.parameters()))
    got, _ = one_pass(model, lambda m: cross_entropy(m(x), y), 0.5)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    assert_same(got, flat_sums(samples, 0.5), 0.05)


@pytest.mark.parametrize("chunk", [1, 2])
def test_two_passes_on_the_same_rows_are_added_before_they_are_clipped(chunk: int) -> None:
    model, x, y = made("layers")

    def two(module: Any) -> Tensor:
        return cross_entropy(module(x), y) + cross_entropy(module(2 * x), y)

    one = nn.Identity()  # so that the loss gets the example itself
    samples = one_by_one(
        one,
        lambda x, y: cross_entropy(model(x), y) + cross_entropy(model(2 * x), y),
        x,
        y,
        list(model.parameters()),
    )
    got, _ = one_pass(model, two, chunk_size=chunk)
    assert_same(got, flat_sums(samples, 0.1))


def test_parameters_that_an_example_does_not_use_and_frozen_ones() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)
            self.frozen = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.frozen(x))  # type: ignore[no-any-return]

    model, (_, x, y) = Partly().double(), made("layers")
    trained = [*model.used.parameters(), *model.unused.parameters()]
    for chunk in (1, None):
        sums = accumulator(nn.ModuleList([model.used, model.unused]), FlatClipping(0.1), ROWS)
        module = VmapModule(model, None, sums, chunk_size=chunk)
        samples = one_by_one(model, cross_entropy, x, y, trained)
        begun(sums)
        cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
        sums.finish()
        assert_same(
            [p.grad.double() for p in trained if p.grad is not None], flat_sums(samples, 0.1)
        )
        assert all(p.grad is None for p in model.frozen.parameters())


class Apply(nn.Module):
    def __init__(self, function: Callable[[nn.Module, Tensor], Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer, x)


class Squares(torch.autograd.Function):
    """Without what torch.func needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * gradient * ctx.saved_tensors[0]  # type: ignore[no-any-return]


def filled(layer: nn.Module, x: Tensor) -> Tensor:
    out = torch.zeros(1, 5, 3, dtype=x.dtype)
    out[:, 1:] = layer(x)[:, 1:]
    return out


NOT_BY_VMAP: dict[str, Callable[[], nn.Module]] = {
    "recurrent": lambda: Apply(lambda f, x: f(x)[0], nn.LSTM(4, 3, batch_first=True)),
    "item": lambda: Apply(lambda f, x: f(x) * x.max().item(), nn.Linear(4, 3)),
    "branch": lambda: Apply(lambda f, x: f(x) if x.sum() > 0 else f(2 * x), nn.Linear(4, 3)),
    "in place": lambda: Apply(filled, nn.Linear(4, 3)),
    "mask": lambda: Apply(lambda f, x: f(x) + x[x > 0].sum(), nn.Linear(4, 3)),
    "function": lambda: Apply(lambda f, x: Squares.apply(f(x)), nn.Linear(4, 3)),  # type: ignore[no-untyped-call]
    "again": lambda: Apply(lambda f, x: checkpoint(f, x, use_reentrant=False), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("name", NOT_BY_VMAP)
def test_what_vmap_cannot_run_passes_one_by_one_with_a_warning(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(NOT_BY_VMAP[name](), nn.Flatten(), nn.Linear(15, 2)).double()
    x, y = torch.randn(ROWS, 5, 4).double(), torch.zeros(ROWS, dtype=torch.long)
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    with pytest.warns(UserWarning, match=r"since torch.func.vmap cannot run 0.* \(\w+\): .*chunk"):
        got, _ = one_pass(model, lambda m: cross_entropy(m(x), y))
    assert_same(got, flat_sums(samples, 0.1))
    got, _ = one_pass(model, lambda m: cross_entropy(m(x), y), chunk_size=1)  # as it says
    assert_same(got, flat_sums(samples, 0.1))


def test_attention_is_run_by_vmap_without_a_warning() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 2)).double()
    x, y = torch.randn(ROWS, 5, 4).double(), torch.zeros(ROWS, dtype=torch.long)
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    got, _ = one_pass(model, lambda m: cross_entropy(m(x), y), chunk_size=4)
    assert_same(got, flat_sums(samples, 0.1))


class Squeezed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


class Second(nn.Linear):
    """Its outputs have the examples along the second dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).unsqueeze(0)


@pytest.mark.parametrize("kind", [Squeezed, Second])
@pytest.mark.parametrize("chunk", [1, None])
def test_outputs_have_the_shapes_of_a_batch(kind: Any, chunk: int | None) -> None:
    torch.manual_seed(0)
    model, x = kind(4, 1).double(), torch.randn(ROWS, 4).double()
    expected = model(x).detach()
    samples = one_by_one(model, lambda o, _: o.square().sum(), x, x, list(model.parameters()))

    seen: list[Tensor] = []

    def loss(module: Any) -> Tensor:
        seen.append(module(x))
        return seen[0].square().mean()

    got, _ = one_pass(model, loss, chunk_size=chunk)
    torch.testing.assert_close(seen[0].detach(), expected)
    assert_same(got, flat_sums(samples, 0.1))


def test_outputs_that_compare_examples_are_refused() -> None:
    model = Apply(lambda f, x: f(x) @ f(x).T, nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"along one dimension, got .* \(1, 1\) .* \(2, 2\)"):
        one_pass(model, lambda m: m(torch.ones(ROWS, 4)).sum())


@pytest.mark.parametrize(
    ("arguments", "error", "word"),
    [
        ((torch.ones(ROWS - 1, 4),), ValueError, "must get the 6 rows .* shape .5, 4"),
        ((torch.ones(4, ROWS), torch.ones(ROWS)), ValueError, "along the first dimension"),
        ((torch.ones(1, ROWS, 4),), ValueError, "got none with so many"),
        ((torch.ones(ROWS, 4), [3] * ROWS), TypeError, "int in the list .*row of a tensor"),
        ((torch.ones(ROWS, 4), object()), TypeError, "got object"),
    ],
)
def test_arguments_that_may_show_other_examples_are_refused(
    arguments: Any, error: Any, word: str
) -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(error, match=word):
        one_pass(model, lambda m: m(*arguments).sum())


class Keeps(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.kept = what, 0.0 if what == "number" else torch.zeros(1, 4)
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.kept
        if self.what == "number":
            self.kept = x.sum().item()
        elif self.what == "tensor":
            self.kept = x.detach()
        else:
            assert isinstance(kept, Tensor)
            with torch.no_grad():
                kept.copy_(x)
        return self.layer(x + kept)  # type: ignore[no-any-return]


@pytest.mark.parametrize("what", ["number", "tensor", "in place"])
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.filterwarnings(ALONE)
def test_a_model_that_keeps_something_of_an_example_is_refused(what: str, chunk: int) -> None:
    model = Keeps(what)
    x, y = torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)
    with pytest.raises(ValueError, match=r"must keep nothing .* model.kept"):
        one_pass(model, lambda m: cross_entropy(m(x), y), chunk_size=chunk)


@pytest.fixture
def ready() -> tuple[nn.Module, Accumulator, Any, Tensor, Tensor]:
    model, x, y = made("layers")
    sums = accumulator(model, FlatClipping(0.1), ROWS, steps=2)
    return model, sums, VmapModule(model, None, sums, chunk_size=4), x, y


def test_terms_of_the_loss_that_belong_to_no_example_are_refused(ready: Any) -> None:
    model, sums, module, x, y = ready
    begun(sums)
    penalty = sum(p.square().sum() for p in module.parameters())
    (cross_entropy(module(x), y) + penalty).backward()
    with pytest.raises(ValueError, match=r"one of 0.weight itself: .* weight_decay"):
        sums.finish()
    sums.abandon()
    begun(sums)
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    sums.finish()
    assert any(g.any() for g in grads(model))


def test_rows_are_used_once(ready: Any) -> None:
    _, sums, module, x, y = ready
    begun(sums)
    loss = cross_entropy(module(x), y)
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="one backward pass"):
        loss.backward()  # type: ignore[no-untyped-call]
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="backward pass came twice"):
        sums.finish()
    sums.abandon()
    begun(sums)
    old = cross_entropy(module(x), y)
    sums.abandon()
    begun(sums)
    with pytest.raises(ValueError, match="one backward pass"):
        old.backward()  # type: ignore[no-untyped-call]
    cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
    sums.finish()


def test_a_step_needs_the_backward_pass_in_training_mode(ready: Any) -> None:
    _, sums, module, x, _ = ready
    begun(sums)
    module(x)
    with pytest.raises(ValueError, match="missing grad_sample"):
        sums.finish()
    sums.abandon()
    begun(sums)
    module.eval()
    with pytest.raises(ValueError, match="must be in training mode"):
        module(x)
    module.train()
    with torch.no_grad():
        assert not module(x).requires_grad


def test_a_piece_of_the_rows_after_the_other(ready: Any) -> None:
    model, sums, module, x, y = ready
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    sums.begin(range(ROWS))
    for part in (slice(0, 4), slice(4, 6)):
        sums.expect(len(x[part]))
        cross_entropy(module(x[part]), y[part]).backward()  # type: ignore[no-untyped-call]
    sums.finish()
    assert_same(grads(model), flat_sums(samples, 0.1))


def test_the_wrapper_has_the_names_and_attributes_of_the_network() -> None:
    network = Tagger()
    network.config = {"size": 4}  # type: ignore[assignment]
    module: Any = VmapModule(network, None, accumulator(network, FlatClipping(1.0), ROWS))
    assert unwrap(module) is network and unwrap(network) is network
    assert list(module.state_dict()) == list(network.state_dict()) == list(model_state_dict(module))
    assert [n for n, _ in module.named_parameters()] == [n for n, _ in network.named_parameters()]
    assert module.config == {"size": 4} and module.words is network.words
    module.config = {"size": 5}
    assert network.config == {"size": 5}  # type: ignore[comparison-overlap]
    module.eval()
    assert not network.training and not module.training
    network.train()
    assert module.training
    state = {name: torch.full_like(x, 2.0) for name, x in network.state_dict().items()}
    module.load_state_dict(state)
    assert bool((network.out.weight == 2).all())
    module.load_state_dict({f"_module.{name}": 3 * x for name, x in state.items()})
    assert bool((network.out.weight == 6).all())
    assert next(module.double().parameters()).dtype == torch.float64 == network.out.weight.dtype
    with pytest.raises(AttributeError, match=r"Tagger.*nothing"):
        _ = module.nothing


def test_a_copy_is_of_the_network_alone() -> None:
    network = nn.Linear(4, 3)
    module: Any = VmapModule(network, None, accumulator(network, FlatClipping(1.0), ROWS))
    twin = copy.deepcopy(module)
    assert type(twin) is nn.Linear and twin.weight is not network.weight
    averaged = torch.optim.swa_utils.AveragedModel(module)
    averaged.update_parameters(module)
    assert torch.equal(averaged.module.weight, network.weight)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert type(loaded) is nn.Linear and torch.equal(loaded.weight, network.weight)


@pytest.mark.parametrize("inside", [False, True])
def test_the_loop_of_make_private_is_the_ordinary_one(inside: bool) -> None:
    model, batch = tags()
    names = list(model.state_dict())
    data = torch.utils.data.TensorDataset(*batch.values())
    run = make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.utils.data.DataLoader(data, batch_size=3),
        noise_multiplier=20.0,
        delta=1e-2,
        epochs=2,
        clip_norm=1.0,
        grad_sample_mode="vmap",
        dtype="float64",
    )
    before = model.state_dict()["out.weight"].clone()
    for _ in range(2):
        for _, (words, mask, labels) in run.data_loader:
            if inside:
                loss = run.model(words=words, mask=mask, labels=labels).loss
            else:
                loss = cross_entropy(run.model(words, mask).scores.mean(1), labels[:, 0].clamp(0))
            loss.backward()
            run.optimizer.step()
    assert run.ledger.steps_taken == 4
    assert not torch.equal(before, run.model.state_dict()["out.weight"])
    assert list(run.model.state_dict()) == names


# ---- A loss outside of the model ----

WEIGHTS = torch.tensor([1.0, 9.0, 3.0])
OUTSIDE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "class weights": lambda o, y: nn.functional.cross_entropy(o, y, WEIGHTS),
    "a mask": lambda o, y: o[y > 0].square().sum() / (y > 0).sum(),
    "compared examples": lambda o, y: (o @ o.T).mean(),
}


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("mode", ["vmap", "auto"])
def test_a_loss_that_mixes_examples_is_refused_before_anything_is_added(
    kind: str, mode: Any
) -> None:
    """Also where "auto" has gone over to each example alone, before the pass or in it."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 5, 4), torch.tensor([0, 1, 2, 1] * 3)
    for inner in (nn.Linear(4, 3), nn.LSTM(4, 3, batch_first=True)):
        model: Any = Apply(lambda f, x: _last(f(x)), inner)
        run = make_private(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(TensorDataset(x, y), batch_size=ROWS),
            **{"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 1, "clip_norm": 0.1},
            grad_sample_mode=mode,
            chunk_size=1 if mode == "vmap" else None,
        )
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.warns(UserWarning) if _slow(inner, mode) else nullcontext():
            for _, (rows, targets) in run.data_loader:
                loss = OUTSIDE[kind](run.model(rows), targets)
                with pytest.raises(ValueError, match="the loss must treat each example apart"):
                    loss.backward()
                break
        assert run.ledger.steps_taken == 0
        assert all(map(torch.equal, before, model.parameters()))


def _last(found: Any) -> Tensor:
    found = found[0] if isinstance(found, tuple) else found
    return found[:, -1]  # type: ignore[no-any-return]


def _slow(inner: nn.Module, mode: str) -> bool:
    """Whether a warning says that examples pass one by one."""
    return mode == "auto" and isinstance(inner, nn.LSTM)


def test_a_loss_outside_keeps_examples_apart_or_is_that_of_the_model() -> None:
    """A loss of each example trains; so does one that mixes, as `criterion` of `backward`."""
    model, x, y = nn.Linear(4, 3), torch.randn(ROWS, 4), torch.tensor([0, 1, 2, 1, 0, 1])
    weighted = nn.CrossEntropyLoss(WEIGHTS)
    samples = one_by_one(model, weighted, x, y, list(model.parameters()))
    apart = PerExampleLoss(weighted)
    got, _ = one_pass(model, lambda m: apart(m(x), y))
    assert_same(got, flat_sums(samples, 0.1))
    sums = accumulator(model, FlatClipping(0.1), ROWS)
    module = VmapModule(model, weighted, sums)
    begun(sums)
    assert sums.handed_out is not None
    module.backward(*sums.handed_out((x.clone(), y.clone())))
    sums.finish()
    assert_same(grads(model), flat_sums(samples, 0.1))
    with pytest.raises(ValueError, match="loss_reduction must be 'sum' for this loss, got 'mean'"):
        one_pass(model, lambda m: m(x).square().sum())
    one_pass(model, lambda m: m(x).square().sum(), loss_reduction="sum")
