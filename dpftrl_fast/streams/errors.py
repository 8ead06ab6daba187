# SPDX-License-Identifier: Apache-2.0
"""`SumErrors`: standard deviations and intervals of released sums, from the mechanism alone."""

from __future__ import annotations

from abc import abstractmethod
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer, real
from dpftrl_fast.accounting.statement.statement import PrivacyStatement
from dpftrl_fast.mechanisms import Layout
from dpftrl_fast.mechanisms.run_error import std_at
from dpftrl_fast.mechanisms.window_error import window_std
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.contributions import Contributions

Floats = NDArray[np.float64]

_LONG = 2**16


class SumErrors(PrivacyStatement):
    """The error of released running sums and of their differences: public, before any data."""

    _plan: PrivacyPlan
    _rule: Contributions

    @property
    @abstractmethod
    def t(self) -> int:
        """Steps taken."""

    @property
    @abstractmethod
    def value(self) -> Floats:
        """The private running sum of the last step."""

    @property
    @abstractmethod
    def _noise_std(self) -> float:
        """Standard deviation of a noise vector of the plan, as the noise has it."""

    def std(self, *, since: int = 0, until: int | None = None) -> Floats:
        """Return the standard deviation of the noise in a sum, in the units of the records.

        Parameters
        ----------
        since, until : int, optional
            Of the sum over steps since + 1 .. until, the released sum at `until` less that at
            `since`; by default of the running sum at the present step. Any declared steps, taken or
            not.

        Returns
        -------
        ndarray of float64, shape (size,)
            Exact for the mechanism; the rounding of released sums to a grid adds at most 3e-6 of
            it, that to whole numbers at most 1/2. Clipping and records that count as zero are no
            part of it.

        Raises
        ------
        TypeError, ValueError
            If not 0 <= since <= until <= steps; for Toeplitz mechanisms also if `since` is not 0 or
            `until`, and `until` more than 2^26 steps after the beginning of its block.

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> sums = PrefixSum(1, 365, 1.0, 4.0)
        >>> sums.std(until=365).round(1).item(), sums.std(since=358, until=365).round(1).item()
        (7.4, 6.3)
        """
        end = self.t if until is None else integer("until", until, 0, self._plan.steps)
        start = integer("since", since, 0, end)
        return self._noise_std * _window(self._plan.layout, start, end) * self._rule.unit

    def half_width(
        self, level: float = 0.95, *, since: int = 0, until: int | None = None
    ) -> Floats:
        """Return half the width of a confidence interval of a sum: a quantile times `std`.

        Parameters
        ----------
        level : float
            0 < level < 1.
        since, until : int, optional
            As for `std`.

        Returns
        -------
        ndarray of float64, shape (size,)

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> sums = PrefixSum(1, 365, 1.0, 4.0)
        >>> round((sums.half_width(until=9) / sums.std(until=9)).item(), 2)
        1.96
        """
        share = real("level", level, above=0.0, below=1.0)
        return NormalDist().inv_cdf((1.0 + share) / 2) * self.std(since=since, until=until)

    def interval(self, level: float = 0.95) -> tuple[Floats, Floats]:
        """Return an interval that holds the sum of the contributions with probability `level`.

        Parameters
        ----------
        level : float
            0 < level < 1, for each coordinate by itself.

        Returns
        -------
        low, high : ndarray of float64, shape (size,)
            ``value`` less and plus `half_width`. For the sum of a window take the difference of two
            values, and ``half_width(since=..)``.

        Examples
        --------
        >>> from dpftrl_fast import PrefixSum
        >>> sums = PrefixSum(1, 365, 1.0, 4.0)
        >>> value = sums.add([1.0])
        >>> low, high = sums.interval()
        >>> bool(low < value < high)
        True
        """
        half = self.half_width(level)
        return self.value - half, self.value + half


def _window(layout: Layout, since: int, until: int) -> float:
    """Return the standard deviation of the noise in the sum over some steps, for unit noise."""
    if since == until:
        return 0.0
    if since == 0 and until > _LONG:  # in closed form for nearly all mechanisms
        return float(std_at(layout, np.array([until]))[0])
    return window_std(layout, since, until)
