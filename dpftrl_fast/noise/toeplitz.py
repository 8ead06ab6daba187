# SPDX-License-Identifier: Apache-2.0
"""`ToeplitzNoise`: correlated Gaussian noise of a Toeplitz mechanism, from the C++ core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from numpy.typing import NDArray

import dpftrl_fast._core as _core
from dpftrl_fast._validate import float_dtype
from dpftrl_fast.mechanisms import ToeplitzMechanism
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.noise.source import NoiseSource
from dpftrl_fast.noise.state import StateFormat


class ToeplitzNoise(NoiseSource):
    """Gaussian noise for prefix sums of a Toeplitz mechanism.

    A source of noise without a privacy statement. With z_1, z_2, .. independent N(0, std^2) vectors
    the noise of step t is x_t, entry t of C^-1 z, and that of a running sum is x_1 + .. + x_t.
    Every number is a pure function of the key, the step and the coordinate
    (docs/guarantees/stream.md): the same bits on every machine, for any `memory`, `threads` and
    split of the coordinates.

    Parameters
    ----------
    size : int
        Number of coordinates, at least 1.
    std : float
        Standard deviation of z: clip norm times noise multiplier (L sigma). Finite, > 0, rounded to
        `dtype`.
    mechanism : Identity, BandedInverse, BufferedToeplitz or BandedToeplitz
        Its coefficients are rounded to `dtype`, see the attribute `mechanism`. Its
        ``restart_every`` is not read: call `restart`.
    seed : None, int or bytes, optional
        None takes a 256-bit key from the operating system. A seed is for tests: results are then
        `reproducible`, not private, since whoever guesses it can take the noise away.
    memory : {"stored", "regenerate"} or int, optional
        "stored" keeps the vectors that a step reads: p - 1 earlier z of p taps, k buffers, or
        p - 1 earlier x of p bands. "regenerate" keeps none: taps make p normals a step and
        coordinate; buffers and bands make the whole block again, t normals at step t. An integer
        m >= 1 keeps at most m: the latest z, or all buffers or bands if they are at most m.
        `step` keeps the noise of the running sum besides.
    dtype : {"float32", "float64"}, optional
        Of the noise. The two streams are unrelated.
    rounds : {12, 8, 20}, optional
        ChaCha rounds; 20 is RFC 8439's.
    threads : int, optional
        At least 1; default all cores that this process may use.
    offset : int, optional
        Global coordinate of element 0: processes that hold parts of one vector pass their offsets
        and get slices of one noise vector.
    purpose : {"sum", "covariance", "clip-norm"}, optional
        Streams of different purposes under one key are unrelated, also to those of `TreeNoise`.
    key : bytes, optional
        32 secret bytes from a cryptographic source (``secrets.token_bytes(32)``), instead of a
        seed: for processes that hold parts of one vector. No two other vectors may share a key.

    Attributes
    ----------
    t : int
        Steps of the present block.
    block : int
        Restarts so far.
    mechanism : ToeplitzMechanism
        The mechanism with the coefficients of the noise: state the epsilon of this one.
    reproducible : bool
        True when a seed was given: not private.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    See Also
    --------
    dpftrl_fast.TreeNoise : noise of a binary tree.
    dpftrl_fast.PrivacyPlan : makes the noise and states the epsilon.

    Notes
    -----
    An object may be used from several threads: calls take turns. A copy made by a fork refuses to
    continue. Long calls can be interrupted with Ctrl-C; the position is then unchanged.

    **Formal guarantee.** None by itself, as for `TreeNoise`.

    Examples
    --------
    >>> import dpftrl_fast as dpf
    >>> from dpftrl_fast import mechanisms as mech
    >>> two_taps = mech.BandedInverse.anticorrelated(0.9)
    >>> noise = dpf.ToeplitzNoise(3, 1.0, two_taps, seed=0)  # a seed is for tests
    >>> x1, x2 = noise.residual(), noise.residual()
    >>> again = dpf.ToeplitzNoise(3, 1.0, two_taps, seed=0)
    >>> n2 = [again.step() for _ in range(2)][-1]
    >>> bool((x1 + x2 == n2).all()), noise.t
    (True, 2)
    """

    _cores: ClassVar[Mapping[str, Any]] = {
        "float32": _core.ToeplitzFloat32,
        "float64": _core.ToeplitzFloat64,
    }
    _purposes: ClassVar[Mapping[str, int]] = {"sum": 3, "covariance": 4, "clip-norm": 5}
    _format = StateFormat("dpftrl_fast.ToeplitzNoise", "block")

    def __init__(
        self,
        size: int,
        std: float,
        mechanism: ToeplitzMechanism,
        *,
        seed: Seed = None,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        rounds: int = 12,
        threads: int | None = None,
        offset: int = 0,
        purpose: Literal["sum", "covariance", "clip-norm"] = "sum",
        key: bytes | None = None,
    ) -> None:
        if not isinstance(mechanism, ToeplitzMechanism):
            raise TypeError(
                "mechanism must be a Toeplitz mechanism such as BandedInverse([1.0, -0.9]), got "
                f"{type(mechanism).__name__}"
            )
        self._mechanism = mechanism.rounded(float_dtype(dtype))
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
        kind, first, second = self._mechanism.engine
        return {**super()._core_settings(), "kind": kind, "first": first, "second": second}

    def restart(self) -> None:
        """Begin a new block of independent noise; that of the present one stays in later sums.

        Raises
        ------
        ValueError
            If the present block has no step yet.
        """
        self._core.restart()

    def current(self, out: Any = None) -> NDArray[Any]:
        """Return the noise in the running sum at the step last returned.

        Parameters
        ----------
        out : array_like, optional
            As for `step`.

        Returns
        -------
        ndarray of shape (size,), or `out`
            The bits that `step` last returned (or would have, where `residual` was called); zeros
            before the first step. A restart leaves them in the running sum.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import BufferedToeplitz
        >>> noise = ToeplitzNoise(2, 1.0, BufferedToeplitz([0.9], [0.2]), seed=0)
        >>> last = [noise.step() for _ in range(3)][-1]
        >>> bool((noise.current() == last).all())
        True
        """
        found: NDArray[Any] = self._into(self._core.current, out)
        return found

    @property
    def block(self) -> int:
        """Restarts so far, the number of the present block."""
        return int(self._core.block)

    @property
    def _block(self) -> int:
        return self.block

    @property
    def _saves_vectors(self) -> bool:
        return True  # the noise of the running sum takes all steps to make again

    @property
    def mechanism(self) -> ToeplitzMechanism:
        """The mechanism, with its coefficients as rounded to the dtype."""
        return self._mechanism

    def _own_identity(self) -> dict[str, Any]:
        return {"mechanism": {**self._mechanism.to_dict(), "restart_every": None}}

    def __repr__(self) -> str:
        return (
            f"ToeplitzNoise(size={self._size}, std={self._std:g}, {self._mechanism.words}, "
            f"dtype={self._dtype!r}, memory={self._memory!r}, block={self.block}, t={self.t}"
            f"{', reproducible, not private' if self._reproducible else ''})"
        )
