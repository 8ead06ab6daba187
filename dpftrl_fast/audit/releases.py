# SPDX-License-Identifier: Apache-2.0
"""Audits of noisy running sums: of a training loop's own, of a plan, of `PrefixSum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import choice, positive_integer, probability, real
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.audit.canaries import Canaries, canaries_of
from dpftrl_fast.audit.covariance import Whitener, check_steps
from dpftrl_fast.audit.judge import Setting, judge
from dpftrl_fast.audit.result import AuditResult
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.prefix_sum import PrefixSum

Vector = NDArray[np.float64]

_NEIGHBOURS: tuple[Neighbours, ...] = ("zero-out", "replace-one")


def audit_releases(
    releases: ArrayLike,
    included: ArrayLike,
    plan: PrivacyPlan,
    *,
    uses: ArrayLike | None = None,
    norm: float = 1.0,
    runs: int = 1,
    neighbours: Neighbours = "zero-out",
    delta: float = 1e-6,
    confidence: float = 0.999,
    subject: str = "noisy running sums",
) -> AuditResult:
    """Audit noisy running sums of canaries, each with a coordinate (or a direction) of its own.

    Parameters
    ----------
    releases : array_like of shape (steps, n)
        Column j: the noisy running sums, after every step, along the unit direction of canary j, in
        the units of the gradients. Directions are orthogonal to each other and to all other
        contributions. Columns of several runs stand side by side, of equally many canaries each.
    included : array_like of bool, shape (n,)
        Fair coins: whether the canary's contributions are in the sums. For "replace-one": whether
        they have their sign or the opposite one.
    plan : PrivacyPlan
        Of each run, of at most 2048 steps.
    uses : array_like of int, shape (steps,), optional
        How often a canary has taken part up to each step; default `worst_uses` of the plan.
    norm : float
        Norm of a canary's clipped contribution, in clip norms; 0 < norm <= 1.
    runs : int
        Runs that the columns come from.
    neighbours : {"zero-out", "replace-one"}
    delta : float
        At which epsilon is stated.
    confidence : float
        A sound mechanism is called violated with a probability of at most 1 - `confidence`.
    subject : str
        The run in words, for the report.

    Returns
    -------
    AuditResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(8))
    >>> coins = np.random.default_rng(0).random(10_000) < 0.5
    >>> noise = plan.noise(10_000, seed=1)
    >>> sums = [coins * uses + noise.step() for uses in worst_uses(plan)]
    >>> audit_releases(sums, coins, plan).verdict
    'consistent'
    """
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    steps = check_steps(plan.steps)
    sums = np.asarray(releases, dtype=np.float64)
    if sums.ndim != 2 or len(sums) != steps:
        raise ValueError(f"releases must have shape ({steps}, n), got {sums.shape}")
    if not bool(np.isfinite(sums).all()):
        raise ValueError("releases must be finite, got NaN or infinity")
    size = real("norm", norm, above=0.0, most=1.0)
    kind: Neighbours = choice("neighbours", neighbours, _NEIGHBOURS)
    white = Whitener(plan.layout, plan.noise_multiplier)
    if uses is None:
        shift = white.worst(plan.participation)[1]
    else:
        counts = np.asarray(uses, dtype=np.float64)
        if counts.shape != (steps,):
            raise ValueError(f"uses must have shape ({steps},), got {counts.shape}")
        shift = white(counts)
    setting = Setting(
        subject=subject,
        plan=plan,
        steps=steps,
        runs=positive_integer("runs", runs),
        neighbours=kind,
        delta=probability("delta", delta),
        confidence=confidence,
    )
    apart = 2.0 if kind == "replace-one" else 1.0
    return judge(white(sums / plan.clip_norm), apart * size * shift, np.asarray(included), setting)


def worst_uses(plan: PrivacyPlan) -> NDArray[np.int64]:
    """Return how often the canary of the largest mu takes part up to each step.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> worst_uses(PrivacyPlan(1.0, 2.0, accounting.FixedEpochs(2, 2))).tolist()
    [1, 1, 2, 2]
    """
    white = Whitener(plan.layout, plan.noise_multiplier)
    return np.asarray(white.worst(plan.participation)[0].astype(np.int64))


# ---- Runs ----

#: A run of a front end: from the canaries and their coins to its plan and its noisy sums, of shape
#: (steps, canaries.size), in the units of the gradients.
Run = Callable[[Canaries, NDArray[np.bool_]], tuple[PrivacyPlan, Vector]]


def audit_runs(
    run: Run,
    canaries: Canaries,
    *,
    runs: int,
    delta: float,
    confidence: float,
    random_state: Any,
    subject: str,
    uses: ArrayLike | None = None,
) -> AuditResult:
    """Toss the coins, make the runs and judge them together."""
    count = positive_integer("runs", runs)
    rng = np.random.default_rng(random_state)
    coins = rng.random((count, canaries.count)) < 0.5
    plans, found = [], []
    for one in coins:
        plan, sums = run(canaries, one)
        plans.append(plan)
        found.append(canaries.along(sums))
    plan = plans[0]
    if any(other != plan for other in plans):
        raise ValueError("all runs of an audit must have one plan, got different ones")
    norm = canaries.norm(plan.clip_norm)
    return audit_releases(
        np.concatenate(found, axis=1),
        coins.reshape(-1),
        plan,
        uses=uses,
        norm=norm,
        runs=count,
        neighbours=canaries.neighbours,
        delta=delta,
        confidence=confidence,
        subject=f"{subject}, {canaries.words}: {plan.layout.describe()}",
    )


def audit_plan(
    plan: PrivacyPlan,
    *,
    label_flip: bool = False,
    record: ArrayLike | None = None,
    canaries: int | None = None,
    runs: int = 8,
    delta: float = 1e-6,
    confidence: float = 0.999,
    random_state: Any = None,
    **noise: Any,
) -> AuditResult:
    """Audit the noise of a plan on sums that are made here: any participation, no clipping.

    Parameters
    ----------
    plan : PrivacyPlan
        Of at most 2048 steps.
    label_flip, record, canaries, runs, delta, confidence, random_state
        As for :func:`audit_prefix_sum`.
    **noise
        Options of `PrivacyPlan.noise`, such as ``dtype`` and ``memory``.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 3.0, accounting.FixedEpochs(4, 4))
    >>> result = audit_plan(plan, confidence=1 - 1e-9)
    >>> result.violated, round(result.mu_expected / result.mu_stated, 2)
    (False, 0.98)
    """
    uses = worst_uses(plan)

    def run(made: Canaries, coins: NDArray[np.bool_]) -> tuple[PrivacyPlan, Vector]:
        vectors = made.vectors(coins, plan.clip_norm)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        limit = np.minimum(1.0, plan.clip_norm / np.maximum(lengths, 1e-300))
        total = np.multiply.outer(uses, (vectors * limit).sum(axis=0))
        source = plan.noise(made.size, **noise)
        return plan, total + np.array([source.step() for _ in range(plan.steps)], np.float64)

    return audit_runs(
        run,
        canaries_of(canaries, record, label_flip),
        runs=runs,
        delta=delta,
        confidence=confidence,
        random_state=random_state,
        subject="noise of a plan",
    )


def audit_prefix_sum(
    make: Callable[[int], PrefixSum],
    *,
    label_flip: bool = False,
    record: ArrayLike | None = None,
    canaries: int | None = None,
    runs: int = 8,
    delta: float = 1e-6,
    confidence: float = 0.999,
    random_state: Any = None,
) -> AuditResult:
    """Audit private running sums.

    Parameters
    ----------
    make : callable
        ``make(size)`` returns a new `PrefixSum` of vectors of this length, or an object with its
        `add`, `plan` and `steps`. It is called once a run.
    label_flip : bool
        Canaries that are not included have the opposite sign, instead of being replaced by zero:
        replace-one neighbours.
    record : array_like of shape (d,), optional
        Canaries are this record, each in d coordinates of its own. By default a record of one
        coordinate and a thousand clip norms: the worst case, which also tests the clipping.
    canaries : int, optional
        In each run, all in the step of the largest mu; by default 1024, or fewer for records of
        many coordinates.
    runs : int
        Runs with keys of their own.
    delta, confidence
        As for :func:`audit_releases`.
    random_state : None, int or numpy.random.Generator
        Of the coins.

    Returns
    -------
    AuditResult

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import dpftrl_fast as dpf
    >>> result = audit_prefix_sum(
    ...     lambda size: dpf.PrefixSum(size, steps=8, clip_norm=1.0, noise_multiplier=1.0),
    ...     confidence=1 - 1e-9,
    ... )
    >>> result.violated, result.canaries, result.epsilon_lower < result.epsilon_stated
    (False, 8192, True)
    """

    def run(made: Canaries, coins: NDArray[np.bool_]) -> tuple[PrivacyPlan, Vector]:
        sums = make(made.size)
        at = int(np.flatnonzero(worst_uses(sums.plan))[0])
        records = made.vectors(coins, sums.plan.clip_norm)
        none = np.zeros((0, made.size))
        return sums.plan, np.array(
            [sums.add(records if t == at else none) for t in range(sums.steps)]
        )

    return audit_runs(
        run,
        canaries_of(canaries, record, label_flip),
        runs=runs,
        delta=delta,
        confidence=confidence,
        random_state=random_state,
        subject="PrefixSum",
    )
