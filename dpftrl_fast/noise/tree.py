# SPDX-License-Identifier: Apache-2.0
"""`TreeNoise`: correlated Gaussian noise for prefix sums, from the C++ core."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast._validate import choice, flag, float_dtype, integer
from dpftrl_fast.mechanisms import Variant
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
from dpftrl_fast.noise.state import Position, position_from_state, state_of

STREAM_VERSION: int = _core.STREAM_VERSION

_PURPOSES = {"tree": 0, "covariance": 1, "clip-norm": 2}
_Core: TypeAlias = _core.TreeFloat32 | _core.TreeFloat64
_CORES: dict[str, type[_Core]] = {
    "float32": _core.TreeFloat32,
    "float64": _core.TreeFloat64,
}
_Out = TypeVar("_Out")

# How many forks lie between the first process and this one.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class TreeNoise:
    """Gaussian noise for prefix sums by binary-tree aggregation.

    A source of noise without a privacy statement. At step t the prefix noise b_t is a sum over at
    most log2(t) + 1 tree nodes, each an independent N(0, std^2) vector, so the noise of a running
    sum grows with log t and not with t. Every number is a pure function of the key, the node and
    the coordinate (docs/stream.md): the same bits on every machine, for any `memory`, `threads` and
    split of the coordinates.

    Parameters
    ----------
    size : int
        Number of coordinates, at least 1.
    std : float
        Standard deviation of one node's noise: clip norm times noise multiplier (L sigma). Finite,
        > 0, rounded to `dtype`.
    seed : None, int or bytes, optional
        None takes a 256-bit key from the operating system. A seed is for tests: results are then
        `reproducible`, not private, since whoever guesses it can take the noise away.
    variant : {"honaker", "vanilla"}, optional
        "vanilla" sums the live nodes: variance std^2 * popcount(t). "honaker" averages each node
        with its subtree (Honaker 2015, the bottom-up estimator): about half the variance or less.
    memory : {"stored", "regenerate"} or int, optional
        "stored" keeps at most floor(log2 t) + 2 vectors of `size`. "regenerate" keeps one and makes
        the rest again from the key: below 2 nodes a step for vanilla, about sqrt(t) nodes a step
        for Honaker. An integer m >= 1 keeps at most m: for Honaker the m highest levels (each lower
        level doubles the work), for vanilla the m latest partial sums. The noise of earlier trees,
        after a restart, and the noise that `residual` last returned take one more vector each.
    dtype : {"float32", "float64"}, optional
        Of the noise. The two streams are unrelated.
    rounds : {12, 8, 20}, optional
        ChaCha rounds; 20 is RFC 8439's.
    threads : int, optional
        At least 1; default all cores that this process may use.
    offset : int, optional
        Global coordinate of element 0: processes that hold parts of one vector pass their offsets
        and get slices of one noise vector.
    purpose : {"tree", "covariance", "clip-norm"}, optional
        Streams of different purposes under one key are unrelated.
    key : bytes, optional
        32 secret bytes from a cryptographic source (``secrets.token_bytes(32)``), instead of a
        seed: for processes that hold parts of one vector. No two other vectors may share a key.

    Attributes
    ----------
    t : int
        Steps of the present tree.
    tree : int
        Restarts so far.
    reproducible : bool
        True when a seed was given: not private.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    See Also
    --------
    dpftrl_fast.PrefixSum : private running sums with their epsilon.
    dpftrl_fast.PrivacyPlan : makes the noise and states the epsilon.
    dpftrl_fast.reference : the same in plain NumPy.

    Notes
    -----
    Kairouz et al. 2021 (arXiv 2103.00039), algorithm 1 and appendix B; Honaker 2015. An object may
    be used from several threads: calls take turns. A copy made by a fork refuses to continue.
    Long calls can be interrupted with Ctrl-C; the position is then unchanged.

    **Formal guarantee.** None by itself: this class states no epsilon, since it does not know the
    clip norm or who takes part. :class:`dpftrl_fast.PrivacyPlan` makes noise with an epsilon. The
    key must stay secret, and the noise of a step must be added to one sum only. Not covered:
    attacks on the low-order bits of floating-point noise (Mironov 2012), see docs/stream.md.

    Examples
    --------
    >>> import dpftrl_fast as dpf
    >>> noise = dpf.TreeNoise(3, std=1.0, seed=0)  # a seed is for tests
    >>> b1 = noise.step()
    >>> b2 = noise.step()
    >>> bool((noise.prefix(1) == b1).all()), noise.t
    (True, 2)
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: Seed = None,
        variant: Variant = "honaker",
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        rounds: int = 12,
        threads: int | None = None,
        offset: int = 0,
        purpose: Literal["tree", "covariance", "clip-norm"] = "tree",
        key: bytes | None = None,
    ) -> None:
        self._size = integer("size", size, 1, MAX_COORDINATES)
        self._dtype = float_dtype(dtype)
        self._std = std_in(std, self._dtype)
        self._variant = choice("variant", variant, ("vanilla", "honaker"))
        self._memory = memory_setting(memory)
        self._rounds = integer("rounds", rounds, 0)
        if self._rounds not in (8, 12, 20):
            raise ValueError(f"rounds must be 8, 12 or 20, got {self._rounds}")
        self._threads = min(usable_cores(), MAX_THREADS)
        if threads is not None:
            self._threads = integer("threads", threads, 1, MAX_THREADS)
        self._offset = integer("offset", offset, 0, MAX_COORDINATES)
        self._purpose = choice("purpose", purpose, tuple(_PURPOSES))
        if key is not None and seed is not None:
            raise ValueError("expected a seed or a key, got both")
        self._reproducible = seed is not None
        self._node_used = False
        self._forks = _forks
        self._key = key_of_seed(seed) if key is None else checked_key(key)
        self._core = self._make_core(self._key)

    def _make_core(self, key: bytes) -> _Core:
        return _CORES[self._dtype](
            key=key, threads=self._threads, target=None, **self._core_settings()
        )

    def _core_settings(self) -> dict[str, Any]:
        vectors = {"stored": -1, "regenerate": 0}
        return {
            "size": self._size,
            "std": self._std,
            "rounds": self._rounds,
            "purpose": _PURPOSES[self._purpose],
            "offset": self._offset,
            "variant": self._variant,
            "memory": vectors[self._memory] if isinstance(self._memory, str) else self._memory,
        }

    def _view(self, out: Any) -> Any:
        """Return the buffer that the core writes to, which shares the memory of `out`."""
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

    def _refuse_after_fork(self) -> None:
        if self._forks != _forks and not self._reproducible:
            raise RuntimeError(
                "this process was forked from one that holds the same key: both would add the "
                "same noise to different sums. Make the TreeNoise after the fork, or load a state "
                "here if the other process has stopped"
            )

    def prefix(self, t: int, out: Any = None) -> Any:
        """Return b_t of the present tree, without the carry of earlier ones. Changes nothing.

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

    def node(self, level: int, index: int, out: Any = None) -> Any:
        """Return one node's noise, N(0, std^2).

        Node (level, index) covers leaves index * 2**level + 1 .. (index + 1) * 2**level. For tests
        and audits. A run that reads single nodes releases more than its prefixes; `node_used`
        records it.

        Parameters
        ----------
        level, index : int
            level in [0, 46], index in [0, 2**(46 - level)).
        out : array_like, optional
            As for `step`.

        Returns
        -------
        ndarray of shape (size,), or `out`

        Raises
        ------
        IndexError
            If there is no such node.
        """
        level, index = integer("level", level), integer("index", index)
        if not 0 <= level <= 46:
            raise IndexError(f"level must be an integer in [0, 46], got {level}")
        if not 0 <= index < 2 ** (46 - level):
            raise IndexError(
                f"index must be an integer in [0, 2**{46 - level}) at level {level}, got {index}"
            )
        result = self._into(self._core.node, out, level, index)
        self._node_used = True
        return result

    def _into(self, call: Any, out: Any, *args: int) -> Any:
        if out is None or type(out) is np.ndarray:
            return call(*args, out)
        call(*args, self._view(out))
        return out

    def advance_to(self, t: int) -> None:
        """Move to step t of the present tree without making its noise.

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

    def restart(self, complete: bool = False) -> None:
        """Begin a new tree with fresh nodes; the noise of the present one stays in all later steps.

        Parameters
        ----------
        complete : bool, optional
            First advance to the next power of two with zero gradients, and carry that noise: one
            node instead of popcount(t), at the cost of counting those steps' nodes in the
            sensitivity.

        Raises
        ------
        ValueError
            If the present tree has no step yet.
        """
        self._core.restart(flag("complete", complete))

    @property
    def t(self) -> int:
        """Steps of the present tree."""
        return self._core.t

    @property
    def tree(self) -> int:
        """Restarts so far, the number of the present tree."""
        return self._core.tree

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self._size

    @property
    def std(self) -> float:
        """Standard deviation of one node, as rounded to the dtype."""
        return self._std

    @property
    def variant(self) -> str:
        """Estimator of a prefix from its nodes: "vanilla" or "honaker"."""
        return self._variant

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
    def node_used(self) -> bool:
        """True once `node` was called: more than prefixes may have been released."""
        return self._node_used

    @property
    def allocated_vectors(self) -> int:
        """Vectors of `size` that are allocated now."""
        return self._core.allocated_vectors

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
        position = Position(*self._core.position(), self._reproducible, self._node_used)
        state = state_of(self._identity(), position, self._key if with_key else None)
        if with_key and self._memory != "regenerate":
            state["vectors"] = self._core.kept_vectors()
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of `state_dict`, with the `memory` and `threads` of this object.

        Two objects that resume from one state make the same noise: added to two different sums that
        are both released, it protects neither.

        Parameters
        ----------
        state : mapping
            Of the same size, std, variant, dtype, rounds, purpose and offset.
        allow_fork : bool, optional
            True allows going back to an earlier step of the same noise. Sums with the noise of the
            steps in between must not have been released: otherwise the guarantee is void.

        Raises
        ------
        ValueError, TypeError
            If the state is of another version, another stream or another tree, or broken, or (but
            for a seeded object) lies behind this object's own position; nothing is changed.
        """
        fork = flag("allow_fork", allow_fork)
        position, key = position_from_state(state, self._identity())
        self._check_position(position)
        goes_back = (len(position.ends), position.t) < (self.tree, self.t)
        if goes_back and key in (None, self._key) and not (fork or self._reproducible):
            raise ValueError(
                f"state is at step {position.t} of tree {len(position.ends)}, behind this object "
                f"at step {self.t} of tree {self.tree}: its noise would be used twice. "
                "allow_fork=True takes it all the same and voids the guarantee"
            )
        core = self._make_core(self._key if key is None else key)
        core.set_position(
            position.t, position.ends, position.last_tree, position.last_t, list(state["vectors"])
        )
        if key is not None:
            self._key, self._reproducible = key, position.reproducible
        self._core, self._node_used, self._forks = core, position.node_used, _forks

    def current(self) -> NDArray[Any]:
        """Recompute the noise currently included in the running sum, carry + b_t.

        Returns
        -------
        ndarray of shape (size,)
            The bits that `step` last returned (or would have, where `residual` was called); zeros
            before the first step. A restart leaves them in the running sum.

        Examples
        --------
        >>> noise = TreeNoise(2, 1.0, seed=0)
        >>> last = [noise.step() for _ in range(3)][-1]
        >>> bool((noise.current() == last).all())
        True
        """
        state = self.state_dict()
        ends = [end for end, count in state["earlier_trees"] for _ in range(count)]
        tree, t = self.tree, self.t
        if t == 0:  # nothing of this tree is on a sum yet
            tree, t = state["last_returned"] or (0, 0)
        if t == 0:
            return np.zeros(self.size, self.dtype)
        again = TreeNoise(
            self.size,
            self.std,
            variant=self.variant,  # type: ignore[arg-type]
            memory="regenerate",
            dtype=self.dtype.name,  # type: ignore[arg-type]
            rounds=self.rounds,
            threads=self.threads,
            offset=self.offset,
            purpose=state["purpose"],
        )
        before = {"t": t - 1, "earlier_trees": [[end, 1] for end in ends[:tree]]}
        again.load_state_dict({**state, **before, "last_returned": None, "vectors": []})
        found: NDArray[Any] = again.step()
        return found

    def _check_position(self, position: Position) -> None:
        """Refuse positions that a subclass does not allow; this class takes any."""

    def _identity(self) -> dict[str, Any]:
        # Two trees must share these for one to resume where the other stopped.
        return {
            "stream_version": STREAM_VERSION,
            "size": self._size,
            "std": self._std,
            "variant": self._variant,
            "dtype": self._dtype,
            "rounds": self._rounds,
            "purpose": self._purpose,
            "offset": self._offset,
        }

    def __repr__(self) -> str:
        return (
            f"TreeNoise(size={self._size}, std={self._std:g}, variant={self._variant!r}, "
            f"dtype={self._dtype!r}, memory={self._memory!r}, tree={self.tree}, t={self.t}"
            f"{', reproducible, not private' if self._reproducible else ''})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a TreeNoise holds a secret key and is not pickled: see state_dict")
