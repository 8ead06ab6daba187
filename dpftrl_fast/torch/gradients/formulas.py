# SPDX-License-Identifier: Apache-2.0
"""Per-example gradients of one layer, from its inputs and the gradients of its outputs.

Opacus has a formula for each kind of layer. Linear layers and embeddings, which hold most of the
parameters of a transformer, have formulas here that write where the gradients are to be. All other
layers run once more, for each example alone, by ``torch.func``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from dpftrl_fast.torch.gradients.opacus_layers import opacus_formula

Formula = Callable[[Any, Tensor, Tensor, Mapping[str, Tensor]], dict[str, Tensor]]


def formula_of(layer: nn.Module, *, functorch: bool = False, first: int = 0) -> Formula:
    """Return the per-example gradients of a layer's trained parameters as a function.

    ``formula(layer, x, g, room)`` gets inputs and gradients of outputs whose first dimension is
    that of the examples, and returns a tensor of shape (examples, *p.shape) for each name of a
    parameter. ``room`` may have a tensor for it to be written to. With `functorch` no formula is
    used; `first` is the dimension of examples that the layer itself expects.

    Examples
    --------
    >>> layer = nn.Linear(2, 1)
    >>> formula_of(layer)(layer, torch.eye(2), torch.ones(2, 1), {})["weight"].tolist()
    [[[1.0, 0.0]], [[0.0, 1.0]]]
    """
    known = None if functorch or _has_setting(layer) else _known(layer)
    return _by_examples(first) if known is None else known


def has_formula(layer: nn.Module) -> bool:
    """Whether there is a formula for this type of layer."""
    return _known(layer) is not None


def _known(layer: nn.Module) -> Formula | None:
    kind = type(layer)  # a subclass may compute something else
    own = _OWN.get(kind)
    if (
        own is None
        and kind.__name__ == "Conv1D"
        and kind.__module__ == "transformers.pytorch_utils"
    ):
        own = _linear_of(transposed=True)
    if own is not None:
        return own
    known = opacus_formula(layer)
    return None if known is None else _of_opacus(known)


def plain(x: Tensor) -> Tensor:
    """Return x with the strides of a new tensor: a view of it, or a copy where it needs one.

    Opacus's ``unfold2d`` (1.6.0) computes the strides of an image from its shape: for inputs in
    another layout (channels_last, transposed, expanded) it reads the wrong elements, even those of
    another example. ``contiguous`` alone leaves any strides to dimensions of size 1, from which
    ``F.pad`` concludes that channels are innermost.
    """
    return x.contiguous().view(-1).view(x.shape)


def _has_setting(layer: Any) -> bool:
    """Whether a layer has a setting that its formula in Opacus ignores."""
    if type(layer) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        unpadded = layer.padding in ("valid", (0,) * len(layer.kernel_size))
        return layer.padding_mode != "zeros" and not unpadded
    return False


def _of_opacus(known: Callable[..., Any]) -> Formula:
    def formula(layer: Any, x: Tensor, g: Tensor, room: Mapping[str, Tensor]) -> dict[str, Tensor]:
        names = {id(p): name for name, p in layer.named_parameters(recurse=False)}
        with torch.no_grad():
            found = known(layer, [plain(x)], plain(g))
        return {names[id(p)]: sample for p, sample in found.items()}

    return formula


def _linear_of(*, transposed: bool) -> Formula:
    """Return the formula of a linear layer; transformers' ``Conv1D`` has its weight transposed."""

    def formula(layer: Any, x: Tensor, g: Tensor, room: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found, (x, g) = {}, _as_rows(x, g)
        if layer.weight.requires_grad:
            pair = (x, g) if transposed else (g, x)
            found["weight"] = _product(*pair, room.get("weight"))
        if layer.bias is not None and layer.bias.requires_grad:
            found["bias"] = g.sum(1)
        return found

    return formula


def _as_rows(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Return both with shape (examples, positions, features) and one dtype."""
    dtype = torch.promote_types(x.dtype, g.dtype)
    rows = len(x)
    return (
        x.to(dtype).reshape(rows, -1, x.shape[-1]),
        g.to(dtype).reshape(rows, -1, g.shape[-1]),
    )


def _product(left: Tensor, right: Tensor, room: Tensor | None) -> Tensor:
    if room is None or room.dtype != left.dtype:
        return torch.bmm(left.transpose(1, 2), right)
    return torch.bmm(left.transpose(1, 2), right, out=room)


def _embedding(layer: Any, x: Tensor, g: Tensor, room: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rows, shape = len(x), layer.weight.shape
    out = room.get("weight")
    if out is None or out.dtype != g.dtype:
        out = g.new_empty(rows, *shape)
    out.zero_()
    at = x.reshape(rows, -1) + torch.arange(rows, device=x.device)[:, None] * shape[0]
    out.view(-1, shape[1]).index_add_(0, at.reshape(-1), g.reshape(-1, shape[1]))
    if layer.padding_idx is not None:
        out[:, layer.padding_idx] = 0.0
    return {"weight": out}


def _layer_norm(layer: Any, x: Tensor, g: Tensor, room: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found, dims = {}, tuple(range(1, x.dim() - len(layer.normalized_shape)))

    def total(t: Tensor) -> Tensor:
        return t.sum(dims) if dims else t

    if layer.weight is not None and layer.weight.requires_grad:
        found["weight"] = total(
            nn.functional.layer_norm(x, layer.normalized_shape, eps=layer.eps) * g
        )
    if layer.bias is not None and layer.bias.requires_grad:
        found["bias"] = total(g)
    return found


_OWN: dict[type, Formula] = {
    nn.Linear: _linear_of(transposed=False),
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
}


def _by_examples(first: int) -> Formula:
    """Return the formula that runs a layer for each example alone."""

    def formula(layer: Any, x: Tensor, g: Tensor, room: Mapping[str, Tensor]) -> dict[str, Tensor]:
        trained = {n: p.detach() for n, p in layer.named_parameters() if p.requires_grad}

        def one(x: Tensor, g: Tensor) -> dict[str, Tensor]:
            def run(parameters: dict[str, Tensor]) -> Tensor:
                output: Tensor = functional_call(layer, parameters, (x.unsqueeze(first),))
                return output

            output, back = vjp(run, trained)[:2]
            gradient: dict[str, Tensor] = back(g.unsqueeze(first).to(output.dtype))[0]
            return gradient

        mixed = x.is_floating_point() and x.dtype != next(iter(trained.values())).dtype
        with torch.autocast(x.device.type, x.dtype if mixed else None, enabled=mixed):
            found: dict[str, Tensor] = vmap(one)(plain(x), plain(g))
        return found

    return formula
