# SPDX-License-Identifier: Apache-2.0
"""Differentially private training in JAX. Needs the extra `jax`."""
