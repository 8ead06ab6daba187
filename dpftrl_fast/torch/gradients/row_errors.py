# SPDX-License-Identifier: Apache-2.0
"""Errors about rows of layers that are not the examples of the batch, and where they arose."""

from __future__ import annotations

from torch import Tensor, nn

from dpftrl_fast.torch.gradients.layers import label_of

_OF_ROWS, _MIXED = "_of_rows", "_mixed"  # mark errors about rows


def wrong_rows(label: str, dim: int, rows: int, x: Tensor, added: str = "") -> ValueError:
    """Return the error of a layer that does not get the rows of the batch."""
    return of_rows(
        f"{label} must get the {rows} rows of the batch{added}, got an input of shape "
        f"{tuple(x.shape)}: {advice(dim)}"
    )


def advice(dim: int) -> str:
    """Return what a model must do with its rows, and the way out."""
    place = "the second dimension" if dim else "the first dimension"
    return (
        f"with hooks, examples must be along {place} of every trained layer's input, each in its "
        "own row; grad_sample_mode='vmap' has no such limits"
    )


def of_rows(message: str, *, mixed: bool = False) -> ValueError:
    """Return an error about rows that are not examples, which `is_of_rows` recognises.

    `mixed` is whether examples depend on each other.
    """
    error = ValueError(message)
    setattr(error, _OF_ROWS, True)
    setattr(error, _MIXED, mixed)
    return error


def does_mix(error: BaseException) -> bool:
    """Whether an error says that the model mixes examples."""
    return getattr(error, _MIXED, False)


def is_of_rows(error: BaseException) -> bool:
    """Whether an error is one of this package about rows, and not one of the model."""
    return getattr(error, _OF_ROWS, False)


def layer_of(network: nn.Module, error: Exception) -> str:
    """Name the innermost layer in which an error was raised."""
    names = {id(layer): name for name, layer in network.named_modules()}
    found, frames = "the model", error.__traceback__
    while frames is not None:
        layer = frames.tb_frame.f_locals.get("self")
        if isinstance(layer, nn.Module) and id(layer) in names:
            found = label_of(names[id(layer)], layer)
        frames = frames.tb_next
    return found


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an error.

    Examples
    --------
    >>> first_sentence(ValueError("x is 3. Take 4."))
    'x is 3'
    """
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
