# SPDX-License-Identifier: Apache-2.0
"""`noise_so_far`: what a tree of noise has put on the running sum, made once more."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.noise.tree import TreeNoise


def noise_so_far(noise: TreeNoise) -> NDArray[Any]:
    """Return what is on the running sum now, carry + b_t, again: a restart leaves it there.

    Parameters
    ----------
    noise : TreeNoise
        Is not changed.

    Returns
    -------
    ndarray of shape (size,)
        The bits that `step` last returned (or would have, where `residual` was called); zeros
        before the first step.

    Examples
    --------
    >>> noise = TreeNoise(2, 1.0, seed=0)
    >>> last = [noise.step() for _ in range(3)][-1]
    >>> bool((noise_so_far(noise) == last).all())
    True
    """
    state = noise.state_dict()
    ends = [end for end, count in state["earlier_trees"] for _ in range(count)]
    tree, t = noise.tree, noise.t
    if t == 0:  # nothing of this tree is on a sum yet
        tree, t = state["last_returned"] or (0, 0)
    if t == 0:
        return np.zeros(noise.size, noise.dtype)
    again = TreeNoise(
        noise.size,
        noise.std,
        variant=noise.variant,  # type: ignore[arg-type]
        memory="regenerate",
        dtype=noise.dtype.name,  # type: ignore[arg-type]
        rounds=noise.rounds,
        threads=noise.threads,
        offset=noise.offset,
        purpose=state["purpose"],
    )
    before = {"t": t - 1, "earlier_trees": [[end, 1] for end in ends[:tree]]}
    again.load_state_dict({**state, **before, "last_returned": None, "vectors": []})
    found: NDArray[Any] = again.step()
    return found
