# SPDX-License-Identifier: Apache-2.0
"""Privacy budgets of a fit: which ones it is charged to, and when.

A fit is charged to the budgets whose blocks are entered in its process, to its parameter `budget`,
and in a worker process to those that its pickle carries. It is compared with them before its rows
are read, if their number can be told by then, and charged before its first step.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from dpftrl_fast.linear_model._stream import Stream
from dpftrl_fast.linear_model.sources.labels import group_numbers
from dpftrl_fast.run.budget import (
    PrivacyBudget,
    Process,
    budgets_here,
    charge,
    check,
    entered_budgets,
    refuse_seed,
    this_process,
)

#: A process and one of its threads.
Place: TypeAlias = "tuple[Process, int]"
#: Attribute of an estimator with what its pickles and clones carry to other processes and threads.
CARRIED = "_carried"
_NAME = 40  # characters of the name of an estimator's class in a label


@dataclass(frozen=True)
class Carried:
    """Facts of the place where an estimator was pickled or cloned, for the place of its fit.

    Parameters
    ----------
    budgets : tuple of (PrivacyBudget, process)
        Those that were entered, and by which process. That process knows itself whether it is still
        in the block; any other is told by this.
    announced : (process, thread), optional
        Those that have warned of several fits on the same rows.
    """

    budgets: tuple[tuple[PrivacyBudget, Process], ...] = ()
    announced: Place | None = None


def here() -> Place:
    """Return this process and this thread."""
    return this_process(), threading.get_ident()


def carried_by(model: Any) -> Carried:
    """Return those of the facts that an estimator carries which are news to this place.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> carried_by(DPFTRLRegressor())
    Carried(budgets=(), announced=None)
    """
    found: Carried = vars(model).get(CARRIED, Carried())
    budgets = tuple(entry for entry in found.budgets if entry[1] != this_process())
    return Carried(budgets, None if found.announced == here() else found.announced)


def carried_on(model: Any, announced: Place | None) -> Carried:
    """Return the facts that a pickle of an estimator is to carry; a call has warned `announced`."""
    found = carried_by(model)
    budgets = tuple(dict.fromkeys((*entered_budgets(), *found.budgets)))
    return Carried(budgets, found.announced or announced)


def carry_to_clone(model: Any, clone: Any, announced: Place | None) -> None:
    """Let a clone carry the facts of its estimator; a call has warned `announced`."""
    found = carried_by(model)
    if found.budgets or announced is not None:
        setattr(clone, CARRIED, Carried(found.budgets, announced))


def budgets_of(model: Any) -> tuple[PrivacyBudget, ...]:
    """Return the budgets that a fit of this estimator is charged to; TypeError for a wrong one."""
    return budgets_here(model.budget, (budget for budget, _ in carried_by(model).budgets))


class Spending:
    """The budgets of one fit.

    Raises
    ------
    ValueError
        If the estimator has a `noise_seed` and there is a budget: the fit would not be private.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyBudget
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> Spending(DPFTRLRegressor(budget=PrivacyBudget(1.0, 1e-6), noise_seed=1))
    Traceback (most recent call last):
    ...
    ValueError: noise_seed must be None inside a privacy budget, got one: such a fit is not private
    """

    def __init__(self, model: Any) -> None:
        self._model, self._budgets = model, budgets_of(model)
        refuse_seed(self._budgets, model.noise_seed, "a fit is")

    @property
    def is_charged(self) -> bool:
        """Whether there is a budget."""
        return bool(self._budgets)

    def look_ahead(self, parameters: Mapping[str, Any], units: int | None) -> None:
        """Refuse a fit of so many rows (users) that does not fit into the budgets now."""
        if not self._budgets or units is None:
            return
        if parameters["batch_size"] == "auto" or parameters["batch_size"] <= units:
            check(self._budgets, self._model._plan(parameters, units))

    def charge(
        self, parameters: Mapping[str, Any], plan: Any, units: int, stream: Stream | None = None
    ) -> None:
        """Charge a fit in full; it is on the disk when this returns.

        A stream is charged at its first step, and at a later one to the budgets that have been
        entered since. One that is kept in a folder has its name in the label, so that a budget that
        was charged before the process was killed is not charged again. The label shows public facts
        only.

        ValueError for a stream whose folder was forked: its charge would be that of one stream.
        """
        charged = () if stream is None else stream.charged
        budgets = [budget for budget in self._budgets if budget not in charged]
        if not budgets:
            return
        journal = None if stream is None else stream.journal
        if journal is not None and journal.forked:
            raise ValueError(
                "a stream inside a privacy budget must not be resumed from a copy of its folder "
                "(allow_fork): no epsilon can be stated for it"
            )
        noise = f"epsilon {parameters['epsilon']!r}"
        if parameters["epsilon"] is None:
            noise = f"noise multiplier {parameters['noise_multiplier']!r}"
        kind = type(self._model).__name__[:_NAME]  # the file cuts a label, but not a stream's name
        label = (
            f"{kind}, {units:,} rows or users, {noise}, batch size "
            f"{parameters['batch_size']}, epochs {parameters.get('epochs', 1)}"
        )
        if journal is not None:
            label += f", stream {journal.name}"
        charge(budgets, plan, label=label, once=journal is not None)
        if stream is not None:
            stream.charged = (*charged, *budgets)


def units_ahead(X: Any, groups: Any) -> int | None:
    """Return the number of rows (users) of a fit without reading a row; None if it cannot be told.

    Examples
    --------
    >>> units_ahead([[1.0], [2.0], [3.0]], None), units_ahead([[1.0], [2.0]], ["a", "a"])
    (3, 1)
    >>> units_ahead("a/path", None) is None
    True
    """
    if isinstance(X, (str, os.PathLike)):
        return None
    try:
        shape = getattr(X, "shape", None)
        rows = operator.index(shape[0]) if shape else len(X)
        if groups is None:
            return rows
        return int(group_numbers(groups, rows).max()) + 1
    except Exception:  # wrong arguments, which the fit itself refuses; rows that have no length yet
        return None
