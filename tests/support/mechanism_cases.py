# SPDX-License-Identifier: Apache-2.0
"""One mechanism of each kind, for tests that hold for all of them.

Coefficients are float32 numbers, so that noise of either dtype can be planned.
"""

from __future__ import annotations

from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Mechanism,
    Tree,
)

TOEPLITZ: dict[str, Mechanism] = {
    "identity": Identity(),
    "two taps": BandedInverse((1.0, -0.875)),
    "four taps": BandedInverse.square_root(4),
    "two buffers": BufferedToeplitz((0.96875, 0.5), (0.25, 0.125)),
    "bands": BandedToeplitz((1.0, 0.5, 0.25)),
    "two taps, in blocks": BandedInverse((1.0, -0.875), restart_every=4),
    "a buffer, in blocks": BufferedToeplitz((0.875,), (0.25,), restart_every=4),
}
MECHANISMS: dict[str, Mechanism] = {
    "tree": Tree(),
    "trees": Tree(restart_every=4, complete=True),
    **TOEPLITZ,
}
