# SPDX-License-Identifier: Apache-2.0
"""`RoundsPlan`: the plan of a federated training, and the request that it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, Literal, TypeAlias

from dpftrl_fast._validate import positive_integer, shown
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, Participation, SinglePass
from dpftrl_fast.accounting.planner.choice import MechanismChoice, chosen_mechanism
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.mechanisms import Mechanism, Tree
from dpftrl_fast.mechanisms.run_error import mechanism_error
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

#: Users of a pass come again in the same order, or when they like.
HowUsersCome: TypeAlias = Literal["passes", "any time"]
#: As `MechanismChoice`, or a tree that restarts after each pass, as in the paper.
RoundsMechanism: TypeAlias = MechanismChoice | Literal["tree each pass"]

#: The mechanism of the paper.
EACH_PASS: Literal["tree each pass"] = "tree each pass"
_QUARTERS = (1, 2, 4, 8, 16)  # of the report goal: its alternatives


def rounds_participation(
    population: int, rounds: int, cohort_size: int, participation: HowUsersCome
) -> Participation:
    """Return who takes part when, if a population is asked in cohorts of a fixed size.

    floor(population/cohort_size) rounds can have disjoint cohorts. After so many, a user may be
    asked again.

    Examples
    --------
    >>> rounds_participation(1_000, 25, 100, "passes")
    FixedEpochs(steps_per_epoch=10, epochs=3, reshuffle=True)
    >>> rounds_participation(1_000, 25, 100, "any time")
    MinSeparation(steps=25, max_participations=3, min_separation=10)
    >>> rounds_participation(1_000, 5, 100, "passes")
    SinglePass(steps=5)
    """
    apart = population // cohort_size
    if apart >= rounds:
        return SinglePass(rounds)
    times = -(-rounds // apart)
    if participation == "passes":
        return FixedEpochs(apart, times)
    return MinSeparation(rounds, times, apart)


@dataclass(frozen=True)
class RoundsPlan:
    """The plan of a federated training, with its report goal and its figures.

    Made by :func:`plan_rounds`. All of it is public, and fixed before the first round.

    Attributes
    ----------
    plan : PrivacyPlan
        For the server: makes the noise and states the epsilon. Its participation is for whole
        passes, so that it can declare more rounds than `rounds`; the epsilon is that of all.
    population, rounds : int
        As given.
    report_goal : int
        Divisor of the sums (B), however many users answer.
    cohort_size : int
        Users to ask a round: `report_goal` over `answers`, rounded up. All of them count as having
        taken part, whether they answer or not.
    answers : float
        Share of the asked that is expected to answer.
    delta : float
        Of the guarantee.
    neighbours : {"zero-out", "replace-one"}
        Neighbours for which the budget was given.
    workload : Workload
        Of the server: what `error` is of.

    Examples
    --------
    >>> from dpftrl_fast.federated import plan_rounds
    >>> found = plan_rounds(10_000, 100, 8.0, 1e-6, report_goal=200, answers=0.8)
    >>> found.cohort_size, found.participations, found.min_separation
    (250, 3, 40)
    >>> found.epsilon_zero_out <= 8.0
    True
    """

    plan: PrivacyPlan
    population: int
    rounds: int
    report_goal: int
    cohort_size: int
    answers: float
    delta: float
    neighbours: Neighbours
    workload: Workload
    _request: RoundsRequest = field(repr=False)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the noise."""
        return self.plan.mechanism

    @property
    def rounds_per_pass(self) -> int:
        """Rounds with disjoint cohorts that the population allows; more than `rounds` may be."""
        return self.population // self.cohort_size

    @property
    def min_separation(self) -> int:
        """Fewest rounds between two participations of a user; all rounds if there is only one."""
        return self.plan.participation.least_separation()

    @property
    def participations(self) -> int:
        """Most participations of one user."""
        return self.plan.participation.most_uses()

    @property
    def noise_ratio(self) -> float:
        """Noise multiplier over report goal, the paper's measure of utility, in clip norms.

        It compares plans of one mechanism; `error` compares all.
        """
        return self.plan.noise_multiplier / self.report_goal

    @cached_property
    def error(self) -> float:
        """Noise in the model: standard deviation of a coordinate, root mean square over rounds.

        In units of the clip norm times the server's learning rate (over 1 - momentum), for the
        `workload`: less is better, at any report goal and with any mechanism.
        """
        unit = mechanism_error(self.mechanism, self.plan.steps, self.workload).rms
        return unit * self.noise_ratio

    @cached_property
    def epsilon_zero_out(self) -> float | None:
        """Epsilon at `delta` for zero-out neighbours; None if there is too little noise for one."""
        floor = self.plan.guarantee.at(self.delta).floor()
        return self.plan.epsilon(self.delta) if self.delta > floor else None

    @cached_property
    def epsilon_replace_one(self) -> float | None:
        """Epsilon at `delta` for replace-one neighbours; None if there is none."""
        return self.plan.replace_one(self.delta)

    @property
    def code(self) -> str:
        """The call that makes the server, for a `model` and this plan's `plan`.

        Examples
        --------
        >>> from dpftrl_fast.federated import plan_rounds
        >>> plan_rounds(10_000, 50, 8.0, 1e-6, report_goal=90).code
        'ServerDPFTRL(model, plan=plan, report_goal=90)'
        """
        momentum = self.workload.momentum
        more = f", momentum={momentum!r}" if momentum else ""
        return f"ServerDPFTRL(model, plan=plan, report_goal={self.report_goal}{more})"

    def alternatives(self, report_goals: Iterable[int] | None = None) -> tuple[RoundsPlan, ...]:
        """Return the plans of the same request with other report goals.

        The budget is kept, or where `plan_rounds` had no epsilon, the noise ratio.

        Parameters
        ----------
        report_goals : iterable of int, optional
            Default: a quarter, a half, once, twice and four times this one, as far as the
            population and `most_reports` allow.

        Examples
        --------
        >>> from dpftrl_fast.federated import plan_rounds
        >>> found = plan_rounds(100_000, 500, 8.0, 1e-6, report_goal=400)
        >>> for row in found.alternatives():
        ...     print(row.report_goal, row.participations, f"{row.error:.4f}")
        100 1 0.0185
        200 2 0.0126
        400 3 0.0081
        800 5 0.0057
        1600 9 0.0043
        """
        request = self._request
        if report_goals is None:
            goals = {max(1, self.report_goal * part // 4) for part in _QUARTERS}
            report_goals = sorted(goal for goal in goals if goal <= request.largest_goal())
        return tuple(request.plan(goal) for goal in report_goals)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as a JSON-able dictionary; "plan" is read by `PrivacyPlan.from_dict`.

        Examples
        --------
        >>> from dpftrl_fast.federated import plan_rounds
        >>> plan_rounds(10_000, 50, 8.0, 1e-6, report_goal=90).to_dict()["cohort_size"]
        100
        """
        return {
            "population": self.population,
            "rounds": self.rounds,
            "report_goal": self.report_goal,
            "answers": self.answers,
            "cohort_size": self.cohort_size,
            "rounds_per_pass": self.rounds_per_pass,
            "min_separation": self.min_separation,
            "participations": self.participations,
            "noise_multiplier": self.plan.noise_multiplier,
            "noise_ratio": self.noise_ratio,
            "error": self.error,
            "epsilon": self.epsilon_zero_out,
            "epsilon_replace_one": self.epsilon_replace_one,
            "delta": self.delta,
            "budget_neighbours": self.neighbours,
            "workload": self.workload.to_dict(),
            "code": self.code,
            "plan": self.plan.to_dict(),
        }

    def describe(self) -> str:
        """Return lines of text: cohorts, noise, guarantee, and the call that makes the server.

        Examples
        --------
        >>> from dpftrl_fast.federated import plan_rounds
        >>> print(plan_rounds(10_000, 50, 8.0, 1e-6, report_goal=90).describe())
        ... # doctest: +ELLIPSIS
        report goal 90: ask 100 users a round, of whom 90 % answer; 50 rounds, population 10,000
        noise of the mean update 0.0104, in the model 0.0153 (clip norms; rms over the rounds)
        epsilon 8 at delta 1e-06 (neighbours: one record's (or user's) gradients replaced by zero)
        ...
        ServerDPFTRL(model, plan=plan, report_goal=90)
        """
        share = f"{100 * self.answers:g} %"
        guarantee = f"no epsilon at delta {self.delta!r}: the noise is too small"
        if self.epsilon_zero_out is not None:
            guarantee = self.plan.describe(self.delta)
        lines = [
            f"report goal {self.report_goal:,}: ask {self.cohort_size:,} users a round, of whom "
            f"{share} answer; {self.rounds:,} rounds, population {self.population:,}",
            f"noise of the mean update {self.noise_ratio:.3g}, in the model {self.error:.3g} "
            "(clip norms; rms over the rounds)",
            guarantee,
            self.code,
        ]
        if not self.delta * self.population < 1:
            lines.insert(3, f"delta should be well below 1/population, {1 / self.population:.1e}")
        return "\n".join(lines)


@dataclass(frozen=True)
class RoundsRequest:
    """All that fixes a plan but the report goal."""

    population: int
    rounds: int
    epsilon: float | None
    delta: float
    ratio: float | None
    most_reports: int | None
    clip_norm: float
    workload: Workload
    mechanism: RoundsMechanism
    participation: HowUsersCome
    answers: float
    neighbours: Neighbours
    bound: PlanBound
    max_vectors: int | None

    def largest_goal(self) -> int:
        """Return the largest report goal that the population and the server allow."""
        people = int(self.population * Fraction(repr(self.answers)))
        return people if self.most_reports is None else min(people, self.most_reports)

    def cohort(self, goal: int) -> int:
        """Return the number of users to ask, so that `goal` of them are expected to answer."""
        return ceil(goal / Fraction(repr(self.answers)))

    def checked_goal(self, name: str, value: Any) -> int:
        """Return a report goal that the population and the server allow."""
        goal = positive_integer(name, value)
        if (cohort := self.cohort(goal)) > self.population:
            most = int(self.population * Fraction(repr(self.answers)))
            remedy = f"lower {name} to {most} at most" if most else "raise answers or population"
            raise ValueError(
                f"population must be at least the cohort of {shown(cohort)} users ({name} {goal} "
                f"over answers {self.answers!r}), got {self.population}: {remedy}"
            )
        if self.most_reports is not None and goal > self.most_reports:
            raise ValueError(f"{name} must be at most most_reports {self.most_reports}, got {goal}")
        return goal

    def plan(self, report_goal: Any) -> RoundsPlan:
        """Return the plan with a report goal."""
        goal = self.checked_goal("report_goal", report_goal)
        cohort = self.cohort(goal)
        pattern = rounds_participation(self.population, self.rounds, cohort, self.participation)
        budget = 1.0 if self.epsilon is None else self.epsilon
        mechanism = self.mechanism
        if mechanism == EACH_PASS:
            apart = pattern.least_separation()
            chosen: Mechanism = Tree(restart_every=apart if apart < self.rounds else None)
        else:
            chosen = chosen_mechanism(
                mechanism,
                pattern,
                budget,
                self.delta,
                workload=self.workload,
                max_vectors=self.max_vectors,
                bound=self.bound,
            )
        if self.epsilon is None:
            assert self.ratio is not None
            plan = PrivacyPlan(self.clip_norm, self.ratio * goal, pattern, chosen, self.bound)
        else:
            plan = PrivacyPlan.calibrate(
                epsilon=budget,
                delta=self.delta,
                clip_norm=self.clip_norm,
                participation=pattern,
                mechanism=chosen,
                bound=self.bound,
            )
            if self.neighbours == "replace-one":  # twice the shift: exactly twice the noise
                plan = plan.with_noise(2 * plan.noise_multiplier)
        return RoundsPlan(
            plan,
            self.population,
            self.rounds,
            goal,
            cohort,
            self.answers,
            self.delta,
            self.neighbours,
            self.workload,
            self,
        )

    def smallest(self, name: Literal["noise_ratio", "error"], target: float) -> RoundsPlan:
        """Return the plan of the smallest report goal whose figure is at most the target."""
        most, goal = self.checked_goal("most_reports", max(1, self.largest_goal())), 1
        least = None
        while True:
            found = self.plan(goal)
            figure = getattr(found, name)
            if figure <= target:
                return found
            if least is None or figure < getattr(least, name):
                least = found
            # The least goal at which the same pattern, whose noise is the same, is enough. Larger
            # cohorts ask for no less noise, so that no smaller goal of theirs is enough either ..
            after = max(goal + 1, ceil(figure * goal / target * (1 - 2**-40)))
            if self.mechanism == EACH_PASS:
                # .. which a tree that restarts with the passes does not keep to: one by one.
                after = min(after, self._last_alike(found) + 1)
            if after > most:
                break
            goal = after
        last = self.plan(most)
        if getattr(last, name) <= target:
            return last
        least = min(least, last, key=lambda row: float(getattr(row, name)))
        raise ValueError(
            f"{name} must be one that a report goal up to {most} reaches, got {target!r}: at goal "
            f"{least.report_goal} it is {getattr(least, name):.4g}. Allow more, raise epsilon, or "
            "lower rounds"
        )

    def _last_alike(self, found: RoundsPlan) -> int:
        """Return the largest goal with the same pattern, or the given one if it is larger."""
        apart = min(found.rounds_per_pass, self.rounds)
        cohort = self.population // apart
        return max(found.report_goal, int(cohort * Fraction(repr(self.answers))))
