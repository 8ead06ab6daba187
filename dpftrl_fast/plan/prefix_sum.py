# SPDX-License-Identifier: Apache-2.0
"""`PrefixSum`: the private running sum of a stream of vectors, with its epsilon."""

from __future__ import annotations

import math
import threading
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.planner.choice import MechanismChoice, chosen_mechanism
from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.noise.outputs import writable_view
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import (
    PLAIN_SUMMANDS,
    check_summands,
    clip_limit,
    noisy_sum,
    two_sum,
)

# The order of mechanisms is that of sqrt(zeta) times their error, for every budget.
_BUDGET = (1.0, 1e-6)


class PrefixSum(PrivacyStatement):
    """Private running sum of a stream of vectors, each record in one step (single pass).

    Each row that is passed to `add` is one record. It is clipped to L2 norm `clip_norm` and added;
    `add` returns the sum so far plus the noise of this step. With a tree this is InitializeTree,
    AddToTree and GetSum of Kairouz et al. 2021 (arXiv 2103.00039, appendix B).

    Parameters
    ----------
    size : int
        Length of a vector.
    steps : int
        Declared number of steps, for which epsilon is stated: public, chosen before the data are
        seen.
    clip_norm : float
        L2 norm (L) that no record's contribution exceeds, from 1e-100 to 1e100: sums of such
        vectors stay within the range of float64.
    noise_multiplier : float
        Standard deviation of a noise vector over `clip_norm` (sigma).
    mechanism : "auto", "tree" or Mechanism
        The correlated noise. "auto" has the least error in the sums, whatever the epsilon, of those
        that keep at most 3 vectors; above 2^20 steps it is "tree". "tree" is ``Tree()``. The
        coefficients of a value are rounded to `dtype`. With the noise multiplier of a plan pass the
        plan's mechanism: epsilon depends on both.
    seed : None, int or bytes, optional
        For tests only: the sums are then `reproducible`, not private.
    memory, dtype, rounds, threads
        As for `TreeNoise`. Sums are kept in float64 for either dtype; the output of `add` is
        rounded to a public grid, ``plan.noise_spec.grid(dtype)``, and to the noise's dtype, so that
        no low-order bits of the un-noised sum are exposed (docs/floating_point.md).

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one record, replaced by zero (or by another: see
    :meth:`epsilon`). The outputs of all declared steps of `add` together have the epsilon of
    `plan`. The caller must pass each record once. Low-order bits of floating-point numbers are not
    covered.

    The object holds the un-noised sum and the key: it is a secret, and is not pickled. Only outputs
    of `add` may be released. Calls from several threads take turns.

    Examples
    --------
    >>> import numpy as np
    >>> import dpftrl_fast as dpf
    >>> given = {"size": 2, "steps": 100, "clip_norm": 1.0, "noise_multiplier": 4.0}
    >>> sums = dpf.PrefixSum(**given)
    >>> private = sums.add(np.array([0.6, 0.8]))
    >>> private.shape, sums.plan.mechanism.words
    ((2,), 'buffered Toeplitz noise, 2 buffers')
    >>> tree = dpf.PrefixSum(**given, mechanism="tree")
    >>> round(sums.epsilon(1e-6), 2), round(tree.epsilon(1e-6), 2)
    (1.66, 3.07)
    """

    def __init__(
        self,
        size: int,
        steps: int,
        clip_norm: float,
        noise_multiplier: float,
        *,
        mechanism: MechanismChoice = "auto",
        seed: Seed = None,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float64",
        rounds: int = 12,
        threads: int | None = None,
    ) -> None:
        passes = SinglePass(steps)
        self._plan = PrivacyPlan(
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            participation=passes,
            mechanism=chosen_mechanism(mechanism, passes, *_BUDGET, dtype=dtype),
        )
        self._noise = self._plan.noise(
            size, seed=seed, memory=memory, dtype=dtype, rounds=rounds, threads=threads
        )
        self._lock = threading.Lock()
        self._records_taken = 0
        self._sum: NDArray[np.float64] = np.zeros(self._noise.size)
        self._low: NDArray[np.float64] = np.zeros(self._noise.size)  # the rounding errors of _sum
        self._value: NDArray[np.float64] = np.zeros(self._noise.size)

    def add(self, x: ArrayLike, out: Any = None) -> Any:
        """Take one step: add this step's record or records and return the private running sum.

        Parameters
        ----------
        x : array_like of shape (size,) or (n, size)
            One record, or the n >= 0 records of this step, each clipped by itself. Real numbers. A
            record with a value that is not finite, or an object that is not a real number, counts
            as zero: the step is taken anyway, since a refusal would reveal the value. An array with
            a dtype of other things is refused.
        out : array_like of float64, optional
            Where to write: ndarray, CPU tensor with ``__dlpack__`` or buffer of `size` elements.

        Returns
        -------
        ndarray of shape (size,) and dtype float64, or `out`

        Raises
        ------
        ValueError, TypeError
            If all declared steps are taken, x or out has a wrong shape or dtype, or the records of
            all steps are so many (2^28) that the rounding of their sum could exceed the margin of
            the clipping. Nothing is then changed.

        Notes
        -----
        After a Ctrl-C check `t`: if it has advanced, the records may be in the sum and must not be
        passed again; `value` may still be that of the step before.
        """
        records = self._records(x)
        view = None if out is None else self._output(out)
        with self._lock:
            check_summands("records", self._records_taken + len(records), self.steps)
            value = self._next(records)
        if view is None:
            return value
        view.reshape(-1)[:] = value
        return out

    def _next(self, records: NDArray[np.float64]) -> NDArray[np.float64]:
        # The noise's own position counts the steps: an interruption anywhere between these lines
        # can lose this step's records but not take a step too many.
        self._records_taken += len(records)
        step_sum = _clipped_sum(records, clip_limit(self._plan.clip_norm))
        total, error = two_sum(self._sum, step_sum)
        low = self._low + error
        noise = self._noise.step()
        self._sum, self._low = total, low
        with np.errstate(all="ignore"):
            value = noisy_sum(total, low, noise, self._noise.grid)
            self._value = value.astype(self._noise.dtype).astype(np.float64)
        return self._value.copy()

    def _records(self, x: ArrayLike) -> NDArray[np.float64]:
        array = np.asarray(x)
        if array.dtype.kind not in "fiub" and not hasattr(x, "dtype"):
            # A list with a text or a complex number becomes an array of such. That depends on one
            # value, so it must not refuse the step.
            array = np.asarray(x, dtype=object)
        if array.dtype.kind == "O":  # as a list with None or a very large integer becomes
            array = np.array([_real(cell) for cell in array.flat]).reshape(array.shape)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"x must hold real numbers, got dtype {array.dtype}")
        if array.ndim not in (1, 2) or array.shape[-1] != self.size:
            raise ValueError(
                f"x must have shape ({self.size},) or (n, {self.size}), got {array.shape}"
            )
        with np.errstate(all="ignore"):  # a warning would reveal a value
            return np.atleast_2d(array).astype(np.float64)

    def _output(self, out: Any) -> NDArray[np.float64]:
        view = writable_view(out)
        expected = f"out must be a writable C-contiguous float64 array of {self.size} values, got "
        if view.dtype != np.float64:
            raise TypeError(f"{expected}dtype {view.dtype}")
        if view.size != self.size:
            raise ValueError(f"{expected}{view.size} elements")
        if not view.flags.c_contiguous:
            raise ValueError(f"{expected}one that is not contiguous")
        if not view.flags.writeable:
            raise ValueError(f"{expected}a read-only one")
        return view

    @property
    def value(self) -> NDArray[np.float64]:
        """The private running sum that `add` last returned; zero before the first step."""
        return self._value.copy()

    @property
    def plan(self) -> PrivacyPlan:
        """The plan, which made the noise and states the epsilon."""
        return self._plan

    @property
    def size(self) -> int:
        """Length of a vector."""
        return self._noise.size

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self._plan.steps

    @property
    def t(self) -> int:
        """Steps taken."""
        return self._noise.steps_taken

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: the sums are not private."""
        return self._noise.reproducible

    @property
    def guarantee(self) -> Guarantee:
        """The plan's, for all declared steps."""
        return self._plan.guarantee

    def __repr__(self) -> str:
        return (
            f"PrefixSum(size={self.size}, steps={self.steps}, t={self.t}, "
            f"clip_norm={self._plan.clip_norm:g}, noise_multiplier={self._plan.noise_multiplier:g}"
            f"{', reproducible, not private' if self.reproducible else ''})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a PrefixSum holds an un-noised sum and a secret key and is not pickled")


def _real(cell: object) -> float:
    """Return a cell of an array of objects as a float; NaN if it is not a number."""
    if not isinstance(cell, (Real, Decimal)):
        return math.nan
    try:
        return float(cell)
    except (ArithmeticError, TypeError, ValueError):
        return math.nan


def _clipped_sum(records: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """Sum of the rows, each scaled down to norm `bound`; rows that are not finite count as zero.

    Blocks are plain sums, and are added up with their rounding errors (`dpftrl_fast.rounding`). A
    row is in the block of its place, whatever the others hold.
    """
    if records.shape[0] == 0:
        return np.zeros(records.shape[1])
    with np.errstate(all="ignore"):  # a warning would reveal a value
        total = _clipped_block(records[:PLAIN_SUMMANDS], bound)
        low: NDArray[np.float64] | float = 0.0
        for start in range(PLAIN_SUMMANDS, records.shape[0], PLAIN_SUMMANDS):
            block = records[start : start + PLAIN_SUMMANDS]
            total, error = two_sum(total, _clipped_block(block, bound))
            low = low + error
        return np.asarray(total + low)


def _clipped_block(records: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    largest = np.abs(records).max(axis=1)
    usable = np.isfinite(largest) & (largest > 0)
    # Dividing by the largest entry first keeps the squares from overflowing or vanishing.
    units = records[usable] / largest[usable, None]
    lengths = np.sqrt(np.einsum("ij,ij->i", units, units))
    too_long = (lengths * largest[usable] > bound)[:, None]
    clipped = np.where(too_long, units * (bound / lengths)[:, None], records[usable])
    return np.asarray(clipped.sum(axis=0))
