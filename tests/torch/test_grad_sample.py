# SPDX-License-Identifier: Apache-2.0
"""From a model to clipped sums: the same for every way, and refused where it cannot be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_cases import (
    MODELS,
    REFUSED_BY_OPACUS,
    accumulator,
    cross_entropy,
    flat_sums,
    grads,
    one_by_one,
)

from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import AutomaticClipping, FlatClipping, PerLayerClipping
from dpftrl_fast.torch.gradients.layers import (
    check_layers,
    check_mode,
    incompatible_layers,
)
from dpftrl_fast.torch.gradients.loss.criterion import check_criterion
from dpftrl_fast.torch.gradients.rows import hook_gradients

pytestmark = [
    # torch says so where the inputs need no gradient, which is as it should be.
    # Opacus's functorch mode takes integer inputs for mixed precision, which torch then leaves be.
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


WAYS = ["hooks", "functorch", "vmap"]
ROWS = 8


def made(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model, inputs, classes = {**MODELS, **REFUSED_BY_OPACUS}[name]
    x, y = inputs(ROWS), torch.randint(0, classes, (ROWS,))
    return model().to(dtype), (x.to(dtype) if x.is_floating_point() else x), y


class Way:
    """One way of per-example gradients, driven as a training loop does."""

    def __init__(self, way: str, model: nn.Module, sums: Accumulator, chunk: int | None = None):
        self.sums, self.way = sums, way
        self.module: Any
        if way == "vmap":
            self.module = VmapModule(model, cross_entropy, sums, chunk_size=chunk)
        else:
            self.module = hook_gradients(model, sums, functorch=way == "functorch").model

    def backward(self, x: Tensor, y: Tensor) -> None:
        self.sums.expect(len(x))
        if self.way == "vmap":
            self.module.backward(x, y)
        else:
            cross_entropy(self.module(x), y).backward()

    def run(self, x: Tensor, y: Tensor, rows: int = ROWS) -> None:
        self.sums.begin(range(len(x)))
        for i in range(0, len(x), rows):
            self.backward(x[i : i + rows], y[i : i + rows])
        self.sums.finish()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [ROWS, 3])
def test_sums_are_those_of_one_example_at_a_time(way: str, name: str, rows: int) -> None:
    model, x, y = made(name)
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    joint = sum(s.flatten(1).square().sum(1) for s in samples).sqrt()
    clip_norm = float(joint.median())  # about half of the examples are clipped
    Way(way, model, accumulator(model, FlatClipping(clip_norm), ROWS)).run(x, y, rows)
    for got, expected in zip(grads(model), flat_sums(samples, clip_norm), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # of attention
@pytest.mark.parametrize("name", REFUSED_BY_OPACUS)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_vmap_serves_what_opacus_refuses(name: str, chunk: int | None) -> None:
    model, x, y = made(name)
    assert not incompatible_layers(model, "vmap")
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    Way("vmap", model, accumulator(model, FlatClipping(0.1), ROWS), chunk).run(x, y)
    for got, expected in zip(grads(model), flat_sums(samples, 0.1), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_per_layer_and_automatic_clipping(way: str) -> None:
    model, x, y = made("images")
    samples = one_by_one(model, cross_entropy, x, y, list(model.parameters()))
    norms = tuple(0.05 * (k + 1) for k in range(len(samples)))
    Way(way, model, accumulator(model, PerLayerClipping(norms), ROWS)).run(x, y)
    for got, s, norm in zip(grads(model), samples, norms, strict=True):
        torch.testing.assert_close(got, flat_sums([s], norm)[0], rtol=1e-5, atol=1e-5)
    model, x, y = made("images")
    Way(way, model, accumulator(model, AutomaticClipping(0.5, 0.1), ROWS)).run(x, y)
    joint = sum(s.flatten(1).square().sum(1) for s in samples).sqrt()
    for got, s in zip(grads(model), samples, strict=True):
        expected = torch.einsum("n,n...->...", 0.5 / (joint + 0.1), s)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("rows", [ROWS, 2])
def test_an_example_that_is_not_finite_counts_as_zero(way: str, bad: float, rows: int) -> None:
    model, x, y = made("layers", dtype=torch.float32)
    x[3] = bad
    kept = [i for i in range(ROWS) if i != 3]
    samples = one_by_one(model, cross_entropy, x[kept], y[kept], list(model.parameters()))
    Way(way, model, accumulator(model, FlatClipping(0.5), ROWS)).run(x, y, rows)
    expected = flat_sums(samples, 0.5)
    if bad == 3e38:  # finite or not, it adds no more than its share
        pairs = zip(grads(model), expected, strict=True)
        change = sum(float((g - e).square().sum()) for g, e in pairs)
        assert change <= 0.5**2
        return
    for got, want in zip(grads(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_of_nothing_but_bad_examples_is_a_step(way: str) -> None:
    model, x, y = made("layers", dtype=torch.float32)
    sums = accumulator(model, FlatClipping(0.5), ROWS)
    Way(way, model, sums).run(x * math.nan, y)
    assert sums.steps_taken == 1
    assert all(bool((g == 0).all()) for g in grads(model))


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_parameters_get_sums_in_float32(way: str) -> None:
    model, x, y = made("linear", dtype=torch.bfloat16)
    reference = nn.Linear(4, 3).double()
    reference.load_state_dict(model.state_dict())
    samples = one_by_one(reference, cross_entropy, x.double(), y, list(reference.parameters()))
    Way(way, model, accumulator(model, FlatClipping(0.5), ROWS)).run(x, y)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
    for got, expected in zip(grads(model), flat_sums(samples, 0.5), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.02)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # Opacus's
def test_positions_that_cancel_are_clipped_by_what_is_added() -> None:
    """Ghost clipping in float32 can find a norm of 0 where the gradient has 38 clip norms."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    far = torch.randn(1, 1, 8) * 1e5
    x = torch.cat([far + torch.randn(1, 1, 8) * 10, far], 1)
    signs = torch.tensor([1.0, -1.0])
    sums = accumulator(model, FlatClipping(1.0), 1)
    module = hook_gradients(model, sums, loss_reduction="sum").model
    sums.begin([0])
    sums.expect(1)
    (module(x)[..., 0] * signs).sum().backward()
    sums.finish()
    (clipped,) = grads(model)
    assert 0.9 < float(clipped.norm()) <= 1.0

    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    plain = nn.Linear(8, 1, bias=False)
    ghost = GradSampleModuleFastGradientClipping(plain, max_grad_norm=1.0, loss_reduction="sum")
    losses = (ghost(x)[..., 0] * signs).sum(1)
    losses.sum().backward(retain_graph=True)
    factor = ghost.get_clipping_coef()
    plain.zero_grad()
    ghost.disable_hooks()
    (factor * losses).sum().backward()
    assert plain.weight.grad is not None
    assert float(plain.weight.grad.norm()) > 10.0


def test_dropout_differs_between_examples() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 64, bias=False), nn.Dropout(0.5))
    sums = accumulator(model, FlatClipping(1e6), 2)
    module = VmapModule(model, lambda output, target: output.sum(), sums)
    sums.begin([0, 1])
    sums.expect(2)
    module.backward(torch.ones(2, 1), torch.zeros(2))
    sums.finish()
    assert model[0].weight.grad is not None
    assert len(set(model[0].weight.grad[:, 0].tolist())) == 3  # kept by none, one, both


class Recentred(nn.BatchNorm1d):
    """A type that Opacus does not know."""


BATCH_NORMS = {
    "trained": lambda: nn.BatchNorm1d(4),
    "without parameters": lambda: nn.BatchNorm1d(4, affine=False, track_running_stats=False),
    "frozen": lambda: nn.BatchNorm1d(4).requires_grad_(False),
    "images": lambda: nn.BatchNorm2d(4),
    "synchronised": lambda: nn.SyncBatchNorm(4),
    "a subclass": lambda: Recentred(4),
    "lazy": lambda: nn.LazyBatchNorm1d(),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", BATCH_NORMS)
def test_batch_norm_is_named(way: Any, kind: str) -> None:
    layer = BATCH_NORMS[kind]()
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), layer), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=rf"- 1\.1 \({type(layer).__name__}\): .*GroupNorm"):
        check_layers(model, way)


@pytest.mark.parametrize(
    ("layer", "ways", "word"),
    [
        (nn.InstanceNorm1d(4, track_running_stats=True), WAYS, "track_running_stats"),
        (nn.InstanceNorm1d(4, affine=True), [], ""),
        (nn.Embedding(4, 4, sparse=True), WAYS, "sparse=False"),
        (nn.LSTM(4, 4), ["hooks", "functorch"], "DPLSTM"),
        (nn.MultiheadAttention(4, 2), ["hooks", "functorch"], "fix_model"),
        (REFUSED_BY_OPACUS["buffers"][0](), [], ""),
        (nn.GroupNorm(2, 4), [], ""),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_other_layers_are_named(layer: nn.Module, ways: list[str], word: str, way: Any) -> None:
    found = incompatible_layers(nn.Sequential(nn.Linear(4, 4), layer), way)
    assert bool(found) == (way in ways)
    if found:
        assert found[0].startswith(f"1 ({type(layer).__name__}): ") and word in found[0]


def test_ghost_clipping_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="in_pieces"):
        check_mode("ghost")
    with pytest.raises(ValueError, match="must be one of"):
        check_mode("ew")


class Mixing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_vmap_keeps_examples_apart_whatever_the_model_does() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), Mixing())
    x, y = torch.randn(4, 4), torch.zeros(4, dtype=torch.long)
    sums = accumulator(model, FlatClipping(1.0), 4)
    Way("vmap", model, sums).run(x, y)
    assert all(bool((g == 0).all()) for g in grads(model))  # x - mean of one is 0


@pytest.mark.parametrize(
    ("criterion", "good"),
    [
        (nn.CrossEntropyLoss(), True),
        (nn.CrossEntropyLoss(weight=torch.ones(3)), False),
        (nn.CrossEntropyLoss(ignore_index=0), False),
        (nn.NLLLoss(weight=torch.ones(3)), False),
        (nn.CrossEntropyLoss(weight=torch.ones(3), reduction="sum"), True),
        (nn.MSELoss(reduction="none"), False),
        (cross_entropy, True),
    ],
)
def test_losses_whose_mean_is_over_the_batch_are_refused(criterion: Any, good: bool) -> None:
    if good:
        check_criterion(criterion)
        return
    with pytest.raises(ValueError, match="reduction"):
        check_criterion(criterion)


def test_the_reduction_of_the_loss_must_be_the_declared_one() -> None:
    with pytest.raises(ValueError, match="must have reduction='mean', got 'sum'"):
        check_criterion(nn.CrossEntropyLoss(reduction="sum"), "mean")


@pytest.fixture
def linear() -> tuple[nn.Module, Accumulator, Any]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    sums = accumulator(model, FlatClipping(1.0), ROWS, steps=3)
    return model, sums, hook_gradients(model, sums).model


X, Y = torch.ones(ROWS, 4), torch.zeros(ROWS, dtype=torch.long)


def backward(module: nn.Module, rows: int = ROWS) -> None:
    cross_entropy(module(X[:rows]), Y[:rows]).backward()


def begun(sums: Accumulator, rows: int = ROWS) -> None:
    sums.begin(range(rows))
    sums.expect(rows)


def test_a_step_needs_a_batch_and_all_of_its_gradients(linear: Any) -> None:
    _, sums, module = linear
    with pytest.raises(ValueError, match="a step without one"):
        sums.finish()
    begun(sums)
    with pytest.raises(ValueError, match="missing grad_sample"):
        sums.finish()
    module(X)  # a forward pass that no backward pass follows
    with pytest.raises(ValueError, match="missing grad_sample"):
        sums.finish()
    backward(module)
    sums.finish()
    sums.done()
    assert sums.steps_taken == 1


def test_gradients_in_eval_mode_are_missing(linear: Any) -> None:
    _, sums, module = linear
    begun(sums)
    module.eval()
    with pytest.raises(ValueError, match="got evaluation mode"):
        backward(module)
    with pytest.raises(ValueError, match="missing grad_sample"):
        sums.finish()


def test_rows_are_used_once(linear: Any) -> None:
    _, sums, module = linear
    begun(sums)
    backward(module)
    with pytest.raises(ValueError, match=r"of the 0 examples .* got 8"):
        backward(module)
    sums.abandon()
    begun(sums)
    backward(module)
    module(X)  # a look at the outputs, without a backward pass
    sums.finish()


def test_two_forward_passes_may_share_a_backward_pass(linear: Any) -> None:
    model, sums, module = linear
    plain = nn.Linear(4, 3)
    plain.load_state_dict(model.state_dict())
    samples = one_by_one(
        plain, lambda o, y: 2 * cross_entropy(o, y), X, Y, list(plain.parameters())
    )
    begun(sums)
    (cross_entropy(module(X), Y) + cross_entropy(module(X), Y)).backward()
    sums.finish()
    for got, expected in zip(grads(model), flat_sums(samples, 1.0), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_other_numbers_of_rows_are_refused(linear: Any) -> None:
    _, sums, module = linear
    with pytest.raises(ValueError, match="at most the declared 8 examples, got 9"):
        sums.begin(range(9))
    for rows in (5, 3):  # in the first pass, which is tried
        begun(sums, 4)
        with pytest.raises(ValueError, match=r"must take another number|must get"):
            backward(module, rows)
        sums.abandon()
    begun(sums, 4)
    backward(module, 4)
    sums.finish()
    sums.done()
    for rows in (5, 3):
        begun(sums, 4)
        with pytest.raises(ValueError, match=f"must get the 4 rows .* shape .{rows}, 4"):
            backward(module, rows)
        sums.abandon()
    sums.begin(range(4))
    sums.expect(3)
    backward(module, 3)
    with pytest.raises(ValueError, match="after all 4 examples of the batch, got it after 3"):
        sums.finish()
    with pytest.raises(ValueError, match="must have its 4 rows, got 5"):
        sums.expect(2)


def test_pieces_come_one_after_the_other(linear: Any) -> None:
    _, sums, module = linear
    with pytest.raises(ValueError, match="begin"):
        sums.expect(3)
    sums.begin(range(6))
    sums.expect(3)
    with pytest.raises(ValueError, match="before the next piece, got 0"):
        sums.expect(3)
    backward(module, 3)
    sums.expect(3)
    with pytest.raises(ValueError, match=r"expected optimizer.step\(\) after each batch"):
        sums.begin(range(6))
    backward(module, 3)
    sums.finish()


def test_what_the_plan_does_not_declare_is_refused(linear: Any) -> None:
    model, sums, module = linear
    begun(sums)
    backward(module)
    sums.finish()
    sums.done()
    assert all(p.grad is None for p in model.parameters())
    begun(sums)  # the same ids in a second step of a single pass
    backward(module)
    with pytest.raises(ValueError, match="SinglePass"):
        sums.finish()
    assert sums.steps_taken == 1


def test_a_step_that_failed_half_way_ends_the_run(linear: Any) -> None:
    _, sums, module = linear
    begun(sums)
    backward(module)
    sums.finish()
    for call in (sums.finish, sums.abandon, lambda: sums.begin([1])):
        with pytest.raises(RuntimeError, match="checkpoint"):
            call()


def test_the_sums_are_shown_before_the_step(linear: Any) -> None:
    _, sums, module = linear
    seen: list[Any] = []
    sums.before_step = lambda step, ids, parts: seen.append((step, ids.tolist(), len(parts)))
    begun(sums, 3)
    backward(module, 3)
    sums.finish()
    assert seen == [(1, [0, 1, 2], 2)]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_refused_write_ahead_leaves_no_sums(linear: Any, error: type[BaseException]) -> None:
    model, sums, module = linear

    def refuse(step: int, ids: Any, parts: Any) -> None:
        assert all(part.any() for part in parts)
        raise error

    sums.before_step = refuse
    begun(sums)
    backward(module)
    with pytest.raises(error):
        sums.finish()
    assert all(p.grad is None for p in model.parameters())
    assert all(total is None for total in sums._sums)
    with pytest.raises(RuntimeError, match="checkpoint"):
        sums.finish()


class Around(nn.Module):
    """Uses the weight of a layer without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(nn.functional.linear(x, self.first.weight))  # type: ignore[no-any-return]


def test_a_weight_used_outside_of_its_layer_is_refused() -> None:
    model = Around()
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    module = hook_gradients(model, sums).model
    begun(sums)
    with pytest.raises(ValueError, match=r"of first\.weight must add up to its gradient"):
        backward(module)
    model = Around()
    Way("vmap", model, accumulator(model, FlatClipping(1.0), ROWS)).run(X, Y)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)  # type: ignore[no-any-return]


def test_a_parameter_without_a_part_in_the_batch_counts_as_zero() -> None:
    model = Half()
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    hook_gradients(model, sums)
    begun(sums)
    with pytest.raises(ValueError, match=r"expected a call of the model .* one of used \(Linear\)"):
        model.used(X)  # which would not be tried
    backward(model)
    sums.finish()
    weight, bias = model.unused.weight.grad, model.unused.bias.grad
    assert weight is not None and bias is not None
    assert not weight.any() and not bias.any()


def test_bad_arguments_are_refused() -> None:
    model = nn.Linear(4, 3)
    sums = accumulator(model, FlatClipping(1.0), ROWS)
    with pytest.raises(ValueError, match="must be those of the model, got others at"):
        hook_gradients(nn.Linear(4, 3), sums)
    with pytest.raises(ValueError, match="loss_reduction"):
        hook_gradients(model, sums, loss_reduction="none")
    wrapped = hook_gradients(model, sums).model
    with pytest.raises(ValueError, match="wrapped"):
        hook_gradients(wrapped, sums)
    with pytest.raises(TypeError, match="criterion"):
        VmapModule(model, 3, sums)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk_size"):
        VmapModule(model, cross_entropy, sums, chunk_size=0)
    module = VmapModule(model, cross_entropy, sums)
    begun(sums)
    for x, y in [(X, Y[:3]), (X[:0], Y[:0])]:
        with pytest.raises(ValueError, match="same number of rows"):
            module.backward(x, y)
    with pytest.raises(TypeError, match="tensors"):
        module.backward(X, "y")


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ([], "got none"),
        ([torch.zeros(2)], "requires grad"),
        ([nn.Parameter(torch.zeros(2, dtype=torch.cfloat))], "complex64"),
        ([nn.Parameter(torch.zeros(2))] * 2, "distinct"),
    ],
)
def test_bad_parameters_are_refused(parameters: list[Tensor], word: str) -> None:
    guard = accumulator(nn.Linear(1, 1), FlatClipping(1.0), 1).guard
    with pytest.raises(ValueError, match=word):
        Accumulator(parameters, FlatClipping(1.0), 1, guard)


@pytest.mark.parametrize(
    ("samples", "word"),
    [
        ([torch.zeros(2, 3, 4)], "for 2 parameters, got 1"),
        ([torch.zeros(2, 3, 4), torch.zeros(3, 3)], "same number of rows"),
        ([torch.zeros(2, 3, 4), torch.zeros(2, 4)], "parameter 1 must have shape"),
        ([None, None], "same number of rows"),
        ([torch.zeros(3, 3, 4), torch.zeros(3, 3)], "of the 2 examples"),
    ],
)
def test_bad_gradients_are_refused(samples: list[Tensor | None], word: str) -> None:
    sums = accumulator(nn.Linear(4, 3), FlatClipping(1.0), 2)
    begun(sums, 2)
    with pytest.raises(ValueError, match=word):
        sums.add(samples)
