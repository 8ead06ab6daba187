# SPDX-License-Identifier: Apache-2.0
"""One thread for small tensors; results of several ranks, made once in a session."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Let torch compute on this thread: idle ones of OpenMP would spin for small tensors."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def ranks_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the results of `torch_ranks`: run once, whatever asks for them.

    The workers of pytest-xdist share it: the first one that gets the lock runs the processes.
    """
    import torch_ranks

    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / "torch_ranks"
    with open(shared / "torch_ranks.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            folder.mkdir(exist_ok=True)
            torch_ranks.start(folder)
            (folder / "complete").touch()
    return folder
