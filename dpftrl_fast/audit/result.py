# SPDX-License-Identifier: Apache-2.0
"""`AuditResult`: what an audit measured, beside what was stated, and its verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import ROUND_DOWN, Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.files import write_files
from dpftrl_fast.plots import Histogram, histograms_png

#: A measurement of mu with a larger relative standard error is no evidence.
LARGEST_STDERR = 0.1
_MOST_SHOWN = 1_000_000  # a larger epsilon is no different


@dataclass(frozen=True)
class Finding:
    """One check of an audit: a measured number beside the one that the plan implies.

    Attributes
    ----------
    name : str
        The check.
    measured, expected : float
    stderr : float
        Standard error of the measured number, where the plan holds.
    limit : float
        z-values beyond it are a violation.
    violation : {"above", "below", "either"}
        The side on which less privacy lies.

    Examples
    --------
    >>> Finding("spread of the scores", 1.31, 1.0, stderr=0.1, limit=3.0).violated
    True
    >>> print(Finding("mean of the scores", 2.4, 2.0, stderr=0.1, limit=3.0).describe())
    mean of the scores: 2.4, expected 2, standard error 0.1, z +4.0 (limit 3.0)  VIOLATED
    """

    name: str
    measured: float
    expected: float
    stderr: float
    limit: float
    violation: str = "above"

    @property
    def z(self) -> float:
        """Difference between measured and expected, in standard errors."""
        return (self.measured - self.expected) / self.stderr

    @property
    def violated(self) -> bool:
        """True if the difference is on the side of less privacy and beyond the limit."""
        side = {"above": self.z, "below": -self.z, "either": abs(self.z)}[self.violation]
        return not side <= self.limit

    def describe(self) -> str:
        """Return the check in words."""
        mark = "  VIOLATED" if self.violated else ""
        return (
            f"{self.name}: {self.measured:.4g}, expected {self.expected:.4g}, "
            f"standard error {self.stderr:.2g}, z {self.z:+.1f} (limit {self.limit:.1f}){mark}"
        )


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    Attributes
    ----------
    subject : str
        The audited run in words.
    epsilon_lower : float
        Lower bound on epsilon at `delta` with `confidence`, from guesses in one run; nothing is
        assumed of the mechanism.
    epsilon_stated : float or None
        Epsilon of the plan at `delta` for `neighbours`; None if it states none.
    mu_measured, mu_stderr : float
        Shift of the canaries' best score in standard deviations of that score, both measured, and
        its standard error.
    mu_expected : float
        What the mechanism of the plan implies for these canaries.
    mu_stated : float
        mu of the plan for `neighbours`: the most for any canary.
    epsilon_gaussian : float
        Epsilon at `delta` of the lower confidence limit of mu, on the Gaussian curve: a lower bound
        where the mechanism is Gaussian.
    delta, confidence : float
    neighbours : {"zero-out", "replace-one"}
    canaries, included, runs, steps : int
        Number of canaries and of included ones in all runs together, number of runs, steps of each.
    findings : tuple of Finding
        All checks.
    scores_in, scores_out : ndarray of float64
        Scores of canaries that were included, and of the others, of unit variance and with means
        `mu_expected` and 0 if the plan holds.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.audit import audit_plan
    >>> plan = PrivacyPlan(1.0, 3.0, accounting.FixedEpochs(4, 4))
    >>> result = audit_plan(plan, confidence=1 - 1e-9)
    >>> result.verdict, result.epsilon_lower < result.epsilon_stated, sorted(result.to_dict())[:3]
    ('consistent', True, ['canaries', 'confidence', 'delta'])
    """

    subject: str
    epsilon_lower: float
    epsilon_stated: float | None
    mu_measured: float
    mu_stderr: float
    mu_expected: float
    mu_stated: float
    epsilon_gaussian: float
    delta: float
    confidence: float
    neighbours: Neighbours
    canaries: int
    included: int
    runs: int
    steps: int
    findings: tuple[Finding, ...]
    scores_in: NDArray[np.float64] = field(repr=False, compare=False)
    scores_out: NDArray[np.float64] = field(repr=False, compare=False)

    @property
    def z(self) -> float:
        """Difference of measured and expected mu in standard errors."""
        return self.findings[0].z

    @cached_property
    def violations(self) -> tuple[str, ...]:
        """Checks that failed, in words."""
        found = [f.name for f in self.findings if f.violated]
        if self.epsilon_stated is not None and self.epsilon_lower > self.epsilon_stated:
            found.insert(0, "epsilon is above the stated one")
        return tuple(found)

    @property
    def violated(self) -> bool:
        """True if some check failed."""
        return bool(self.violations)

    @cached_property
    def verdict(self) -> str:
        """The verdict: "violated", "consistent", or "inconclusive: " and the reason.

        A sound mechanism is called violated with a probability of at most 1 - `confidence`.
        """
        if self.violated:
            return "violated"
        first = self.findings[0]
        if not self.mu_stderr <= LARGEST_STDERR * self.mu_expected:
            return (
                f"inconclusive: {self.canaries} canaries measure mu to {self.mu_stderr:.2g} only, "
                f"more than {LARGEST_STDERR:g} of the expected {self.mu_expected:.3g}; use more "
                "canaries or runs, or records with larger gradients"
            )
        low = [f for f in self.findings[:3] if abs(f.z) > f.limit]
        if low:
            return (
                f"inconclusive: the canaries show less than the plan lets through "
                f"({first.measured:.3g} where {first.expected:.3g} is expected): the noise is "
                "larger, or the canaries are clipped to less, than the audit assumes"
            )
        return "consistent"

    def describe(self) -> str:
        """Return the audit as lines of text, the verdict last."""
        stated = "none" if self.epsilon_stated is None else text_up(self.epsilon_stated)
        by = "zero" if self.neighbours == "zero-out" else "another (replace-one)"
        runs = "one run" if self.runs == 1 else f"{self.runs} runs"
        lines = [
            self.subject,
            f"{self.canaries} canaries in {runs} of {self.steps} steps, {self.included} included",
            f"neighbours: one record replaced by {by}; delta {short_up(self.delta)}, "
            f"confidence {self.confidence:g}",
            f"epsilon stated {stated}, at least {_down(self.epsilon_lower)} by guesses in one run, "
            f"{_down(self.epsilon_gaussian)} if Gaussian",
            f"mu stated {text_up(self.mu_stated)}, of these canaries {self.mu_expected:.4g}, "
            f"measured {self.mu_measured:.4g} +- {self.mu_stderr:.2g}",
            *(f"  {finding.describe()}" for finding in self.findings),
            f"verdict: {self.verdict}",
        ]
        if self.violations:
            lines[-1] += f" ({'; '.join(self.violations)})"
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return all but the scores as JSON-able data."""
        names = [name for name in self.__dataclass_fields__ if not name.startswith("scores_")]
        found = {name: getattr(self, name) for name in names if name != "findings"}
        found["z"], found["verdict"] = self.z, self.verdict
        found["violations"] = list(self.violations)
        found["findings"] = [
            {
                "name": f.name,
                "measured": f.measured,
                "expected": f.expected,
                "stderr": f.stderr,
                "z": f.z,
                "limit": f.limit,
                "violated": f.violated,
            }
            for f in self.findings
        ]
        return found

    def plot(self, path: str | Path | None = None) -> bytes:
        """Return a PNG file of the scores with and without the canary, and write it to `path`.

        Needs matplotlib, the extra ``plot``. The curves are the normal laws that the plan implies.
        """
        data = histograms_png(
            [
                Histogram("canary out", self.scores_out, 0.0),
                Histogram("canary in", self.scores_in, self.mu_expected),
            ],
            xlabel="score (standard deviations of the stated noise)",
            title=f"mu measured {self.mu_measured:.3f} +- {self.mu_stderr:.3f}, "
            f"expected {self.mu_expected:.3f}: {self.verdict.partition(':')[0]}",
        )
        if path is not None:
            write_files(Path(path).parent, {Path(path).name: data})
        return data


def _down(value: float) -> str:
    """Return a lower bound rounded down to three decimals."""
    if not value < _MOST_SHOWN:
        return f"more than {_MOST_SHOWN}"
    return str(Decimal(value).quantize(Decimal("0.001"), rounding=ROUND_DOWN))
