# SPDX-License-Identifier: Apache-2.0
"""Calls of a host object from compiled functions: by XLA's FFI, or by a callback of JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from dpftrl_fast._validate import Array
from dpftrl_fast.jax import ffi as xla


class Caller:
    """Calls of a host object that are never dropped or repeated.

    Their place in a program is given by their arguments: one of them must come from the call
    before.

    Parameters
    ----------
    host : object with `called`
        Its first result is an int32 that is not negative.
    axis_name : str or None
        Axis of a ``jax.shard_map``: its first device calls, and all get the results.
    ffi : bool
        By XLA's FFI, on the CPU. Otherwise by a callback that copies.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> class Counting:
    ...     def called(self, arguments, results):
    ...         results[0][...] = arguments[0] + 1
    >>> caller, like = Caller(Counting()), jax.ShapeDtypeStruct((), jnp.int32)
    >>> int(jax.jit(lambda t: caller([like], t)[0])(jnp.int32(6)))
    7
    """

    def __init__(self, host: xla.Called, *, axis_name: str | None = None, ffi: bool = True) -> None:
        self._host, self._axis_name, self._ffi = host, axis_name, ffi
        self._first = _First(host)
        self._rest = _Rest(self._first)

    def __call__(
        self,
        results: Sequence[jax.ShapeDtypeStruct],
        *arguments: Any,
        reused: dict[int, int] | None = None,
    ) -> Sequence[Any]:
        """Return what the object makes of the arguments, within a compiled function or outside.

        Parameters
        ----------
        results : sequence of jax.ShapeDtypeStruct
        *arguments : jax.Array
        reused : dict of int to int, optional
            Arguments whose memory may be that of a result, by their places: the same shape and
            dtype.

        Raises
        ------
        TypeError
            Under `jax.vmap`.
        ValueError
            If the arguments differ over the axis.
        """
        if self._axis_name is None:
            return self._called(self._host, results, arguments, reused or {})
        for x in arguments:
            if self._axis_name in _varying(x):
                raise ValueError(
                    "expected sums that are the same on all devices of the axis "
                    f"{self._axis_name!r}: add them up with jax.lax.psum(sums, "
                    f"{self._axis_name!r}) first"
                )

        def first(*given: Any) -> Sequence[Any]:
            return self._called(self._first, results, given, reused or {})

        def zeros(*_: Any) -> Sequence[Any]:
            return [jax.numpy.zeros(x.shape, x.dtype) for x in results]

        # The others add zeros, which changes no bit.
        here = jax.lax.axis_index(self._axis_name) == 0
        made = jax.lax.cond(here, first, zeros, *arguments)
        step, *rest = jax.lax.psum(made, self._axis_name)
        # An error of one device alone would leave the others waiting for it, and end the process.
        (step,) = self._called(self._rest, results[:1], (step,), {})
        return step, *rest

    def _called(
        self,
        host: xla.Called,
        results: Sequence[jax.ShapeDtypeStruct],
        arguments: Sequence[Any],
        reused: dict[int, int],
    ) -> Sequence[Any]:
        def call(*given: Any) -> Sequence[Any]:
            if self._ffi:
                return xla.call(xla.number_of(host), results, *given, reused=reused)
            return by_callback(host, results, *given)

        def refuse(size: int, batched: Any, *given: Any) -> Any:
            raise TypeError(
                f"expected a call outside of jax.vmap, got one for {size} cases: each would need "
                "noise of its own, with a plan of its own"
            )

        unbatched: Any = jax.custom_batching.custom_vmap(call)
        unbatched.def_vmap(refuse)
        made: Sequence[Any] = unbatched(*arguments)
        return made


class _First:
    """Object of the first device: an error becomes a negative number, for all devices to raise."""

    def __init__(self, host: xla.Called) -> None:
        self._host = host
        self.refusal: Exception | None = None

    def called(self, arguments: Sequence[Array], results: Sequence[Array]) -> None:
        try:
            self._host.called(arguments, results)
        except Exception as error:
            self.refusal = error
            for result in results:
                result[...] = 0
            results[0][...] = -1


class _Rest:
    """Object of all devices: raise the error of the first one."""

    def __init__(self, first: _First) -> None:
        self._first = first

    def called(self, arguments: Sequence[Array], results: Sequence[Array]) -> None:
        if not (arguments[0] >= 0).all():
            assert self._first.refusal is not None
            raise self._first.refusal
        results[0][...] = arguments[0]


def _varying(x: Any) -> Any:
    """Return the axes over which a value differs, as far as JAX knows (``check_vma=True``)."""
    kind = jax.typeof(x)
    return getattr(getattr(kind, "manual_axis_type", kind), "varying", getattr(kind, "vma", ()))


def by_callback(
    host: xla.Called, results: Sequence[jax.ShapeDtypeStruct], *arguments: Any
) -> Sequence[Any]:
    """Call by `jax.experimental.io_callback`, with new arrays for the results of each call."""
    dtypes = [np.dtype(x.dtype) for x in arguments]

    def callback(*given: Any) -> list[Array]:
        if [x.dtype for x in given] != dtypes:  # of a thread without jax.enable_x64
            raise TypeError(
                f"expected arguments of {[*map(str, dtypes)]}, got "
                f"{[str(x.dtype) for x in given]}: set jax_enable_x64 for the process"
            )
        made = [np.empty(x.shape, x.dtype) for x in results]
        host.called([np.asarray(x) for x in given], made)
        return made

    made: Sequence[Any] = io_callback(callback, list(results), *arguments)
    return made
