# SPDX-License-Identifier: Apache-2.0
"""`make_private` on several processes: each batch shared, once in the sum, and noise once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import private_ranks as ranks
import pytest
import torch


@pytest.fixture(scope="module")
def found(ranks_folder: Path) -> list[dict[str, Any]]:
    folder = ranks_folder / "private"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks.WORLD)]


@pytest.fixture(scope="module")
def alone(ranks_folder: Path) -> dict[bool, dict[str, Any]]:
    found: dict[str, Any] = torch.load(ranks_folder / "alone.pt", weights_only=True)
    return found["private"]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("group", ranks.GROUPS)
def test_processes_train_as_one(
    found: list[dict[str, Any]], alone: dict[bool, dict[str, Any]], group: str, keep: bool
) -> None:
    one = alone[keep]
    members = range(ranks.WORLD) if group == "all" else ranks.GROUPS[group]
    assert members is not None
    parts = [found[rank][f"{group} {keep}"] for rank in members]
    for step, batch in enumerate(one["ids"]):
        dealt = [i for part in parts for i in part["ids"][step]]
        assert sorted(dealt) == sorted(batch)
    for part in parts:
        assert torch.equal(part["parameters"], parts[0]["parameters"])
        torch.testing.assert_close(part["parameters"], one["parameters"], rtol=1e-3, atol=1e-3)
        assert part["epsilon"] == one["epsilon"]


def test_processes_outside_of_the_group_have_no_part(found: list[dict[str, Any]]) -> None:
    assert set(found[1]) == {"all False", "all True", "refusals"}


#: What every rank is told where the last one has another order, or refuses.
DIFFERENT = {
    "the same": "nothing",
    "random examples": "nothing",
    "shuffle": r"same order_seed \(None without shuffle\): rank 0 has \d+, rank 2 None",
    "length": "same number of examples: rank 0 has 17, rank 2 18",
    "drop_last": "same drop_last: rank 0 has False, rank 2 True",
    "batch_size": "same (batch_size: rank 0 has 6, rank 2 8|plan: )",
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_ranks_with_other_orders_are_refused_everywhere(
    found: list[dict[str, Any]], case: str
) -> None:
    for rank in found:
        assert re.search(DIFFERENT[case], rank["refusals"][case])


@pytest.mark.parametrize(
    ("case", "own"),
    [
        ("one refuses", "clip_norm must be"),
        ("one refuses its loader", "shard must be"),
        ("one refuses its rate", "lr must be"),
        ("parts of the data", "data set must be the whole one on every process, the same on all"),
        ("one refuses its dtype", "float64 parameters need"),
    ],
)
def test_what_one_rank_refuses_at_the_start_no_rank_begins(
    found: list[dict[str, Any]], case: str, own: str
) -> None:
    for rank in found[:-1]:
        assert "all ranks accept, got rank 2 refusing" in rank["refusals"][case]
    assert own in found[-1]["refusals"][case]


BY_HAND = {
    "seeds": r"same order_seed \(None without shuffle\): rank 0 has 1, rank 2 2",
    "shards": r"must have the shards \(0, 3\) to \(2, 3\), one each",
    "whole": r"must have the shards .*got \[\(0, 1\), \(0, 1\), \(0, 1\)\]",
    "loader": r"same plan: rank 0 has .*, rank 2 'none'",
}


@pytest.mark.parametrize("noise", ["dpftrl", "residual"])
def test_orders_of_objects_put_together_by_hand_are_compared(
    found: list[dict[str, Any]], noise: str
) -> None:
    for rank in found:
        told = rank["refusals"]
        assert told[f"{noise} right"][:3] == ["nothing", 1, 1]
        for case, text in BY_HAND.items():
            message, admitted, steps, _ = told[f"{noise} {case}"]
            assert re.search(text, message)
            assert (admitted, steps) == (0, 0)  # refused before anything counts
        message, _, steps, cleared = told[f"{noise} ids"]
        assert "same ids in the batch of step 1" in message
        assert steps == 0 and cleared
