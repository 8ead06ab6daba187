# SPDX-License-Identifier: Apache-2.0
"""`RunningSum`: un-noised running sums beside the noise of a plan, and what is released of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import equal
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.rounding import noisy_sum, two_sum

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

# Numbers of a stretch of steps that is made at once: they stay in the cache.
_STRETCH = 1 << 15


class RunningSum:
    """The sum of all steps, a secret, and the value that was released last.

    The sum is kept with its rounding errors. Released values are on the grid of the noise and
    numbers of its dtype. `records` is the number of records in the sum, `released` the last value
    with the number of records up to it. With `history` those of all steps are kept.
    """

    def __init__(self, noise: PlannedNoise, *, history: bool = False) -> None:
        self.noise = noise
        self._history: list[tuple[Floats, Counts]] | None = [] if history else None
        self.records = 0
        self.released: tuple[Floats, int] = np.zeros(noise.size), 0
        self._sum: Floats = np.zeros(noise.size)
        self._low: Floats = np.zeros(noise.size)  # the rounding errors of _sum

    def take(self, step_sum: Floats, records: int) -> Floats:
        """Take one step with this sum of its contributions; return the released running sum.

        An interruption can lose the step's contributions, but takes no step too many: the noise's
        own position counts the steps.
        """
        total, error = two_sum(self._sum, step_sum)
        low, count = self._low + error, self.records + records
        noise = self.noise.step()
        self._sum, self._low, self.records = total, low, count
        with np.errstate(all="ignore"):
            value = noisy_sum(total, low, noise, self.noise.grid)
            value = value.astype(self.noise.dtype).astype(np.float64)
        self._release(value[None], np.array([count]))
        return value

    def take_all(self, step_sums: Floats, records: Counts) -> Floats:
        """Take one step for each row, as calls of `take` do; return the released sum of each."""
        from dpftrl_fast.kernels.stream_sums import running_sums

        steps, size = step_sums.shape
        released = np.empty((steps, size))
        stretch = max(1, _STRETCH // size)
        for start in range(0, steps, stretch):
            part, out = (x[start : start + stretch] for x in (step_sums, released))
            total, low = self._sum.copy(), self._low.copy()
            counts = self.records + np.cumsum(records[start : start + stretch])
            noise = self.noise.next_steps(len(part))
            running_sums(part, noise, self.noise.grid, total, low, out)
            self._sum, self._low, self.records = total, low, int(counts[-1])
            self._release(out, counts)
        return released

    def _release(self, values: Floats, counts: Counts) -> None:
        if self._history is not None:
            self._history.append((values.copy(), counts))
        self.released = values[-1].copy(), int(counts[-1])

    @property
    def history(self) -> tuple[Floats, Counts]:
        """Released values of all steps, and the number of records up to each."""
        if self._history is None:
            raise ValueError("the sums of earlier steps are kept with history=True, got False")
        if len(self._history) != 1:
            size = self.noise.size
            none: tuple[Floats, Counts] = np.zeros((0, size)), np.zeros(0, np.int64)
            parts = zip(none, *self._history, strict=True)
            values, counts = (np.concatenate(part) for part in parts)
            self._history = [(values, counts)]
        return self._history[0]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, **a secret**: the un-noised sum, and the noise with its key."""
        value, count = self.released
        values, counts = (None, None) if self._history is None else self.history
        return {
            "sum": self._sum.copy(),
            "low": self._low.copy(),
            "records": self.records,
            "value": value.copy(),
            "value_records": count,
            "values": values,
            "counts": counts,
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of :meth:`state_dict`."""
        self.noise.load_state_dict(state["noise"])
        self._sum, self._low, value = (
            np.array(state[name], np.float64) for name in ("sum", "low", "value")
        )
        self.records = state["records"]
        self.released = value, state["value_records"]
        if state["values"] is not None:
            self._history = [(np.array(state["values"]), np.array(state["counts"]))]

    def continues(self, noise: PlannedNoise) -> None:
        """Go on with another source, which has the key and the position of the present one."""
        if not equal(noise.steps_taken, self.noise.steps_taken):
            raise ValueError(
                f"noise must be at step {self.noise.steps_taken}, got one at {noise.steps_taken}"
            )
        self.noise = noise


def refuse_fork(process: tuple[int, int], reproducible: bool) -> None:
    """Refuse a call in a fork of the process with this mark, which has the same key.

    The noise refuses its own steps there; a later end or a folder would take it to another object.
    """
    if not reproducible and process != process_mark():
        raise RuntimeError(
            "this process was forked from one that holds the same key: both would add the same "
            "noise to different sums. Continue in that process, or keep the stream in a folder, "
            "close it there and open the folder here"
        )
