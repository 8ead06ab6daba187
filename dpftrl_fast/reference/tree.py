# SPDX-License-Identifier: Apache-2.0
"""Tree noise, and its exact variance and covariance.

`TreeNoise` is the plain definition in NumPy, `TreeNoisePython` the same in lists and loops;
`variance_factor` and `covariance` hold for both.
"""

from __future__ import annotations

import secrets
from fractions import Fraction
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from dpftrl_fast.reference._checks import LAYOUT, Array, check, float_dtype, integer
from dpftrl_fast.reference.stream import initial_words, key_from_seed, normals, superblocks_of
from dpftrl_fast.reference.stream_python import normals_python, rounding


def live_nodes(t: int) -> list[tuple[int, int]]:
    """Return the (level, index) of the nodes that cover the leaves 1 .. t, high levels first.

    Node (level l, index k) covers the leaves k 2^l + 1 .. (k + 1) 2^l.

    Examples
    --------
    >>> live_nodes(13)
    [(3, 0), (2, 2), (0, 12)]
    """
    levels = reversed(range(integer("t", t, 0).bit_length()))
    return [(level, (t >> level) - 1) for level in levels if t >> level & 1]


def _honaker_weight(level: int) -> float:
    return 1 / (2 - 2.0**-level)


def _is_honaker(variant: str) -> bool:
    check(variant in ("vanilla", "honaker"), "variant must be 'vanilla' or 'honaker'", variant)
    return variant == "honaker"


class TreeNoise:
    """Tree noise with the bits of `dpftrl_fast.TreeNoise`, by the plain definition.

    Every sum is computed anew from the live nodes, whose vectors are kept between steps.

    Parameters
    ----------
    size : int
        Number of coordinates.
    std : float
        Standard deviation of a node, rounded to the dtype; > 0.
    seed : int or bytes, optional
        See `key_from_seed`. Without seed and key, the operating system makes the key.
    key : bytes of length 32, optional
        The key itself. It is a secret: with it the noise can be removed.
    variant : "honaker" or "vanilla"
    dtype : "float32" or "float64"
    rounds : 8, 12 or 20
    offset : int
        Global coordinate of the first element.
    purpose : int
        0 for tree noise; see docs/guarantees/stream.md.

    Examples
    --------
    >>> noise = TreeNoise(3, 1.0, seed=1, variant="vanilla")
    >>> first, change = noise.step(), noise.residual()
    >>> bool(np.array_equal(change, noise.prefix(2) - first))
    True
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: SupportsIndex | bytes | None = None,
        key: bytes | None = None,
        variant: str = "honaker",
        dtype: npt.DTypeLike = "float32",
        rounds: int = 12,
        offset: int = 0,
        purpose: int = 0,
    ) -> None:
        self._size, self._offset = integer("size", size, 1), integer("offset", offset, 0)
        self._dtype, self._honaker = float_dtype(dtype), _is_honaker(variant)
        superblocks_of(self._offset, self._size, LAYOUT[self._dtype][0])
        fits = std <= float(np.finfo(self._dtype).max) and self._dtype.type(std) > 0
        check(bool(fits), f"std must be a finite number > 0 in {self._dtype}", std)
        check(seed is None or key is None, "at most one of seed and key is needed", "both")
        if key is None:
            key = secrets.token_bytes(32) if seed is None else key_from_seed(seed)
        initial_words(key, rounds)
        self._std = self._dtype.type(std)
        self._key, self._rounds, self._purpose = key, rounds, purpose
        self._tree = self._t = 0
        self._carry: Array | None = None
        self._returned: Array | None = None
        self._kept: dict[tuple[int, int], Array] = {}

    @property
    def t(self) -> int:
        """Steps taken in the present tree."""
        return self._t

    @property
    def tree(self) -> int:
        """Number of the present tree: 0, and one more after each restart."""
        return self._tree

    def node(self, level: int, index: int) -> Array:
        """Return v(level, index) of the present tree: its normals times std."""
        z = normals(
            self._key,
            tree=self._tree,
            level=level,
            index=index,
            start=self._offset,
            size=self._size,
            dtype=self._dtype,
            rounds=self._rounds,
            purpose=self._purpose,
        )
        z *= self._std
        return z

    def step(self) -> Array:
        """Take one step and return carry + b_t."""
        self._returned = self._advance()
        return self._returned.copy()

    def residual(self) -> Array:
        """Take one step; return its carry + b_t minus the one of the last `step` or `residual`.

        The last one is remembered across restarts; steps of `advance_to` do not count. The first
        residual is carry + b_t itself.
        """
        last, self._returned = self._returned, self._advance()
        return self._returned.copy() if last is None else self._returned - last

    def prefix(self, t: int) -> Array:
        """Return b_t of the present tree for any t >= 1, without the carry; takes no step."""
        return self._sum(None, self._live(integer("t", t, 1)))

    def advance_to(self, t: int) -> None:
        """Take the steps up to t without making their noise."""
        self._t = integer("t", t, self._t)

    def restart(self, complete: bool = False) -> None:
        """Start a new tree; the noise of the old one's last step is carried from here on.

        With ``complete`` the old tree first advances to the next power of two with zero gradients
        (none if t is a power of two), and the noise there is carried.
        """
        check(self._t > 0, "restart needs at least one step of the present tree", "t = 0")
        end = 1 << (self._t - 1).bit_length() if complete else self._t
        self._carry = self._sum(self._carry, self._live(end))
        self._tree, self._t, self._kept = self._tree + 1, 0, {}

    def _advance(self) -> Array:
        self._kept = self._live(self._t + 1)
        self._t += 1
        return self._sum(self._carry, self._kept)

    def _live(self, t: int) -> dict[tuple[int, int], Array]:
        return {node: self._subtree(*node) for node in live_nodes(t)}

    def _subtree(self, level: int, index: int) -> Array:
        """Return the value of a live node: v(l, k), or r(l, k) of Honaker."""
        if (level, index) in self._kept:
            return self._kept[level, index]
        v = self.node(level, index)
        if not self._honaker or level == 0:
            return v
        left, right = self._subtree(level - 1, 2 * index), self._subtree(level - 1, 2 * index + 1)
        return v + (left + right) * 0.5

    def _sum(self, start: Array | None, live: dict[tuple[int, int], Array]) -> Array:
        """Return ((start + term) + term) ..., the terms from high level to low."""
        for (level, _), value in live.items():
            term = value * self._dtype.type(_honaker_weight(level)) if self._honaker else value
            start = term.copy() if start is None else start + term
        assert start is not None
        return start


class TreeNoisePython:
    """The steps of one tree in lists and loops: the same values; also a plain-Python baseline.

    A stack holds the values of the live nodes, high level first, as a binary counter does.
    Parameters as for `TreeNoise`.
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        seed: SupportsIndex | bytes,
        variant: str = "honaker",
        dtype: npt.DTypeLike = "float32",
        rounds: int = 12,
        offset: int = 0,
    ) -> None:
        self._honaker, self._to = _is_honaker(variant), rounding(float_dtype(dtype))
        self._key, self._std = key_from_seed(seed), self._to(std)
        self._range: dict[str, Any] = {
            "start": offset,
            "size": size,
            "dtype": dtype,
            "rounds": rounds,
        }
        self._t = 0
        self._stack: list[tuple[int, list[float]]] = []

    def step(self) -> list[float]:
        """Take one step and return b_t."""
        to = self._to
        self._t += 1
        top = (self._t & -self._t).bit_length() - 1  # the node that leaf t completes
        value = self._node(0 if self._honaker else top)
        for level in range(1, top + 1):
            _, left = self._stack.pop()
            if self._honaker:
                triples = zip(self._node(level), left, value, strict=True)
                value = [to(v + to(to(a + b) * 0.5)) for v, a, b in triples]
        self._stack.append((top, value))
        total = None
        for level, term in self._stack:
            if self._honaker:
                weight = to(_honaker_weight(level))
                term = [to(r * weight) for r in term]
            total = term if total is None else [to(a + b) for a, b in zip(total, term, strict=True)]
        return list(total or ())

    def _node(self, level: int) -> list[float]:
        index = (self._t >> level) - 1
        z = normals_python(self._key, tree=0, level=level, index=index, **self._range)
        return [self._to(a * self._std) for a in z]


# -------------------------------------------------------------------------------- exact moments


def _variance(level: int, honaker: bool) -> Fraction:
    return 1 / (2 - Fraction(1, 1 << level)) if honaker else Fraction(1)


def variance_factor(t: int, variant: str = "honaker") -> Fraction:
    """Return Var(b_t) / std^2, exactly.

    Vanilla: the number of set bits of t. Honaker: the sum of 1 / (2 - 2^-l) over its set bits l.

    Examples
    --------
    >>> round(float(variance_factor(25)), 2), round(float(variance_factor(32)), 2)
    (2.05, 0.51)
    """
    honaker = _is_honaker(variant)
    return sum((_variance(level, honaker) for level, _ in live_nodes(t)), Fraction(0))


def covariance(steps: int, variant: str = "honaker") -> list[list[Fraction]]:
    """Return the exact covariance matrix of (b_1, .., b_steps) for std = 1.

    Live nodes of two steps share noise only if one contains the other. Vanilla: 1 if they are the
    same. Honaker: r(l, k) contains 2^-(l-m) of an r(m, j) below it, whose variance is 2 - 2^-m;
    with both weights, 2^-(l-m) / (2 - 2^-l).

    Examples
    --------
    >>> [str(entry) for entry in covariance(4)[3]]
    ['1/7', '2/7', '3/7', '4/7']
    """
    honaker = _is_honaker(variant)

    def shared(a: tuple[int, int], b: tuple[int, int]) -> Fraction:
        (low, inner), (high, outer) = sorted((a, b))
        if inner >> (high - low) != outer or (low != high and not honaker):
            return Fraction(0)
        return _variance(high, honaker) / (1 << (high - low))

    live = [live_nodes(t) for t in range(1, steps + 1)]
    return [[sum((shared(a, b) for a in s for b in t), Fraction(0)) for t in live] for s in live]
