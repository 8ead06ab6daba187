# SPDX-License-Identifier: Apache-2.0
"""Options of ``dpftrl-fast sum`` that both of its kinds share, and what it prints and writes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.cli.budget import budget_facts, opened_budget
from dpftrl_fast.cli.output import (
    facts_table,
    note,
    print_json,
    refuse_to_overwrite,
    show,
)
from dpftrl_fast.files import check_folder, write_files
from dpftrl_fast.tables import CsvOptions
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT

_STANDARD_OUTPUT = "-"


@dataclass(frozen=True)
class SumOptions:
    """Options of a sum, as they were given."""

    data: Path
    out: Path | None
    csv: CsvOptions
    folder: Path | None
    level: float
    epsilon: float
    delta: float
    mechanism: str
    validate_only: bool
    budget: Path | None
    noise_seed: int | None
    force: bool
    json: bool

    @property
    def is_printed(self) -> bool:
        """Whether the sums are printed, and all else goes to stderr."""
        return str(self.out) == _STANDARD_OUTPUT

    @property
    def facts_file(self) -> TextIO:
        """Stream of the summary."""
        return sys.stderr if self.is_printed else sys.stdout

    @property
    def continues(self) -> bool:
        """Whether the folder holds a job to continue."""
        return self.folder is not None and self.folder.is_dir() and any(self.folder.iterdir())

    def check_out(self, *others: Path) -> None:
        """Refuse files to write that exist (but for those of a job in a folder), or are DATA."""
        if self.out is None:
            raise ValueError("--out is needed: a CSV file to write, or - for the standard output")
        if self.out in others:
            raise ValueError(f"--plot must be another file than --out, got {str(self.out)!r}")
        for path in (self.out, *others):
            if path is self.out and self.is_printed:
                continue
            refuse_to_overwrite(path, force=self.force or self.continues)
            refuse_input(path, self.data)
            check_folder(path.parent)

    def check_continued(self, epsilon: float) -> None:
        """Refuse options of a first run, and a guarantee of the folder above --epsilon."""
        if self.budget is not None or self.noise_seed is not None:
            raise ValueError("--budget and --noise-seed are of the first run of a folder")
        if not epsilon <= self.epsilon:
            raise ValueError(
                f"--epsilon must be at least {short_up(epsilon)} at delta {self.delta!r}, the "
                f"guarantee of the folder, which is fixed, got {self.epsilon!r}"
            )

    def charge(self, run: Any, label: str) -> Any:
        """Charge a run to the budget, on the disk before a row is read; return it or None."""
        charged = opened_budget(self.budget, self.noise_seed, "sums are")
        if charged is not None:
            charged.spend(run, label=label)
        return charged

    def write(self, text: bytes) -> None:
        """Write the sums, whole or not at all."""
        assert self.out is not None
        if self.is_printed:
            sys.stdout.write(text.decode())
        else:
            write_files(self.out.parent, {self.out.name: text})

    def conclude(
        self, facts: Mapping[str, Any], told: Mapping[str, Any], reproducible: bool, charged: Any
    ) -> None:
        """Print the summary: `facts` as JSON, or `told` as a table."""
        if self.json:
            marks = ["reproducible, not private"] if reproducible else []
            more = {} if charged is None else {"budget": budget_facts(charged)}
            print_json(
                {**facts, "marks": marks, "out": str(self.out), **more}, file=self.facts_file
            )
            return
        show(facts_table(told), file=self.facts_file)
        if reproducible:
            note("warning: reproducible, not private: a noise seed was given")
        if not self.is_printed:
            show(f"wrote {self.out}")
        if charged is not None:
            show("", "Budget", *str(charged).splitlines()[:3], file=self.facts_file)


def refuse_input(out: Path, data: Path) -> None:
    """Raise ValueError if the output would replace the rows."""
    if out.exists() and str(data) != STANDARD_INPUT and data.exists() and out.samefile(data):
        raise ValueError(f"--out must be another file than DATA, got {str(out)!r} for both")
