# SPDX-License-Identifier: Apache-2.0
"""Several runs on the same data: their mu^2 add up, and so do the floors of their noise.

Gaussian mechanisms with sensitivities sqrt(zeta_i) and noise sigma_i, each of which may depend on
what the ones before gave out, are together one Gaussian mechanism with

    mu^2 = sum of zeta_i/sigma_i^2

(Dong, Roth and Su 2022, Corollary 3.3, and the joint density of the node sums). The floor of the
noise stream (see :mod:`~.sensitivity.delta_floor`) is a sum over the nodes that an id shifts,
whatever tree they are in: the runs' nodes, shifts and floors are summed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any, Protocol

from dpftrl_fast._validate import non_negative, probability
from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.conversions import gdp_mu
from dpftrl_fast.accounting.curve.rounding import float_up, precision
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    Touched,
    truncated_delta,
    untruncated_delta,
)
from dpftrl_fast.accounting.statement.guarantee import Guarantee, Neighbours


class Guaranteed(Protocol):
    """Anything with a `guarantee`: a `Ledger`, a `PrivacyPlan`."""

    @property
    def guarantee(self) -> Guarantee:
        """What epsilon and delta come from."""


@dataclass(frozen=True)
class Composition:
    """What several runs on the same data promise together, by their declared figures.

    Parameters
    ----------
    runs : tuple of Guarantee
        At least one.

    Raises
    ------
    TypeError, ValueError
        If ``runs`` is not that.

    Examples
    --------
    Four runs are as one with half of the noise.

    >>> run = Guarantee(2.0, 11, Touched(nodes=11, total=11, largest=1))
    >>> Composition((run,) * 4).mu == Guarantee(1.0, 11, run.touched).mu
    True
    """

    runs: tuple[Guarantee, ...]

    def __post_init__(self) -> None:
        runs: Any = self.runs
        if not isinstance(runs, tuple):
            raise TypeError(f"runs must be a tuple of Guarantee, got {type(runs).__name__}")
        if wrong := [type(run).__name__ for run in runs if not isinstance(run, Guarantee)]:
            raise TypeError(f"runs must be a tuple of Guarantee, got one with a {wrong[0]}")
        if not runs:
            raise ValueError("runs must hold at least one run, got none")

    @property
    def mu_squared(self) -> float:
        """Sum of zeta/sigma^2 over the runs, rounded up; infinity beyond the largest double."""
        with precision(60) as context:
            context.rounding = ROUND_CEILING
            total = Decimal(0)
            for run in self.runs:
                sigma = Decimal(run.noise_multiplier)
                total += Decimal(run.sensitivity_squared) / sigma / sigma
            return float_up(total)

    @property
    def mu(self) -> float:
        """Root of `mu_squared`, rounded up: together the runs are mu-Gaussian-DP."""
        zeta = self.mu_squared
        return gdp_mu(1.0, zeta) if zeta < float("inf") else zeta

    def floor(self, neighbours: Neighbours = "zero-out") -> float:
        """Return the part of delta that is owed to the finite tail of the noise, rounded up."""
        with precision(60) as context:
            context.rounding = ROUND_CEILING
            total = sum((Decimal(run.floor(neighbours)) for run in self.runs), Decimal(0))
            # Each floor was divided by its own run's share that stays inside; now by that of all.
            return truncated_delta(min(1.0, float_up(total)), self._touched(), 0.0)

    def epsilon(self, delta: float, neighbours: Neighbours = "zero-out") -> float:
        """Return the epsilon of all runs together at ``delta``, never understated.

        Parameters
        ----------
        delta : float
            0 < delta < 1, above the floor.
        neighbours : {"zero-out", "replace-one"}
            One record's (or user's) gradients replaced by zero in all runs, or by another's.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.
        """
        total, floor = probability("delta", delta), self.floor(neighbours)
        exact = untruncated_delta(total, self._touched(), floor)
        if not exact > 0:
            raise ValueError(
                f"delta must be above the floors of the noise streams, {floor:.3g}, got {total!r}"
            )
        zeta = self._zeta(neighbours)
        return gaussian.epsilon(1.0, zeta, exact) if zeta < float("inf") else zeta

    def delta(self, epsilon: float, neighbours: Neighbours = "zero-out") -> float:
        """Return the delta of all runs together at ``epsilon``, floors included.

        Parameters
        ----------
        epsilon : float
            Finite, >= 0.
        neighbours : {"zero-out", "replace-one"}
            As for :meth:`epsilon`.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.
        """
        eps, floor = non_negative("epsilon", epsilon), self.floor(neighbours)
        zeta = self._zeta(neighbours)
        exact = gaussian.delta(1.0, zeta, eps) if zeta < float("inf") else 1.0
        return truncated_delta(exact, self._touched(), floor)

    def _zeta(self, neighbours: Neighbours) -> float:
        """Return the zeta of one run with noise multiplier 1 that is as good as all of these."""
        return self.mu_squared * (4 if neighbours == "replace-one" else 1)

    def _touched(self) -> Touched:
        return Touched(
            nodes=sum(run.touched.nodes for run in self.runs),
            total=sum(run.touched.total for run in self.runs),
            largest=max(run.touched.largest for run in self.runs),
        )


def compose(runs: Iterable[Guaranteed]) -> Composition:
    """Put runs on the same data together.

    Parameters
    ----------
    runs : iterable of Ledger or PrivacyPlan
        One entry for each run, at least one; a grid search of ten runs has ten. The declared
        figures are taken, also of runs that ended early.

    Returns
    -------
    Composition
        With the ``mu``, ``epsilon(delta)`` and ``delta(epsilon)`` of all of them together.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Examples
    --------
    >>> from dpftrl_fast.accounting.guard.ledger import Ledger
    >>> from dpftrl_fast.accounting.participation import SinglePass
    >>> runs = [Ledger(SinglePass(1600), 2.33), Ledger(SinglePass(800), 4.0)]
    >>> together = compose(runs)
    >>> round(together.mu, 4), round(together.epsilon(1e-6), 3)
    (1.6282, 8.6)
    """
    listed = list(runs)
    for run in listed:
        if not isinstance(getattr(run, "guarantee", None), Guarantee):
            raise TypeError(f"runs must be ledgers or plans, got {type(run).__name__}")
    return Composition(tuple(run.guarantee for run in listed))
