# SPDX-License-Identifier: Apache-2.0
"""The way of per-example gradients is found, printed, and right."""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import accumulator, cross_entropy, flat_sums, grads, one_by_one

from dpftrl_fast.torch import make_private
from dpftrl_fast.torch.gradients.auto import auto_gradients
from dpftrl_fast.torch.gradients.clipping import FlatClipping

ROWS = 6


class Tied(nn.Module):
    """Uses the weight of its embedding outside of it, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(self.words(x)).mean(1)
        return nn.functional.linear(h, self.words.weight)


class Branching(nn.Module):
    """Looks at values, which torch.func.vmap cannot do, and uses a weight without its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(x, self.first.weight)
        return h if bool((h.detach() > 1e9).any()) else h.tanh()


class Own(nn.Module):
    """A module with a parameter of its own and other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale)  # type: ignore[no-any-return]


class Mixing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))  # type: ignore[no-any-return]


def numbers() -> Tensor:
    return torch.randn(ROWS, 4, dtype=torch.float64)


#: name -> (model, inputs, classes, what is printed)
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int, str]] = {
    "linear": (lambda: nn.Linear(4, 3), numbers, 3, "'hooks'"),
    "a parameter beside layers": (Own, numbers, 3, "'hooks'"),
    "attention": (
        lambda: nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)),
        lambda: torch.randn(ROWS, 5, 4, dtype=torch.float64),
        4,
        r"'vmap'.* MultiheadAttention|'vmap'.*self_attn",
    ),
    "a weight of two uses": (Tied, lambda: torch.randint(0, 7, (ROWS, 5)), 7, "'vmap'.*words.weig"),
}


def first(output: Tensor) -> Tensor:
    return output[:, 0] if output.dim() == 3 else output


def loss(output: Tensor, target: Tensor) -> Tensor:
    return cross_entropy(first(output), target)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_the_way_is_found_and_right(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    make, inputs, classes, told = MODELS[name]
    model = make().double()
    sums = accumulator(model, FlatClipping(0.3), ROWS, steps=3)
    alone = copy.deepcopy(model)
    auto_gradients(model, sums)
    for step in range(3):
        x, y = inputs(), torch.randint(0, classes, (ROWS,))
        samples = one_by_one(alone, loss, x, y, list(alone.parameters()))
        sums.begin(range(ROWS * step, ROWS * (step + 1)))
        sums.expect(ROWS)
        loss(model(x), y).backward()
        sums.finish()
        for got, expected in zip(grads(model), flat_sums(samples, 0.3), strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-7)
        sums.done()
    printed = capsys.readouterr().err
    assert printed.count("grad_sample_mode=") == 1 and re.search(told, printed), printed


def run(model: nn.Module, **options: Any) -> Any:
    data = TensorDataset(torch.randn(12, 4), torch.randint(0, 3, (12,)))
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(data, batch_size=ROWS),
        noise_multiplier=20.0,
        delta=1e-5,
        epochs=1,
        clip_norm=1.0,
        **options,
    )


def test_a_model_that_mixes_examples_stays_refused() -> None:
    model, _, loader, _ = run(Mixing())
    with pytest.raises(ValueError, match="must treat each example apart"):
        for _, (x, _y) in loader:
            model(x)


def test_a_model_that_looks_at_values_takes_examples_one_by_one() -> None:
    with pytest.warns(UserWarning, match="one after the other"):
        model, optimizer, loader, ledger = run(Branching())
        for _, (x, y) in loader:
            cross_entropy(model(x), y).backward()
            optimizer.step()
    assert ledger.steps_taken == 2


@pytest.mark.parametrize("make", [Own, Branching])
@pytest.mark.filterwarnings("ignore:examples pass one after the other:UserWarning")
def test_the_network_is_returned_and_its_copies_are_plain(make: Any) -> None:
    network = make()
    names = list(network.state_dict())
    model, optimizer, loader, _ = run(network)
    assert model is network
    for _, (x, y) in loader:
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert list(model.state_dict()) == names
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(other(x), model(x))
        other(x).sum().backward()
        assert any(p.grad is not None for p in other.parameters())
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert not other(x).any() and model(x).any()
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    with pytest.raises(ValueError, match="must not be wrapped or made private before"):
        run(model)
