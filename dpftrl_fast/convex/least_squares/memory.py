# SPDX-License-Identifier: Apache-2.0
"""Memory that a run of least squares needs, and its refusal where this machine has less."""

from __future__ import annotations

import os
from typing import Literal

from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.kernels.packed import packed_size
from dpftrl_fast.mechanisms import ToeplitzMechanism

_GIB = float(1 << 30)


def bytes_needed(
    plan: LeastSquaresPlan,
    p: int,
    *,
    memory: Literal["stored", "regenerate"] | int,
    itemsize: int,
    matrix: bool,
) -> int:
    """Return the bytes of the arrays of a run that grow with p^2, those of the batch left out.

    Parameters
    ----------
    plan : LeastSquaresPlan
        Its mechanism and its steps count.
    p : int
        Columns, the constant one included.
    memory
        As for `LeastSquares`.
    itemsize : int
        Bytes of a number of the noise.
    matrix : bool
        Whether a model is made of a full matrix of float64.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(1000))
    >>> one = bytes_needed(plan, 1000, memory="regenerate", itemsize=4, matrix=False)
    >>> one == 500_500 * (16 + 4 + 4)
    True
    """
    if isinstance(memory, int):
        vectors = memory
    elif memory == "regenerate":
        vectors = 1
    elif isinstance(plan.mechanism, ToeplitzMechanism):
        vectors = 2
    else:
        vectors = plan.last_leaf.bit_length() + 1
    entry = 16 + itemsize * (1 + vectors)
    return packed_size(p) * entry + 8 * p * p * matrix


def physical_memory() -> int | None:
    """Return the bytes of memory of this machine, None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def refuse_too_large(p: int, needed: int) -> None:
    """Refuse a run that needs more memory than this machine has, before it allocates any.

    Raises
    ------
    ValueError
        The sentence names the remedy.
    """
    there = physical_memory()
    if there is not None and needed > there:
        raise ValueError(
            f"least squares over {p} columns must fit into memory, got a need of "
            f"{needed / _GIB:.3g} GiB for sums, noise and a model of about p^2 numbers each, where "
            f"this machine has {there / _GIB:.3g} GiB: take DPFTRLRegressor, whose memory grows "
            'with p, fewer columns, or memory="regenerate"'
        )
