# SPDX-License-Identifier: Apache-2.0
"""Layers that cannot be trained with per-example gradients, by name and with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from dpftrl_fast._validate import choice, flag, optional
from dpftrl_fast.torch.gradients.opacus_layers import is_opacus, objections

GradSampleMode = Literal["auto", "hooks", "functorch", "vmap"]

_MIXES = (
    "its output for an example depends on the other examples of the batch, so that no clipping "
    "bounds what one example does; use dpftrl_fast.torch.fix_model, which makes it a GroupNorm, or "
    "eval() on a pretrained one, before make_private and after each train()"
)
_KEEPS = (
    "it keeps statistics of the data in buffers, outside of the noise: use track_running_stats="
    "False, as dpftrl_fast.torch.fix_model sets it"
)
_RENORMED = (
    "it changes its weights in each forward pass by which rows are read, outside of the noise: "
    "max_norm=None"
)
_SPARSE = "its gradients are sparse: sparse=False"
_LAZY = "its shape is not known yet: run the model once on an input of zeros"
_RECURRENT = (
    "its steps through time cannot be taken for each example alone: use dpftrl_fast.torch."
    "fix_model, which makes it the DPLSTM, DPGRU or DPRNN of opacus.layers"
)
_ATTENDS = (
    "its four layers are fused, so that hooks see none of them: use dpftrl_fast.torch.fix_model, "
    "which makes them linear layers, or grad_sample_mode='vmap'"
)
_SEVERAL = (
    "Opacus has no per-example gradients for it, or wrong ones: grad_sample_mode='vmap' has them"
)
_COUNTS = (
    "its gradients are divided by counts over the batch: scale_grad_by_freq=False, or "
    "grad_sample_mode='vmap', which counts within an example"
)
_REMADE = (
    "it makes a weight from parameters and buffers before each forward pass: remove the "
    "parametrization (torch.nn.utils.parametrize.remove_parametrizations)"
)
_RANDOM = (
    "it has a parameter of its own, for which Opacus takes all of it, dropout too, by torch.func, "
    "which refuses random numbers there: move the parameter to a layer, or grad_sample_mode='vmap'"
)
_BATCH_DIM = "its batch_first must be that of make_private, {expected}, got {got}"
_GHOST = (
    "grad_sample_mode='ghost' is not offered: ghost clipping gets an example's norm in one pass "
    "and its part of the sum in another, with roundings of their own, so that nothing bounds its "
    "part by clip_norm for certain, and an example that is not finite spoils the whole sum "
    "(docs/torch/gradients.md); hand out the batch in pieces instead (loader.in_pieces)"
)


def check_mode(mode: Any) -> GradSampleMode:
    """Return `mode` if it is a way of making per-example gradients, else raise ValueError."""
    if mode == "ghost":
        raise ValueError(_GHOST)
    known: GradSampleMode = choice("grad_sample_mode", mode, get_args(GradSampleMode))
    return known


def label_of(name: str, layer: nn.Module) -> str:
    """Return how a layer is named in messages.

    Examples
    --------
    >>> label_of("head", nn.Linear(2, 1)), label_of("", nn.Linear(2, 1))
    ('head (Linear)', 'the model (Linear)')
    """
    return f"{name or 'the model'} ({type(layer).__name__})"


def incompatible_layers(
    model: nn.Module, mode: GradSampleMode = "hooks", *, batch_first: bool | None = None
) -> list[str]:
    """Return the layers of a model that cannot be trained privately, one sentence a layer.

    With the modes "hooks" and "functorch" this includes layers that Opacus refuses or computes
    wrongly; `batch_first` is whether examples are along the first dimension of every layer's input.
    A custom layer that mixes the examples of a batch cannot be recognised by its type: see
    `gradients.rows`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    >>> incompatible_layers(model)[0][:17]
    '1 (BatchNorm1d): '
    """
    check_mode(mode)
    first = optional(flag, "batch_first", batch_first)
    return [
        f"{label_of(name, layer)}: {reason}"
        for name, layer in model.named_modules()
        for reason in _reasons(layer, mode, first)
    ]


def check_layers(
    model: nn.Module, mode: GradSampleMode = "hooks", *, batch_first: bool | None = None
) -> None:
    """Raise ValueError that names the layers which `incompatible_layers` finds."""
    found = incompatible_layers(model, mode, batch_first=batch_first)
    if found:
        listed = "\n- ".join(found)
        raise ValueError(f"the model must have layers that treat examples apart, got\n- {listed}")


def is_constant(layer: _BatchNorm) -> bool:
    """Whether a BatchNorm layer is in evaluation mode, in which it does not look at the batch."""
    return not layer.training and layer.running_mean is not None


def _reasons(layer: nn.Module, mode: str, batch_first: bool | None) -> Iterator[str]:
    if isinstance(layer, _BatchNorm) and not is_constant(layer):
        yield _MIXES
        return
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        yield _KEEPS
        return
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        if layer.max_norm is not None:
            yield _RENORMED
        if layer.sparse:
            yield _SPARSE
    own = list(layer.parameters(recurse=False))
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in own):
        yield _LAZY
    recurrent = isinstance(layer, (nn.RNNBase, nn.RNNCellBase))
    if mode == "vmap":
        if recurrent and not isinstance(layer, nn.LSTM):
            yield _RECURRENT
    elif recurrent and _trained(own):
        yield _RECURRENT
    elif isinstance(layer, nn.MultiheadAttention) and _trained(layer.parameters()):
        yield _ATTENDS
    else:
        yield from _of_opacus(layer, own, mode, batch_first)


def _of_opacus(
    layer: nn.Module, own: list[nn.Parameter], mode: str, batch_first: bool | None
) -> Iterator[str]:
    """Yield the reasons for which Opacus's hooks give wrong gradients of a layer."""
    from dpftrl_fast.torch.gradients.formulas import has_formula

    if not _trained(layer.parameters()):
        return
    if is_opacus(layer, "DPMultiheadAttention", "SequenceBias") and batch_first is not None:
        got: bool = layer.batch_first  # type: ignore[assignment]
        if got != batch_first:
            yield _BATCH_DIM.format(expected=batch_first, got=got)
    if is_remade(layer) and next(layer.buffers(), None) is not None:
        yield _REMADE
        return
    if not _trained(own):
        return
    if not isinstance(layer, _BatchNorm):
        yield from objections(layer)
    inner = [module for child in layer.children() for module in child.modules()]
    alone = not has_formula(layer) and not any(_trained(c.parameters()) for c in layer.children())
    if alone and any(isinstance(module, _DropoutNd) and module.p > 0.0 for module in inner):
        yield _RANDOM
    if isinstance(layer, (nn.EmbeddingBag, nn.Bilinear)):
        yield _SEVERAL
    elif isinstance(layer, nn.Embedding) and layer.scale_grad_by_freq:
        yield _COUNTS


def is_remade(layer: nn.Module) -> bool:
    """Whether a weight of a layer is made from parameters in each forward pass (weight_norm)."""
    if is_parametrized(layer):
        return True
    made = (name for name, v in vars(layer).items() if isinstance(v, Tensor) and not v.is_leaf)
    return any(key.startswith(f"{name}_") for name in made for key in layer._parameters)


def _trained(parameters: Iterable[nn.Parameter]) -> bool:
    return any(p.requires_grad for p in parameters)
