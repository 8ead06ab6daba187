# SPDX-License-Identifier: Apache-2.0
"""Output of the commands: tables, JSON, progress bars, and errors in one line."""

from __future__ import annotations

import functools
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from typer.models import ArgumentInfo, ParameterInfo

#: Unit of the neighbours where the ids may stand for records or users.
UNIT = "record (or user)"
NEIGHBOURS = f"one {UNIT} replaced by zero"

_STANDARD_INPUT = "-"

_CHECK = "check the name, which starts from the current folder"
#: Parameters that name a file to read, with the remedy where there is none of that name.
_INPUTS = {
    "data": _CHECK,
    "test_public": _CHECK,
    "order": _CHECK,
    "plan": "`dpftrl-fast plan .. --out FILE` writes one, as does PrivacyPlan.save",
    "schema": "`dpftrl-fast schema draft DATA --out FILE` writes a draft",
    "model": "`dpftrl-fast fit .. --out FOLDER` writes one",
    "file": "`dpftrl-fast budget new FILE --epsilon E` makes one",
    "budget": "`dpftrl-fast budget new FILE --epsilon E` makes one",
}

P = ParamSpec("P")
R = TypeVar("R")


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Report a user's errors in one line on stderr with exit code 2, and Ctrl-C with 130."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            done = command(*args, **kwargs)
            sys.stdout.flush()  # a reader that is gone, such as `head`, shows here or not at all
            return done
        except BrokenPipeError:
            raise  # ends the command without a word: click's own handling
        except KeyboardInterrupt:
            note("interrupted: no half-written file is left")
            raise typer.Exit(130) from None
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("dpftrl_fast"):
                raise
            note(f"error: this needs the package {error.name!r}: pip install 'dpftrl-fast[cli]'")
            raise typer.Exit(2) from None
        except (ValueError, TypeError, OSError) as error:
            note(f"error: {_missing_file(error, kwargs, command) or error}")
            raise typer.Exit(2) from None

    return run


def _missing_file(
    error: BaseException, given: Mapping[str, Any], command: Callable[..., Any]
) -> str | None:
    """Return the option whose file was not found and a remedy; None for any other error.

    `given` has the arguments of the command by the names of its parameters.
    """
    for name, remedy in _INPUTS.items():
        path = given.get(name)
        if not isinstance(path, (str, Path)) or str(path) == _STANDARD_INPUT:
            continue
        # Messages quote the path as it was given, the whole path, or a file of the folder.
        named = re.search(rf"['/]{re.escape(str(path))}['/]", str(error))
        if named and not Path(path).exists():
            return f"{_option(command, name)}: no such file or folder: {str(path)!r}; {remedy}"
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no such file or folder: {str(error.filename)!r}; {_CHECK}"
    return None


def _option(command: Callable[..., Any], name: str) -> str:
    """Return a parameter of a command as its help writes it."""
    hint = get_type_hints(command, include_extras=True)[name]
    found = next(x for x in hint.__metadata__ if isinstance(x, ParameterInfo))
    if isinstance(found, ArgumentInfo):
        return name.upper()
    return found.param_decls[0] if found.param_decls else f"--{name.replace('_', '-')}"


def refuse_to_overwrite(path: Path, *, force: bool) -> None:
    """Raise FileExistsError if the file exists, unless `force` is set; never replace a folder."""
    if path.is_dir():
        raise IsADirectoryError(f"expected a file to write, {str(path)!r} is a folder")
    if path.exists() and not force:
        raise FileExistsError(f"{str(path)!r} exists; --force overwrites it")


def note(text: str) -> None:
    """Print a line to stderr."""
    print(text, file=sys.stderr)


def warn_of_large_delta(delta: float, slots: int, unit: str = "row") -> None:
    """Warn if delta is so large that it would allow some row (user) to be published whole."""
    if not delta * slots < 1:
        note(f"warning: delta should be well below 1/{unit}s = {1 / slots:.1e}")


def print_json(data: Mapping[str, Any], *, file: TextIO | None = None) -> None:
    """Print a result as JSON, by default on stdout; a number that is not finite becomes null."""
    print(json.dumps(_finite(data), indent=2, allow_nan=False), file=file)


def _finite(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def facts_table(facts: Mapping[str, Any], title: str | None = None) -> Table:
    """Return facts as a table with two columns."""
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    return table


def show(*things: Any, file: TextIO | None = None) -> None:
    """Print tables and text, by default on stdout."""
    console = Console(highlight=False, soft_wrap=True, file=file)
    for thing in things:
        if isinstance(thing, str):
            console.print(thing, markup=False)
        else:
            console.print(thing, soft_wrap=False)


def rounded_up(value: float | None, digits: int = 4) -> str:
    """Format a privacy loss, never rounded down.

    Examples
    --------
    >>> rounded_up(0.99991), rounded_up(1.0)
    ('1.0000', '1.0000')
    """
    if value is None:
        return "none can be stated at this delta"
    from dpftrl_fast.accounting.curve.rounding import fixed_up

    return fixed_up(value, digits)


def guarantee_facts(plan: Any, delta: float, unit: str = "record") -> dict[str, Any]:
    """Return the guarantee of a plan in words; neighbours differ in one ``unit``."""
    from dpftrl_fast.accounting.curve.rounding import short_up, text_up
    from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
    from dpftrl_fast.mechanisms import Tree
    from dpftrl_fast.plan.plan_text import participation_words

    zeta = plan.sensitivity_squared
    trees = plan.mechanism == "tree" or isinstance(plan.mechanism, Tree)
    exact = trees and plan.bound == "exact"
    covers = "the running sums only" if trees else "all steps together"
    if exact:
        covers = "all nodes of the tree"
    zeta_words = f"{zeta if isinstance(zeta, int) else rounded_up(zeta)}  (squared sensitivity of"
    promise = {
        "epsilon": f"{rounded_up(plan.epsilon(delta))}  (one {unit} replaced by zero)",
        "epsilon, replace-one": f"{rounded_up(plan.replace_one(delta))}  "
        f"(one {unit} replaced by another)",
        "delta": f"{short_up(delta)}  (of which {text_up(plan.guarantee.at(delta).floor())} for "
        "the noise's finite tail)",
    }
    if isinstance(plan, LeastSquaresPlan):
        sigmas = f"{plan.bias.noise_multiplier:.6g} and {plan.covariance.noise_multiplier:.6g}"
        completed = ", completed after the last step" if plan.complete else ""
        noise = {"trees": f"one for y x, one for x x^T{completed}, {plan.variant}"}
        if not trees:
            noise = {"mechanism": f"of y x and of x x^T: {plan.bias.layout.describe()}"}
        return {
            **promise,
            "sigma": f"{sigmas}  (noise multipliers for y x and x x^T)",
            "zeta": f"{zeta_words} {covers.removesuffix(' only')} of each)",
            "bounds": f"norm of x {plan.x_norm_bound:g}, |y| {plan.y_bound:g}  (scaled)",
            "steps": participation_words(plan.participation),
            **noise,
        }
    return {
        **promise,
        "sigma": f"{plan.noise_multiplier:.6g}  (noise multiplier)",
        "zeta": f"{zeta_words} {covers})",
        "clip norm": f"{plan.clip_norm:g}",
        "steps": participation_words(plan.participation),
        "tree" if trees else "mechanism": plan.layout.describe(),
    }


@contextmanager
def progress_bar(title: str, *, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback ``(done, total)`` that draws a bar on a terminal, or None without one."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn(title),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=None)
        shown = 0.0

        def advance(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown > 0.05 or done == total:  # an update costs as much as a step
                shown = now
                progress.update(task, completed=done, total=total)

        yield advance
