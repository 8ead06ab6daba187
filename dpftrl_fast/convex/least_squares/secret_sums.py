# SPDX-License-Identifier: Apache-2.0
"""The un-noised sums of a run of least squares, and the steps that add to them.

A step is taken whole or the run ends: a batch that is half in the sums would have no guarantee.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import vector_of
from dpftrl_fast.convex.admission import Admission
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.sums import batch_sums, update_of
from dpftrl_fast.convex.least_squares.weights import weights_of
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.kernels.least_squares import MOST_ROWS
from dpftrl_fast.kernels.packed import add_packed, packed_size
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.rounding import two_sum

FloatArray = NDArray[np.float64]
_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_turn(method: _Method) -> _Method:
    """Let calls from several threads take turns; suppress floating-point errors.

    They would reveal values of rows where the caller has set NumPy to raise.
    """

    @wraps(method)
    def call(self: SecretSums, *args: Any, **named: Any) -> Any:
        with self._turn, np.errstate(all="ignore"):
            return method(self, *args, **named)

    return cast(_Method, call)


class SecretSums(ABC):
    """Sums of x x^T and y x over the steps of a plan; calls from several threads take turns.

    Parameters
    ----------
    plan : LeastSquaresPlan
        Bounds and participation.
    p : int
        Columns, with the constant one.

    Attributes
    ----------
    admission : Admission
        Checks the users of each step; its `write_ahead` is for the journal of a run.
    """

    sums_follow_model = False

    def __init__(self, plan: LeastSquaresPlan, p: int) -> None:
        self.plan = plan
        self._update = update_of(plan, p)
        self._p, self._t, self._process = p, 0, process_mark()
        self._whole, self._turn = True, threading.RLock()
        self.admission = Admission(plan.bias)
        size = packed_size(p)
        self._total, self._low = np.zeros(size), np.zeros(size)
        self._bias, self._bias_low, self._batch_bias = np.zeros((3, plan.bias_size(p)))

    @property
    def steps_taken(self) -> int:
        """Steps taken."""
        return self._t

    @property
    @abstractmethod
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""

    @in_turn
    def step(self, batch: Batch) -> None:
        """Take one step with a batch of rows.

        Parameters
        ----------
        batch : Batch
            Rows and targets; no rows give zeros. Values are never refused: a row with a number
            that is not finite, in x or y, counts as zero. Rows of one user (`starts`) have a common
            weight, see :func:`dpftrl_fast.convex.least_squares.weights.weights_of`. With their
            `ids`, the guard of the plan checks the users, in all steps of a run or in none.

        Raises
        ------
        TypeError, ValueError
            For types, dtypes, shapes and layouts. Nothing has changed then.
        RuntimeError
            If all declared steps are taken, an earlier step was interrupted, or the process is a
            fork of the one that made the engine.
        """
        self._check_turn()
        ids = None if batch.starts is None else batch.ids
        apart = batch.starts is not None or self.admission.write_ahead is not None
        if apart or len(batch.y) > MOST_ROWS:
            bias, packed = batch_sums(self.plan, batch)  # one addition to the sums, as for them
            vector_of("bias", bias, self._bias.size, (np.dtype(np.float64),))
            self.admission.admit(self._t + 1, ids, bias, packed)
            self.step_sums(bias, packed)
            return
        self.admission.admit(self._t + 1, ids)
        before = self._before_step()
        weights = weights_of(self.plan, batch)
        self._whole = False
        try:
            self._update.add(batch.X, batch.y, self._total, self._low, self._batch_bias, weights)
        except (TypeError, ValueError):  # the call was refused
            self._whole = True
            raise
        self._finish(self._batch_bias, before)

    @in_turn
    def step_sums(self, bias: FloatArray, packed: FloatArray) -> None:
        """Take one step with the sums of a batch, as `batch_sums` returns them.

        The models are those of `step` with the rows, to the bit, and so are the errors.
        """
        self._check_turn()
        vector_of("bias", bias, self._bias.size, (np.dtype(np.float64),))
        before = self._before_step()
        self._whole = False
        try:
            add_packed(packed, self._total, self._low)
        except (TypeError, ValueError):
            self._whole = True
            raise
        self._finish(bias, before)

    def summing(self) -> Callable[[Batch], tuple[FloatArray, FloatArray]]:
        """Return the function that sums a batch, in any process; it holds public facts only."""
        return partial(batch_sums, self.plan)

    def advance(self, sums: tuple[FloatArray, FloatArray]) -> None:
        """Take one step with the sums that `summing` made of a batch; they may be unaligned."""
        self.step_sums(*(np.require(part, requirements=["C", "A"]) for part in sums))

    def _check_turn(self) -> None:
        self._check_whole()
        if self._t == self.plan.steps:
            raise RuntimeError(f"step must be one of the {self._t} declared, got one more")

    def _check_whole(self) -> None:
        if not self._whole:
            raise RuntimeError(
                "a step was interrupted: part of its rows may be in the sums, and this run cannot "
                "continue"
            )
        if not self.reproducible and self._process != process_mark():
            raise RuntimeError(
                "this process was forked from one that holds the same key: both would add the same "
                "noise to different sums"
            )

    def _finish(self, bias: FloatArray, before: float) -> None:
        total, error = two_sum(self._bias, bias)
        self._bias, self._bias_low = total, self._bias_low + error
        self._t += 1
        self._in_sums(before)
        self._whole = True
        self._after_step()

    @abstractmethod
    def _before_step(self) -> float:
        """Return a number that `_in_sums` is given when the batch is in the sums."""

    @abstractmethod
    def _in_sums(self, before: float) -> None:
        """Do what belongs to the step: an interruption here ends the run."""

    @abstractmethod
    def _after_step(self) -> None:
        """Do what follows from a step that is taken."""
