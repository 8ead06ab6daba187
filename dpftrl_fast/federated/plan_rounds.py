# SPDX-License-Identifier: Apache-2.0
"""`plan_rounds`: the plan of a federated training, from its population and its budget."""

from __future__ import annotations

from dataclasses import replace

from dpftrl_fast._validate import (
    choice,
    norm_bound,
    optional,
    positive,
    positive_integer,
    probability,
    real,
    step_count,
)
from dpftrl_fast.accounting.planner.choice import MAX_VECTORS, check_choice
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.federated.rounds_plan import (
    EACH_PASS,
    HowUsersCome,
    RoundsMechanism,
    RoundsPlan,
    RoundsRequest,
)
from dpftrl_fast.mechanisms.workload import Workload


def plan_rounds(
    population: int,
    rounds: int,
    epsilon: float | None,
    delta: float,
    *,
    report_goal: int | None = None,
    most_reports: int | None = None,
    noise_ratio: float | None = None,
    error: float | None = None,
    clip_norm: float = 1.0,
    workload: Workload = Workload(),
    mechanism: RoundsMechanism = "auto",
    participation: HowUsersCome = "any time",
    answers: float = 0.9,
    neighbours: Neighbours = "zero-out",
    bound: PlanBound = "released",
    max_vectors: int | None = MAX_VECTORS,
) -> RoundsPlan:
    """Return the plan of a federated training from its population, its rounds and its budget.

    A cohort of `report_goal` over `answers` users is asked each round. The population is enough for
    floor(population/cohort) rounds with disjoint cohorts, which is how far apart two participations
    of a user can be, and so how many there are at most: ceil(rounds/that). The noise follows.

    Give the report goal, or what decides it:

    - `report_goal`, or `most_reports` alone, which is then the report goal: the least noise that
      keeps the budget.
    - `noise_ratio` or `error`: the smallest report goal that keeps the budget with no more noise
      than that.
    - `report_goal` and `noise_ratio`, with ``epsilon=None``: the epsilon of that noise.

    Parameters
    ----------
    population : int
        Users who can be asked in the course of the training.
    rounds : int
        Rounds of the training.
    epsilon : float or None
        Budget for one user.
    delta : float
        0 < delta < 1; well below 1/population.
    report_goal : int, optional
        Divisor of the sums (B).
    most_reports : int, optional
        Largest report goal that the server can take.
    noise_ratio : float, optional
        Noise multiplier over report goal, in clip norms (:attr:`RoundsPlan.noise_ratio`).
    error : float, optional
        Noise in the model (:attr:`RoundsPlan.error`).
    clip_norm : float
        L2 norm to which a whole update is clipped (L).
    workload : Workload
        Of the server: its momentum.
    mechanism : Mechanism, "auto", "tree" or "tree each pass"
        "auto" is the mechanism of least error, "tree" the best tree, "tree each pass" one that
        restarts after each pass, as in the paper.
    participation : {"passes", "any time"}
        "any time": a user may be asked again in any later round that is far enough away
        (`MinSeparation`). "passes": users come again at the same place of each pass
        (`FixedEpochs`); the last pass counts as whole.
    answers : float
        Share of the asked users that is expected to answer, 0 < answers <= 1.
    neighbours : {"zero-out", "replace-one"}
        Neighbours for which `epsilon` is to hold: one user's updates replaced by zero, or by
        another's.
    bound, max_vectors
        As for :meth:`dpftrl_fast.PrivacyPlan.calibrate`. A server releases running sums only, so
        that "released" holds.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, the population is smaller than a cohort, or no report goal
        reaches `noise_ratio` or `error`.

    Notes
    -----
    The search for the smallest goal passes over goals at which the noise of a smaller goal would
    not be enough. So it finds the smallest one where larger cohorts need no less noise, as with
    "any time" and a mechanism without restarts; for "tree each pass" it tries all. The figures of
    the goal that it returns are exact in any case. With "auto", `noise_ratio` compares mechanisms
    of different kinds: give `error`, or a mechanism.

    **Privacy of over-selection.** The guarantee does not depend on who answers: the divisor is the
    report goal, all who were asked count as having taken part, and every answer that comes is in
    the sum. Asking more users than `cohort_size` is safe too. It uses up users faster, so that
    later rounds find fewer; the server turns away those that the plan does not allow.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> found = plan_rounds(
    ...     342_477, 1_600, 8.0, 1e-6, report_goal=1_000,
    ...     workload=accounting.Workload(momentum=0.9),
    ... )
    >>> found.cohort_size, found.min_separation, found.participations
    (1112, 307, 6)
    >>> found.epsilon_zero_out <= 8.0
    True

    The paper's plan at its report goal, at the same noise of the mean update (epsilon 9.76 by its
    accountant):

    >>> paper = plan_rounds(
    ...     342_477, 1_600, None, 1e-6, report_goal=5_060, noise_ratio=0.00149, answers=1.0,
    ...     mechanism="tree each pass", participation="passes", bound="exact",
    ... )
    >>> paper.rounds_per_pass, paper.plan.sensitivity_squared, round(paper.epsilon_zero_out, 2)
    (67, 168, 9.17)
    """
    if mechanism != EACH_PASS:
        mechanism = check_choice(mechanism)
    request = RoundsRequest(
        positive_integer("population", population),
        step_count("rounds", rounds),
        optional(positive, "epsilon", epsilon),
        probability("delta", delta),
        optional(positive, "noise_ratio", noise_ratio),
        optional(positive_integer, "most_reports", most_reports),
        norm_bound("clip_norm", clip_norm),
        workload,
        mechanism,
        choice("participation", participation, ("passes", "any time")),
        real("answers", answers, above=0.0, most=1.0),
        choice("neighbours", neighbours, ("zero-out", "replace-one")),
        check_plan_bound(bound),
        max_vectors,
    )
    target = optional(positive, "error", error)
    if request.epsilon is None:
        if report_goal is None or request.ratio is None or target is not None:
            raise ValueError(
                "without epsilon both report_goal and noise_ratio must be given, and no error: "
                "they fix the noise, and its epsilon is stated"
            )
        return request.plan(report_goal)
    limits = [report_goal, request.ratio, target]
    if sum(limit is not None for limit in limits) > 1:
        raise ValueError(
            "with epsilon at most one of report_goal, noise_ratio and error must be given: the "
            "others follow"
        )
    if request.ratio is not None:
        return replace(request, ratio=None).smallest("noise_ratio", request.ratio)
    if target is not None:
        return request.smallest("error", target)
    if report_goal is not None:
        return request.plan(report_goal)
    if most_reports is None:
        raise ValueError(
            "report_goal, most_reports, noise_ratio or error must be given, got none: "
            "most_reports is the number of reports a round that the server can take"
        )
    return request.plan(max(1, request.largest_goal()))
