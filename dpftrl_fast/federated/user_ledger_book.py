# SPDX-License-Identifier: Apache-2.0
"""The tasks of each user in memory, and the filter that keeps a user's total within a budget.

Users with the same tasks share one entry, a *set* of tasks, so that epsilons are computed once a
set and not once a user.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.guard.id_table import IdTable, grown
from dpftrl_fast.accounting.sensitivity.delta_floor import truncated_delta
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours, compose

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Part of delta that is kept for the finite tails of the noise, as for the share of a budget
# (`run.budget_share`).
_TAILS = 2.0**-10


@dataclass(frozen=True)
class UserTerms:
    """The budget of one user, for all tasks together."""

    epsilon: float
    delta: float
    neighbours: Neighbours

    def epsilon_of(self, parts: list[Guarantee]) -> float:
        """Return epsilon of guarantees together; infinity where none can be stated."""
        if not parts:
            return 0.0
        try:
            return compose(parts).epsilon(self.delta, neighbours=self.neighbours)
        except ValueError:
            return float("inf")

    def allow(self, parts: list[Guarantee]) -> bool:
        """Return whether a user may be in these tasks, the last one new.

        A first task is chosen before anything of the user was seen: its own epsilon decides. Later
        tasks may be chosen by the outputs of earlier ones, so that two bounds must hold whichever
        they are: one of mu, one of the mass beyond the noise's finite tail. Together they are at
        most delta.
        """
        if len(parts) == 1:
            return self.epsilon_of(parts) <= self.epsilon
        total = compose(parts)
        sigma, zeta = total.as_one(neighbours=self.neighbours)
        share = self.delta * (1.0 - _TAILS)
        if not (zeta < float("inf") and gaussian.delta(sigma, zeta, self.epsilon) <= share):
            return False
        floor = total.floor(neighbours=self.neighbours)
        return truncated_delta(share, total.touched, floor) <= self.delta


class Task:
    """A task as it was declared, the run that has claimed it, and its number of users."""

    def __init__(self, label: str, guarantee: Guarantee) -> None:
        self.label, self.guarantee = label, guarantee
        self.run: str | None = None
        self.users = 0

    def check(self, guarantee: Guarantee) -> None:
        """Raise ValueError if a guarantee is not the declared one."""
        if guarantee != self.guarantee:
            raise ValueError(
                f"the task {self.label!r} must have the guarantee that it was declared with, mu "
                f"{text_up(self.guarantee.mu)}, got mu {text_up(guarantee.mu)}: declare the run's "
                "own under another label: with spare recoveries that of its RunAccount, with "
                "adaptive clipping its composition(plan)"
            )


class Book:
    """The tasks, and the set of tasks of every user.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> book = Book(UserTerms(8.0, 1e-6, "zero-out"))
    >>> for label in ("keyboard", "voice"):
    ...     plan = PrivacyPlan.calibrate(
    ...         epsilon=5.0, delta=1e-6, clip_norm=1.0, participation=accounting.SinglePass(10)
    ...     )
    ...     book.declare(label, plan.guarantee)
    >>> book.add(0, np.array([40, 10]))
    >>> book.allowed(1, np.array([40, 11])).tolist(), book.missing(0, np.array([40, 11])).tolist()
    ([True, True], [11])
    >>> round(book.epsilon_of(40), 3), book.epsilon_of(11)
    (5.0, 0.0)
    """

    def __init__(self, terms: UserTerms) -> None:
        self._terms = terms
        self.tasks: list[Task] = []
        self._table = IdTable()
        self._set_of: Ints = np.zeros(0, np.int64)  # by place
        self._sets: list[tuple[int, ...]] = [()]  # set 0: no task; tasks in the order of joining
        self._after: dict[tuple[int, int], int] = {}
        self._may: dict[tuple[int, int], bool] = {}

    def declare(self, label: str, guarantee: Guarantee) -> None:
        """Add a task."""
        self.tasks.append(Task(label, guarantee))

    def allowed(self, task: int, ids: Ints) -> Bools:
        """Return for each user whether the task is one of the user's, or may become one."""
        sets, places = np.unique(self._sets_of(ids), return_inverse=True)
        verdicts = np.array([self._may_join(int(one), task) for one in sets], np.bool_)
        found: Bools = verdicts[places]
        return found

    def missing(self, task: int, ids: Ints) -> Ints:
        """Return the distinct ids of users who are not in the task yet, ascending."""
        sets, places = np.unique(self._sets_of(ids), return_inverse=True)
        outside = np.array([task not in self._sets[one] for one in sets], np.bool_)
        found: Ints = np.unique(ids[outside[places]])
        return found

    def add(self, task: int, ids: Ints) -> None:
        """Add a task to distinct users who are not in it."""
        before = self._sets_of(ids)
        places = self._table.find(ids)
        self._table.add(ids[places < 0])
        self._set_of = grown(self._set_of, len(self._table))
        sets, which = np.unique(before, return_inverse=True)
        after = np.array([self._joined(int(one), task) for one in sets], np.int64)
        self._set_of[self._table.find(ids)] = after[which]
        self.tasks[task].users += ids.size

    def epsilon_of(self, user: int) -> float:
        """Return epsilon of all tasks of a user."""
        return self._terms.epsilon_of(self._parts(int(self._sets_of(np.array([user]))[0])))

    def worst(self) -> Guarantee | None:
        """Return the guarantee of a user with the largest epsilon; None if there is no user."""
        taken = np.unique(self._set_of[: len(self._table)])
        if not taken.size:
            return None
        sets = map(int, taken)
        return compose(self._parts(max(sets, key=lambda s: self._terms.epsilon_of(self._parts(s)))))

    def _sets_of(self, ids: Ints) -> Ints:
        places = self._table.find(ids)
        found: Ints = np.zeros(ids.size, np.int64)
        found[places >= 0] = self._set_of[places[places >= 0]]
        return found

    def _parts(self, tasks: int) -> list[Guarantee]:
        return [self.tasks[one].guarantee for one in self._sets[tasks]]

    def _may_join(self, tasks: int, task: int) -> bool:
        if task in self._sets[tasks]:
            return True
        if (tasks, task) not in self._may:
            parts = [*self._parts(tasks), self.tasks[task].guarantee]
            self._may[tasks, task] = self._terms.allow(parts)
        return self._may[tasks, task]

    def _joined(self, tasks: int, task: int) -> int:
        if (tasks, task) not in self._after:
            new = (*self._sets[tasks], task)
            self._after[tasks, task] = len(self._sets)
            self._sets.append(new)
        return self._after[tasks, task]
