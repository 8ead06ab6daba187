# SPDX-License-Identifier: Apache-2.0
"""The privacy plan: one frozen object that makes the noise and states the epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal

import numpy as np

from dpftrl_fast import accounting
from dpftrl_fast.accounting._checks import non_negative, positive, positive_int, probability
from dpftrl_fast.accounting._rounding import float_up, smallest_double, text_up
from dpftrl_fast.accounting.gaussian import mean_shift
from dpftrl_fast.accounting.participation import (
    Participation,
    SinglePass,
    participation_from_dict,
)
from dpftrl_fast.accounting.sensitivity import Complete, check_complete
from dpftrl_fast.accounting.support import (
    MAX_COORDINATES,
    support_floor,
    truncated_delta,
    untruncated_delta,
)
from dpftrl_fast.clip_norms import check_clip_norm
from dpftrl_fast.keys import Seed
from dpftrl_fast.noise_arguments import dtype_name
from dpftrl_fast.planned_noise import PlannedNoise

__all__ = ["Neighbours", "PrivacyPlan"]

Neighbours = Literal["zero-out", "replace-one"]
Variant = Literal["vanilla", "honaker"]

_FORMAT = "dpftrl_fast.PrivacyPlan"
_VERSION = 1
_FIELDS = (
    "clip_norm",
    "noise_multiplier",
    "participation",
    "restart_every",
    "complete",
    "variant",
)


@dataclass(frozen=True)
class PrivacyPlan:
    """Everything that decides the privacy of a run, public and fixed before the run.

    Parameters
    ----------
    clip_norm : float
        L2 norm to which each gradient is clipped (L), finite and > 0.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    participation : SinglePass
        Who takes part when, and the declared number of steps.
    restart_every : int, optional
        Steps after which a new tree starts; None means one tree.
    complete : bool or "all"
        Trees that are advanced to the next power of two: none (False), each one that a restart
        follows (True), the last one too ("all").
    variant : {"honaker", "vanilla"}
        How a prefix is put together from the nodes. It does not change the epsilon.

    Raises
    ------
    TypeError, ValueError
        If a field is not what is described above (NaN is not).

    Notes
    -----
    The guarantee is for neighbours that differ in one record's (or one user's) gradients, replaced
    by zero ("zero-out"). It holds for data and models chosen adaptively, and for the declared
    number of steps whether or not the stream ends early. delta includes the floor of the noise
    stream, see :attr:`delta_floor`. Attacks on the grid of floating-point numbers are not covered.

    Examples
    --------
    >>> plan = PrivacyPlan(clip_norm=1.0, noise_multiplier=2.33, participation=SinglePass(1600))
    >>> plan.sensitivity_squared
    11
    >>> round(plan.epsilon(1e-6), 3)
    7.342
    """

    clip_norm: float
    noise_multiplier: float
    participation: Participation
    restart_every: int | None = None
    complete: Complete = False
    variant: Variant = "honaker"

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "clip_norm", check_clip_norm(positive("clip_norm", self.clip_norm)))
        set_field(self, "noise_multiplier", positive("noise_multiplier", self.noise_multiplier))
        positive("clip_norm * noise_multiplier", self.clip_norm * self.noise_multiplier)
        _check_participation(self.participation)
        if self.restart_every is not None:
            set_field(self, "restart_every", positive_int("restart_every", self.restart_every))
        check_complete(self.complete)
        if self.variant not in ("vanilla", "honaker"):
            raise ValueError(f'variant must be "vanilla" or "honaker", got {self.variant!r}')

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        clip_norm: float,
        participation: Participation,
        restart_every: int | None = None,
        complete: Complete = False,
        variant: Variant = "honaker",
    ) -> PrivacyPlan:
        """Return the plan with the least noise whose epsilon at ``delta`` is at most ``epsilon``.

        Parameters
        ----------
        epsilon : float
            Budget, finite and >= 0, for zero-out neighbours.
        delta : float
            0 < delta < 1.
        clip_norm, participation, restart_every, complete, variant
            The other fields of the plan.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.

        Examples
        --------
        >>> plan = PrivacyPlan.calibrate(
        ...     epsilon=1.0, delta=1e-6, clip_norm=0.3, participation=SinglePass(1600)
        ... )
        >>> round(plan.noise_multiplier, 3), plan.epsilon(1e-6) <= 1.0
        (14.012, True)
        """
        budget = non_negative("epsilon", epsilon)
        total = probability("delta", delta)
        zeta = accounting.sensitivity_squared(
            _check_participation(participation), restart_every=restart_every, complete=complete
        )

        def holds(sigma: float) -> bool:
            exact = untruncated_delta(total, zeta, support_floor(sigma, zeta))
            return exact > 0 and accounting.delta(sigma, zeta, budget) <= exact

        return cls(
            clip_norm=clip_norm,
            noise_multiplier=smallest_double(
                holds, accounting.noise_multiplier(budget, total, zeta)
            ),
            participation=participation,
            restart_every=restart_every,
            complete=complete,
            variant=variant,
        )

    @property
    def steps(self) -> int:
        """Declared number of steps, over all trees."""
        return self.participation.steps

    @property
    def sensitivity_squared(self) -> int:
        """Squared sensitivity (zeta) of all node sums, in units of the clip norm squared."""
        return accounting.sensitivity_squared(
            self.participation, restart_every=self.restart_every, complete=self.complete
        )

    @property
    def mu(self) -> float:
        """Sensitivity over noise, sqrt(zeta)/sigma, rounded up: the run is mu-Gaussian-DP."""
        return float_up(mean_shift(self.noise_multiplier, self.sensitivity_squared))

    @property
    def delta_floor(self) -> float:
        """Part of delta that is owed to the finite tail of the noise stream.

        No epsilon is stated at a delta that is not above it. Proved in docs/accounting.md for nodes
        of up to 2^36 coordinates; for replace-one neighbours the floor is that of half the noise.

        Examples
        --------
        >>> plan = PrivacyPlan(1.0, 1.13, SinglePass(1600))
        >>> f"{plan.delta_floor:.1e}"
        '9.2e-13'
        """
        return self._floor("zero-out")

    def epsilon(self, delta: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Epsilon of the whole run at ``delta``, never understated.

        Parameters
        ----------
        delta : float
            0 < delta < 1, above the floor of the noise stream.
        neighbours : {"zero-out", "replace-one"}
            One record's gradients replaced by zero, or by another record's (mu doubles).

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.

        Examples
        --------
        >>> plan = PrivacyPlan(1.0, 2.33, SinglePass(1600))
        >>> round(plan.epsilon(1e-6), 3), round(plan.epsilon(1e-6, neighbours="replace-one"), 3)
        (7.342, 16.999)
        """
        total = probability("delta", delta)
        floor = self._floor(neighbours)
        exact = untruncated_delta(total, self.sensitivity_squared, floor)
        if not exact > 0:
            raise ValueError(
                f"delta must be above the floor of the noise stream, {floor:.3g}, got {total!r}"
            )
        zeta = self.sensitivity_squared * _scale(neighbours) ** 2
        return accounting.epsilon(self.noise_multiplier, zeta, exact)

    def delta(self, epsilon: float, *, neighbours: Neighbours = "zero-out") -> float:
        """Delta of the whole run at ``epsilon``, never understated; it includes the floor.

        Parameters
        ----------
        epsilon : float
            Finite, >= 0.
        neighbours : {"zero-out", "replace-one"}
            As for :meth:`epsilon`.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.

        Examples
        --------
        >>> plan = PrivacyPlan(1.0, 2.33, SinglePass(1600))
        >>> plan.delta(7.342) <= 1e-6 < plan.delta(7.341)
        True
        """
        floor = self._floor(neighbours)
        zeta = self.sensitivity_squared * _scale(neighbours) ** 2
        exact = accounting.delta(self.noise_multiplier, zeta, epsilon)
        return truncated_delta(exact, self.sensitivity_squared, floor)

    def _floor(self, neighbours: Neighbours) -> float:
        # Single pass: zeta nodes with one contribution each.
        return support_floor(
            self.noise_multiplier, self.sensitivity_squared, l2_sensitivity=_scale(neighbours)
        )

    def noise(
        self,
        size: int,
        *,
        seed: Seed = None,
        memory: Literal["stored", "regenerate"] | int = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        rounds: int = 12,
        threads: int | None = None,
        offset: int = 0,
        key: bytes | None = None,
    ) -> PlannedNoise:
        """Return the tree noise of this plan: standard deviation ``clip_norm * noise_multiplier``.

        The standard deviation is rounded up to the dtype. The tree restarts where the plan says and
        refuses steps past the declared ones. What is left to the caller: each value goes on one sum
        only, of records clipped to `clip_norm` and each in one step.

        Parameters
        ----------
        size : int
            Number of coordinates; ``offset + size`` at most 2^36.
        seed, memory, dtype, rounds, threads, offset, key
            Passed on to :class:`dpftrl_fast.TreeNoise`. A ``seed`` is for tests: who knows it can
            take the noise away again.

        Raises
        ------
        TypeError, ValueError
            If ``offset + size`` exceeds 2^36, or as :class:`dpftrl_fast.TreeNoise` says.

        Examples
        --------
        >>> plan = PrivacyPlan(clip_norm=0.5, noise_multiplier=4.0, participation=SinglePass(10))
        >>> noise = plan.noise(3)
        >>> noise.step().shape, noise.steps_taken, noise.steps
        ((3,), 1, 10)
        """
        _check_coordinates(size, offset)
        return PlannedNoise(
            size,
            _std_up(self.clip_norm, self.noise_multiplier, dtype),
            seed=seed,
            variant=self.variant,
            memory=memory,
            dtype=dtype,
            rounds=rounds,
            threads=threads,
            offset=offset,
            key=key,
            steps=self.steps,
            restart_every=self.restart_every,
            complete=bool(self.complete),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that :meth:`from_dict` reads back exactly.

        Examples
        --------
        >>> plan = PrivacyPlan(0.5, 4.0, SinglePass(10))
        >>> PrivacyPlan.from_dict(plan.to_dict()) == plan
        True
        """
        fields = {name: getattr(self, name) for name in _FIELDS}
        fields["participation"] = self.participation.to_dict()
        return {"format": _FORMAT, "version": _VERSION, **fields}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> PrivacyPlan:
        """Read back what :meth:`to_dict` wrote; keys that are missing or unknown are refused.

        Raises
        ------
        TypeError, ValueError
            If ``d`` is not a mapping, is of another format or version, or a field is wrong.
        """
        if not isinstance(d, Mapping):
            raise TypeError(f"a plan must be a mapping, got {type(d).__name__}")
        if d.get("format") != _FORMAT:
            raise ValueError(f"format must be {_FORMAT!r}, got {d.get('format')!r}")
        version = d.get("version")
        if isinstance(version, bool) or version != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {version!r}")
        expected = {"format", "version", *_FIELDS}
        if unknown := sorted(map(str, set(d) - expected)):
            raise ValueError(f"a plan must have the keys {sorted(expected)}, got also {unknown}")
        if missing := sorted(expected - set(d)):
            raise ValueError(f"a plan must have the keys {sorted(expected)}, got none of {missing}")
        fields = {name: d[name] for name in _FIELDS}
        fields["participation"] = participation_from_dict(fields["participation"])
        return cls(**fields)

    def describe(self, delta: float) -> str:
        """Return lines of text: what is promised at ``delta``, and against which neighbours.

        Numbers printed as privacy losses are rounded up.

        Examples
        --------
        >>> print(PrivacyPlan(1.0, 2.33, SinglePass(1600)).describe(1e-6))
        epsilon 7.342 at delta 1e-06 (neighbours: one record's gradients replaced by zero)
        epsilon 17 at delta 1e-06 (neighbours: one record's gradients replaced by another's)
        delta includes 4.469e-13 for the finite tail of the noise (8.951e-13 for the second line)
        1600 steps, each record in at most one of them; one tree, honaker
        clip norm 1.0, noise multiplier 2.33, zeta 11, mu 1.424
        """
        total = probability("delta", delta)
        by_zero = "neighbours: one record's gradients replaced by zero"
        by_other = "neighbours: one record's gradients replaced by another's"
        floors = [text_up(self._floor("zero-out")), text_up(self._floor("replace-one"))]
        if total > self._floor("replace-one"):
            second = f"epsilon {text_up(self.epsilon(total, neighbours='replace-one'))}"
        else:
            second = "no epsilon"
        return "\n".join(
            [
                f"epsilon {text_up(self.epsilon(total))} at delta {total!r} ({by_zero})",
                f"{second} at delta {total!r} ({by_other})",
                f"delta includes {floors[0]} for the finite tail of the noise"
                f" ({floors[1]} for the second line)",
                f"{self.steps} steps, each record in at most one of them; {self._trees()}",
                f"clip norm {self.clip_norm!r}, noise multiplier {self.noise_multiplier!r},"
                f" zeta {self.sensitivity_squared}, mu {text_up(self.mu)}",
            ]
        )

    def _trees(self) -> str:
        if self.restart_every is None or self.restart_every >= self.steps:
            trees = "one tree" + (", completed" if self.complete == "all" else "")
        else:
            trees = f"a new tree every {self.restart_every} steps"
            if self.complete:
                trees += ", each completed" if self.complete == "all" else ", completed before it"
        return f"{trees}, {self.variant}"


def _check_participation(participation: Participation) -> Participation:
    if not isinstance(participation, SinglePass):
        raise TypeError(f"participation must be a SinglePass, got {type(participation).__name__}")
    return participation


def _std_up(clip_norm: float, noise_multiplier: float, dtype: Any) -> float:
    """Return the smallest number of the dtype that is not below the product."""
    exact = Fraction(clip_norm) * Fraction(noise_multiplier)
    kind = np.dtype(dtype_name(dtype)).type
    with np.errstate(over="ignore", under="ignore"):
        std = kind(float(exact))
    if not np.isfinite(std):  # TreeNoise says what it can take
        return float(exact)
    return float(std if Fraction(float(std)) >= exact else np.nextafter(std, kind(np.inf)))


def _check_coordinates(size: Any, offset: Any) -> None:
    # What is not an integer is left to TreeNoise to refuse.
    if isinstance(size, Integral) and isinstance(offset, Integral):
        end = int(offset) + int(size)
        if end > MAX_COORDINATES:
            raise ValueError(f"offset + size must be at most 2^36 = {MAX_COORDINATES}, got {end}")


def _scale(neighbours: Neighbours) -> int:
    if neighbours not in ("zero-out", "replace-one"):
        raise ValueError(f'neighbours must be "zero-out" or "replace-one", got {neighbours!r}')
    return 2 if neighbours == "replace-one" else 1
