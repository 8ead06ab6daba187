# SPDX-License-Identifier: Apache-2.0
"""`RunAccount`: what a run owes whose tree had to restart where the plan did not say so.

A run that cannot take its last steps again as they were (see `run.journal`) goes on
with fresh noise, from a step before the last one that may have left. Let it have taken the steps
1..t_1, gone on from step j_1 <= t_1 and come to t_2, gone on from j_2, and so on. Each stretch
j_(i-1)..t_i is a run of its own: its participation is what the plan's steps j_(i-1)..t_i have, its
trees are the plan's, cut off at both ends (the first one starts at leaf 1, the last one is not
completed), its noise is fresh. Where the next stretch begins, the noisy sum of the one before is
carried on, which is released anyway. So the run is the stretches one after the other, each of which
may depend on what those before gave out, and their mu^2 add:

    mu^2 = (zeta of 1..t_1 + zeta of j_1..t_2 + ... + zeta of j_k..T)/sigma^2

Nothing is gained back for steps that are in two stretches: what the first one did with them stays
released.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from dpftrl_fast._validate import integer, positive, probability
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.accounting.sensitivity.delta_floor import Touched, touched
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, squared_of
from dpftrl_fast.accounting.statement.statement import (
    GaussianMechanism,
    Guarantee,
    Neighbours,
    PrivacyStatement,
    compose,
)
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.plan.noise_spec import NoiseSpec
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan


@dataclass(frozen=True)
class RunAccount(PrivacyStatement):
    """A plan, the restarts that it has to spare, and the stretches that were abandoned.

    Parameters
    ----------
    plan : PrivacyPlan
        What was declared for the run without accidents.
    spare_restarts : int
        How many restarts the stated epsilon covers from the start. Each costs the privacy of one
        more tree (under `FixedEpochs` with ``reshuffle=True``, if the steps that are abandoned lie
        in one tree) or of one more run (else), whether it happens or not.
    abandoned : tuple of (first, last)
        The stretches before the present one, as :attr:`RunJournal.abandoned`
        has them.
    start : int
        First step of the present stretch.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Notes
    -----
    The stated figures, as :meth:`epsilon`, are those of the plan with its spare restarts as long as
    they cover what happened; from an accepted restart that they do not cover on, those of what
    happened. That a restart was needed is public here: it must come from crashes and rounding, not
    from anybody's data.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> from dpftrl_fast.mechanisms import Tree
    >>> plan = PrivacyPlan(1.0, 8.0, accounting.FixedEpochs(100, 10), Tree(restart_every=100))
    >>> account = RunAccount(plan)
    >>> round(account.epsilon(1e-5), 3) == round(plan.epsilon(1e-5), 3)
    True
    >>> account.restarted(last=240, step=231)
    Traceback (most recent call last):
    ...
    ValueError: this restart is not covered: it puts steps 231 to 240 into a second tree, and 0 \
spare restarts were declared. The epsilon of the run at delta D becomes account.epsilon_after(240, \
231, D); accept_epsilon=(epsilon, delta) accepts one that is not below it
    >>> epsilon = account.epsilon_after(240, 231, 1e-5)
    >>> again = account.restarted(240, 231, accept_epsilon=(epsilon, 1e-5))
    >>> again.abandoned, again.start, again.epsilon(1e-5) == epsilon > account.epsilon(1e-5)
    (((1, 240),), 231, True)
    """

    plan: PrivacyPlan
    spare_restarts: int = 0
    abandoned: tuple[tuple[int, int], ...] = ()
    start: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.plan, PrivacyPlan):
            raise TypeError(f"plan must be a PrivacyPlan, got {type(self.plan).__name__}")
        integer("spare_restarts", self.spare_restarts, 0, 2**20)
        low, high = 1, 1  # where a stretch may begin: the first one at 1, others in the one before
        for first, last in self.abandoned:
            integer("the first step of an abandoned stretch", first, low, high)
            integer("the last step of an abandoned stretch", last, first, self.plan.steps)
            low, high = first, last
        integer("start", self.start, low, high)

    # ---- The statement ----

    @cached_property
    def guarantee(self) -> Guarantee:
        """The plan with its spare restarts, or what happened where they do not cover it."""
        declared = compose([self.plan, *[self._spare] * self.spare_restarts])
        if not self.abandoned or _covers(declared, self.happened):
            return declared
        alone = replace(declared, otherwise=None)
        return alone if _covers(alone, self.happened) else self.happened

    @cached_property
    def happened(self) -> Guarantee:
        """The abandoned stretches, and the present one to the end of the plan."""
        if not self.abandoned:
            return self.plan.guarantee
        stretches = (*self.abandoned, (self.start, self.plan.steps))
        return compose([part for stretch in stretches for part in self._stretch(*stretch)])

    @cached_property
    def _spare(self) -> Guarantee:
        """The guarantee of a spare restart: of one tree at its worst, or of one more run."""
        plan = self.plan
        if not (isinstance(plan.participation, FixedEpochs) and plan.participation.reshuffle):
            return plan.guarantee
        return self._in_both(self._worst_tree)

    def _in_both(self, made: Callable[..., Guarantee], *given: Any) -> Guarantee:
        """Return what `made` returns under the plan's bound, and otherwise under "exact"."""
        found = made(*given, bound=self.plan.bound)
        if self.plan.guarantee.otherwise is None:
            return found
        return replace(found, otherwise=partial(made, *given, bound="exact"))

    def _worst_tree(self, *, bound: PlanBound) -> Guarantee:
        blocks = [block for block, _ in self.plan.layout.blocks()]
        parts = [self._epochs_in(block, bound=bound).mechanisms[0] for block in blocks]
        worst = Touched(*(max(getattr(part.touched, name) for part in parts) for name in _TOUCHED))
        zeta = max(part.sensitivity_squared for part in parts)
        return Guarantee((GaussianMechanism(self.plan.noise_multiplier, zeta, worst),))

    def _stretch(self, first: int, last: int) -> list[Guarantee]:
        """Return the guarantee of a stretch by itself; nothing if nobody takes part in it."""
        plan, layout = self.plan, self.plan.layout.between(first, last)
        if isinstance(plan.participation, FixedEpochs):
            return [self._in_both(self._epochs_in, layout)]
        part = _participation_between(plan.participation, first, last)
        if part is None:
            return []
        return [Guarantee.of(plan.noise_multiplier, part, layout, bound=plan.bound)]

    def _epochs_in(self, layout: Layout, *, bound: PlanBound) -> Guarantee:
        """Return the guarantee of epochs that start anywhere in blocks of any length."""
        # Wherever in an epoch it begins, and also if the order stays: each block at its worst.
        plan, pattern = self.plan, self.plan.participation
        assert isinstance(pattern, FixedEpochs)
        epochs = FixedEpochs(pattern.steps_per_epoch, -(-layout.steps // pattern.steps_per_epoch))
        zeta = squared_of(layout, epochs, bound)
        nodes, total, largest = 0, 0, 0
        for block, count in layout.blocks():
            period = min(pattern.steps_per_epoch, block.steps)
            spaced = MinSeparation(block.steps, -(-block.steps // period), period)
            each = touched(block, spaced, bound)
            nodes, total = nodes + count * each.nodes, total + count * each.total
            largest = max(largest, each.largest)
        found = GaussianMechanism(plan.noise_multiplier, zeta, Touched(nodes, total, largest))
        return Guarantee((found,))

    # ---- A restart ----

    def epsilon_after(
        self, last: int, step: int, delta: float, *, neighbours: Neighbours = "zero-out"
    ) -> float:
        """Epsilon that the run would state at ``delta`` after this restart.

        Parameters
        ----------
        last, step
            As for `restarted`.
        delta, neighbours
            As for `epsilon`.
        """
        return self._after(last, step).epsilon(delta, neighbours=neighbours)

    def restarted(
        self, last: int, step: int, *, accept_epsilon: tuple[float, float] | None = None
    ) -> RunAccount:
        """Return the account after a restart, or refuse it.

        Parameters
        ----------
        last : int
            The last step that may have left with the present noise.
        step : int
            The step that fresh noise begins with, at most `last`.
        accept_epsilon : (epsilon, delta), optional
            The larger figure that the run is then to state, for zero-out neighbours. Needed where
            the spare restarts do not cover this one.

        Raises
        ------
        ValueError
            If the stated epsilon would grow and is not accepted, or is above what was accepted.
        """
        after = self._after(last, step)
        if _covers(self.guarantee, after.guarantee):
            return after
        words = (
            f"it puts steps {step} to {last} into a second tree, and {self.spare_restarts} spare "
            "restarts were declared"
        )
        if accept_epsilon is None:
            raise ValueError(
                f"this restart is not covered: {words}. The epsilon of the run at delta D becomes "
                f"account.epsilon_after({last}, {step}, D); accept_epsilon=(epsilon, delta) "
                "accepts one that is not below it"
            )
        accepted, delta = positive("accepted epsilon", accept_epsilon[0]), accept_epsilon[1]
        becomes = after.epsilon(probability("accepted delta", delta))
        if not becomes <= accepted:
            raise ValueError(
                f"accept_epsilon must be at least {becomes!r} at delta {delta!r} ({words}), got "
                f"{accepted!r}"
            )
        return after

    def check_goes_on(self, plan: PrivacyPlan, start: int, steps_taken: int) -> None:
        """Refuse to be the account of a run that does not go on as this one says.

        Parameters
        ----------
        plan : PrivacyPlan
            Of the run.
        start : int
            First step of its present stretch.
        steps_taken : int
            Its steps, over all stretches. A run without steps may go on anywhere: a state is then
            loaded.

        Raises
        ------
        ValueError
            If the plan is another one, the next step is not `start` of this account, or the last
            stretch that it abandons is not that of the run.
        """
        if plan != self.plan:
            raise ValueError("account must be of the plan of this object, got another")
        if steps_taken == 0:
            return
        if steps_taken != self.start - 1:
            raise ValueError(
                f"account must start with step {steps_taken + 1}, the next one, got {self.start}"
            )
        if self.abandoned[-1][0] != start:
            raise ValueError(
                f"account must abandon the present stretch, which began with step {start}, got one "
                f"from step {self.abandoned[-1][0]}"
            )

    def _after(self, last: int, step: int) -> RunAccount:
        integer("last", last, self.start, self.plan.steps)
        integer("step", step, self.start, last)
        return replace(self, abandoned=(*self.abandoned, (self.start, last)), start=step)

    # ---- The noise of the present stretch, by the names that a plan has for it ----

    @property
    def layout(self) -> Layout:
        """The plan's layout from `start` on."""
        return self.plan.layout.between(self.start, self.plan.steps)

    @property
    def steps(self) -> int:
        """Steps from `start` to the end."""
        return self.plan.steps - self.start + 1

    @property
    def noise_spec(self) -> NoiseSpec:
        """The noise of the present stretch."""
        return replace(self.plan.noise_spec, layout=self.layout)

    def noise(self, size: int, **options: Any) -> PlannedNoise:
        """Return the noise of the present stretch, as :meth:`dpftrl_fast.PrivacyPlan.noise`.

        Its steps are those from `start` on, its restarts the plan's. After a restart it must have a
        key that no earlier stretch had: leave ``key`` out, or draw one.
        """
        return self.noise_spec.source(size, **options)


_TOUCHED = ("nodes", "total", "largest")


def _participation_between(pattern: Participation, first: int, last: int) -> Participation | None:
    """Return who takes part in steps first..last; None for nobody."""
    steps = last - first + 1
    if isinstance(pattern, SinglePass):
        return SinglePass(steps)
    if isinstance(pattern, MinSeparation):
        return replace(pattern, steps=steps)
    assert isinstance(pattern, FixedOrder)
    offsets = pattern.offsets[first - 1 : last + 1]
    ids = pattern.ids[offsets[0] : offsets[-1]]
    return FixedOrder(ids.copy(), offsets - offsets[0]) if ids.size else None


def _covers(stated: Guarantee, owed: Guarantee) -> bool:
    """Return whether the one is, at every delta and for all neighbours, at least the other."""
    kinds: tuple[Neighbours, ...] = ("zero-out", "replace-one")
    return (
        stated.mu_squared >= owed.mu_squared
        and stated.touched.nodes >= owed.touched.nodes
        and all(stated.floor(neighbours=kind) >= owed.floor(neighbours=kind) for kind in kinds)
        and (stated.otherwise is None or _covers(stated.other, owed.other))
    )
