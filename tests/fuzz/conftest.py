# SPDX-License-Identifier: Apache-2.0
"""Files of mutated inputs in memory: a disk would take most of the time of each input."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield tmp_path_factory.mktemp("fuzz")
        return
    with tempfile.TemporaryDirectory(prefix="dpftrl-fuzz-", dir=MEMORY) as folder:
        yield Path(folder)
