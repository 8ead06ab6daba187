# SPDX-License-Identifier: Apache-2.0
"""Options that declare the participation pattern and the trees of a run."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpftrl_fast._validate import positive_integer, shown
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.files import array_in

Steps = Annotated[
    int | None, typer.Option(help="Number of steps, instead of --rows and --batch-size.")
]
Rows = Annotated[
    int | None, typer.Option("--rows", "--examples", help="Number of row slots (examples).")
]
BatchSize = Annotated[int, typer.Option(help="Rows of a step, with --rows.")]
StepsPerEpoch = Annotated[
    int | None, typer.Option(help="Steps of an epoch, with --epochs, instead of --rows.")
]
Epochs = Annotated[
    int | None, typer.Option(help="Passes over the rows, the same batches in the same order.")
]
Reshuffle = Annotated[
    bool,
    typer.Option(
        "--reshuffle/--no-reshuffle",
        help="Allow rows to be reassigned to batches at each restart, with --epochs.",
    ),
]
MaxParticipations = Annotated[
    int | None,
    typer.Option(help="Maximum participations of a record (or user), with --min-separation."),
]
MinSeparationOption = Annotated[
    int | None,
    typer.Option(help="Minimum of j - i for participations i < j of a record (or user)."),
]
Order = Annotated[
    Path | None,
    typer.Option(
        help="File with the ids of each step. Text: one line a step, ids separated by spaces, an "
        "empty line or -1 for nobody. Or .npy: one id a step."
    ),
]


class Variant(str, enum.Enum):
    """Estimators of the prefix noise."""

    honaker = "honaker"
    vanilla = "vanilla"


VariantOption = Annotated[Variant, typer.Option(help="Estimator of the prefix noise.")]


class Complete(str, enum.Enum):
    """Trees that are advanced to the next power of two."""

    none = "none"
    restarts = "restarts"
    all = "all"


class Bound(str, enum.Enum):
    """Scopes of the sensitivity."""

    exact = "exact"
    released = "released"


BoundOption = Annotated[
    Bound,
    typer.Option(help="Scope of zeta: all nodes (exact), or the running sums (released)."),
]


def completion(choice: Complete) -> bool | Literal["all"]:
    """Return the accountant's value of this choice."""
    return "all" if choice is Complete.all else choice is Complete.restarts


def given(ctx: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, by the name of its parameter."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@dataclass(frozen=True)
class Pattern:
    """Options of one command that declare its participation pattern."""

    steps: int | None
    rows: int | None
    batch_size: int
    steps_per_epoch: int | None
    epochs: int | None
    reshuffle: bool
    max_participations: int | None
    min_separation: int | None
    order: Path | None

    def participation(self) -> Participation:
        """Return the declared pattern; refuse options that exclude each other."""
        apart = (self.max_participations, self.min_separation)
        if (apart[0] is None) != (apart[1] is None):
            raise ValueError("--max-participations and --min-separation must be given together")
        if self.order is not None:
            others = (self.steps, self.rows, self.steps_per_epoch, self.epochs, *apart)
            if any(option is not None for option in others):
                raise ValueError("--order excludes all other options of the pattern")
            return read_order(self.order)
        given = [x for x in (self.steps, self.rows, self.steps_per_epoch) if x is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of --steps, --rows, --steps-per-epoch and --order must be given, got "
                f"{len(given)}"
            )
        if self.steps is not None and self.epochs is not None:
            raise ValueError("--epochs needs --rows or --steps-per-epoch, got --steps")
        if self.steps_per_epoch is not None and self.epochs is None:
            raise ValueError("--steps-per-epoch needs --epochs")
        epoch = self.epoch()
        epochs = 1 if self.epochs is None else self.epochs
        if self.max_participations is not None and self.min_separation is not None:
            steps = epoch * epochs if self.steps is None else self.steps
            return MinSeparation(steps, self.max_participations, self.min_separation)
        if self.epochs is not None:
            return FixedEpochs(epoch, self.epochs, reshuffle=self.reshuffle)
        return SinglePass(epoch if self.steps is None else self.steps)

    def epoch(self) -> int:
        """Return the number of steps of one pass over the rows."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        rows = self.rows
        if rows is None:
            return 0
        return -(-positive_integer("rows", rows) // positive_integer("batch_size", self.batch_size))

    def period(self, restart_every: int | None, restart_epochs: int | None) -> int | None:
        """Return the restart period in steps."""
        if restart_epochs is None:
            return restart_every
        if restart_every is not None:
            raise ValueError("--restart-every and --restart-epochs exclude each other")
        if self.epochs is None:
            raise ValueError("--restart-epochs needs --epochs")
        return self.epoch() * restart_epochs


def read_order(path: Path) -> FixedOrder:
    """Read the ids of each step from a text or .npy file."""
    content = path.read_bytes()
    if path.suffix == ".npy":
        try:
            ids = array_in(content)
        except ValueError as error:
            raise ValueError(f"{str(path)!r}: {error}") from None
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            came = f"{ids.dtype} of shape {ids.shape}"
            raise ValueError(f"{str(path)!r}: expected a one-dimensional array of ids, got {came}")
        return FixedOrder(ids)
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{str(path)!r}: expected ids as UTF-8 text, got other bytes") from None
    steps: list[list[int]] = []
    for number, line in enumerate(lines, start=1):
        words = line.replace(",", " ").split()
        try:
            step = [int(word) for word in words]
        except ValueError:
            raise ValueError(
                f"{str(path)!r}, line {number}: expected ids, got {shown(line)}"
            ) from None
        steps.append([] if step == [-1] else step)
    if not steps:
        raise ValueError(f"{str(path)!r}: expected at least one line, got an empty file")
    return FixedOrder.from_steps(steps)
