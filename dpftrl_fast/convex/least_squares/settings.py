# SPDX-License-Identifier: Apache-2.0
"""Settings of a run of private least squares, shared by the command line and the estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from dpftrl_fast.convex.common_settings import CommonSettings
from dpftrl_fast.convex.least_squares.choice import chosen_noise
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import DEFAULT_SPLIT, LeastSquaresPlan
from dpftrl_fast.convex.least_squares.solver import Solver
from dpftrl_fast.plan.from_budget import participation_of

#: kappa of a plan with `intervals`: 3 % more noise in the sums of y x.
SQUARES = 0.25
# Rows of a step.
_BATCH, _LARGEST_BATCH = 256, 1 << 16


@dataclass(frozen=True)
class LeastSquaresSettings(CommonSettings):
    """Settings of a run of private least squares: one pass, a regression, single records.

    Parameters
    ----------
    epsilon, delta, noise_multiplier, batch_size, radius, variant, noise_seed
        As for `FitSettings`. In a ball each model is the exact minimiser.
    mechanism
        "auto" or as for `LeastSquaresPlan`: "auto" is the mechanism of least noise in the last
        model, or with `solve_every` in the models of all steps.
    split : float
        Share of mu^2 for the sum of y x.
    ridge_factor : float
        lambda_t/2 in units of L^2 sigma_c sqrt(v_t p), see `docs/sklearn/least_squares.md`.
    alpha : float
        Ridge penalty alpha ||theta||^2, not on the constant; the ridge is at least lambda_t/2.
    intervals : bool
        Release sums of y^2 too, for standard errors.
    sample_weight_bound : float
        Unit of the weights of rows, and their largest value.
    complete
        As for `LeastSquaresPlan`.
    solve_every, solver, memory
        As for `LeastSquares`.

    Raises
    ------
    TypeError, ValueError
        If a value breaks the rule of its name.
    """

    split: float = DEFAULT_SPLIT
    ridge_factor: float = 2.0
    alpha: float = 0.0
    intervals: bool = False
    sample_weight_bound: float = 1.0
    complete: Literal[False, "all", "auto"] = "auto"
    solve_every: int | None = None
    solver: Solver = "auto"
    memory: Literal["stored", "regenerate"] | int = "stored"

    method: ClassVar[Literal["least-squares"]] = "least-squares"

    def resolved(self, units: int, *, regret: bool = False) -> LeastSquaresSettings:
        """Return the settings with a number in place of an "auto" batch size.

        The last model has the least noise if all rows are in one step. So that a batch fits into
        memory it has at most 65,536 rows. Where models of earlier steps are asked for, by
        `solve_every` or `regret`, a batch has 256 rows.

        Examples
        --------
        >>> LeastSquaresSettings().resolved(1000).batch_size
        1000
        >>> LeastSquaresSettings(solve_every=1).resolved(1000).batch_size
        256
        """
        if self.batch_size != "auto":
            return self
        many = regret or self.solve_every is not None
        return replace(self, batch_size=min(units, _BATCH if many else _LARGEST_BATCH))

    def plan(
        self,
        units: int,
        *,
        x_norm_bound: float,
        y_bound: float,
        constant: float = 0.0,
        regret: bool = False,
        targets: int = 1,
        long_rows: Literal["scale", "weight"] = "scale",
    ) -> LeastSquaresPlan:
        """Return the plan of a run over this many rows within these bounds.

        `regret` is that of `start`: models are then made at every step. `targets` and `long_rows`
        are those of the plan.
        """
        if self.batch_size == "auto":
            raise ValueError("batch_size must be a number for a plan, got 'auto'")
        participation = participation_of(units, self.batch_size, 1, False)
        every = 1 if self.solve_every is None and regret else self.solve_every
        mechanism = chosen_noise(
            self.mechanism,
            participation,
            epsilon=1.0 if self.epsilon is None else self.epsilon,
            delta=self.delta,
            models="last" if every is None or every >= participation.steps else "all",
            complete=self.complete,
            variant=self.variant,
        )
        fields: dict[str, Any] = {
            "x_norm_bound": x_norm_bound,
            "y_bound": y_bound,
            "participation": participation,
            "split": self.split,
            "mechanism": mechanism,
            "complete": self.complete,
            "variant": self.variant,
            "constant": constant,
            "targets": targets,
            "squares": SQUARES if self.intervals else 0.0,
            "long_rows": long_rows,
        }
        if self.noise_multiplier is not None:
            plan = LeastSquaresPlan(noise_multiplier=self.noise_multiplier, **fields)
            plan.epsilon(self.delta)  # refuses a delta at which no epsilon can be stated
            return plan
        assert self.epsilon is not None  # one of the two is given
        return LeastSquaresPlan.calibrate(epsilon=self.epsilon, delta=self.delta, **fields)

    def start(
        self,
        plan: LeastSquaresPlan,
        n_features: int,
        *,
        threads: int | None = None,
        regret: bool = False,
        radii: Sequence[float] | None = None,
        unpenalised: int = 0,
    ) -> LeastSquares:
        """Return an engine with a fresh key.

        `radii` are those of several targets; of the features, the last `unpenalised` are free of
        the penalty.
        """
        return LeastSquares(
            plan,
            n_features,
            radius=self.radius if radii is None else radii,
            ridge_factor=self.ridge_factor,
            solve_every=1 if self.solve_every is None and regret else self.solve_every,
            solver=self.solver,
            memory=self.memory,
            seed=self.noise_seed,
            threads=threads,
            regret=regret,
            penalty=self.alpha / self.sample_weight_bound,
            unpenalised=unpenalised,
        )
