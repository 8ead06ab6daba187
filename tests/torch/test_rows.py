# SPDX-License-Identifier: Apache-2.0
"""With hooks, rows must be examples: models for which they are not are refused at the first pass.

Without `watch_rows` most models of `WRONG` train in silence, and nothing bounds what one example
does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_cases import Around, attend, hooked, in_order, loss, packed
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn
from torch_cases import flat_sums, one_by_one

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.gradients.clipping import FlatClipping

pytestmark = [
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore:Implicit dimension choice:UserWarning"),
]

HOOKS, ROWS = ["hooks", "functorch"], 6
TRIAL = [5, 5, 4, 4, 4]  # examples of the passes of a trial


class Positions(nn.Module):
    def __init__(self, count: int, repeat: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Linear(4, 4), nn.Embedding(count, 4)
        self.repeat = repeat

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        if self.repeat:
            at = at.expand(len(x), -1)
        return self.words(x) + self.places(at)  # type: ignore[no-any-return]


def transposed(layer: Any, x: Tensor) -> Tensor:
    return layer(x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]


def some_twice(layer: Any, x: Tensor) -> Tensor:
    some = x[:, 0] > 0
    y = layer(x)
    return y.index_add(0, some.nonzero()[:, 0], layer(2 * x[some]))  # type: ignore[no-any-return]


def turned(layer: Any, x: Tensor) -> Tensor:
    return layer(x) + layer(2 * x.flip(0)).flip(0)  # type: ignore[no-any-return]


def by_length(layer: Any, x: Tensor) -> Tensor:
    lengths = (x[:, 0, 0].abs() * 3).long() % x.shape[1] + 1
    return packed(layer, x, lengths, False)


def frozen_before(layer: nn.Module, call: Any = None) -> nn.Module:
    return nn.Sequential(Around(layer.requires_grad_(False), call), nn.Linear(4, 2))


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)  # type: ignore[operator]
        return x


class Renormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 3.0))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.data.clamp_(max=2.0)
        return x * self.weight


#: name -> (model, shape of one example, words of the refusal)
WRONG: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], str]] = {
    "a layer along the sequence": (
        lambda: Around(nn.Linear(4, 4), transposed),
        (ROWS, 4),
        r"layer \(Linear\)",
    ),
    "positions merged with examples": (
        lambda: Around(nn.Linear(4, 4), lambda f, x: f(x.flatten(0, 1)).view(x.shape)),
        (3, 4),
        r"layer \(Linear\)",
    ),
    "on some rows once more": (
        lambda: Around(nn.Linear(4, 4), some_twice),
        (4,),
        r"layer \(Linear\)",
    ),
    "rows in another order": (lambda: Around(nn.Linear(4, 4), turned), (4,), r"layer \(Linear\)"),
    "attention along the batch": (
        lambda: Around(DPMultiheadAttention(4, 2), attend),
        (5, 4),
        r"layer.qlinear \(Linear\)|depends on others",
    ),
    "sequences sorted by length": (
        lambda: Around(DPLSTM(4, 4, batch_first=True), by_length),
        (5, 4),
        "enforce_sorted=True",
    ),
    "a frozen recurrence along the batch": (
        lambda: frozen_before(nn.LSTM(4, 4)),
        (5, 4),
        "depends on others",
    ),
    "frozen attention along the batch": (
        lambda: frozen_before(nn.MultiheadAttention(4, 2), attend),
        (5, 4),
        "depends on others",
    ),
    "softmax along the batch": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)),
        (4,),
        "output for one that depends on others",
    ),
    "softmax of three dimensions": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Softmax(None), nn.Linear(4, 2)),
        (5, 4),
        r"input of 2 \(Linear\) for one that depends",
    ),
    "the mean of the batch": (
        lambda: Around(nn.Linear(4, 4), lambda f, x: f(x - x.mean(0))),
        (4,),
        "depends on others",
    ),
    "statistics in a buffer": (
        lambda: nn.Sequential(nn.Linear(4, 4), Centred()),
        (4,),
        r"buffers, .*: 1\.mean",
    ),
    "a parameter that a pass changes": (
        lambda: nn.Sequential(nn.Linear(4, 4), Renormed()),
        (4,),
        r"parameters alone .* 1\.weight",
    ),
    "a weight used outside of its layer too": (
        lambda: Around(nn.Linear(4, 4), lambda f, x: nn.functional.linear(f(x), f.weight)),
        (4,),
        "gradients of layer.weight must add up",
    ),
    "a second argument": (
        lambda: Around(nn.Bilinear(4, 4, 4), lambda f, x: f(x, x)),
        (4,),
        r"layer \(Bilinear\) must get one tensor",
    ),
}


@pytest.fixture(autouse=True)
def layers_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let layers pass that are refused by name already: here the rows are watched."""
    monkeypatch.setattr(
        "dpftrl_fast.torch.gradients.hooks.check_layers", lambda *args, **more: None
    )


@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("name", WRONG)
def test_rows_that_are_not_examples_are_refused(name: str, way: str) -> None:
    torch.manual_seed(0)
    model, shape, words = WRONG[name]
    module, sums = hooked(model(), way, ROWS)
    before = [p.detach().clone() for p in module.parameters()]
    with pytest.raises(ValueError, match=words):
        module(torch.randn(ROWS, *shape))
    assert sums.steps_taken == 0 and sums.rows_due == ROWS
    assert all(map(torch.equal, before, module.parameters()))
    assert all(
        p.grad is None and getattr(p, "grad_sample", None) is None for p in module.parameters()
    )


@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("rows", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: nn.Linear(4, 2), (4,)),
        (lambda: Positions(5, repeat=True), (5, 4)),
        (lambda: Around(DPLSTM(4, 4, batch_first=True), in_order), (5, 4)),
        (lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Softmax(-1)), (4,)),
    ],
)
def test_models_of_rows_pass(model: Any, shape: tuple[int, ...], rows: int, way: str) -> None:
    torch.manual_seed(0)
    module, sums = hooked(model(), way, rows)
    loss(module(torch.randn(rows, *shape)), torch.zeros(rows)).backward()
    sums.finish()
    assert sums.steps_taken == 1


class Tokens(nn.Module):
    """A transformer's ways with what all examples share."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=0)
        self.places = nn.Embedding(length, 4)
        self.first = nn.Parameter(torch.randn(1, 1, 4))
        self.scale = nn.Parameter(torch.randn(4))
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        z = self.words(x) + self.places(torch.arange(x.shape[1])[None])
        z = torch.cat([self.first.expand(len(x), -1, -1), z], 1)
        return (z + self.inner(z) * self.scale).mean(1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("length", [3, 4, 5, ROWS, ROWS + 1])
def test_positions_and_tokens_are_each_examples_own(length: int, way: str) -> None:
    torch.manual_seed(0)
    words = torch.randint(0, 7, (ROWS, length))
    numbers = torch.randn(ROWS, length, 4)
    for model, x in ((Tokens(length), words), (Positions(length), numbers)):
        module, sums = hooked(model.double(), way, ROWS)
        x = x.double() if x.is_floating_point() else x
        sums.clipping = FlatClipping(0.5)
        alone = copy.deepcopy(model)  # without hooks
        samples = one_by_one(alone, loss, x, x, list(alone.parameters()))
        loss(module(x), x).backward()
        sums.finish()
        for p, expected in zip(model.parameters(), flat_sums(samples, 0.5), strict=True):
            torch.testing.assert_close(p.grad, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("fill", [0.0, math.nan, math.inf])
def test_values_do_not_matter(fill: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    module, sums = hooked(model, "hooks", ROWS)
    x = torch.randn(ROWS, 4)
    x[2:4] = fill
    loss(module(x), torch.zeros(ROWS)).backward()
    sums.finish()


def test_the_trial_leaves_no_trace() -> None:
    found = []
    for watched in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(), nn.Linear(64, 2))
        module, sums = hooked(model, "hooks", ROWS)
        if not watched:
            sums.source.watch = lambda args, kwargs: None
        x = torch.randn(ROWS, 4)
        loss(module(x), x).backward()
        sums.finish()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_first_pass_only_is_tried() -> None:
    calls: list[int] = []
    model = Around(nn.Linear(4, 4), lambda f, x: (calls.append(len(x)), f(x))[1])
    module, sums = hooked(model, "hooks", ROWS)
    x = torch.randn(ROWS, 4)
    with torch.no_grad():
        module(x[:2])
        module.eval()
        module(x[:3])
    module.train()
    loss(module(x), x).backward()
    assert calls == [2, 3, 4, *TRIAL, ROWS]  # 4 made up
    sums.finish()
    sums.done()
    module(x[:2])  # outside of a batch: for the caller's eyes only
    assert calls[9:] == [2]


def after_steps(model: nn.Module, steps: int, rows: int = ROWS) -> tuple[Any, Any]:
    """Return a module and its sums in a batch after so many steps, as a resumed run has them."""
    module, sums = hooked(model, "hooks", rows)
    sums.abandon()
    sums.guard = PrivacyPlan(1e3, 1.0, SinglePass(10_000)).guard()
    for step in range(steps):
        sums.guard.admit([1000 + step])
    sums.noise = None  # the position is now that of this guard
    sums.begin(range(rows))
    sums.expect(rows)
    return module, sums


def next_batch(sums: Any, first: int, rows: int = ROWS) -> None:
    sums.finish()
    sums.done()
    sums.begin(range(first, first + rows))
    sums.expect(rows)


@pytest.mark.parametrize("fill", [None, 0.0, math.nan])
def test_a_run_that_goes_on_is_tried_without_its_values(fill: float | None) -> None:
    """Whether it is refused must not tell of values: rows that are alike are refused as well."""
    x = torch.randn(ROWS, 5, 4) if fill is None else torch.full((ROWS, 5, 4), fill)
    for name in ("the mean of the batch", "a layer along the sequence"):
        model, _, words = WRONG[name]
        module, _ = after_steps(model(), 1)
        with pytest.raises(ValueError, match=words):
            module(x)


class Later(nn.Module):
    """A layer that begins to mix examples, in one of some ways, when it is told to."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.layer, self.way, self.mixes = nn.Linear(4, 4), nn.Linear(4, 4), way, False
        self.calls: list[Tensor] = []
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(x.detach().clone())
        x = self.first(x)
        if self.mixes and self.way == "input":
            x = x - x.mean(0)
        elif self.mixes and self.way == "order":
            x = x.flip(0)
        elif self.mixes and self.way == "buffer":
            self.seen.add_(x.detach().mean(0))
        elif self.mixes and self.way == "weight":
            x = x * self.layer.weight.sum()
        y = self.layer(x)
        return y - y.mean(0) if self.mixes and self.way == "output" else y  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["input", "order", "buffer", "weight", "output"])
@pytest.mark.parametrize("fill", [None, 0.0])
def test_a_model_that_begins_to_mix_examples_is_noticed(way: str, fill: float | None) -> None:
    torch.manual_seed(0)
    model = Later(way)
    module, sums = hooked(model, "hooks", ROWS)
    sums.abandon()
    sums.guard = PrivacyPlan(1e3, 1.0, SinglePass(100)).guard()
    sums.noise = None
    sums.begin(range(ROWS))
    sums.expect(ROWS)
    x = torch.randn(ROWS, 4) if fill is None else torch.full((ROWS, 4), fill)
    for step in range(1, 4):
        loss(module(x), torch.zeros(ROWS)).backward()
        next_batch(sums, ROWS * step)
    model.mixes = True
    if way == "weight":  # noticed in every step
        loss(module(x), torch.zeros(ROWS)).backward()
        with pytest.raises(ValueError, match=r"layer\.weight got a gradient outside of its layer"):
            sums.finish()
        return
    loss(module(x), torch.zeros(ROWS)).backward()  # after 3 steps: not tried
    next_batch(sums, ROWS * 4)
    before = model.seen.clone()
    with pytest.raises(ValueError, match=r"each example apart|add up to its|no statistics"):
        module(x)  # after 4
    assert torch.equal(model.seen, before)


def test_later_trials_leave_no_trace_and_see_no_value() -> None:
    found = []
    for schedule in (True, False):
        torch.manual_seed(0)
        model = Later("input")
        model.dropout = nn.Dropout()
        module, sums = after_steps(model, 0)
        x = torch.full((ROWS, 4), 7.0)
        with pytest.MonkeyPatch.context() as patch:
            if not schedule:
                patch.setattr("dpftrl_fast.torch.gradients.rows.recheck_due", lambda step: False)
            loss(module(x), x).backward()
            next_batch(sums, ROWS)
            model.calls.clear()
            loss(module(x), x).backward()
        others = [call for call in model.calls if not bool((call == 7.0).all())]
        assert len(others) == (len(TRIAL) if schedule else 0) and len(model.calls) == 1 + len(
            others
        )
        assert not any(bool((call == 7.0).any()) for call in others)
        sums.finish()
        found.append([*(p.grad for p in model.parameters()), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_second_forward_pass_of_a_step_is_not_tried() -> None:
    model = Later("input")
    module, sums = after_steps(model, 0)
    loss(module(torch.randn(ROWS, 4)), torch.zeros(ROWS)).backward()
    next_batch(sums, ROWS)
    module(torch.randn(ROWS, 4))
    model.calls.clear()
    module(torch.randn(ROWS, 4))
    assert len(model.calls) == 1


def test_a_model_that_takes_no_made_up_values_is_told_of_once() -> None:
    def picky(layer: Any, x: Tensor) -> Tensor:
        if bool((x < 1.0).all()):
            raise KeyError("private")
        return layer(x)  # type: ignore[no-any-return]

    model = nn.Sequential(Around(nn.Linear(4, 4), picky))
    module, sums = after_steps(model, 0)
    x = torch.full((ROWS, 4), 7.0)
    loss(module(x), x).backward()
    next_batch(sums, ROWS)
    with pytest.warns(UserWarning, match=r"cannot be tried on made-up inputs.*: KeyError$"):
        loss(module(x), x).backward()
    next_batch(sums, 2 * ROWS)
    loss(module(x), x).backward()  # tried again, and told of no more
    sums.finish()


def test_made_up_integers_are_indices() -> None:
    model = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(20, 2))
    module, sums = after_steps(model, 1)
    x = torch.full((ROWS, 5), 2)
    loss(module(x), x).backward()
    sums.finish()
    lengths = Around(nn.Linear(4, 4), lambda f, x: f(x / (x[:, :1] > 0).float().clamp(min=0.5)))
    module, sums = after_steps(lengths, 1)
    module(torch.ones(ROWS, 4))


def test_rows_are_counted_in_every_pass() -> None:
    module, _ = hooked(Around(nn.Linear(4, 4)), "hooks", ROWS)
    x = torch.randn(ROWS, 4)
    module(x)
    with pytest.raises(ValueError, match=r"must get the 6 rows of the batch, got an input of sha"):
        module(x[:5])


def test_a_model_of_one_number_of_rows_is_refused() -> None:
    model = Around(nn.Linear(4, 4), lambda f, x: f(x) + torch.zeros(ROWS, 4))
    module, _ = hooked(model, "hooks", ROWS)
    with pytest.raises(
        ValueError, match=r"number of examples, got a RuntimeError in .* \(Around\)"
    ):
        module(torch.randn(ROWS, 4))


def test_packed_sequences_are_refused_as_inputs() -> None:
    module, _ = hooked(DPLSTM(4, 4, batch_first=True), "hooks", ROWS)
    lengths = torch.full((ROWS,), 5)
    given = nn.utils.rnn.pack_padded_sequence(torch.randn(ROWS, 5, 4), lengths, batch_first=True)
    with pytest.raises(ValueError, match="got packed ones"):
        module(given)


def sequence_first(layer: Any, x: Tensor) -> Tensor:
    return layer(x.transpose(0, 1)).transpose(0, 1)  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", HOOKS)
def test_examples_along_the_second_dimension(way: str) -> None:
    x = torch.randn(ROWS, 5, 4)
    module, sums = hooked(Around(nn.Linear(4, 4), sequence_first), way, ROWS, batch_first=False)
    loss(module(x), x).backward()
    sums.finish()
    module, sums = hooked(nn.Linear(4, 4), way, ROWS, batch_first=False)
    loss(module(x.transpose(0, 1)).transpose(0, 1), x).backward()
    sums.finish()
    module, _ = hooked(nn.Linear(4, 4), way, ROWS, batch_first=False)
    with pytest.raises(ValueError, match="along the second dimension"):
        module(x)
    with pytest.raises(ValueError, match="6 of each: take another number"):
        module(torch.randn(ROWS, ROWS, 4))


def test_inputs_in_containers_and_keywords() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, pair: Any, *, scale: Tensor, unused: Any = None) -> dict[str, Any]:
            return {"y": self.layer(pair["x"]) * scale, "n": len(scale)}

    x = torch.randn(ROWS, 4)
    module, sums = hooked(Two(), "hooks", ROWS)
    loss(module({"x": x}, scale=x[:, :1], unused=3)["y"], x).backward()
    sums.finish()
