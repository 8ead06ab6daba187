# SPDX-License-Identifier: Apache-2.0
"""Options that declare who takes part when, and how the steps are laid out over trees."""

from __future__ import annotations

import enum
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)

Delta = Annotated[float, typer.Option(help="Delta of the guarantee.")]
Steps = Annotated[int | None, typer.Option(help="Declared steps, or --rows and --batch-size.")]
Rows = Annotated[
    int | None, typer.Option("--rows", "--examples", help="Declared row slots (examples).")
]
BatchSize = Annotated[int, typer.Option(help="Rows a step, with --rows.")]
StepsPerEpoch = Annotated[int | None, typer.Option(help="With --epochs, instead of --rows.")]
Epochs = Annotated[
    int | None, typer.Option(help="Passes over the rows, the same batches in the same order.")
]
Reshuffle = Annotated[
    bool,
    typer.Option(
        "--reshuffle/--no-reshuffle",
        help="With --epochs: whether rows may be dealt to batches afresh at each restart.",
    ),
]
MaxParticipations = Annotated[
    int | None, typer.Option(help="Most uses of one record (or user), with --min-separation.")
]
MinSeparationOption = Annotated[
    int | None, typer.Option(help="Two uses i < j of one record (or user) have j - i >= this.")
]
Order = Annotated[
    Path | None,
    typer.Option(
        help="Who takes part in each step. Text: a line a step, ids with spaces between them, "
        "nobody: an empty line or -1. Or .npy: an id a step."
    ),
]


class Variant(str, enum.Enum):
    """How the noise of a prefix is formed."""

    honaker = "honaker"
    vanilla = "vanilla"


VariantOption = Annotated[Variant, typer.Option(help="Form of the tree noise.")]


class Complete(str, enum.Enum):
    """Trees that are advanced to the next power of two."""

    none = "none"
    restarts = "restarts"
    all = "all"


class Bound(str, enum.Enum):
    """What the sensitivity covers."""

    exact = "exact"
    released = "released"


BoundOption = Annotated[
    Bound,
    typer.Option(help="exact: all nodes of the tree; released: only the running sums leave."),
]


def completion(choice: Complete) -> bool | Literal["all"]:
    """Return what the accountant calls this choice."""
    return "all" if choice is Complete.all else choice is Complete.restarts


@dataclass(frozen=True)
class Pattern:
    """The options of one command."""

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
        """Return the pattern that the options declare, or say which do not fit together."""
        apart = (self.max_participations, self.min_separation)
        if (apart[0] is None) != (apart[1] is None):
            raise ValueError("expected --max-participations and --min-separation, got one of them")
        if self.order is not None:
            others = (self.steps, self.rows, self.steps_per_epoch, self.epochs, *apart)
            if any(option is not None for option in others):
                raise ValueError("--order declares the whole pattern: expected no other option")
            return read_order(self.order)
        given = [x for x in (self.steps, self.rows, self.steps_per_epoch) if x is not None]
        if len(given) != 1:
            raise ValueError(
                "expected exactly one of --steps, --rows, --steps-per-epoch and --order, got "
                f"{len(given)} of them"
            )
        if self.steps is not None and self.epochs is not None:
            raise ValueError("--epochs goes with --rows or --steps-per-epoch, got --steps")
        if self.steps_per_epoch is not None and self.epochs is None:
            raise ValueError("--steps-per-epoch goes with --epochs, got none")
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
        if not (rows >= 1 and self.batch_size >= 1):
            raise ValueError(f"rows and batch size must be >= 1, got {rows} and {self.batch_size}")
        return -(-rows // self.batch_size)

    def period(self, restart_every: int | None, restart_epochs: int | None) -> int | None:
        """Return the restart period in steps."""
        if restart_epochs is None:
            return restart_every
        if restart_every is not None:
            raise ValueError("expected --restart-every or --restart-epochs, got both")
        if self.epochs is None:
            raise ValueError("--restart-epochs goes with --epochs, got none")
        return self.epoch() * restart_epochs


def read_order(path: Path) -> FixedOrder:
    """Read the ids of each step from a text or .npy file.

    Raises
    ------
    ValueError, OSError
        If it is no such file, or holds anything but integers.
    """
    content = path.read_bytes()
    if path.suffix == ".npy":
        ids = np.load(io.BytesIO(content), allow_pickle=False)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            came = f"{ids.dtype} of shape {ids.shape}"
            raise ValueError(f"{str(path)!r}: expected a one-dimensional array of ids, got {came}")
        return FixedOrder(ids)
    steps: list[list[int]] = []
    for number, line in enumerate(content.decode("utf-8").splitlines(), start=1):
        words = line.replace(",", " ").split()
        try:
            step = [int(word) for word in words]
        except ValueError:
            raise ValueError(f"{str(path)!r}, line {number}: expected ids, got {line!r}") from None
        steps.append([] if step == [-1] else step)
    if not steps:
        raise ValueError(f"{str(path)!r}: expected at least one line, got an empty file")
    return FixedOrder.from_steps(steps)
