# SPDX-License-Identifier: Apache-2.0
"""`model_state_dict`: the part of a trained model that may be released; `unwrap`: its network."""

from __future__ import annotations

from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from dpftrl_fast.torch.flat.tensors import is_sharded
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule

#: Buffers of layers that kept running statistics when their model was made private.
_PUBLIC: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()


def model_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers, on the CPU, which may be released.

    They are private if the parameters were trained under the plan only; an optimiser's own state is
    a secret. Names are those of the model itself, without the prefixes of wrappers (Opacus,
    DistributedDataParallel). DTensors of FSDP2 are gathered, for which all ranks call this.
    ValueError if a layer keeps running statistics of the data it saw: they have no noise. Those of
    a pretrained layer that are as they were in `make_private` may be released, as its parameters.

    Examples
    --------
    >>> import torch
    >>> from dpftrl_fast.torch import model_state_dict
    >>> sorted(model_state_dict(torch.nn.Linear(2, 1)))
    ['bias', 'weight']
    """
    model = unwrap(model)
    tracking = [
        name
        for name, layer in model.named_modules()
        if getattr(layer, "running_mean", None) is not None and not _is_as_it_was(layer)
    ]
    if tracking:
        raise ValueError(
            "a model that is released must keep no running statistics of private data, got them in "
            f"{', '.join(tracking)}: call it on the model that make_private returned, in which "
            "such layers stay in evaluation mode"
        )
    state = model.state_dict()
    return {name: _whole(value) for name, value in state.items() if isinstance(value, Tensor)}


def remember_statistics(model: nn.Module) -> None:
    """Remember the running statistics of a model that has seen no private data yet.

    Examples
    --------
    >>> model = nn.BatchNorm1d(2).eval()
    >>> remember_statistics(model)
    >>> "running_mean" in model_state_dict(model)
    True
    """
    for layer in model.modules():
        if getattr(layer, "running_mean", None) is not None:
            # those of a later run may have seen the data of an earlier one
            _PUBLIC.setdefault(layer, _buffers(layer))


def _is_as_it_was(layer: nn.Module) -> bool:
    before, now = _PUBLIC.get(layer), _buffers(layer)
    return (
        before is not None
        and before.keys() == now.keys()
        and all(torch.equal(before[name], x) for name, x in now.items())
    )


def _buffers(layer: nn.Module) -> dict[str, Tensor]:
    named = layer.named_buffers(recurse=False)
    return {name: x.detach().to("cpu", copy=True) for name, x in named}


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside of the wrappers of `make_private`, Opacus, torch.compile and DDP.

    It is the same object that they train, to be saved, copied or evaluated.

    Parameters
    ----------
    model : nn.Module
        Wrapped any number of times, or not at all.

    Returns
    -------
    nn.Module
        The innermost network.

    Raises
    ------
    TypeError
        If `model` is no Module.

    Examples
    --------
    >>> from collections import OrderedDict
    >>> import torch
    >>> from dpftrl_fast.torch import unwrap
    >>> network = torch.nn.Linear(2, 1)
    >>> unwrap(torch.nn.Sequential(OrderedDict(_module=network))) is network
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a Module, got {type(model).__name__}")
    while True:
        if isinstance(model, VmapModule):
            model = model._module
            continue
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
            continue
        children = dict(model.named_children())
        # Of Opacus, and of torch.compile: a layer beside it, or a parameter, is part of the model.
        inner = children.get("_module", children.get("_orig_mod"))
        if inner is None or len(children) > 1 or _holds(model):
            return model
        model = inner


def _holds(model: nn.Module) -> bool:
    """Whether a module has parameters or buffers besides those of its children."""
    own = (*model.parameters(recurse=False), *model.buffers(recurse=False))
    return bool(own)


def _whole(tensor: Tensor) -> Tensor:
    if is_sharded(tensor):
        tensor = cast(Any, tensor).full_tensor()
    return tensor.detach().to("cpu", copy=True)
