# SPDX-License-Identifier: Apache-2.0
"""A table of methods and epsilons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dpftrl_fast.experiments.study import Table

_Fitted = TypeVar("_Fitted", bound=Any)


def by_epsilon(title: str, fitted: Sequence[_Fitted], text: Callable[[_Fitted], str]) -> Table:
    """Return a table with a method a row and an epsilon a column, empty where there was no fit.

    Parameters
    ----------
    title : str
    fitted : sequence
        Each with a ``cell`` of a method, which has a name, and a budget, which has an epsilon.
    text : callable
        What stands in the place of one of them.
    """
    epsilons = sorted({one.cell.budget.epsilon for one in fitted})
    names = dict.fromkeys(one.cell.method.name for one in fitted)
    cells = {(one.cell.method.name, one.cell.budget.epsilon): text(one) for one in fitted}
    rows = [(name, *(cells.get((name, e), "") for e in epsilons)) for name in names]
    return Table(title, ("", *(f"epsilon {e:g}" for e in epsilons)), rows)
