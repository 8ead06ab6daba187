# SPDX-License-Identifier: Apache-2.0
"""`ToeplitzMechanism`, the base of the Toeplitz mechanisms, and `ToeplitzLayout`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import MAX_STREAM, equal, float_dtype, integer, optional, shown
from dpftrl_fast.mechanisms.blocks import BlockLayout, merged_runs
from dpftrl_fast.mechanisms.run_error import MAX_ERROR_STEPS, check_error_steps
from dpftrl_fast.mechanisms.toeplitz.columns import Column

M = TypeVar("M", bound="ToeplitzMechanism")

# Of the dictionaries of `to_dict`.
_VERSION = 1

_SEEN = 2**18  # steps whose noise `largest_std` looks at
_FASTEST = 40.0  # doublings of the variance, with the steps, beyond which it counts as infinite


class Engine(NamedTuple):
    """Coefficients as a source of noise takes them."""

    kind: Literal["taps", "buffers", "bands"]
    first: tuple[float, ...]
    """Taps, decays or bands."""
    second: tuple[float, ...] = ()
    """Scales of the buffers."""


class ToeplitzMechanism(ABC):
    """Base of the Toeplitz mechanisms: frozen dataclasses with the field `restart_every`.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BandedInverse
    >>> taps = BandedInverse.square_root(3)
    >>> isinstance(taps, ToeplitzMechanism), taps.words, taps.vectors, taps.normals
    (True, 'noise with a banded inverse, 3 taps', 0, 3)
    >>> taps.strategy(5).round(4).tolist()
    [1.0, 0.5, 0.375, 0.25, 0.1719]
    """

    kind: ClassVar[str]
    #: Whether `variance_at` takes any step.
    closed_form: ClassVar[bool] = False
    restart_every: int | None

    @property
    def any_length(self) -> bool:
        """True if it can lay out any number of steps."""
        return self.bands == 1

    @property
    def bands(self) -> int:
        """Fewest steps of a run: the number of taps or bands, 1 for buffers."""
        return 1

    @property
    @abstractmethod
    def engine(self) -> Engine:
        """Coefficients as a source of noise takes them."""

    @property
    @abstractmethod
    def vectors(self) -> int:
        """Vectors kept between steps. Taps are made again from the key: none."""

    @property
    def normals(self) -> int:
        """Normals that are made a step and coordinate."""
        return 1

    @property
    @abstractmethod
    def words(self) -> str:
        """The mechanism in words."""

    @abstractmethod
    def strategy(self, steps: int) -> Column:
        """Return c_0 .. c_(steps-1), the first column of C, a float64 array."""

    @abstractmethod
    def inverse(self, steps: int) -> Column:
        """Return d_0 .. d_(steps-1), the first column of C^-1, a float64 array."""

    def variance_at(self, steps: NDArray[np.int64]) -> Column:
        """Return the variance of the noise in the running sum at steps of a block, from 1 on.

        For unit normals. Bands have no closed form: at most 2^26 steps.
        """
        prefix = np.cumsum(self.inverse(check_error_steps(int(steps.max()))))
        return np.asarray(np.cumsum(prefix * prefix)[steps - 1])

    def layout(self, steps: int) -> ToeplitzLayout:
        """Lay out the steps of a run.

        Parameters
        ----------
        steps : int
            Steps of the run, 1 to 2^46, and at least the number of taps or bands.

        Raises
        ------
        TypeError, ValueError
            If ``steps`` is not such an integer.
        """
        total = integer("steps", steps, 1, MAX_STREAM)
        if self.bands > total:
            raise ValueError(
                f"steps must be at least the number of taps or bands, {self.bands}, got {total}"
            )
        every = total if self.restart_every is None else min(self.restart_every, total)
        count, rest = divmod(total, every)
        runs = [ToeplitzRun(every, count), *([ToeplitzRun(rest, 1)] if rest else [])]
        return ToeplitzLayout(merged_runs(runs), self)

    def rounded(self: M, dtype: Any) -> M:
        """Return the mechanism with its coefficients rounded to a dtype.

        Parameters
        ----------
        dtype : {"float32", "float64"}
            Of the noise.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import BandedInverse
        >>> BandedInverse([1.0, -0.1]).rounded("float32").taps
        (1.0, -0.10000000149011612)
        """
        kind = np.dtype(float_dtype(dtype)).type
        with np.errstate(over="ignore", under="ignore"):  # infinity is refused by the class
            changed = {
                name: tuple(float(kind(x)) for x in value)
                for name, value in vars(self).items()
                if isinstance(value, tuple)
            }
        return replace(self, **changed)  # type: ignore[type-var]

    def is_in(self, dtype: Any) -> bool:
        """Return whether all coefficients are numbers of a dtype: its noise needs no other ones.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import BandedInverse
        >>> BandedInverse([1.0, -0.5]).is_in("float32"), BandedInverse([1.0, -0.1]).is_in("float32")
        (True, False)
        """
        try:
            return self.rounded(dtype) == self
        except ValueError:  # rounded to a number that the class refuses
            return False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data, for ``mechanism_from_dict``."""
        values = {name: vars(self)[name] for name in self._names()}
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {"kind": self.kind, "version": _VERSION, **plain}

    @classmethod
    def from_dict(cls: type[M], d: Mapping[str, Any]) -> M:
        """Read back the dictionary of `to_dict`; missing or other keys are a ValueError."""
        if not isinstance(d, Mapping):
            raise TypeError(f"mechanism {cls.kind} must be a mapping, got {type(d).__name__}")
        keys = ["kind", "version", *cls._names()]
        if set(d) != set(keys) or not equal(d["kind"], cls.kind):
            raise ValueError(
                f"mechanism {cls.kind} must have exactly the keys {keys}, got {sorted(map(str, d))}"
            )
        if not equal(d["version"], _VERSION):
            raise ValueError(
                f"mechanism {cls.kind} must be of version {_VERSION}, got {shown(d['version'])}"
            )
        return cls(**{name: d[name] for name in cls._names()})

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in fields(cls)]  # type: ignore[arg-type]

    def _set(self, **values: Any) -> None:
        every = optional(integer, "restart_every", self.restart_every, 1)
        for name, value in {**values, "restart_every": every}.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class ToeplitzRun:
    """Equal blocks in a row.

    Parameters
    ----------
    steps : int
        Steps of each block, >= 1.
    count : int
        Number of blocks, >= 1.
    """

    steps: int
    count: int

    @property
    def end(self) -> int:
        """Last step of each block, whose noise stays in all later sums."""
        return self.steps

    def part(self, first: int, last: int) -> ToeplitzRun:
        """Return steps first..last of one block, which start as a block of their own."""
        return ToeplitzRun(last - first + 1, 1)


@dataclass(frozen=True)
class ToeplitzLayout(BlockLayout[ToeplitzRun]):
    """The blocks of a run: the strategy is block-diagonal, with one Toeplitz matrix a block.

    Attributes
    ----------
    runs : tuple of ToeplitzRun
        No two neighbours are equal but for their count.
    mechanism : ToeplitzMechanism
        The mechanism of each block; its own ``restart_every`` is not read here.

    Examples
    --------
    >>> from dpftrl_fast.mechanisms import BandedInverse
    >>> layout = BandedInverse.anticorrelated(0.5, restart_every=400).layout(1000)
    >>> layout.runs
    (ToeplitzRun(steps=400, count=2), ToeplitzRun(steps=200, count=1))
    """

    runs: tuple[ToeplitzRun, ...]
    mechanism: ToeplitzMechanism

    @cached_property
    def least_std(self) -> float:
        """Lower bound of the standard deviation of a running sum's noise, for unit normals."""
        return float(self.mechanism.inverse(1)[0])

    @cached_property
    def largest_std(self) -> float:
        """Standard deviation of a running sum's noise, for unit normals: the largest.

        For bands, blocks of more than 2^18 steps count as if their noise grew on as it did in the
        last doubling.
        """
        if self.mechanism.closed_form:
            with np.errstate(over="ignore", invalid="ignore"):
                return math.sqrt(float(self.block_variances() @ [run.count for run in self.runs]))
        seen = min(self.longest, _SEEN)
        with np.errstate(over="ignore", invalid="ignore"):
            variance = np.cumsum(np.cumsum(self.mechanism.inverse(seen)) ** 2)
        if not np.isfinite(variance[-1]):
            return math.inf
        doubling = math.log2(variance[-1] / variance[(seen - 1) // 2])
        if doubling > _FASTEST:
            return math.inf
        total = 0.0
        for run in self.runs:
            beyond = max(1.0, run.steps / seen) ** doubling
            total += run.count * float(variance[min(run.steps, seen) - 1]) * beyond
        return math.sqrt(total)

    @cached_property
    def noise_limits(self) -> tuple[int, int]:
        """Bounds of the variance and of the largest value of a running sum's noise."""
        if self.mechanism.closed_form and self.longest > MAX_ERROR_STEPS:
            held = list(
                zip(self.runs, (self.block_variances() * (1.0 + 1e-9)).tolist(), strict=True)
            )
            # The size by the inequality of Cauchy.
            return (
                math.ceil(math.fsum(run.count * each for run, each in held)) + 1,
                math.ceil(math.fsum(run.count * math.sqrt(run.steps * each) for run, each in held))
                + 1,
            )
        prefix = np.abs(np.cumsum(self.mechanism.inverse(check_error_steps(self.longest))))
        variance, size = np.cumsum(prefix * prefix), np.cumsum(prefix)
        at = [(run.steps - 1, run.count) for run in self.runs]
        # One more for the rounding of these sums.
        return (
            math.ceil(sum(float(variance[t]) * count for t, count in at)) + 1,
            math.ceil(sum(float(size[t]) * count for t, count in at)) + 1,
        )

    def block_variances(self) -> Column:
        """Return the variance that a block of each run leaves in the running sum."""
        return self.mechanism.variance_at(np.array([run.steps for run in self.runs], np.int64))

    @property
    def released_spreads(self) -> bool:
        """False: "exact" and "released" are one bound."""
        return False

    def describe(self) -> str:
        """Return the mechanism in words, and when its noise starts afresh.

        Examples
        --------
        >>> from dpftrl_fast.mechanisms import BufferedToeplitz
        >>> BufferedToeplitz([0.98], [0.3]).layout(100).describe()
        'buffered Toeplitz noise, 1 buffer'
        """
        if self.count == 1:
            return self.mechanism.words
        return f"{self.mechanism.words}, fresh noise every {self.runs[0].steps} steps"

    def declaration(self) -> dict[str, Any]:
        """Return the blocks as JSON-able data, for the declaration of a guard."""
        return {"blocks": [[run.steps, run.count] for run in self.runs]}

    def noise_declaration(self) -> dict[str, Any]:
        """Return the mechanism without its blocks, for the declaration of a ledger."""
        return {"mechanism": {**self.mechanism.to_dict(), "restart_every": None}}
