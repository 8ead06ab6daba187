# SPDX-License-Identifier: Apache-2.0
"""One, two and three processes over gloo: the same bits of noise, and parameters up to rounding.

Each world runs once, in the processes of `torch_ranks.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_ranks as ranks
from torch import nn

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.torch import DPFTRL
from dpftrl_fast.torch.flat.distributed import ranks_of
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.flat.tensors import local_range

SIZE = 32  # parameters of the model
# Sums over ranks differ in order from those of one process, by some units of float32 in gradients
# of size 10, and so do the parameters that they lead to.
ROUNDING = {"rtol": 1e-5, "atol": 1e-5}

Found = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope="module", params=ranks.WORLDS)
def found(request: pytest.FixtureRequest, ranks_folder: Path) -> Found:
    """Results of the ranks of a world, by rank and case."""
    world: int = request.param
    folder = ranks_folder / f"world{world}"
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.fixture(scope="module")
def alone(ranks_folder: Path) -> dict[str, torch.Tensor]:
    """Parameters that one process without torch.distributed comes to, by case."""
    found = torch.load(ranks_folder / "alone.pt", weights_only=True)
    return {case: found[case]["parameters"] for case in ("replicas", "residual")}


def same_everywhere(found: Found, case: str) -> torch.Tensor:
    everywhere = [rank[case]["parameters"] for rank in found]
    for other in everywhere[1:]:
        assert torch.equal(everywhere[0], other)
    first: torch.Tensor = everywhere[0]
    return first


@pytest.mark.parametrize("case", ["replicas", "averaging_replicas", "shards"])
def test_parameters_are_those_of_one_process(
    found: Found, alone: dict[str, torch.Tensor], case: str
) -> None:
    torch.testing.assert_close(same_everywhere(found, case), alone["replicas"], **ROUNDING)


@pytest.mark.parametrize("case", ["residual", "shard_residual"])
def test_residual_noise_goes_on_once(
    found: Found, alone: dict[str, torch.Tensor], case: str
) -> None:
    torch.testing.assert_close(same_everywhere(found, case), alone["residual"], **ROUNDING)


def on_grid(noisy: Any) -> Any:
    """Round noisy sums as they are released; in float32, as the ranks do."""
    grid = np.float32(ranks.PLAN.noise_spec.grid("float32"))
    return np.floor(noisy / grid + np.float32(0.5)) * grid


def test_the_noise_of_shards_is_the_same_bits(found: Found) -> None:
    noise = ranks.PLAN.noise(SIZE, seed=11)
    steps = same_everywhere(found, "shard_noise").numpy()
    for row in steps:
        assert np.array_equal(row, -on_grid(noise.step()))


def test_replicas_share_a_key_from_the_system(found: Found) -> None:
    values = same_everywhere(found, "fresh_keys")
    assert len(values) == 40 and len(values.unique()) > 30  # of some hundred multiples of the grid


def test_resumed_ranks_go_on_to_the_bit(found: Found) -> None:
    for case in ("resumed", "shard_resumed"):
        whole = {"resumed": "replicas", "shard_resumed": "shards"}[case]
        assert torch.equal(same_everywhere(found, case), found[0][whole]["parameters"])


def test_a_rank_without_examples_takes_the_step_too(found: Found) -> None:
    noisy = torch.from_numpy(on_grid(1 + ranks.PLAN.noise(4, seed=1).step()))
    torch.testing.assert_close(same_everywhere(found, "without_examples"), -noisy)
    for rank in found:
        assert "None for all parameters" in rank["without_examples"]["refused"]


def test_a_group_of_one_is_a_run_of_its_own(found: Found) -> None:
    assert [rank["lone"]["steps"] for rank in found] == [1] + [0] * (len(found) - 1)


def test_memory_shrinks_with_the_world(found: Found) -> None:
    held = [
        list(range(first, first + count))
        for rank in found
        for first, count in rank["shards"]["ranges"]
    ]
    assert sorted(c for part in held for c in part) == list(range(SIZE))
    most = -(-5 // len(found)) * 4 + -(-2 // len(found)) * 6  # rows of both layers
    kept = [rank["shards"]["kept"] for rank in found]
    vectors = sum(kept) / SIZE
    assert vectors == int(vectors) >= 2
    for rank, amount in zip(found, kept, strict=True):
        assert len(rank["shards"]["sum"]) <= most
        assert amount == vectors * len(rank["shards"]["sum"])
        assert len(rank["replicas"]["sum"]) == SIZE


def test_wrong_set_ups_are_refused_on_all_ranks(found: Found) -> None:
    for rank in found:
        told = rank["refusals"]
        assert "all DTensors or all plain tensors, got both" in told["mixed"]
        assert "must be sharded by rows" in told["columns"]
        assert told["rows"] == "nothing"
        assert "must be laid out over ranks" in told["placements"]
        if len(found) == 1:
            continue
        assert "same initial values (a hash): rank 0 has" in told["values"]
        assert "same parameters (names, shapes" in told["shapes"]
        assert "same batch_size: rank 0 has 1, rank 1 2" in told["batch"]
        assert "same plan" in told["plan"]
        assert "all ranks must be at the same step, got steps 1 to 2" in told["steps"]


def test_what_one_rank_refuses_no_rank_takes(found: Found) -> None:
    others, last = [rank["refused_by_one"] for rank in found[:-1]], found[-1]["refused_by_one"]
    assert "must be dense" in last["told"][0] and "must be dense" in last["told"][4]
    for other in others:
        for i in (0, 2, 4, 6):
            assert (
                other["told"][i] == "expected all ranks to take the step, got one that refuses it"
            )
    if others:
        assert all("same rates of the groups" in rank["told"][1] for rank in (*others, last))
        assert "lr must be" in last["told"][2]
        assert "noisy ones that add_() left" in last["told"][6]
        for rank in (*others, last):
            assert (rank["told"][3], rank["told"][5], rank["steps"]) == ("nothing", "nothing", 1)
        noise = ranks.PLAN.noise(3, seed=1).step()
        expected = -torch.from_numpy(on_grid(len(found) + noise))
        torch.testing.assert_close(same_everywhere(found, "refused_by_one"), expected)


def test_a_norm_is_the_same_on_all_ranks(found: Found) -> None:
    assert all(rank["norms"]["found"] == found[0]["norms"]["found"] == [2.0, 2.0] for rank in found)


# ---- without other processes ----


@pytest.mark.parametrize("memory", ["stored", "regenerate"])
@pytest.mark.parametrize("call", ["step", "residual"])
def test_slices_are_those_of_the_whole_vector(memory: Any, call: str) -> None:
    plan: PrivacyPlan = ranks.PLAN
    sliced = FlatNoise(
        plan, [(3, 5), (20, 1), (30, 70)], dtype="float32", device=torch.device("cpu"), seed=1,
        memory=memory,
    )  # fmt: skip
    whole = plan.noise(100, seed=1)
    wanted = [*range(3, 8), 20, *range(30, 100)]
    out = torch.empty(76)
    for _ in range(plan.steps):
        getattr(sliced, call)(out)
        assert np.array_equal(out.numpy(), getattr(whole, call)()[wanted])
    with pytest.raises(ValueError, match="all 9 declared steps"):
        sliced.step(out)


def test_slices_are_under_one_key_and_resume() -> None:
    device = torch.device("cpu")
    pieces = [(0, 4), (8, 4)]
    one = FlatNoise(ranks.PLAN, pieces, dtype="float32", device=device)
    other = FlatNoise(ranks.PLAN, pieces, dtype="float32", device=device)
    out, again = torch.empty(8), torch.empty(8)
    one.step(out)
    other.step(again)
    assert not torch.equal(out, again)
    other.load_state_dict(one.state_dict())
    one.step(out)
    other.step(again)
    assert torch.equal(out, again)
    assert not torch.equal(out[:4], out[4:])
    with pytest.raises(ValueError, match="coordinates"):
        FlatNoise(ranks.PLAN, [(0, 8)], dtype="float32", device=device).load_state_dict(
            one.state_dict()
        )


def test_a_rank_without_coordinates_keeps_count() -> None:
    empty = FlatNoise(ranks.PLAN, [], dtype="float32", device=torch.device("cpu"))
    for _ in range(4):
        empty.step(torch.empty(0))
    other = FlatNoise(ranks.PLAN, [], dtype="float32", device=torch.device("cpu"))
    other.load_state_dict(empty.state_dict())
    assert other.steps_taken == 4


@pytest.mark.parametrize("slice_", [0, 1])
def test_an_interruption_between_slices_is_remembered(
    monkeypatch: pytest.MonkeyPatch, slice_: int
) -> None:
    p = nn.Parameter(torch.zeros(8))
    dpftrl = DPFTRL([p], 1.0, plan=ranks.PLAN, batch_size=1)
    dpftrl.state_dict(secrets=True)
    # As on a rank that holds two ranges of coordinates.
    dpftrl._run.noise = FlatNoise(
        ranks.PLAN, [(0, 4), (8, 4)], dtype="float32", device=torch.device("cpu")
    )

    def interrupted(out: Any) -> None:
        raise KeyboardInterrupt

    p.grad = torch.zeros(8)
    with monkeypatch.context() as patch:
        patch.setattr(dpftrl._run.noise._pieces[slice_], "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpftrl.step()
    assert dpftrl.steps_taken == 0
    with pytest.raises(RuntimeError, match="interrupted half-way"):
        dpftrl.step()


def test_noise_is_refused_where_there_is_none_for_the_device() -> None:
    with pytest.raises(ValueError, match="on the CPU or on a CUDA device, got meta"):
        FlatNoise(ranks.PLAN, [(0, 4)], dtype="float32", device=torch.device("meta"))
    dpftrl = DPFTRL(
        [nn.Parameter(torch.zeros(2, device="meta"))], 1.0, plan=ranks.PLAN, batch_size=1
    )
    with pytest.raises(ValueError, match="on the CPU or on a CUDA device"):
        dpftrl.step()


def test_plain_tensors_are_whole() -> None:
    assert local_range("w", torch.zeros(3, 4)) == (0, 12)
    assert not ranks_of([torch.zeros(1)]).reduces
