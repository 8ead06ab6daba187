# SPDX-License-Identifier: Apache-2.0
"""States of `DPFTRL`: resumed to the bit, refused where they do not fit, and what may leave."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from dpftrl_runs import parameters, plan_of, run
from torch import nn

from dpftrl_fast.torch import DPFTRL, model_state_dict


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
@pytest.mark.parametrize("at", [0, 1, 5, 6, 11])
def test_a_resumed_run_is_the_same_to_the_bit(memory: Any, at: int) -> None:
    options: dict[str, Any] = {
        "plan": plan_of(12, 1.0, restart_every=5, complete=True), "batch_size": 4, "memory": memory,
        "momentum": 0.9, "l1": 1e-3, "radius": 3.0,
    }  # fmt: skip
    members = parameters()
    dpftrl = DPFTRL(members, 0.1, **options)
    run(dpftrl, members, 0, at)
    file = io.BytesIO()
    torch.save((dpftrl.state_dict(), [p.detach() for p in members]), file)
    run(dpftrl, members, at, 12)

    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    others = [nn.Parameter(value.clone()) for value in values]
    resumed = DPFTRL(others, 7.0, **options)
    resumed.load_state_dict(state)
    assert resumed.steps_taken == at
    assert resumed.param_groups[0]["lr"] == 0.1
    run(resumed, others, at, 12)
    for a, b in zip(members, others, strict=True):
        assert torch.equal(a, b)


def test_regenerated_noise_is_small_in_a_state() -> None:
    p = nn.Parameter(torch.zeros(10_000))
    dpftrl = DPFTRL([p], 1.0, plan=plan_of(9, 1.0), batch_size=1, memory="regenerate")
    run(dpftrl, [p], 0, 7)
    file = io.BytesIO()
    torch.save(dpftrl.state_dict()["noise"], file)
    text = repr(dpftrl.state_dict()["noise"])
    assert len(text) < 1024
    assert "'vectors': []" in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": plan_of(13, 1.0)}, "the plan of this object"),
        ({"batch_size": 5}, "batch_size 5, got 4"),
        ({"radius": 2.0}, "radius 2.0, got None"),
        ({"momentum": 0.0}, r"vectors.*got.*velocity"),
        ({"params": [nn.Parameter(torch.zeros(24))]}, "the parameters of this object"),
        ({"dtype": "float64"}, "the dtype of this object"),
    ],
)
def test_a_state_of_another_run_is_refused(change: dict[str, Any], words: str) -> None:
    options: dict[str, Any] = {
        "params": parameters(), "lr": 1.0, "plan": plan_of(12, 1.0), "batch_size": 4,
        "momentum": 0.9,
    }  # fmt: skip
    state = DPFTRL(**options).state_dict()
    other = DPFTRL(**{**options, "params": parameters(1), **change})
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(state)
    assert other.steps_taken == 0


def test_a_broken_state_is_refused() -> None:
    members = parameters()
    dpftrl = DPFTRL(members, 1.0, plan=plan_of(12, 1.0), batch_size=4)
    run(dpftrl, members, 0, 1)
    state = dpftrl.state_dict()
    with pytest.raises(ValueError, match="state lacks noise"):
        dpftrl.load_state_dict({name: state[name] for name in state if name != "noise"})
    with pytest.raises(TypeError, match="must be a mapping"):
        dpftrl.load_state_dict([])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"sum must be of torch.float32 and shape \(24,\)"):
        dpftrl.load_state_dict({**state, "vectors": {**state["vectors"], "sum": torch.zeros(3)}})
    with pytest.raises(TypeError, match="theta_0 must be a tensor"):
        dpftrl.load_state_dict({**state, "vectors": {**state["vectors"], "theta_0": [0.0]}})
    with pytest.raises(ValueError, match="1 parameter groups, got 2"):
        dpftrl.load_state_dict({**state, "param_groups": state["param_groups"] * 2})
    with pytest.raises(ValueError, match="lr must be"):
        dpftrl.load_state_dict({**state, "param_groups": [{**state["param_groups"][0], "lr": 0.0}]})
    run(dpftrl, members, 1, 2)
    with pytest.raises(ValueError, match="its noise would be used twice"):
        dpftrl.load_state_dict(state)
    dpftrl.load_state_dict(state, allow_fork=True)
    assert dpftrl.steps_taken == 1


def test_the_state_is_a_copy() -> None:
    members = parameters()
    dpftrl = DPFTRL(members, 1.0, plan=plan_of(12, 1.0), batch_size=4, momentum=0.5)
    run(dpftrl, members, 0, 3)
    state = dpftrl.state_dict()
    before = copy.deepcopy(state)
    run(dpftrl, members, 3, 6)
    for name, vector in before["vectors"].items():
        assert torch.equal(vector, state["vectors"][name])


def test_the_model_state_has_the_names_of_the_model() -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self._module = model

    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    state = model_state_dict(Wrapper(model))
    assert state.keys() == model.state_dict().keys()
    with torch.no_grad():
        state["0.weight"].zero_()
    assert model[0].weight.abs().sum() > 0


def test_running_statistics_may_not_leave() -> None:
    with pytest.raises(ValueError, match=r"running statistics.*in 1"):
        model_state_dict(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    with pytest.raises(TypeError, match="must be a Module"):
        model_state_dict({})  # type: ignore[arg-type]
