# SPDX-License-Identifier: Apache-2.0
"""However inputs lie in memory, an example's gradient is its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("opacus")
from dpftrl_fast.torch.gradients.formulas import formula_of, plain

ROWS = 3


def channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() not in formats else (
        x.to(memory_format=formats[x.dim()])
    )  # fmt: skip


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "as new": lambda x: x.contiguous(),
    "channels last": channels_last,
    "batch innermost": lambda x: x.movedim(0, -1).contiguous().movedim(-1, 0),
    "space transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "cropped": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "every other": lambda x: x.repeat_interleave(2, 0)[::2],
    "expanded": lambda x: x[:, :1].contiguous().expand_as(x),
}

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (lambda: nn.Conv1d(4, 2, 3, padding=1, stride=2), (4, 7)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2), (4, 6, 5)),
    "conv2d, no padding": (lambda: nn.Conv2d(3, 2, (2, 3), dilation=(1, 2)), (3, 6, 7)),
    "conv2d, same": (lambda: nn.Conv2d(3, 2, 3, padding="same"), (3, 4, 5)),
    "conv2d of points": (lambda: nn.Conv2d(3, 2, 3, padding=1), (3, 1, 1)),
    "conv2d, one channel": (lambda: nn.Conv2d(1, 2, 3, padding=1), (1, 4, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1, stride=2), (2, 4, 3, 5)),
    "conv3d, dilated": (lambda: nn.Conv3d(2, 3, 2, dilation=2), (2, 4, 3, 5)),
    "linear": (lambda: nn.Linear(5, 2), (4, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (4, 3, 5)),
    "layer norm": (lambda: nn.LayerNorm(5), (4, 5)),
}


def samples(layer: nn.Module, x: Tensor, *, functorch: bool = False) -> list[Tensor]:
    formula = formula_of(layer, functorch=functorch)
    output = layer(x)
    found = formula(layer, x, 2.0 * output.detach(), {})
    return [found[name] for name, _ in layer.named_parameters()]


@pytest.mark.parametrize("functorch", [False, True], ids=["formulas", "functorch"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_are_those_of_each_example(kind: str, layout: str, functorch: bool) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    layer = make().double()
    x = LAYOUTS[layout](torch.randn(ROWS, *shape, dtype=torch.float64))
    got = samples(layer, x, functorch=functorch)
    for i in range(ROWS):
        layer.zero_grad()
        layer(x[i : i + 1].clone(memory_format=torch.contiguous_format)).square().sum().backward()
        for sample, p in zip(got, layer.parameters(), strict=True):
            torch.testing.assert_close(sample[i], p.grad, rtol=1e-10, atol=1e-10)
    layer.zero_grad()
    # nothing of the others is in it: they become something else, and it keeps its bits
    others = x.clone(memory_format=torch.preserve_format)
    if layout != "expanded":
        others[1:] *= -3.0
        for before, after in zip(got, samples(layer, others, functorch=functorch), strict=True):
            assert torch.equal(before[0], after[0])


def test_all_permutations_become_plain() -> None:
    for order in itertools.permutations(range(4)):
        for shape in [(2, 3, 4, 5), (2, 3, 1, 1), (1, 3, 1, 5), (2, 0, 3, 1)]:
            back = sorted(range(4), key=order.__getitem__)
            x = torch.arange(float(torch.Size(shape).numel())).view(shape)
            laid = x.permute(order).contiguous().permute(back)
            assert plain(laid).stride() == torch.empty(shape).stride()
            assert torch.equal(plain(laid), x)
    assert plain(torch.tensor(3.0)).shape == ()


def test_what_is_plain_is_not_copied() -> None:
    x = torch.zeros(2, 3, 4)
    assert plain(x).data_ptr() == x.data_ptr()
