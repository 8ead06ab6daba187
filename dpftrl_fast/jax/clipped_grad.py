# SPDX-License-Identifier: Apache-2.0
"""`clipped_grad`: sums of clipped per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpftrl_fast._validate import flag, integer, optional, positive_integer
from dpftrl_fast.jax import bounded_sums as sums


class NotPrivate(NamedTuple):
    """Per-example values of a call of `clipped_grad`: **not private**, for debugging.

    Attributes
    ----------
    values : jax.Array of shape (batch,)
        Losses.
    norms : jax.Array of shape (batch,)
        L2 norms of the gradients before the clipping, rounded up a little.
    aux : pytree
        Second results of the function with ``has_aux=True``, else None.

    Examples
    --------
    >>> def loss(w, x):
    ...     return jnp.sum(w * x)
    >>> call = clipped_grad(loss, clip_norm=1.0, return_values=True)
    >>> _, shown = call(jnp.ones(2), jnp.array([[3.0, 4.0], [0.0, 1.0]]))
    >>> shown.values.tolist(), shown.norms.round(2).tolist()
    ([7.0, 1.0], [5.0, 1.0])
    """

    values: Any
    norms: Any
    aux: Any


def clipped_grad(
    fun: Callable[..., Any],
    *,
    clip_norm: float,
    argnums: int | Sequence[int] = 0,
    batch_argnums: int | Sequence[int] = 1,
    has_aux: bool = False,
    keep_batch_dim: bool = True,
    microbatch_size: int | None = None,
    return_values: bool = False,
    addends: int = 1,
) -> Callable[..., Any]:
    """Return a function that computes the sum of clipped per-example gradients of `fun`.

    Each example's gradient, over all parameters together, is scaled to a norm of at most
    `clip_norm`, and the results are added up over the batch. With
    :func:`dpftrl_fast.optax.residual_noise` the sums become private.

    Parameters
    ----------
    fun : callable
        Loss of one example: ``fun(params, batch)`` returns a scalar, or with `has_aux` a pair of
        one and of anything.
    clip_norm : float
        L, in [2^-60, 2^60]: ``plan.clip_norm``.
    argnums : int or sequence of int
        Arguments with parameters.
    batch_argnums : int or sequence of int
        Arguments, arrays or pytrees of them, whose first axis is the batch.
    has_aux : bool
        Whether `fun` returns a second value.
    keep_batch_dim : bool
        Whether `fun` gets an example with a first axis of length 1, as models expect it.
    microbatch_size : int, optional
        Examples whose gradients are in memory at a time; by default all. The bound on the rounding
        is better with 64 than with thousands.
    return_values : bool
        Also return losses, norms and the second results: **not private**.
    addends : int
        Results that are added up to the sum of one step: the devices of a ``psum``, or calls.

    Returns
    -------
    callable
        With the arguments of `fun`, and `is_real`, an optional array of bool of shape (batch,):
        False for padding. It returns the sums, as the parameters (one argument, or a tuple of
        several) in float64 where these are, and otherwise in float32. With `return_values`, a pair
        of the sums and of a `NotPrivate`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above; in the returned function, if batches have no or different
        lengths.

    Notes
    -----
    **Formal guarantee.** If one example is replaced by zero (or marked as padding), the sums move
    by at most L in L2 norm, as exact numbers, rounding included; if it is replaced by another, by
    at most 2 L. See `dpftrl_fast.jax.bounded_sums` for the proof, in the dtypes that JAX has.
    For that the limit is a little below L: 8e-5 of it for 256 examples in microbatches of 64, 0.8 %
    for 65,536. An example whose gradient is not finite, or longer than 10^18 L, counts as zero and
    keeps its place. `fun` must not mix examples, which under ``jax.vmap`` it can do only through
    what it keeps outside.

    With users as the first axis and their examples as the second, and a loss that is a mean or sum
    over the examples, a user's gradient is clipped: user-level privacy.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from dpftrl_fast.jax import clipped_grad
    >>> def loss(w, batch):
    ...     x, y = batch
    ...     return 0.5 * jnp.sum((x @ w - y) ** 2)
    >>> x, y = jnp.array([[3.0, 4.0], [0.0, 0.1], [1.0, jnp.nan]]), jnp.array([-1.0, -1.0, 0.0])
    >>> sums = clipped_grad(loss, clip_norm=1.0)(jnp.zeros(2), (x, y))
    >>> [round(v, 2) for v in sums.tolist()]  # (3, 4) has norm 5, and the third row counts as zero
    [0.6, 0.9]
    """
    limit = sums.clip_norm_of(clip_norm)
    places = _places("argnums", argnums)
    batches = _places("batch_argnums", batch_argnums)
    if {*places} & {*batches}:
        raise ValueError(
            f"argnums and batch_argnums must be different arguments, got {argnums} and "
            f"{batch_argnums}"
        )
    single = isinstance(argnums, (int, np.integer))
    given_size = optional(positive_integer, "microbatch_size", microbatch_size)
    settings = {
        "has_aux": flag("has_aux", has_aux),
        "keep": flag("keep_batch_dim", keep_batch_dim),
        "shown": flag("return_values", return_values),
        "addends": positive_integer("addends", addends),
    }

    def clipped(*args: Any, is_real: Any = None, **kwargs: Any) -> Any:
        rows = [args[i] for i in batches]
        size = _batch_size(rows)
        real = jnp.ones(size, bool) if is_real is None else jnp.asarray(is_real)
        if real.dtype != bool or real.shape != (size,):
            raise ValueError(
                f"is_real must be bool of shape ({size},), got {real.dtype} of {real.shape}"
            )
        micro = min(given_size or size, size)
        parameters = tuple(args[i] for i in places)

        def loss(parameters: Any, rows: Any) -> Any:
            full = list(args)
            for i, value in zip(places, parameters, strict=True):
                full[i] = value
            for i, value in zip(batches, rows, strict=True):
                full[i] = jax.tree.map(lambda x: x[None], value) if settings["keep"] else value
            return fun(*full, **kwargs)

        step = _Step(loss, parameters, limit, size, micro, settings)
        total, shown = step.sums(rows, real)
        total = total[0] if single else total
        return (total, shown) if settings["shown"] else total

    return clipped


class _Step:
    """One call: the limit for its batch, and its sums.

    Parameters
    ----------
    loss : callable
        Of parameters and the rows of one example.
    parameters : tuple of pytrees
    clip_norm, size, micro, settings
        L, the examples of the batch and of a microbatch, and the rest of the arguments.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        parameters: Any,
        clip_norm: float,
        size: int,
        micro: int,
        settings: dict[str, Any],
    ) -> None:
        self._grad = jax.value_and_grad(loss, has_aux=settings["has_aux"])
        self._parameters, self._micro, self._settings = parameters, micro, settings
        leaves = jax.tree.leaves(parameters)
        if not sum(x.size for x in leaves):
            raise ValueError("expected parameters with at least one coordinate, got none")
        self._dtypes = [sums.sum_dtype(x.dtype) for x in leaves]
        unit = sums.unit_of(self._dtypes)
        self._scale = sums.power_of_two(clip_norm)
        self._inflation = sums.inflation([max(1, x.size) for x in leaves], unit)
        norm = sums.contribution_limit(
            clip_norm, size, micro, unit=unit, addends=settings["addends"]
        )
        self._limit = norm * self._scale

    def sums(self, rows: Any, real: Any) -> tuple[Any, NotPrivate | None]:
        """Return the sums over all rows, and the values that are not private if asked for."""
        size = real.shape[0]
        count = -(-size // self._micro)
        padding = count * self._micro - size

        def cut(x: Any) -> Any:
            padded = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1))
            return padded.reshape(count, self._micro, *x.shape[1:])

        def add(carry: Any, part: Any) -> Any:
            total, low = carry
            found, shown = self._microbatch(*part)
            pairs = [sums.add_kept(*x) for x in zip(total, low, found, strict=True)]
            return tuple(list(x) for x in zip(*pairs, strict=True)), shown

        zeros = [
            jnp.zeros(x.shape, dtype)
            for x, dtype in zip(jax.tree.leaves(self._parameters), self._dtypes, strict=True)
        ]
        parts = jax.tree.map(cut, (rows, real))
        (total, low), shown = jax.lax.scan(add, (zeros, zeros), parts)
        tree = jax.tree.structure(self._parameters)
        total = jax.tree.unflatten(tree, [a + b for a, b in zip(total, low, strict=True)])
        if shown is not None:
            shown = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:size], shown)
        return total, shown

    def _microbatch(self, rows: Any, real: Any) -> tuple[list[Any], NotPrivate | None]:
        found, gradients = jax.vmap(self._grad, in_axes=(None, 0))(self._parameters, rows)
        values, aux = found if self._settings["has_aux"] else (found, None)
        leaves = [
            x.astype(dtype)
            for x, dtype in zip(jax.tree.leaves(gradients), self._dtypes, strict=True)
        ]
        norms = jax.vmap(lambda *x: sums.joint_norm(x, self._scale))(*leaves)
        norms = norms * _up(self._inflation, norms.dtype)
        counted = jnp.isfinite(norms) & real
        factors = jnp.minimum(_down(self._limit, norms.dtype) / norms, 1)

        def clipped(x: Any) -> Any:
            shape = (-1,) + (1,) * (x.ndim - 1)
            factor = factors.astype(x.dtype).reshape(shape)
            # A product with 0 would be NaN where the gradient is.
            return sums.tree_sum(jnp.where(counted.reshape(shape), x * factor, 0))

        shown = None
        if self._settings["shown"]:
            shown = NotPrivate(values, norms / np.array(self._scale, norms.dtype), aux)
        return [clipped(x) for x in leaves], shown


def _up(x: float, dtype: Any) -> Any:
    near = np.dtype(dtype).type(x)
    return near if float(near) >= x else np.nextafter(near, np.dtype(dtype).type(np.inf))


def _down(x: float, dtype: Any) -> Any:
    near = np.dtype(dtype).type(x)
    return near if float(near) <= x else np.nextafter(near, np.dtype(dtype).type(0))


def _places(name: str, value: Any) -> tuple[int, ...]:
    places = value if isinstance(value, (list, tuple)) else (value,)
    found = tuple(integer(name, place, 0) for place in places)
    if not found or len({*found}) < len(found):
        raise ValueError(f"{name} must be one or several different arguments, got {value}")
    return found


def _batch_size(rows: Any) -> int:
    sizes = {np.shape(x)[:1] for x in jax.tree.leaves(rows)}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        raise ValueError(
            "arguments of batch_argnums must have one length of their first axis, at least 1, got "
            f"{sorted(size[0] if size else 'a scalar' for size in sizes) if sizes else 'no arrays'}"
        )
    ((size,),) = sizes
    return int(size)
