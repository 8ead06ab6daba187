# SPDX-License-Identifier: Apache-2.0
"""`make_private` on several processes: each batch shared, once in the sum, and noise once."""

from __future__ import annotations

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
    assert set(found[1]) == {"all False", "all True"}
