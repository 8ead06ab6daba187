# SPDX-License-Identifier: Apache-2.0
"""`FlatNoise`: the noise of a plan on this rank's coordinates of one vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast._validate import equal, flag, integer, shown
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed, key_of_seed
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import residual_grid
from dpftrl_fast.run.account import RunAccount

_STATE = ("ranges", "steps_taken", "common", "vectors")
_OWN = ("size", "offset", "vectors")  # of a piece; the rest of a state is that of all pieces


class FlatNoise:
    """One noise vector over several ranges of coordinates, all under one key.

    Parameters
    ----------
    plan : PrivacyPlan or RunAccount
        Source of the noise; for an account, of its present stretch.
    ranges : sequence of (int, int)
        First coordinate and number of each; a rank may have none.
    device : torch.device
        Where the noise is made; ValueError if there is no source for it.
    dtype, memory, threads, seed, key
        As for :meth:`dpftrl_fast.PrivacyPlan.noise`; at most one of `seed` and `key`.

    Attributes
    ----------
    grid : float
        Power of two to whose multiples a sum with this noise is rounded before its release.
    """

    def __init__(
        self,
        plan: PrivacyPlan | RunAccount,
        ranges: Sequence[tuple[int, int]],
        *,
        dtype: Literal["float32", "float64"],
        device: torch.device,
        memory: Memory = "stored",
        threads: int | None = None,
        seed: Seed = None,
        key: bytes | None = None,
    ) -> None:
        self._steps = plan.steps
        self.grid = residual_grid(plan.noise_spec.grid(dtype), dtype)
        self._ranges = list(ranges)
        if seed is None and key is None:
            key = key_of_seed(None)  # of all ranges
        self._make = partial(_noise_on, device, plan, dtype=dtype, memory=memory, threads=threads)
        self._pieces = [
            self._make(count, offset=first, seed=seed, key=key) for first, count in ranges
        ]
        self._reproducible = seed is not None
        self._taken = 0

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all blocks."""
        return self._taken

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""
        return self._reproducible

    def step(self, out: Tensor) -> None:
        """Take a step and write the noise of the running sum into this rank's vector.

        An error leaves ranges at different steps: `Steps.changing` remembers it.
        """
        self._advance(out, "step")

    def residual(self, out: Tensor) -> None:
        """Take a step and write its noise less that of the step before; errors as for `step`."""
        self._advance(out, "residual")

    def _advance(self, out: Tensor, call: Literal["step", "residual"]) -> None:
        parts = torch.split(out, [count for _, count in self._ranges])
        for piece, part in zip(self._pieces, parts, strict=True):
            getattr(piece, call)(part)
        self._taken += 1

    def release(
        self, pieces: NDArray[np.int64], at: NDArray[np.int64], remainder: Tensor, divisor: int
    ) -> None:
        """Take a step and release sums in place, as :meth:`PlannedNoise.release`, on the CPU.

        `remainder` is this rank's vector, of which `pieces` are parts. Errors as for `step`.
        """
        parts = torch.split(remainder, [count for _, count in self._ranges])
        first = 0
        for part, source in zip(parts, self._pieces, strict=True):
            last = first + part.numel()
            found = slice(
                np.searchsorted(pieces[:, 1], first, "right"),
                np.searchsorted(pieces[:, 0], last),
            )
            start, stop, doubles = pieces[found].T
            cut = np.maximum(first - start, 0)  # of a piece that begins in the range before
            own = np.stack([start + cut, np.minimum(stop, last), doubles], axis=1)
            own[:, :2] -= first
            width = np.where(doubles == 1, 8, 4)
            source.release(own, at[found] + width * cut, part.numpy(), divisor=divisor)
            first = last
        self._taken += 1

    def so_far(self, out: Tensor) -> None:
        """Write the noise now in the running sum: the last output of `step`, or 0 before it."""
        parts = torch.split(out, [count for _, count in self._ranges])
        for piece, part in zip(self._pieces, parts, strict=True):
            part.copy_(torch.as_tensor(piece.current()))

    def state_dict(self) -> dict[str, Any]:
        """Return the state, **a secret**: numbers, strings, lists, and tensors under "vectors".

        Without vectors, as for a tree with memory="regenerate", it is a few hundred bytes for any
        number of ranges. Toeplitz noise always saves the noise of the running sum, if `step` was
        called.
        """
        states = [piece.state_dict() for piece in self._pieces]
        first = states[0] if states else {}
        return {
            "ranges": [list(pair) for pair in self._ranges],
            "steps_taken": self._taken,
            "common": {name: first[name] for name in first if name not in _OWN},
            "vectors": [
                [[*head, torch.from_numpy(vector)] for *head, vector in state["vectors"]]
                for state in states
                if state["vectors"]
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Continue from a state of `state_dict`, as :meth:`dpftrl_fast.TreeNoise.load_state_dict`.

        A state of other ranges or another plan, broken, or behind this object's position is refused
        with a TypeError or ValueError; nothing has changed then.
        """
        fork = flag("allow_fork", allow_fork)
        check_noise_state(state)
        ranges = [list(pair) for pair in self._ranges]
        if not equal(state["ranges"], ranges):
            raise ValueError(
                f"state must be of the coordinates {ranges} of this rank, got "
                f"{shown(state['ranges'])}"
            )
        vectors = list(state["vectors"]) or [[]] * len(ranges)
        if len(vectors) != len(ranges):
            raise ValueError(f"state must have vectors of {len(ranges)} ranges, got {len(vectors)}")
        if not self._pieces:
            self._load_count(state["steps_taken"], fork)
            return
        if state["common"].get("key") is None:
            raise ValueError("state must have its key, got none")
        states = [
            {
                **state["common"],
                "size": count,
                "offset": first,
                "vectors": [(*head, vector.cpu().numpy()) for *head, vector in kept],
            }
            for (first, count), kept in zip(self._ranges, vectors, strict=True)
        ]
        # The first piece knows whether the state lies behind; it is changed when no other refuses.
        others = [self._make(count, offset=first) for first, count in self._ranges[1:]]
        for piece, own in zip(others, states[1:], strict=True):
            piece.load_state_dict(own)
        self._pieces[0].load_state_dict(states[0], allow_fork=fork)
        self._pieces[1:] = others
        self._taken = self._pieces[0].steps_taken
        self._reproducible = self._pieces[0].reproducible

    def _load_count(self, taken: Any, allow_fork: bool) -> None:
        """Take up the position where this rank has no coordinates."""
        steps = integer("steps_taken", taken, 0, self._steps)
        if steps < self._taken and not allow_fork:
            raise ValueError(f"state is at step {steps}, behind this object at {self._taken}")
        self._taken = steps


def to_grid_(x: Tensor, grid: float) -> Tensor:
    """Round to multiples of a power of two, in place, as :func:`dpftrl_fast.rounding.to_grid`."""
    return x.div_(grid).add_(0.5).floor_().mul_(grid)


def check_noise_state(state: Any) -> Mapping[str, Any]:
    """Return a state of `FlatNoise` if it is whole; TypeError or ValueError otherwise."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state of the noise must be a mapping, got {type(state).__name__}")
    if missing := [name for name in _STATE if name not in state]:
        raise ValueError(f"state of the noise lacks {', '.join(missing)}")
    if not isinstance(state["common"], Mapping):
        raise TypeError(f"state's common must be a mapping, got {type(state['common']).__name__}")
    vectors = state["vectors"]
    if not (
        isinstance(vectors, (list, tuple))
        and all(isinstance(kept, (list, tuple)) for kept in vectors)
        and all(
            isinstance(entry, (list, tuple)) and entry and type(entry[-1]) is Tensor
            for kept in vectors
            for entry in kept
        )
    ):
        raise TypeError(
            "state's vectors must be a list for each range, each entry with a tensor last"
        )
    return state


def _noise_on(
    device: torch.device, plan: PrivacyPlan | RunAccount, size: int, **options: Any
) -> PlannedNoise:
    if device.type == "cpu":
        return plan.noise_spec.source(size, **options)
    if device.type != "cuda":
        raise ValueError(f"parameters must lie on the CPU or on a CUDA device, got {device}")
    try:
        from dpftrl_fast.torch.device.noise import device_source_of
    except ImportError as error:
        raise ValueError(
            f"parameters on {device} need Triton, which makes their noise there, got none ({error})"
        ) from error
    spec = plan.noise_spec
    return spec.source(size, make=partial(device_source_of(spec.layout), device=device), **options)
