# SPDX-License-Identifier: Apache-2.0
"""Epsilon, delta and noise multiplier of an adaptive Gaussian mechanism, mu = sqrt(zeta)/sigma.

The exact curve (Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13) is

    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu).

Every result is the double next to the true value on the safe side: epsilon, delta and the noise
multiplier are the smallest doubles that are not below it.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Literal

from dpftrl_fast.accounting._checks import non_negative, positive, probability
from dpftrl_fast.accounting._hockey_stick import hockey_stick
from dpftrl_fast.accounting._rounding import float_up, precision, smallest_double
from dpftrl_fast.accounting.rdp import Conversion, rdp_epsilon

__all__ = ["delta", "epsilon", "mean_shift", "noise_multiplier"]

_NEWTON_STEPS = 40
_SQRT_TWO_PI = Decimal("2.5066282746")


def mean_shift(noise_multiplier: float, sensitivity_squared: float) -> Decimal:
    """Return mu = sqrt(sensitivity_squared)/noise_multiplier to more digits than any bound needs.

    Examples
    --------
    >>> float(mean_shift(1.5, 9))
    2.0
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    zeta = positive("sensitivity_squared", sensitivity_squared)
    return _mu(Decimal(sigma), Decimal(zeta))


def _mu(sigma: Decimal, zeta: Decimal) -> Decimal:
    # As many digits as the kernel works with, which grow with the size of mu.
    with precision(30):
        size = abs((zeta.sqrt() / sigma).adjusted())
    with precision(80 + size):
        return zeta.sqrt() / sigma


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
        :func:`~dpftrl_fast.accounting.sensitivity_squared`.
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
        :mod:`dpftrl_fast.accounting.rdp`.

    Returns
    -------
    float
        The smallest double that is not below epsilon(delta) of the chosen method.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, NaN included.

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
    zeta = positive("sensitivity_squared", sensitivity_squared)
    target = Decimal(probability("delta", delta))
    if method not in ("exact", "rdp"):
        raise ValueError(f'method must be "exact" or "rdp", got {method!r}')
    if method == "exact" and not (orders is None and conversion is None):
        raise ValueError('orders and conversion need method="rdp", got method="exact"')
    if method == "rdp":
        chosen = "cks" if conversion is None else conversion
        return rdp_epsilon(sigma, zeta, float(target), orders=orders, conversion=chosen)
    if sigma in (0.0, float("inf")):
        return 0.0 if sigma else float("inf")
    mu = _mu(Decimal(sigma), Decimal(zeta))
    if hockey_stick(mu, Decimal(0)).delta <= target:
        return 0.0
    guess = _newton_epsilon(mu, target)
    return smallest_double(lambda eps: hockey_stick(mu, Decimal(eps)).delta <= target, guess)


def _newton_epsilon(mu: Decimal, target: Decimal) -> float:
    # ln delta is concave in eps, and the zCDP bound mu^2/2 + mu sqrt(2 ln(1/delta)) lies right of
    # the root: Newton's steps come down to it from the right.
    with precision(60):
        log_target = target.ln()
        eps = mu * mu / 2 + mu * (-2 * log_target).sqrt()
        for _ in range(_NEWTON_STEPS):
            at = hockey_stick(mu, eps)
            if not (at.density and at.mills):
                break
            step = (at.delta.ln() - log_target) * at.delta / (at.density * at.mills)
            eps = max(eps + step, Decimal(0))
            if abs(step) <= eps * Decimal("1e-20"):
                break
        return float(eps)


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

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, NaN included.

    Examples
    --------
    >>> round(delta(1.0, 1, 1.0), 6)
    0.126937
    """
    sigma = non_negative("noise_multiplier", noise_multiplier, infinite=True)
    zeta = positive("sensitivity_squared", sensitivity_squared)
    eps = non_negative("epsilon", epsilon)
    if sigma in (0.0, float("inf")):
        return 0.0 if sigma else 1.0
    return float_up(hockey_stick(_mu(Decimal(sigma), Decimal(zeta)), Decimal(eps)).delta)


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

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above, NaN included.

    Examples
    --------
    >>> noise_multiplier(1.0, 1e-6, 11)
    14.0116747356325
    """
    eps = Decimal(non_negative("epsilon", epsilon))
    target = Decimal(probability("delta", delta))
    zeta = Decimal(positive("sensitivity_squared", sensitivity_squared))
    with precision(60):
        guess = float(zeta.sqrt() / _newton_mu(eps, target))
    return smallest_double(
        lambda sigma: hockey_stick(_mu(Decimal(sigma), zeta), eps).delta <= target, guess
    )


def _newton_mu(eps: Decimal, target: Decimal) -> Decimal:
    # Start left of the root, at the larger of two lower bounds: the zCDP bound turned round, and
    # the one from delta(mu, eps) <= delta(mu, 0) <= mu/sqrt(2 pi). Newton's steps come up from it.
    with precision(60):
        log_target = target.ln()
        mu = max(
            Decimal(2).sqrt() * eps / ((eps - log_target).sqrt() + (-log_target).sqrt()),
            target * _SQRT_TWO_PI,
        )
        for _ in range(_NEWTON_STEPS):
            at = hockey_stick(mu, eps)
            if not at.density:
                break
            step = (log_target - at.delta.ln()) * at.delta / at.density
            mu += max(step, -mu / 2)
            if abs(step) <= mu * Decimal("1e-20"):
                break
        return mu
