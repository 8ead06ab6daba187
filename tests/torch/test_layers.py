# SPDX-License-Identifier: Apache-2.0
"""Layer by layer: per-example gradients are those of one example alone, or the layer is named."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layer_cases import Around, attend, hooked, in_order, loss, packed
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch_cases import accumulator, grads, one_by_one

from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipping import FlatClipping
from dpftrl_fast.torch.gradients.layers import check_layers, incompatible_layers

pytestmark = [
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning"),
]

HOOKS, WAYS, ROWS = ["hooks", "functorch"], ["hooks", "functorch", "vmap"], 4


def numbers(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(ROWS, *shape, dtype=torch.float64)


def words(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 7, (ROWS, *shape))


def of_conv(dims: int, **options: Any) -> nn.Module:
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    return Around(kind(4, 6, **{"kernel_size": 3, "groups": 2, **options}))


SIDES = {1: (9,), 2: (9, 7), 3: (6, 5, 7)}
RIGHT: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear, two more dimensions": (lambda: Around(nn.Linear(4, 3)), numbers(2, 3, 4)),
    "prelu": (lambda: Around(nn.PReLU(4)), numbers(4, 3)),
    "embedding": (lambda: Around(nn.Embedding(7, 4)), words(2, 3)),
    "one word": (lambda: Around(nn.Embedding(7, 4)), words()),
    "group norm": (lambda: Around(nn.GroupNorm(2, 4, eps=0.1)), numbers(4, 3, 2)),
    "layer norm": (lambda: Around(nn.LayerNorm((3, 4), eps=0.1)), numbers(2, 3, 4)),
    "rms norm": (lambda: Around(nn.RMSNorm((3, 4), eps=0.1)), numbers(2, 3, 4)),
    "weight norm": (
        lambda: Around(parametrizations.weight_norm(nn.Linear(4, 3))),
        numbers(4),
    ),
    "attention": (
        lambda: Around(DPMultiheadAttention(4, 2, batch_first=True), attend),
        numbers(5, 4),
    ),
    "a layer used thrice": (
        lambda: Around(nn.Linear(4, 4), lambda f, x: f(f(x).tanh()) + f(2 * x)),
        numbers(4),
    ),
}
for dims, sides in SIDES.items():
    for name, options in {
        "plain": {},
        "strides": {"stride": 2, "padding": 1, "dilation": 2},
        "same": {"padding": "same", "kernel_size": 4},
        "no bias": {"bias": False, "padding": (1,) * dims, "groups": 1},
    }.items():
        RIGHT[f"conv{dims}d, {name}"] = (
            lambda dims=dims, options=options: of_conv(dims, **options),  # type: ignore[misc]
            numbers(4, *sides),
        )
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[dims - 1]
    RIGHT[f"transposed conv{dims}d"] = (
        lambda kind=transposed: Around(kind(4, 6, 3, stride=2, groups=2)),  # type: ignore[misc]
        numbers(4, *sides),
    )
    norm = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims - 1]
    RIGHT[f"instance norm {dims}d"] = (
        lambda kind=norm: Around(kind(4, affine=True, eps=0.1)),  # type: ignore[misc]
        numbers(4, *sides),
    )
for kind in (DPRNN, DPLSTM, DPGRU):
    RIGHT[kind.__name__] = (
        lambda kind=kind: Around(kind(3, 4, num_layers=2, batch_first=True, bidirectional=True)),
        numbers(5, 3),
    )
    RIGHT[f"{kind.__name__}, sequence first"] = (
        lambda kind=kind: Around(kind(3, 4), lambda f, x: f(x.transpose(0, 1))[0].transpose(0, 1)),
        numbers(ROWS, 3),  # as many steps as examples
    )


def check(
    model: nn.Module,
    x: Tensor,
    way: str,
    alone: list[Tensor] | None = None,
    rounding: float = 1e-8,
) -> None:
    """Compare the sums of a batch with those of as many passes of one example."""
    model = model.double()
    y = torch.zeros(len(x), dtype=torch.float64)
    samples = one_by_one(model, loss, x, y, list(model.parameters())) if alone is None else alone
    check_layers(model, way, batch_first=True)  # type: ignore[arg-type]
    if way == "vmap":
        sums = accumulator(model, FlatClipping(1e3), len(x))
        sums.begin(range(len(x)))
        sums.expect(len(x))
        VmapModule(model, loss, sums).backward(x, y)
    else:
        module, sums = hooked(model, way, len(x))
        loss(module(x), y).backward()
    sums.finish()
    for got, sample in zip(grads(model), samples, strict=True):
        torch.testing.assert_close(got, sample.sum(0), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RIGHT)
def test_gradients_are_those_of_each_example_alone(name: str, way: str) -> None:
    torch.manual_seed(0)
    model, inputs = RIGHT[name]
    check(model(), inputs(), way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RIGHT)
def test_a_bad_example_leaves_those_beside_it_alone(name: str, way: str) -> None:
    torch.manual_seed(0)
    model, inputs = RIGHT[name]
    net, x = model().double(), inputs()
    if not x.is_floating_point():
        return
    samples = one_by_one(net, loss, x, x, list(net.parameters()))
    kept = torch.arange(ROWS) != 2
    x[2] = math.nan
    check(net, x, way, [sample[kept] for sample in samples])


@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("kind", [DPRNN, DPLSTM, DPGRU])
def test_sequences_packed_in_order(kind: Any, way: str) -> None:
    torch.manual_seed(0)
    model, x = Around(kind(3, 4, batch_first=True), in_order).double(), numbers(5, 3)()
    lengths = torch.linspace(5, 2, ROWS).round().long()
    alone = []
    for i in range(ROWS):
        state = packed(model.layer, x[i : i + 1], lengths[i : i + 1], True)
        alone.append(torch.autograd.grad(loss(state, x), list(model.parameters())))
    # Opacus keeps the last states in float32.
    check(model, x, way, [torch.stack(column) for column in zip(*alone, strict=True)], 1e-5)


def reparametrised() -> nn.Module:
    return parametrizations.weight_norm(nn.Linear(4, 3, bias=False))


class WithToken(nn.Module):
    """A parameter of its own, beside a layer and dropout."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.token, self.layer = nn.Parameter(torch.ones(4)), nn.Linear(4, 4)
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.layer(x + self.token))  # type: ignore[no-any-return]


class Counting(nn.Embedding):
    """A type that Opacus does not know: functorch makes its gradients."""


@pytest.mark.parametrize(
    ("layer", "ways", "word"),
    [
        (lambda: nn.Embedding(7, 4, max_norm=1.0), WAYS, "max_norm=None"),
        (lambda: nn.Embedding(7, 4, max_norm=1.0).requires_grad_(False), WAYS, "max_norm=None"),
        (lambda: nn.EmbeddingBag(7, 4, max_norm=1.0), WAYS, "max_norm=None"),
        (lambda: nn.Embedding(7, 4, padding_idx=0), [], ""),
        (lambda: Counting(7, 4, padding_idx=0), [], ""),
        (lambda: nn.Embedding(7, 4, scale_grad_by_freq=True), HOOKS, "scale_grad_by_freq=False"),
        (lambda: nn.EmbeddingBag(7, 4), HOOKS, "'vmap'"),
        (lambda: nn.Bilinear(4, 4, 3), HOOKS, "'vmap'"),
        (lambda: nn.LayerNorm(4, bias=False), [], ""),
        (lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect"), [], ""),
        (lambda: nn.Conv2d(4, 4, 3, padding="same", padding_mode="circular"), [], ""),
        (lambda: nn.Conv3d(4, 4, 3, padding=1, padding_mode="replicate"), [], ""),
        (lambda: nn.Conv2d(4, 4, 3, padding=0, padding_mode="reflect"), [], ""),
        (lambda: nn.Conv2d(4, 4, 3, padding="valid", padding_mode="reflect"), [], ""),
        (lambda: nn.GRU(4, 4), WAYS, "DPGRU"),
        (lambda: nn.RNN(4, 4), WAYS, "DPRNN"),
        (lambda: nn.LSTMCell(4, 4), WAYS, "DPLSTM"),
        (lambda: type("Own", (nn.LSTM,), {})(4, 4), HOOKS, "DPLSTM"),
        (lambda: type("Own", (nn.MultiheadAttention,), {})(4, 2), HOOKS, "fix_model"),
        (lambda: nn.utils.weight_norm(nn.Linear(4, 3)), [], ""),
        (reparametrised, [], ""),
        (
            lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
            HOOKS,
            "buffers before each forward pass: remove the parametrization",
        ),
        (lambda: nn.LSTM(4, 4).requires_grad_(False), [], ""),
        (lambda: WithToken(0.1), [], ""),
        (lambda: WithToken(0.0), [], ""),
    ],
)
@pytest.mark.parametrize("way", WAYS)
def test_layers_without_the_right_gradients_are_named(
    layer: Callable[[], nn.Module], ways: list[str], word: str, way: Any
) -> None:
    found = incompatible_layers(nn.Sequential(nn.Linear(4, 4), layer()), way, batch_first=True)
    assert bool(found) == (way in ways), found
    if found:
        with pytest.raises(ValueError, match=rf"- 1[.\w]* \(\w+\): .*{word}"):
            check_layers(nn.Sequential(nn.Linear(4, 4), layer()), way, batch_first=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: nn.Embedding(7, 4, padding_idx=2), words(5)),
        (lambda: nn.LayerNorm(4, bias=False, eps=0.1), numbers(3, 4)),
        (reparametrised, numbers(4)),
        (lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), numbers(4, 5, 6)),
    ],
)
def test_settings_of_layers_are_heeded(layer: Any, inputs: Any, way: str) -> None:
    torch.manual_seed(0)
    check(Around(layer()), inputs(), way)


def test_what_only_vmap_does_is_right() -> None:
    torch.manual_seed(0)
    check(Around(nn.EmbeddingBag(7, 4, mode="max")), words(5)(), "vmap")
    check(Around(nn.Bilinear(4, 4, 3), lambda f, x: f(x, x)), numbers(4)(), "vmap")
    check(Around(reparametrised()), numbers(4)(), "vmap")
    check(Around(nn.utils.weight_norm(nn.Linear(4, 3))), numbers(4)(), "vmap")


@pytest.mark.parametrize("way", HOOKS)
@pytest.mark.parametrize("of_layer", [False, True])
@pytest.mark.parametrize("of_hooks", [False, True])
def test_attention_must_have_the_dimension_of_the_batch(
    way: Any, of_layer: bool, of_hooks: bool
) -> None:
    model = Around(DPMultiheadAttention(4, 2, batch_first=of_layer), attend)
    found = incompatible_layers(model, way, batch_first=of_hooks)
    assert bool(found) == (of_layer != of_hooks)
    if found:
        assert f"batch_first must be that of make_private, {of_hooks}, got {of_layer}" in found[0]
    assert not incompatible_layers(model, way)


def test_opacus_is_not_loaded_for_models_that_do_not_need_it(tmp_path: Path) -> None:
    code = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from dpftrl_fast.torch import fix_model, make_private

model = fix_model(nn.Sequential(nn.Embedding(9, 4), nn.LayerNorm(4), nn.Flatten(), {last})).model
data = TensorDataset(torch.arange(8).reshape(4, 2), torch.zeros(4, 1))
private = make_private(
    model, torch.optim.SGD(model.parameters(), 0.1), DataLoader(data, batch_size=4),
    noise_multiplier=1.0, delta=1e-5, epochs=1, clip_norm=1.0,
)
for _, (x, y) in private.data_loader:
    nn.functional.mse_loss(private.model(x), y).backward()
    private.optimizer.step()
print("opacus" in sys.modules)
"""
    for last, needed in [
        ("nn.Linear(8, 1)", "False"),
        ("nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 1, 4), nn.Flatten()", "True"),
    ]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code.format(last=last)],
            cwd=tmp_path, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.splitlines()[-1] == needed
