# SPDX-License-Identifier: Apache-2.0
"""Private tables of events over time: ``dpftrl-fast sum --time``."""

from __future__ import annotations

import csv
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpftrl_fast._validate import real
from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.cli.output import facts_table, note, print_json, rounded_up, show
from dpftrl_fast.cli.sums.output import SumOptions
from dpftrl_fast.files import write_files
from dpftrl_fast.streams.tables.counter import PrivateCounter
from dpftrl_fast.tables import NOT_PRIVATE
from dpftrl_fast.tables.cells import numbers
from dpftrl_fast.tables.column_file import ColumnFile
from dpftrl_fast.tables.csv_slots import STANDARD_INPUT

#: Key of all events where no column of keys is given, and the column that has it.
_ALL = "all"


@dataclass(frozen=True)
class EventSums:
    """Options of a table of events, as they were given."""

    time: str
    start: str | None
    period: str
    periods: int | None
    until: str | None
    key: str | None
    keys: str | None
    user: str | None
    user_periods: int | None
    keys_per_period: int
    events_per_key: int
    figures: str
    window: int | None
    late: str
    batch: str | None
    plot: Path | None
    column: str | None
    bounds: tuple[float, float] | None

    @property
    def unit(self) -> str:
        """The unit of privacy that the columns ask for."""
        if self.user is None:
            return "event"
        return "user-period" if self.user_periods is None else "user"

    @property
    def is_numeric(self) -> bool:
        """Whether times are numbers: the period is one."""
        return _number(self.period) is not None

    @property
    def clock(self) -> Any:
        """The time of --until, as `PrivateCounter` takes it."""
        return _number(self.until) if self.until is not None and self.is_numeric else self.until

    @property
    def columns(self) -> dict[str, str]:
        """Names of the columns that are read, by their use."""
        named = {"time": self.time, "key": self.key, "user": self.user, "value": self.column}
        return {use: name for use, name in named.items() if name is not None}

    @property
    def key_column(self) -> str:
        """The column of keys; without one, a name that no column has that is read."""
        if self.key is not None:
            return self.key
        name = "key"
        while name in (self.time, self.user, self.column):
            name += "_"
        return name

    @property
    def declared_keys(self) -> list[str]:
        """The declared keys."""
        if self.key is None:
            return [_ALL]
        return [key.strip() for key in (self.keys or "").split(",")]

    def check(self) -> None:
        """Refuse options that are missing, or do not fit together."""
        if self.start is None:
            raise ValueError("--start is needed with --time: the start of the first period")
        if (self.key is None) != (self.keys is None):
            raise ValueError("--group-by and --keys, the public list of keys, go together")
        if not all(self.declared_keys):
            raise ValueError(f"--keys must be keys, separated by commas, got {self.keys!r}")
        if (self.column is None) != (self.bounds is None):
            raise ValueError("--column and --bounds, the public bounds of its values, go together")
        if self.is_numeric and _number(self.start or "") is None:
            raise ValueError(f"--start must be a number, as --period is, got {self.start!r}")
        if self.until is not None and self.is_numeric and _number(self.until) is None:
            raise ValueError(f"--until must be a number, as --period is, got {self.until!r}")
        if self.user is None and self.user_periods is not None:
            raise ValueError("--user-periods needs --user, the column of users")

    def settings(self) -> dict[str, Any]:
        """Return the declared facts, as `PrivateCounter` takes them."""
        numeric = _number(self.period)
        facts: dict[str, Any] = {
            "keys": self.declared_keys,
            "periods": self.periods,
            "start": self.start if numeric is None else _number(self.start or ""),
            "period": self.period if numeric is None else numeric,
            "unit": self.unit,
            "figures": self.figures,
            "window": self.window,
            "late": self.late,
            "values": self.bounds,
            "time": self.time,
            "key": self.key_column,
            "value": self.column or "value",
        }
        if self.user is not None:
            facts |= {
                "user": self.user,
                "keys_per_period": self.keys_per_period,
                "events_per_key": self.events_per_key,
            }
        if self.user_periods is not None:
            facts["user_periods"] = self.user_periods
        return facts


def sum_events(options: SumOptions, sums: EventSums) -> None:
    """Write the private figures of a table of events."""
    sums.check()
    real("--level", options.level, above=0.0, below=1.0)
    if options.folder is not None and sums.batch is None and str(options.data) == STANDARD_INPUT:
        raise ValueError(
            "--batch is needed with --folder and the standard input, which has no name: a label, by"
            " which a batch that is given twice counts once"
        )
    names = list(dict.fromkeys(sums.columns.values()))
    # That there was no event is private: a file without rows is one of an ordinary day.
    file = ColumnFile(options.data, names, may_lack_rows=True, **options.csv)
    if options.validate_only:
        _validate(_new(options, sums), _blocks(file, sums), json_=options.json)
        return
    if sums.until is None and (options.folder is not None or sums.periods is None):
        raise ValueError(
            "--until is needed with --folder, and without --periods: periods that end by this time "
            "are released, and without it all of them would be"
        )
    options.check_out(*([] if sums.plot is None else [sums.plot]))
    if options.continues:
        assert options.folder is not None
        with PrivateCounter.open(options.folder) as counter:
            _refuse_others(counter, options, sums)
            _run(options, sums, counter, file, None)
        return
    counter = _new(options, sums)
    counter.would_close(sums.clock)  # refuses a wrong time before the charge
    label = f"table of {len(sums.declared_keys):,} keys, {counter.periods:,} periods, epsilon "
    charged = options.charge(counter.plan, f"{label}{options.epsilon!r}")
    if options.folder is not None:
        counter.save(options.folder)
    with counter:
        _run(options, sums, counter, file, charged)


def _new(options: SumOptions, sums: EventSums) -> PrivateCounter:
    mechanism: Any = None if options.mechanism == "auto" else options.mechanism
    return PrivateCounter.calibrate(
        epsilon=options.epsilon,
        delta=options.delta,
        seed=options.noise_seed,
        mechanism=mechanism,
        **sums.settings(),
    )


def _refuse_others(counter: PrivateCounter, options: SumOptions, sums: EventSums) -> None:
    """Refuse other options than those with which the folder was begun."""
    now = _new(options, sums)
    facts, others = ({"keys": x.keys, **x.declared} for x in (now, counter))
    if facts != others:
        names = [name for name, value in facts.items() if others[name] != value]
        raise ValueError(
            f"the options must be those of the first run of {str(options.folder)!r}, got another "
            f"{', '.join(names)}"
        )
    options.check_continued(counter.epsilon(options.delta))


def _blocks(file: ColumnFile, sums: EventSums) -> Iterator[dict[str, Any]]:
    """Yield the columns of events, block by block."""
    names = list(file.columns)
    for block, _ in file.read(names):
        columns = {name: block[name] for name in names}
        numeric = [sums.column, sums.time if sums.is_numeric else None]
        for name in numeric if file.is_text else []:
            if name is not None:
                columns[name] = numbers(block[name], file.numbers)
        if sums.key is None:
            columns[sums.key_column] = np.full(block.num_rows, _ALL)
        yield columns


def _run(
    options: SumOptions, sums: EventSums, counter: PrivateCounter, file: ColumnFile, charged: Any
) -> None:
    label = options.data.name if sums.batch is None else sums.batch
    until = sums.clock
    if options.folder is not None and counter.is_stale_batch(label, until):
        raise ValueError(
            f"the batch {label!r} was added before the last release, and would be skipped while "
            f"--until closes further periods, got --until {sums.until}: give new events a new "
            "--batch, such as the date (events that were added before would then count twice)"
        )
    if options.folder is not None and counter.has_batch(label):
        note(f"note: the batch {label!r} was added before: it is skipped")
    else:
        for block in _blocks(file, sums):
            counter.add(block)
        if options.folder is not None:
            counter.add({name: [] for name in counter.columns}, batch=label)
    _release(counter, until, told=options.folder is not None)
    options.write(_csv(counter.table(level=options.level)))
    plan, delta = counter.plan, options.delta
    other = plan.replace_one(delta)
    if sums.plot is not None and counter.periods_closed:
        replaced = rounded_up(other) if other is None else text_up(other)
        title = (
            f"epsilon {text_up(counter.epsilon(delta))} (replace-one {replaced}) at "
            f"delta {short_up(delta)}"
        )
        picture = counter.plot(level=options.level, title=title)
        write_files(sums.plot.parent, {sums.plot.name: picture})
    options.conclude(
        {
            "epsilon": float(counter.epsilon(delta)),
            "delta": delta,
            "neighbours": f"{counter.unit}, removed",
            "epsilon_replace_one": other,
            "mechanism": plan.mechanism.to_dict(),
            "noise_multiplier": plan.noise_multiplier,
            "figures": sums.figures,
            "window": sums.window,
            "keys": counter.keys,
            "periods": counter.periods,
            "periods_released": counter.periods_closed,
            "std": [float(x) for x in counter.std()[: counter.periods_closed][-1:]],
        },
        {
            "epsilon": f"{rounded_up(counter.epsilon(delta))}  ({counter.unit}, removed)",
            "epsilon, replace-one": f"{rounded_up(other)}  ({counter.unit}, replaced)",
            "delta": f"{short_up(delta)}  (of which {text_up(plan.guarantee.at(delta).floor())} "
            "for the noise's finite tail)",
            "sigma": f"{plan.noise_multiplier:.6g}  (noise multiplier)",
            "figures": counter.figures,
            "counted": counter.bounding,
            "mechanism": plan.layout.describe(),
            "released": f"{counter.periods_closed:,} of {counter.periods:,} periods, "
            f"{len(counter.keys):,} key{'s' * (len(counter.keys) > 1)}",
        },
        counter.reproducible,
        charged,
    )


def _release(counter: PrivateCounter, until: Any, *, told: bool) -> None:
    """Close the periods that are over; say if they are several, or a batch came too late."""
    first = counter.periods_closed
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        released = counter.release(until)
    for warning in caught:
        note(f"warning: {warning.message}")
    count = counter.periods_closed - first
    if told and count > 1:
        starts = _cells(np.asarray(released["period_start"]))
        note(f"closed {count:,} periods, {starts[0]} to {starts[-1]}")


def _csv(table: Any) -> bytes:
    """Return a table of figures as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(table)
    writer.writerow(names)
    columns = [_cells(np.asarray(table[name])) for name in names]
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()


def _cells(column: Any) -> list[Any]:
    if column.dtype.kind == "M":
        texts = np.datetime_as_string(column.astype("datetime64[us]")).tolist()
        return [text.removesuffix(".000000").removesuffix("T00:00:00") for text in texts]
    return list(column.tolist())


def _number(text: str) -> float | int | None:
    """Return a text as a number; None if it is none."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _validate(counter: PrivateCounter, blocks: Iterator[dict[str, Any]], *, json_: bool) -> None:
    """Print how many events count, and why others do not: NOT private."""
    total = counter.explain(blocks)
    report = {"label": NOT_PRIVATE, **total}
    if json_:
        print_json(report)
    else:
        show(NOT_PRIVATE, facts_table(total))
