# SPDX-License-Identifier: Apache-2.0
"""`HostNoise`: key, position and remainder of a run, outside of JAX, and its steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import equal, hex_bytes, integer, optional, shown
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.planned_noise import MOST_DIVISOR, PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_HEADER = {"format": "dpftrl_fast.optax.residual_noise", "version": 1}
_MOST_STEPS = 2**31 - 1  # of the step number in the state of the transformation

#: Path and shape of each leaf, in the order of the tree.
Leaves = tuple[tuple[str, tuple[int, ...]], ...]


class HostNoise:
    """Noise of a run for sums that come leaf by leaf, one step after the other.

    Compiled functions call it with the number of the step and of the run. Whatever is not the next
    step of this run is refused, since a step's noise may be added to one sum only.

    Parameters
    ----------
    plan, batch_size, dtype, memory, threads, noise_seed, key
        As for :func:`dpftrl_fast.optax.residual_noise`.

    Attributes
    ----------
    run : ndarray of uint32, shape (4,)
        Public random number of the run.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        *,
        batch_size: int | None,
        dtype: Literal["float32", "float64"],
        memory: Memory,
        threads: int | None,
        noise_seed: Seed,
        key: bytes | None,
    ) -> None:
        if not isinstance(plan, PrivacyPlan):
            raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
        if plan.steps > _MOST_STEPS:
            raise ValueError(f"plan must have at most 2^31 - 1 steps, got {plan.steps}")
        self.plan = plan
        self._batch_size = optional(integer, "batch_size", batch_size, 1, MOST_DIVISOR)
        self._divisor = self._batch_size or 1
        self._options: dict[str, Any] = {
            "seed": noise_seed, "key": key, "dtype": dtype, "memory": memory, "threads": threads
        }  # fmt: skip
        #: Of the noise.
        self.dtype = str(plan.noise(1, **self._options).dtype)  # refuses wrong options, too
        self.run = np.frombuffer(os.urandom(16), np.uint32)
        self._turn = threading.RLock()
        self._leaves: Leaves | None = None
        self._source: PlannedNoise | None = None

    # ---- Leaves ----

    def start(self, leaves: Leaves) -> None:
        """Make the source for leaves of these paths and shapes; later calls check them.

        Raises
        ------
        ValueError
            If there are no coordinates, or the leaves are not those of the first call.
        """
        with self._turn:
            if self._leaves is not None:
                self._check_leaves(leaves)
                return
            sizes = [int(np.prod(shape, dtype=np.int64)) for _, shape in leaves]
            if not sum(sizes) > 0:
                raise ValueError("expected parameters with at least one coordinate, got none")
            self._source = self.plan.noise(sum(sizes), **self._options)
            self._options = {}  # holds a key or a seed
            self._leaves = leaves
            ends = np.cumsum(sizes, dtype=np.int64)
            self._pieces = np.stack([ends - sizes, ends, np.zeros_like(ends)], axis=1)
            self._remainder = np.zeros(sum(sizes), self._source.dtype)

    def _check_leaves(self, leaves: Leaves) -> None:
        own = self._leaves
        if leaves == own:
            return
        assert own is not None
        theirs, ours = (
            ", ".join(f"{path or 'array'} {shape}" for path, shape in pair)
            for pair in (set(leaves) - set(own), set(own) - set(leaves))
        )
        raise ValueError(
            "expected the leaves that this noise began with, of which each coordinate has its own "
            f"noise: got {theirs or 'another order'} instead of {ours or 'the first order'}"
        )

    def _started(self) -> PlannedNoise:
        if self._source is None:
            raise ValueError("expected a call of init(params) before, got none")
        return self._source

    # ---- Steps ----

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all blocks."""
        with self._turn:
            return 0 if self._source is None else self._source.steps_taken

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""
        source = self._source
        return self._options["seed"] is not None if source is None else source.reproducible

    def called(self, arguments: Sequence[NDArray[Any]], results: Sequence[NDArray[Any]]) -> None:
        """Take a step: arguments are its number, the run and the sums; results the next and theirs.

        Raises
        ------
        ValueError
            If it is not the next step of this run. Nothing has changed then.
        """
        step, run, *sums = arguments
        following, *noisy = results
        with self._turn:
            source = self._started()
            self._check_turn(int(step.reshape(())), run.reshape(-1))
            for own, out in zip(sums, noisy, strict=True):
                if own.ctypes.data != out.ctypes.data:  # else XLA gave one buffer for both
                    np.copyto(out, own)
            self._pieces[:, 2] = [out.dtype == np.float64 for out in noisy]
            at = np.array([out.ctypes.data for out in noisy], np.int64)
            source.release(self._pieces, at, self._remainder, divisor=self._divisor)
            following[...] = source.steps_taken

    def _check_turn(self, step: int, run: NDArray[np.uint32]) -> None:
        taken = self.steps_taken
        if not np.array_equal(run, self.run):
            raise ValueError(
                "the state is of another run than this noise: begin with init(params), or load "
                "the noise that was saved with the state"
            )
        if step < taken:
            raise ValueError(
                f"the state is at step {step}, but this noise has taken step {taken}: a second sum "
                "with the same noise would show the difference of the two. Use each state once, "
                "and on several devices axis_name= or transport='callback'"
            )
        if step > taken:
            raise ValueError(
                f"the state is at step {step}, but this noise only at step {taken}: load the noise "
                "that was saved with the state"
            )

    # ---- States ----

    def state_dict(self) -> dict[str, Any]:
        """Return key, position, vectors and remainder: **a secret**."""
        with self._turn:
            source = self._started()
            return {
                **_HEADER,
                **self._identity(),
                "run": self.run.tobytes().hex(),
                "noise": source.state_dict(),
                "remainder": self._remainder.copy(),
            }

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of `state_dict`; nothing is changed if it is refused."""
        with self._turn:
            source = self._started()
            if not isinstance(state, Mapping):
                raise TypeError(f"state must be a mapping, got {type(state).__name__}")
            expected = {**_HEADER, **self._identity()}
            rest = ("run", "noise", "remainder")
            if missing := [name for name in (*expected, *rest) if name not in state]:
                raise ValueError(f"state lacks {', '.join(missing)}")
            for name, own in expected.items():
                if not equal(state[name], own):
                    raise ValueError(
                        f"state has {name} {shown(state[name])}, but this object has {shown(own)}"
                    )
            run = np.frombuffer(hex_bytes("state's run", state["run"], 16), np.uint32)
            remainder = np.asarray(state["remainder"])
            if (remainder.dtype, remainder.shape) != (source.dtype, (source.size,)):
                raise ValueError(
                    f"state's remainder must be of {source.dtype} and shape {(source.size,)}, got "
                    f"{remainder.dtype} and {remainder.shape}"
                )
            source.load_state_dict(state["noise"], allow_fork=allow_fork)
            self._remainder[...] = remainder
            self.run = run

    def _identity(self) -> dict[str, Any]:
        assert self._leaves is not None
        return {
            "plan": self.plan.to_dict(),
            "leaves": [[path, list(shape)] for path, shape in self._leaves],
            "batch_size": self._batch_size,
        }
