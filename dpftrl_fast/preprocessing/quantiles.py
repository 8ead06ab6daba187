# SPDX-License-Identifier: Apache-2.0
"""`private_quantiles`: bounds from private rows, at a stated epsilon.

The counts of values up to the end of each bin are running sums over the bins, in which a row is one
record of one step. So `PrefixSum` makes them private, with far less noise than a sum of noisy
counts: its error grows with the logarithm of the number of bins, not with the square root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

from dpftrl_fast._validate import choice, integer, positive, probability, real, shown
from dpftrl_fast.accounting import SinglePass, compose
from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.mechanisms.run_error import mechanism_error
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.preprocessing._columns import Columns
from dpftrl_fast.preprocessing._declared import Numeric, declared
from dpftrl_fast.rounding import check_summands
from dpftrl_fast.run.budget import PrivacyBudget, budgets_here, charge, refuse_seed
from dpftrl_fast.streams.prefix_sum import PrefixSum

FloatArray = NDArray[np.float64]

_LOG_RANGE = 1e-6  # values below this share of the largest have bins of equal widths


@dataclass(frozen=True)
class PrivateQuantiles(PrivacyStatement):
    """Quantiles of private columns, and their guarantee.

    Attributes
    ----------
    quantiles : tuple of float
    values : (q, p) array
        Quantiles of each column.
    names : tuple of str or None
        Names of the columns, where `bounds` had some.
    plans : tuple of PrivacyPlan
        One plan for each column.
    count_std : float
        Largest standard deviation of a noisy count, in rows: a quantile is that of a rank about so
        far away.
    reproducible : bool
        True with a `noise_seed`: the quantiles are not private.

    Examples
    --------
    >>> from dpftrl_fast.preprocessing import private_quantiles
    >>> ages = np.random.default_rng(0).integers(18, 90, 20_000)
    >>> found = private_quantiles(ages, {"age": (0, 120)}, (0.05, 0.95), epsilon=0.5)
    >>> found.names, found.values.shape, len(found.plans), found.count_std < 200
    (('age',), (2, 1), 1, True)
    >>> found.epsilon(1e-6) <= 0.5 < found.epsilon(1e-6, neighbours="replace-one")
    True
    """

    quantiles: tuple[float, ...]
    values: FloatArray
    names: tuple[str, ...] | None
    plans: tuple[PrivacyPlan, ...]
    count_std: float
    reproducible: bool

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of all columns together."""
        return compose(self.plans)

    @property
    def bounds(self) -> Any:
        """Smallest and largest quantile of each column, as `BoundedScaler` takes them.

        Where both are in one bin, they are moved apart by 1e-9 of their size.
        """
        pairs = []
        for low, high in zip(self.values.min(axis=0), self.values.max(axis=0), strict=True):
            apart = 1e-9 * max(abs(low), abs(high), 1e-300)
            pairs.append((float(low - apart), float(high + apart)))
        return pairs if self.names is None else dict(zip(self.names, pairs, strict=True))


def private_quantiles(
    x: Any,
    bounds: Any,
    quantiles: Sequence[float] = (0.01, 0.99),
    *,
    epsilon: float = 0.1,
    delta: float = 1e-6,
    bins: int = 1024,
    spacing: str = "linear",
    noise_seed: Any = None,
    budget: PrivacyBudget | None = None,
) -> PrivateQuantiles:
    """Return private quantiles of columns, from noisy counts on a declared coarse range.

    Where bounds are not public knowledge, they can be bought: the epsilon of the quantiles adds to
    that of the models fitted with them (`dpftrl_fast.accounting.compose`). Inside ``with
    PrivacyBudget(..):`` they are charged as a fit is.

    Parameters
    ----------
    x : (n,) or (n, p) array, or data frame
        Private rows. A missing cell is in no count; a number beyond the range is counted at its
        end.
    bounds : as for `BoundedScaler`
        Public coarse ranges ``(low, high)``, of numeric columns only: wide enough for any data.
    quantiles : sequence of float
        Between 0 and 1.
    epsilon, delta : float
        Budget of all columns together, for one row replaced by zero (that is, not counted).
    bins : int, default 1024
        Number of bins of each column: the resolution of the quantiles.
    spacing : {"linear", "log"}
        "linear" bins have equal widths. "log" bins are wider the farther from 0, for ranges over
        several orders of magnitude; below 1e-6 of the range they have equal widths.
    noise_seed : None, int or bytes
        For tests: the quantiles are then `reproducible`, not private.
    budget : PrivacyBudget, optional
        Budget that the quantiles are charged to, besides those of entered blocks.

    Returns
    -------
    PrivateQuantiles

    Raises
    ------
    TypeError, ValueError
        For a wrong argument, or a `noise_seed` inside a budget. No value of a cell is refused.
    BudgetExceeded
        If the quantiles do not fit into a budget. They are charged before the rows are read, and
        stay charged if something fails later.

    Notes
    -----
    **Formal guarantee.** All quantiles together satisfy (epsilon, delta) for two data sets that
    differ in one row, which is not counted in one of them. The caller must ensure that the ranges,
    the quantiles and all other parameters are public. Low-order bits of floating-point numbers are
    not covered.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.preprocessing import BoundedScaler, private_quantiles
    >>> incomes = np.random.default_rng(0).lognormal(10, 1, 50_000)
    >>> found = private_quantiles(incomes, (0, 1e8), (0.05, 0.95), epsilon=0.5, spacing="log")
    >>> found.epsilon(1e-6) <= 0.5
    True
    >>> np.quantile(incomes, (0.05, 0.95)).round(-3).tolist()
    [4000.0, 113000.0]
    >>> bool(4000 < found.values[0, 0] < 4600 and 109_000 < found.values[1, 0] < 119_000)
    True
    >>> scaler = BoundedScaler(found.bounds)
    """
    wanted = tuple(real("quantiles", q, least=0.0, most=1.0) for q in quantiles)
    if not wanted:
        raise ValueError("quantiles must hold at least one number, got none")
    most, total = positive("epsilon", epsilon), probability("delta", delta)
    bins = integer("bins", bins, 2, 2**16)
    choice("spacing", spacing, ("linear", "log"))
    budgets = budgets_here(budget)
    refuse_seed(budgets, noise_seed, "quantiles are")
    given = declared(bounds)
    x = x[:, None] if getattr(x, "ndim", 0) == 1 and not hasattr(x, "iloc") else x
    columns = Columns(x.to_frame() if hasattr(x, "to_frame") else x, least_rows=0, estimator=None)
    check_summands("rows", columns.rows, bins)
    places = [*range(columns.width)]
    if given.names is not None and columns.names is not None:
        places = columns.select(given.names)
    parts = given.for_width(len(places))
    edges = [_edges(part, bins, spacing) for part in parts]
    plan = _plan(most, total, bins, len(parts))
    plans = (plan,) * len(parts)
    if budgets:
        label = f"private_quantiles, {len(parts)} columns, epsilon {epsilon!r}, {bins} bins"
        charge(budgets, compose(plans), label=label)  # on the disk before a row is read
    values = np.empty((len(wanted), len(parts)))
    for j, place in enumerate(places):
        counts = _counts(columns.numbers(place), edges[j])
        seed = None if noise_seed is None else f"{noise_seed!r}, column {j}".encode()
        values[:, j] = _quantiles_of(_noisy(counts, plan, seed), edges[j], wanted)
    error = mechanism_error(plan.mechanism, bins).worst * plan.noise_multiplier
    return PrivateQuantiles(wanted, values, given.names, plans, error, noise_seed is not None)


def _edges(part: Any, bins: int, spacing: str) -> FloatArray:
    """Return the edges of the bins."""
    if not isinstance(part, Numeric):
        raise ValueError(f"bounds must be (low, high) for every column, got {shown(part.names)}")
    if spacing == "linear":
        return np.linspace(part.low, part.high, bins + 1)
    unit = max(abs(part.low), abs(part.high)) * _LOG_RANGE
    low, high = (float(np.arcsinh(end / unit)) for end in (part.low, part.high))
    edges: FloatArray = np.sinh(np.linspace(low, high, bins + 1)) * unit
    edges[0], edges[-1] = part.low, part.high
    return edges


def _plan(epsilon: float, delta: float, bins: int, columns: int) -> PrivacyPlan:
    """Return the plan of one column, so many of which keep the budget together."""
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        clip_norm=1.0,
        participation=SinglePass(bins),
        mechanism="auto",
    )
    plan, more = plan.with_noise(plan.noise_multiplier * columns**0.5), 1e-9
    while not compose([plan] * columns).epsilon(delta) <= epsilon:
        plan, more = plan.with_noise(plan.noise_multiplier * (1.0 + more)), 2 * more
    return plan


@np.errstate(all="ignore")
def _counts(numbers: FloatArray, edges: FloatArray) -> NDArray[np.int64]:
    """Return the number of values in each bin; a missing one is in none."""
    numbers = np.clip(numbers[~np.isnan(numbers)], edges[0], edges[-1])
    place = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, edges.size - 2)
    return np.bincount(place, minlength=edges.size - 1)


def _noisy(counts: NDArray[np.int64], plan: PrivacyPlan, seed: Any) -> FloatArray:
    """Return the noisy number of values up to the end of each bin."""
    sums = PrefixSum(
        1, plan.steps, plan.clip_norm, plan.noise_multiplier, mechanism=plan.mechanism, seed=seed
    )
    return np.array([sums.add(np.ones((count, 1)))[0] for count in counts])


def _quantiles_of(noisy: FloatArray, edges: FloatArray, wanted: tuple[float, ...]) -> FloatArray:
    """Return the values at which the noisy counts, made monotone, reach the quantiles."""
    counts = np.concatenate([[0.0], np.maximum(isotonic_regression(noisy), 0.0)])
    found = np.empty(len(wanted))
    for j, quantile in enumerate(wanted):
        rank = quantile * counts[-1]
        place = min(max(int(np.searchsorted(counts, rank)), 1), counts.size - 1)
        step = counts[place] - counts[place - 1]
        share = (rank - counts[place - 1]) / step if step > 0 else quantile
        found[j] = edges[place - 1] + share * (edges[place] - edges[place - 1])
    return found
