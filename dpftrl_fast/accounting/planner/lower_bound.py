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
MAX_DENSE_STEPS = 2000


def nuclear_norm(workload: Workload, steps: int) -> float | None:
    """Return the sum of the singular values of a workload's matrix, or None if it is too large.

    Examples
    --------
    >>> round(nuclear_norm(Workload(), 2), 4)  # of [[1, 0], [1, 1]]
    2.2361
    """
    if not workload.momentum and not workload.decay and workload.relative_rates(steps) is None:
        # Of running sums they are 1/(2 sin((2 i - 1) pi/(4 n + 2))), i = 1, .., n.
        angles = (2.0 * np.arange(1, steps + 1) - 1.0) * (np.pi / (4 * steps + 2))
        return float(np.sum(0.5 / np.sin(angles)))
    if steps > MAX_DENSE_STEPS:
        return None
    return float(np.linalg.svd(workload.matrix(steps), compute_uv=False).sum())
