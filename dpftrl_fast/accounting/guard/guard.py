# SPDX-License-Identifier: Apache-2.0
"""`Guard`: refuses a step that breaks the declared participation, before anything is released."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import integer_array
from dpftrl_fast.accounting.guard.id_table import IdTable, grown
from dpftrl_fast.accounting.guard.state import (
    check_header,
    declaration,
    header,
    integer_from,
    integers_from,
)
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SinglePass,
    check_participation,
)
from dpftrl_fast.accounting.participation.fixed_order import FixedOrder
from dpftrl_fast.mechanisms import Mechanism, Tree
from dpftrl_fast.mechanisms.mechanism import check_mechanism

Ints = NDArray[np.int64]


class Guard:
    """Checks the participation of each step against the declared one.

    Call :meth:`admit` once for each real step of the run, restarts or not; the virtual steps that
    complete a tree do not count. Admitted steps always have a squared sensitivity of at most the
    declared one (:func:`~dpftrl_fast.accounting.sensitivity_squared` with the same arguments):

    - `SinglePass`: an id at most once in the run.
    - `MinSeparation`: two participations i < j of an id have j - i >= b, counted in real steps and
      across restarts, and there are at most E of them.
    - `FixedOrder`: in each step exactly the declared ids, each as often as declared; the order
      within a step does not matter.
    - `FixedEpochs`: step t (from 1 over the whole run, whatever tree it is in) is at place
      (t - 1) mod steps_per_epoch. The first step at a place fixes its ids, and each later one must
      have exactly the same ids; no id is at two places. With ``reshuffle=True`` this starts again
      in each tree: within a tree, all participations of an id are at one place, and the declared
      sensitivity has the largest of the places of every tree. A tree may start within an epoch: it
      then starts at that place, and an id that is assigned to another place there may take part
      twice in that epoch. With ``reshuffle=False`` a restart changes nothing.

    No id is twice in one step, unless a `FixedOrder` lists it twice. Steps past the declared ones
    are refused. A refused step changes nothing, and the refusal depends on ids only.

    Parameters
    ----------
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation
        The declared one.
    mechanism : Tree
        The declared mechanism, as for :func:`~dpftrl_fast.accounting.sensitivity_squared`.

    Notes
    -----
    Work is O(1) amortised a participation, memory O(1) an id that took part: below 100 bytes. Calls
    from several threads take turns. A guard is neither copied nor pickled: two guards of one run
    would each admit a user. Its state is loaded by the one object that continues the run.

    Examples
    --------
    >>> guard = Guard(MinSeparation(steps=8, max_participations=2, min_separation=3))
    >>> guard.admit([10, 11])
    >>> guard.admit([])
    >>> guard.eligible([10, 12]).tolist()
    [False, True]
    >>> guard.admit([12, 10])
    Traceback (most recent call last):
    ...
    ValueError: step 3 must have ids that MinSeparation(steps=8, max_participations=2, \
min_separation=3) allows, got id 10, used 1 times, last in step 1
    """

    _KIND: ClassVar[str] = "Guard"

    def __init__(self, participation: Participation, mechanism: Mechanism = Tree()) -> None:
        self._pattern = check_participation(participation)
        self._layout = check_mechanism(mechanism).layout(self._pattern.steps)
        self._lock = threading.RLock()
        self._step = 0
        self._table = IdTable()
        self._last: Ints = np.zeros(0, np.int64)  # by place: the last step, from 1
        self._uses: Ints = np.zeros(0, np.int64)
        self._batch_sizes: dict[int, int] = {}  # of the last epoch's steps (FixedEpochs)

    @property
    def participation(self) -> Participation:
        """The declared participation."""
        return self._pattern

    @property
    def steps(self) -> int:
        """Declared number of real steps, over all trees."""
        return self._pattern.steps

    @property
    def steps_taken(self) -> int:
        """Steps admitted so far."""
        return self._step

    def admit(self, ids: ArrayLike) -> None:
        """Admit the next step of the run, before anything of it is released.

        Parameters
        ----------
        ids : array_like of int, one-dimensional
            All who take part (0 <= id < 2^63), in any order; empty for a step with nobody.

        Raises
        ------
        TypeError, ValueError
            If ``ids`` is not that, if they break the declaration, or if all declared steps are
            taken. Nothing is changed then.
        """
        with self._lock:
            self._record(*self._checked(ids))

    def check(self, ids: ArrayLike) -> None:
        """Refuse ids that :meth:`admit` would refuse for the next step; nothing changes.

        Examples
        --------
        >>> guard = Guard(SinglePass(2))
        >>> guard.check([5])
        >>> guard.steps_taken
        0
        """
        with self._lock:
            self._checked(ids)

    def eligible(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """Return whether each id may take part in the next step.

        Parameters
        ----------
        ids : array_like of int, one-dimensional
            As for :meth:`admit`.

        Returns
        -------
        ndarray of bool
            One entry an id. All False when the declared steps are taken. A subset of the True ones
            is admitted under `SinglePass` and `MinSeparation`, and for `FixedEpochs` at the first
            step of a place; elsewhere exactly the declared or earlier ids are admitted.
        """
        with self._lock:
            given = _ids(ids)
            if self._step >= self.steps:
                return np.zeros(given.size, np.bool_)
            places = self._table.find(given)
            last = self._column(self._last, places)
            return self._allowed(self._step + 1, given, places, last)

    def expected(self) -> Ints | None:
        """Return the ids that the next step must have, ascending; None if they are not fixed.

        They are fixed under `FixedOrder` (each as often as it is declared), and under `FixedEpochs`
        after an earlier step of the same order at this place. None also if all steps are taken.

        Examples
        --------
        >>> guard = Guard(FixedEpochs(1, 2))
        >>> guard.expected() is None
        True
        >>> guard.admit([5, 4])
        >>> guard.expected().tolist()
        [4, 5]
        """
        with self._lock:
            step, pattern = self._step + 1, self._pattern
            if step > self.steps:
                return None
            if isinstance(pattern, FixedOrder):
                return np.sort(self._listed(step))
            if not isinstance(pattern, FixedEpochs):
                return None
            back = step - pattern.steps_per_epoch
            if back < self._start_of_order(step):
                return None
            known = self._table.ids
            return np.sort(known[self._last[: known.size] == back])

    def state_dict(self) -> dict[str, Any]:
        """Return the state: strings, integers and int64 arrays, all copies.

        ``numpy.savez(file, **state)`` saves it without pickle. It holds ids, which are secret.

        Examples
        --------
        >>> guard = Guard(SinglePass(3))
        >>> guard.admit([5, 4])
        >>> again = Guard(SinglePass(3))
        >>> again.load_state_dict(guard.state_dict())
        >>> again.steps_taken, again.eligible([4, 6]).tolist()
        (1, [False, True])
        """
        with self._lock:
            return {**header(self._KIND, self._declaration()), **self._entries()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of :meth:`state_dict`, of the same declaration.

        A state of another declaration, kind or version, a broken one, and one of an earlier step
        (which would forget participations) are refused; nothing is then changed.
        """
        with self._lock:
            check_header(state, self._KIND, self._declaration(), self._names)
            self._load(state)

    def _names(self, state: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the keys that a state must have besides its header."""
        return ("step", "ids", "last_step", "uses")

    def _entries(self) -> dict[str, Any]:
        n = len(self._table)
        return {
            "step": self._step,
            "ids": self._table.ids.copy(),
            "last_step": self._last[:n].copy(),
            "uses": self._uses[:n].copy(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        step = integer_from(state, "step", 0, self.steps)
        if step < self._step:
            raise ValueError(
                f"state must be of step {self._step} or later, as this object is, got {step}"
            )
        ids = integers_from(state, "ids", low=0)
        last = integers_from(state, "last_step", ids.shape, low=1)
        uses = integers_from(state, "uses", ids.shape, low=1)
        if np.unique(ids).size != ids.size:
            raise ValueError("state's ids must be distinct, got one twice")
        if not bool(np.all(last <= step)):
            raise ValueError(f"state's last_step must be at most its step {step}, got {last.max()}")
        if not self._possible(step, ids, last, uses):
            raise ValueError(f"state's uses must be such as {self._pattern!r} allows, got others")
        table = IdTable()
        table.add(ids)
        sizes: dict[int, int] = {}
        if isinstance(self._pattern, FixedEpochs):
            recent = last[last > step - self._pattern.steps_per_epoch]
            at, counts = np.unique(recent, return_counts=True)
            sizes = dict(zip(at.tolist(), counts.tolist(), strict=True))
        self._table, self._last, self._uses, self._batch_sizes = table, last, uses, sizes
        self._step = step

    def _declaration(self) -> str:
        return declaration(self._pattern, self._layout)

    def _allowed(self, step: int, ids: Ints, places: Ints, last: Ints) -> NDArray[np.bool_]:
        """Return whether each id may be in the step, regardless of the others."""
        pattern = self._pattern
        allowed: NDArray[np.bool_]
        if isinstance(pattern, SinglePass):
            allowed = last == 0
        elif isinstance(pattern, MinSeparation):
            rested = (last == 0) | (step - last >= pattern.min_separation)
            allowed = rested & (self._column(self._uses, places) < pattern.max_participations)
        elif isinstance(pattern, FixedEpochs):
            back, start = step - pattern.steps_per_epoch, self._start_of_order(step)
            allowed = last == back if back >= start else last < start
        else:
            allowed = np.isin(ids, self._listed(step))
        return allowed

    def _checked(self, ids: ArrayLike) -> tuple[int, Ints, Ints, Ints, Ints]:
        """Return what `_record` needs of the next step, which may have these ids."""
        given = _ids(ids)
        step = self._step + 1
        if step > self.steps:
            raise ValueError(
                f"expected no more than the {self.steps} declared steps, got another: declare more "
                "in the participation"
            )
        distinct, times = np.unique(given, return_counts=True)
        places = self._table.find(distinct)
        last = self._column(self._last, places)
        self._check(step, distinct, times, places, last)
        return step, distinct, times, places, last

    def _check(self, step: int, ids: Ints, times: Ints, places: Ints, last: Ints) -> None:
        pattern = self._pattern
        if isinstance(pattern, FixedOrder):
            self._check_listed(step, ids, times)
            return
        if (twice := ids[times > 1]).size:
            raise ValueError(f"step {step} must have distinct ids, got id {twice[0]} twice")
        allowed = self._allowed(step, ids, places, last)
        if not bool(allowed.all()):
            i = int(np.argmin(allowed))
            uses = int(self._column(self._uses, places[i : i + 1])[0])
            came = f"used {uses} times, last in step {last[i]}" if uses else "not used before"
            raise ValueError(
                f"step {step} must have ids that {pattern!r} allows, got id {ids[i]}, {came}"
            )
        if isinstance(pattern, FixedEpochs):
            back = step - pattern.steps_per_epoch
            expected = self._batch_sizes.get(back, 0)
            if back >= self._start_of_order(step) and ids.size != expected:
                raise ValueError(
                    f"step {step} must have the {expected} ids of step {back}, as {pattern!r} "
                    f"says, got {ids.size} of them"
                )

    def _check_listed(self, step: int, ids: Ints, times: Ints) -> None:
        declared, wanted = np.unique(self._listed(step), return_counts=True)
        if np.array_equal(ids, declared) and np.array_equal(times, wanted):
            return
        came = dict(zip(ids.tolist(), times.tolist(), strict=True))
        want = dict(zip(declared.tolist(), wanted.tolist(), strict=True))
        i = min(i for i in {*came, *want} if came.get(i, 0) != want.get(i, 0))
        raise ValueError(
            f"step {step} must have the declared ids of {self._pattern!r}, id {i} "
            f"{want.get(i, 0)} times, got it {came.get(i, 0)} times"
        )

    def _record(self, step: int, ids: Ints, times: Ints, places: Ints, last: Ints) -> Ints:
        """Record a step that passed `_check`; return the places, those of new ids too."""
        new = places < 0
        first = len(self._table)
        size = first + int(np.count_nonzero(new))
        self._last, self._uses = grown(self._last, size), grown(self._uses, size)
        self._table.add(ids[new])
        places = places.copy()
        places[new] = np.arange(first, size)
        self._last[places] = step
        self._uses[places] += times
        if isinstance(self._pattern, FixedEpochs):
            self._batch_sizes.pop(step - self._pattern.steps_per_epoch, None)
            if step == self._start_of_order(step):
                self._batch_sizes.clear()
            if ids.size:
                self._batch_sizes[step] = ids.size
        self._step = step
        return places

    def _start_of_order(self, step: int) -> int:
        """Return the first step of the order of epochs that a step belongs to."""
        if isinstance(self._pattern, FixedEpochs) and not self._pattern.reshuffle:
            return 1
        return step - self._layout.locate(step)[1] + 1

    def _listed(self, step: int) -> Ints:
        assert isinstance(self._pattern, FixedOrder)
        offsets = self._pattern.offsets
        return self._pattern.ids[offsets[step - 1] : offsets[step]]

    def _possible(self, step: int, ids: Ints, last: Ints, uses: Ints) -> bool:
        """Return whether a run of the declared pattern can have these counts after a step."""
        pattern = self._pattern
        if isinstance(pattern, FixedOrder):
            taken = pattern.ids[: pattern.offsets[step]]
            wanted, back, counts = np.unique(taken[::-1], return_index=True, return_counts=True)
            steps = np.searchsorted(pattern.offsets, taken.size - 1 - back, side="right")
            order = np.argsort(ids)
            return (
                np.array_equal(ids[order], wanted)
                and np.array_equal(last[order], steps)
                and np.array_equal(uses[order], counts)
            )
        gap, most = 1, pattern.most_uses()
        if isinstance(pattern, MinSeparation):
            gap = pattern.min_separation
        elif isinstance(pattern, FixedEpochs):
            # Restarts within an epoch can assign an id to it twice.
            gap, most = (1, step) if pattern.reshuffle else (pattern.steps_per_epoch, most)
        return bool(np.all((uses <= most) & ((last - 1) // gap + 1 >= uses)))

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} is not copied nor pickled, since two of one run would each "
            "admit a user: resume it with state_dict and load_state_dict"
        )

    @staticmethod
    def _column(column: Ints, places: Ints) -> Ints:
        """Return the entries at ``places``, 0 for a place of -1."""
        found = np.zeros(places.size, np.int64)
        known = places >= 0
        found[known] = column[places[known]]
        return found


def _ids(ids: ArrayLike) -> Ints:
    try:
        return integer_array("ids", ids, least=0)
    except TypeError as error:  # of the dtype, which is public
        raise TypeError(
            f"{error}: give each record (or user) an integer that is the same in all steps"
        ) from None
