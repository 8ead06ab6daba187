# SPDX-License-Identifier: Apache-2.0
"""Longest runs within a budget: the most steps, epochs, participations or trees.

The noise multiplier is given. A longer run has every node and every pattern of a shorter one, so
its sensitivity is no smaller, and the largest run is found by doubling and then bisecting: about
twice log2 of the result evaluations of :func:`dpftrl_fast.accounting.sensitivity_squared`. Where
that is an upper bound in place of the maximum (see there), a longer run may keep the budget, too;
the returned one always does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dpftrl_fast._validate import MAX_STEPS, flag, positive, probability, step_count
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.accounting.statement.statement import Guarantee
from dpftrl_fast.mechanisms import Mechanism, Tree
from dpftrl_fast.mechanisms.mechanism import check_mechanism


def largest_steps(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    *,
    max_participations: int = 1,
    min_separation: int = 1,
    mechanism: Mechanism = Tree(),
    bound: PlanBound = "exact",
) -> int:
    """Return the most steps T of a run that keeps a budget.

    Parameters
    ----------
    epsilon, delta : float
        Budget, epsilon > 0 and 0 < delta < 1, for zero-out neighbours: one record's (or user's)
        gradients replaced by zero. delta includes the floor of the noise stream.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    max_participations, min_separation : int
        Largest number of participations of one record (or user), and their least distance, as for
        `MinSeparation`. By default each participates once.
    mechanism, bound
        As for :func:`dpftrl_fast.accounting.sensitivity_squared`; nothing listed tree by tree.

    Returns
    -------
    int
        At most 2^40, whatever the budget.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or if not even one step keeps the budget.

    Examples
    --------
    >>> largest_steps(8.0, 1e-6, 2.33)
    4095
    """
    budget = _Budget.of(epsilon, delta, noise_multiplier, mechanism, bound)
    return budget.largest(
        "step",
        lambda n: _separated(n, max_participations, min_separation),
        MAX_STEPS,
    )


def largest_epochs(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps_per_epoch: int,
    *,
    reshuffle: bool = True,
    mechanism: Mechanism = Tree(),
    bound: PlanBound = "exact",
) -> int:
    """Return the most epochs of fixed batches that keep a budget.

    Parameters
    ----------
    epsilon, delta, noise_multiplier, mechanism, bound
        As for :func:`largest_steps`.
    steps_per_epoch, reshuffle
        As for `FixedEpochs`.

    Returns
    -------
    int
        At most ``2^40 // steps_per_epoch``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or if not even one epoch keeps the budget.

    Examples
    --------
    >>> largest_epochs(8.0, 1e-5, 23.79, 100, mechanism=Tree(restart_every=500, complete=True))
    100
    """
    budget = _Budget.of(epsilon, delta, noise_multiplier, mechanism, bound)
    return budget.largest(
        "epoch",
        lambda n: FixedEpochs(steps_per_epoch, n, reshuffle),
        MAX_STEPS // step_count("steps_per_epoch", steps_per_epoch),
    )


def largest_participations(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    *,
    min_separation: int = 1,
    mechanism: Mechanism = Tree(),
    bound: PlanBound = "exact",
) -> int:
    """Return the most participations of one record (or user) that keep a budget.

    Parameters
    ----------
    epsilon, delta, noise_multiplier, mechanism, bound
        As for :func:`largest_steps`.
    steps, min_separation
        As for `MinSeparation`.

    Returns
    -------
    int
        At most ``ceil(steps / min_separation)``, since no more fit into the steps.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or if not even one participation keeps the budget.

    Examples
    --------
    >>> largest_participations(8.0, 1e-6, 10.0, 1024, min_separation=64)
    8
    """
    budget = _Budget.of(epsilon, delta, noise_multiplier, mechanism, bound)
    return budget.largest(
        "participation",
        lambda n: MinSeparation(steps, n, min_separation),
        MinSeparation(steps, MAX_STEPS, min_separation).most_participations,
    )


def largest_trees(
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    tree_steps: int,
    *,
    steps_per_epoch: int | None = None,
    reshuffle: bool = True,
    max_participations: int = 1,
    min_separation: int = 1,
    mechanism: Tree = Tree(),
    bound: PlanBound = "exact",
) -> int:
    """Return the most trees of equal length, one after the other, that keep a budget.

    The run has one restart fewer than trees.

    Parameters
    ----------
    epsilon, delta, noise_multiplier, mechanism, bound
        As for :func:`largest_steps`; a tree without ``restart_every``, which is ``tree_steps``.
    tree_steps : int
        Real steps of each tree, 1 to 2^40.
    steps_per_epoch, reshuffle
        As for `FixedEpochs`; ``tree_steps`` is a multiple. By default the pattern is
        `MinSeparation`.
    max_participations, min_separation
        As for :func:`largest_steps`, without ``steps_per_epoch`` only.

    Returns
    -------
    int
        At most ``2^40 // tree_steps``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or if not even one tree keeps the budget.

    Examples
    --------
    >>> largest_trees(8.0, 1e-5, 23.79, 500, steps_per_epoch=100, mechanism=Tree(complete=True))
    20
    """
    length, new_orders = step_count("tree_steps", tree_steps), flag("reshuffle", reshuffle)
    if not isinstance(mechanism, Tree):
        raise TypeError(f"mechanism must be a Tree, got {type(mechanism).__name__}")
    if mechanism.restart_every is not None:
        raise ValueError(
            f"mechanism must have no restart_every beside tree_steps, got {mechanism.restart_every}"
        )
    mechanism = replace(mechanism, restart_every=length)
    budget = _Budget.of(epsilon, delta, noise_multiplier, mechanism, bound)
    if steps_per_epoch is None:
        return budget.largest(
            "tree",
            lambda n: _separated(n * length, max_participations, min_separation),
            MAX_STEPS // length,
        )
    epoch = step_count("steps_per_epoch", steps_per_epoch)
    if (max_participations, min_separation) != (1, 1):
        raise ValueError(
            "expected steps_per_epoch, or max_participations and min_separation, got both"
        )
    if length % epoch:
        raise ValueError(f"tree_steps must be a multiple of {epoch} steps_per_epoch, got {length}")
    return budget.largest(
        "tree",
        lambda n: FixedEpochs(epoch, n * length // epoch, new_orders),
        MAX_STEPS // length,
    )


def _separated(steps: int, max_participations: int, min_separation: int) -> Participation:
    pattern = MinSeparation(steps, max_participations, min_separation)
    return SinglePass(steps) if pattern.most_participations == 1 else pattern


@dataclass(frozen=True)
class _Budget:
    """A budget, and the settings that do not depend on the length of the run."""

    epsilon: float
    delta: float
    noise_multiplier: float
    mechanism: Mechanism
    bound: PlanBound

    @classmethod
    def of(
        cls,
        epsilon: float,
        delta: float,
        noise_multiplier: float,
        mechanism: Mechanism,
        bound: PlanBound,
    ) -> _Budget:
        if not check_mechanism(mechanism).any_length:
            raise TypeError(
                "mechanism must fit any number of steps where the length of the run is looked for, "
                f"got {mechanism!r}"
            )
        return cls(
            positive("epsilon", epsilon),
            probability("delta", delta),
            positive("noise_multiplier", noise_multiplier),
            mechanism,
            check_plan_bound(bound),
        )

    def promised(self, pattern: Participation) -> Guarantee:
        """Return the guarantee of a run of this pattern."""
        layout = self.mechanism.layout(pattern.steps)
        return Guarantee.of(self.noise_multiplier, pattern, layout, bound=self.bound)

    def largest(self, unit: str, pattern: Callable[[int], Participation], most: int) -> int:
        """Return the largest n <= most whose pattern keeps the budget."""

        def within(n: int) -> bool:
            return self.promised(pattern(n)).within(self.epsilon, self.delta)

        least = self.promised(pattern(1))
        if not least.within(self.epsilon, self.delta):
            raise ValueError(
                f"epsilon must be at least that of one {unit}, {text_up(least.epsilon(self.delta))}"
                f" at delta {self.delta!r}, got {self.epsilon!r}"
            )
        fits, over, doubling = 1, most + 1, True
        while over - fits > 1:
            n = min(2 * fits, most) if doubling else (fits + over) // 2
            if within(n):
                fits = n
            else:
                over, doubling = n, False
        return fits
