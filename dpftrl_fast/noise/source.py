# SPDX-License-Identifier: Apache-2.0
"""`NoiseSource`: what every source of correlated noise for prefix sums does alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast._validate import choice, flag, float_dtype, integer
from dpftrl_fast.noise.arguments import (
    MAX_COORDINATES,
    MAX_STEPS,
    MAX_THREADS,
    Memory,
    memory_setting,
    std_in,
    usable_cores,
)
from dpftrl_fast.noise.keys import Seed, checked_key, key_of_seed
from dpftrl_fast.noise.outputs import writable_view
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.noise.state import Position, StateFormat, position_from_state, state_of

STREAM_VERSION: int = _core.STREAM_VERSION
"""Version of the noise stream: the same version, key and position give the same bits.

Examples
--------
>>> from dpftrl_fast import build_info
>>> STREAM_VERSION == build_info()["stream_version"]
True
"""

_Out = TypeVar("_Out")


class NoiseSource(ABC):
    """Base of `TreeNoise` and `ToeplitzNoise`: arguments, steps, outputs, states.

    A subclass names its compiled core by dtype, the numbers of its purposes, and the format of its
    states. A *block* is a stretch of steps with noise of its own: one tree, or the steps between
    two restarts.
    """

    _cores: ClassVar[Mapping[str, Any]]
    _purposes: ClassVar[Mapping[str, int]]
    _format: ClassVar[StateFormat]

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: Seed,
        memory: Memory,
        dtype: Literal["float32", "float64"],
        rounds: int,
        threads: int | None,
        offset: int,
        purpose: str,
        key: bytes | None,
    ) -> None:
        self._size = integer("size", size, 1, MAX_COORDINATES)
        self._dtype = float_dtype(dtype)
        self._std = std_in(std, self._dtype)
        self._memory = memory_setting(memory)
        self._rounds = integer("rounds", rounds, 0)
        if self._rounds not in (8, 12, 20):
            raise ValueError(f"rounds must be 8, 12 or 20, got {self._rounds}")
        self._threads = min(usable_cores(), MAX_THREADS)
        if threads is not None:
            self._threads = integer("threads", threads, 1, MAX_THREADS)
        self._offset = integer("offset", offset, 0, MAX_COORDINATES)
        self._purpose = choice("purpose", purpose, tuple(self._purposes))
        if key is not None and seed is not None:
            raise ValueError("expected a seed or a key, got both")
        self._reproducible = seed is not None
        self._node_was_used = False
        self._process = process_mark()
        self._key = key_of_seed(seed) if key is None else checked_key(key)
        self._core = self._make_core(self._key)

    def _make_core(self, key: bytes) -> Any:
        return self._cores[self._dtype](
            key=key, threads=self._threads, target=None, **self._core_settings()
        )

    def _core_settings(self) -> dict[str, Any]:
        vectors = {"stored": -1, "regenerate": 0}
        return {
            "size": self._size,
            "std": self._std,
            "rounds": self._rounds,
            "purpose": self._purposes[self._purpose],
            "offset": self._offset,
            "memory": vectors[self._memory] if isinstance(self._memory, str) else self._memory,
        }

    def _view(self, out: Any, rows: int = 1) -> Any:
        """Return the buffer that the core writes `rows` vectors to: the memory of `out`."""
        return writable_view(out)

    @overload
    def step(self, out: None = None) -> NDArray[Any]: ...
    @overload
    def step(self, out: _Out) -> _Out: ...
    def step(self, out: Any = None) -> Any:
        """Advance one step and return its noise: carry + b_t.

        Parameters
        ----------
        out : array_like, optional
            Where to write: a writable C-contiguous ndarray of the dtype with `size` elements (any
            shape), a CPU tensor with ``__dlpack__``, or a buffer. Never copied.

        Returns
        -------
        ndarray of shape (size,), or `out`
            The noise to add to the sum of everything up to this step.

        Raises
        ------
        TypeError, ValueError
            If `out` cannot take the noise. The step is then not taken.
        """
        self._refuse_after_fork()
        if out is None or type(out) is np.ndarray:
            return self._core.step(out)
        self._core.step(self._view(out))
        return out

    @overload
    def residual(self, out: None = None) -> NDArray[Any]: ...
    @overload
    def residual(self, out: _Out) -> _Out: ...
    def residual(self, out: Any = None) -> Any:
        """Advance one step and return its noise minus the noise last returned.

        Adding residuals to the gradients of SGD with rate 1/lambda is FTRL with the noise of `step`
        (Kairouz et al. 2021, theorem 5.1 and its proof), across restarts too. Parameters, return
        value and errors as for `step`.
        """
        self._refuse_after_fork()
        if out is None or type(out) is np.ndarray:
            return self._core.residual(out)
        self._core.residual(self._view(out))
        return out

    @overload
    def next_steps(self, n: int, out: None = None) -> NDArray[Any]: ...
    @overload
    def next_steps(self, n: int, out: _Out) -> _Out: ...
    def next_steps(self, n: int, out: Any = None) -> Any:
        """Advance n steps and return the noise of each, as n calls of `step` do.

        Parameters
        ----------
        n : int
            Steps, >= 0.
        out : array_like, optional
            As for `step`, with n times `size` elements.

        Returns
        -------
        ndarray of shape (n, size), or `out`
            Row i has the bits that the call number i + 1 of `step` would return.

        Raises
        ------
        TypeError, ValueError
            If `out` cannot take the noise, or there are no n steps left. No step is then taken.

        Notes
        -----
        Ctrl-C may leave the position after any of the steps. The rows up to it then have their
        noise; those after it do not, since it comes again.

        Much faster than calls of `step` for short vectors: of trees, those of up to 8 KiB with
        ``memory="stored"``.

        Examples
        --------
        >>> from dpftrl_fast import TreeNoise
        >>> rows = TreeNoise(2, 1.0, seed=0).next_steps(3)
        >>> one = TreeNoise(2, 1.0, seed=0)
        >>> bool((rows == [one.step() for _ in range(3)]).all()), rows.shape
        (True, (3, 2))
        """
        self._refuse_after_fork()
        count = integer("n", n, 0)
        self._check_steps_left(count)
        rows = self._new_rows(count) if out is None else self._view(out, count)
        self._core.steps(rows, count, 0, 0)  # refuses what cannot be written to
        self._take_rows(rows, count)
        return rows if out is None else out

    def _check_steps_left(self, count: int) -> None:
        if count > MAX_STEPS - self.t:
            raise ValueError(
                f"n must be at most {MAX_STEPS - self.t}, the steps that are left of this "
                f"{self._format.block}, got {count}"
            )

    def _new_rows(self, count: int) -> Any:
        """Return room for the noise of so many steps."""
        return np.empty((count, self._size), self._dtype)

    def _take_rows(self, rows: Any, count: int) -> None:
        """Take so many steps, the noise of each to its row."""
        self._core.steps(rows, count, 0, count)

    def _refuse_after_fork(self) -> None:
        if not self._reproducible and self._process != process_mark():
            raise RuntimeError(
                "this process was forked from one that holds the same key: both would add the "
                "same noise to different sums. Make the source after the fork, or load a state "
                "here if the other process has stopped"
            )

    def prefix(self, t: int, out: Any = None) -> Any:
        """Return the noise of the present block at step t, without the carry. Changes nothing.

        Parameters
        ----------
        t : int
            Any step in [1, 2**46], before or after the present one.
        out : array_like, optional
            As for `step`.

        Returns
        -------
        ndarray of shape (size,), or `out`

        Raises
        ------
        ValueError
            If t is out of range.
        """
        return self._into(self._core.prefix, out, integer("t", t, 1, MAX_STEPS))

    def _into(self, call: Any, out: Any, *args: int) -> Any:
        if out is None or type(out) is np.ndarray:
            return call(*args, out)
        call(*args, self._view(out))
        return out

    def advance_to(self, t: int) -> None:
        """Move to step t of the present block without making its noise.

        Parameters
        ----------
        t : int
            In [self.t, 2**46].

        Raises
        ------
        ValueError
            If t is before the present step: a step is never taken twice.
        """
        self._core.advance_to(integer("t", t, self.t, MAX_STEPS))

    @property
    def t(self) -> int:
        """Steps of the present block."""
        return int(self._core.t)

    @abstractmethod
    def current(self) -> Any:
        """Return the noise in the running sum, an array of shape (size,)."""

    @property
    @abstractmethod
    def _block(self) -> int:
        """Restarts so far."""

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._size

    @property
    def std(self) -> float:
        """Standard deviation of one node, as rounded to the dtype."""
        return self._std

    @property
    def memory(self) -> Memory:
        """The memory setting."""
        return self._memory

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the noise."""
        return np.dtype(self._dtype)

    @property
    def rounds(self) -> int:
        """ChaCha rounds."""
        return self._rounds

    @property
    def threads(self) -> int:
        """Most threads that a call uses."""
        return self._threads

    @property
    def offset(self) -> int:
        """Global coordinate of element 0."""
        return self._offset

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses it can take the noise away."""
        return self._reproducible

    @property
    def allocated_vectors(self) -> int:
        """Vectors of `size` that are allocated now."""
        return int(self._core.allocated_vectors)

    def state_dict(self, *, key: bool = True) -> dict[str, Any]:
        """Return the state: **a secret**, since with the key the noise can be taken away.

        Parameters
        ----------
        key : bool, optional
            False leaves out the key and every vector. The rest is a position, for objects that have
            the key already.

        Returns
        -------
        dict
            Numbers, strings and lists that JSON can hold, and under "vectors" copies of the arrays
            that are expensive to recompute; none in regenerate mode, whose state is a few hundred
            bytes.
        """
        with_key = flag("key", key)
        core = self._core
        if with_key and self._saves_vectors:
            # Of one moment: a step may come between two calls.
            t, ends, last_block, last_t, vectors = core.saved()
        else:
            (t, ends, last_block, last_t), vectors = core.position(), []
        position = Position(t, ends, last_block, last_t, self._reproducible, self._node_was_used)
        state = state_of(self._format, self._identity(), position, self._key if with_key else None)
        if vectors:
            state["vectors"] = vectors
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of `state_dict`, with the `memory` and `threads` of this object.

        Two objects that resume from one state make the same noise: added to two different sums that
        are both released, it protects neither.

        Parameters
        ----------
        state : mapping
            Of a source that was made with the same arguments but `memory` and `threads`.
        allow_fork : bool, optional
            True allows going back to an earlier step of the same noise. Sums with the noise of the
            steps in between must not have been released: otherwise the guarantee is void.

        Raises
        ------
        ValueError, TypeError
            If the state is of another version, stream or mechanism, or broken, or (but for a seeded
            object) lies behind this object's own position; nothing is changed.
        """
        fork = flag("allow_fork", allow_fork)
        position, key = position_from_state(self._format, state, self._identity())
        self._check_position(position)
        word = self._format.block
        goes_back = (len(position.ends), position.t) < (self._block, self.t)
        if goes_back and key in (None, self._key) and not (fork or self._reproducible):
            raise ValueError(
                f"state is at step {position.t} of {word} {len(position.ends)}, behind this object "
                f"at step {self.t} of {word} {self._block}: its noise would be used twice. "
                "allow_fork=True takes it all the same and voids the guarantee"
            )
        core = self._make_core(self._key if key is None else key)
        core.set_position(
            position.t, position.ends, position.last_tree, position.last_t, list(state["vectors"])
        )
        if key is not None:
            self._key, self._reproducible = key, position.reproducible
        self._core, self._node_was_used = core, position.node_used
        self._process = process_mark()

    def _check_position(self, position: Position) -> None:  # noqa: B027 - a hook
        """Refuse positions that a subclass does not allow; this class takes any."""

    @property
    def _saves_vectors(self) -> bool:
        """True if a state with the key holds vectors."""
        return self._memory != "regenerate"

    def _identity(self) -> dict[str, Any]:
        # Two sources must share these for one to resume where the other stopped.
        return {
            "stream_version": STREAM_VERSION,
            "size": self._size,
            "std": self._std,
            **self._own_identity(),
            "dtype": self._dtype,
            "rounds": self._rounds,
            "purpose": self._purpose,
            "offset": self._offset,
        }

    @abstractmethod
    def _own_identity(self) -> dict[str, Any]:
        """Return the part of the identity that belongs to the class."""

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds a secret key and is not pickled: see state_dict"
        )
