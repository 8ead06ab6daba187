# SPDX-License-Identifier: Apache-2.0
"""Arguments of the commands that need no data, and the files of ids."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import Fault, attempt, fuzz, mutated_bytes

pytest.importorskip("typer")

import typer.main
from click.testing import CliRunner

from dpftrl_fast.cli.app import app
from dpftrl_fast.cli.patterns import read_order

GOOD: list[list[str]] = [
    ["epsilon", "--noise-multiplier", "5", "--steps", "16"],
    ["epsilon", "--noise-multiplier", "5", "--rows", "100", "--batch-size", "10", "--epochs", "4"],
    ["epsilon", "--noise-multiplier", "2", "--steps", "64", "--max-participations", "4",
     "--min-separation", "8"],
    ["epsilon", "--noise-multiplier", "2", "--steps-per-epoch", "7", "--epochs", "9",
     "--restart-epochs", "3", "--complete", "all", "--variant", "vanilla", "--bound", "released"],
    ["calibrate", "--epsilon", "3", "--steps", "16", "--delta", "1e-5"],
]  # fmt: skip
WORDS = (
    "0", "-1", "1", "2", "7", "1.5", "nan", "inf", "-inf", "1e400", "1e-400", "9" * 30, "", "x",
    "1000000000000", "1099511627776", "9223372036854775808", "true", "all", "none", "0x10", "1_0",
    "--steps", "--epochs", "--json", "--restart-every", "--reshuffle", "--order", "/", "\\", "é",
)  # fmt: skip


def test_arguments_of_commands() -> None:
    runner, command = CliRunner(), typer.main.get_command(app)

    def one(rng: random.Random) -> Any:
        arguments = list(rng.choice(GOOD))
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(1, len(arguments) + 1)
            pick = rng.randrange(4)
            if pick == 0 and at < len(arguments):
                del arguments[at]
            elif pick == 1:
                arguments[at:at] = [rng.choice(WORDS)]
            elif at < len(arguments):
                arguments[at] = rng.choice(WORDS)
        result = runner.invoke(command, arguments)
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            raise Fault(f"{arguments}: {error!r}") from error
        if result.exit_code not in (0, 2):
            raise Fault(f"{arguments}: exit code {result.exit_code}")
        return ValueError(result.output) if result.exit_code else result

    fuzz("arguments", one, share=0.1)


ROWS = b"who,x\na,1.5\nb,\nc,true\nd,-7\n"
SUM = ["--column", "x", "--bounds", "0", "5", "--rows", "6", "--every", "2", "--noise-seed", "1"]


def test_files_that_are_summed(tmp_path: Path) -> None:
    """A sum is written, or nothing is: in one line, and with no word of a row."""
    pytest.importorskip("pyarrow")
    runner, command = CliRunner(), typer.main.get_command(app)
    path, out = tmp_path / "t.csv", tmp_path / "s.csv"
    secret = b"Zyzzyva"
    kept = [ROWS.replace(b"who", name) for name in (b"who", b'"who"', b"\xef\xbb\xbfwho")]
    kept += [row.replace(b"\n", end) for row in kept for end in (b"\r", b"\r\n")]

    def one(rng: random.Random) -> Any:
        data = mutated_bytes(rng.choice(kept), rng, kept)
        path.write_bytes(data.replace(b"c,", secret + b"," + secret))
        arguments = ["sum", str(path), *SUM]
        for option, values in (
            ("--encoding", ("cp1252", "utf-16", "utf-8", "x")),
            ("--decimal", (",", ".", "5")),
            ("--thousands", (",", "'", " ")),
            ("--delimiter", (";", r"\t", ",")),
        ):
            if rng.random() < 0.2:
                arguments += [option, rng.choice(values)]
        look = rng.random() < 0.3
        arguments += ["--validate"] if look else ["--out", str(out)]
        result = runner.invoke(command, arguments)
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            raise Fault(f"{arguments}: {error!r}") from error
        if result.exit_code not in (0, 2) or out.exists() != (result.exit_code == 0 and not look):
            raise Fault(f"{arguments}: exit code {result.exit_code}")
        if result.exit_code and len(result.stderr.splitlines()) != 1:
            raise Fault(f"{arguments}: {result.stderr}")
        if secret.decode() in result.output:
            raise Fault(f"{arguments}: a row is shown: {result.output}")
        out.unlink(missing_ok=True)
        return ValueError(result.stderr) if result.exit_code else result

    fuzz("files that are summed", one, share=0.3)


def test_files_of_ids(tmp_path: Path) -> None:
    file = io.BytesIO()
    np.save(file, np.array([1, 2, 3, -1, 1]))
    kept = {".txt": b"1 2\n3\n-1\n\n1, 2\n", ".npy": file.getvalue()}

    def one(rng: random.Random) -> Any:
        suffix = rng.choice((".txt", ".npy"))
        path = tmp_path / f"order{suffix}"
        path.write_bytes(mutated_bytes(kept[suffix], rng, list(kept.values())))
        return attempt(lambda: read_order(path))

    fuzz("files of ids", one)
