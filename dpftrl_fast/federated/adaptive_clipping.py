# SPDX-License-Identifier: Apache-2.0
"""A clip norm that follows a quantile of the clients' update norms, estimated with its own noise.

In each round every accepted update gives one bit, +1/2 if its norm is at most the current clip norm
C and -1/2 otherwise. The bits of all rounds of a block (a tree, or the rounds between two restarts
of another mechanism) are summed, and the sum is released once, with Gaussian noise, where the block
ends and another follows:

    B_k = sum of the bits of block k + N(0, (sigma_clip/2)^2)
    fraction = 1/2 + B_k/(report goal x rounds of block k), clipped to [0, 1]
    C <- C exp(-rate (fraction - quantile))

This is the geometric update of Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private
Learning with Adaptive Clipping", with one step a block in place of one a round: correlated noise
covers several rounds, whose updates must all have been clipped to the norm that it was made for.
Where fewer clients answer than the goal, the fraction moves towards 1/2.

Privacy cost. A user who takes part u_k times in block k changes B_k by at most u_k/2: an answer in
place of an empty slot is one bit of size 1/2 (in place of another answer: at most 1, twice that).
In units of one participation's 1/2 the squared sensitivity of all estimates together is

    zeta_clip = max over participation patterns of the sum over blocks k = 1..K-1 of u_k^2,

each B_k being one Gaussian number for all rounds of its block; there is no estimate after the last
block. The estimates and the plan's noise are one adaptive Gaussian mechanism, and one pattern
changes both:

    mu^2 <= zeta/sigma^2 + zeta_clip/sigma_clip^2.

The model's noise scales with C, so zeta/sigma^2 does not depend on C.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpftrl_fast._validate import norm_bound, positive, real
from dpftrl_fast.accounting.participation import FixedEpochs, FixedOrder, MinSeparation
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee, compose
from dpftrl_fast.federated.sums.running_sum import block_key
from dpftrl_fast.mechanisms import Layout, Tree
from dpftrl_fast.plan.noise_spec import NoiseSpec
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import to_grid

# Largest factor between the clip norm and the first one.
_RANGE = 2.0**20


@dataclass(frozen=True)
class AdaptiveClipping:
    """Settings by which the clip norm of a run adapts to the clients' updates, block by block.

    The first clip norm is the plan's. A block is a tree, or the rounds between two restarts of
    another mechanism: the plan's mechanism must restart, since all updates under one block of
    correlated noise are clipped to one norm.

    Parameters
    ----------
    noise_multiplier : float
        Noise of the estimate (sigma_clip): its standard deviation in units of the change of the sum
        of bits by one participation. There is one estimate a block, so a number of about the report
        goal times the block's rounds over 20 costs little accuracy.
    quantile : float
        Target share of updates within the clip norm, in [0, 1].
    learning_rate : float
        Geometric: the clip norm changes by at most a factor exp(learning_rate) a block; > 0.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one client, whose updates are replaced by zero (its
    bits are then missing). `composition` states the epsilon of a run of a plan with these
    estimates; the sequence of clip norms may be published. The caller must ensure that nothing else
    computed from the bits or the norms of updates is released.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(0.1, 6.0, accounting.FixedEpochs(10, 4), Tree(restart_every=10))
    >>> clipping = AdaptiveClipping(noise_multiplier=20.0)
    >>> promised = clipping.composition(plan)
    >>> round(plan.epsilon(1e-6), 3), round(promised.epsilon(1e-6), 3)
    (3.098, 3.127)
    >>> round(promised.epsilon(1e-6, neighbours="replace-one"), 3)
    6.869
    """

    noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "noise_multiplier", positive("noise_multiplier", self.noise_multiplier))
        set_field(self, "quantile", real("quantile", self.quantile, least=0.0, most=1.0))
        set_field(self, "learning_rate", positive("learning_rate", self.learning_rate))

    def sensitivity_squared(self, plan: PrivacyPlan) -> int:
        """Return zeta_clip, or an upper bound of it, in units of one participation squared.

        Raises
        ------
        ValueError
            If the plan has one block: the clip norm could never change.
        """
        return _uses_of_blocks(plan)[0]

    def guarantee(self, plan: PrivacyPlan) -> Guarantee:
        """Return the guarantee of the estimates alone; ValueError if the plan has one block."""
        return Guarantee((GaussianMechanism(self.noise_multiplier, *_uses_of_blocks(plan)),))

    def composition(self, plan: PrivacyPlan) -> Guarantee:
        """Return the guarantee of a run of the plan with these estimates; ValueError as above."""
        return compose([plan, self.guarantee(plan)])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary of the fields."""
        return dict(vars(self))


def _uses_of_blocks(plan: PrivacyPlan) -> tuple[int, Touched]:
    """Bound the sum over blocks but the last of participations^2, and the shifts of estimates."""
    if plan.layout.count < 2:
        raise ValueError(
            "adaptive clipping must have a plan with restarts, where the clip norm can change, got "
            f"{plan.layout.describe()}: give the mechanism a restart_every"
        )
    if isinstance(plan.participation, FixedOrder):
        each = _listed_uses(plan.participation, plan.layout)
    else:
        each = [_most_uses(plan)]
    squares = max((sum(n * n * count for n, count in uses) for uses in each), default=0)
    nodes = max((sum(count for _, count in uses) for uses in each), default=0)
    total = max((sum(n * count for n, count in uses) for uses in each), default=0)
    largest = max((n for uses in each for n, _ in uses), default=0)
    # Nobody takes part before the last block: the figures of one participation are a bound.
    return max(squares, 1), Touched(max(nodes, 1), max(total, 1), max(largest, 1))


def _listed_uses(order: FixedOrder, layout: Layout) -> list[list[tuple[int, int]]]:
    """Return each user's participations in blocks but the last: (participations, blocks) pairs."""
    block = layout.blocks_of(order.step_of_uses())
    read = block < layout.count - 1
    found: dict[int, list[tuple[int, int]]] = {}
    if read.any():
        pairs, uses = np.unique(
            np.stack([order.ids[read], block[read]]), axis=1, return_counts=True
        )
        for user, count in zip(pairs[0].tolist(), uses.tolist(), strict=True):
            found.setdefault(user, []).append((count, 1))
    return list(found.values())


def _steps_of(layout: Layout, block: int) -> int:
    return layout.steps_before(block + 1) - layout.steps_before(block)


def _most_uses(plan: PrivacyPlan) -> list[tuple[int, int]]:
    """Return the same for the worst user of a pattern that lists nobody.

    In a block of n rounds a user takes part at most ceil(n/separation) times, and in all blocks as
    often as the pattern allows. The sum of squares is largest with the largest caps filled first.
    """
    pattern = plan.participation
    apart, left = 1, 1
    if isinstance(pattern, FixedEpochs):
        # Users may be reassigned in each block: each at its worst, whatever the others.
        apart, left = pattern.steps_per_epoch, pattern.steps
    elif isinstance(pattern, MinSeparation):
        apart, left = pattern.min_separation, pattern.most_participations
    caps = Counter[int]()
    for block, count in plan.layout.blocks():
        caps[-(-block.steps // apart)] += count
    # There is no estimate after the last block.
    caps[-(-_steps_of(plan.layout, plan.layout.count - 1) // apart)] -= 1
    uses: list[tuple[int, int]] = []
    for cap, count in sorted(caps.items(), reverse=True):
        full = min(count, left // cap)
        rest = left - full * cap if full < count else 0
        uses += [(cap, full)] * (full > 0) + [(rest, 1)] * (rest > 0)
        left -= full * cap + rest
    return uses


class ClipNorm:
    """The current clip norm, and the bits since the current block began: a secret."""

    def __init__(
        self, plan: PrivacyPlan, clipping: AdaptiveClipping, report_goal: int, key: bytes
    ) -> None:
        clipping.guarantee(plan)  # refuses a plan without restarts
        self._plan, self._clipping, self._goal, self.key = plan, clipping, report_goal, key
        self.value = plan.clip_norm
        self.range = tuple(
            norm_bound("clip_norm", extreme)
            for extreme in (plan.clip_norm / _RANGE, plan.clip_norm * _RANGE)
        )
        self.block = 0
        self._bits = 0  # in halves

    def count(self, bits: int) -> None:
        """Add the bits of a round: updates within the clip norm less those above it."""
        self._bits += bits

    def next_block(self) -> None:
        """Release the noised sum of the ended block's bits, and set the next clip norm from it."""
        own = block_key(self.key, "clip-norm", self.block)
        spec = NoiseSpec(
            0.5, self._clipping.noise_multiplier, Tree().layout(1), purpose="clip-norm"
        )
        noise = spec.source(1, key=own, dtype="float64", threads=1)
        total = float(to_grid(0.5 * self._bits + noise.step(), noise.grid)[0])
        rounds = _steps_of(self._plan.layout, self.block)
        fraction = min(1.0, max(0.0, 0.5 + total / (self._goal * rounds)))
        change = -self._clipping.learning_rate * (fraction - self._clipping.quantile)
        wanted = self.value * math.exp(min(60.0, max(-60.0, change)))
        self.value = min(self.range[1], max(self.range[0], wanted))
        self.block += 1
        self._bits = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state: a secret, it holds bits and the key."""
        return {"key": self.key, "clip_norm": self.value, "tree": self.block, "bits": self._bits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same run."""
        self.key, self.value = state["key"], state["clip_norm"]
        self.block, self._bits = state["tree"], state["bits"]
