# SPDX-License-Identifier: Apache-2.0
"""Methods at budgets, their fits, and the tables and lines of them: for images and for clients."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.experiments.results import Setting, Values
from dpftrl_fast.experiments.study import Job, Laboratory, Table, grid_table
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Mechanism,
    Tree,
    Variant,
)
from dpftrl_fast.mechanisms.run_error import mechanism_error
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.plots import Line

#: How much is run.
Size: TypeAlias = Literal["quick", "reduced", "full"]
SIZES: tuple[Size, ...] = ("quick", "reduced", "full")

MOMENTUM = 0.9
TUNING_SEED = 1000

FittedT = TypeVar("FittedT", bound="Fitted")
Key = TypeVar("Key", bound=Hashable)
MethodT = TypeVar("MethodT", bound="Method")


@dataclass(frozen=True)
class Method:
    """A method, without its rates.

    The kinds are DP-FTRL on trees, DP-FTRL with the mechanism of the planner, and the baseline over
    fixed batches (cohorts) or over Poisson samples. `restart` is the number of passes after which
    FTRL starts a new tree, None for one tree.
    """

    #: Name of the baseline, and of its kind that is not amplified.
    baseline: ClassVar[str]
    unamplified: ClassVar[str]

    kind: Literal["ftrl", "planned", "fixed", "amplified"]
    momentum: float = 0.0
    restart: int | None = None

    @property
    def variant(self) -> Variant:
        """Of FTRL: a field of subclasses."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Name in tables."""
        letter = "M" if self.momentum else ""
        if self.kind == "planned":
            return f"DP-FTRL{letter}, mechanism of the planner"
        if self.kind != "ftrl":
            words = "amplified" if self.kind == "amplified" else self.unamplified
            return f"{self.baseline}{letter}, {words}"
        words = "" if self.variant == "honaker" else ", vanilla"
        words += ", no restart" if self.restart is None else f", restart {self.restart}"
        return f"DP-FTRL{letter}{words}"

    def to_dict(self) -> dict[str, Any]:
        """Return the method's part of a row of results."""
        fields = dict(vars(self))
        row = {"method": fields.pop("kind"), "momentum": fields.pop("momentum")}
        return {**row, **fields} if self.kind == "ftrl" else row


def as_vanilla(method: MethodT) -> MethodT | None:
    """Return a method of Honaker's trees with vanilla ones, None for other methods."""
    honaker = method.kind == "ftrl" and method.variant == "honaker"
    return replace(method, variant="vanilla") if honaker else None  # type: ignore[call-arg]


def passes_over_data(steps: int, passes: int) -> SinglePass | FixedEpochs:
    """Return the participation of so many passes, reshuffled at restarts, of `steps` steps each."""
    return SinglePass(steps) if passes == 1 else FixedEpochs(steps, passes, reshuffle=True)


class Cell(NamedTuple):
    """A method at a budget: settings are chosen for each, then fits are made."""

    method: Any
    budget: Any


@dataclass(frozen=True)
class Fitted:
    """A cell, its chosen settings (fields of subclasses), and the accuracies of its fits."""

    cell: Cell
    scores: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float:
        """Standard deviation of the accuracies over the seeds."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else 0.0

    @property
    def chosen(self) -> Mapping[str, float]:
        """The chosen settings."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return all facts, JSON-able."""
        method, budget = self.cell
        summary = {"mean": self.mean, "std": self.std, "scores": [*self.scores]}
        return {**method.to_dict(), **vars(budget), **self.chosen, **summary}


def difference(one: Fitted, other: Fitted) -> tuple[float, float]:
    """Return the difference of the mean accuracies in percent, and its standard error."""
    errors = (each.std / math.sqrt(len(each.scores)) for each in (one, other))
    return 100.0 * (one.mean - other.mean), 100.0 * math.hypot(*errors)


def mechanism_name(mechanism: Mechanism) -> str:
    """Return a short name of a mechanism.

    Examples
    --------
    >>> mechanism_name(BufferedToeplitz((0.99, 0.9), (0.5, 0.4)))
    'BLT 2'
    >>> mechanism_name(BandedInverse.anticorrelated(0.9)), mechanism_name(Tree(restart_every=240))
    ('2 taps', 'trees of 240 steps')
    """
    if isinstance(mechanism, BufferedToeplitz):
        return f"BLT {mechanism.vectors}"
    if isinstance(mechanism, BandedInverse):
        return f"{len(mechanism.taps)} taps"
    if isinstance(mechanism, BandedToeplitz):
        return f"{mechanism.vectors + 1} bands"
    if isinstance(mechanism, Tree):
        every = mechanism.restart_every
        return "one tree" if every is None else f"trees of {every} steps"
    return "independent noise"


def mechanisms_tables(title: str, plans: Sequence[tuple[Method, Any, PrivacyPlan]]) -> list[Table]:
    """Return the mechanisms of methods at budgets with their noise; no table without "planned".

    The noise is the root mean square over the steps of the standard deviation in the sums that a
    run with the method's momentum reads, in clip norms.
    """
    if all(method.kind != "planned" for method, _, _ in plans):
        return []
    rows: list[tuple[str, ...]] = []
    for method, budget, plan in plans:
        workload = Workload(momentum=method.momentum)
        unit = mechanism_error(plan.mechanism, plan.participation, workload).rms
        sigma = plan.noise_multiplier
        name = mechanism_name(plan.mechanism)
        rows.append(
            (method.name, short_up(budget.epsilon), name, f"{sigma:.4g}", f"{sigma * unit:.4g}")
        )
    return [Table(title, ("", "epsilon", "mechanism", "noise multiplier", "rms"), rows)]


def amplified_sigmas(
    laboratory: Laboratory, title: str, wanted: Mapping[Key, tuple[Setting, Callable[[], float]]]
) -> dict[Key, float]:
    """Return noise multipliers that are slow to compute: from the results, or computed once."""
    jobs = [
        Job({"stage": "sigma", **row}, 0, partial(_sigma, find)) for row, find in wanted.values()
    ]
    found = laboratory.run(f"{laboratory.experiment}: {title}", jobs)
    return {key: values["sigma"] for key, values in zip(wanted, found, strict=True)}


def _sigma(find: Callable[[], float]) -> Values:
    return {"sigma": find()}


def sampling(budget: Any, units: int, *, quick: bool) -> dict[str, Any]:
    """Return what the noise of amplified DP-SGD follows from, as rows of results name it."""
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "probability": budget.batch_size / units,
        "steps": budget.epochs * -(-units // budget.batch_size),
        "accountant": "rdp" if quick else "pld",
    }


def by_epsilon(title: str, fitted: Sequence[FittedT], text: Callable[[FittedT], str]) -> Table:
    """Return a table with a method a row and an epsilon a column, empty where there was no fit."""
    cells = [(one.cell.method.name, one.cell.budget.epsilon, text(one)) for one in fitted]
    return grid_table(title, "epsilon", cells)


def accuracy_lines(
    fitted: Sequence[Fitted], label: Callable[[Any], str] = lambda method: str(method.name)
) -> list[Line]:
    """Return accuracy against epsilon, one line a method with at least two epsilons."""
    lines = []
    for method in dict.fromkeys(one.cell.method for one in fitted):
        own = [one for one in fitted if one.cell.method == method]
        own.sort(key=lambda one: one.cell.budget.epsilon)
        if len(own) > 1:
            lines.append(
                Line(
                    label(method),
                    [one.cell.budget.epsilon for one in own],
                    [one.mean for one in own],
                    [one.mean - one.std for one in own],
                    [one.mean + one.std for one in own],
                )
            )
    return lines
