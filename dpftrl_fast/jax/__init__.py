# SPDX-License-Identifier: Apache-2.0
"""Differentially private training in JAX. Needs the extra `jax`.

The noise is a gradient transformation: :mod:`dpftrl_fast.optax`.
"""

from dpftrl_fast.jax.clipped_grad import NotPrivate, clipped_grad

__all__ = ["NotPrivate", "clipped_grad"]
