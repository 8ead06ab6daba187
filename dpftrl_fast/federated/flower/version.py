# SPDX-License-Identifier: Apache-2.0
"""Version of Flower: its message API, which this package uses, is in flwr 1.28 and later."""

from __future__ import annotations

import importlib.metadata
import re

_LEAST = (1, 28)


def check_version() -> None:
    """Refuse a Flower older than the message API; nothing where it is not installed.

    Raises
    ------
    ImportError
        With the version that is needed and the one that is installed.
    """
    try:
        found = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        return
    numbers = tuple(int(number) for number in re.findall(r"\d+", found)[:2])
    if numbers < _LEAST:
        raise ImportError(
            f"expected flwr 1.28 or later, which has the message API, got flwr {found}: "
            "pip install -U 'flwr>=1.28'"
        )
