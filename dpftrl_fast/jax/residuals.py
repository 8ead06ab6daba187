# SPDX-License-Identifier: Apache-2.0
"""Correlated noise in pure `jax.numpy`: steps of taps, bands and buffers, as functions of a state.

The recurrences are those of `dpftrl_fast.reference.toeplitz`, in its order of operations; each
product is rounded by itself (`dpftrl_fast.jax.stream.times`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpftrl_fast._validate import choice, integer, shown
from dpftrl_fast.jax.stream import KIND, normals_of, times, zero_of
from dpftrl_fast.mechanisms import ToeplitzLayout
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_PURPOSE = 3  # running sums


class StreamState(NamedTuple):
    """State of `plan_residuals`: **a secret**, since it has noise that was added to sums.

    Attributes
    ----------
    step : jax.Array of uint32
        Steps taken.
    kept : jax.Array of float32, shape (k, size)
        The k vectors that a step reads: the latest z or x, latest first, or the buffers.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, SinglePass
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(9), BufferedToeplitz([0.5], [0.25]))
    >>> init, _ = plan_residuals(plan, 3)
    >>> init().kept.shape
    (1, 3)
    """

    step: Any
    kept: Any


def plan_residuals(
    plan: PrivacyPlan, size: int, *, start: int = 0, rounds: int = 12
) -> tuple[Callable[[], StreamState], Callable[[Any, StreamState], tuple[Any, StreamState]]]:
    """Return two functions that make the noise of a plan in pure JAX, step by step.

    For devices without a host beside them. The bits are those of ``plan.noise(size).residual()``
    in float32, checked on the CPU under ``jax.jit`` and ``jax.lax.scan``.

    Parameters
    ----------
    plan : PrivacyPlan
        With taps, bands, buffers or independent noise, without restarts.
    size, start : int
        The range of global coordinates.
    rounds : {8, 12, 20}
        Of ChaCha.

    Returns
    -------
    init : callable
        ``init()`` returns the `StreamState` before the first step.
    residual : callable
        ``residual(key, state)``, with `dpftrl_fast.jax.key_words` of 32 secret bytes, returns the
        noise of the next step's sum and the state after it.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    The functions keep no record: **the caller** must use each state once, take no more than
    ``plan.steps`` steps (later ones are NaN), keep key and states secret, and round noisy sums to
    the plan's grid. :func:`dpftrl_fast.optax.residual_noise` does all of that.

    Examples
    --------
    >>> import jax
    >>> from dpftrl_fast import PrivacyPlan, SinglePass
    >>> from dpftrl_fast.jax import key_words, plan_residuals
    >>> from dpftrl_fast.mechanisms import BufferedToeplitz
    >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(9), BufferedToeplitz([0.5], [0.25]))
    >>> init, residual = plan_residuals(plan, 1000)
    >>> key = bytes(range(32))  # for a release: secrets.token_bytes(32)
    >>> x, state = jax.jit(residual)(key_words(key), init())
    >>> bool((x == plan.noise(1000, key=key).residual()).all())
    True
    """
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    layout = plan.layout
    if not isinstance(layout, ToeplitzLayout) or layout.count != 1:
        raise ValueError(
            "plan must have taps, bands, buffers or independent noise without restarts, got "
            f"{shown(plan.mechanism)}"
        )
    count = integer("size", size, 1)
    first = integer("start", start, 0)
    choice("rounds", rounds, (8, 12, 20))
    if layout.steps > 2**31:
        raise ValueError(f"plan must have at most 2^31 steps, got {layout.steps}")
    std = plan.noise(1, rounds=rounds).std  # refuses coefficients that are not in float32
    kind, numbers, scales = layout.mechanism.engine
    length = len(numbers) if kind == "buffers" else len(numbers) - 1

    def init() -> StreamState:
        return StreamState(jnp.uint32(0), jnp.zeros((length, count), jnp.float32))

    def residual(key: Any, state: StreamState) -> tuple[Any, StreamState]:
        t, kept = state
        counter = jnp.stack([2 * t + 1, t >> 31, jnp.uint32((256 * _PURPOSE + KIND) << 16)])
        unscaled = normals_of(key, counter, start=first, size=count, rounds=rounds)
        zero = zero_of(unscaled)
        z = times(std, unscaled, zero)
        x = z
        if kind == "buffers":
            for scale, buffer in zip(scales, kept, strict=True):
                x = jnp.where(t > 0, x - times(scale, buffer, zero), x)
            moved = [times(decay, b, zero) + x for decay, b in zip(numbers, kept, strict=True)]
            following = jnp.where(t > 0, jnp.stack(moved), x)
        else:
            sign = 1.0 if kind == "taps" else -1.0
            for j, number in enumerate(numbers[1:], 1):
                x = jnp.where(t >= j, x + times(sign * number, kept[j - 1], zero), x)
            if kind == "bands" and numbers[0] != 1:
                # Of a constant, XLA takes the reciprocal.
                x = x / times(numbers[0], jnp.ones_like(x), zero)
            latest = z if kind == "taps" else x
            following = jnp.concatenate([latest[None], kept])[:length]
        x = jnp.where(t < np.uint32(layout.steps), x, jnp.nan)
        return x, StreamState(t + 1, following)

    return init, residual
