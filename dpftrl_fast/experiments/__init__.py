# SPDX-License-Identifier: Apache-2.0
"""Theory beside practice: the experiments of ``dpftrl-fast experiment``, on public data.

Noise is derived from seeds, so that every number can be reproduced: the results of these runs are
reproducible, not private.
"""
