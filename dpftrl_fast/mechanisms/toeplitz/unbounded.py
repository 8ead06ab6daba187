# SPDX-License-Identifier: Apache-2.0
"""Numbers of the mechanism for a stream without a declared end.

Found by `mechanisms.toeplitz.long_run.search`, and rounded to five digits; docs/horizon.md has the
derivation. The slowest of the ten buffers forgets in 10^13 steps.
"""

from __future__ import annotations

#: 1 - decay of each buffer.
SLOWNESS = (
    0.14266,
    0.009483,
    0.00028971,
    1.1921e-05,
    4.8436e-07,
    2.0809e-08,
    1.5411e-09,
    7.6368e-11,
    3.2926e-12,
    8.5598e-14,
)
#: Scale of each buffer.
SCALES = (
    0.29429,
    0.098016,
    0.010241,
    0.0019121,
    0.00034152,
    5.8787e-05,
    1.4212e-05,
    3.1859e-06,
    7.8795e-07,
    1.3267e-07,
)
