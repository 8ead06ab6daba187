# SPDX-License-Identifier: Apache-2.0
"""Outlook of a run of least squares before it starts, as far as public facts tell."""

from __future__ import annotations

from collections.abc import Iterator

from dpftrl_fast.convex.least_squares.choice import noise_share
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan

# lambda_T/2 of the default `ridge_factor`, in units of the noise's norm in `noise_share`.
_RIDGE = 2.0


def problems(plan: LeastSquaresPlan, *, columns: int, units: int) -> Iterator[str]:
    """Yield a sentence for every reason why the last model of a run is unlikely to learn.

    Only public facts are used. The eigenvalues of the sum of x x^T of n rows of norm L are n L^2/p
    on average, and smaller for shorter rows. A ridge above that shrinks coefficients to less than
    half along an average direction.

    Parameters
    ----------
    plan : LeastSquaresPlan
    columns : int
        Number p of columns, with that of the intercept.
    units : int
        Rows, or users.

    Examples
    --------
    >>> from dpftrl_fast.accounting import SinglePass
    >>> plan = LeastSquaresPlan(1.0, 1.0, 10.0, SinglePass(1))
    >>> [*problems(plan, columns=5, units=10_000)]
    []
    >>> for text in problems(plan, columns=5, units=100):
    ...     print(text.partition(" the largest")[0])
    the noise in the sum of x x^T needs a ridge of 2.8 times
    """
    ratio = _RIDGE * noise_share(plan, columns, units) * columns
    if not ratio <= 1.0:
        yield (
            f"the noise in the sum of x x^T needs a ridge of {ratio:.2g} times the largest mean "
            "eigenvalue that this sum can have, and the ridge moves coefficients to 0: give more "
            "rows, fewer columns, a larger epsilon or a larger delta, or use DP-FTRL "
            '(DPFTRLRegressor, method "ftrl")'
        )
