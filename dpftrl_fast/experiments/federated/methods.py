# SPDX-License-Identifier: Apache-2.0
"""The methods of the federated experiment: DP-FTRL and DP-FedAvg on one server, a run each.

A round's clients send updates, each clipped as a whole and added up; noise is added, the sum
divided by the report goal, and the server steps. Methods differ in who takes part in a round and in
the noise. Noise, first weights and cohorts follow from a seed: these runs are for comparison on
public data, not private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.experiments.convex.dpsgd import amplified_sigma, fixed_batches_sigma
from dpftrl_fast.experiments.federated.clients import Population
from dpftrl_fast.mechanisms import Tree, Variant
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

MOMENTUM = 0.9


@dataclass(frozen=True)
class Method:
    """A method, but for rates and clip norm.

    Attributes
    ----------
    kind : {"ftrl", "fixed", "amplified"}
        DP-FTRL; DP-FedAvg over disjoint cohorts; DP-FedAvg over Poisson samples of clients.
    momentum : float
        Of the server.
    restart : int or None
        Of FTRL: passes after which a new tree starts, the one before completed; None for one tree.
    variant : {"honaker", "vanilla"}
        Of FTRL.
    """

    kind: Literal["ftrl", "fixed", "amplified"]
    momentum: float = 0.0
    restart: int | None = None
    variant: Variant = "honaker"

    @property
    def name(self) -> str:
        """As in tables.

        Examples
        --------
        >>> Method("ftrl", 0.9, restart=1).name, Method("ftrl", variant="vanilla").name
        ('DP-FTRLM, restart 1', 'DP-FTRL, vanilla, no restart')
        >>> Method("amplified", 0.9).name
        'DP-FedAvgM, amplified'
        """
        letter = "M" if self.momentum else ""
        if self.kind != "ftrl":
            words = {"fixed": "not amplified", "amplified": "amplified"}[self.kind]
            return f"DP-FedAvg{letter}, {words}"
        words = "" if self.variant == "honaker" else ", vanilla"
        words += ", no restart" if self.restart is None else f", restart {self.restart}"
        return f"DP-FTRL{letter}{words}"

    def to_dict(self) -> dict[str, Any]:
        """Return what a row of results has of it."""
        common = {"method": self.kind, "momentum": self.momentum}
        if self.kind != "ftrl":
            return common
        return {**common, "restart": self.restart, "variant": self.variant}


@dataclass(frozen=True)
class Budget:
    """What a run may spend.

    Attributes
    ----------
    epsilon, delta : float
    report_goal : int
        Clients of a round, or their expected number; what sums are divided by.
    passes : int
        There are passes ceil(clients/report_goal) rounds.
    """

    epsilon: float
    delta: float
    report_goal: int
    passes: int

    def rounds(self, clients: int) -> int:
        """Return the rounds of a pass over so many clients."""
        return -(-clients // self.report_goal)


@dataclass(frozen=True)
class Setting:
    """Rates and clip norm.

    Attributes
    ----------
    client_rate : float
        Of the clients' steps.
    clip_norm : float
        Of a client's whole update.
    server_rate : float
        What the mean update is multiplied by.
    """

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
    pass, each under noise of its own. Amplified: by dp_accounting, which takes seconds.

    Parameters
    ----------
    method : Method
    budget : Budget
    clients : int
    quick : bool
        Whether the faster accountant of amplified methods is enough.

    Examples
    --------
    >>> round(noise_multiplier_of(Method("ftrl", restart=1), Budget(8.0, 1e-4, 78, 6), 1242), 2)
    2.79
    """
    epsilon, delta = budget.epsilon, budget.delta
    if method.kind == "ftrl":
        plan = PrivacyPlan.calibrate(
            epsilon=epsilon, delta=delta, clip_norm=1.0, **_fields(method, budget, clients)
        )
        return plan.noise_multiplier
    if method.kind == "fixed":
        return fixed_batches_sigma(epsilon, delta, budget.passes)
    steps = budget.passes * budget.rounds(clients)
    probability = min(1.0, budget.report_goal / clients)
    return amplified_sigma(epsilon, delta, probability, steps, "rdp" if quick else "pld")


def _fields(method: Method, budget: Budget, clients: int) -> dict[str, Any]:
    rounds = budget.rounds(clients)
    return {
        "participation": SinglePass(rounds)
        if budget.passes == 1
        else FixedEpochs(rounds, budget.passes, reshuffle=True),
        "mechanism": Tree(
            method.variant,
            None if method.restart is None else method.restart * rounds,
            complete=method.restart is not None,
        ),
        "bound": "released",
    }


def cohorts(method: Method, budget: Budget, clients: int, seed: int) -> Iterator[Ints]:
    """Yield the clients of each round.

    Clients are dealt to the rounds of a pass: for FTRL when a tree starts, for DP-FedAvg in each
    pass. Amplified methods take each client with the probability report goal/clients.
    """
    generator = np.random.default_rng([seed, 20210302])
    rounds, goal = budget.rounds(clients), budget.report_goal
    deal = np.arange(clients)
    for a_pass in range(budget.passes):
        if method.kind == "amplified":
            for _ in range(rounds):
                yield np.flatnonzero(generator.random(clients) < goal / clients)
            continue
        every = method.restart if method.kind == "ftrl" else 1
        if a_pass == 0 or (every is not None and a_pass % every == 0):
            deal = generator.permutation(clients)
        for start in range(0, rounds * goal, goal):
            yield deal[start : start + goal]


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

    Parameters
    ----------
    method : Method
    budget : Budget
        Its epsilon is not looked at here.
    population : Population
    setting : Setting
    noise : float
        The noise multiplier.
    seed : int
        Of the first weights, the cohorts and the noise.
    each_round : callable, optional
        Called with the round, from 1, and the parameters, flat.
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
    """Return what gives the noise on the sum over all rounds so far, round after round."""
    size = population.sizes.parameters
    if method.kind == "ftrl":
        plan = ftrl_plan(method, budget, len(population), setting.clip_norm, noise)
        tree = plan.noise(size, seed=seed, dtype="float64", threads=1)
        return tree.step
    generator = np.random.default_rng([seed, 20210303])
    std, walk = setting.clip_norm * noise, np.zeros(size)

    def step() -> Doubles:
        walk.__iadd__(std * generator.standard_normal(size))
        return walk

    return step
