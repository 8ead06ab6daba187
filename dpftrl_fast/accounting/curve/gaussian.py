# SPDX-License-Identifier: Apache-2.0
"""Epsilon, delta and noise multiplier of an adaptive Gaussian mechanism, mu = sqrt(zeta)/sigma.

The exact curve (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13) is

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Every result is the double next to the true value on the safe side: epsilon, delta and the noise
multiplier are the smallest doubles that are not below it. The C++ core finds them in double-double
arithmetic with a proved error bound, in some microseconds. Where the bound cannot tell two
neighbouring doubles apart, and for mu outside 2^-200 .. 2^20 or a delta below 1e-307, decimal
arithmetic decides, in milliseconds.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Literal

import dpftrl_fast._core as _core
from dpftrl_fast._validate import choice, non_negative, positive, probability
from dpftrl_fast.accounting.curve.gaussian_decimal import (
    decimal_delta,
    decimal_epsilon,
    decimal_mean_shift,
    decimal_noise_multiplier,
)
from dpftrl_fast.accounting.curve.renyi import Conversion, rdp_epsilon


def sensitivity(x: Any) -> int | float:
    """Return a squared sensitivity: integers and floats as they are, others rounded up."""
    value = positive("sensitivity_squared", x)
    if isinstance(x, numbers.Integral):
        return int(x)
    return value if value >= x else math.nextafter(value, math.inf)


def _two_parts(zeta: int | float) -> tuple[float, float] | None:
    """Return ``zeta`` as the sum of two doubles, if it is one."""
    high = float(zeta)
    if high == zeta:
        return high, 0.0
    rest = int(zeta) - int(high)
    return (high, float(rest)) if float(rest) == rest else None


def mean_shift(noise_multiplier: float, sensitivity_squared: float) -> Decimal:
    """Return mu = sqrt(sensitivity_squared)/noise_multiplier, to more digits than needed."""
    sigma = positive("noise_multiplier", noise_multiplier)
    return decimal_mean_shift(sigma, sensitivity(sensitivity_squared))


def epsilon(
    noise_multiplier: float,
    sensitivity_squared: float,
    delta: float,
    method: Literal["exact", "rdp"] = "exact",
    *,
    orders: Iterable[float] | None = None,
    conversion: Conversion | None = None,
) -> float:
    """Epsilon of the Gaussian mechanism at ``delta``, never below the true one.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma),
        0 <= sigma <= infinity. 0 gives infinity, infinity gives 0.
    sensitivity_squared : float
        zeta > 0, in units of the clip norm squared; see
        :func:`~dpftrl_fast.accounting.sensitivity_squared`. An integer of any size is not rounded.
    delta : float
        0 < delta < 1.
    method : {"exact", "rdp"}
        ``"exact"`` inverts the exact curve: the smallest epsilon that can be stated. ``"rdp"`` goes
        through Renyi differential privacy, as the paper did; it is larger and is here to compare
        with published figures.
    orders : iterable of float, optional
        Only for ``"rdp"``: the Renyi orders (each finite and > 1) to take the best of. None takes
        the best real order.
    conversion : {"cks", "mironov"}, optional
        Only for ``"rdp"``: from RDP to (epsilon, delta). ``"cks"`` (the default there) is that of
        Canonne, Kamath and Steinke, ``"mironov"`` the older and looser one; see
        `dpftrl_fast.accounting.curve.renyi`.

    Returns
    -------
    float
        The smallest double that is not below epsilon(delta) of the chosen method.

    Examples
    --------
    The paper's StackOverflow run: 1600 steps, single pass (zeta 11), sigma 1.13.

    >>> round(epsilon(1.13, 11, 1e-6), 3)
    17.667
    >>> round(epsilon(1.13, 11, 1e-6, "rdp"), 2)
    18.71
    >>> round(epsilon(1.13, 11, 1e-6, "rdp", conversion="mironov"), 2)
    19.74
    """
    sigma = non_negative("noise_multiplier", noise_multiplier, infinite=True)
    zeta = sensitivity(sensitivity_squared)
    target = probability("delta", delta)
    choice("method", method, ("exact", "rdp"))
    if method == "exact" and not (orders is None and conversion is None):
        raise ValueError('orders and conversion need method="rdp", got method="exact"')
    if method == "rdp":
        chosen = "cks" if conversion is None else conversion
        return rdp_epsilon(sigma, zeta, target, orders=orders, conversion=chosen)
    if sigma in (0.0, float("inf")):
        return 0.0 if sigma else float("inf")
    guess, parts = math.nan, _two_parts(zeta)
    if parts is not None:
        guess, certified = _core.gaussian_epsilon(sigma, *parts, target)
        if certified:
            return guess
    return decimal_epsilon(sigma, zeta, target, guess)


def delta(noise_multiplier: float, sensitivity_squared: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism at ``epsilon``, never below the true one.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma),
        0 <= sigma <= infinity. 0 gives 1, infinity gives 0.
    sensitivity_squared : float
        zeta > 0, in units of the clip norm squared.
    epsilon : float
        Finite, >= 0.

    Returns
    -------
    float
        The smallest double that is not below delta(epsilon); where the true value is below every
        positive double this is the smallest of them, 5e-324, and not 0.

    Examples
    --------
    >>> round(delta(1.0, 1, 1.0), 6)
    0.126937
    """
    sigma = non_negative("noise_multiplier", noise_multiplier, infinite=True)
    zeta = sensitivity(sensitivity_squared)
    eps = non_negative("epsilon", epsilon)
    if sigma in (0.0, float("inf")):
        return 0.0 if sigma else 1.0
    if (parts := _two_parts(zeta)) is not None:
        value, certified = _core.gaussian_delta(sigma, *parts, eps)
        if certified:
            return value
    return decimal_delta(sigma, zeta, eps)


def noise_multiplier(epsilon: float, delta: float, sensitivity_squared: float) -> float:
    """Smallest noise multiplier whose exact epsilon at ``delta`` is at most ``epsilon``.

    Parameters
    ----------
    epsilon : float
        Finite, >= 0.
    delta : float
        0 < delta < 1.
    sensitivity_squared : float
        zeta > 0, in units of the clip norm squared.

    Returns
    -------
    float
        The smallest double that is not below the true noise multiplier, so that always
        ``accounting.epsilon(result, sensitivity_squared, delta) <= epsilon``. Infinity where no
        double is large enough.

    Examples
    --------
    >>> noise_multiplier(1.0, 1e-6, 11)
    14.0116747356325
    """
    eps = non_negative("epsilon", epsilon)
    target = probability("delta", delta)
    zeta = sensitivity(sensitivity_squared)
    guess, parts = math.nan, _two_parts(zeta)
    if parts is not None:
        guess, certified = _core.gaussian_noise_multiplier(eps, target, *parts)
        if certified:
            return guess
    return decimal_noise_multiplier(eps, target, zeta, guess)
