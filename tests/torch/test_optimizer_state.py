# SPDX-License-Identifier: Apache-2.0
"""States of `DPFTRL`: resumed to the bit, refused where they do not fit, and what may leave."""

from __future__ import annotations

import copy
import io
import os
from typing import Any

import pytest
import torch
from dpftrl_runs import gradients, parameters, plan_of, ready, run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch import DPFTRL, ResidualNoise, make_private, model_state_dict
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.flat.update import FlatFTRL


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
@pytest.mark.parametrize("at", [0, 1, 5, 6, 11])
def test_a_resumed_run_is_the_same_to_the_bit(memory: Any, at: int) -> None:
    options: dict[str, Any] = {
        "plan": plan_of(12, 1.0, mechanism=Tree(restart_every=5, complete=True)), "batch_size": 4,
        "memory": memory, "momentum": 0.9, "l1": 1e-3, "radius": 3.0,
    }  # fmt: skip
    members = parameters()
    dpftrl = DPFTRL(members, 0.1, **options)
    run(dpftrl, members, 0, at)
    file = io.BytesIO()
    torch.save((dpftrl.state_dict(secrets=True), [p.detach() for p in members]), file)
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
    torch.save(dpftrl.state_dict(secrets=True)["noise"], file)
    text = repr(dpftrl.state_dict(secrets=True)["noise"])
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
    state = DPFTRL(**options).state_dict(secrets=True)
    other = DPFTRL(**{**options, "params": parameters(1), **change})
    with pytest.raises(ValueError, match=words):
        other.load_state_dict(state)
    assert other.steps_taken == 0


def test_every_fact_of_a_run_has_another_that_is_refused() -> None:
    """Those of the test above, and `test_bad_states_are_refused` of the residual noise."""
    dpftrl = DPFTRL(parameters(), 1.0, plan=plan_of(12, 1.0), batch_size=4)
    state = dpftrl.state_dict(secrets=True)
    assert dpftrl._run._identity(dpftrl._run.layout).keys() == {"plan", "parameters", "dtype"}
    assert dpftrl._settings().keys() == {"batch_size", "radius"}
    residual = ResidualNoise(parameters(), plan=plan_of(12, 1.0), batch_size=4)
    saved = residual.state_dict(secrets=True)
    facts = dpftrl._run._identity(dpftrl._run.layout)
    assert residual._run._identity(residual._run.layout).keys() == facts.keys()
    for change in (
        {"plan": plan_of(13, 1.0)},
        {"params": [nn.Parameter(torch.zeros(24))]},
        {"dtype": "float64"},
        {"batch_size": 5},
    ):
        options = {"params": parameters(), "plan": plan_of(12, 1.0), "batch_size": 4, **change}
        with pytest.raises(ValueError, match=r"state must have (the )?(plan|param|dtype|batch)"):
            ResidualNoise(**options).load_state_dict(saved)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="format"):
        residual.load_state_dict(state)
    for remainder in ([0.0] * 24, torch.zeros(23), saved["remainder"].double()):
        with pytest.raises((TypeError, ValueError), match="remainder must be"):
            residual.load_state_dict({**saved, "remainder": remainder})


def test_a_broken_state_is_refused() -> None:
    members = parameters()
    dpftrl = DPFTRL(members, 1.0, plan=plan_of(12, 1.0), batch_size=4)
    run(dpftrl, members, 0, 1)
    state = dpftrl.state_dict(secrets=True)
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
        dpftrl.load_state_dict(
            {**state, "param_groups": [{**state["param_groups"][0], "lr": -1.0}]}
        )
    run(dpftrl, members, 1, 2)
    with pytest.raises(ValueError, match="its noise would be used twice"):
        dpftrl.load_state_dict(state)
    dpftrl.load_state_dict(state, allow_fork=True)
    assert dpftrl.steps_taken == 1


def test_the_state_is_a_copy() -> None:
    members = parameters()
    dpftrl = DPFTRL(members, 1.0, plan=plan_of(12, 1.0), batch_size=4, momentum=0.5)
    run(dpftrl, members, 0, 3)
    state = dpftrl.state_dict(secrets=True)
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


def test_running_statistics_of_a_pretrained_layer_leave_as_they_came() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    model.train()(torch.randn(8, 2))  # public data
    model.eval()
    before = copy.deepcopy(model[1].state_dict())
    data = TensorDataset(torch.randn(4, 2), torch.zeros(4, 1))

    def private(mode: Any) -> Any:
        return make_private(
            model,
            torch.optim.SGD(model.parameters(), 0.1),
            DataLoader(data, batch_size=2),
            noise_multiplier=1.0,
            delta=1e-5,
            epochs=1,
            clip_norm=1.0,
            grad_sample_mode=mode,
        )

    run = private("vmap")
    model.train()
    model[1].eval()
    for _, (x, y) in run.data_loader:
        nn.functional.mse_loss(run.model(x), y).backward()
        run.optimizer.step()
    state = model_state_dict(run.model)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(state[f"1.{name}"], before[name])
    copied = copy.deepcopy(run.model)
    with pytest.raises(ValueError, match="on the model that make_private returned"):
        model_state_dict(copied)
    model.train()(torch.randn(8, 2))  # statistics of data that are not public
    with pytest.raises(ValueError, match=r"running statistics.*in 1"):
        model_state_dict(run.model)
    model[1].eval()
    private("vmap")  # another run does not make them public
    with pytest.raises(ValueError, match=r"running statistics.*in 1"):
        model_state_dict(run.model)


def test_the_model_state_leaves_nothing_out() -> None:
    class Net(nn.Module):
        """A model of somebody who calls its body as wrappers call theirs."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(2, 3))
            self.head = nn.Linear(3, 1)

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._module = nn.Linear(2, 3)
            self.scale = nn.Parameter(torch.ones(1))

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 3)

    for model in (Net("_module"), Net("module"), Net("_orig_mod"), Scaled(), Inner()):
        assert model_state_dict(model).keys() == model.state_dict().keys()
    inner = nn.Linear(2, 3)
    compiled = torch.compile(inner, backend="eager")
    assert model_state_dict(compiled).keys() == inner.state_dict().keys()


# ---- What a state is not taken for ----


def recovered(dpftrl: DPFTRL, last: int, step: int) -> RunAccount:
    account = RunAccount(dpftrl.plan).recovered(last, step, accept_epsilon=(1e9, 1e-6))
    dpftrl.recover(account)
    return account


def test_a_state_of_after_a_restart_is_not_one_of_before() -> None:
    options: dict[str, Any] = {"plan": plan_of(12, 1.0), "batch_size": 4}
    members = parameters()
    dpftrl = DPFTRL(members, 1.0, **options)
    run(dpftrl, members, 0, 5)
    before = dpftrl.state_dict(secrets=True)
    account = recovered(dpftrl, 7, 6)
    run(dpftrl, members, 5, 7)
    after = dpftrl.state_dict(secrets=True)
    with pytest.raises(
        ValueError, match="began with step 6, got 1: after a recovery, call recover"
    ):
        dpftrl.load_state_dict(before)
    other = DPFTRL(parameters(), 1.0, **options)
    with pytest.raises(ValueError, match="began with step 1, got 6"):
        other.load_state_dict(after)
    assert other.steps_taken == 0
    other.recover(account)
    other.load_state_dict(after)
    assert other.steps_taken == 7


def test_a_restart_is_of_this_run_and_of_its_next_step() -> None:
    dpftrl, members = ready(plan=plan_of(12, 1.0))
    run(dpftrl, members, 0, 5)
    state = dpftrl.state_dict(secrets=True)
    with pytest.raises(ValueError, match="must start with step 6, the next one, got 5"):
        recovered(dpftrl, 7, 5)
    with pytest.raises(TypeError, match="must be a RunAccount, got PrivacyPlan"):
        dpftrl.recover(dpftrl.plan)  # type: ignore[arg-type]
    account = RunAccount(plan_of(13, 1.0)).recovered(7, 6, accept_epsilon=(1e9, 1e-6))
    with pytest.raises(ValueError, match="of the plan of this object"):
        dpftrl.recover(account)
    assert str(dpftrl.state_dict(secrets=True)) == str(state)
    recovered(dpftrl, 7, 6)
    run(dpftrl, members, 5, 7)
    with pytest.raises(ValueError, match="present stretch, which began with step 6, got one from"):
        recovered(dpftrl, 9, 8)  # of a run that had no restart before


def test_a_seed_marks_the_run_for_good() -> None:
    dpftrl, members = ready(plan=plan_of(12, 1.0), noise_seed=4)
    run(dpftrl, members, 0, 5)
    account = recovered(dpftrl, 7, 6)
    run(dpftrl, members, 5, 6)
    assert dpftrl.reproducible  # the noise of the first stretch can be taken away
    other, _ = ready(plan=plan_of(12, 1.0))
    other.recover(account)
    assert not other.reproducible
    other.load_state_dict(dpftrl.state_dict(secrets=True))
    assert other.reproducible


def test_a_state_loaded_half_way_is_not_gone_on_from(monkeypatch: pytest.MonkeyPatch) -> None:
    dpftrl, members = ready()
    run(dpftrl, members, 0, 1)
    state = dpftrl.state_dict(secrets=True)
    other, others = ready()
    with monkeypatch.context() as patch:

        def interrupted(self: FlatFTRL) -> dict[str, Any]:
            if other.steps_taken:
                raise KeyboardInterrupt
            return vectors(self)

        vectors = FlatFTRL.vectors
        patch.setattr(FlatFTRL, "vectors", interrupted)
        with pytest.raises(KeyboardInterrupt):
            other.load_state_dict(state)
    gradients(others, 1)
    with pytest.raises(RuntimeError, match="interrupted half-way"):
        other.step()
    other.load_state_dict(state)
    other.step()


def test_noise_of_several_ranges_is_taken_up_whole_or_not_at_all() -> None:
    plan, ranges = plan_of(12, 1.0), [(0, 4), (8, 4)]

    def noise() -> FlatNoise:
        return FlatNoise(plan, ranges, dtype="float32", device=torch.device("cpu"))

    out, again = torch.empty(8), torch.empty(8)
    source, own, same = noise(), noise(), noise()
    same.load_state_dict(own.state_dict())
    for _ in range(3):
        source.step(out)
    good = source.state_dict()
    short = [good["vectors"][0], [[*good["vectors"][1][0][:-1], torch.zeros(3)]]]
    for wrong, words in (
        ({"vectors": good["vectors"][:1]}, "vectors of 2 ranges, got 1"),
        ({"vectors": short}, "array of 4 elements"),
        ({"common": {**good["common"], "key": None}}, "must have its key"),
        ({"ranges": [[0, 4], [8, 3]]}, "of the coordinates"),
    ):
        with pytest.raises(ValueError, match=words):
            own.load_state_dict({**good, **wrong})
    with pytest.raises(ValueError, match="lacks common, vectors"):
        own.load_state_dict({"ranges": ranges, "steps_taken": 0})
    with pytest.raises(TypeError, match="must be a mapping, got int"):
        own.load_state_dict(3)  # type: ignore[arg-type]
    own.step(out)
    same.step(again)
    assert torch.equal(out, again)
    own.load_state_dict(good)
    own.step(out)
    source.step(again)
    assert torch.equal(out, again)
    with pytest.raises(ValueError, match="used twice"):
        own.load_state_dict(good)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.parametrize("key", [None, bytes(range(32))], ids=["drawn", "given"])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_a_fork_never_makes_the_same_noise(
    key: bytes | None, started: bool, residual: bool
) -> None:
    p = nn.Parameter(torch.zeros(4))
    noise: Any
    if residual:
        noise = ResidualNoise([p], plan=plan_of(12, 1.0), key=key)
    else:
        noise = DPFTRL([p], 1.0, plan=plan_of(12, 1.0), batch_size=1, key=key, threads=1)

    def released() -> bytes:
        p.grad = torch.zeros(4)
        (noise.add_ if residual else noise.step)()
        return (p.grad if residual else p.detach()).numpy().tobytes()  # type: ignore[union-attr]

    if started:
        released()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, released())
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    if started or key is not None:
        assert b"forked from one that holds the same key" in found
    else:
        assert len(found) == 16 and found != released()
