# SPDX-License-Identifier: Apache-2.0
"""A clip norm that follows a quantile of the clients' update norms, with noise of its own.

In each round every accepted update gives one bit, whether its norm is at most the present clip norm
C, as +1/2 or -1/2. The bits of all rounds of a tree are summed, and the sum is read once, with
Gaussian noise, where the tree ends and another follows:

    B_k = sum of the bits of tree k + N(0, (sigma_clip/2)^2)
    fraction = 1/2 + B_k/(report goal x rounds of tree k), put into [0, 1]
    C <- C exp(-rate (fraction - quantile))

This is the geometric update of Andrew, Thakkar, McMahan and Ramaswamy 2021, "Differentially Private
Learning with Adaptive Clipping", with one step a tree in place of one a round: the nodes of a tree
lie over several rounds, whose updates must all have been clipped to the norm that the tree's noise
was made for. Where fewer clients answer than the goal, the fraction is drawn to 1/2.

What it costs. A user who takes part u_k times in tree k moves B_k by at most u_k/2: an answer in
place of an empty slot is one bit of size 1/2 (in place of another answer: at most 1, twice that).
In units of one use's 1/2 the squared sensitivity of all readings together is

    zeta_clip = max over who takes part when of the sum over trees k = 1..K-1 of u_k^2,

each B_k being one node over all leaves of its tree; the last tree is not read. The readings and the
tree's nodes are one Gaussian vector, adaptively made, and one pattern moves both:

    mu^2 <= zeta/sigma^2 + zeta_clip/sigma_clip^2.

The model's noise scales with C, so that zeta/sigma^2 stays what it is whatever C becomes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpftrl_fast._validate import norm_bound, real
from dpftrl_fast.accounting.participation import FixedEpochs, FixedOrder, MinSeparation
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched
from dpftrl_fast.accounting.statement.statement import GaussianMechanism, Guarantee, compose
from dpftrl_fast.federated.sums.running_sum import tree_key
from dpftrl_fast.mechanisms import Layout, Tree
from dpftrl_fast.plan.noise_spec import NoiseSpec
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

# How far from the first clip norm it can go.
_RANGE = 2.0**20


@dataclass(frozen=True)
class AdaptiveClipping:
    """How the clip norm of a run is fitted to the clients' updates, from tree to tree.

    It begins with the plan's clip norm.

    Parameters
    ----------
    noise_multiplier : float
        Noise of the estimate (sigma_clip): its standard deviation in units of what one use changes
        in the sum of bits. Each tree is read once, so a number of the size of the report goal times
        the tree's rounds over 20 costs little accuracy.
    quantile : float
        Share of updates that the clip norm shall leave as they are, in [0, 1].
    learning_rate : float
        Geometric: the clip norm changes by at most this factor's exponential a tree; > 0.

    Raises
    ------
    TypeError, ValueError
        If a parameter is not of its kind or out of its range.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(0.1, 6.0, accounting.FixedEpochs(10, 4), Tree(restart_every=10))
    >>> clipping = AdaptiveClipping(noise_multiplier=20.0)
    >>> promised = clipping.composition(plan)
    >>> round(plan.epsilon(1e-6), 3), round(promised.epsilon(1e-6), 3)
    (3.098, 3.127)
    """

    noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(
            self, "noise_multiplier", real("noise_multiplier", self.noise_multiplier, above=0)
        )
        set_field(self, "quantile", real("quantile", self.quantile, least=0.0))
        if not self.quantile <= 1.0:
            raise ValueError(f"quantile must be a number in [0, 1], got {self.quantile}")
        set_field(self, "learning_rate", real("learning_rate", self.learning_rate, above=0.0))

    def sensitivity_squared(self, plan: PrivacyPlan) -> int:
        """Return zeta_clip, or an upper bound of it, in units of one use squared.

        Raises
        ------
        ValueError
            If the plan has one tree: the clip norm could never change.
        """
        return _uses_of_trees(plan)[0]

    def guarantee(self, plan: PrivacyPlan) -> Guarantee:
        """Return what the estimates by themselves promise.

        Raises
        ------
        ValueError
            If the plan has one tree.
        """
        return Guarantee((GaussianMechanism(self.noise_multiplier, *_uses_of_trees(plan)),))

    def composition(self, plan: PrivacyPlan) -> Guarantee:
        """Return what a run of the plan with these estimates promises.

        Raises
        ------
        ValueError
            If the plan has one tree.
        """
        return compose([plan, self.guarantee(plan)])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary of the fields."""
        return dict(vars(self))


def _uses_of_trees(plan: PrivacyPlan) -> tuple[int, Touched]:
    """Bound the sum over trees but the last of (uses in it)^2, and the shifts of the readings."""
    if plan.layout.count < 2:
        raise ValueError(
            "adaptive clipping needs a plan with restarts, where the clip norm can change, got one "
            "tree"
        )
    if isinstance(plan.participation, FixedOrder):
        each = _listed_uses(plan.participation, plan.layout)
    else:
        each = [_most_uses(plan)]
    squares = max((sum(n * n * count for n, count in uses) for uses in each), default=0)
    nodes = max((sum(count for _, count in uses) for uses in each), default=0)
    total = max((sum(n * count for n, count in uses) for uses in each), default=0)
    largest = max((n for uses in each for n, _ in uses), default=0)
    # Nobody in the trees that are read: the figures of one use are an upper bound.
    return max(squares, 1), Touched(max(nodes, 1), max(total, 1), max(largest, 1))


def _listed_uses(order: FixedOrder, layout: Layout) -> list[list[tuple[int, int]]]:
    """Return, of each user, the uses in each tree but the last, as (uses, trees with so many)."""
    tree = layout.blocks_of(order.step_of_uses())
    read = tree < layout.count - 1
    found: dict[int, list[tuple[int, int]]] = {}
    if read.any():
        pairs, uses = np.unique(np.stack([order.ids[read], tree[read]]), axis=1, return_counts=True)
        for user, count in zip(pairs[0].tolist(), uses.tolist(), strict=True):
            found.setdefault(user, []).append((count, 1))
    return list(found.values())


def _steps_of(layout: Layout, tree: int) -> int:
    return layout.steps_before(tree + 1) - layout.steps_before(tree)


def _most_uses(plan: PrivacyPlan) -> list[tuple[int, int]]:
    """Return the same of a user that no other exceeds, for patterns that list nobody.

    Of n rounds in a tree a user can have ceil(n/separation), and in all trees together what the
    pattern says. The sum of squares under these caps is largest with the largest caps filled first.
    """
    pattern = plan.participation
    apart, left = 1, 1
    if isinstance(pattern, FixedEpochs):
        # Users may be dealt anew in each tree: each tree at its worst, whatever the others.
        apart, left = pattern.steps_per_epoch, pattern.steps
    elif isinstance(pattern, MinSeparation):
        apart, left = pattern.min_separation, pattern.most_participations
    caps = Counter[int]()
    for block, count in plan.layout.blocks():
        caps[-(-block.steps // apart)] += count
    caps[-(-_steps_of(plan.layout, plan.layout.count - 1) // apart)] -= 1  # the last is not read
    uses: list[tuple[int, int]] = []
    for cap, count in sorted(caps.items(), reverse=True):
        full = min(count, left // cap)
        rest = left - full * cap if full < count else 0
        uses += [(cap, full)] * (full > 0) + [(rest, 1)] * (rest > 0)
        left -= full * cap + rest
    return uses


class ClipNorm:
    """The clip norm now, and the bits since the present tree began: a secret.

    Parameters
    ----------
    plan : PrivacyPlan
        With restarts.
    clipping : AdaptiveClipping
        How the norm is fitted.
    report_goal : int
        Clients whose bits are looked for in a round.
    key : bytes
        Of the run.
    """

    def __init__(
        self, plan: PrivacyPlan, clipping: AdaptiveClipping, report_goal: int, key: bytes
    ) -> None:
        clipping.guarantee(plan)  # what does not go together is refused here
        self._plan, self._clipping, self._goal, self._key = plan, clipping, report_goal, key
        self.value = plan.clip_norm
        self._lowest = norm_bound("clip_norm", plan.clip_norm / _RANGE)
        self._highest = norm_bound("clip_norm", plan.clip_norm * _RANGE)
        self.tree = 0
        self._bits = 0  # in halves

    @property
    def key(self) -> bytes:
        """Of the run: a secret."""
        return self._key

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest clip norm that there can be."""
        return self._lowest, self._highest

    def count(self, bits: int) -> None:
        """Add the bits of a round: updates within the clip norm less those above it."""
        self._bits += bits

    def next_tree(self) -> None:
        """Read the bits of the tree that has ended, and set the clip norm of the next one."""
        own = tree_key(self._key, "clip-norm", self.tree)
        spec = NoiseSpec(
            0.5, self._clipping.noise_multiplier, Tree().layout(1), purpose="clip-norm"
        )
        noise = spec.source(1, key=own, dtype="float64", threads=1)
        total = 0.5 * self._bits + float(noise.step()[0])
        rounds = _steps_of(self._plan.layout, self.tree)
        fraction = min(1.0, max(0.0, 0.5 + total / (self._goal * rounds)))
        change = -self._clipping.learning_rate * (fraction - self._clipping.quantile)
        wanted = self.value * math.exp(min(60.0, max(-60.0, change)))
        self.value = min(self._highest, max(self._lowest, wanted))
        self.tree += 1
        self._bits = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state: a secret, it holds bits and the key."""
        return {"key": self._key, "clip_norm": self.value, "tree": self.tree, "bits": self._bits}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state of the same run."""
        self._key, self.value = state["key"], state["clip_norm"]
        self.tree, self._bits = state["tree"], state["bits"]
