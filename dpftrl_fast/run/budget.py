# SPDX-License-Identifier: Apache-2.0
"""`PrivacyBudget`: the epsilon that several fits on the same rows may have together."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours, compose
from dpftrl_fast.run.budget_file import Charge, Terms, locked, opened_terms
from dpftrl_fast.run.budget_sum import composed, epsilon_of, refuse_excess, share_of
from dpftrl_fast.run.budget_text import budget_html, budget_text

_FILE = "budget"


class BudgetRow(NamedTuple):
    """A fit in the table of a budget: its label, its epsilon, and that of all fits up to it."""

    label: str
    epsilon: float
    together: float


class PrivacyBudget:
    """The epsilon that several fits on the same rows may have together.

    Fits of the estimators of `dpftrl_fast.linear_model` inside ``with budget:``, or with the
    parameter ``budget=``, are charged before their first step, in all threads; in worker processes
    of joblib too, if the estimator comes from this process. A fit that would exceed the budget is
    refused before its rows are read.

    Parameters
    ----------
    epsilon, delta : float
        Guarantee of all fits together.
    path : str or Path, optional
        File of the budget, which is made if it is missing. Another session that opens the file
        continues the budget. By default it is in a private temporary folder and goes with the
        budget.
    neighbours : {"zero-out", "replace-one"}
        Neighbours for which `epsilon` holds: one record's (or user's) gradients replaced by zero,
        or by another's.

    Raises
    ------
    TypeError, ValueError
        If a term is wrong, or differs from that of an existing file; if the file is damaged.
    OSError
        If the file cannot be written, or the system has no file locks.

    Notes
    -----
    **Formal guarantee.** All fits that were charged satisfy (`epsilon`, `delta`) together, for two
    data sets that differ in one record (user): it is `accounting.compose` of all plans, each in
    full, also of fits that failed or were interrupted after their first step. A fit is charged when
    its line is on the disk, before anything of it is computed. One budget is for one data set: the
    caller must use the same budget for all releases from these rows, and another for others.
    Charged are fits, `preprocessing.private_quantiles`, and plans given to `spend`. Not covered:
    scores on private rows and whatever a meta-estimator learns from the rows itself (thresholds,
    calibrations, weights), and choices by them. A copy of the file is a second budget.

    `budget` objects are handles: copies, clones and pickles of one share its file.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyBudget
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> X = np.random.default_rng(0).uniform(-1, 1, (2000, 3))
    >>> y = X @ [0.5, -0.3, 0.0]
    >>> with PrivacyBudget(1.0, 1e-6) as budget:
    ...     each = budget.epsilon_per_fit(3)
    ...     for momentum in (0.0, 0.5, 0.9):
    ...         model = DPFTRLRegressor(each, x_norm_bound=3**0.5, y_bound=1.0, momentum=momentum)
    ...         _ = model.fit(X, y)
    >>> round(each, 2), 0.999 < budget.spent <= 1.0, budget.remaining < 0.05
    (0.55, True, True)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        path: str | os.PathLike[str] | None = None,
        neighbours: Neighbours = "zero-out",
    ) -> None:
        terms = Terms(epsilon, delta, neighbours)
        if path is None:
            folder = tempfile.mkdtemp(prefix="dpftrl-budget-")
            weakref.finalize(self, _remove, folder, os.getpid())
            path = Path(folder, _FILE)
        self._path = Path(path).absolute()
        self._terms = opened_terms(self._path, terms)
        _known[self._terms.name] = self

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PrivacyBudget:
        """Open the budget in an existing file, with the terms in it.

        Raises
        ------
        OSError, ValueError
            If the file is missing, or is none of a budget.
        """
        terms = opened_terms(Path(path).absolute(), None)
        return cls(terms.epsilon, terms.delta, path=path, neighbours=terms.neighbours)

    # ---- Terms and figures ----

    epsilon = property(attrgetter("_terms.epsilon"), doc="Epsilon that all fits may have.")
    delta = property(attrgetter("_terms.delta"), doc="Delta of the budget.")
    neighbours = property(attrgetter("_terms.neighbours"), doc="Neighbours of the budget.")

    @property
    def path(self) -> Path:
        """File of the budget."""
        return self._path

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all fits so far, for `accounting.compose`; ValueError if there is none."""
        charges = self._charges()
        if not charges:
            raise ValueError("a budget has a guarantee after its first fit, got none")
        return composed(charges)

    @property
    def spent(self) -> float:
        """Epsilon of all fits so far, at the budget's delta and for its neighbours."""
        return epsilon_of(self._charges(), self._terms)

    @property
    def remaining(self) -> float:
        """`epsilon` that one further fit, at the budget's delta, may have."""
        return self.epsilon_per_fit(1)

    def epsilon_per_fit(self, fits: int) -> float:
        """Return the `epsilon` to give to each of so many further fits, to use up the budget.

        It is that of an estimator's parameter (zero-out neighbours), at the budget's delta.
        Together the fits spend what is left but for about a thousandth: room for the floor of
        delta, which depends on their plans (docs/plan/budget.md).

        Parameters
        ----------
        fits : int
            At least 1.

        Returns
        -------
        float
            0 if nothing is left.

        Examples
        --------
        >>> budget = PrivacyBudget(1.0, 1e-6)
        >>> [round(budget.epsilon_per_fit(fits), 3) for fits in (1, 2, 10)]
        [1.0, 0.689, 0.291]
        """
        return share_of(self._charges(), self._terms, positive_integer("fits", fits))

    # ---- Spending ----

    def spend(self, run: Any, *, label: str | None = None) -> None:
        """Charge a run that is no fit of an estimator: a sum, a training, a federated server.

        Call it before the first step of the run, or before its noise is made.

        Parameters
        ----------
        run : object
            Anything with a guarantee, as for `accounting.compose`: a plan, `PrefixSum`, the plan of
            `make_private`.
        label : str, optional
            Name in the table, a public fact; by default the type of `run`.

        Raises
        ------
        BudgetExceeded
            If all runs together would exceed the budget. Nothing is charged then.
        ValueError
            If the run is reproducible: its noise is known, and it is not private.

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> budget = PrivacyBudget(1.0, 1e-6)
        >>> total = PrefixSum(3, 100, 1.0, 20.0)
        >>> budget.spend(total, label="daily totals")
        >>> [row.label for row in budget.table()]
        ['daily totals']
        """
        if getattr(run, "reproducible", False) or getattr(run, "reproducible_", False):
            raise ValueError("run must have a fresh key to be private, got a reproducible one")
        charge([self], run, label=type(run).__name__ if label is None else label)

    def __enter__(self) -> PrivacyBudget:
        """Charge the fits of all threads to this budget, until the end of the block."""
        _entered.append((self, this_process()))
        return self

    def __exit__(self, *exception: object) -> None:
        """End the block; the budget remains, and may be entered again."""
        place = max(place for place, (budget, _) in enumerate(_entered) if budget is self)
        del _entered[place]

    # ---- Text ----

    def table(self) -> list[BudgetRow]:
        """Return a row for each fit: its label, its epsilon, and that of all fits up to it."""
        charges = self._charges()
        return [
            BudgetRow(
                one.label,
                epsilon_of([one], self._terms),
                epsilon_of(charges[: place + 1], self._terms),
            )
            for place, one in enumerate(charges)
        ]

    def __str__(self) -> str:
        """Return the terms, the sum and the table as text; losses are rounded up."""
        return budget_text(self._terms, self.table(), self.remaining, self._other())

    def _repr_html_(self) -> str:
        """Return the same as a table of HTML."""
        return budget_html(self._terms, self.table(), self.remaining, self._other())

    def __repr__(self) -> str:
        """Return the terms."""
        return (
            f"PrivacyBudget(epsilon={self.epsilon!r}, delta={self.delta!r}, "
            f"neighbours={self.neighbours!r})"
        )

    # ---- Handles: copies, clones and pickles share the file ----

    def __eq__(self, other: object) -> bool:
        """Return whether both are handles of the same file."""
        if not isinstance(other, PrivacyBudget):
            return NotImplemented
        return (self._terms.name, self._path) == (other._terms.name, other._path)

    def __hash__(self) -> int:
        """Return the same for all handles of a file."""
        return hash((self._terms.name, self._path))

    def __copy__(self) -> PrivacyBudget:
        """Return this handle."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PrivacyBudget:
        """Return this handle."""
        return self

    def __sklearn_clone__(self) -> PrivacyBudget:
        """Return this handle: clones of an estimator share its budget."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path and the terms: another process opens the same file."""
        return _handle, (str(self._path), *vars(self._terms).values())

    def _other(self) -> float:
        """Return epsilon of all fits for the neighbours that the budget is not for."""
        kind: Neighbours = "zero-out" if self.neighbours == "replace-one" else "replace-one"
        return epsilon_of(self._charges(), replace(self._terms, neighbours=kind))

    def _charges(self) -> list[Charge]:
        with locked([self._path], read=True) as (file,):
            if file.terms != self._terms:
                raise ValueError(f"{str(self.path)!r} must be the file of this budget, got another")
            return file.charges


#: A process: its number, and a random text of the program that it was forked from.
Process: TypeAlias = tuple[int, str]

_program = secrets.token_hex(8)
# Budgets whose blocks are entered, innermost last, and the processes that entered them; a forked
# process inherits them.
_entered: list[tuple[PrivacyBudget, Process]] = []
_known: weakref.WeakValueDictionary[str, PrivacyBudget] = weakref.WeakValueDictionary()


def this_process() -> Process:
    """Return this process, which shares its name with no other, forked or on another machine."""
    return os.getpid(), _program


def entered_budgets() -> tuple[tuple[PrivacyBudget, Process], ...]:
    """Return the budgets whose blocks are entered, in any thread, and where they were entered."""
    return tuple(_entered)


def budgets_here(
    given: Any = None, carried: Iterable[PrivacyBudget] = ()
) -> tuple[PrivacyBudget, ...]:
    """Return the budgets of entered blocks, those that were carried here, and a given one.

    Raises
    ------
    TypeError
        If `given` is neither None nor a budget.
    """
    if given is not None and not isinstance(given, PrivacyBudget):
        raise TypeError(f"budget must be a PrivacyBudget or None, got {type(given).__name__}")
    entered = [budget for budget, _ in _entered]
    return tuple(dict.fromkeys([*entered, *carried, *([] if given is None else [given])]))


def refuse_seed(budgets: Sequence[PrivacyBudget], noise_seed: Any, release: str) -> None:
    """Raise ValueError if a release with a `noise_seed` would be charged: it is not private."""
    if budgets and noise_seed is not None:
        raise ValueError(
            f"noise_seed must be None inside a privacy budget, got one: such {release} not private"
        )


def check(budgets: Iterable[PrivacyBudget], run: Any) -> None:
    """Raise BudgetExceeded if a run does not fit into each of these budgets now."""
    part = compose([run])
    for budget in budgets:
        refuse_excess(budget._terms, budget._charges(), part)


def charge(budgets: Sequence[PrivacyBudget], run: Any, *, label: str, once: bool = False) -> None:
    """Charge a run to all of these budgets, each of them once, or to none of them.

    It is on the disk when this returns. With `once` the label is that of one run only: a budget
    that has a charge with it, which a process that was killed has made, is left as it is.

    Raises
    ------
    BudgetExceeded
        If it does not fit into one of them.
    """
    part = compose([run])
    expected = {budget._terms.name for budget in budgets}
    with locked([budget.path for budget in budgets]) as files:
        for file in files:
            if file.terms is None or file.terms.name not in expected:
                raise ValueError(f"{str(file.path)!r} must be the file of this budget, got another")
        files = [file for file in files if not (once and file.has(label))]
        for file in files:
            assert file.terms is not None
            refuse_excess(file.terms, file.charges, part)
        try:
            for file in files:
                file.append(Charge(label, part))
        except BaseException:
            for file in files:
                file.undo()
            raise
        for file in files:
            file.remember()


def _handle(
    path: str, epsilon: float, delta: float, neighbours: Neighbours, name: str
) -> PrivacyBudget:
    """Return the handle of a pickle, which is this process's own one if it has one."""
    known = _known.get(name)
    if known is not None and str(known.path) == path:
        return known
    found = PrivacyBudget.__new__(PrivacyBudget)
    found._path, found._terms = Path(path), Terms(epsilon, delta, neighbours, name)
    _known[name] = found
    return found


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # a forked process inherits the handle, not the folder
        shutil.rmtree(folder, ignore_errors=True)
