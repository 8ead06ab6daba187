# SPDX-License-Identifier: Apache-2.0
"""Our runs as events of Google's dp_accounting, and DP-SGD accounted by it as a baseline.

dp_accounting (``pip install dp-accounting``) is an optional package and is imported when a function
is called, which takes one to two seconds the first time.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any, Literal

from dpftrl_fast._validate import positive, positive_integer, probability
from dpftrl_fast.accounting.curve.gaussian import mean_shift, sensitivity
from dpftrl_fast.accounting.curve.rounding import smallest_double


def _dp_accounting(submodule: str = "") -> Any:
    try:
        return importlib.import_module("dp_accounting" + submodule)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "this function needs the package dp_accounting: pip install dp-accounting"
        ) from error


def dp_event(noise_multiplier: float, sensitivity_squared: float) -> Any:
    """Return a whole run as one event of dp_accounting, to compose it with others there.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    sensitivity_squared : int or float
        zeta > 0, in units of the clip norm squared.

    Returns
    -------
    dp_accounting.GaussianDpEvent
        With noise multiplier sigma/sqrt(zeta), rounded down, so that no accountant understates the
        privacy loss because of it. It stands for zero-out neighbours (there ``REPLACE_SPECIAL``)
        and composes with events for add-or-remove-one neighbours. For replace-one neighbours give
        four times the sensitivity squared to the same accountants; under ``REPLACE_ONE`` the PLD
        accountant doubles the sensitivity itself, the RDP accountant does not (version 0.6). The
        floor of the noise stream (docs/plan/accounting.md) is not in it.

    Raises
    ------
    ModuleNotFoundError
        If dp_accounting is not installed.

    Examples
    --------
    >>> dp_event(3.0, 4)  # doctest: +SKIP
    GaussianDpEvent(noise_multiplier=1.5)
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    zeta = sensitivity(sensitivity_squared)
    square = Fraction(sigma) ** 2 / Fraction(zeta)
    # The first double beyond sigma/sqrt(zeta), and from there one down.
    beyond = smallest_double(
        lambda x: Fraction(x) ** 2 > square, float(1 / mean_shift(sigma, zeta))
    )
    return _dp_accounting().GaussianDpEvent(math.nextafter(beyond, 0.0))


def dpsgd_epsilon(
    noise_multiplier: float,
    sampling_probability: float,
    steps: int,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Epsilon of DP-SGD, amplified by Poisson sampling, as dp_accounting states it.

    The baseline that DP-FTRL is compared with. It holds only where every batch is really a Poisson
    sample of the data: each record independently with the same probability in each step.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on a step's sum, in units of the clip norm, finite and > 0.
    sampling_probability : float
        0 < q <= 1; with 1 nothing is amplified.
    steps : int
        Number of steps, >= 1.
    delta : float
        0 < delta < 1.
    accountant : {"rdp", "pld"}
        Renyi DP on that package's grid of orders, or privacy loss distributions (tighter, slower).

    Returns
    -------
    float
        Epsilon at ``delta`` for add-or-remove-one neighbours, to double precision (the directed
        rounding of the rest of this package is not that package's).

    Raises
    ------
    ModuleNotFoundError
        If dp_accounting is not installed.

    Examples
    --------
    >>> dpsgd_epsilon(1.1, 0.01, 1000, 1e-5)  # doctest: +SKIP
    1.7117...
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    q = positive("sampling_probability", sampling_probability)
    if not q <= 1:
        raise ValueError(f"sampling_probability must be a number with 0 < x <= 1, got {q!r}")
    count = positive_integer("steps", steps)
    target = probability("delta", delta)
    chosen = _accountant(accountant)
    package = _dp_accounting()
    step = package.PoissonSampledDpEvent(q, package.GaussianDpEvent(sigma))
    return float(chosen.compose(step, count).get_epsilon(target))


def dpsgd_noise_multiplier(
    epsilon: float,
    delta: float,
    sampling_probability: float,
    steps: int,
    accountant: Literal["rdp", "pld"] = "pld",
) -> float:
    """Noise multiplier of DP-SGD, amplified by Poisson sampling, by dp_accounting.

    The smallest one within epsilon, up to a relative 0.002 above it.

    Parameters
    ----------
    epsilon : float
        For add-or-remove-one neighbours, finite and > 0.
    delta : float
        0 < delta < 1.
    sampling_probability, steps
        As for `dpsgd_epsilon`.
    accountant : {"rdp", "pld"}
        Privacy loss distributions, or Renyi DP, which is faster and returns 4 to 21 % more noise in
        the table of docs/start/choose.md.

    Returns
    -------
    float
        Standard deviation of the noise on a step's sum, in units of the clip norm.

    Raises
    ------
    ModuleNotFoundError
        If dp_accounting is not installed.
    ValueError
        If an argument is not as above, or no noise below 2^60 is enough.

    Examples
    --------
    >>> dpsgd_noise_multiplier(1.0, 1e-5, 0.01, 100)  # doctest: +SKIP
    0.7...
    """
    target = positive("epsilon", epsilon)

    def excess(sigma: float, by: Literal["rdp", "pld"]) -> float:
        with _quiet("absl"):  # logs the orders of Renyi DP that were left out
            spent = dpsgd_epsilon(sigma, sampling_probability, steps, delta, by)
        return math.log(max(spent, 1e-300) / target)

    low, high = 0.5, 1.0
    while excess(high, "rdp") > 0:
        low, high = high, 2 * high
        if high > 2.0**60:
            raise ValueError(f"no noise is large enough for epsilon {epsilon} at delta {delta}")
    while excess(low, "rdp") <= 0:
        low, high = low / 2, low
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle, "rdp") <= 0 else (middle, high)
    if accountant == "rdp":
        return high
    while (above := excess(high, "pld")) > 0:
        high *= 1.1
    low = 0.8 * high
    while (below := excess(low, "pld")) <= 0:
        low, high, above = 0.8 * low, low, below
    while high > 1.002 * low:
        # log epsilon is nearly linear in log sigma: a value at each side of the root.
        share = below / (below - above)
        root = math.exp(math.log(low) + share * math.log(high / low))
        inside = [x for x in (root / 1.0009, root * 1.0009) if 1.0005 * low < x < high / 1.0005]
        for sigma in inside or [math.sqrt(low * high)]:
            found = excess(sigma, "pld")
            if found > 0:
                low, below = sigma, found
            else:
                high, above = sigma, found
                break
    return high


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Restrict a logger to errors."""
    import logging  # not for every import of the package

    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def unamplified_dpsgd_epsilon(
    noise_multiplier: float,
    epochs: int,
    delta: float,
    accountant: Literal["rdp", "pld"] = "rdp",
) -> float:
    """Epsilon of DP-SGD over fixed batches, as dp_accounting states it.

    Each record is in one batch an epoch and nothing is sampled: a Gaussian mechanism with
    sensitivity squared ``epochs``. ``accounting.epsilon(noise_multiplier, epochs, delta)`` is its
    exact value.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on a step's sum, in units of the clip norm, finite and > 0.
    epochs : int
        How often a record is used, >= 1.
    delta : float
        0 < delta < 1.
    accountant : {"rdp", "pld"}
        Renyi DP on that package's grid of orders, or privacy loss distributions (tighter, slower).

    Returns
    -------
    float
        Epsilon at ``delta`` for add-or-remove-one neighbours, to double precision.

    Raises
    ------
    ModuleNotFoundError
        If dp_accounting is not installed.

    Examples
    --------
    >>> unamplified_dpsgd_epsilon(10.0, 100, 1e-5)  # doctest: +SKIP
    4.7285...
    """
    sigma = positive("noise_multiplier", noise_multiplier)
    count = positive_integer("epochs", epochs)
    target = probability("delta", delta)
    chosen = _accountant(accountant)
    event = _dp_accounting().GaussianDpEvent(sigma)
    return float(chosen.compose(event, count).get_epsilon(target))


def _accountant(name: str) -> Any:
    if name not in ("rdp", "pld"):
        raise ValueError(f'accountant must be "rdp" or "pld", got {name!r}')
    module = _dp_accounting("." + name)
    return module.RdpAccountant() if name == "rdp" else module.PLDAccountant()
