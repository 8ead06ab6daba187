# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL for Optax: the noise of a plan as a gradient transformation. Needs the extra `jax`."""

from dpftrl_fast.optax.residual_noise import (
    ResidualNoise,
    ResidualNoiseState,
    residual_noise,
)

__all__ = ["ResidualNoise", "ResidualNoiseState", "residual_noise"]
