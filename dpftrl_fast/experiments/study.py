# SPDX-License-Identifier: Apache-2.0
"""What an experiment is: a function that asks for measurements and returns a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from dpftrl_fast.experiments.results import Results, Setting, Values

#: From a title to a context that gives a callback (done, total), or None.
Progress: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]


class Job(NamedTuple):
    """One measurement.

    Attributes
    ----------
    setting : mapping
        All that it depends on but the seed, of what JSON knows.
    seed : int
    work : callable
        Makes the values, finite numbers; it depends on setting and seed alone.
    """

    setting: Setting
    seed: int
    work: Callable[[], Values]


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


@dataclass(frozen=True)
class Report:
    """What came out.

    Attributes
    ----------
    data : list of mappings
        The numbers, of what JSON knows.
    tables : list of Table
    figures : mapping of file name to bytes
        PNG files.
    """

    data: list[Mapping[str, Any]]
    tables: list[Table] = field(default_factory=list)
    figures: Mapping[str, bytes] = field(default_factory=dict)


class Laboratory:
    """Does the jobs of one experiment, but those whose results are there already.

    Parameters
    ----------
    experiment : str
        Its name.
    results : Results
    progress : callable, optional
        See `Progress`.

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
        """Return the values of jobs, in their order."""
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
