# SPDX-License-Identifier: Apache-2.0
"""``python -m dpftrl_fast.datasets``: data sets as tables with a schema."""

from __future__ import annotations

import argparse
import sys

from dpftrl_fast.datasets.flights import flights


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
