# SPDX-License-Identifier: Apache-2.0
"""States without secrets: what is in them, where they load, and a recovery from one."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from dpftrl_runs import QUIET, gradients, parameters, plan_of, run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch import DPFTRL, ResidualNoise, TrainingRun, make_private

ACCEPT = (1e9, 1e-6)


def kinds(**options: Any) -> dict[str, Any]:
    """A source of noise of each kind, on parameters of its own; and how it takes a step."""
    given: dict[str, Any] = {"plan": plan_of(12, 1.0), "batch_size": 4, **options}
    return {
        "dpftrl": DPFTRL(parameters(), 0.1, **given),
        "residual": ResidualNoise(parameters(), **given),
    }


def step(noise: Any, t: int) -> list[torch.Tensor]:
    """Take step t with made-up gradients; return all that is released."""
    members = [p for group in _groups_of(noise) for p in group["params"]]
    gradients(members, t)
    if isinstance(noise, DPFTRL):
        noise.step()
        return [p.detach().clone() for p in members]
    noise.add_()
    return [p.grad.clone() for p in members if p.grad is not None]


def _groups_of(noise: Any) -> Any:
    return noise.param_groups if isinstance(noise, DPFTRL) else noise._groups


def contents(value: Any) -> Any:
    """All leaves of a state."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from contents(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from contents(item)
    else:
        yield value


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_state_holds_no_secret_unless_asked_for(kind: str, at: int) -> None:
    """No key, no vector: the same bytes whatever key and gradients were."""
    states = []
    for key, scale in ((bytes(32), 1.0), (bytes(range(32)), 3.0)):
        noise = kinds(key=key)[kind]
        members = [p for group in _groups_of(noise) for p in group["params"]]
        for t in range(at):
            gradients(members, t, scale)
            (noise.step if kind == "dpftrl" else noise.add_)()
        states.append(noise.state_dict())
        whole = noise.state_dict(secrets=True)
        assert any(leaf == key.hex() or leaf == key for leaf in contents(whole["noise"]))
    assert states[0] == states[1]
    leaves = [*contents(states[0])]
    assert not any(isinstance(leaf, (torch.Tensor, bytes)) for leaf in leaves)
    assert states[0]["steps_taken"] == at and states[0]["secrets"] is False
    file = io.BytesIO()
    torch.save(states[0], file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == states[0]


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_a_state_is_loaded_where_it_is_as_tools_do(kind: str) -> None:
    """Accelerate loads an optimiser with its own state: before the first step and later."""
    noise, other = kinds(noise_seed=3)[kind], kinds(noise_seed=3)[kind]
    for t in range(4):
        noise.load_state_dict(noise.state_dict())
        for a, b in zip(step(noise, t), step(other, t), strict=True):
            assert torch.equal(a, b)


def test_the_state_of_the_beginning_fixes_nothing() -> None:
    """Parameters may be loaded, moved and added after a tool has saved and loaded the state."""
    members = parameters()
    dpftrl = DPFTRL(members, 0.1, plan=plan_of(12, 1.0), batch_size=4, noise_seed=3)
    state = dpftrl.state_dict()
    state["param_groups"][0]["lr"] = 0.7
    dpftrl.load_state_dict(state)
    assert dpftrl.param_groups[0]["lr"] == 0.7 and not dpftrl._run.started
    dpftrl.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "lr": 0.1})
    with pytest.raises(ValueError, match=r"the parameters of this object|2 parameter groups"):
        dpftrl.load_state_dict(state)


@pytest.mark.parametrize("secret", [True, False])
def test_parameters_loaded_before_the_first_step_are_the_start(secret: bool) -> None:
    members, others = parameters(1), parameters(1)
    options: dict[str, Any] = {"plan": plan_of(12, 1.0), "batch_size": 4, "noise_seed": 3}
    early, late = DPFTRL(members, 0.1, **options), DPFTRL(others, 0.1, **options)
    early.state_dict(secrets=secret)
    with torch.no_grad():
        for p in (*members, *others):
            p.add_(1.0)
    run(early, members, 0, 3)
    run(late, others, 0, 3)
    for a, b in zip(members, others, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_a_state_without_its_key_is_refused_elsewhere(kind: str) -> None:
    noise, other, done = (kinds()[kind] for _ in range(3))
    start = noise.state_dict()
    for t in range(12):
        step(done, t)
        if t < 5:
            step(noise, t)
    state = noise.state_dict()
    remedies = r"step 5 and holds no key.*TrainingRun.*secrets=True.*recovered\(last, 6, accept_ep"
    with pytest.raises(ValueError, match=remedies):
        other.load_state_dict(state)
    assert other.steps_taken == 0
    with pytest.raises(ValueError, match="at step 0, behind this object at 5"):
        noise.load_state_dict(start)
    with pytest.raises(ValueError, match=r"resume the run .*\(secrets=True\)$"):
        other.load_state_dict(done.state_dict())  # no step is left to recover
    other.load_state_dict(noise.state_dict(secrets=True))
    for a, b in zip(step(noise, 5), step(other, 5), strict=True):
        assert torch.equal(a, b)
    for change in (
        {"plan": plan_of(13, 1.0).to_dict()},
        {"batch_size": 5},
        {"dtype": "float64"},
        {"parameters": "0"},
        {"format": "x"},
        {"steps_taken": 99},
        {"start": 2},
    ):
        with pytest.raises(ValueError, match="state"):
            kinds()[kind].load_state_dict({**start, **change})
    for name in start:
        if name != "secrets":
            with pytest.raises(ValueError, match="state lacks"):
                kinds()[kind].load_state_dict({k: v for k, v in start.items() if k != name})


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
@pytest.mark.parametrize("last", [5, 7])
def test_a_refused_state_loads_after_the_recovery_that_is_named(kind: str, last: int) -> None:
    killed, other = kinds()[kind], kinds()[kind]
    for t in range(5):
        step(killed, t)
    state = killed.state_dict()
    account = RunAccount(killed.plan).recovered(last, 6, accept_epsilon=ACCEPT)
    assert account.epsilon(1e-6) > killed.plan.epsilon(1e-6)
    other.recover(account)
    other.load_state_dict(other.state_dict())  # as a tool does
    other.load_state_dict(state)
    assert other.steps_taken == 5 and not other.reproducible
    step(other, 5)
    again = kinds()[kind]
    again.recover(account)
    again.load_state_dict(other.state_dict(secrets=True))
    for t in range(6, 12):
        for a, b in zip(step(other, t), step(again, t), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(ValueError, match="all 12 declared steps"):
        step(other, 12)


@pytest.mark.parametrize("kind", ["dpftrl", "residual"])
def test_a_second_recovery_counts_the_first(kind: str) -> None:
    first = kinds()[kind]
    first.recover(RunAccount(first.plan).recovered(7, 6, accept_epsilon=ACCEPT))
    step(first, 5)
    state = first.state_dict()
    second = kinds()[kind]
    second.recover(RunAccount(first.plan).recovered(6, 7, accept_epsilon=ACCEPT))
    words = r"RunAccount\(plan, abandoned=\[\[1, 7\]\], start=6\)\.recovered\(last, 7"
    with pytest.raises(ValueError, match=words):
        second.load_state_dict(state)
    account = RunAccount(first.plan, abandoned=((1, 7),), start=6)
    second = kinds()[kind]
    second.recover(account.recovered(6, 7, accept_epsilon=ACCEPT))
    second.load_state_dict(state)
    step(second, 6)
    assert second.steps_taken == 7


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.usefixtures("fine_grid")
def test_a_recovered_run_is_one_that_begins_at_the_released_parameters(model_first: bool) -> None:
    options: dict[str, Any] = {"batch_size": 4, "momentum": 0.5, "l1": 1e-2}
    plan = plan_of(12, QUIET)
    members, others, plain = parameters(), parameters(1), parameters(1)
    killed = DPFTRL(members, 0.1, plan=plan, **options)
    run(killed, members, 0, 5)

    def load_model() -> None:
        with torch.no_grad():
            for p, q, value in zip(others, plain, members, strict=True):
                p.copy_(value)
                q.copy_(value)

    recovered = DPFTRL(others, 0.1, plan=plan, **options)
    if model_first:
        load_model()
    recovered.recover(RunAccount(plan, abandoned=((1, 7),), start=6))
    recovered.load_state_dict(killed.state_dict())
    load_model()
    begun = DPFTRL(plain, 0.1, plan=plan_of(7, QUIET), **options)
    for t in range(5, 12):
        if t == 8:  # and so is one that resumes
            state, values = recovered.state_dict(secrets=True), others
            others = [nn.Parameter(p.detach().clone()) for p in values]
            recovered = DPFTRL(others, 0.1, plan=plan, **options)
            recovered.recover(RunAccount(plan, abandoned=((1, 7),), start=6))
            recovered.load_state_dict(state)
        run(recovered, others, t, t + 1)
        run(begun, plain, t, t + 1)
        for p, q in zip(others, plain, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def private(keep: bool, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(12, 3), torch.arange(12) % 2)
    return make_private(
        model,
        torch.optim.Adam(model.parameters(), 0.1)
        if keep
        else torch.optim.SGD(model.parameters(), 0.1),
        DataLoader(data, batch_size=3),
        **{"noise_multiplier": 2.0, "delta": 1e-6, "epochs": 2, "clip_norm": 1.0, **options},
    )


def train(made: Any, steps: int) -> None:
    while steps:
        for _, (x, y) in made.data_loader:
            nn.functional.cross_entropy(made.model(x), y).backward()
            made.optimizer.step()
            steps -= 1
            if steps == 0:
                break


@pytest.mark.parametrize("keep", [False, True])
def test_checkpoints_of_tools_hold_no_key_and_are_no_way_round_the_account(keep: bool) -> None:
    """A kept Adam's moments are made of noisy gradients; its state knows where its noise is."""
    key = bytes(range(32))
    made = private(keep, key=key)
    made.optimizer.load_state_dict(made.optimizer.state_dict())  # as Accelerate does
    train(made, 3)
    saved = {
        "optimizer": made.optimizer.state_dict(),
        "model": made.model.state_dict(),
        "ledger": made.ledger.state_dict(),
        "loader": made.data_loader.state_dict(),
    }
    file = io.BytesIO()
    torch.save(saved, file)
    assert key not in file.getvalue() and key.hex().encode() not in file.getvalue()

    def loaded() -> Any:
        file.seek(0)
        return torch.load(file, weights_only=True)

    saved = loaded()
    other = private(keep)
    with pytest.raises(ValueError, match=r"holds no key.*call recover"):
        other.optimizer.load_state_dict(saved["optimizer"])
    stated = other.ledger.epsilon_spent()
    plan = other.data_loader.plan
    account = RunAccount(plan).recovered(3, 4, accept_epsilon=ACCEPT)
    other.noise.recover(account)
    for part, held in saved.items():
        if part != "model":
            getattr(other, "data_loader" if part == "loader" else part).load_state_dict(held)
    other.model.load_state_dict(saved["model"])
    assert other.ledger.epsilon_spent() == account.epsilon(1e-6) > stated
    train(other, 5)
    assert other.ledger.steps_taken == other.noise.steps_taken == 8

    # With the key: the same run, and nothing more to account for.
    same, saved = private(keep), loaded()
    same.noise.load_state_dict(made.noise.state_dict(secrets=True))
    same.optimizer.load_state_dict(saved["optimizer"])
    same.ledger.load_state_dict(saved["ledger"])
    same.data_loader.load_state_dict(saved["loader"])
    same.model.load_state_dict(saved["model"])
    train(same, 5)
    train(made, 5)
    assert same.ledger.epsilon_spent() == stated
    for p, q in zip(same.model.parameters(), made.model.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("keep", [False, True])
def test_a_program_that_torchrun_started_again_does_not_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, keep: bool
) -> None:
    killed = private(keep)
    train(killed, 1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    made = private(keep)
    words = r"started this program again .*COUNT=1.*TrainingRun.*secrets=True.*recover.*new job"
    with pytest.raises(ValueError, match=words):
        train(made, 1)
    assert made.ledger.steps_taken == made.noise.steps_taken == 0
    made.optimizer.load_state_dict(private(keep).optimizer.state_dict())  # not a way round it
    with pytest.raises(ValueError, match=words):
        train(made, 1)

    # Each remedy that it names.
    with TrainingRun(tmp_path / "run", made.model, made.optimizer, made.data_loader):
        train(made, 1)
    resumed = private(keep)
    resumed.noise.load_state_dict(killed.noise.state_dict(secrets=True))
    for part in ("optimizer", "ledger", "data_loader"):
        getattr(resumed, part).load_state_dict(getattr(killed, part).state_dict())
    train(resumed, 1)
    recovered = private(keep)
    account = RunAccount(recovered.data_loader.plan).recovered(2, 1, accept_epsilon=ACCEPT)
    recovered.noise.recover(account)
    train(recovered, 1)
    assert recovered.ledger.epsilon_spent() == account.epsilon(1e-6)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    train(private(keep), 1)


def test_noise_alone_does_not_begin_anew_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    for noise in kinds().values():
        with pytest.raises(ValueError, match="started this program again"):
            step(noise, 0)
        assert noise.steps_taken == 0
