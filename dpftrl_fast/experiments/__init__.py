# SPDX-License-Identifier: Apache-2.0
"""Theory beside practice: the experiments of ``dpftrl-fast experiment``, on public data.

One file an experiment. Noise follows from seeds, so that every number can be made again: what these
runs give out is reproducible, not private.
"""
