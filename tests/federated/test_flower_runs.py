# SPDX-License-Identifier: Apache-2.0
"""Flower runs in processes: killed servers, clients of a simulation, and the template."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flower_cases import LocalGrid
from flwr.app import Context, RecordDict

from dpftrl_fast.federated.answers import last_lines

SCRIPT = Path(__file__).parents[1] / "support" / "flower_run.py"
SIMULATION = Path(__file__).parents[1] / "support" / "flower_simulation.py"


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # an import hook hides it
        return False


needs_ray = pytest.mark.skipif(not is_installed("ray"), reason="a simulation needs Ray")


def output_of(*command: str, **environment: str) -> str:
    """Output of a program that must succeed; nothing that it started outlives the call."""
    program = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        output, _ = program.communicate(timeout=600)
    finally:
        kill_with_descendants(program)
    assert program.returncode == 0, output
    return output


WITHOUT_RAY = """
import runpy, sys
sys.modules["ray"] = None  # an import of it fails
sys.argv[1:] = [{kills!r}]
runpy.run_path({script!r}, run_name="__main__")
"""


def test_killed_processes_leave_the_same_bits_and_need_no_ray() -> None:
    """16 kills, half of them at random times."""
    program = WITHOUT_RAY.format(script=str(SCRIPT), kills="8")
    output = output_of(sys.executable, "-c", program, PYTHONPATH=os.pathsep.join(sys.path))
    assert output.splitlines()[-1] == "the same bits"


@needs_ray
@pytest.mark.slow
def test_a_simulation_with_clients_in_several_processes(tmp_path: Path) -> None:
    output_of(sys.executable, str(SIMULATION), str(tmp_path))
    found = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert found["processes"] >= 2
    assert found["same bits as in one process"]
    assert set(found["refused"]) == {"1", "2"}
    for refused in found["refused"].values():
        assert set(refused) == {"2", "4"}
        assert "reports error" in refused["2"]
        assert last_lines(refused["2"]).endswith("RuntimeError: out of battery")
        assert "must be finite, got NaN or infinity" in refused["4"]
    assert found["accepted"] == [4, 4]


EXAMPLE = Path(__file__).parents[2] / "examples" / "flower_app"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The settings of the example, whose modules can be imported meanwhile."""
    tomllib = pytest.importorskip("tomllib")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    settings = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))
    yield settings["tool"]["flwr"]["app"]["config"]
    for name in [name for name in sys.modules if name.split(".")[0] == "private_app"]:
        del sys.modules[name]


def test_the_template_trains_and_resumes(
    example: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    client, server = (
        importlib.import_module(f"private_app.{name}_app").app for name in ("client", "server")
    )
    config = {**example, "folder": str(tmp_path / "run")}
    for first in (10**18, 77):  # the second run has nothing left to do
        grid = LocalGrid(client, 60, first=first, config=config)
        server(grid, Context(1, 1, {}, RecordDict(), config))
        line = capsys.readouterr().out.splitlines()[-1]
        assert line.startswith(f"after {example['rounds']} rounds: epsilon 8.000 at delta 1e-05")
        assert float(line.split("(replace-one ")[1].split(")")[0]) > 16.0
    assert grid.sent == []
    assert float(line.rsplit(" ", 1)[1]) > 0.8


@needs_ray
@pytest.mark.slow
def test_the_template_runs_with_flwr_run(example: dict[str, Any], tmp_path: Path) -> None:
    """With Flower's command, its SuperLink, and clients in processes of their own."""
    app = tmp_path / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    ports = [free_port() for _ in range(2)]
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
        f'address = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
    )
    superlink = subprocess.Popen(
        [
            *("flower-superlink", "--insecure", "--simulation", "--isolation", "subprocess"),
            *("--host", "127.0.0.1", "--port", str(ports[0])),
            *("--control-api-address", f"127.0.0.1:{ports[1]}"),
        ],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        command = [
            *("flwr", "run", str(app), "--stream", "--run-config"),
            "rounds=3 max-uses=1 cohort-size=4 report-goal=4",
            "--federation-config",
            "num-supernodes=12 client-resources-num-cpus=1 init-args-num-cpus=2",
        ]
        for _ in range(60):  # until the SuperLink listens
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=300
            )
            if done.returncode == 0:
                break
            time.sleep(1)
        assert "after 3 rounds: epsilon 8.000 at delta 1e-05" in done.stdout, done.stdout
    finally:
        kill_with_descendants(superlink)


def kill_with_descendants(program: subprocess.Popen[Any]) -> None:
    for pid in (*descendants(program.pid), program.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    program.wait(60)


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs: Flower's have sessions of their own."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    found = [int(word) for word in children.read_text().split()] if children.exists() else []
    return [*(grandchild for child in found for grandchild in descendants(child)), *found]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
