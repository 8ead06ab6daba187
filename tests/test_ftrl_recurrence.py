# SPDX-License-Identifier: Apache-2.0
"""Every implementation of the FTRL recurrence against the reference; torch's is in tests/torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from ftrl_cases import Case, assert_close, cases
from hypothesis import given, settings

from dpftrl_fast.federated.optimizers import FTRLUpdate
from dpftrl_fast.ftrl import FTRL, soft_threshold
from dpftrl_fast.kernels.ftrl_step import ftrl_loop


@settings(deadline=None, max_examples=100)
@given(case=cases(nesterov=False))
def test_the_numpy_engine(case: Case) -> None:
    (group,) = case.groups
    parameters: dict[str, Any] = {
        "learning_rate": group.learning_rate,
        "batch_size": case.batch_size,
        "steps": case.steps,
        "momentum": group.momentum,
        "l1": group.l1,
        "radius": case.radius,
        "grid": case.grid,
    }
    with_prox = {**parameters, "prox": soft_threshold}
    runs = [FTRL(case.theta_0, **options) for options in (parameters, with_prox)]
    found: list[list[Any]] = [[run.theta] for run in runs]
    for t, (gradient, noise) in enumerate(zip(case.gradients, case.noises, strict=True)):
        if t == case.resume_at:
            state, runs[0] = runs[0].state_dict(), FTRL(case.theta_0, **parameters)
            runs[0].load_state_dict(state)
        for run, iterates in zip(runs, found, strict=True):
            iterates.append(run.step(gradient, noise))
    expected = case.iterates()
    for run, iterates in zip(runs, found, strict=True):
        assert_close(iterates, expected)
        assert_close(run.average, expected[:-1].mean(axis=0))
        assert_close(run.tail_average, expected[case.steps // 2 : -1].mean(axis=0))


@settings(deadline=None, max_examples=100)
@given(case=cases(groups=3, ball=False))
def test_the_compiled_pass_over_many_tensors(case: Case) -> None:
    with_momentum = any(group.momentum > 0.0 for group in case.groups)
    size, share = case.theta_0.size, 1.0 / case.batch_size
    loop = ftrl_loop("float64", with_momentum)
    state = [np.zeros(size) for _ in range(3 if with_momentum else 2)]
    pieces = np.array([[part.start, part.stop, k] for k, part in enumerate(case.parts)])
    weights, found = np.zeros(len(case.groups)), [case.theta_0]
    for t, (gradient, noise) in enumerate(zip(case.gradients, case.noises, strict=True), 1):
        numbers = np.zeros((len(case.groups), 5))
        for k, group in enumerate(case.groups):
            rate, gamma = group.learning_rate, group.momentum
            weights[k] = weight = gamma * weights[k] + t * group.l1
            of_sum = rate * share if group.nesterov or not with_momentum else 0.0
            if group.nesterov:
                weight = t * group.l1 + gamma * weights[k]
            of_v = rate * (gamma if group.nesterov else 1.0)
            numbers[k] = gamma, share, of_sum, of_v, rate * weight
        out = np.empty(size)
        at = [x.ctypes.data + 8 * pieces[:, 0] for x in (gradient, out)]
        loop(pieces, *at, numbers, case.grid, *state, case.theta_0, noise)
        found.append(out)
    assert_close(found, case.iterates())


@settings(deadline=None, max_examples=100)
@given(case=cases(l1=False, ball=False))
def test_the_update_of_a_server(case: Case) -> None:
    (group,) = case.groups
    options = {"momentum": group.momentum, "nesterov": group.nesterov}
    run = FTRLUpdate(case.theta_0, group.learning_rate, **options)
    found = [run.theta.copy()]
    for t, (total, noise) in enumerate(
        zip(case.gradients.cumsum(axis=0), case.noises, strict=True)
    ):
        if t == case.resume_at:
            state = {k: None if v is None else v.copy() for k, v in run.state_dict().items()}
            run = FTRLUpdate(np.zeros_like(case.theta_0), group.learning_rate, **options)
            run.load_state_dict(state)
        run.step(-(total + noise) / case.batch_size)  # updates point uphill
        found.append(run.theta.copy())
    assert_close(found, case.iterates())
