# SPDX-License-Identifier: Apache-2.0
"""SecAgg+ runs in processes: killed servers, a simulation, and the example."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import child

pytest.importorskip("flwr")

SUPPORT = Path(__file__).parents[1] / "support"
EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_secagg" / "simulation.py"

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="a simulation needs Ray"
)


def output_of(*program: str | Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    with child(
        [sys.executable, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return str(output)


def test_killed_servers_leave_the_same_bits() -> None:
    assert output_of(SUPPORT / "secagg_run.py", "15").splitlines()[-1] == "the same bits"


@needs_ray
@pytest.mark.slow
def test_a_simulation_has_the_bits_of_the_open_path(tmp_path: Path) -> None:
    output_of(SUPPORT / "secagg_simulation.py", tmp_path)
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found.pop("processes") >= 2
    assert found == {
        "rounds": 3,
        "failures": {},
        "refused by the open path": {"1": [2, 4], "2": [2, 4], "3": [2, 4]},
        "same bits": True,
        "moved": True,
    }


@needs_ray
@pytest.mark.slow
def test_the_example_trains() -> None:
    output = output_of(EXAMPLE)
    assert "epsilon 8.000 at delta 1e-05" in output
    accuracy = output.split("4 rounds, accuracy on test data ")[1]
    assert float(accuracy.split()[0]) > 0.6
