# SPDX-License-Identifier: Apache-2.0
"""`auto_gradients`: hooks where they are right for a model, each example alone where they are not.

Hooks are the faster way. Whether they are right is known by the layers, and by the trial of the
first pass in training mode. If that finds a use of parameters or rows that hooks cannot follow, the
network goes over to `VmapModule`'s forward pass, from that pass on. A model that mixes the examples
of a batch stays refused: with each example alone it would compute something else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.eager import Forward
from dpftrl_fast.torch.gradients.layers import incompatible_layers
from dpftrl_fast.torch.gradients.owned import check_unwrapped
from dpftrl_fast.torch.gradients.rows import hook_gradients


def auto_gradients(
    model: nn.Module,
    sums: Accumulator,
    *,
    criterion: Any = None,
    batch_first: bool = True,
    loss_reduction: str = "mean",
    chunk_size: int | None = None,
) -> Callable[[], Any]:
    """Choose the way of a model's per-example gradients, and print the choice to stderr.

    Parameters
    ----------
    model : nn.Module
        Trained as it is, by its usual calls.
    sums : Accumulator
        Its parameters must be the model's.
    criterion, batch_first, loss_reduction, chunk_size
        As for `make_private`.

    Returns
    -------
    callable
        Takes the choice back, before the first pass.

    Raises
    ------
    ValueError
        If no way is right for the model: here, or in its first pass.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator(list(model.parameters()), FlatClipping(1.0), 3, plan.guard())
    >>> undo = auto_gradients(model, sums)
    >>> undo()
    """
    check_unwrapped(model)

    def alone(reason: str) -> Forward:
        try:
            wrapper = VmapModule(
                model, criterion, sums, chunk_size=chunk_size, loss_reduction=loss_reduction
            )
        except ValueError as error:
            raise ValueError(f"{error} (and with hooks: {reason})") from error
        forward = Forward(model, wrapper.forward)
        short = reason.split("; ")[0].split(": use ")[0]  # without the advice to do this
        _tell(f"'vmap', each example alone, since with hooks {short}")
        return forward

    refused = incompatible_layers(model, "hooks", batch_first=batch_first)
    if refused:
        return alone(refused[0]).remove
    hooks = hook_gradients(model, sums, batch_first=batch_first, loss_reduction=loss_reduction)
    hooks.fall_back = lambda error: alone(str(error))
    hooks.accepted = lambda: _tell("'hooks'")
    return hooks.remove


def _tell(choice: str) -> None:
    """Print the choice, on the first of several processes."""
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_rank() > 0:
        return
    print(f"dpftrl_fast: grad_sample_mode={choice}", file=sys.stderr)
