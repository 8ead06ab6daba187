# SPDX-License-Identifier: Apache-2.0
"""With hooks, rows must be examples: models for which they are not are refused at the first pass.

Without `watch_rows` most models of `WRONG` train in silence, and nothing bounds what one example
does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layer_cases import Around, attend, hooked, in_order, loss, packed
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore:Implicit dimension choice:UserWarning"),
]

HOOKS, ROWS = ["hooks", "functorch"], 6


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
    "as many positions as examples": (lambda: Positions(ROWS), (ROWS, 4), r"places \(Embedding\)"),
    "positions": (lambda: Positions(5), (5, 4), r"places \(Embedding\)"),
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
        "dpftrl_fast.torch.gradients.grad_sample.check_layers", lambda *args, **more: None
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
            module._forward_pre_hooks.popitem()
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
    assert calls == [2, 3, ROWS + 1, ROWS + 1, ROWS, ROWS]
    sums.finish()
    sums.done()
    module(x[:2])  # outside of a batch: for the caller's eyes only
    assert calls[6:] == [2]


def test_values_are_not_looked_at_after_the_first_step() -> None:
    """A run that goes on from a checkpoint: whether it is refused must not tell of values."""
    x = torch.randn(ROWS, 5, 4)
    for name, refused in [("the mean of the batch", False), ("positions", True)]:
        model, _, words = WRONG[name]
        module, sums = hooked(model(), "hooks", ROWS)
        sums.abandon()
        sums.guard = PrivacyPlan(1e3, 1.0, SinglePass(2)).guard()
        sums.guard.admit([100])
        sums.noise = None  # the position is now that of this guard
        sums.begin(range(ROWS))
        sums.expect(ROWS)
        if refused:
            with pytest.raises(ValueError, match=words):
                module(x)
        else:
            loss(module(x), x).backward()
            sums.finish()


def test_rows_are_counted_in_every_pass() -> None:
    module, _ = hooked(Around(nn.Linear(4, 4)), "hooks", ROWS)
    x = torch.randn(ROWS, 4)
    module(x)
    with pytest.raises(ValueError, match=r"must get the 6 rows of the batch, got an input of sha"):
        module(x[:5])


def test_a_model_of_one_number_of_rows_is_refused() -> None:
    model = Around(nn.Linear(4, 4), lambda f, x: f(x) + torch.zeros(ROWS, 4))
    module, _ = hooked(model, "hooks", ROWS)
    with pytest.raises(ValueError, match=r"must take 6 examples and one more, got RuntimeError"):
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
