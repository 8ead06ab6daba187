# SPDX-License-Identifier: Apache-2.0
"""Defaults of a run of DP-FTRL, derived from public facts only.

Facts are the number of rows (or users), their bounds, the loss, the budget and the error of the
mechanism. The rule, with its reasons and measurements, is in docs/sklearn/defaults.md:

- The clip norm is a share of the largest gradient norm of a row at theta = 0: a tenth to a
  fifth for numbers, a fifth to twice of it for labels, as large as the noise allows.
- There are about 512 steps, with momentum 0.9.
- More passes over the rows leave less noise, and take longer. There is one pass, or the first of 4,
  16 and 64 whose noise is tolerable at the stable learning rate.
- The learning rate is that of `rates.learning_rate("auto", ...)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from dpftrl_fast.convex.glm.rates import LABEL_LOSSES, row_reach
from dpftrl_fast.convex.glm.sums import Objective

#: Steps of a run whose batch size and number of epochs are both "auto".
STEPS = 512
#: Numbers of passes that are tried, in this order.
PASSES = (1, 4, 16, 64)
_SEVERAL = 16
_FEWEST_STEPS = 256
_MOMENTUM, _MOMENTUM_FROM = 0.9, 64
# Smallest and largest clip norm, in units of the largest gradient.
_NUMBERS, _LABELS = (0.1, 0.2), 0.2
# Largest gradient at any theta, in units of the largest one at 0 (of two classes at least).
_LARGEST_SLOPE = {"logistic": 2.0, "multinomial": 2.0}


def largest_gradient(objective: Objective, rows_per_unit: float = 1.0) -> float:
    """Return the largest gradient norm of a row (a user of so many rows) at theta = 0.

    Targets are taken to be in [-1, 1].

    Examples
    --------
    >>> largest_gradient(Objective("logistic", 3, row_bound=3.0, constant=4.0))
    2.5
    """
    k, outputs = objective.loss_param, objective.outputs
    slope = {
        "huber": min(1.0, k),
        "quantile": max(k, 1.0 - k),
        "logistic": 0.5,
        "multinomial": math.sqrt(1.0 - 1.0 / outputs),
        "hinge": math.sqrt(outputs),
    }.get(objective.loss, 1.0)
    return slope * row_reach(objective) * rows_per_unit


def clipped_share(objective: Objective, noise: float, tolerated: float) -> float:
    """Return the clip norm in units of the largest gradient.

    `noise` is the standard deviation of a prediction's noise at a clip norm of 1 in these units,
    after several passes.

    Examples
    --------
    >>> round(clipped_share(Objective("logistic", 3), 10.0, 5.0), 5)
    0.5
    >>> clipped_share(Objective("logistic", 3), 1.0, 5.0)  # no gradient is clipped
    2.0
    >>> clipped_share(Objective("squared", 3), 10.0, 1.0)
    0.1
    """
    if objective.loss in LABEL_LOSSES:
        least, most = _LABELS, _LARGEST_SLOPE.get(objective.loss, 1.0)
    else:
        least, most = _NUMBERS
    if noise * most <= tolerated:
        return most
    return max(least, (1.0 - 1e-6) * tolerated / noise)  # so that these passes are enough


def momentum(steps: int) -> float:
    """Return the momentum of a run of so many steps: none for a short one.

    Examples
    --------
    >>> momentum(512), momentum(20)
    (0.9, 0.0)
    """
    return _MOMENTUM if steps >= _MOMENTUM_FROM else 0.0


def steps_of(units: int, batch_size: int, epochs: int) -> int:
    """Return the number of steps of a run over so many rows or users.

    Examples
    --------
    >>> steps_of(10, 4, 2)
    6
    """
    return epochs * -(-units // batch_size)


def one_pass_batch(units: int) -> int:
    """Return the batch size of a single pass over so many rows or users.

    Examples
    --------
    >>> one_pass_batch(10_000), one_pass_batch(100)
    (20, 1)
    """
    return -(-units // STEPS)


def several_passes(units: int, batch_size: int | None, epochs: int | None) -> tuple[int, int]:
    """Return the batch size and the epochs of a run of 16 passes; those given are kept.

    Examples
    --------
    >>> several_passes(10_000, None, None), several_passes(10_000, 100, 2)
    ((313, 16), (100, 2))
    """
    passes = _SEVERAL if epochs is None else epochs
    return next(_candidates(units, batch_size, passes))


def schedule(
    units: int,
    batch_size: int | None,
    epochs: int | None,
    noise: Callable[[int, int], float],
    tolerated: float,
) -> tuple[int, int]:
    """Return the batch size and the number of epochs; those given are kept.

    Parameters
    ----------
    units : int
        Rows or users.
    batch_size, epochs : int or None
        Given values.
    noise : callable
        From batch size and epochs to the standard deviation of a prediction's noise at the stable
        learning rate.
    tolerated : float
        Largest noise.

    Examples
    --------
    >>> schedule(10_000, None, None, lambda batch, epochs: 1.0 / epochs, 0.1)
    (313, 16)
    >>> schedule(10_000, 100, None, lambda batch, epochs: 0.0, 0.1)
    (100, 4)
    """
    tried = list(_candidates(units, batch_size, epochs))
    for found in tried[:-1]:
        if noise(*found) <= tolerated:
            return found
    return tried[-1]


def _candidates(
    units: int, batch_size: int | None, epochs: int | None
) -> Iterator[tuple[int, int]]:
    for passes in PASSES if epochs is None else (epochs,):
        if batch_size is None:
            yield -(-units // min(units, max(1, STEPS // passes))), passes
        else:
            enough = steps_of(units, batch_size, passes) >= _FEWEST_STEPS
            if epochs is not None or passes == PASSES[-1] or enough:
                yield batch_size, passes
