# SPDX-License-Identifier: Apache-2.0
"""Older versions of Flower, and its older API, are refused by name."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from typing import Any

import pytest
from flower_cases import private
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import FedAvg as OldFedAvg

from dpftrl_fast.federated.flower.version import check_version


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("1.27.9", True),
        ("1.9", True),
        ("0.18.0", True),
        ("1.28.0", False),
        ("1.28.0.dev20260101", False),
        ("1.42.0", False),
        ("2.0rc1", False),
    ],
)
def test_a_flower_without_the_message_api_is_refused(
    version: str, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    if not refused:
        check_version()
        return
    with pytest.raises(ImportError, match=rf"flwr 1\.28 or later.*got flwr {version}.*pip"):
        check_version()


def test_it_is_refused_before_anything_of_it_is_imported() -> None:
    program = (
        "import importlib.metadata as m, sys\n"
        "old = m.version\n"
        "m.version = lambda name: '1.20.0' if name == 'flwr' else old(name)\n"
        "try:\n"
        "    import dpftrl_fast.federated.flower\n"
        "except ImportError as error:\n"
        "    print(error, 'flwr' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "got flwr 1.20.0" in done.stdout and done.stdout.rstrip().endswith("False"), done.stderr


def test_a_strategy_of_the_older_api_is_named() -> None:
    with pytest.raises(TypeError, match=r"got FedAvg of the older API.*flwr\.serverapp\.strategy"):
        private(OldFedAvg())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must be a Flower Strategy, got dict$"):
        private({"fraction_train": 1.0})  # type: ignore[arg-type]


def test_a_server_of_the_older_api_is_named() -> None:
    """All of its doors make such a server, and let it run."""
    strategy: Any = private()
    server = Server(client_manager=SimpleClientManager(), strategy=strategy)
    with pytest.raises(TypeError, match=r"@app\.main\(\).*strategy\.start\(grid"):
        server.fit(1, None)
