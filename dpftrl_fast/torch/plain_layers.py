# SPDX-License-Identifier: Apache-2.0
"""Layers that compute what layers of torch do, of parts whose per-example gradients are known.

`fix_model` puts them in. Their parameters all belong to `nn.Linear`, `nn.Embedding` and
`nn.GroupNorm` layers, which get tensors with the examples along one dimension.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


class SplitAttention(nn.Module):
    """`nn.MultiheadAttention` with a linear layer each for queries, keys, values and the output.

    It takes the same arguments and computes the same function, with the same `batch_first`.

    Parameters
    ----------
    layer : nn.MultiheadAttention
        Without `bias_k`, which is a row of keys that belongs to no linear layer. Its weights are
        copied.
    rows_first : bool
        Whether the linear layers get examples along the first dimension, else along the second.

    Examples
    --------
    >>> layer = nn.MultiheadAttention(4, 2)
    >>> x = torch.randn(5, 3, 4)  # five positions of three examples
    >>> split, weights = SplitAttention(layer)(x, x, x)
    >>> torch.allclose(split, layer(x, x, x)[0], atol=1e-6)
    True
    """

    # nn.TransformerEncoderLayer reads them in evaluation: without a bias it takes its slow path,
    # which calls this layer.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(self, layer: nn.MultiheadAttention, *, rows_first: bool = True) -> None:
        super().__init__()
        if layer.bias_k is not None or layer.bias_v is not None:
            raise ValueError("layer must have no bias_k and bias_v, got add_bias_kv=True")
        size = layer.embed_dim
        self.embed_dim, self.num_heads, self.head_dim = size, layer.num_heads, layer.head_dim
        self.dropout, self.batch_first = layer.dropout, layer.batch_first
        self.add_zero_attn, self._rows_first = layer.add_zero_attn, rows_first
        fused: Any = layer.in_proj_weight
        if fused is not None:
            weights = list(torch.split(fused, size))
        else:
            weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
        biases: list[Any] = [None] * 3
        joined: Any = layer.in_proj_bias
        if joined is not None:
            biases = list(torch.split(joined, size))
        parts = [_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)]
        self.q_proj, self.k_proj, self.v_proj = parts
        self.out_proj = nn.Linear(size, size, bias=False, device="meta")
        self.out_proj.weight, self.out_proj.bias = layer.out_proj.weight, layer.out_proj.bias
        self.train(layer.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output and, if `need_weights`, the weights of attention.

        Arguments and shapes as for `nn.MultiheadAttention`. ValueError for `is_causal` without the
        mask that it describes.
        """
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask must be given with is_causal=True, got None")
        batched = query.dim() == 3
        inputs = [query, key, value]
        if not batched:
            inputs = [x.unsqueeze(0 if self.batch_first else 1) for x in inputs]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        if self.batch_first != self._rows_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        q, k, v = (
            self._heads(layer(x))
            for layer, x in zip((self.q_proj, self.k_proj, self.v_proj), inputs, strict=True)
        )
        added = self._mask(key_padding_mask, attn_mask, q)
        if self.add_zero_attn:
            k, v = functional.pad(k, (0, 0, 0, 1)), functional.pad(v, (0, 0, 0, 1))
            added = None if added is None else functional.pad(added, (0, 1))
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            scores = (q * self.head_dim**-0.5) @ k.transpose(-2, -1)
            weights = functional.softmax(scores if added is None else scores + added, -1)
            weights = functional.dropout(weights, dropout)
            mixed = weights @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, added, dropout)
        rows, heads, length, size = mixed.shape
        if self._rows_first:
            joined = mixed.transpose(1, 2).reshape(rows, length, heads * size)
        else:
            joined = mixed.permute(2, 0, 1, 3).reshape(length, rows, heads * size)
        output = self.out_proj(joined)
        if self.batch_first != self._rows_first:
            output = output.transpose(0, 1)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            output = output.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return output, weights

    def _heads(self, x: Tensor) -> Tensor:
        """Return a tensor of shape (examples, heads, positions, head_dim)."""
        apart = x.view(*x.shape[:-1], self.num_heads, self.head_dim)
        return apart.transpose(1, 2) if self._rows_first else apart.permute(1, 2, 0, 3)

    def _mask(self, padding: Tensor | None, mask: Tensor | None, q: Tensor) -> Tensor | None:
        """Return what both masks add to the scores, of shape (examples, heads or 1, ., keys)."""
        added = None
        if mask is not None:
            added = _additive(mask, q)
            if mask.dim() == 3:
                added = added.view(-1, self.num_heads, *mask.shape[1:])
        if padding is not None:
            hidden = _additive(padding, q)[:, None, None, :]
            added = hidden if added is None else added + hidden
        return added


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer with copies of a weight and a bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
    return layer


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask as numbers to add: minus infinity where a mask of truth values hides."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -torch.inf)
    return mask.to(like.dtype)


class NormAct(nn.Module):
    """A normalisation, then dropout, then an activation: timm's fused layers.

    Examples
    --------
    >>> NormAct(nn.GroupNorm(2, 4), nn.Identity(), nn.ReLU())(torch.ones(1, 4, 2)).sum()
    tensor(0., grad_fn=<SumBackward0>)
    """

    def __init__(self, norm: nn.Module, drop: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.norm, self.drop, self.act = norm, drop, act

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of the normalised x."""
        return self.act(self.drop(self.norm(x)))  # type: ignore[no-any-return]


class FixedNorm(nn.Module):
    """A frozen BatchNorm: a scale and a shift for each channel.

    Those of its statistics stay as they are. Its own weights stay parameters if they are trained.

    Examples
    --------
    >>> norm = nn.BatchNorm1d(2, eps=0.0, affine=False).eval()
    >>> FixedNorm(norm)(torch.tensor([[3.0, 4.0]]))
    tensor([[3., 4.]])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        assert norm.running_mean is not None and norm.running_var is not None
        trained = any(p.requires_grad for p in norm.parameters(recurse=False))
        with torch.no_grad():
            scale = (norm.running_var + norm.eps).rsqrt()
            shift = -norm.running_mean * scale
            if norm.affine and not trained:
                scale, shift = scale * norm.weight, shift * norm.weight + norm.bias
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.num_features = norm.num_features
        self.affine = Channels(norm.weight, norm.bias) if trained else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return x, channels along its second dimension, scaled and shifted."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        return self.affine(x * self.scale.view(shape) + self.shift.view(shape))  # type: ignore[no-any-return]


class Channels(nn.Module):
    """A weight and a bias for each channel, along the second dimension.

    Apart from `FixedNorm`, since Opacus refuses a layer with parameters and buffers.
    """

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the weight, plus the bias."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        return x * self.weight.view(shape) + self.bias.view(shape)


class PlainBag(nn.Module):
    """`nn.EmbeddingBag` for bags of one length: an `nn.Embedding`, then their sum, mean or max.

    Examples
    --------
    >>> layer = nn.EmbeddingBag(5, 2, mode="sum")
    >>> words = torch.tensor([[0, 1], [2, 2]])
    >>> torch.allclose(PlainBag(layer)(words), layer(words))
    True
    """

    def __init__(self, layer: nn.EmbeddingBag) -> None:
        super().__init__()
        self.mode, self.padding_idx = layer.mode, layer.padding_idx
        self.num_embeddings, self.embedding_dim = layer.num_embeddings, layer.embedding_dim
        self.embedding = nn.Embedding(self.num_embeddings, self.embedding_dim, device="meta")
        self.embedding.weight = layer.weight

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return a row for each bag of `input`, of shape (bags, length).

        ValueError for bags given by `offsets`: their words are rows that are not the examples.
        """
        if offsets is not None or input.dim() != 2:
            raise ValueError(
                "input must be bags of one length, of shape (bags, length), got shape "
                f"{tuple(input.shape)}{'' if offsets is None else ' and offsets'}: pad the bags, "
                "with a padding_idx"
            )
        words = self.embedding(input)
        kept = torch.ones_like(input, dtype=torch.bool)
        if self.padding_idx is not None:
            kept = input != self.padding_idx
        if self.mode == "max":
            words = words.masked_fill(~kept.unsqueeze(-1), -torch.inf)
            found: Tensor = words.max(1).values
            return found.masked_fill(~kept.any(1, keepdim=True), 0.0)
        weights = kept.to(words.dtype)
        if per_sample_weights is not None:
            weights = weights * per_sample_weights
        total: Tensor = (words * weights.unsqueeze(-1)).sum(1)
        if self.mode == "mean":
            total = total / weights.sum(1, keepdim=True).clamp(min=1.0)
        return total
