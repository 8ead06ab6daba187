# SPDX-License-Identifier: Apache-2.0
"""`TrainingRun` of several processes: stopped, started again, and by another number of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run_ranks as ranks
import torch
from processes import child

TWO = range(2)


@pytest.fixture(scope="module")
def found(ranks_folder: Path) -> list[dict[str, Any]]:
    folder = ranks_folder / "runs"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks.WORLD)]


def same_everywhere(parts: list[Any]) -> dict[str, Any]:
    """The result of all ranks, whose parameters have the same bits."""
    for part in parts:
        assert part.keys() == parts[0].keys()
        for name, value in part.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(value, parts[0][name])
            else:
                assert value == parts[0][name]
    result: dict[str, Any] = parts[0]
    return result


@pytest.mark.parametrize("keep", [False, True])
def test_stopped_at_a_step_all_ranks_resume_bit_for_bit(
    found: list[dict[str, Any]], keep: bool
) -> None:
    results = same_everywhere([found[rank]["stopped_and_resumed"] for rank in TWO])
    for (at, keep_sums), begun in {
        (1, False): 0, (4, False): 2, (5, False): 4, (5, True): 4
    }.items():  # fmt: skip
        case = results[f"{keep} {at} {keep_sums}"]
        assert case == [True, begun, ranks.PLAN.epsilon(ranks.DELTA)]


@pytest.mark.parametrize("keep", [False, True])
def test_the_folder_changes_no_bit_of_the_sums(found: list[dict[str, Any]], keep: bool) -> None:
    """The total that is written ahead is the one that gets the noise, and added up once."""
    for rank in TWO:
        assert found[rank]["stopped_and_resumed"][f"{keep} without a folder"]


def test_other_sums_of_one_rank_are_refused_on_all(found: list[dict[str, Any]]) -> None:
    results = [found[rank]["with_other_sums"] for rank in TWO]
    refused = same_everywhere([result["keep_sums=False"] for result in results])
    assert re.match("Diverged: step 1 was written ahead.*up to 3", refused["told"])
    assert refused["unchanged"]
    kept = same_everywhere([result["keep_sums=True"] for result in results])
    assert kept["from"] == 0 and kept["epsilon"] == ranks.PLAN.epsilon(ranks.DELTA)


def test_what_one_rank_does_otherwise_is_refused_on_all(found: list[dict[str, Any]]) -> None:
    first, second = (found[rank]["refusals"] for rank in TWO)
    for told in (first, second):
        assert "same checkpoint_every: rank 0 has 2, rank 1 3" in told["every"]
        assert "same spare_restarts: rank 0 has 0, rank 1 1" in told["parameters"]
        assert "in no other folder, got one at step 1" in told["begun"]
        assert "the folder is of another run: they differ in spare_restarts" in told["another"]
        assert told["finished"] == 0  # the run that is there goes on
    assert "rank 1 refusing" in first["wrong"] and "checkpoint_every must" in second["wrong"]


def test_a_rank_that_was_started_again_begins_nothing_but_a_folder(
    found: list[dict[str, Any]],
) -> None:
    first, second = (found[rank]["refusals"] for rank in TWO)
    assert "rank 1 refusing" in first["restart"]
    assert "started this program again" in second["restart"]
    assert first["in a folder"] == second["in a folder"] == 0


def test_states_of_each_rank_resume_with_the_default_shuffle(found: list[dict[str, Any]]) -> None:
    for rank in TWO:
        assert found[rank]["by_states"] == {"False": True, "True": True}


def test_another_number_of_processes(found: list[dict[str, Any]]) -> None:
    """Where no step is to be repeated, with kept sums, or as an accounted recovery."""
    results = [part["elastic"] for part in found]
    epsilon = ranks.PLAN.epsilon(ranks.DELTA)
    for name, begun in {"clean": 4, "kept": 2}.items():
        case = same_everywhere([result[name] for result in results])
        assert (case["from"], case["epsilon"]) == (begun, epsilon)
    for name in ("killed", "more"):
        case = same_everywhere([result[name] for result in results])
        assert case["told"].startswith("Diverged: step 3") and case["unchanged"]
    recovered = same_everywhere([result["recovered"] for result in results])
    assert recovered["from"] == 2 and recovered["epsilon"] > epsilon
    back = same_everywhere([results[rank]["back"] for rank in TWO])
    assert (back["from"], back["epsilon"]) == (2, epsilon)


@pytest.mark.slow
def test_torchrun_starts_a_killed_training_again(tmp_path: Path) -> None:
    """Two workers, one of which dies in its first start: the job ends as one that nothing hit."""
    outs = []
    for kill in (0, 4):
        out = tmp_path / str(kill)
        out.mkdir()
        program = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "--max-restarts=1", ranks.__file__, out, str(kill),
        ]  # fmt: skip
        limits = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        # Else gloo finds the addresses of the first start.
        limits["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with child(program, env={**os.environ, **limits}, text=True, **options) as process:
            said = process.communicate(timeout=300)[0]
        assert process.returncode == 0, said
        outs.append([torch.load(out / f"{rank}.pt", weights_only=True) for rank in TWO])
    for rank in TWO:
        whole, again = outs[0][rank], outs[1][rank]
        assert (whole["start"], again["start"]) == ("0", "1")
        assert whole["threads"] == again["threads"] == []
        assert torch.equal(whole["parameters"], again["parameters"])
        assert whole["epsilon"] == again["epsilon"] == ranks.PLAN.epsilon(ranks.DELTA)
