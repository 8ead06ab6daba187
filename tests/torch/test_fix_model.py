# SPDX-License-Identifier: Apache-2.0
"""`fix_model`: the function is kept where it says so, and what it returns is trained privately."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader
from zoo_cells import difference_of, made
from zoo_plain import CASES

from dpftrl_fast.torch import fix_model, make_private
from dpftrl_fast.torch.plain_layers import FixedNorm, NormAct, SplitAttention

pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


def fixed(layer: nn.Module, **options: Any) -> nn.Module:
    """What becomes of a layer inside of a model."""
    return fix_model(nn.ModuleList([layer]), **options).model.get_submodule("0")


def same(first: Any, second: Any) -> bool:
    return torch.allclose(first, second, atol=1e-6, rtol=1e-5)


MASKS: dict[str, Callable[[], dict[str, Any]]] = {
    "none": dict,
    "padding": lambda: {"key_padding_mask": torch.tensor([[0, 0, 0, 0, 0, 1, 1]] * 3).bool()},
    "numbers": lambda: {"key_padding_mask": torch.randn(3, 7)},
    "pairs": lambda: {"attn_mask": torch.ones(5, 7).triu(1).bool()},
    "of heads": lambda: {"attn_mask": torch.randn(6, 5, 7)},
    "both": lambda: {
        "attn_mask": torch.randn(5, 7),
        "key_padding_mask": torch.tensor([[0.0] * 6 + [-torch.inf]] * 3),
    },
}


@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    "options", [{}, {"kdim": 5, "vdim": 3}, {"bias": False}, {"add_zero_attn": True}]
)
def test_split_attention_computes_what_the_fused_one_does(
    options: dict[str, Any], mask: str, need_weights: bool
) -> None:
    for batch_first in (True, False):
        for rows_first in (True, False):
            torch.manual_seed(1)
            layer = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
            with torch.no_grad():
                for p in layer.parameters():
                    p.normal_()
            split = fixed(layer, batch_first=rows_first)
            assert isinstance(split, SplitAttention)
            sizes = 4, options.get("kdim", 4), options.get("vdim", 4)
            x = [torch.randn(3, n, size) for n, size in zip((5, 7, 7), sizes, strict=True)]
            if not batch_first:
                x = [tensor.transpose(0, 1) for tensor in x]
            for average in (True, False):
                named = {**MASKS[mask](), "need_weights": need_weights}
                named["average_attn_weights"] = average
                (a, u), (b, v) = layer(*x, **named), split(*x, **named)
                assert same(a, b)
                assert (u is None and v is None) if not need_weights else same(u, v)


def test_attention_of_one_example_and_dropout() -> None:
    layer = nn.MultiheadAttention(4, 2, dropout=0.5)
    split, x = fixed(layer), torch.randn(5, 4)
    layer.eval(), split.eval()
    assert same(layer(x, x, x)[0], split(x, x, x)[0])
    split.train()
    assert not same(split(x, x, x)[0], split(x, x, x)[0])
    with pytest.raises(ValueError, match="attn_mask must be given with is_causal"):
        split(x, x, x, is_causal=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("batch_first", [True, False])
def test_transformer_encoders_compute_the_same_in_both_modes(batch_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
    found = fix_model(model)
    assert len(found.changes) == (3 if batch_first else 2) and not found.refused()
    x = torch.randn(3, 5, 4)
    x = x if batch_first else x.transpose(0, 1)
    hidden = torch.tensor([[0, 0, 0, 0, 1]] * 3).bool()
    assert same(model(x, src_key_padding_mask=hidden), found.model(x, src_key_padding_mask=hidden))
    model.eval(), found.model.eval()
    with torch.no_grad():
        assert same(model(x), found.model(x))
        a, b = (m(x, src_key_padding_mask=hidden) for m in (model, found.model))
    a, b = (y if batch_first else y.transpose(0, 1) for y in (a, b))
    assert same(a[:, :4], b[:, :4])  # the fast path writes zeros where words are hidden


def test_attention_with_rows_of_its_own_stays_and_is_named() -> None:
    found = fix_model(nn.Sequential(nn.MultiheadAttention(4, 2, add_bias_kv=True)))
    assert not found.changes and len(found.refused("hooks")) == 1
    with pytest.raises(ValueError, match="must have no bias_k and bias_v, got add_bias_kv=True"):
        SplitAttention(nn.MultiheadAttention(4, 2, add_bias_kv=True))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_layers(kind: Any, bidirectional: bool, batch_first: bool, bias: bool) -> None:
    layer = kind(
        3, 4, num_layers=2, bidirectional=bidirectional, batch_first=batch_first, bias=bias
    )
    found = fixed(layer)
    x = torch.randn(3, 5, 3)
    (a, state), (b, other) = layer(x), found(x)
    assert same(a, b)
    assert all(map(same, state, other) if isinstance(state, tuple) else [same(state, other)])
    found.flatten_parameters()  # type: ignore[operator]
    copies = dict(found.named_parameters())
    for name, p in layer.named_parameters():
        assert torch.equal(p, copies[name])


def test_recurrent_layers_keep_dropout_and_activation() -> None:
    lstm = fixed(nn.LSTM(3, 4, 2, dropout=0.25))
    assert lstm.dropout == 0.25
    layer = nn.RNN(3, 4, nonlinearity="relu")
    assert same(layer(torch.ones(2, 1, 3))[0], fixed(layer)(torch.ones(2, 1, 3))[0])
    stays = fix_model(nn.Sequential(nn.LSTM(3, 4, proj_size=2)))
    assert not stays.changes and "LSTM" in stays.refused("hooks")[0]


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(kind: Any, bias: bool) -> None:
    layer = kind(3, 4, bias=bias)
    found, x = fixed(layer), torch.randn(2, 3)
    a, b = layer(x), found(x)
    assert all(map(same, a, b))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_bags(mode: str, padding: int | None) -> None:
    layer = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
    found, words = fixed(layer), torch.tensor([[0, 1, 2], [0, 0, 0], [4, 4, 0]])
    assert same(layer(words), found(words))
    if mode == "sum":
        weights = torch.rand(3, 3)
        assert same(
            layer(words, per_sample_weights=weights), found(words, per_sample_weights=weights)
        )
    with pytest.raises(ValueError, match=r"must be bags of one length, .* pad the bags"):
        found(words.flatten(), torch.tensor([0, 4]))


@pytest.mark.parametrize(
    "make",
    [
        nn.utils.weight_norm,
        parametrizations.weight_norm,
        nn.utils.spectral_norm,
        parametrizations.spectral_norm,
    ],
)
@pytest.mark.parametrize("trained", [True, False])
def test_norms_of_weights_are_removed(make: Any, trained: bool) -> None:
    layer = make(nn.Linear(4, 3)).requires_grad_(trained)
    model = nn.Sequential(layer, nn.Tanh())
    x = torch.randn(2, 4)
    model(x)
    found = fix_model(model)
    model.eval()
    assert same(model(x), found.model(x))
    assert len(found.changes) == 1 and found.changes[0].layer == "Linear"
    assert [p.requires_grad for p in found.model.parameters()] == [trained] * 2
    assert len(list(layer.parameters())) >= 2  # the model before is as it was
    assert fix_model(found.model).changes == []


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_frozen_batch_norm_becomes_a_scale_and_a_shift(trained: bool, affine: bool) -> None:
    norm = nn.BatchNorm2d(4, affine=affine)
    for _ in range(3):
        norm(torch.randn(5, 4, 2, 2) * 3 + 1)
    with torch.no_grad():
        for p in norm.requires_grad_(trained).parameters():
            p.normal_()
    model = nn.Sequential(nn.Conv2d(3, 4, 1), norm)
    norm.eval()
    found, x = fix_model(model), torch.randn(3, 3, 2, 2)
    assert isinstance(found.model[1], FixedNorm)  # type: ignore[index]
    assert found.changes[0].same_function and not found.refused()
    assert same(model(x), found.model(x))
    assert same(found.model.train()(x), model(x))
    assert len(list(found.model.parameters())) == (4 if trained and affine else 2)


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (4, 1), (6, 1), (24, 6), (64, 16), (128, 32), (7, 1), (160, 32)],
)
def test_batch_norm_becomes_group_norm(channels: int, groups: int) -> None:
    norm = nn.BatchNorm2d(channels, eps=0.5)
    with torch.no_grad():
        norm.weight.normal_()
        norm.bias.normal_()
    for model in (
        nn.Sequential(norm),
        nn.Sequential(copy.deepcopy(norm)).eval(),
    ):
        found = fix_model(model)
        group = found.model[0]  # type: ignore[index]
        assert isinstance(group, nn.GroupNorm) and (group.num_groups, group.eps) == (groups, 0.5)
        x = torch.randn(2, channels, 3, 3)
        by_torch = nn.functional.group_norm(x, groups, norm.weight, norm.bias, 0.5)
        assert torch.equal(group(x), by_torch)
        assert not found.changes[0].same_function and "ANOTHER FUNCTION" in str(found)
    assert fix_model(model, max_groups=1).model[0].num_groups == 1  # type: ignore[index]


def test_fused_norms_keep_their_activation() -> None:
    class Fused(nn.BatchNorm2d):
        """As timm's BatchNormAct2d."""

        def __init__(self) -> None:
            super().__init__(8)
            self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.drop(super().forward(x)))  # type: ignore[no-any-return]

    found = fix_model(nn.Sequential(Fused()))
    assert isinstance(found.model[0], NormAct)  # type: ignore[index]
    assert [str(change).partition(":")[0] for change in found.changes] == [
        "0 (Fused)",
        "0.act (ReLU)",
    ]
    x = torch.randn(2, 8, 3, 3)
    assert same(found.model(x), nn.functional.group_norm(x, 2).relu())


def test_running_statistics_and_settings_of_embeddings() -> None:
    model = nn.Sequential(
        nn.InstanceNorm1d(2, track_running_stats=True),
        nn.Embedding(5, 2, max_norm=0.5, sparse=True, scale_grad_by_freq=True),
    )
    found = fix_model(model)
    assert [change.same_function for change in found.changes] == [False, True, True, True]
    x, words = torch.randn(2, 2, 4), torch.arange(5)
    assert same(model[0](x), found.model[0](x))  # type: ignore[index]
    assert same(model[1](words), found.model[1](words))  # type: ignore[index]
    assert not found.refused() and [*found.model.buffers()] == []


def test_the_same_layer_is_replaced_once_and_hooks_go_along() -> None:
    shared, seen = nn.BatchNorm1d(8), []
    shared.register_forward_hook(lambda *_: seen.append(1))
    model = nn.Sequential(shared, nn.Tanh(), shared)
    found = fix_model(model)
    assert found.model[0] is found.model[2] and len(found.changes) == 1  # type: ignore[index]
    found.model(torch.randn(2, 8))
    assert seen == [1, 1]


def test_copy_or_in_place() -> None:
    model = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(inplace=True))
    before = copy.deepcopy(model)
    found = fix_model(model)
    assert str(model) == str(before) and found.model is not model
    assert fix_model(model, inplace=True).model is model
    assert str(model) == str(found.model)
    assert str(fix_model(model)) == "fix_model: no layer had to be changed"
    with pytest.raises(ValueError, match=r"the layer itself \(LSTM\): inplace=False"):
        fix_model(nn.LSTM(2, 2), inplace=True)


def test_refusals() -> None:
    with pytest.raises(TypeError, match="model must be a Module, got int"):
        fix_model(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_groups"):
        fix_model(nn.Linear(2, 2), max_groups=0)
    compiled: Any = torch.compile(nn.BatchNorm1d(8), backend="eager")
    with pytest.raises(ValueError, match="call fix_model before the wrapper"):
        fix_model(compiled)


def private(model: nn.Module, optimizer: Any) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(4, 8), torch.zeros(4, dtype=torch.long))
    loader = DataLoader(data, batch_size=4)
    return make_private(
        model, optimizer, loader, noise_multiplier=1.0, delta=1e-5, epochs=1, clip_norm=1.0
    )


def test_an_optimiser_made_before_is_refused() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"use dpftrl_fast\.torch\.fix_model"):
        private(model, early)
    ready = fix_model(model).model
    with pytest.raises(ValueError, match="make the optimizer of the model that fix_model returned"):
        private(ready, early)
    network, optimizer, loader, _ = private(ready, torch.optim.SGD(ready.parameters(), lr=0.1))
    for _, (x, y) in loader:
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("name", ["U-Net", "LSTM", "GRU", "TransformerEncoder", "frozen BatchNorm"])
def test_what_is_fixed_is_trained_with_hooks(name: str) -> None:
    case = CASES[name]
    changes = fix_model(made(case)[0])
    assert changes.changes and not changes.refused("hooks")
    assert difference_of(case, "auto", lambda model: fix_model(model).model) < 1e-5
