# SPDX-License-Identifier: Apache-2.0
"""Independent implementation of the mechanism, for audits: plain Python and NumPy.

It imports nothing from the rest of the package. Five parts:

- `dpftrl_fast.reference.stream`, after docs/guarantees/stream.md: keys, blocks of ChaCha and
  normals, equal to those of the C++ core to the last bit; also one value at a time
  (`normals_python`).
- `dpftrl_fast.reference.tree`: tree noise, also in lists and loops (`TreeNoisePython`), and its
  exact variance and covariance.
- `dpftrl_fast.reference.toeplitz`: noise of Toeplitz mechanisms, and their matrices.
- `dpftrl_fast.reference.convex`, after docs/results/convex.md: clipped sums of gradients, the FTRL
  update, and whole runs, in loops over rows.
- `dpftrl_fast.reference.least_squares`, after docs/sklearn/least_squares.md: least squares by two
  trees.

The last two are not imported here.

Examples
--------
>>> from dpftrl_fast import TreeNoise, reference
>>> core = TreeNoise(4, 1.0, seed=7)
>>> plain = reference.TreeNoise(4, 1.0, seed=7)
>>> all((core.step() == plain.step()).all() for _ in range(8))
True
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
from dpftrl_fast.reference.toeplitz import ToeplitzNoise, strategy_matrix
from dpftrl_fast.reference.tree import (
    TreeNoise,
    TreeNoisePython,
    covariance,
    live_nodes,
    variance_factor,
)

__all__ = [
    "STREAM_VERSION",
    "ToeplitzNoise",
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
    "strategy_matrix",
    "variance_factor",
]
