# SPDX-License-Identifier: Apache-2.0
"""`TreeNoise`: correlated Gaussian noise for prefix sums, from the C++ core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast._validate import choice, flag, integer
from dpftrl_fast.mechanisms import Variant
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.noise.source import NoiseSource
from dpftrl_fast.noise.state import StateFormat


class TreeNoise(NoiseSource):
    """Gaussian noise for prefix sums by binary-tree aggregation.

    A source of noise without a privacy statement. At step t the prefix noise b_t is a sum over at
    most log2(t) + 1 tree nodes, each an independent N(0, std^2) vector, so the noise of a running
    sum grows with log t and not with t. Every number is a pure function of the key, the node and
    the coordinate (docs/guarantees/stream.md): the same bits on every machine, for any `memory`,
    `threads` and split of the coordinates.

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
    key must stay secret, and the noise of a step must be added to one sum only. Round noisy
    sums to a grid before they are released, as docs/guarantees/floating_point.md says.

    Examples
    --------
    >>> import dpftrl_fast as dpf
    >>> noise = dpf.TreeNoise(3, std=1.0, seed=0)  # a seed is for tests
    >>> b1 = noise.step()
    >>> b2 = noise.step()
    >>> bool((noise.prefix(1) == b1).all()), noise.t
    (True, 2)
    """

    _cores: ClassVar[Mapping[str, Any]] = {
        "float32": _core.TreeFloat32,
        "float64": _core.TreeFloat64,
    }
    _purposes: ClassVar[Mapping[str, int]] = {"tree": 0, "covariance": 1, "clip-norm": 2}
    _format = StateFormat("dpftrl_fast.TreeNoise", "tree", has_nodes=True)

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
        self._variant = choice("variant", variant, ("vanilla", "honaker"))
        super().__init__(
            size,
            std,
            seed=seed,
            memory=memory,
            dtype=dtype,
            rounds=rounds,
            threads=threads,
            offset=offset,
            purpose=purpose,
            key=key,
        )

    def _core_settings(self) -> dict[str, Any]:
        return {**super()._core_settings(), "variant": self._variant}

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
        self._node_was_used = True
        return result

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
    def tree(self) -> int:
        """Restarts so far, the number of the present tree."""
        return int(self._core.tree)

    @property
    def _block(self) -> int:
        return self.tree

    @property
    def variant(self) -> str:
        """Estimator of a prefix from its nodes: "vanilla" or "honaker"."""
        return self._variant

    @property
    def node_used(self) -> bool:
        """True once `node` was called: more than prefixes may have been released."""
        return self._node_was_used

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

    def _own_identity(self) -> dict[str, Any]:
        return {"variant": self._variant}

    def __repr__(self) -> str:
        return (
            f"TreeNoise(size={self._size}, std={self._std:g}, variant={self._variant!r}, "
            f"dtype={self._dtype!r}, memory={self._memory!r}, tree={self.tree}, t={self.t}"
            f"{', reproducible, not private' if self._reproducible else ''})"
        )
