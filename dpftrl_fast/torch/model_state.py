# SPDX-License-Identifier: Apache-2.0
"""`model_state_dict`: the part of a trained model that may be released; `unwrap`: its network."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from dpftrl_fast.torch.flat.tensors import is_sharded
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule


def model_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's parameters and buffers, on the CPU, which may be released.

    They are private if the parameters were trained under the plan only; an optimiser's own state is
    a secret. Names are those of the model itself, without the prefixes of wrappers (Opacus,
    DistributedDataParallel). DTensors of FSDP2 are gathered, for which all ranks call this.
    ValueError if a layer keeps running statistics of the data it saw: they have no noise.

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
        if getattr(layer, "running_mean", None) is not None
    ]
    if tracking:
        raise ValueError(
            "a model that is released must keep no running statistics of private data, got them in "
            f"{', '.join(tracking)}"
        )
    state = model.state_dict()
    return {name: _whole(value) for name, value in state.items() if isinstance(value, Tensor)}


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
