# SPDX-License-Identifier: Apache-2.0
"""Noise of Toeplitz mechanisms by the plain definition, and their matrices.

`ToeplitzNoise` has the bits of `dpftrl_fast.ToeplitzNoise`; `strategy_matrix` is the matrix C whose
inverse correlates the noise.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from dpftrl_fast.reference._checks import LAYOUT, Array, check, float_dtype, integer
from dpftrl_fast.reference.stream import initial_words, key_from_seed, normals, superblocks_of

_KINDS = ("taps", "buffers", "bands")


def strategy_matrix(
    kind: str, first: Sequence[float], second: Sequence[float] = (), *, steps: int
) -> npt.NDArray[np.float64]:
    """Return C of shape (steps, steps), lower-triangular.

    Parameters
    ----------
    kind : "taps", "buffers" or "bands"
    first, second : sequence of float
        Taps d (C is the inverse of their matrix), decays and scales, or bands c.
    steps : int

    Examples
    --------
    >>> strategy_matrix("buffers", [0.5], [0.25], steps=3)[:, 0].tolist()
    [1.0, 0.25, 0.125]
    """
    check(kind in _KINDS, f"kind must be one of {_KINDS}", kind)
    column = np.zeros(steps)
    if kind == "buffers":
        column[0] = 1.0
        for decay, scale in zip(first, second, strict=True):
            column[1:] += scale * np.asarray(decay) ** np.arange(steps - 1)
    else:
        column[: len(first)] = first[:steps]
    matrix = np.zeros((steps, steps))
    for j in range(steps):
        matrix[j:, j] = column[: steps - j]
    return np.array(np.linalg.inv(matrix)) if kind == "taps" else matrix


class ToeplitzNoise:
    """Noise of a Toeplitz mechanism with the bits of `dpftrl_fast.ToeplitzNoise`.

    All vectors of the present block are kept.

    Parameters
    ----------
    size : int
        Number of coordinates.
    std : float
        Standard deviation of z, rounded to the dtype; > 0.
    kind : "taps", "buffers" or "bands"
    first, second : sequence of float
        Taps, decays and scales, or bands, rounded to the dtype.
    seed, key, dtype, rounds, offset
        As for `dpftrl_fast.reference.TreeNoise`.
    purpose : int
        3 for running sums; see docs/guarantees/stream.md.

    Examples
    --------
    >>> noise = ToeplitzNoise(3, 1.0, "taps", [1.0, -0.5], seed=1)
    >>> first, second = noise.residual(), noise.step()
    >>> bool(np.array_equal(second, first + noise.x[1]))
    True
    """

    def __init__(
        self,
        size: int,
        std: float,
        kind: str,
        first: Sequence[float],
        second: Sequence[float] = (),
        *,
        seed: SupportsIndex | bytes | None = None,
        key: bytes | None = None,
        dtype: npt.DTypeLike = "float32",
        rounds: int = 12,
        offset: int = 0,
        purpose: int = 3,
    ) -> None:
        check(kind in _KINDS, f"kind must be one of {_KINDS}", kind)
        self._size, self._offset = integer("size", size, 1), integer("offset", offset, 0)
        self._dtype = float_dtype(dtype)
        superblocks_of(self._offset, self._size, LAYOUT[self._dtype][0])
        check(seed is None or key is None, "at most one of seed and key is needed", "both")
        if key is None:
            key = secrets.token_bytes(32) if seed is None else key_from_seed(seed)
        initial_words(key, rounds)
        self._key, self._rounds, self._purpose = key, rounds, purpose
        self._std = self._dtype.type(std)
        self._kind = kind
        self._first = [self._dtype.type(v) for v in first]
        self._second = [self._dtype.type(v) for v in second]
        self._t = self._block = 0
        self._pending: list[Array] = []  # x of the steps after the one last returned
        self._sum: Array | None = None
        self._begin()

    def _begin(self) -> None:
        #: z and x of the steps of the present block.
        self.z: list[Array] = []
        self.x: list[Array] = []
        self._buffers: list[Array] = []

    @property
    def t(self) -> int:
        """Steps taken in the present block."""
        return self._t

    @property
    def block(self) -> int:
        """Number of the present block: 0, and one more after each restart."""
        return self._block

    def _make(self) -> None:
        """Make z and x of the next step."""
        z = self._std * normals(
            self._key,
            tree=self._block,
            level=0,
            index=self._t,
            start=self._offset,
            size=self._size,
            dtype=self._dtype,
            rounds=self._rounds,
            purpose=self._purpose,
        )
        self.z.append(z)
        x = z
        if self._kind == "taps":
            for j in range(1, min(len(self._first), len(self.z))):
                x = x + self._first[j] * self.z[-1 - j]
        elif self._kind == "bands":
            for j in range(1, min(len(self._first), len(self.z))):
                x = x - self._first[j] * self.x[-j]
            if self._first[0] != 1:
                x = x / self._first[0]
        elif len(self.z) == 1:
            self._buffers = [x] * len(self._first)
        else:
            for scale, buffer in zip(self._second, self._buffers, strict=True):
                x = x - scale * buffer
            pairs = zip(self._first, self._buffers, strict=True)
            self._buffers = [decay * buffer + x for decay, buffer in pairs]
        self.x.append(x)
        self._t += 1
        self._pending.append(x)
        self._sum = x if self._sum is None else self._sum + x

    def step(self) -> Array:
        """Take a step; return the noise of the running sum, ((x_1 + x_2) + ..) + x_t."""
        self._make()
        self._pending = []
        assert self._sum is not None
        return self._sum.copy()

    def residual(self) -> Array:
        """Take a step; return the sum of x since the step last returned, first to last."""
        self._make()
        total = self._pending[0]
        for x in self._pending[1:]:
            total = total + x
        self._pending = []
        return total.copy()

    def prefix(self, t: int) -> Array:
        """Return x_1 + .. + x_t of the present block, for a step that was taken."""
        check(1 <= t <= self._t, f"t must be in [1, {self._t}]", t)
        total = self.x[0]
        for x in self.x[1:t]:
            total = total + x
        return total.copy()

    def advance_to(self, t: int) -> None:
        """Take the steps up to t without returning their noise."""
        check(t >= self._t, f"t must be at least {self._t}", t)
        while self._t < t:
            self._make()

    def restart(self) -> None:
        """Begin a new block of independent noise; that of the present one stays in the sums."""
        check(self._t > 0, "restart needs at least one step of the present block", "none")
        self._block += 1
        self._t = 0
        self._begin()
