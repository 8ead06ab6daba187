# SPDX-License-Identifier: Apache-2.0
"""Users of a stream: their rows of a step become one contribution, as often as was declared."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import choice
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.ids import refuse_id_dtype, user_id
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Ids = NDArray[np.int64]

#: A user's step beyond the declared ones: the call is refused, or the rows count as zero.
Surplus: TypeAlias = Literal["refuse", "drop"]


class Users:
    """Participation of the users of a stream; `guard` is None where the caller names nobody.

    Parameters
    ----------
    plan : PrivacyPlan
        Its participation is kept: `SinglePass`, `MinSeparation` or `FixedEpochs`.
    surplus : {"refuse", "drop"}
        See `PrefixSum`.
    key : bytes, optional
        Of the ids that the guard counts; default a fresh one.
    """

    def __init__(self, plan: PrivacyPlan, surplus: Surplus, key: bytes | None = None) -> None:
        self._pattern = stream_pattern(plan.participation)
        self.surplus = choice("surplus", surplus, get_args(Surplus))
        if surplus == "drop" and isinstance(self._pattern, FixedEpochs):
            raise ValueError(
                "surplus='drop' is for SinglePass and MinSeparation, under which a step may lack a "
                "user, got FixedEpochs"
            )
        self._plan = plan
        self.ids = KeyedIds(key)
        self.guard: Guard | None = None
        self._begun = False

    def check_named(self, named: bool) -> None:
        """Refuse users in some steps and not in others, and none where the pattern needs them."""
        if self._begun and named != (self.guard is not None):
            raise ValueError(
                "users must be given in every step or in none, got a step "
                + ("with them after one without" if named else "without them after one with them")
            )
        if not named and not isinstance(self._pattern, SinglePass):
            raise TypeError(
                f"users must be given for each row with {type(self._pattern).__name__}: the guard "
                "checks that each takes part as declared"
            )

    def admissible(self, ids: Ids, numbers: Ids) -> NDArray[np.bool_]:
        """Return which of a step's distinct users count; refuse the step if one may not take part.

        Under ``surplus="drop"`` no user is refused: those who may not take part count as zero.

        Parameters
        ----------
        ids, numbers : ndarray of int64
            The users under the key, and as `ids_of` has them, for the message.
        """
        guard = self.guard or Guard(self._pattern, self._plan.mechanism)
        if self.surplus == "drop":
            return guard.eligible(ids)
        self._check(guard, ids, numbers)
        return np.ones(ids.size, np.bool_)

    def check_steps(self, numbers: Ids) -> list[Ids]:
        """Return the users who count in the next steps, one a step; refuse one who may not.

        Each step is checked after those before it, in a guard of its own. `numbers` are as `ids_of`
        has them, the users that are returned are under the key.
        """
        trial = Guard(self._pattern, self._plan.mechanism)
        if self.guard is not None:
            trial.load_state_dict(self.guard.state_dict())
        found = []
        for one, number in zip(self.ids.of_numbers(numbers)[:, None], numbers, strict=True):
            one = one[one >= 0]
            if self.surplus == "drop":
                one = one[trial.eligible(one)]
            else:
                self._check(trial, one, number[None])
            trial.admit(one)
            found.append(one)
        return found

    def _check(self, guard: Guard, ids: Ids, numbers: Ids) -> None:
        allowed = guard.eligible(ids)
        if guard.steps_taken < guard.steps and not bool(allowed.all()):
            raise ValueError(
                f"step {guard.steps_taken + 1} must have users that {self._pattern!r} allows, got "
                f"id {numbers[np.argmin(allowed)]}, who may not take part now"
            )
        guard.check(ids)

    def record(self, ids: Ids | None) -> None:
        """Record a step: the users who count, or None where nobody is named."""
        self._begun = True
        if ids is not None:
            if self.guard is None:
                self.guard = Guard(self._pattern, self._plan.mechanism)
            self.guard.admit(ids)

    def state_dict(self) -> dict[str, Any]:
        """Return the state, which holds ids: **a secret**."""
        guard = None if self.guard is None else self.guard.state_dict()
        return {"begun": self._begun, "guard": guard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state of :meth:`state_dict`."""
        self._begun = bool(state["begun"])
        if state["guard"] is not None:
            self.guard = Guard(self._pattern, self._plan.mechanism)
            self.guard.load_state_dict(state["guard"])

    def continues(self, before: Users) -> None:
        """Take over the participations under a shorter pattern of the same kind."""
        self._begun = before._begun
        if before.guard is not None:
            self.guard = Guard(self._pattern, self._plan.mechanism)
            state, own = before.guard.state_dict(), self.guard.state_dict()
            self.guard.load_state_dict({**state, "declaration": own["declaration"]})


def stream_pattern(participation: Participation) -> Participation:
    """Return `participation` if it is one that a stream can keep."""
    if not isinstance(participation, (SinglePass, MinSeparation, FixedEpochs)):
        raise TypeError(
            "participation must be SinglePass, MinSeparation or FixedEpochs, got "
            f"{type(participation).__name__}"
        )
    return participation


def ids_of(users: ArrayLike, rows: int, surplus: Surplus = "refuse") -> Ids:
    """Return the integers that stand for the users of `rows` rows, in [0, 2^63).

    Raises
    ------
    TypeError, ValueError
        If there is not one user a row, or one is neither an integer nor a text; with
        ``surplus="drop"`` the latter is -1.
    """
    given = getattr(users, "dtype", None)
    if given is not None:
        refuse_id_dtype("users", given)
    labels = users.to_numpy() if hasattr(users, "to_numpy") else np.asarray(users)
    if labels.shape != (rows,):
        raise ValueError(f"users must have shape ({rows},), one a row, got {labels.shape}")
    if labels.dtype.kind == "i" and (rows == 0 or int(labels.min()) >= 0):
        return labels.astype(np.int64)
    number = id_or_none if surplus == "drop" else user_id
    return np.array([number(label) for label in labels.tolist()], np.int64).reshape(rows)


def id_or_none(label: object) -> int:
    """Return the integer that stands for a user, -1 for a label of no user."""
    try:
        return user_id(label)
    except Exception:  # of the label's own class too
        return -1


def one_row_a_user(rows: NDArray[np.float64], ids: Ids) -> tuple[NDArray[np.float64], Ids]:
    """Return the sum of each user's rows, and the users, ascending.

    A row that is not finite counts as zero.

    Examples
    --------
    >>> rows = np.array([[1.0], [2.0], [np.nan], [4.0]])
    >>> rows, ids = one_row_a_user(rows, np.array([7, 3, 3, 7]))
    >>> rows.ravel().tolist(), ids.tolist()
    ([2.0, 5.0], [3, 7])
    """
    distinct, first, place = np.unique(ids, return_index=True, return_inverse=True)
    if distinct.size == ids.size:
        return rows[first], distinct
    finite = np.isfinite(rows).all(axis=1)
    sums = np.zeros((distinct.size, rows.shape[1]))
    with np.errstate(all="ignore"):
        np.add.at(sums, place[finite], rows[finite])
    return sums, distinct
