# SPDX-License-Identifier: Apache-2.0
"""States and runs of torch that version 0.1 saved: refused, since 0.1 had another stream of noise.

With the version of the stream put in its place, they are read, and go on bit for bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import written_by_0_1 as old
import written_by_0_1_torch as training

from dpftrl_fast import STREAM_VERSION
from dpftrl_fast.torch import ResidualNoise


def plain(value: Any) -> Any:
    """A state with arrays in place of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numpy()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


@pytest.mark.parametrize("case", old.read("torch/states.json"), ids=lambda case: case["name"])
def test_a_state_goes_on(case: dict[str, Any]) -> None:
    of = training.CASES[case["name"]]
    saved = torch.load(old.DATA / "torch" / f"{case['name']}.pt", weights_only=True)
    members = training.parameters(of)
    with torch.no_grad():
        for p, value in zip(members, saved["parameters"], strict=True):
            p.copy_(value)
    noise = training.noise_of(of, members)
    with pytest.raises(ValueError, match=old.REFUSED):
        noise.load_state_dict(saved["state"])
    noise.load_state_dict(old.in_stream(saved["state"], STREAM_VERSION))
    assert noise.steps_taken == 7 and noise.reproducible
    found, state = plain(old.in_stream(noise.state_dict(secrets=True), 1)), plain(saved["state"])
    if not isinstance(noise, ResidualNoise):  # later versions of torch may add to them
        groups = zip(found.pop("param_groups"), state.pop("param_groups"), strict=True)
        assert all(group.items() <= own.items() for own, group in groups)
        del found["schedule"]
    else:
        assert not found.pop("remainder").any()
    assert old.digests_of(found) == old.digests_of(state)
    assert training.steps(noise, members, 7, 12) == case["next"]


@pytest.mark.parametrize("kind", training.KINDS)
def test_a_training_of_another_stream_is_refused(kind: str, tmp_path: Path) -> None:
    folder = old.taken(f"torch/{kind}", tmp_path / "run")
    with pytest.raises(ValueError, match=old.REFUSED):
        training.run(kind, folder)


@pytest.mark.parametrize("kind", training.KINDS)
def test_a_training_goes_on(kind: str, tmp_path: Path) -> None:
    case = old.read("torch/runs.json")[kind]
    folder = old.taken(f"torch/{kind}", tmp_path / "run", STREAM_VERSION)
    left = training.run(kind, folder)
    assert left == case["next"]
    del case["then"]["ledger"]  # 0.1 kept realised values of ids there
    assert training.kept(folder) == case["then"]
    before = case["before"][-1]  # the last step before the end of the process was taken again
    assert before in left
    assert training.run(kind, folder) == left[-1:]  # nothing is left to do


def test_a_training_that_had_a_restart_says_so() -> None:
    end = old.read("torch/runs.json")["restarted"]["next"][-1]
    assert end["abandoned"] == [[1, 7]] and end["start"] == 6


def test_a_training_with_a_scheduler_goes_on_as_ftrl_only(tmp_path: Path) -> None:
    folder = old.taken("torch/restarted", tmp_path / "run", STREAM_VERSION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(training.KINDS["restarted"], "schedule", "sgd")
        with pytest.raises(ValueError, match="continue it with schedule='ftrl'"):
            training.run("restarted", folder)
    assert training.run("restarted", folder)
