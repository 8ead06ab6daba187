# SPDX-License-Identifier: Apache-2.0
"""Toeplitz mechanisms as frozen values.

Under such a mechanism the noise of steps 1..n is C^-1 z, where C is a lower-triangular Toeplitz
matrix with first column c_0, c_1, .. and z has independent normal entries. The first column of
C^-1 is d_0, d_1, .. The coefficients of a value are float64. Those of `rounded` are numbers of the
noise's dtype, and the sensitivity to state is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import float_dtype, integer, real
from dpftrl_fast.mechanisms.mechanism import register_kind
from dpftrl_fast.mechanisms.toeplitz.columns import (
    Column,
    banded_inverse,
    buffers_column,
    buffers_inverse,
    padded,
)
from dpftrl_fast.mechanisms.toeplitz.layout import Engine, ToeplitzMechanism
from dpftrl_fast.mechanisms.toeplitz.spectrum import spectrum
from dpftrl_fast.mechanisms.toeplitz.unbounded import BUFFERS, FEWEST_BUFFERS, MOST_BUFFERS

#: Most taps, bands or buffers of a mechanism.
MAX_COEFFICIENTS = 2**16


@dataclass(frozen=True)
class Identity(ToeplitzMechanism):
    """Independent noise at every step: the noise of DP-SGD.

    Parameters
    ----------
    restart_every : int, optional
        Steps after which the order of the data or the clip norm may change; the noise is the same.

    Examples
    --------
    >>> Identity().strategy(3).tolist()
    [1.0, 0.0, 0.0]
    """

    kind: ClassVar[str] = "identity"
    closed_form: ClassVar[bool] = True

    restart_every: int | None = None

    def __post_init__(self) -> None:
        self._set()

    @property
    def engine(self) -> Engine:
        """One tap."""
        return Engine("taps", (1.0,))

    @property
    def vectors(self) -> int:
        """0."""
        return 0

    @property
    def words(self) -> str:
        """Independent noise."""
        return "independent noise at every step"

    def strategy(self, steps: int) -> Column:
        """Return 1, 0, 0, ..."""
        return padded((1.0,), steps)

    def inverse(self, steps: int) -> Column:
        """Return 1, 0, 0, ..."""
        return padded((1.0,), steps)

    def variance_at(self, steps: NDArray[np.int64]) -> Column:
        """Return the steps."""
        return steps.astype(np.float64)


@dataclass(frozen=True)
class BandedInverse(ToeplitzMechanism):
    """C^-1 is banded: the noise of a step is a weighted sum of the last p normals, the taps d.

    It needs no memory: the last p - 1 noise vectors are made again from the key.

    Parameters
    ----------
    taps : sequence of float
        d_0 = 1, d_1, .., d_(p-1): finite, at most 2^16 of them.
    restart_every : int, optional
        Fresh noise starts after every ``restart_every`` steps, for a new clip norm or a new order
        of the data. None, one block of noise for the whole run, has the least error.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    References
    ----------
    Kalinin, McKenna, Upadhyay and Lampert, "Back to Square Roots: An Optimal Bound on the Matrix
    Factorization Error for Multi-Epoch Differentially Private SGD", 2025.

    Examples
    --------
    >>> BandedInverse([1.0, -0.5]).strategy(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    >>> BandedInverse.square_root(4).taps
    (1.0, -0.5, -0.125, -0.0625)
    """

    kind: ClassVar[str] = "banded_inverse"
    closed_form: ClassVar[bool] = True

    taps: Sequence[float]
    restart_every: int | None = None

    def __post_init__(self) -> None:
        taps = _coefficients("taps", self.taps)
        if taps[0] != 1.0:
            raise ValueError(f"taps[0] must be 1, got {taps[0]!r}")
        self._set(taps=taps)

    @classmethod
    def anticorrelated(cls, lam: float, *, restart_every: int | None = None) -> BandedInverse:
        """Return the two taps 1, -lam, so that c_j = lam^j; 0 <= lam <= 1."""
        return cls((1.0, -real("lam", lam, least=0.0, most=1.0)), restart_every)

    @classmethod
    def square_root(cls, p: int, *, restart_every: int | None = None) -> BandedInverse:
        """Return the first p coefficients of (1 - x)^(1/2): 1, -1/2, -1/8, -1/16, .."""
        return cls.fractional(0.5, p, restart_every=restart_every)

    @classmethod
    def fractional(cls, gamma: float, p: int, *, restart_every: int | None = None) -> BandedInverse:
        """Return the first p coefficients of (1 - x)^gamma, 0 < gamma <= 1."""
        power = real("gamma", gamma, above=0.0, most=1.0)
        taps = [1.0]
        for j in range(1, integer("p", p, 1, MAX_COEFFICIENTS)):
            taps.append(taps[-1] * (j - 1 - power) / j)
        return cls(tuple(taps), restart_every)

    @property
    def bands(self) -> int:
        """Number of taps p."""
        return len(self.taps)

    @property
    def engine(self) -> Engine:
        """The taps."""
        return Engine("taps", tuple(self.taps))

    @property
    def vectors(self) -> int:
        """0: earlier normals are made again."""
        return 0

    @property
    def normals(self) -> int:
        """Number of taps p."""
        return len(self.taps)

    @property
    def words(self) -> str:
        """Number of taps, with the second one if there are two."""
        if len(self.taps) == 2:
            return f"noise anticorrelated with that of the step before, taps 1, {self.taps[1]:.3g}"
        return f"noise with a banded inverse, {len(self.taps)} taps"

    def strategy(self, steps: int) -> Column:
        """Return c: c_t = -(d_1 c_(t-1) + d_2 c_(t-2) + ..)."""
        return banded_inverse(self.taps, steps)

    def inverse(self, steps: int) -> Column:
        """Return the taps, and zeros after them."""
        return padded(self.taps, steps)

    def variance_at(self, steps: NDArray[np.int64]) -> Column:
        """Return sums of the squared prefix sums of the taps, the last of which is repeated."""
        squares = np.cumsum(self.taps) ** 2
        within = np.minimum(steps, squares.size)
        return np.asarray(np.cumsum(squares)[within - 1] + (steps - within) * squares[-1])


@dataclass(frozen=True)
class BufferedToeplitz(ToeplitzMechanism):
    """C is a sum of exponentials: the noise of a step is corrected by k buffers (BLT).

    c_0 = 1, c_j = sum over i of scale_i decay_i^(j-1).

    Parameters
    ----------
    decay : sequence of float
        One for each buffer, in (0, 1].
    scale : sequence of float
        One for each buffer, >= 0.
    restart_every : int, optional
        As for `BandedInverse`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    References
    ----------
    McMahan, Xu and Zhang, "A Hassle-free Algorithm for Strong Differential Privacy in Federated
    Learning Systems", 2024.

    Examples
    --------
    >>> BufferedToeplitz([0.5], [0.25]).strategy(4).tolist()
    [1.0, 0.25, 0.125, 0.0625]
    """

    kind: ClassVar[str] = "buffered_toeplitz"
    closed_form: ClassVar[bool] = True

    decay: Sequence[float]
    scale: Sequence[float]
    restart_every: int | None = None

    def __post_init__(self) -> None:
        decay, scale = _coefficients("decay", self.decay), _coefficients("scale", self.scale)
        if len(decay) != len(scale):
            raise ValueError(
                f"decay and scale must be of one length, got {len(decay)} and {len(scale)}"
            )
        for value in decay:
            real("each of decay", value, above=0.0, most=1.0)
        for value in scale:
            real("each of scale", value, least=0.0)
        self._set(decay=decay, scale=scale)

    @classmethod
    def unbounded(cls, dtype: Any = "float64", *, buffers: int = MOST_BUFFERS) -> BufferedToeplitz:
        """Return the mechanism for running sums of a stream without a declared end.

        With ``SinglePass.unbounded()``, which has more steps than any stream takes, a plan states
        one epsilon for ever. At every step from 10^2 to 10^13 the noise is at most 1.33 times that
        of the square root of that length, a mechanism for a known end. docs/plan/horizon.md has
        tables.

        Parameters
        ----------
        dtype : {"float64"}
            Of the noise. The decays are too close to 1 for "float32", which is refused.
        buffers : int
            Vectors to keep, 2 to 10. With 6 the noise is at most 1.45 times, with 4 at most 1.68
            times, with 3 at most 2.85 times that for a known end.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan
        >>> from dpftrl_fast.accounting import SinglePass
        >>> plan = PrivacyPlan(1.0, 4.0, SinglePass.unbounded(), BufferedToeplitz.unbounded())
        >>> round(plan.sensitivity_squared, 3), round(plan.epsilon(1e-6), 3)
        (4.092, 2.282)
        """
        if float_dtype(dtype) != "float64":
            raise ValueError(
                "dtype must be 'float64' for a stream without a declared end, got 'float32', which "
                "has no numbers so close to 1 as the decays: declare the number of steps"
            )
        slowness, scale = BUFFERS[integer("buffers", buffers, FEWEST_BUFFERS, MOST_BUFFERS)]
        return cls([1.0 - each for each in slowness], scale)

    @property
    def engine(self) -> Engine:
        """Decays and scales."""
        return Engine("buffers", tuple(self.decay), tuple(self.scale))

    @property
    def vectors(self) -> int:
        """Number of buffers k."""
        return len(self.decay)

    @property
    def words(self) -> str:
        """Number of buffers."""
        count = len(self.decay)
        return f"buffered Toeplitz noise, {count} buffer{'s' if count > 1 else ''}"

    def strategy(self, steps: int) -> Column:
        """Return c."""
        return buffers_column(self.decay, self.scale, steps)

    def inverse(self, steps: int) -> Column:
        """Return d, by the recursion that the noise runs."""
        return buffers_inverse(self.decay, self.scale, steps)

    def variance_at(self, steps: NDArray[np.int64]) -> Column:
        """Return the variance by its closed form, in O(k^2) a step."""
        return spectrum(self.decay, self.scale).variance(steps)


@dataclass(frozen=True)
class BandedToeplitz(ToeplitzMechanism):
    """C is banded: the noise of a step is corrected by the last p - 1 noises (BandMF).

    Parameters
    ----------
    coefficients : sequence of float
        c_0 > 0, c_1, .., c_(p-1): finite, at most 2^16 of them.
    restart_every : int, optional
        As for `BandedInverse`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    References
    ----------
    Choquette-Choo et al., "(Amplified) Banded Matrix Factorization: A unified approach to private
    training", 2023.

    Examples
    --------
    >>> BandedToeplitz([1.0, 0.5]).inverse(4).tolist()
    [1.0, -0.5, 0.25, -0.125]
    """

    kind: ClassVar[str] = "banded_toeplitz"

    coefficients: Sequence[float]
    restart_every: int | None = None

    def __post_init__(self) -> None:
        coefficients = _coefficients("coefficients", self.coefficients)
        real("coefficients[0]", coefficients[0], above=0.0)
        self._set(coefficients=coefficients)

    @property
    def bands(self) -> int:
        """Number of bands p."""
        return len(self.coefficients)

    @property
    def engine(self) -> Engine:
        """The bands."""
        return Engine("bands", tuple(self.coefficients))

    @property
    def vectors(self) -> int:
        """The last p - 1 noises: p - 1 vectors."""
        return len(self.coefficients) - 1

    @property
    def words(self) -> str:
        """Number of bands."""
        count = len(self.coefficients)
        return f"banded Toeplitz noise, {count} band{'s' if count > 1 else ''}"

    def strategy(self, steps: int) -> Column:
        """Return the coefficients, and zeros after them."""
        return padded(self.coefficients, steps)

    def inverse(self, steps: int) -> Column:
        """Return d: d_t = -(c_1 d_(t-1) + ..)/c_0."""
        return banded_inverse(self.coefficients, steps)


for _kind in (Identity, BandedInverse, BufferedToeplitz, BandedToeplitz):
    register_kind(_kind.kind, _kind.from_dict)


def _coefficients(name: str, values: ArrayLike | Sequence[float]) -> tuple[float, ...]:
    """Return finite numbers as a tuple of floats."""
    if isinstance(values, (str, bytes, Mapping)):
        raise TypeError(f"{name} must be a sequence of numbers, got {type(values).__name__}")
    try:
        listed = list(values)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be a sequence of numbers, got {type(values).__name__}"
        ) from None
    if not 1 <= len(listed) <= MAX_COEFFICIENTS:
        raise ValueError(f"{name} must hold 1 to {MAX_COEFFICIENTS} numbers, got {len(listed)}")
    return tuple(real(f"each of {name}", value) for value in listed)
