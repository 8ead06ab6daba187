# SPDX-License-Identifier: Apache-2.0
"""The whole mechanism again, noise stream included, in plain Python and NumPy: what to audit with.

It imports nothing of the rest of the package. Four parts:

- `dpftrl_fast.reference.stream`, after docs/stream.md: `key_from_seed`, `chacha_block`,
  `chacha_blocks`, `box_muller`, `normals`; and, one value at a time, `box_muller_python` and
  `normals_python`. It agrees with the C++ core to the last bit.
- `dpftrl_fast.reference.tree`: `live_nodes`, `TreeNoise`, in lists and loops `TreeNoisePython`, and
  what they should give, `variance_factor` and `covariance`, exact.
- `dpftrl_fast.reference.convex`, after docs/convex.md: clipped sums of gradients, the FTRL update,
  and whole runs, in loops over rows.
- `dpftrl_fast.reference.least_squares`, after docs/least_squares.md: least squares by two trees.

The last two are not imported here.
"""

from dpftrl_fast.reference.stream import (
    STREAM_VERSION,
    box_muller,
    chacha_block,
    chacha_blocks,
    key_from_seed,
    normals,
)
from dpftrl_fast.reference.stream_python import box_muller_python, normals_python
from dpftrl_fast.reference.tree import (
    TreeNoise,
    TreeNoisePython,
    covariance,
    live_nodes,
    variance_factor,
)

__all__ = [
    "STREAM_VERSION",
    "TreeNoise",
    "TreeNoisePython",
    "box_muller",
    "box_muller_python",
    "chacha_block",
    "chacha_blocks",
    "covariance",
    "key_from_seed",
    "live_nodes",
    "normals",
    "normals_python",
    "variance_factor",
]
