# SPDX-License-Identifier: Apache-2.0
"""`PrivacyStatement`: epsilon and delta of one or several adaptive Gaussian mechanisms.

Gaussian mechanisms with sensitivities sqrt(zeta_i) and noise sigma_i, each of which may depend on
the outputs of the ones before, are together one Gaussian mechanism with

    mu^2 = sum of zeta_i/sigma_i^2

(Dong, Roth and Su 2022, Corollary 3.3, and the joint density of the node sums). The floor of the
noise stream (see :mod:`~.sensitivity.delta_floor`) is a sum over the nodes that an id shifts,
whatever tree they are in: the mechanisms' nodes, shifts and floors are summed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

from dpftrl_fast._validate import choice, non_negative, probability
from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.conversions import gdp_mu
from dpftrl_fast.accounting.curve.rounding import float_up, precision, text_up
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    Touched,
    support_floor,
    touched,
    truncated_delta,
    untruncated_delta,
)
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, squared_of
from dpftrl_fast.mechanisms import Layout

#: Replaced in one of two neighbouring data sets: one record's (or user's) gradients, by zero or by
#: another's.
Neighbours: TypeAlias = Literal["zero-out", "replace-one"]


class PrivacyStatement(ABC):
    """Base of everything that states an epsilon: subclasses define `guarantee`.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(100))
    >>> total = compose([plan, plan])
    >>> [isinstance(one, PrivacyStatement) for one in (plan, total)]
    [True, True]
    >>> round(plan.epsilon(1e-6), 2), round(plan.epsilon(1e-6, neighbours="replace-one"), 2)
    (6.74, 15.51)
    >>> round(total.epsilon(1e-6), 2), round(plan.mu, 3)
    (10.15, 1.323)
    """

    @property
    @abstractmethod
    def guarantee(self) -> Guarantee:
        """The Gaussian mechanisms from which epsilon and delta follow."""

    @property
    def mu(self) -> float:
        """Sensitivity over noise, rounded up: the whole run is mu-Gaussian-DP."""
        sigma, zeta = self.guarantee.as_one()
        return gdp_mu(sigma, zeta) if zeta < float("inf") else zeta

    @property
    def delta_floor(self) -> float:
        """Part of delta that the finite tail of the noise stream takes, for zero-out neighbours.

        Proved in docs/plan/accounting.md for nodes of up to 2^36 coordinates. No epsilon is stated
        at a delta that is not above it, unless another valid bound has a lower floor.
        """
        return self.guarantee.floor()

    def epsilon(self, delta: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Return the epsilon of the whole run at `delta`, never understated.

        Parameters
        ----------
        delta : float
            0 < delta < 1, above the floor of the noise stream.
        neighbours : {"zero-out", "replace-one"}
            One record's (or user's) gradients replaced by zero, or by another's (mu doubles).

        Raises
        ------
        ValueError
            If no epsilon can be stated at this delta, or at all: the run was forked.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> round(plan.epsilon(1e-6), 3), round(plan.epsilon(1e-6, neighbours="replace-one"), 3)
        (7.342, 16.999)
        """
        total = probability("delta", delta)
        return self.guarantee.at(total, neighbours=neighbours)._epsilon(total, neighbours)

    def delta(self, epsilon: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Return the delta of the whole run at `epsilon`, floor included, never understated.

        Parameters
        ----------
        epsilon : float
            Finite, >= 0.
        neighbours : {"zero-out", "replace-one"}
            As for :meth:`epsilon`.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> plan.delta(7.342) <= 1e-6 < plan.delta(7.341)
        True
        """
        given, stated = non_negative("epsilon", epsilon), self.guarantee
        found = stated._delta(given, neighbours)
        if stated.otherwise is None or found > 4 * stated.floor(neighbours=neighbours):
            return found
        return min(found, stated.other._delta(given, neighbours))

    def replace_one(self, delta: float) -> float | None:
        """Return epsilon at `delta` for replace-one neighbours; None if none can be stated."""
        kind: Neighbours = "replace-one"
        stated = self.guarantee.at(probability("delta", delta), neighbours=kind)
        return stated._epsilon(delta, kind) if delta > stated.floor(neighbours=kind) else None

    def promise(self, delta: float, *, replaced: str = "gradients") -> str:
        """Return lines of text: the epsilon at `delta` for both kinds of neighbours, rounded up.

        `replaced` names the part of a record that neighbours differ in.
        """
        total, stated = probability("delta", delta), self.guarantee
        kinds: tuple[Neighbours, ...] = ("zero-out", "replace-one")
        floors = [stated.at(total, neighbours=kind).floor(neighbours=kind) for kind in kinds]
        replace_one = self.replace_one(total)
        other, needs = "no epsilon", f"; delta must be above {text_up(floors[1])} for one"
        if replace_one is not None:
            other, needs = f"epsilon {text_up(replace_one)}", ""
        by = f"neighbours: one record's (or user's) {replaced} replaced by"
        return (
            f"epsilon {text_up(self.epsilon(total))} at delta {total!r} ({by} zero)\n"
            f"{other} at delta {total!r} ({by} another's){needs}\n"
            f"delta includes {text_up(floors[0])} for the finite tail of the noise"
            f" ({text_up(floors[1])} for the second line)"
        )


@dataclass(frozen=True)
class GaussianMechanism:
    """One adaptive Gaussian mechanism whose noise has a finite tail.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    sensitivity_squared : int or float
        zeta > 0, for zero-out neighbours; replace-one neighbours have four times that.
    touched : Touched
        The nodes that one id shifts.
    """

    noise_multiplier: float
    sensitivity_squared: int | float
    touched: Touched


@dataclass(frozen=True)
class Guarantee(PrivacyStatement):
    """The guarantee of one or several Gaussian mechanisms on the same data.

    Parameters
    ----------
    mechanisms : tuple of GaussianMechanism
        At least one. The figures of one by itself are rounded once; those of several come from the
        sum of their mu^2, rounded up.
    otherwise : callable, optional
        Returns another valid guarantee of the same run, with a lower floor. It is stated instead
        where it has the smaller figure, if the floor of this one takes half of delta or more.

    Examples
    --------
    >>> one = Guarantee((GaussianMechanism(2.33, 11, Touched(nodes=11, total=11, largest=1)),))
    >>> round(one.epsilon(1e-6), 3), round(one.mu, 3)
    (7.342, 1.423)

    Four runs are as one with half of the noise.

    >>> compose([one.with_noise(2.0)] * 4).mu == one.with_noise(1.0).mu
    True
    """

    mechanisms: tuple[GaussianMechanism, ...]
    otherwise: Callable[[], Guarantee] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        held: Any = self.mechanisms
        expected = "mechanisms must be a tuple of at least one GaussianMechanism"
        if not isinstance(held, tuple):
            raise TypeError(f"{expected}, got {type(held).__name__}")
        if wrong := [type(one).__name__ for one in held if not isinstance(one, GaussianMechanism)]:
            raise TypeError(f"{expected}, got one with a {wrong[0]}")
        if not held:
            raise ValueError(f"{expected}, got none")

    @classmethod
    def of(
        cls,
        noise_multiplier: float,
        participation: Participation,
        layout: Layout,
        *,
        bound: PlanBound,
    ) -> Guarantee:
        """Return the guarantee of a run: its participation, its layout and its noise.

        Examples
        --------
        >>> from dpftrl_fast.accounting.participation import SinglePass
        >>> from dpftrl_fast.mechanisms import Tree
        >>> found = Guarantee.of(2.33, SinglePass(1600), Tree().layout(1600), bound="exact")
        >>> found.mechanisms[0].sensitivity_squared, round(found.epsilon(1e-6), 3)
        (11, 7.342)
        """
        zeta: int | float = squared_of(layout, participation, bound)
        nodes: Touched = touched(layout, participation, bound)
        exact = None
        if bound == "released" and layout.released_spreads:
            # Its shift is spread over more nodes than the participations themselves shift.
            exact = partial(cls.of, noise_multiplier, participation, layout, bound="exact")
        return cls((GaussianMechanism(noise_multiplier, zeta, nodes),), exact)

    @property
    def guarantee(self) -> Guarantee:
        """The same value."""
        return self

    @cached_property
    def mu_squared(self) -> float:
        """Sum of zeta/sigma^2, rounded up; infinity beyond the largest double."""
        above = float_up(self._mu_squared(ROUND_CEILING))
        if above == float_up(self._mu_squared(ROUND_FLOOR)):
            return above
        # The sum is a double, or nearly one: in fractions, which are slow for many mechanisms.
        exact = Fraction(0)
        for one in self.mechanisms:
            exact += Fraction(one.sensitivity_squared) / Fraction(one.noise_multiplier) ** 2
        return float_up(exact)

    def _mu_squared(self, rounding: str) -> Decimal:
        with precision(60) as context:
            context.rounding = rounding
            total = Decimal(0)
            for one in self.mechanisms:
                sigma = Decimal(one.noise_multiplier)
                total += Decimal(one.sensitivity_squared) / sigma / sigma
            return total

    @cached_property
    def touched(self) -> Touched:
        """The nodes that one id shifts, in all mechanisms together."""
        held = [one.touched for one in self.mechanisms]
        return Touched(
            nodes=sum(each.nodes for each in held),
            total=sum(each.total for each in held),
            largest=max(each.largest for each in held),
        )

    def with_noise(self, noise_multiplier: float) -> Guarantee:
        """Return the same mechanisms, each with this noise multiplier."""
        held = tuple(replace(one, noise_multiplier=noise_multiplier) for one in self.mechanisms)
        other = self.otherwise
        return Guarantee(held, other and partial(_with_noise, other, noise_multiplier))

    def as_one(self, *, neighbours: Neighbours = "zero-out") -> tuple[float, int | float]:
        """Return sigma and zeta of one mechanism with this mu; zeta may be infinite."""
        square = _shift(neighbours) ** 2
        if len(self.mechanisms) > 1:
            return 1.0, self.mu_squared * square
        (one,) = self.mechanisms
        return one.noise_multiplier, one.sensitivity_squared * square

    def floor(self, *, neighbours: Neighbours = "zero-out") -> float:
        """Return the part of delta that the finite tail of the noise takes, rounded up."""
        shift = _shift(neighbours)
        floors = [
            support_floor(one.noise_multiplier, one.sensitivity_squared, one.touched, scale=shift)
            for one in self.mechanisms
        ]
        if len(floors) == 1:
            return floors[0]
        with precision(60) as context:
            context.rounding = ROUND_CEILING
            total = float_up(sum(map(Decimal, floors), Decimal(0)))
            # Each floor was divided by its own share of noise inside; now by that of all.
            return truncated_delta(min(1.0, total), self.touched, 0.0)

    def mechanism_delta(self, delta: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Return `delta` less the floor; ValueError if nothing is left.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> exact = plan.guarantee.mechanism_delta(1e-6)
        >>> round(accounting.epsilon(2.33, plan.sensitivity_squared, exact, method="rdp"), 3)
        7.825
        """
        total, floor = probability("delta", delta), self.floor(neighbours=neighbours)
        exact = untruncated_delta(total, self.touched, floor)
        if not exact > 0:
            raise ValueError(
                f"delta must be above the floor of the noise stream, {text_up(floor)} for "
                f"{neighbours} neighbours, got {total!r}: take a larger delta, or more noise"
            )
        return exact

    def within(self, epsilon: float, delta: float) -> bool:
        """Return whether epsilon at `delta` is at most `epsilon`, `otherwise` left aside."""
        exact = untruncated_delta(delta, self.touched, self.floor())
        return exact > 0 and gaussian.delta(*self.as_one(), epsilon) <= exact

    def at(self, delta: float, *, neighbours: Neighbours = "zero-out") -> Guarantee:
        """Return the guarantee that is stated at `delta`: this one or `other`."""
        if self.otherwise is None or 2 * self.floor(neighbours=neighbours) < delta:
            return self

        def figures(one: Guarantee) -> tuple[float, float]:
            floor = one.floor(neighbours=neighbours)
            return (one._epsilon(delta, neighbours) if floor < delta else float("inf")), floor

        return min(self, self.other, key=figures)

    @cached_property
    def other(self) -> Guarantee:
        """The result of `otherwise`; this value itself if there is none."""
        return self if self.otherwise is None else self.otherwise()

    def _epsilon(self, delta: float, neighbours: Neighbours) -> float:
        exact = self.mechanism_delta(delta, neighbours=neighbours)
        sigma, zeta = self.as_one(neighbours=neighbours)
        return gaussian.epsilon(sigma, zeta, exact) if zeta < float("inf") else zeta

    def _delta(self, epsilon: float, neighbours: Neighbours) -> float:
        sigma, zeta = self.as_one(neighbours=neighbours)
        exact = gaussian.delta(sigma, zeta, epsilon) if zeta < float("inf") else 1.0
        return truncated_delta(exact, self.touched, self.floor(neighbours=neighbours))


def compose(runs: Iterable[Any]) -> Guarantee:
    """Return the guarantee of several runs on the same data together.

    Parameters
    ----------
    runs : iterable
        At least one entry, and one for each run: a grid search of ten runs has ten. Each is
        anything that states an epsilon, or a fitted estimator. The declared figures are taken, also
        of runs that ended early.

    Returns
    -------
    Guarantee
        With the ``mu``, ``epsilon(delta)`` and ``delta(epsilon)`` of all of them together.

    Raises
    ------
    TypeError
        If an entry has no guarantee.
    ValueError
        If there is no entry, or one has no guarantee now: it was forked, or is not fitted.

    Examples
    --------
    >>> from dpftrl_fast.accounting import Ledger, SinglePass
    >>> runs = [Ledger(SinglePass(1600), 2.33), Ledger(SinglePass(800), 4.0)]
    >>> together = compose(runs)
    >>> round(together.mu, 4), round(together.epsilon(1e-6), 3)
    (1.6282, 8.6)
    """
    parts: list[Guarantee] = []
    for run in runs:
        part = run.guarantee if hasattr(type(run), "guarantee") else None
        if not isinstance(part, Guarantee):
            raise TypeError(
                "runs must be plans, ledgers, guarantees, accounts or fitted estimators, got "
                f"{type(run).__name__}"
            )
        parts.append(part)
    if not parts:
        raise ValueError("runs must hold at least one run, got none")
    return _together(parts)


def _together(parts: list[Guarantee]) -> Guarantee:
    held = tuple(one for part in parts for one in part.mechanisms)
    replaceable = any(part.otherwise is not None for part in parts)
    return Guarantee(held, partial(_others, parts) if replaceable else None)


def _others(parts: list[Guarantee]) -> Guarantee:
    return _together([replace(part.other, otherwise=None) for part in parts])


def _with_noise(otherwise: Callable[[], Guarantee], noise_multiplier: float) -> Guarantee:
    return otherwise().with_noise(noise_multiplier)


def _shift(neighbours: Neighbours) -> int:
    """Return how far one contribution shifts a node, in clip norms."""
    return (
        2 if choice("neighbours", neighbours, ("zero-out", "replace-one")) == "replace-one" else 1
    )
