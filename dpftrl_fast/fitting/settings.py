# SPDX-License-Identifier: Apache-2.0
"""The public choices of a run, checked: for DP-FTRL, and for least squares by two trees."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Literal

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.convex.least_squares.plan import DEFAULT_SPLIT
from dpftrl_fast.mechanisms import Variant
from dpftrl_fast.noise.keys import key_of_seed
from dpftrl_fast.tables.schema import Schema, Task

#: The losses of a task, the default first, and what their parameter is without a choice.
LOSSES: dict[Task, dict[str, float | None]] = {
    "regression": {"squared": None, "huber": 1.0, "epsilon_insensitive": 0.1, "quantile": 0.5},
    "classification": {"logistic": None, "hinge": None},
    "multinomial": {"multinomial": None, "hinge": None},
}


@dataclass(frozen=True)
class _Common:
    """What both methods need."""

    epsilon: float | None = 1.0
    delta: float = 1e-6
    noise_multiplier: float | None = None
    batch_size: int = 256
    radius: float | None = None
    variant: Variant = "honaker"
    noise_seed: int | bytes | None = field(default=None, repr=False)

    _numbers: ClassVar[tuple[str, ...]] = ("epsilon", "delta", "noise_multiplier", "radius")
    _positive: ClassVar[tuple[str, ...]] = ("epsilon", "noise_multiplier", "radius")

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("expected exactly one of epsilon and noise_multiplier")
        for name in self._numbers:
            value = getattr(self, name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, Real):
                    raise TypeError(f"{name} must be a number, got {type(value).__name__}")
                object.__setattr__(self, name, float(value))  # NumPy's numbers are no JSON
        for name in self._positive:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {value}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, got {self.delta}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise TypeError(f"batch_size must be a whole number, got {self.batch_size!r}")
        if not self.batch_size >= 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")
        key_of_seed(self.noise_seed)  # refuses a seed that is none


@dataclass(frozen=True)
class FitSettings(_Common):
    """Choices of a run of DP-FTRL; the noise follows from them through the plan.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee to calibrate the noise to (one record, or user, replaced by zero).
    noise_multiplier : float or None
        The noise itself, instead of `epsilon`.
    batch_size : int
        Rows a step, B (users, if the schema has a group column); sums are divided by it.
    radius : float or None
        R of a ball about zero.
    variant : {"honaker", "vanilla"}
        How the noise of a prefix is formed.
    noise_seed : int, bytes or None
        For tests only: the noise key then follows from the seed, and the result is marked
        "reproducible, not private".
    epochs : int
        Passes over the rows, in the same order. Of several, the planner says when trees restart.
    learning_rate : float
        1/lambda.
    clip_norm : float
        Bound L on the norm of every row's (user's) gradient.
    loss : str or None
        One of `LOSSES`; default "squared", "logistic" or "multinomial", as the task asks.
    loss_param : float or None
        k of the losses that have one (`dpftrl_fast.kernels.losses`): where the Huber loss turns
        linear (default 1), the epsilon of the epsilon-insensitive one (0.1), the quantile (0.5).
    momentum, l1
        See `dpftrl_fast.ftrl.FTRL`.
    bound : {"exact", "released"} or None
        What the accountant covers: all nodes of the trees, or the running sums, which are all that
        a run uses. None is "exact" for one pass and "released" for several.

    Raises
    ------
    TypeError, ValueError
        If a choice is not what is described above.
    """

    epochs: int = 1
    learning_rate: float = 1.0
    clip_norm: float = 1.0
    loss: str | None = None
    loss_param: float | None = None
    momentum: float = 0.0
    l1: float = 0.0
    bound: PlanBound | None = None

    method: ClassVar[Literal["ftrl"]] = "ftrl"
    _numbers: ClassVar[tuple[str, ...]] = (
        *_Common._numbers,
        *("learning_rate", "clip_norm", "loss_param", "momentum", "l1"),
    )
    _positive: ClassVar[tuple[str, ...]] = (*_Common._positive, "learning_rate", "clip_norm")

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_integer("epochs", self.epochs)

    def check(self, schema: Schema) -> None:
        """Raise ValueError if the choices do not fit the schema."""
        self.loss_param_for(schema)

    def loss_for(self, schema: Schema) -> str:
        """Return the loss, the task's default if none was named."""
        losses = LOSSES[schema.task]
        if self.loss is None:
            return next(iter(losses))
        if self.loss not in losses:
            raise ValueError(
                f"loss must be one of {', '.join(losses)} for a {schema.task} task, "
                f"got {self.loss!r}"
            )
        return self.loss

    def loss_param_for(self, schema: Schema) -> float | None:
        """Return the parameter of the loss, None for a loss that has none."""
        loss = self.loss_for(schema)
        default = LOSSES[schema.task][loss]
        if default is None and self.loss_param is not None:
            having = [n for losses in LOSSES.values() for n, k in losses.items() if k is not None]
            raise ValueError(
                f"loss_param is for the losses {', '.join(having)}; the loss {loss} has none, "
                f"got {self.loss_param}"
            )
        return default if self.loss_param is None else self.loss_param

    def to_dict(self, schema: Schema) -> dict[str, Any]:
        """Return what a model file says of the choices."""
        return {
            "method": self.method,
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            "loss": self.loss_for(schema),
            "loss_param": self.loss_param_for(schema),
            "momentum": self.momentum,
            "l1": self.l1,
            "radius": self.radius,
        }


@dataclass(frozen=True)
class LeastSquaresSettings(_Common):
    """Choices of a run of private least squares: one pass, a regression, single records.

    The bounds that its noise is measured by are the schema's: rows have norm 1 at most, and the
    scaled target is within its declared bounds.

    Parameters
    ----------
    epsilon, delta, noise_multiplier, batch_size, variant, noise_seed
        As for `FitSettings`.
    radius : float or None
        R of a ball about zero, in which the model is the exact minimiser.
    split : float
        Share of mu^2 for the tree over y x.
    ridge_factor : float
        lambda_t/2 in units of L^2 sigma_c sqrt(v_t p), see `docs/least_squares.md`.

    Raises
    ------
    TypeError, ValueError
        If a choice is not what is described above.
    """

    split: float = DEFAULT_SPLIT
    ridge_factor: float = 2.0

    method: ClassVar[Literal["least-squares"]] = "least-squares"
    _numbers: ClassVar[tuple[str, ...]] = (*_Common._numbers, "split", "ridge_factor")
    _positive: ClassVar[tuple[str, ...]] = (*_Common._positive, "ridge_factor")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.split < 1:
            raise ValueError(f"split must lie strictly between 0 and 1, got {self.split}")

    def check(self, schema: Schema) -> None:
        """Raise ValueError if the choices do not fit the schema."""
        if schema.task != "regression":
            raise ValueError(
                f"least squares needs a numeric target, got a {schema.task} task: use ftrl"
            )
        if schema.group_column is not None:
            raise ValueError(
                "least squares protects single records, got a group column: what the rows of a "
                "user add to its sums together has no bound; use ftrl"
            )

    def to_dict(self, schema: Schema) -> dict[str, Any]:
        """Return what a model file says of the choices."""
        return {
            "method": self.method,
            "batch_size": self.batch_size,
            "epochs": 1,
            "radius": self.radius,
            "split": self.split,
            "ridge_factor": self.ridge_factor,
        }


Settings = FitSettings | LeastSquaresSettings
