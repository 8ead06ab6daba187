# SPDX-License-Identifier: Apache-2.0
"""The privacy plan: one frozen object that makes the noise and states the epsilon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dpftrl_fast._validate import integer, norm_bound, positive, probability
from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import Participation, check_participation
from dpftrl_fast.accounting.planner.choice import (
    MAX_VECTORS,
    MechanismChoice,
    chosen_mechanism,
)
from dpftrl_fast.accounting.planner.mechanisms import MechanismRow
from dpftrl_fast.accounting.planner.schedules import Schedule
from dpftrl_fast.accounting.sensitivity.delta_floor import (
    MAX_COORDINATES,
    calibrated_noise_multiplier,
)
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, check_plan_bound, rule_of
from dpftrl_fast.accounting.statement.computed import computed_epsilon
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours
from dpftrl_fast.mechanisms import Layout, Mechanism, ToeplitzLayout, Tree
from dpftrl_fast.mechanisms.mechanism import check_mechanism
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.noise_spec import NoiseSpec
from dpftrl_fast.plan.plan_ends import PlanEnds
from dpftrl_fast.plan.plan_file import fields_from_dict, fields_to_dict, read_json, write_json
from dpftrl_fast.plan.plan_text import participation_words
from dpftrl_fast.plan.planned_noise import PlannedNoise


@dataclass(frozen=True)
class PrivacyPlan(PlanEnds):
    """Everything that decides the privacy of a run, public and fixed before the run.

    Parameters
    ----------
    clip_norm : float
        L2 norm to which each contribution is clipped (L), finite and > 0.
    noise_multiplier : float
        Standard deviation of a node's noise in units of the clip norm (sigma), finite and > 0.
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation
        Who takes part when, and the declared number of steps.
    mechanism : Mechanism
        The correlation of the noise: by default one tree without restarts. Coefficients of the
        other kinds must be numbers of the noise's dtype, see ``mechanism.rounded``.
    bound : {"exact", "released"}
        Whether the epsilon is stated for every node of a tree, or only for the prefixes, which
        are all that the noise of a plan releases. For other mechanisms the two are one.

    Raises
    ------
    TypeError, ValueError
        If a field is not as above, or the fields do not fit together.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one record's (or one user's) gradients, replaced by
    zero ("zero-out"), or by another's ("replace-one"). :meth:`epsilon` states epsilon for the
    outputs of all declared steps together, whether or not the stream ends early, with data and
    models chosen adaptively. The caller must clip each contribution to `clip_norm`, let records
    take part only as declared (:meth:`guard` checks it), and add each value of the noise to one sum
    only, rounding the noisy sum to ``noise.grid`` before it is released. delta includes the floor
    of the noise stream, see :attr:`delta_floor`; docs/guarantees/floating_point.md bounds the rest
    of floating point.

    :meth:`calibrate` chooses the mechanism for a budget, or spends it on one that is given.
    :func:`dpftrl_fast.accounting.plan_mechanism` ranks all mechanisms in a table.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
    >>> plan.sensitivity_squared
    11
    >>> round(plan.epsilon(1e-6), 3)
    7.342
    """

    clip_norm: float
    noise_multiplier: float
    participation: Participation
    mechanism: Mechanism = Tree()
    bound: PlanBound = "exact"
    # The plan that this one was made from by `with_noise`: its sensitivity is this one's.
    _origin: PrivacyPlan | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "clip_norm", norm_bound("clip_norm", self.clip_norm))
        set_field(self, "noise_multiplier", positive("noise_multiplier", self.noise_multiplier))
        positive("clip_norm * noise_multiplier", self.clip_norm * self.noise_multiplier)
        check_participation(self.participation)
        check_mechanism(self.mechanism)
        check_plan_bound(self.bound)
        self.layout  # noqa: B018 - a mechanism that does not fit the steps is refused here

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        clip_norm: float,
        participation: Participation,
        mechanism: MechanismChoice = "auto",
        bound: PlanBound = "exact",
        workload: Workload = Workload(),
        max_vectors: int | None = MAX_VECTORS,
    ) -> PrivacyPlan:
        """Return the plan with the least noise whose epsilon at ``delta`` is at most ``epsilon``.

        Parameters
        ----------
        epsilon : float
            Budget, finite and > 0, for zero-out neighbours.
        delta : float
            0 < delta < 1.
        clip_norm, participation, bound
            The other fields of the plan.
        mechanism : Mechanism, "auto" or "tree"
            "auto" chooses the mechanism of least error for the workload, of those that keep at most
            ``max_vectors`` vectors; "tree" chooses the best tree. For a table of all of them see
            :func:`dpftrl_fast.accounting.plan_mechanism`.
        workload : Workload
            What the run computes from the noisy sums: momentum, weight decay, learning rates.
        max_vectors : int or None
            Vectors that a mechanism chosen by "auto" keeps between steps.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan.calibrate(
        ...     epsilon=1.0, delta=1e-6, clip_norm=0.3, participation=accounting.SinglePass(1600),
        ...     mechanism=Tree(),
        ... )
        >>> round(plan.noise_multiplier, 3), plan.epsilon(1e-6) <= 1.0
        (14.012, True)
        """
        budget, total = positive("epsilon", epsilon), probability("delta", delta)
        chosen = chosen_mechanism(
            mechanism,
            check_participation(participation),
            budget,
            total,
            workload=workload,
            max_vectors=max_vectors,
            bound=check_plan_bound(bound),
        )
        draft = cls(
            clip_norm=clip_norm,
            noise_multiplier=1.0,
            participation=participation,
            mechanism=chosen,
            bound=bound,
        )
        zeta, nodes = draft.sensitivity_squared, draft.guarantee.touched
        return draft.with_noise(calibrated_noise_multiplier(budget, total, zeta, nodes))

    @classmethod
    def from_schedule(cls, schedule: Schedule | MechanismRow, *, clip_norm: float) -> PrivacyPlan:
        """Return the plan of a row of a planner's table.

        Parameters
        ----------
        schedule : Schedule or MechanismRow
            A row of :func:`dpftrl_fast.accounting.plan_schedule` or of
            :func:`dpftrl_fast.accounting.plan_mechanism`: participation, mechanism and noise
            multiplier, which keep the budget of the table.
        clip_norm : float
            L2 norm to which each contribution is clipped (L).

        Raises
        ------
        TypeError
            If it is not such a row.
        ValueError
            If it is DP-SGD with sampling, which is in a table for comparison only.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> row = accounting.plan_schedule(8, 1e-5, 100, 100, bound="exact").best
        >>> plan = PrivacyPlan.from_schedule(row, clip_norm=1.0)
        >>> plan.mechanism.restart_every, plan.mechanism.complete, plan.epsilon(1e-5) <= 8
        (500, True, True)
        """
        if not isinstance(schedule, (Schedule, MechanismRow)):
            raise TypeError(
                "schedule must be a row of plan_schedule or plan_mechanism, got "
                f"{type(schedule).__name__}"
            )
        bound: PlanBound = "released"
        if isinstance(schedule, Schedule):
            bound = schedule.bound
        elif schedule.needs_sampling:
            raise ValueError(
                "schedule must be a mechanism without sampling, got DP-SGD with Poisson sampling: "
                "its noise multiplier does not keep the budget for a declared order of the data"
            )
        return cls(
            clip_norm=clip_norm,
            noise_multiplier=schedule.noise_multiplier,
            participation=schedule.participation,
            mechanism=schedule.mechanism,
            bound=bound,
        )

    @cached_property
    def layout(self) -> Layout:
        """The mechanism, laid out over the declared steps."""
        return self.mechanism.layout(self.steps)

    @property
    def sensitivity_squared(self) -> int | float:
        """Squared sensitivity (zeta) under the plan's bound, in units of the clip norm squared."""
        return self.guarantee.mechanisms[0].sensitivity_squared

    @cached_property
    def guarantee(self) -> Guarantee:
        """The Gaussian mechanism of the run; its sensitivity can take seconds to compute."""
        if self._origin is not None:
            return self._origin.guarantee.with_noise(self.noise_multiplier)
        return Guarantee.of(
            self.noise_multiplier,
            self.participation,
            self.layout,
            bound=self.bound,
        )

    def with_noise(self, noise_multiplier: float, *, clip_norm: float | None = None) -> PrivacyPlan:
        """Return this plan with another noise multiplier; its sensitivity is not computed again.

        Parameters
        ----------
        noise_multiplier : float
            sigma, finite and > 0.
        clip_norm : float, optional
            L of the new plan; default that of this one.
        """
        clip = self.clip_norm if clip_norm is None else clip_norm
        plan = replace(self, noise_multiplier=noise_multiplier, clip_norm=clip)
        object.__setattr__(plan, "_origin", self._origin or self)
        return plan

    @property
    def noise_spec(self) -> NoiseSpec:
        """The noise of this plan, which makes it: on the CPU, for a shard, or on a device."""
        return NoiseSpec(self.clip_norm, self.noise_multiplier, self.layout)

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
        """Return the noise of this plan: standard deviation ``clip_norm * noise_multiplier``.

        The standard deviation is rounded up to the dtype. The noise restarts where the plan says
        and refuses steps past the declared ones.

        Parameters
        ----------
        size : int
            Number of coordinates; ``offset + size`` at most 2^36.
        seed, memory, dtype, rounds, threads, offset, key
            As for :class:`dpftrl_fast.TreeNoise` or :class:`dpftrl_fast.ToeplitzNoise`, as the
            mechanism is. A ``seed`` is for tests: the noise can be removed by anyone who knows it.

        Raises
        ------
        TypeError, ValueError
            If an option is not as described there, or the coefficients of the mechanism are no
            numbers of the dtype: the epsilon is not that of rounded ones.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan(0.5, 4.0, accounting.SinglePass(10))
        >>> noise = plan.noise(3)
        >>> noise.step().shape, noise.steps_taken, noise.steps
        ((3,), 1, 10)
        """
        return self.noise_spec.source(
            size,
            seed=seed,
            memory=memory,
            dtype=dtype,
            rounds=rounds,
            threads=threads,
            offset=offset,
            key=key,
        )

    def guard(self) -> Guard:
        """Return the guard that refuses, step by step, participation beyond the declared.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> guard = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600)).guard()
        >>> guard.admit([7, 8])
        >>> guard.eligible([8, 9]).tolist()
        [False, True]
        """
        return Guard(self.participation, self.mechanism)

    def ledger(self, *, realised: bool = False) -> Ledger:
        """Return a guard of this plan that also states its epsilon.

        Parameters
        ----------
        realised : bool
            Also count the squared sensitivity that each id realised, for internal use; see
            :class:`dpftrl_fast.accounting.Ledger`.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> ledger = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600)).ledger()
        >>> ledger.record([7, 8])
        >>> round(ledger.epsilon_spent(1e-6), 3)  # the plan's, from the first step on
        7.342
        """
        return Ledger.of(self, realised=realised)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that :meth:`from_dict` reads back exactly.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan(0.5, 4.0, accounting.SinglePass(10))
        >>> PrivacyPlan.from_dict(plan.to_dict()) == plan
        True
        """
        return fields_to_dict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> PrivacyPlan:
        """Return the plan of a dictionary of :meth:`to_dict`.

        Missing and unknown keys, another format or version, and wrong fields are refused.
        """
        return cls(**fields_from_dict(d))

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON to a file, whole or not at all; an older file is replaced."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> PrivacyPlan:
        """Read a file of :meth:`save`; ValueError if it is not a plan of a known version."""
        return cls.from_dict(read_json(path))

    def computed_epsilon(
        self, delta: float, dimension: int, *, neighbours: Neighbours = "zero-out"
    ) -> float:
        """Return the epsilon of the whole run at `delta` for the noise as it is computed.

        :meth:`epsilon` is that of real normals. This one adds what the distance of computed float64
        normals and of their sums can change at most, in all coordinates and steps together.

        Parameters
        ----------
        delta : float
            0 < delta < 1.
        dimension : int
            Number of coordinates of the sums (d), 1 to 2^36.
        neighbours : {"zero-out", "replace-one"}
            As for :meth:`epsilon`.

        Raises
        ------
        ValueError
            If the bound is of no use for so many coordinates and steps.

        Notes
        -----
        For noise of dtype float64, added to sums that are rounded to ``noise.grid``, as all front
        ends do. There is no such figure for float32 noise. docs/guarantees/floating_point.md has
        the proof.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> round(plan.computed_epsilon(1e-6, 10_000) - plan.epsilon(1e-6), 3)
        0.001
        """
        total = probability("delta", delta)
        size = integer("dimension", dimension, 1, MAX_COORDINATES)
        spec = self.noise_spec
        grid = spec.grid("float64") / spec.std("float64")
        sigma, zeta = self.guarantee.as_one(neighbours=neighbours)
        return computed_epsilon(sigma, zeta, total, self.layout, grid, size)

    def describe(self, delta: float) -> str:
        """Return lines of text: epsilon at ``delta`` for both neighbours, rounded up, and the plan.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
        >>> print(plan.describe(1e-6))  # doctest: +NORMALIZE_WHITESPACE
        epsilon 7.342 at delta 1e-06
            (neighbours: one record's (or user's) gradients replaced by zero)
        epsilon 17 at delta 1e-06
            (neighbours: one record's (or user's) gradients replaced by another's)
        delta includes 4.469e-13 for the finite tail of the noise (8.951e-13 for the second line)
        1600 steps, each record (or user) in at most one of them; one tree, honaker
        clip norm 1.0, noise multiplier 2.33, zeta 11, mu 1.424
        """
        zeta = f"zeta {self.sensitivity_squared}"
        if isinstance(self.layout, ToeplitzLayout):  # of which "exact" and "released" are one
            rule = rule_of(self.layout, self.participation, self.bound)
            zeta = f"zeta {text_up(self.sensitivity_squared)} ({rule})"
        elif self.bound == "released":
            zeta = f"zeta {text_up(self.sensitivity_squared)} of the released prefixes"
        pattern, layout = participation_words(self.participation), self.layout.describe()
        return (
            f"{self.promise(delta)}\n{pattern}; {layout}\n"
            f"clip norm {float(f'{self.clip_norm:.6g}')!r}, "
            f"noise multiplier {self.noise_multiplier!r}, {zeta}, mu {text_up(self.mu)}"
        )
