# SPDX-License-Identifier: Apache-2.0
"""The convex experiments together: ``dpftrl-fast experiment convex``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from dpftrl_fast._validate import choice
from dpftrl_fast.experiments.convex import counter, fashion, flights, insteval, theory
from dpftrl_fast.experiments.results import Results
from dpftrl_fast.experiments.study import Laboratory, Progress, Report
from dpftrl_fast.files import check_folder, write_files


def _loaded(module: Any) -> Experiment:
    """Return the study of a module on the data that it loads."""
    return lambda data, laboratory, quick: module.study(module.load(data), laboratory, quick=quick)


#: Arguments: the folder of the data, a laboratory and whether to run quickly.
Experiment: TypeAlias = Callable[[Path | None, Laboratory, bool], Report]

#: Name and function of each experiment, in order.
EXPERIMENTS: Mapping[str, Experiment] = {
    "theory": lambda data, laboratory, quick: theory.study(laboratory, quick=quick),
    "counter": lambda data, laboratory, quick: counter.study(laboratory, quick=quick),
    "flights": _loaded(flights),
    "insteval": _loaded(insteval),
    "fashion-mnist": _loaded(fashion),
}


class Finished(NamedTuple):
    """The outcome of an experiment: a report, or a message about missing data.

    `done` is the number of fits that were made; the others existed already.
    """

    name: str
    report: Report | None
    missing: str
    done: int


def run_experiments(
    names: Sequence[str],
    out: Path,
    *,
    data: Path | None = None,
    quick: bool = False,
    progress: Progress | None = None,
    experiments: Mapping[str, Experiment] | None = None,
) -> Iterator[Finished]:
    """Run experiments, one after the other, and write their results.

    ``results.jsonl`` has a row for each fit, on disk as soon as it is made: after an interruption
    the same call resumes. Tables are in ``<name>.md``, figures beside them.

    Names are those of `experiments` (default `EXPERIMENTS`), none for all. The folder `out` is
    created if necessary. Data files that are not in the folder `data` are those of installed
    packages. `quick` selects small settings, to check that everything works.

    Raises
    ------
    ValueError
        For an unknown name, or an invalid file of results.
    FileNotFoundError
        Where the data of an experiment that was named are missing. If none was named, the others
        are run all the same.
    """
    known = EXPERIMENTS if experiments is None else experiments
    for name in names:
        choice("experiment", name, tuple(known))
    check_folder(out)
    results = Results(out / "results.jsonl")
    for name in names or known:
        laboratory = Laboratory(name, results, progress)
        try:
            report = known[name](data, laboratory, quick)
        except FileNotFoundError as error:
            if names:
                raise
            yield Finished(name, None, str(error), laboratory.done)
            continue
        text = "\n\n".join(table.markdown() for table in report.tables)
        write_files(out, {**report.figures, f"{name}.md": f"{text}\n".encode()})
        yield Finished(name, report, "", laboratory.done)


def as_data(finished: Sequence[Finished]) -> dict[str, Any]:
    """Return all facts, JSON-able."""
    return {
        end.name: {"missing": end.missing}
        if end.report is None
        else {
            "rows": [dict(row) for row in end.report.data],
            "figures": [*end.report.figures],
            "done": end.done,
        }
        for end in finished
    }
