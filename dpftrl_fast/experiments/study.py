# SPDX-License-Identifier: Apache-2.0
"""Experiments: functions that ask for measurements and return a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from dpftrl_fast.accounting.curve.gaussian import epsilon as gaussian_epsilon
from dpftrl_fast.accounting.curve.gaussian import noise_multiplier
from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.experiments.results import Results, Setting, Values

#: Maps a title to a context that gives a callback (done, total), or None.
Progress: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]


class Job(NamedTuple):
    """One measurement: `work` computes finite values, which depend on setting and seed alone."""

    setting: Setting
    seed: int
    work: Callable[[], Values]


def seeded(setting: Setting, work: Callable[..., Values]) -> Callable[[int], Job]:
    """Return jobs of one setting by their seeds, whose work is ``work(seed=seed)``."""
    return lambda seed: Job(setting, seed, partial(work, seed=seed))


class Table(NamedTuple):
    """A table of text: the first column names the rows."""

    title: str
    heading: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table in Markdown.

        Examples
        --------
        >>> print(Table("T", ("a", "b"), [("x", "1")]).markdown())
        **T**
        <BLANKLINE>
        | a | b |
        |---|---|
        | x | 1 |
        """
        lines = [f"| {' | '.join(row)} |" for row in (self.heading, *self.rows)]
        lines.insert(1, "|" + "---|" * len(self.heading))
        return "\n".join([f"**{self.title}**", "", *lines])


def grid_table(title: str, axis: str, cells: Sequence[tuple[str, float, str]]) -> Table:
    """Return a table of (row, column, text), empty where there is no cell.

    Examples
    --------
    >>> grid_table("T", "epsilon", [("x", 2.0, "b"), ("x", 1.0, "a"), ("y", 1.0, "c")]).rows
    [('x', 'a', 'b'), ('y', 'c', '')]
    """
    columns = sorted({column for _, column, _ in cells})
    texts = {(row, column): text for row, column, text in cells}
    rows = [
        (name, *(texts.get((name, column), "") for column in columns))
        for name in dict.fromkeys(name for name, _, _ in cells)
    ]
    return Table(title, ("", *(f"{axis} {short_up(column)}" for column in columns)), rows)


def neighbours_table(budgets: Iterable[tuple[float, float]]) -> Table:
    """Return the replace-one epsilon of each (epsilon, delta), for noise without amplification.

    Examples
    --------
    >>> neighbours_table([(8.0, 1e-5), (1.0, 1e-5)]).rows
    [('1e-05', '1', '2.155'), ('1e-05', '8', '19.13')]
    """
    rows: list[tuple[str, ...]] = []
    for epsilon, delta in sorted(set(budgets)):
        other = gaussian_epsilon(noise_multiplier(epsilon, delta, 1), 4, delta)
        rows.append((short_up(delta), short_up(epsilon), text_up(other)))
    return Table(
        "Epsilon for both kinds of neighbours, without amplification",
        ("delta", "zero-out", "replace-one"),
        rows,
    )


@dataclass(frozen=True)
class Report:
    """The outcome of an experiment: JSON-able numbers, tables, and PNG files by file name."""

    data: list[Mapping[str, Any]]
    tables: list[Table] = field(default_factory=list)
    figures: Mapping[str, bytes] = field(default_factory=dict)


class Laboratory:
    """Runs the jobs of one experiment, except those whose results exist already.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> laboratory = Laboratory("demo", Results(Path(tempfile.mkdtemp()) / "results.jsonl"))
    >>> job = Job({"p": 3}, 0, lambda: {"risk": 0.5})
    >>> laboratory.run("a demo", [job, job])
    [{'risk': 0.5}, {'risk': 0.5}]
    >>> laboratory.done
    1
    """

    def __init__(self, experiment: str, results: Results, progress: Progress | None = None) -> None:
        self.experiment = experiment
        self.results = results
        self.done = 0
        self._progress = progress

    def run(self, title: str, jobs: Sequence[Job]) -> list[Values]:
        """Return the values of jobs, in order."""
        found = []
        bar = nullcontext() if self._progress is None else self._progress(title)
        with bar as tell:
            for number, (setting, seed, work) in enumerate(jobs, 1):
                values = self.results.get(self.experiment, setting, seed)
                if values is None:
                    self.results.add(self.experiment, setting, seed, work())
                    values = self.results.get(self.experiment, setting, seed)
                    self.done += 1
                assert values is not None
                found.append(values)
                if tell is not None:
                    tell(number, len(jobs))
        return found

    def once(self, title: str, setting: Setting, work: Callable[[], float]) -> float:
        """Return one number, which is named "last" in its row of results."""
        return self.run(title, [Job(setting, 0, lambda: {"last": work()})])[0]["last"]

    def repeat(
        self, title: str, jobs: Sequence[Callable[[int], Job]], seeds: int
    ) -> list[list[Values]]:
        """Return for each job its values with the seeds 0, 1, .., ``seeds - 1``."""
        found = self.run(title, [job(seed) for job in jobs for seed in range(seeds)])
        return [found[start : start + seeds] for start in range(0, len(found), seeds)]
