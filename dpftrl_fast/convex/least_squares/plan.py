# SPDX-License-Identifier: Apache-2.0
"""The plan of private least squares: two sums with noise of one mechanism, one promise.

The bias is the sum of y x (sensitivity L y_bound), the covariance that of x x^T (Frobenius
sensitivity L^2), L being the bound on the norm of a row, constant column included. One pattern of
participation hits both, so that with noise multipliers sigma_b and sigma_c all noisy sums together
are one Gaussian mechanism with

    mu^2 = zeta (1/sigma_b^2 + 1/sigma_c^2) = zeta/sigma^2.

sigma is the plan's `noise_multiplier`; sigma_b = sigma/sqrt(split), sigma_c = sigma/sqrt(1-split).
With m targets of a row and kappa times the sums of their squares, the bias has the sensitivity
L y_bound sqrt(m (1 + kappa^2)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import (
    choice,
    non_negative,
    positive,
    positive_integer,
    probability,
    real,
    shown,
)
from dpftrl_fast.accounting import noise_std
from dpftrl_fast.accounting.curve.rounding import smallest_double
from dpftrl_fast.accounting.participation import Participation, check_participation
from dpftrl_fast.accounting.sensitivity.delta_floor import calibrated_noise_multiplier
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement, compose
from dpftrl_fast.convex.least_squares.completion import best_completion, single_block
from dpftrl_fast.convex.least_squares.plan_text import fields_from_dict, fields_to_dict, plan_words
from dpftrl_fast.mechanisms import Mechanism, ToeplitzMechanism, Tree, TreeLayout, Variant
from dpftrl_fast.mechanisms.tree_error import prefix_variance
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import clip_limit

#: Best or within 0.001 of it in held-out R^2 on the flights at epsilon 0.3, 1 and 3.
DEFAULT_SPLIT = 0.35


@dataclass(frozen=True)
class LeastSquaresPlan(PrivacyStatement):
    """Everything that decides the privacy of a least-squares run, public and fixed before it.

    Parameters
    ----------
    x_norm_bound : float
        To which the norm of each row is scaled down.
    y_bound : float
        To which |y| is clipped.
    noise_multiplier : float
        sigma, finite and > 0: what one noisy sum with the same mu would have.
    participation : SinglePass, FixedEpochs, FixedOrder or MinSeparation
        Who takes part when, and the declared number of steps. One tree or block holds them all: to
        run over the same rows again, or to restart, adds noise and no information to these sums.
    split : float
        Share of mu^2 for the bias, strictly between 0 and 1.
    complete : bool, "all" or "auto"
        Whether a tree is advanced to the next power of two after the last step, for a last model
        from a single node: "all" does, False does not, "auto" chooses what has less noise in the
        last model at the same epsilon.
    variant : {"honaker", "vanilla"}
        Estimator of the noise, of a tree.
    bound
        As for :class:`dpftrl_fast.PrivacyPlan`.
    constant : float
        Entry of a constant column that is put behind each row, for an intercept; 0 for none. It
        counts in the sensitivities: L = sqrt(x_norm_bound^2 + constant^2).
    mechanism : "tree" or Mechanism
        Of both noises: the tree of `complete` and `variant`, a `Tree` without restarts (it sets
        these two), or a Toeplitz mechanism in one block, whose coefficients are rounded to float32.
        :func:`dpftrl_fast.convex.least_squares.choice.chosen_noise` chooses.
    targets : int
        Targets of a row (m), each within `y_bound`.
    squares : float
        Weight kappa of the sums of y^2, released beside those of y x in units of L/y_bound; 0 for
        none, at most 1e3.
    long_rows : {"scale", "weight"}
        Whether a row beyond `x_norm_bound` is scaled alone, or its constant and its targets with
        it. The sensitivities are the same.

    Raises
    ------
    TypeError, ValueError
        If a field is not what is described above (NaN is not).

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(1045))
    >>> plan.complete, round(plan.epsilon(1e-6), 3)
    ('all', 1.037)
    """

    x_norm_bound: float
    y_bound: float
    noise_multiplier: float
    participation: Participation
    split: float = DEFAULT_SPLIT
    complete: Literal[False, "all", "auto"] = "auto"
    variant: Variant = "honaker"
    bound: PlanBound = "released"
    constant: float = 0.0
    mechanism: Literal["tree"] | Mechanism = "tree"
    targets: int = 1
    squares: float = 0.0
    long_rows: Literal["scale", "weight"] = "scale"
    # The bias of the plan that this one was calibrated from: its sensitivity is this one's.
    _origin: PrivacyPlan | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("x_norm_bound", "y_bound", "noise_multiplier"):
            set_field(self, name, positive(name, getattr(self, name)))
        set_field(self, "constant", non_negative("constant", self.constant))
        set_field(self, "split", probability("split", self.split))
        set_field(self, "targets", positive_integer("targets", self.targets))
        set_field(self, "squares", real("squares", self.squares, least=0.0, most=1e3))
        set_field(self, "long_rows", choice("long_rows", self.long_rows, ("scale", "weight")))
        check_participation(self.participation)
        complete: Any = self.complete
        if isinstance(complete, np.bool_):
            complete = bool(complete)
        if not (complete is False or (isinstance(complete, str) and complete in ("all", "auto"))):
            raise ValueError(f'complete must be False, "all" or "auto", got {shown(complete)}')
        mechanism, complete, variant = single_block(self.mechanism, complete, self.variant)
        set_field(self, "mechanism", mechanism)
        set_field(self, "variant", variant)
        if complete == "auto":
            complete = best_completion(self.participation, variant, self.bound)
        set_field(self, "complete", complete)
        self._covariance(self._bias(None))  # fields that do not fit together are refused here

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        x_norm_bound: float,
        y_bound: float,
        participation: Participation,
        split: float = DEFAULT_SPLIT,
        complete: Literal[False, "all", "auto"] = "auto",
        variant: Variant = "honaker",
        bound: PlanBound = "released",
        constant: float = 0.0,
        mechanism: Literal["tree"] | Mechanism = "tree",
        targets: int = 1,
        squares: float = 0.0,
        long_rows: Literal["scale", "weight"] = "scale",
    ) -> LeastSquaresPlan:
        """Return the plan with the least noise whose epsilon at ``delta`` is at most ``epsilon``.

        Parameters
        ----------
        epsilon : float
            Budget, finite and > 0, for zero-out neighbours.
        delta : float
            0 < delta < 1.
        x_norm_bound, y_bound, participation, split, complete, variant, bound, constant
            Fields of the plan.
        mechanism, targets, squares, long_rows
            Further fields of the plan.

        Raises
        ------
        TypeError, ValueError
            For anything that is not described above.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = LeastSquaresPlan.calibrate(
        ...     epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0,
        ...     participation=accounting.SinglePass(1045),
        ... )
        >>> round(plan.noise_multiplier, 3), plan.epsilon(1e-6) <= 1.0
        (13.448, True)
        """
        budget, total = positive("epsilon", epsilon), probability("delta", delta)
        draft = cls(
            x_norm_bound=x_norm_bound,
            y_bound=y_bound,
            noise_multiplier=1.0,
            participation=participation,
            split=split,
            complete=complete,
            variant=variant,
            bound=bound,
            constant=constant,
            mechanism=mechanism,
            targets=targets,
            squares=squares,
            long_rows=long_rows,
        )
        zeta, nodes = draft.sensitivity_squared, draft.bias.guarantee.touched

        def holds(sigma: float) -> bool:
            return replace(draft._promised(sigma), otherwise=None).delta(budget) <= total

        # One of the two has half the floor: a guess from below.
        guess = calibrated_noise_multiplier(budget, total, zeta, nodes)
        plan = replace(draft, noise_multiplier=smallest_double(holds, guess))
        object.__setattr__(plan, "_origin", draft.bias)
        return plan

    @property
    def row_norm(self) -> float:
        """L, the bound on the norm of a row with its constant column."""
        return math.hypot(self.x_norm_bound, self.constant)

    @cached_property
    def bias(self) -> PrivacyPlan:
        """The noisy sum of y x, with noise multiplier sigma/sqrt(split).

        Its clip norm is L y_bound, for one target without sums of squares.
        """
        return self._bias(self._origin)

    def _bias(self, origin: PrivacyPlan | None) -> PrivacyPlan:
        clip_norm = self.row_norm * self.y_bound
        # ||(y_k x, kappa L/y_bound y_k^2)_k|| with |y_k| <= y_bound and ||x|| <= L
        clip_norm *= math.sqrt(self.targets * (1.0 + self.squares**2))
        sigma, _ = self._sigmas(self.noise_multiplier)
        if origin is not None:
            return origin.with_noise(sigma, clip_norm=clip_norm)
        return PrivacyPlan(
            clip_norm=clip_norm,
            noise_multiplier=sigma,
            participation=self.participation,
            mechanism=self._noise_mechanism,
            bound=self.bound,
        )

    @property
    def _noise_mechanism(self) -> Tree | ToeplitzMechanism:
        if isinstance(self.mechanism, ToeplitzMechanism):
            return self.mechanism
        return Tree(self.variant, complete=self.complete != "auto" and self.complete)

    @cached_property
    def covariance(self) -> PrivacyPlan:
        """The noisy sum of x x^T: clip norm L^2, noise multiplier sigma/sqrt(1 - split)."""
        return self._covariance(self.bias)

    def _covariance(self, bias: PrivacyPlan) -> PrivacyPlan:
        _, sigma = self._sigmas(self.noise_multiplier)
        return bias.with_noise(sigma, clip_norm=self.row_norm**2)

    def _sigmas(self, noise_multiplier: float) -> tuple[float, float]:
        return (
            noise_multiplier / math.sqrt(self.split),
            noise_multiplier / math.sqrt(1.0 - self.split),
        )

    @property
    def square_weight(self) -> float:
        """Factor of the sums of y^2 in the bias: kappa L/y_bound."""
        return clip_limit(self.squares) * (self.row_norm / self.y_bound)

    def bias_size(self, p: int) -> int:
        """Return the coordinates of the bias: targets times p, or with sums of y^2 times p + 1."""
        return self.targets * (p + (self.squares > 0))

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self.participation.steps

    @property
    def sensitivity_squared(self) -> int | float:
        """Squared sensitivity (zeta) of each sum, in units of its clip norm squared."""
        return self.bias.sensitivity_squared

    @cached_property
    def guarantee(self) -> Guarantee:
        """Both sums together: their mu^2 and their floors add up."""
        return self._promised(self.noise_multiplier)

    def _promised(self, noise_multiplier: float) -> Guarantee:
        one = self.bias.guarantee
        return compose([one.with_noise(sigma) for sigma in self._sigmas(noise_multiplier)])

    @cached_property
    def last_leaf(self) -> int:
        """The step whose noise the last model has: past the last one if a tree is completed."""
        layout = self._noise_mechanism.layout(self.steps)
        return layout.tallest if isinstance(layout, TreeLayout) else self.steps

    @cached_property
    def variance_factors(self) -> NDArray[np.float64]:
        """Variance of the noise at each step (v_t), of shape (steps,), for unit noise vectors.

        The last one is that of the last model: of the completed tree, if it is completed.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(3), complete="all")
        >>> plan.variance_factors.round(4).tolist()
        [1.0, 0.6667, 0.5714]
        """
        mechanism = self._noise_mechanism
        if isinstance(mechanism, Tree):
            factors = noise_std(self.steps, Tree(self.variant)).prefix ** 2
            factors[-1] = prefix_variance(self.last_leaf, self.variant)
        else:
            factors = noise_std(self.steps, mechanism).prefix ** 2
        factors.flags.writeable = False
        return factors

    def half_ridge(self, t: int, p: int, factor: float) -> float:
        """Return lambda_t / 2 = factor L^2 sigma_c sqrt(v_t p), of public quantities only.

        Parameters
        ----------
        t : int
            Step, from 1 to `steps`.
        p : int
            Columns.
        factor : float
            The noise of W_t has a spectral norm of about sqrt(2) in these units.
        """
        variance = float(self.variance_factors[t - 1])
        covariance = self.covariance
        return factor * covariance.clip_norm * covariance.noise_multiplier * math.sqrt(variance * p)

    def noise(
        self,
        p: int,
        *,
        seed: Seed = None,
        memory: Literal["stored", "regenerate"] | int = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        rounds: int = 12,
        threads: int | None = None,
    ) -> tuple[PlannedNoise, PlannedNoise]:
        """Return the noise of the bias (float64) and of the packed covariance, with a key each.

        The second one has p (p + 1) / 2 coordinates, all of standard deviation L^2 sigma_c: those
        off the diagonal are divided by sqrt(2) where they are added.

        Parameters
        ----------
        p : int
            Columns; p (p + 1) / 2 at most 2^36.
        seed
            For tests only: who knows it can take the noise away again.
        memory, dtype
            Of the covariance's noise, as for :class:`dpftrl_fast.TreeNoise`.
        rounds, threads
            As for :class:`dpftrl_fast.TreeNoise`.

        Raises
        ------
        TypeError, ValueError
            If a size is beyond 2^36, or as :class:`dpftrl_fast.TreeNoise` says.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(3))
        >>> bias, covariance = plan.noise(10)
        >>> bias.size, covariance.size, covariance.std / bias.std < 1
        (10, 55, True)
        """
        size = p * (p + 1) // 2
        # Unrelated to the stream of the bias, under one seed too. Sizes are checked here first.
        covariance = replace(self.covariance.noise_spec, purpose="covariance").source(
            size, seed=seed, memory=memory, dtype=dtype, rounds=rounds, threads=threads
        )
        bias = self.bias.noise(
            self.bias_size(p), seed=seed, dtype="float64", rounds=rounds, threads=threads
        )
        return bias, covariance

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able dictionary that :meth:`from_dict` reads back exactly.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = LeastSquaresPlan(1.0, 1.0, 13.0, accounting.SinglePass(10))
        >>> LeastSquaresPlan.from_dict(plan.to_dict()) == plan
        True
        """
        return fields_to_dict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> LeastSquaresPlan:
        """Read back what :meth:`to_dict` wrote; keys that are missing or unknown are refused.

        Raises
        ------
        TypeError, ValueError
            If ``d`` is not a mapping, is of another format or version, or a field is wrong.
        """
        return cls(**fields_from_dict(d))

    def describe(self, delta: float) -> str:
        """Return lines of text: what is promised at ``delta``, and against which neighbours.

        Numbers printed as privacy losses are rounded up.
        """
        return plan_words(self, delta)
