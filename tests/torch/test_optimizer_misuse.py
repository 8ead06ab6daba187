# SPDX-License-Identifier: Apache-2.0
"""Wrong calls of `DPFTRL` are refused and change nothing; values are no reason to refuse."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dpftrl_runs import gradients, held_inside, parameters, plan_of, ready, run
from torch import nn

from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch import DPFTRL
from dpftrl_fast.torch.flat.update import FlatFTRL


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"schedule": "cosine"}, ValueError, "schedule must be one of 'sgd', 'ftrl', got 'cosine'"),
        ({"lr": -1.0}, ValueError, "lr must be"),
        ({"lr": math.nan}, ValueError, "lr must be"),
        ({"lr": "fast"}, TypeError, "lr must be a finite number >= 0, got str"),
        ({"momentum": 1.0}, ValueError, "momentum must be"),
        ({"momentum": math.nan}, ValueError, "momentum must be"),
        ({"l1": -0.1}, ValueError, "l1 must be"),
        ({"radius": 0.0}, ValueError, "radius must be"),
        ({"nesterov": True}, ValueError, "momentum greater than 0"),
        ({"nesterov": 1}, TypeError, "nesterov must be a bool"),
        ({"batch_size": 0}, ValueError, "batch_size must be"),
        ({"batch_size": 2.0}, TypeError, "batch_size must be"),
        ({"plan": 3}, TypeError, "plan must be a PrivacyPlan"),
        ({"dtype": "float16"}, ValueError, "dtype must be"),
        ({"memory": "much"}, ValueError, "memory must be"),
        ({"threads": 0}, ValueError, "threads must be"),
        ({"key": b"short"}, ValueError, "key must be 32 bytes"),
        ({"noise_seed": -1}, ValueError, "seed must be"),
        ({"noise_seed": 1, "key": bytes(32)}, ValueError, "a noise_seed or a key, got both"),
        ({"process_group": 1}, ValueError, "initialised torch.distributed"),
    ],
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        dpftrl, members = ready(**options)
        gradients(members, 0)
        dpftrl.step()


def test_float64_parameters_need_float64_sums() -> None:
    dpftrl = DPFTRL(parameters(dtype=torch.float64), 1.0, plan=plan_of(3), batch_size=4)
    with pytest.raises(ValueError, match="float64 parameters need dtype='float64'"):
        dpftrl.step()


def _closure(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    gradients(members, 1)
    dpftrl.step(lambda: 0.0)  # type: ignore[arg-type]


def _no_gradients(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    dpftrl.step()


def _new_rate(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    gradients(members, 1)
    dpftrl.param_groups[0]["lr"] = math.nan
    try:
        dpftrl.step()
    finally:
        dpftrl.param_groups[0]["lr"] = 0.1


def _new_momentum(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    gradients(members, 1)
    dpftrl.param_groups[0]["momentum"] = 0.5
    try:
        dpftrl.step()
    finally:
        dpftrl.param_groups[0]["momentum"] = 0.0


def _new_group(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    dpftrl.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})


def _new_parameter(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    gradients(members, 1)
    dpftrl.param_groups[0]["params"].append(nn.Parameter(torch.zeros(2)))
    try:
        dpftrl.step()
    finally:
        del dpftrl.param_groups[0]["params"][-1]


def _sparse(dpftrl: DPFTRL, members: list[nn.Parameter]) -> None:
    gradients(members, 1)
    members[1].grad = torch.ones(3).to_sparse()
    dpftrl.step()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_closure, "takes no closure"),
        (_no_gradients, "None for all parameters: call backward first"),
        (_new_rate, "lr must be a finite number >= 0, got nan"),
        (_new_momentum, "momentum must be greater than 0 from the first step on"),
        (_new_group, "before the first step"),
        (_new_parameter, r"must have \[4\] parameters.*got \[5\]"),
        (_sparse, "must be dense"),
    ],
)
def test_a_wrong_call_changes_nothing(
    call: Callable[[DPFTRL, list[nn.Parameter]], None], words: str
) -> None:
    dpftrl, members = ready(noise_seed=1)
    run(dpftrl, members, 0, 1)
    with pytest.raises(ValueError, match=words):
        call(dpftrl, members)
    assert dpftrl.steps_taken == 1
    run(dpftrl, members, 1, 3)

    other, same = ready(noise_seed=1)
    run(other, same, 0, 3)
    for a, b in zip(members, same, strict=True):
        assert torch.equal(a, b)
    gradients(members, 3)
    with pytest.raises(ValueError, match="all 3 declared steps are taken"):
        dpftrl.step()
    for a, b in zip(members, same, strict=True):
        assert torch.equal(a, b)


def test_a_bad_group_leaves_the_optimiser_as_it_was() -> None:
    dpftrl, _ = ready()
    with pytest.raises(ValueError, match="lr must be"):
        dpftrl.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": -1.0})
    assert len(dpftrl.param_groups) == 1
    dpftrl.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    assert len(dpftrl.param_groups) == 2


def test_autograd_sees_that_parameters_changed() -> None:
    dpftrl, members = ready()
    loss = (members[1] ** 2).sum()
    gradients(members, 0)
    dpftrl.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_values_are_no_reason_to_refuse_a_step() -> None:
    dpftrl, members = ready(radius=1.0)
    gradients(members, 0)
    members[0].grad = torch.full((4, 3), math.nan)
    dpftrl.step()
    assert dpftrl.steps_taken == 1


def test_an_interrupted_step_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    dpftrl, members = ready()
    state = dpftrl.state_dict(secrets=True)
    gradients(members, 0)
    with monkeypatch.context() as patch:

        def interrupted(*args: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(FlatFTRL, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dpftrl.step()
    gradients(members, 0)
    account = RunAccount(dpftrl.plan).recovered(1, 1, accept_epsilon=(1e9, 1e-6))
    for call in (dpftrl.step, dpftrl.state_dict, lambda: dpftrl.recover(account)):
        with pytest.raises(RuntimeError, match="interrupted half-way: resume from a checkpoint"):
            call()
    dpftrl.load_state_dict(state, allow_fork=True)
    dpftrl.step()
    assert dpftrl.steps_taken == 1


def test_no_thread_steps_or_saves_or_loads_during_a_step() -> None:
    dpftrl, members = ready(noise_seed=1)
    state = dpftrl.state_dict(secrets=True)
    gradients(members, 0)
    account = RunAccount(dpftrl.plan).recovered(1, 1, accept_epsilon=(1e9, 1e-6))
    calls = [
        dpftrl.step,
        dpftrl.state_dict,
        lambda: dpftrl.load_state_dict(state, allow_fork=True),
        lambda: dpftrl.recover(account),
    ]
    with held_inside(FlatFTRL, "step", dpftrl.step):
        for call in calls:
            with pytest.raises(RuntimeError, match="one step at a time, and no state"):
                call()
    assert dpftrl.steps_taken == 1
    run(dpftrl, members, 1, 3)
    other, same = ready(noise_seed=1)
    run(other, same, 0, 3)
    assert all(torch.equal(a, b) for a, b in zip(members, same, strict=True))


def test_it_is_neither_pickled_nor_copied() -> None:
    dpftrl, _ = ready()
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(dpftrl)
    with pytest.raises(TypeError, match="not pickled"):
        copy.deepcopy(dpftrl)
    assert "key" not in repr(dpftrl)


def test_gradients_are_taken_once() -> None:
    dpftrl, members = ready()
    gradients(members, 0)
    dpftrl.step()
    assert [p.grad for p in members] == [None] * 4


def test_seeds_are_marked() -> None:
    assert not ready()[0].reproducible
    dpftrl, members = ready(noise_seed=0)
    assert dpftrl.reproducible
    run(dpftrl, members, 0, 1)
    assert dpftrl.reproducible


def test_hooks_of_torch_see_the_step() -> None:
    dpftrl, members = ready()
    seen = []
    dpftrl.register_step_pre_hook(lambda *_: seen.append("before"))
    dpftrl.register_step_post_hook(lambda *_: seen.append("after"))
    gradients(members, 0)
    dpftrl.step()
    assert seen == ["before", "after"]
