# SPDX-License-Identifier: Apache-2.0
"""`Steps`: the one owner of a run's step."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpftrl_fast.accounting import Guard
from dpftrl_fast.torch.flat.distributed import Order, Ranks

Ints = NDArray[np.int64]


class _Phase(Enum):
    IDLE = auto()  # between steps
    OPEN = auto()  # a batch was begun
    COUNTED = auto()  # its ids are counted, its sums are still to be written ahead
    ADMITTED = auto()  # its sums are written ahead, its noise is still to be made
    NOISY = auto()  # its noise is made


class Steps:
    """Position of a run, its open batch, the admission of ids, and interrupted steps.

    The noise, the accumulator and the loader of a run share one object and keep no count
    themselves. The position is that of `guard`, or of the noise where there is no guard. With a
    guard the noise of a step can be made once, after its ids were admitted.

    Parameters
    ----------
    declared : int
        Steps of the plan.
    noise_at : callable, optional
        Returns the position of the noise.
    ranks : callable, optional
        Returns the processes that share the run.

    Attributes
    ----------
    order : callable
        Returns what decides which examples a step has.
    hooked : bool
        Whether the admission comes from the hooks of an optimiser, which is not called again after
        a step that failed.
    resumed : bool
        Whether the noise is that of a folder or a state, or accounted for: then a program that was
        started again may take its first step.
    """

    def __init__(
        self,
        declared: int,
        noise_at: Callable[[], int] | None = None,
        ranks: Callable[[], Ranks] = Ranks,
    ) -> None:
        self.declared = declared
        self.guard: Guard | None = None
        self.ids: Ints | None = None
        self.order: Callable[[], Order] = lambda: Order({}, None)
        self.hooked = False
        self.resumed = False
        self._is_total = False
        self._noise_at = noise_at
        self._ranks, self._compared = ranks, False
        self._phase = _Phase.IDLE
        self._torn = False
        self._turn = threading.Lock()

    @property
    def ranks(self) -> Ranks:
        """The processes that share the run."""
        return self._ranks()

    @property
    def taken(self) -> int:
        """Steps taken, over all blocks."""
        if self.guard is not None:
            return self.guard.steps_taken
        return 0 if self._noise_at is None else self._noise_at()

    @property
    def is_open(self) -> bool:
        """Whether a batch was begun whose step has not come."""
        return self.ids is not None

    @property
    def admitted(self) -> bool:
        """Whether the noise of the admitted batch is the next thing to come."""
        return self._phase is _Phase.ADMITTED

    def check_order(self) -> None:
        """Refuse, on all ranks, a run whose ranks have other orders; all call it together.

        Once, with the first step. From then on each step compares its ids. Refused too is the first
        step of a program that torchrun started again, with nothing of the run before.
        """
        if not self._compared:
            refusal = None
            if self._noise_at is not None and self._noise_at() == 0 and not self.resumed:
                refusal = _restarted()
            self._ranks().check_order(self.order(), refusal=refusal)
            self._compared = True

    def ids_hash(self) -> str:
        """Return a hash of the ids of the open batch, in their order."""
        return "" if self.ids is None else hashlib.sha256(self.ids.tobytes()).hexdigest()

    def begin(self, ids: Ints) -> None:
        """Open the batch of the next step."""
        self.ids, self._phase = ids, _Phase.OPEN

    def admit(self) -> None:
        """Count the ids of the open batch as taking part; `due` and the step must follow."""
        assert self.guard is not None and self.ids is not None
        # Their states are loaded by two calls, of which one may be missing.
        if self._noise_at is not None and self._noise_at() != self.guard.steps_taken:
            raise ValueError(
                f"the noise must be at step {self.guard.steps_taken}, as the guard of "
                f"participation, got {self._noise_at()}: load the states of both"
            )
        self.guard.admit(self.ids)
        self._phase = _Phase.COUNTED

    def due(self) -> None:
        """Let the noise of the admitted batch be made: its sums are complete and written ahead."""
        assert self._phase is _Phase.COUNTED
        self._phase = _Phase.ADMITTED

    def is_total(self) -> None:
        """Take the sums of the admitted batch, on all ranks, for those of all ranks together."""
        self._is_total = True

    def taken_as_total(self) -> bool:
        """Return whether the sums are those of all ranks already; asked once a step."""
        was, self._is_total = self._is_total, False
        return was

    def close(self) -> None:
        """Close the batch: its step is taken, or it is given up before its admission."""
        self.ids, self._phase, self._is_total = None, _Phase.IDLE, False

    def check_next_noise(self) -> None:
        """Refuse the noise of a step that is not due."""
        self.check_whole()
        if self.guard is not None and self._phase is not _Phase.ADMITTED:
            raise ValueError(
                "the noise of a step must come once, in the step of a batch of the loader, got "
                "another call"
            )
        if self.guard is None and self.taken == self.declared:
            raise ValueError(
                f"all {self.declared} declared steps are taken: the epsilon is stated for no more"
            )

    def check_whole(self) -> None:
        """Refuse to continue after an interrupted change of noise and sums."""
        if self._torn:
            raise RuntimeError("a step was interrupted half-way: resume from a checkpoint")

    def check_between(self) -> None:
        """Refuse to continue in a step whose ids were admitted, or after an interrupted one."""
        if self._torn or self._phase not in (_Phase.IDLE, _Phase.OPEN):
            raise RuntimeError(
                "the last step failed half-way, so that the noise and the ids admitted may be one "
                "step apart: resume from a checkpoint"
            )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the run for a step or a state; RuntimeError if another call does."""
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                "expected one step at a time, and no state saved or loaded meanwhile, got a call "
                "while another is under way: try again when it has ended"
            )
        try:
            yield
        finally:
            self._turn.release()

    @contextmanager
    def changing(self, *, step: bool = False) -> Iterator[None]:
        """Change noise and sums, as a `step` or otherwise; an error in it ends the run."""
        self._torn = True
        yield
        self._torn = False
        if step and self.guard is not None:
            self._phase = _Phase.NOISY

    @contextmanager
    def clearing(self, parameters: Sequence[Tensor], *, always: bool = False) -> Iterator[None]:
        """Clear ``p.grad`` after an error that interrupts a step, or after every one."""
        torn = self._torn
        try:
            yield
        except BaseException:
            if always or (self._torn and not torn):
                for p in parameters:
                    p.grad = None
            raise

    def restored(self) -> None:
        """Noise and sums were loaded from a state: no interrupted step is left in them."""
        self._torn = False
        self.resumed = True


def _restarted() -> ValueError | None:
    """Return the refusal of a run that begins anew in a program that was started again."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if not (count.isdecimal() and int(count) > 0):
        return None
    return ValueError(
        f"torchrun has started this program again (TORCHELASTIC_RESTART_COUNT={count}), and the "
        "run begins anew with a fresh key, though steps of the start before may have been released:"
        " keep the run in a folder (TrainingRun), which a restart resumes; or load a "
        "state_dict(secrets=True); or call recover with the account of both (RunAccount). If "
        "nothing of the start before was released, start a new job"
    )
