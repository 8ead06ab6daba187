# SPDX-License-Identifier: Apache-2.0
"""Rank schedules of restarts for a budget by their error.

Restarts make the trees shallow: a record is under fewer nodes and sigma is smaller, but the noise
at the end of each tree stays in the running sum. Completion makes that noise small, at the price of
some nodes. The best schedule depends on the run, so it is computed: for each schedule the squared
sensitivity, the smallest noise multiplier that keeps the budget, and from both the standard
deviation of the noise in the running sum at every step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, positive, positive_integer, probability
from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    check_participation,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import calibrated_noise_multiplier, touched
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound, squared_of
from dpftrl_fast.mechanisms import Completion, Tree, TreeLayout, Variant
from dpftrl_fast.mechanisms.run_error import (
    NoiseStd,
    check_error_steps,
    check_momentum,
    std_of,
)

RankBy = Literal["rms", "last", "worst", "smoothed"]


@dataclass(frozen=True)
class Schedule:
    """One way to run the declared steps within the budget, and its error.

    Attributes
    ----------
    participation : participation
        Who takes part when, and the declared number of steps.
    mechanism : Tree
        Restarts, completion and variant, which can also be read as attributes of the row.
    bound : {"exact", "released"}
        Coverage of `sensitivity_squared`: all nodes, or the released prefixes only.
    epsilon, delta : float
        The budget, for zero-out neighbours: one record's (or user's) gradients replaced by zero.
    noise_multiplier : float
        The smallest sigma that keeps it, the floor of the noise stream included.
    sensitivity_squared : int or float
        zeta, in units of the clip norm squared.
    momentum : float
        gamma of `smoothed_std`.
    rms_std, last_std, worst_std : float
        Standard deviation of the noise in one coordinate of the running sum, in clip norms: the
        root mean square over the steps, that of the last step, and the largest.
    smoothed_std : float
        The root mean square over the steps of the momentum-smoothed noise (1 - gamma) v_t.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan
    >>> row = plan_schedule(8, 1e-5, steps_per_epoch=100, epochs=10, bound="exact").best
    >>> row.mechanism.restart_every, round(row.noise_multiplier, 2), round(row.rms_std, 1)
    (100, 5.33, 11.0)
    >>> plan = PrivacyPlan.from_schedule(row, clip_norm=1.0)
    >>> plan.noise_multiplier == row.noise_multiplier, plan.epsilon(1e-5) <= 8
    (True, True)
    """

    participation: Participation
    mechanism: Tree
    bound: PlanBound
    epsilon: float
    delta: float
    noise_multiplier: float
    sensitivity_squared: int | float
    momentum: float
    rms_std: float
    last_std: float
    worst_std: float
    smoothed_std: float

    @property
    def restart_every(self) -> int | None:
        """Steps after which a new tree starts; None means one tree."""
        return self.mechanism.restart_every

    @property
    def complete(self) -> Completion:
        """Trees that are advanced to the next power of two."""
        complete = self.mechanism.complete
        return "all" if complete == "all" else complete is True

    @property
    def variant(self) -> Variant:
        """Variant of the tree: "honaker" or "vanilla"."""
        return self.mechanism.variant

    def noise_std(self) -> NoiseStd:
        """Return the standard deviations at every step, in clip norms, arrays of shape (steps,).

        Examples
        --------
        >>> best = plan_schedule(8, 1e-5, 100, 100, bound="exact").best
        >>> bool(best.noise_std().prefix[-1] == best.last_std)
        True
        """
        unit = std_of(self.mechanism.layout(self.participation.steps), self.momentum)
        return NoiseStd(unit.prefix * self.noise_multiplier, unit.smoothed * self.noise_multiplier)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-able dictionary."""
        rest = {k: v for k, v in self.__dict__.items() if k not in ("participation", "mechanism")}
        return {
            "participation": self.participation.to_dict(),
            "restart_every": self.restart_every,
            "complete": self.complete,
            "variant": self.variant,
            **rest,
        }


@dataclass(frozen=True)
class ScheduleTable(Sequence[Schedule]):
    """Schedules for one budget, the best first.

    ``str()`` gives a table of text.

    Attributes
    ----------
    rows : tuple of Schedule
    rank_by : {"rms", "last", "worst", "smoothed"}
        The error by which they are ranked.

    Examples
    --------
    >>> table = plan_schedule(8, 1e-5, steps_per_epoch=100, epochs=10, bound="exact")
    >>> len(table.rows), table.best is table.rows[0], table.rank_by
    (7, True, 'rms')
    """

    rows: tuple[Schedule, ...]
    rank_by: RankBy

    @property
    def best(self) -> Schedule:
        """The schedule with the smallest error."""
        return self.rows[0]

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> Schedule: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[Schedule, ...]: ...
    def __getitem__(self, i: int | slice) -> Schedule | tuple[Schedule, ...]:
        return self.rows[i]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return every row's `Schedule.to_dict`."""
        return [row.to_dict() for row in self.rows]

    def __str__(self) -> str:
        best = self.best
        heads = ("restart every", "complete", "variant", "sigma", "zeta")
        errors = [by for by in get_args(RankBy) if by != "smoothed" or best.momentum]
        lines = [
            (*heads, *errors),
            *(
                (
                    "never" if row.restart_every is None else str(row.restart_every),
                    str(row.complete),
                    row.variant,
                    f"{row.noise_multiplier:.2f}",
                    f"{row.sensitivity_squared:.6g}",
                    *(f"{_error(row, by):.1f}" for by in errors),
                )
                for row in self.rows
            ),
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            [
                f"epsilon {short_up(best.epsilon)} at delta {short_up(best.delta)} (neighbours: one"
                " record's (or user's) gradients replaced by zero)",
                f"{best.participation!r}, bound {best.bound!r}; noise in clip norms, ranked by"
                f" {self.rank_by!r}",
                *(
                    "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
                    for line in lines
                ),
            ]
        )


def plan_schedule(
    epsilon: float,
    delta: float,
    steps_per_epoch: int | None = None,
    epochs: int | None = None,
    *,
    participation: Participation | None = None,
    restart_every: Iterable[int | None] | int | None = None,
    complete: Iterable[Completion] | Completion = (False, True),
    variants: Iterable[Variant] | Variant = ("honaker",),
    momentum: float = 0.0,
    bound: PlanBound = "released",
    rank_by: RankBy = "rms",
    progress: Callable[[int, int], None] | None = None,
) -> ScheduleTable:
    """Rank the schedules of restarts that keep a budget by the error of the run.

    Parameters
    ----------
    epsilon, delta : float
        Budget, epsilon > 0 and 0 < delta < 1, for zero-out neighbours: one record's (or one
        user's) gradients replaced by zero.
    steps_per_epoch, epochs : int
        A run of ``FixedEpochs(steps_per_epoch, epochs)``, of at most 2^26 steps together.
    participation : participation, optional
        Any other pattern, instead of these two.
    restart_every : int, or iterable of int or None, optional
        Restart periods in steps to try; None among them is one tree. By default 1, 2, 5, 10, 20,
        50, .. epochs and never; for a `MinSeparation` the same multiples of the separation; for
        the other patterns powers of two, whose trees are complete.
    complete : iterable of bool or "all"
        Completions to try; those that make no difference to a period are left out.
    variants : iterable of {"honaker", "vanilla"}
        Forms of the noise to try.
    momentum : float
        gamma of the smoothed error, 0 <= gamma < 1.
    bound : {"released", "exact"}
        Whether the guarantee is for the released prefixes only, or for all nodes of the tree.
    rank_by : {"rms", "last", "worst", "smoothed"}
        Root mean square over the steps of the standard deviation of the noise in the running sum,
        that of the last step, the largest, or the root mean square of the momentum-smoothed one.
    progress : callable, optional
        Called with the number of schedules done and their total.

    Returns
    -------
    ScheduleTable
        The best first. ``PrivacyPlan.from_schedule`` makes a plan of a row.

    Notes
    -----
    Looking for the best schedule costs no privacy: nothing here depends on data.

    Examples
    --------
    >>> table = plan_schedule(8, 1e-5, steps_per_epoch=100, epochs=100, bound="exact")
    >>> best = table.best
    >>> best.restart_every, best.complete, round(best.noise_multiplier, 2), round(best.rms_std, 1)
    (500, True, 23.78, 64.6)
    """
    budget, total = positive("epsilon", epsilon), probability("delta", delta)
    pattern = _pattern(participation, steps_per_epoch, epochs)
    check_error_steps(pattern.steps)
    gamma = check_momentum(momentum)
    check_plan_bound(bound)
    choice("rank_by", rank_by, get_args(RankBy))
    kinds = _listed("variants", variants, get_args(Variant))
    completions = _listed("complete", complete, (False, True, "all"))
    trees = [
        replace(tree, variant=variant)
        for tree in _trees(pattern, restart_every, completions)
        for variant in kinds
    ]
    rows: list[Schedule] = []
    for tree in trees:
        layout = tree.layout(pattern.steps)
        zeta = squared_of(layout, pattern, bound)
        nodes = touched(layout, pattern, bound)
        sigma = calibrated_noise_multiplier(budget, total, zeta, nodes)
        if not math.isfinite(sigma):
            raise ValueError(f"no noise is large enough for epsilon {budget} at delta {total}")
        std = std_of(layout, gamma)
        rows.append(
            Schedule(
                participation=pattern,
                mechanism=tree,
                bound=bound,
                epsilon=budget,
                delta=total,
                noise_multiplier=sigma,
                sensitivity_squared=zeta,
                momentum=gamma,
                rms_std=sigma * _root_mean_square(std.prefix),
                last_std=sigma * float(std.prefix[-1]),
                worst_std=sigma * float(std.prefix.max()),
                smoothed_std=sigma * _root_mean_square(std.smoothed),
            )
        )
        if progress is not None:
            progress(len(rows), len(trees))
    rows.sort(key=lambda row: _error(row, rank_by))
    return ScheduleTable(tuple(rows), rank_by)


def default_trees(pattern: Participation) -> list[Tree]:
    """Return the trees that :func:`plan_schedule` tries by default."""
    return list(_trees(pattern, None, [False, True]))


def _root_mean_square(std: NDArray[np.float64]) -> float:
    return math.sqrt(float(np.dot(std, std)) / std.size)


def _error(row: Schedule, rank_by: str) -> float:
    return float(getattr(row, f"{rank_by}_std"))


def _pattern(
    participation: Participation | None, steps_per_epoch: int | None, epochs: int | None
) -> Participation:
    if participation is not None:
        if steps_per_epoch is not None or epochs is not None:
            raise ValueError("expected participation, or steps_per_epoch and epochs, got both")
        return check_participation(participation)
    if steps_per_epoch is None or epochs is None:
        raise ValueError(
            "expected participation, or steps_per_epoch and epochs, got "
            f"steps_per_epoch={steps_per_epoch!r} and epochs={epochs!r}"
        )
    return FixedEpochs(steps_per_epoch, epochs)


def _trees(
    pattern: Participation,
    restart_every: Iterable[int | None] | int | None,
    completions: list[Any],
) -> Iterator[Tree]:
    """Yield the trees that differ in their schedule."""
    if restart_every is None:
        periods = _default_periods(pattern)
    elif isinstance(restart_every, Iterable):
        periods = [*restart_every]
    else:
        periods = [restart_every]
    if not periods:
        raise ValueError("restart_every must hold at least one period or None, got none")
    seen = set()
    for period in periods:
        every = None if period is None else positive_integer("each of restart_every", period)
        if every is not None and every >= pattern.steps:
            every = None
        for completion in completions:
            tree = Tree(restart_every=every, complete=completion)
            ends = _ends(tree.layout(pattern.steps))
            if ends not in seen:
                seen.add(ends)
                yield tree


def _ends(layout: TreeLayout) -> tuple[tuple[int, int, int], ...]:
    """Return the ends of the trees: schedules with the same ends are the same."""
    same = groupby(layout.runs, key=lambda run: (run.steps, run.end))
    return tuple((*key, sum(run.count for run in runs)) for key, runs in same)


def _default_periods(pattern: Participation) -> list[int | None]:
    unit = 1
    if isinstance(pattern, FixedEpochs):
        unit = pattern.steps_per_epoch
    elif isinstance(pattern, MinSeparation):
        unit = pattern.min_separation
    counts = [digit * 10**power for power in range(13) for digit in (1, 2, 5)]
    if unit == 1:
        counts = [1 << power for power in range(40)]
    return [*(unit * count for count in counts if unit * count < pattern.steps), None]


def _listed(name: str, values: Any, allowed: tuple[Any, ...]) -> list[Any]:
    """Return one value or several as a list of those allowed, each once."""
    words = ", ".join(map(repr, allowed))
    if type(values) in (bool, np.bool_, str):
        found = [values]
    elif isinstance(values, Iterable):
        found = [*values]
    else:
        raise TypeError(f"{name} must hold {words}, got {type(values).__name__}")
    if not found:
        raise ValueError(f"{name} must hold at least one of {words}, got none")
    return list(dict.fromkeys(choice(f"each of {name}", value, allowed) for value in found))
