# SPDX-License-Identifier: Apache-2.0
"""The methods of the federated experiment: DP-FTRL and DP-FedAvg on one server, a run each.

A round's clients send updates, each clipped as a whole and added up; noise is added, the sum
divided by the report goal, and the server steps. Methods differ in the cohorts and in the noise.
Noise, first weights and cohorts follow from a seed: these runs are reproducible comparisons on
public data, not private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import dpsgd_noise_multiplier
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.experiments.convex.dpsgd import fixed_batches_sigma
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.experiments.fitted import Method as FittedMethod
from dpftrl_fast.experiments.fitted import passes_over_data
from dpftrl_fast.mechanisms import Mechanism, Tree, Variant
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Method(FittedMethod):
    """A method, without rates and clip norm: the baseline is DP-FedAvg.

    Momentum is the server's. Trees of FTRL that a restart follows are completed.

    Examples
    --------
    >>> Method("ftrl", 0.9, restart=1).name, Method("ftrl", variant="vanilla").name
    ('DP-FTRLM, restart 1', 'DP-FTRL, vanilla, no restart')
    >>> Method("amplified", 0.9).name
    'DP-FedAvgM, amplified'
    """

    baseline: ClassVar[str] = "DP-FedAvg"
    unamplified: ClassVar[str] = "not amplified"

    variant: Variant = "honaker"


@dataclass(frozen=True)
class Budget:
    """Privacy budget of a run, its report goal (clients of a round) and its passes."""

    epsilon: float
    delta: float
    report_goal: int
    passes: int

    def rounds(self, clients: int) -> int:
        """Return the rounds of a pass over so many clients."""
        return -(-clients // self.report_goal)


@dataclass(frozen=True)
class Setting:
    """Rate of the clients' steps, clip norm of a whole update, and factor of the mean update."""

    client_rate: float
    clip_norm: float
    server_rate: float


def ftrl_plan(
    method: Method, budget: Budget, clients: int, clip_norm: float, noise: float
) -> PrivacyPlan:
    """Return the plan of a run of FTRL with this noise multiplier.

    Examples
    --------
    >>> plan = ftrl_plan(Method("ftrl", restart=1), Budget(8.0, 1e-4, 78, 6), 1242, 0.3, 2.8)
    >>> plan.mechanism.restart_every, plan.steps, plan.mechanism.complete, plan.epsilon(1e-4) <= 8.0
    (16, 96, True, True)
    """
    return PrivacyPlan(clip_norm, noise, **_fields(method, budget, clients))


def noise_multiplier_of(
    method: Method, budget: Budget, clients: int, *, quick: bool = False
) -> float:
    """Return the least noise multiplier that keeps a budget.

    DP-FTRL: of the released prefixes. DP-FedAvg over disjoint cohorts: a client's updates, one a
    pass, each with separate noise. Amplified: by dp_accounting, which takes seconds; `quick` takes
    its faster accountant.

    Examples
    --------
    >>> round(noise_multiplier_of(Method("ftrl", restart=1), Budget(8.0, 1e-4, 78, 6), 1242), 2)
    2.79
    """
    epsilon, delta = budget.epsilon, budget.delta
    if method.kind in ("ftrl", "planned"):
        plan = PrivacyPlan.calibrate(
            epsilon=epsilon, delta=delta, clip_norm=1.0, **_fields(method, budget, clients)
        )
        return plan.noise_multiplier
    if method.kind == "fixed":
        return fixed_batches_sigma(epsilon, delta, budget.passes)
    steps = budget.passes * budget.rounds(clients)
    probability = min(1.0, budget.report_goal / clients)
    return dpsgd_noise_multiplier(epsilon, delta, probability, steps, "rdp" if quick else "pld")


def _fields(method: Method, budget: Budget, clients: int) -> dict[str, Any]:
    rounds = budget.rounds(clients)
    participation = passes_over_data(rounds, budget.passes)
    mechanism: Mechanism = Tree(
        method.variant,
        None if method.restart is None else method.restart * rounds,
        complete=method.restart is not None,
    )
    if method.kind == "planned":
        workload = Workload(momentum=method.momentum)
        mechanism = chosen_mechanism(
            "auto", participation, budget.epsilon, budget.delta, workload=workload
        )
    return {"participation": participation, "mechanism": mechanism, "bound": "released"}


def cohorts(method: Method, budget: Budget, clients: int, seed: int) -> Iterator[Ints]:
    """Yield the clients of each round.

    Clients are assigned to the rounds of a pass: for FTRL when a tree starts, with the planner's
    mechanism in the first pass, for DP-FedAvg in each pass. Amplified methods take each client with
    the probability report goal/clients.
    """
    generator = np.random.default_rng([seed, 20210302])
    rounds, goal = budget.rounds(clients), budget.report_goal
    order = np.arange(clients)
    for a_pass in range(budget.passes):
        if method.kind == "amplified":
            for _ in range(rounds):
                yield np.flatnonzero(generator.random(clients) < goal / clients)
            continue
        every = method.restart if method.kind in ("ftrl", "planned") else 1
        if a_pass == 0 or (every is not None and a_pass % every == 0):
            order = generator.permutation(clients)
        for start in range(0, rounds * goal, goal):
            yield order[start : start + goal]


def train(
    method: Method,
    budget: Budget,
    population: Population,
    setting: Setting,
    *,
    noise: float,
    seed: int,
    each_round: Callable[[int, Floats], None] | None = None,
) -> float:
    """Train the network and return its accuracy on the test examples.

    `noise` is the noise multiplier; the budget's epsilon is read only where the planner chooses the
    mechanism. The first weights, the cohorts and the noise follow from `seed`; `each_round` is
    called with the round, from 1, and the flat parameters.
    """
    first = population.sizes.initial(seed)
    prefix_noise = _noise(method, budget, population, setting, noise, seed)
    momentum, goal = method.momentum, budget.report_goal
    total = np.zeros(first.size)  # s_t: of all rounds so far
    velocity = np.zeros(first.size)
    theta = first
    for number, cohort in enumerate(cohorts(method, budget, len(population), seed), 1):
        _add_clipped(total, population, cohort, theta, setting)
        # v_t = momentum v_(t-1) + s_t + n_t; theta_(t+1) = theta_1 + rate v_t/goal
        velocity *= momentum
        velocity += total
        velocity += prefix_noise()
        theta = (first + (setting.server_rate / goal) * velocity).astype(np.float32)
        if each_round is not None:
            each_round(number, theta)
    return population.accuracy(theta)


def _add_clipped(
    total: Doubles, population: Population, cohort: Ints, theta: Floats, setting: Setting
) -> None:
    """Add the updates of a cohort, each clipped; one that is not finite counts as zero."""
    for client in cohort:
        update = population.update(int(client), theta, setting.client_rate).astype(np.float64)
        norm = float(np.sqrt(update @ update))
        if np.isfinite(norm):
            update *= min(1.0, setting.clip_norm / norm) if norm > 0.0 else 1.0
            total += update


def _noise(
    method: Method,
    budget: Budget,
    population: Population,
    setting: Setting,
    noise: float,
    seed: int,
) -> Callable[[], Doubles]:
    """Return a function that gives the noise of the running sum, round after round."""
    size = population.sizes.parameters
    if method.kind in ("ftrl", "planned"):
        plan = ftrl_plan(method, budget, len(population), setting.clip_norm, noise)
        source = plan.noise(size, seed=seed, dtype="float64", threads=1)
        return source.step
    generator = np.random.default_rng([seed, 20210303])
    std, walk = setting.clip_norm * noise, np.zeros(size)

    def step() -> Doubles:
        walk.__iadd__(std * generator.standard_normal(size))
        return walk

    return step
