# SPDX-License-Identifier: Apache-2.0
"""What a run promises: the exact Gaussian curve, and the floor of the noise stream on top of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dpftrl_fast._validate import probability
from dpftrl_fast.accounting.curve import gaussian
from dpftrl_fast.accounting.curve.conversions import gdp_mu
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

Neighbours: TypeAlias = Literal["zero-out", "replace-one"]


@dataclass(frozen=True)
class Guarantee:
    """Epsilon and delta of noise with a finite tail, never understated.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    sensitivity_squared : int or float
        zeta > 0, for zero-out neighbours; replace-one neighbours have four times that.
    touched : Touched
        The nodes that one id shifts.

    Examples
    --------
    >>> promised = Guarantee(2.33, 11, Touched(nodes=11, total=11, largest=1))
    >>> round(promised.epsilon(1e-6), 3), round(promised.mu, 3)
    (7.342, 1.423)
    """

    noise_multiplier: float
    sensitivity_squared: int | float
    touched: Touched

    @classmethod
    def of(
        cls,
        noise_multiplier: float,
        participation: Participation,
        layout: Layout,
        *,
        bound: PlanBound,
    ) -> Guarantee:
        """Return what noise of this multiplier promises to those who take part in this way.

        Examples
        --------
        >>> from dpftrl_fast.accounting.participation import SinglePass
        >>> from dpftrl_fast.mechanisms import Tree
        >>> layout = Tree().layout(1600)
        >>> promised = Guarantee.of(2.33, SinglePass(1600), layout, bound="exact")
        >>> promised.sensitivity_squared, round(promised.epsilon(1e-6), 3)
        (11, 7.342)
        """
        zeta: int | float = squared_of(layout, participation, bound)
        return cls(noise_multiplier, zeta, touched(layout, participation, bound))

    @property
    def mu(self) -> float:
        """sqrt(zeta)/sigma, rounded up."""
        return gdp_mu(self.noise_multiplier, self.sensitivity_squared)

    def floor(self, neighbours: Neighbours = "zero-out") -> float:
        """Return the part of delta that is owed to the finite tail."""
        scale = _scale(neighbours)
        return support_floor(
            self.noise_multiplier, self.sensitivity_squared, self.touched, scale=scale
        )

    def mechanism_delta(self, delta: float, neighbours: Neighbours = "zero-out") -> float:
        """Return what the floor leaves of ``delta``; ValueError if that is nothing."""
        total = probability("delta", delta)
        floor = self.floor(neighbours)
        exact = untruncated_delta(total, self.touched, floor)
        if not exact > 0:
            raise ValueError(
                f"delta must be above the floor of the noise stream, {floor:.3g}, got {total!r}"
            )
        return exact

    def epsilon(self, delta: float, neighbours: Neighbours = "zero-out") -> float:
        """Return epsilon at ``delta``; ValueError if that is not above the floor."""
        exact = self.mechanism_delta(delta, neighbours)
        return gaussian.epsilon(self.noise_multiplier, self._zeta(neighbours), exact)

    def delta(self, epsilon: float, neighbours: Neighbours = "zero-out") -> float:
        """Return delta at ``epsilon``, floor included."""
        exact = gaussian.delta(self.noise_multiplier, self._zeta(neighbours), epsilon)
        return truncated_delta(exact, self.touched, self.floor(neighbours))

    def within(self, epsilon: float, delta: float) -> bool:
        """Return whether the budget is kept: epsilon at ``delta`` is at most ``epsilon``."""
        exact = untruncated_delta(delta, self.touched, self.floor())
        return (
            exact > 0
            and gaussian.delta(self.noise_multiplier, self.sensitivity_squared, epsilon) <= exact
        )

    def _zeta(self, neighbours: Neighbours) -> int | float:
        return self.sensitivity_squared * _scale(neighbours) ** 2


def _scale(neighbours: Neighbours) -> int:
    if neighbours not in ("zero-out", "replace-one"):
        raise ValueError(f'neighbours must be "zero-out" or "replace-one", got {neighbours!r}')
    return 2 if neighbours == "replace-one" else 1
