# SPDX-License-Identifier: Apache-2.0
"""A server that is killed after any call resumes: same model, same epsilon, bit for bit."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import federated_run
import pytest
from federated_run import KINDS, releases

KILLS = 8


@pytest.fixture(scope="module")
def launcher() -> Iterator[Any]:
    program = subprocess.Popen(
        [sys.executable, federated_run.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None and program.stdout is not None

    def launch(kind: str, folder: Path, released: Path, when: str | int) -> tuple[str, str]:
        program.stdin.write(f"{kind} {folder} {released} {when}\n")
        program.stdin.flush()
        place, outcome = program.stdout.readline().split()
        return place, outcome

    try:
        assert program.stdout.readline() == "ready\n"
        yield launch
        program.stdin.close()
        assert program.wait(60) == 0
    finally:
        program.kill()
        program.wait(60)
        program.stdout.close()


@pytest.mark.parametrize("kind", list(KINDS))
def test_kills_change_no_bit_of_what_leaves(kind: str, launcher: Any, tmp_path: Path) -> None:
    calls, outcome = launcher(kind, tmp_path / "whole", tmp_path / "all", 0)
    assert outcome == "done"
    expected = releases(tmp_path / "all")
    assert list(expected) == [*map(str, range(13)), "end"]
    federated_run.run(kind, None, tmp_path / "memory")
    assert releases(tmp_path / "memory") == expected

    chances, places = random.Random(kind), []
    within: set[str] = set()
    # At least so often, and in the two calls that matter.
    while len(places) < KILLS or not {"end_round", "add"} <= within:
        point = chances.randint(1, int(calls) // 4)
        place, outcome = launcher(kind, tmp_path / "run", tmp_path / "left", point)
        if outcome == "done":  # and once more from the beginning
            assert releases(tmp_path / "left") == expected
            shutil.rmtree(tmp_path / "run")
        else:
            assert outcome == "killed"
            places.append(place)
            within.update(place.split(","))
    assert launcher(kind, tmp_path / "run", tmp_path / "left", "-")[1] == "done"
    assert releases(tmp_path / "left") == expected


# Odd: where a function of this name begins; even: where it ends.
EDGES = ["write_secret:1", "create_log:2", "write_ahead:5", "write_ahead:6", "append:5", "append:6"]
EDGES += ["write_sealed:3", "write_sealed:4", "_all_state:3", "drop_kept:5", "record:4", "step:7"]
EDGES += ["__exit__:3"]
OF_BLOCKS = ["replace_noise:1", "replace_noise:4", "next_block:3"]


@pytest.mark.parametrize(
    ("kind", "edges"), [("momentum", EDGES), ("clipping", OF_BLOCKS), ("taps", OF_BLOCKS)]
)
def test_a_kill_at_the_edge_of_each_part(
    kind: str, edges: list[str], launcher: Any, tmp_path: Path
) -> None:
    federated_run.run(kind, None, tmp_path / "memory")
    expected = releases(tmp_path / "memory")
    for edge in edges:
        folder, left = tmp_path / "run", tmp_path / "left"
        place, outcome = launcher(kind, folder, left, edge)
        assert outcome == "killed" and place.split(",")[0] == edge.split(":")[0]
        assert launcher(kind, folder, left, "-")[1] == "done"
        assert releases(left) == expected
        shutil.rmtree(folder)
        left.unlink()
