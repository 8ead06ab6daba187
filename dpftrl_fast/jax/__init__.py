# SPDX-License-Identifier: Apache-2.0
"""Differentially private training in JAX. Needs the extra `jax`.

The noise is a gradient transformation: :mod:`dpftrl_fast.optax`.
"""

from dpftrl_fast.jax.clipped_grad import NotPrivate, clipped_grad
from dpftrl_fast.jax.residuals import StreamState, plan_residuals
from dpftrl_fast.jax.stream import key_words, node_normals

__all__ = [
    "NotPrivate",
    "StreamState",
    "clipped_grad",
    "key_words",
    "node_normals",
    "plan_residuals",
]
