# SPDX-License-Identifier: Apache-2.0
"""Settings of a fit by DP-FTRL, shared by the command line and the estimators.

One rule checks each name, and one method each makes the plan and the engine: the same request has
the same defaults, learning rate and noise wherever it is made. Those of least squares are in
`convex.least_squares.settings`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from dpftrl_fast._validate import choice
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.convex.common_settings import CommonSettings
from dpftrl_fast.convex.glm import defaults
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.rates import (
    MOST_STEPS,
    learning_rate,
    prediction_noise,
    stable_rate,
    tolerated_noise,
)
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.mechanisms import Completion
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.from_budget import mechanism_of, participation_of, plan_of
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

#: Losses of each task, the default first, with the default of their parameter.
LOSSES: dict[str, dict[str, float | None]] = {
    "regression": {"squared": None, "huber": 1.0, "epsilon_insensitive": 0.1, "quantile": 0.5},
    "classification": {"logistic": None, "hinge": None},
    "multinomial": {"multinomial": None, "hinge": None},
}


@dataclass(frozen=True)
class FitSettings(CommonSettings):
    """Settings of a fit by DP-FTRL, in which "auto" stands for a rule of `convex.glm.defaults`.

    Parameters
    ----------
    epsilon, delta : float
        Budget that the noise is calibrated to, for one record (or user) replaced by zero.
    noise_multiplier : float or None
        Noise multiplier sigma, instead of `epsilon`.
    batch_size : int or "auto"
        Rows of a step (users, if rows are grouped by user). Sums are divided by it.
    radius : float or None
        Radius of an L2 ball about zero that holds all iterates.
    mechanism : "auto", "tree" or Mechanism
        "auto" lets the planner choose the mechanism of least error, "tree" the best tree; given
        `restart_every`, `complete` or `variant` ask for a tree too.
    variant : {"honaker", "vanilla"}
        Estimator of the prefix noise, of a tree.
    noise_seed : int, bytes or None
        For tests: the noise follows from it, and the result is marked "reproducible, not private".
    epochs : int or "auto"
        Passes over the rows.
    learning_rate : float, "auto" or "theory"
        1/lambda, or a rule of `dpftrl_fast.convex.glm.rates.learning_rate`.
    clip_norm : float or "auto"
        Bound L on the gradient norm of each row (or user).
    loss : str or None
        One of `LOSSES`; None is the task's default.
    loss_param : float or None
        Parameter of the Huber (default 1), epsilon-insensitive (0.1) or quantile (0.5) loss.
    momentum : float or "auto"
        As for `dpftrl_fast.ftrl.FTRL`. "auto" is that of `dpftrl_fast.convex.glm.defaults` if the
        learning rate is "auto" too, and 0 otherwise.
    l1
        As for `dpftrl_fast.ftrl.FTRL`.
    restart_every, complete
        As for `dpftrl_fast.mechanisms.Tree`: "auto" lets the planner choose.
    bound : {"released", "exact"}
        Scope of the sensitivity of a tree: the running sums, which are all that a run uses, or all
        nodes. Other mechanisms release running sums only.

    Raises
    ------
    TypeError, ValueError
        If a value breaks the rule of its name.

    Examples
    --------
    >>> run = FitSettings(epsilon=2.0).resolved(10_000, Objective("squared", 5, row_bound=1.0))
    >>> run.batch_size, run.epochs, run.clip_norm, run.momentum
    (1250, 64, 0.1, 0.9)
    """

    epochs: int | Literal["auto"] = "auto"
    learning_rate: float | Literal["auto", "theory"] = "auto"
    clip_norm: float | Literal["auto"] = "auto"
    loss: str | None = None
    loss_param: float | None = None
    momentum: float | Literal["auto"] = "auto"
    l1: float = 0.0
    restart_every: int | Literal["auto"] | None = "auto"
    complete: Completion | Literal["auto"] = "auto"
    bound: PlanBound = "released"

    method: ClassVar[Literal["ftrl"]] = "ftrl"

    def loss_for(self, task: str) -> str:
        """Return the loss, by default the task's first."""
        losses = LOSSES[task]
        if self.loss is None:
            return next(iter(losses))
        return choice(f"loss of a {task} task", self.loss, tuple(losses))

    def loss_param_for(self, task: str) -> float | None:
        """Return the parameter of the loss, None for a loss without one."""
        loss = self.loss_for(task)
        default = LOSSES[task][loss]
        if default is None and self.loss_param is not None:
            having = [n for losses in LOSSES.values() for n, k in losses.items() if k is not None]
            raise ValueError(
                f"loss_param must be None for the loss {loss}, got {self.loss_param}: it is a "
                f"parameter of {', '.join(having)}"
            )
        return default if self.loss_param is None else self.loss_param

    def resolved(
        self,
        units: int,
        objective: Objective,
        *,
        shuffle: bool = False,
        rows_per_unit: float = 1.0,
    ) -> RunSettings:
        """Return the settings of a run: numbers in place of "auto", by `convex.glm.defaults`.

        Parameters
        ----------
        units : int
            Rows, or users.
        objective : Objective
            Loss, and bounds on the rows. Its clip norm is not read.
        shuffle : bool
            Whether each epoch may have an order of its own.
        rows_per_unit : float
            Mean number of rows of a user.
        """
        tolerated = tolerated_noise(objective, self.radius)
        batch_size = None if self.batch_size == "auto" else self.batch_size
        epochs = None if self.epochs == "auto" else self.epochs
        if self.epsilon is None and epochs is None:
            epochs = 1  # more would raise an epsilon that nobody has limited

        def tried(batch_size: int, epochs: int, clip_norm: float) -> RunSettings:
            momentum = self.momentum
            if momentum == "auto":
                steps = defaults.steps_of(units, batch_size, epochs)
                momentum = defaults.momentum(steps) if self.learning_rate == "auto" else 0.0
            numbers = {"epochs": epochs, "clip_norm": clip_norm, "momentum": momentum}
            return RunSettings(**{**vars(self), "batch_size": batch_size, **numbers})

        def noise(batch_size: int, epochs: int, clip_norm: float) -> float:
            if defaults.steps_of(units, batch_size, epochs) > MOST_STEPS:
                return 0.0  # so many steps come from so many rows
            run = tried(batch_size, epochs, clip_norm)
            rate = stable_rate(objective, run.momentum, rows_per_unit)
            plan = run.plan(units, shuffle=shuffle)
            return prediction_noise(objective, plan, batch_size=batch_size, rate=rate)

        clip_norm = self.clip_norm
        if clip_norm == "auto":
            largest = defaults.largest_gradient(objective, rows_per_unit)
            most = noise(*defaults.several_passes(units, batch_size, epochs), largest)
            clip_norm = defaults.clipped_share(objective, most, tolerated) * largest

        def passes_noise(batch_size: int, epochs: int) -> float:
            return noise(batch_size, epochs, clip_norm)

        schedule = defaults.schedule(units, batch_size, epochs, passes_noise, tolerated)
        run = tried(*schedule, clip_norm)
        if not isinstance(run.learning_rate, str):
            return run
        rate = learning_rate(
            run.learning_rate,
            objective,
            run.plan(units, shuffle=shuffle),
            batch_size=run.batch_size,
            momentum=run.momentum,
            radius=run.radius,
            rows_per_unit=rows_per_unit,
        )
        return replace(run, learning_rate=rate)


@dataclass(frozen=True)
class RunSettings(FitSettings):
    """`FitSettings` with numbers only, as a run needs them; the learning rate may be a rule.

    Examples
    --------
    >>> settings = RunSettings(epsilon=2.0, batch_size=100)
    >>> plan = settings.plan(10_000)
    >>> plan.steps, plan.bound, plan.epsilon(settings.delta) <= 2.0
    (100, 'released', True)
    """

    batch_size: int = 256
    epochs: int = 1
    clip_norm: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "epochs", "clip_norm", "momentum"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")

    def plan(self, units: int, *, shuffle: bool = False) -> PrivacyPlan:
        """Return the plan of a run over this many rows (or users)."""
        participation = participation_of(units, self.batch_size, self.epochs, shuffle)
        return plan_of(
            participation,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            delta=self.delta,
            clip_norm=self.clip_norm,
            workload=Workload(momentum=self.momentum),
            mechanism=mechanism_of(vars(self)),
            dtype="float64",
            bound=self.bound,
        )

    def start(
        self, objective: Objective, plan: PrivacyPlan, *, threads: int | None = None
    ) -> GLMRun:
        """Return an engine with a fresh key."""
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "momentum": self.momentum,
            "radius": self.radius,
        }
        return GLMRun(
            objective,
            plan,
            learning_rate=learning_rate(self.learning_rate, objective, plan, **options),
            l1=self.l1,
            threads=threads,
            noise_seed=self.noise_seed,
            **options,
        )
