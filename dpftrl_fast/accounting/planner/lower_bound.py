# SPDX-License-Identifier: Apache-2.0
"""Nuclear norms of workloads, for a lower bound of the error of every mechanism.

If A = B C, ||A||_nuclear <= ||B||_F ||C||_F. With k uses that can lie at evenly spread places the
mean over the places of the sensitivity is at least k ||C||_F^2/n, so that

    sqrt(zeta) rms >= sqrt(k) ||A||_nuclear/n.
"""

from __future__ import annotations

import numpy as np

from dpftrl_fast.mechanisms.workload import Workload

#: The most steps for which singular values are computed.
MAX_SPECTRUM_STEPS = 5000


def nuclear_norm(workload: Workload, steps: int) -> float | None:
    """Return the sum of the singular values of a workload's matrix A, to 5 digits.

    None for more than 5,000 steps, unless the workload is that of running sums, and where a
    learning rate is 0.

    Examples
    --------
    >>> round(nuclear_norm(Workload(), 2), 4)  # of [[1, 0], [1, 1]]
    2.2361
    """
    momentum, decay, rates = workload.momentum, workload.decay, workload.relative_rates(steps)
    if not momentum and not decay and rates is None:
        # Of running sums they are 1/(2 sin((2 i - 1) pi/(4 n + 2))), i = 1, .., n.
        angles = (2.0 * np.arange(1, steps + 1) - 1.0) * (np.pi / (4 * steps + 2))
        return float(np.sum(0.5 / np.sin(angles)))
    if steps > MAX_SPECTRUM_STEPS or (rates is not None and not rates.all()):
        return None
    from scipy.linalg import eigvals_banded

    # A^-1 has three diagonals: (1 - momentum) x_t = V_t - momentum V_(t-1) + decay U_(t-1) with
    # V_t = (U_t - U_(t-1))/rate_t. The singular values of A are eigenvalues of A^-T A^-1 to the
    # power -1/2.
    each = 1.0 / (np.ones(steps) if rates is None else rates)
    below = np.zeros((3, steps))  # below[k, i] at row i + k, column i
    below[0] = each
    below[1, :-1] = decay - each[1:] - momentum * each[:-1]
    below[2, :-2] = momentum * each[1:-1]
    below /= 1.0 - momentum
    square = np.zeros((3, steps))
    for away in range(min(3, steps)):
        for k in range(min(3, steps) - away):
            columns = np.arange(steps - away - k)
            square[away, columns] += below[away + k, columns] * below[k, columns + away]
    values = eigvals_banded(square[: min(3, steps)], lower=True)
    return float(np.sum(values**-0.5)) if values[0] > 0 else None
