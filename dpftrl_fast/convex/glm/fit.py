# SPDX-License-Identifier: Apache-2.0
"""The engine of the linear models: clipped sums, one noise over all parameters, FTRL, iterates.

An engine holds a secret key and secret running sums; it releases its iterates, which are functions
of the noisy sums. The caller passes batches, or their sums if other processes make them. The plan's
guard refuses undeclared participants before anything of a step is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast.convex.admission import Admission
from dpftrl_fast.convex.glm.sums import Objective, clipped_sum
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.ftrl import FTRL, soft_threshold
from dpftrl_fast.noise.arguments import usable_cores
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

FloatArray = NDArray[np.float64]


class GLMRun:
    """A run of DP-FTRL on a linear model. Calls from several threads take turns.

    Parameters
    ----------
    objective : Objective
        Loss, clip norm and shape of the parameters. Its clip norm is the plan's.
    plan : PrivacyPlan
        It makes the noise and states the epsilon.
    learning_rate : float
        1/lambda.
    batch_size : int
        B: rows, or users, of a batch. Sums are divided by it, also that of a smaller last batch.
    momentum, l1, radius
        As for `dpftrl_fast.ftrl.FTRL`. The parameters of the constant column are not penalised by
        l1; the ball holds all parameters.
    threads : int, optional
        Maximum number of threads; default all cores that this process may use. Results do not
        depend on it.
    noise_seed : None, int or bytes
        For tests: the key then follows from it, and the run is `reproducible`, not private.

    Attributes
    ----------
    admission : Admission
        Checks the participants of each step; its `write_ahead` is for the journal of a run.

    Notes
    -----
    **Formal guarantee.** Neighbouring runs differ in the gradients of one record (of one user, with
    batches of users), replaced by zero. All iterates and their averages together satisfy the
    (epsilon, delta) that `plan.epsilon(delta)` states. The caller ensures that each record or user
    takes part as the plan's participation declares (with `ids`, the plan's guard checks it). Noisy
    sums are on a public grid, see docs/guarantees/floating_point.md.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = PrivacyPlan(1.0, 1.0, SinglePass(2))
    >>> run = GLMRun(Objective("squared", 3), plan, learning_rate=0.1, batch_size=4)
    >>> run.step(Batch(np.ones((4, 3)), np.zeros(4)))
    >>> run.steps_taken, run.last.shape, run.reproducible
    (1, (1, 3), False)
    """

    def __init__(
        self,
        objective: Objective,
        plan: PrivacyPlan,
        *,
        learning_rate: float,
        batch_size: int,
        momentum: float = 0.0,
        l1: float = 0.0,
        radius: float | None = None,
        threads: int | None = None,
        noise_seed: Seed = None,
    ) -> None:
        if objective.clip_norm != plan.clip_norm:
            raise ValueError(
                f"the objective's clip_norm must be the plan's {plan.clip_norm}, got "
                f"{objective.clip_norm}"
            )
        self.objective = objective
        self.plan = plan
        self.learning_rate = learning_rate
        self.threads = usable_cores() if threads is None else threads
        self._ftrl = FTRL(
            np.zeros(objective.size),
            learning_rate,
            batch_size=batch_size,
            steps=plan.steps,
            momentum=momentum,
            l1=l1,
            radius=radius,
            prox=self._soft_but_constant if l1 > 0.0 and objective.constant != 0.0 else None,
            grid=plan.noise_spec.grid("float64"),
        )
        # float64: noise on a coarser grid than the sums would expose their last digits.
        self._noise = plan.noise(
            objective.size, seed=noise_seed, dtype="float64", threads=self.threads
        )
        self._noise_out = np.empty(objective.size)
        self._shape = objective.shape
        self._seen = np.zeros(1, np.int64)
        self.admission = Admission(plan)
        self._broken = False
        self._turn = threading.RLock()

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""
        return self._noise.reproducible

    @property
    def steps_taken(self) -> int:
        """Steps taken."""
        return self._ftrl.t

    @property
    def theta(self) -> FloatArray:
        """The last iterate, read-only, of the shape of the objective."""
        return self._ftrl.theta.reshape(self.objective.shape)

    @property
    def last(self) -> FloatArray:
        """The last iterate."""
        return self.theta.copy()

    @property
    def average(self) -> FloatArray:
        """The mean of the iterates at which gradients were taken."""
        return self._ftrl.average.reshape(self.objective.shape)

    @property
    def tail(self) -> FloatArray:
        """The mean of those in the last half of the declared steps."""
        return self._ftrl.tail_average.reshape(self.objective.shape)

    def step(self, batch: Batch) -> None:
        """Take one step with a batch.

        Parameters
        ----------
        batch : Batch
            With `ids`, the guard of the plan checks them; without, the caller has cut the batches
            as the plan declares. A run uses ids in all steps or in none.

        Raises
        ------
        TypeError, ValueError
            For wrong types or shapes, undeclared participants, or a step past the declared ones.
            Nothing has changed then.
        """
        with self._turn:
            self._check_whole()
            theta = self._ftrl.theta.reshape(self._shape)
            total = clipped_sum(self.objective, theta, batch, threads=self.threads, seen=self._seen)
            self._advance(total, batch.ids)

    def met_bad_row(self) -> bool:
        """Return whether a dense row since the last call may not be finite: secret.

        For a check of all values before anything is released.
        """
        found = bool(self._seen[0])
        self._seen[0] = 0
        return found

    sums_follow_model = True

    def summing(self) -> Callable[[Batch], FloatArray]:
        """Return the function that sums the next batch, in any process.

        It holds the objective and a copy of the last iterate: nothing secret.
        """
        return partial(_sum_at, self.objective, self.last)

    def advance(self, gradient_sum: FloatArray, ids: ArrayLike | None = None) -> None:
        """Take one step with the sum of a batch, made at `theta` by `summing` or `clipped_sum`.

        Raises
        ------
        TypeError, ValueError
            As `step`.
        RuntimeError
            After an interrupted step, when noise and sums may be a step apart.
        """
        with self._turn:
            self._check_whole()
            if gradient_sum.dtype != np.float64 or gradient_sum.shape != self._shape:
                raise ValueError(
                    f"gradient_sum must be float64 of shape {self._shape}, got "
                    f"{gradient_sum.dtype} of shape {gradient_sum.shape}"
                )
            self._advance(gradient_sum, ids)

    def _advance(self, gradient_sum: FloatArray, ids: ArrayLike | None) -> None:
        if self._ftrl.t == self.plan.steps:
            raise ValueError(
                f"all {self.plan.steps} declared steps are taken, and the epsilon covers no "
                "further step"
            )
        self.admission.admit(self._ftrl.t + 1, ids, gradient_sum)
        self._broken = True  # until the step is whole
        noise = self._noise.step(out=self._noise_out)
        self._ftrl.step(gradient_sum.reshape(-1), noise)
        self._broken = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`: **a secret**, with the key and un-noised sums.

        RuntimeError after an interrupted step.
        """
        with self._turn:
            self._check_whole()
            return {
                "ftrl": self._ftrl.state_dict(),
                "noise": self._noise.state_dict(),
                "guard": self.admission.state_dict(),
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of a run with the same arguments, with the same steps to the bit.

        Two runs that resume from one state add the same noise to different sums: see
        `dpftrl_fast.run.RunJournal`. A state of another run is a TypeError or ValueError; the
        object is then of no use.
        """
        with self._turn:
            self._ftrl.load_state_dict(state["ftrl"])
            self._noise.load_state_dict(state["noise"])
            self.admission.load_state_dict(state["guard"])

    def _check_whole(self) -> None:
        if self._broken:
            raise RuntimeError("a step of this run was interrupted; it cannot continue")

    def _soft_but_constant(self, q: FloatArray, c: float) -> FloatArray:
        """Soft-threshold all parameters but those of the constant column."""
        matrix = q.reshape(self.objective.shape)
        matrix[:, :-1] = soft_threshold(matrix[:, :-1], c)
        return q

    def __repr__(self) -> str:
        """Return the public facts only."""
        return (
            f"GLMRun(loss={self.objective.loss!r}, shape={self.objective.shape}, "
            f"t={self.steps_taken}, steps={self.plan.steps})"
        )

    def __getstate__(self) -> Any:
        """Refuse pickling and copying: a run holds its key and its sums."""
        raise TypeError("GLMRun holds a secret key and secret sums and is not pickled")


def _sum_at(objective: Objective, theta: FloatArray, batch: Batch) -> FloatArray:
    # Arrays from another process may be unaligned.
    return clipped_sum(objective, np.require(theta, requirements=["C", "A"]), batch)
