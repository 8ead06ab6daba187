# SPDX-License-Identifier: Apache-2.0
"""Away from the sources, where `python -c` would import from, and without a clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No test asserts a time: a busy machine is not a fault.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")

# Kernels for a GPU run in Triton's interpreter; it reads this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def another_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run all tests in an empty folder, so that their processes import the installed package."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)
