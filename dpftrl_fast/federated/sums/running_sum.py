# SPDX-License-Identifier: Apache-2.0
"""`RunningSum`: the sum of all rounds so far plus the plan's noise.

The sum of the clipped updates is kept in integers, and the noise is added in integers (see
`dpftrl_fast.federated.sums.grid`): neither the order of clients nor a resumption changes a bit. The
noisy sum is rounded to the grid of the noise (`PlannedNoise.grid`) before it is released, which
hides the low-order bits that noise of limited precision does not mask.

A block is a stretch of rounds with noise of its own: one tree, or the rounds between two restarts
of another mechanism. Where the clip norm changes from block to block, each block has its own key
and the standard deviation for its clip norm. The noised sums of each block are released separately,
and the last one of each earlier block, already released, is added to them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.federated.sums.grid import noisy_sum
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import to_grid

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]


def block_key(key: bytes, purpose: Literal["tree", "clip-norm"], block: int) -> bytes:
    """Return the key of one block's noise ("tree"), or of the estimate at its end."""
    label = b"dpftrl_fast/federated/" + purpose.encode() + b"/v1\x00"
    return hashlib.sha256(label + key + block.to_bytes(8, "little")).digest()


def block_noise(
    plan: PrivacyPlan, block: int, size: int, clip_norm: float, key: bytes, **options: Any
) -> PlannedNoise:
    """Return the noise of block `block` (from 0) of a plan, for `clip_norm`, not the plan's.

    The block's key is derived from that of the run; `options` are ``dtype``, ``memory`` and
    ``threads`` of :meth:`dpftrl_fast.PrivacyPlan.noise`.
    """
    layout = plan.layout
    only = layout.between(layout.steps_before(block) + 1, layout.steps_before(block + 1))
    spec = replace(plan.noise_spec, clip_norm=clip_norm, layout=only)
    return spec.source(size, key=block_key(key, "tree", block), **options)


class RunningSum:
    """s_t + n_t, round after round: holds un-noised sums, a secret.

    `noise` is that of the whole run, or of its first block if others follow by `replace_noise`;
    `unit`, a power of two, the value of the integer 1.
    """

    def __init__(self, noise: PlannedNoise, unit: float) -> None:
        self._noise, self._unit = noise, unit
        self._sum: Ints = np.zeros(noise.size, np.int64)
        self._base: Vector | None = None
        self._value: Vector = np.zeros(noise.size)
        self._change: Vector = np.zeros(noise.size)
        self._room = np.empty(noise.size, noise.dtype)

    @property
    def value(self) -> Vector:
        """s_t + n_t after the last step, zeros before the first; to be read only."""
        return self._value

    @property
    def change(self) -> Vector:
        """The last step's value minus the one before; to be read only."""
        return self._change

    def step(self, total: Ints) -> None:
        """Add the sum of a round, and the noise of the next step of the plan."""
        before, self._value = self._value, self._change
        self._sum += total
        value = self._noisy(self._noise.step(self._room), self._value)
        if self._base is not None:
            value += self._base
        self._change = np.subtract(value, before, out=before)

    def replace_noise(self, noise: PlannedNoise, unit: float, *, ended: bool = False) -> None:
        """Continue with other noise; the noised sum so far stays in the running sum.

        With `ended`, the current block has ended and its noise there stays, that of a completed
        tree included; otherwise that of the last step stays.
        """
        last = self._noise.carried() if ended else self._noise.current()
        carried = self._noisy(last, np.empty(noise.size))
        self._base = carried if self._base is None else self._base + carried
        self._sum.fill(0)
        self._noise, self._unit = noise, unit

    def _noisy(self, noise: NDArray[Any], out: Vector) -> Vector:
        return to_grid(noisy_sum(self._sum, noise, self._unit, out), self._noise.grid)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, a secret: the arrays themselves, no copies, and the noise's state."""
        return {
            "sum": self._sum,
            "base": self._base,
            "value": self._value,
            "noise": self._noise.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same noise and unit."""
        self._noise.load_state_dict(state["noise"])
        self._sum, self._base, self._value = state["sum"], state["base"], state["value"]

    def __reduce__(self) -> Any:
        raise TypeError("RunningSum holds un-noised sums and a secret key: not copied nor pickled")
