# SPDX-License-Identifier: Apache-2.0
"""Privacy cost of recovering a run with fresh noise at a step that the plan did not schedule.

A run that cannot repeat its last steps exactly (see `run.journal`) continues with fresh noise, from
a step before the last one that may have been released, or from the one after it if the noise was
lost. Let it take the steps 1..t_1, continue from step j_1 <= t_1 + 1 up to t_2, then from j_2, and
so on. Each stretch j_(i-1)..t_i is a run by itself:
its participation is that of the plan's steps j_(i-1)..t_i, its trees are the plan's, cut off at
both ends (the first one starts at leaf 1, the last one is not completed), and its noise is fresh.
The next stretch starts from the noisy sum of the one before, which is released anyway. So the run
is a sequence of stretches, each of which may depend on the outputs of those before, and their mu^2
add:

    mu^2 = (zeta of 1..t_1 + zeta of j_1..t_2 + ... + zeta of j_k..T)/sigma^2

Steps that are in two stretches count twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from dpftrl_fast._validate import integer, positive, probability, shown
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
    """A plan, its spare recoveries, and the stretches that were abandoned.

    Parameters
    ----------
    plan : PrivacyPlan
        The declared run, without accidents.
    spare_recoveries : int
        Recoveries that the stated epsilon covers from the start. Each costs the privacy of one more
        tree (under `FixedEpochs` with ``reshuffle=True``, if the abandoned steps lie in one tree)
        or of one more run (otherwise), whether it happens or not.
    abandoned : tuple of (first, last)
        The stretches before the present one, as :attr:`RunJournal.abandoned` has them.
    start : int
        First step of the present stretch.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the stretches do not follow each other.

    Notes
    -----
    The stated figures are those of the plan with its spare recoveries, as long as these cover
    the recoveries; after an accepted one that they do not cover, those of :attr:`happened`. The
    fact that a recovery was needed is public: its cause must be crashes and rounding, not data.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> from dpftrl_fast.mechanisms import Tree
    >>> plan = PrivacyPlan(1.0, 8.0, accounting.FixedEpochs(100, 10), Tree(restart_every=100))
    >>> account = RunAccount(plan)
    >>> account.epsilon(1e-5) == plan.epsilon(1e-5)
    True
    >>> account.recovered(last=240, step=231)
    Traceback (most recent call last):
    ...
    ValueError: this recovery is not covered: it puts steps 231 to 240 into a second tree, and 0 \
spare recoveries were declared. The epsilon of the run at delta D becomes \
account.epsilon_after(240, 231, D); accept_epsilon=(epsilon, delta) accepts one that is not below it
    >>> epsilon = account.epsilon_after(240, 231, 1e-5)
    >>> again = account.recovered(240, 231, accept_epsilon=(epsilon, 1e-5))
    >>> again.abandoned, again.start, again.epsilon(1e-5) == epsilon > account.epsilon(1e-5)
    (((1, 240),), 231, True)
    """

    plan: PrivacyPlan
    spare_recoveries: int = 0
    abandoned: tuple[tuple[int, int], ...] = ()
    start: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.plan, PrivacyPlan):
            raise TypeError(f"plan must be a PrivacyPlan, got {type(self.plan).__name__}")
        integer("spare_recoveries", self.spare_recoveries, 0, 2**20)
        low, high = 1, 1  # where a stretch may begin: the first one at 1, others in the one before
        stretches: Any = self.abandoned
        if not isinstance(stretches, (list, tuple)) or not all(
            isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in stretches
        ):
            raise TypeError(f"abandoned must hold pairs of steps, got {shown(stretches)}")
        for first, last in self.abandoned:
            integer("the first step of an abandoned stretch", first, low, high)
            integer("the last step of an abandoned stretch", last, first, self.plan.steps)
            low, high = first, min(last + 1, self.plan.steps)
        integer("start", self.start, low, high)

    # ---- The statement ----

    @cached_property
    def guarantee(self) -> Guarantee:
        """The plan with its spare recoveries, or `happened` if they do not cover it."""
        declared = compose([self.plan, *[self._spare] * self.spare_recoveries])
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
        """The guarantee of a spare recovery: the worst tree, or one more run."""
        plan = self.plan
        if not (isinstance(plan.participation, FixedEpochs) and plan.participation.reshuffle):
            return plan.guarantee
        return self._in_both(self._worst_tree)

    def _in_both(self, made: Callable[..., Guarantee], *given: Any) -> Guarantee:
        """Return the result of `made` under the plan's bound, and otherwise under "exact"."""
        found = made(*given, bound=self.plan.bound)
        if self.plan.guarantee.otherwise is None:
            return found
        return replace(found, otherwise=partial(made, *given, bound="exact"))

    def _worst_tree(self, *, bound: PlanBound) -> Guarantee:
        blocks = [block for block, _ in self.plan.layout.blocks()]
        parts = [self._epochs_in(block, bound=bound).mechanisms[0] for block in blocks]
        worst = Touched(*(max(getattr(part.touched, name) for part in parts) for name in _TOUCHED))
        # The stretches of a recovery are counted block by block, each rounded up; the plan as one.
        plan = self.plan.layout, self.plan.participation
        whole, one = self._epochs_in(plan[0], bound=bound).touched, touched(*plan, bound)
        worst = Touched(
            worst.nodes + max(0, whole.nodes - one.nodes),
            worst.total + max(0, whole.total - one.total),
            worst.largest,
        )
        zeta = max(part.sensitivity_squared for part in parts)
        if isinstance(zeta, float):  # so are their sensitivities
            zeta += 2.0**-40 * self.plan.sensitivity_squared
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

    # ---- A recovery ----

    def epsilon_after(
        self, last: int, step: int, delta: float, *, neighbours: Neighbours = "zero-out"
    ) -> float:
        """Return the epsilon that the run would state at ``delta`` after this recovery.

        Parameters
        ----------
        last, step
            As for `recovered`.
        delta, neighbours
            As for `epsilon`.
        """
        return self._after(last, step).epsilon(delta, neighbours=neighbours)

    def recovered(
        self, last: int, step: int, *, accept_epsilon: tuple[float, float] | None = None
    ) -> RunAccount:
        """Return the account after a recovery, or refuse it.

        Parameters
        ----------
        last : int
            The last step that may have been released with the present noise.
        step : int
            The first step with fresh noise, at most ``last + 1``.
        accept_epsilon : (epsilon, delta), optional
            The larger figure that the run is then to state, for zero-out neighbours. Needed if the
            spare recoveries do not cover this one.

        Raises
        ------
        ValueError
            If the stated epsilon would grow and is not accepted, or is above the accepted one.
        """
        after = self._after(last, step)
        if _covers(self.guarantee, after.guarantee):
            return after
        again = f"it puts steps {step} to {last} into a second tree"
        if step > last:
            again = f"it begins another tree at step {step}"
        words = f"{again}, and {self.spare_recoveries} spare recoveries were declared"
        if accept_epsilon is None:
            raise ValueError(
                f"this recovery is not covered: {words}. The epsilon of the run at delta D becomes "
                f"account.epsilon_after({last}, {step}, D); accept_epsilon=(epsilon, delta) "
                "accepts one that is not below it"
            )
        accepted, delta = positive("accepted epsilon", accept_epsilon[0]), accept_epsilon[1]
        becomes = after.epsilon(probability("accepted delta", delta))
        if not becomes <= accepted:
            other = after.replace_one(delta)
            raise ValueError(
                f"accept_epsilon must be at least {becomes!r} at delta {delta!r} ({words}; "
                f"replace-one: {'none' if other is None else repr(other)}), got {accepted!r}"
            )
        return after

    def check_goes_on(self, plan: PrivacyPlan, start: int, steps_taken: int) -> None:
        """Refuse a run that does not continue as this account says: ValueError.

        Parameters
        ----------
        plan : PrivacyPlan
            Of the run.
        start : int
            First step of its present stretch.
        steps_taken : int
            Its steps, over all stretches; with 0 a state is loaded later, which is then checked.
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
        integer("step", step, self.start, min(last + 1, self.plan.steps))
        return replace(self, abandoned=(*self.abandoned, (self.start, last)), start=step)

    # ---- The noise of the present stretch ----

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

        After a recovery it must have a key that no earlier stretch had: leave ``key`` out, or draw
        one.
        """
        return self.noise_spec.source(size, **options)


_TOUCHED = ("nodes", "total", "largest")


def _participation_between(pattern: Participation, first: int, last: int) -> Participation | None:
    """Return the participation of steps first..last; None if nobody takes part."""
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
