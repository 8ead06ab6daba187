# SPDX-License-Identifier: Apache-2.0
"""Errors about rows of layers that are not the examples of the batch."""

from __future__ import annotations

from torch import Tensor

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
