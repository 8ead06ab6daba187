# SPDX-License-Identifier: Apache-2.0
"""Away from the sources: `python -c` imports from the current folder first."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Kernels for a GPU run in Triton's interpreter; it reads this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def another_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run all tests in an empty folder, so that their processes import the installed package."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)
