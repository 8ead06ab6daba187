# SPDX-License-Identifier: Apache-2.0
"""One private pass over a table: plan, rows, clipped gradients, noise, FTRL, model.

Nothing that was computed from private rows leaves before the last step, and afterwards only the
iterates, which are functions of the noisy sums. How many rows were invalid, clipped or missing is
not counted here at all (`validation` is for that, for the owner of the data).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.kernels.glm import clipped_gradient_sum_csr
from dpftrl_fast.kernels.losses import Loss
from dpftrl_fast.plan import PrivacyPlan
from dpftrl_fast.schema import Schema
from dpftrl_fast.tables import Encoder, TableReader, minibatches

__all__ = ["Curve", "FitResult", "FitSettings", "fit", "make_plan", "replace_one_epsilon"]

FloatArray = npt.NDArray[np.float64]

_LOSSES: dict[str, tuple[Loss, Loss]] = {
    "regression": ("squared", "huber"),
    "classification": ("logistic", "hinge"),
}

_NUMBERS = (
    "epsilon",
    "delta",
    "noise_multiplier",
    "learning_rate",
    "clip_norm",
    "loss_param",
    "momentum",
    "l1",
    "radius",
)


@dataclass(frozen=True)
class FitSettings:
    """Public choices of a run; the noise follows from them through the plan.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee to calibrate the noise to (one record replaced by zero).
    noise_multiplier : float or None
        The noise itself, instead of `epsilon`.
    batch_size : int
        Rows a step, B; sums are divided by it.
    learning_rate : float
        1/lambda.
    clip_norm : float
        Bound L on the norm of every row's gradient.
    loss : str or None
        "squared" (default) or "huber" for a regression, "logistic" (default) or "hinge" for a
        classification.
    loss_param : float
        The parameter of the Huber loss.
    momentum, l1, radius
        See `dpftrl_fast.ftrl.FTRL`.
    variant : {"honaker", "vanilla"}
        How the noise of a prefix is formed.
    noise_seed : int, bytes or None
        For tests only: the noise key then follows from the seed, and the result is marked
        "reproducible, not private".
    """

    epsilon: float | None = 1.0
    delta: float = 1e-6
    noise_multiplier: float | None = None
    batch_size: int = 256
    learning_rate: float = 1.0
    clip_norm: float = 1.0
    loss: Loss | None = None
    loss_param: float = 1.0
    momentum: float = 0.0
    l1: float = 0.0
    radius: float | None = None
    variant: Literal["vanilla", "honaker"] = "honaker"
    noise_seed: int | bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("expected exactly one of epsilon and noise_multiplier")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, Real):
                    raise TypeError(f"{name} must be a number, got {type(value).__name__}")
                object.__setattr__(self, name, float(value))  # NumPy's numbers are no JSON
        for name in ("epsilon", "noise_multiplier", "learning_rate", "clip_norm", "loss_param"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be a finite number > 0, got {value}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must lie strictly between 0 and 1, got {self.delta}")
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int):
            raise TypeError(f"batch_size must be a whole number, got {self.batch_size!r}")
        if not self.batch_size >= 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")

    def loss_for(self, schema: Schema) -> Loss:
        """Return the loss, the task's default if none was named."""
        losses = _LOSSES[schema.task]
        if self.loss is None:
            return losses[0]
        if self.loss not in losses:
            raise ValueError(
                f"loss must be one of {', '.join(losses)} for a {schema.task}, got {self.loss!r}"
            )
        return self.loss


@dataclass(frozen=True)
class Curve:
    """Iterates at evenly spaced steps: `last` and `average` have one row per entry of `steps`."""

    steps: npt.NDArray[np.int64]
    last: FloatArray
    average: FloatArray


@dataclass(frozen=True)
class FitResult:
    """What one pass releases: the iterates, and the plan that covers them.

    Attributes
    ----------
    last, average, tail : ndarray of shape (p,)
        The last iterate, the mean of all, the mean over the last half of the steps.
    """

    schema: Schema
    settings: FitSettings
    loss: Loss
    plan: PrivacyPlan
    steps: int
    last: FloatArray
    average: FloatArray
    tail: FloatArray
    curve: Curve
    reproducible: bool

    @property
    def epsilon(self) -> float:
        """The plan's epsilon at the settings' delta, one record replaced by zero."""
        return float(self.plan.epsilon(self.settings.delta))

    @property
    def epsilon_replace_one(self) -> float | None:
        """The plan's epsilon when one record is replaced by another; None if it states none."""
        return replace_one_epsilon(self.plan, self.settings.delta)


def replace_one_epsilon(plan: PrivacyPlan, delta: float) -> float | None:
    """Return the epsilon for replace-one neighbours; None where delta is below their floor."""
    try:
        return float(plan.epsilon(delta, neighbours="replace-one"))
    except ValueError:
        return None


def make_plan(schema: Schema, settings: FitSettings) -> PrivacyPlan:
    """Return the plan of a single pass over the declared rows."""
    participation = SinglePass(-(-schema.rows // settings.batch_size))
    if settings.epsilon is None:
        assert settings.noise_multiplier is not None  # one of the two, see __post_init__
        return PrivacyPlan(
            clip_norm=settings.clip_norm,
            noise_multiplier=settings.noise_multiplier,
            participation=participation,
            variant=settings.variant,
        )
    return PrivacyPlan.calibrate(
        epsilon=settings.epsilon,
        delta=settings.delta,
        clip_norm=settings.clip_norm,
        participation=participation,
        variant=settings.variant,
    )


def fit(
    table: TableReader,
    settings: FitSettings,
    *,
    curve_points: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> FitResult:
    r"""Fit a linear model in one pass of DP-FTRL over the table.

    Parameters
    ----------
    table : TableReader
        The private rows, in the order in which they are used.
    settings : FitSettings
        Public choices.
    curve_points : int
        At how many steps the iterates are kept for a learning curve.
    progress : callable, optional
        Called as ``progress(step, steps)`` after every step.

    Returns
    -------
    FitResult

    Raises
    ------
    TableError
        When the file holds more rows than declared. Nothing has left by then.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from dpftrl_fast.schema import Schema
    >>> from dpftrl_fast.tables import TableReader
    >>> schema = Schema.from_dict({
    ...     "rows": 3,
    ...     "target": {"name": "y", "bounds": [0, 1]},
    ...     "columns": {"x": {"bounds": [0, 10]}},
    ... })
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "rows.csv")
    ...     _ = path.write_text("x,y\n1,0.2\n5,0.4\n9,oops\n")
    ...     result = fit(TableReader(path, schema), FitSettings(epsilon=1.0, batch_size=2))
    >>> result.steps, result.tail.shape, result.epsilon <= 1.0
    (2, (2,), True)
    """
    schema = table.schema
    loss = settings.loss_for(schema)
    plan = make_plan(schema, settings)
    plan.epsilon(settings.delta)  # a delta at which nothing can be stated is refused before step 1
    steps = plan.steps
    encoder = Encoder(schema)
    p = schema.n_features
    optimiser = FTRL(
        np.zeros(p),
        settings.learning_rate,
        batch_size=settings.batch_size,
        steps=steps,
        momentum=settings.momentum,
        l1=settings.l1,
        radius=settings.radius,
    )
    noise = plan.noise(p, seed=settings.noise_seed, dtype="float64")
    entries = min(settings.batch_size, schema.rows) * encoder.width
    index_type = np.int32 if entries < 2**31 else np.int64
    starts = np.arange(0, entries + 1, encoder.width, dtype=index_type)
    gradient, tree_noise = np.empty(p), np.empty(p)
    theta = optimiser.theta
    marks = _marks(steps, curve_points)
    kept: list[tuple[FloatArray, FloatArray]] = []
    for t, rows in enumerate(minibatches(table, settings.batch_size, encoder=encoder), start=1):
        clipped_gradient_sum_csr(
            rows.values.ravel(),
            rows.indices.ravel().astype(index_type, copy=False),
            starts[: len(rows) + 1],
            rows.target,
            theta,
            settings.clip_norm,
            loss,
            gradient,
            loss_param=settings.loss_param,
        )
        theta = optimiser.step(gradient, noise.step(out=tree_noise))
        if len(kept) < marks.size and t == marks[len(kept)]:
            kept.append((theta.copy(), optimiser.average.copy()))
        if progress is not None:
            progress(t, steps)
    return FitResult(
        schema=schema,
        settings=settings,
        loss=loss,
        plan=plan,
        steps=steps,
        last=theta.copy(),
        average=optimiser.average.copy(),
        tail=optimiser.tail_average.copy(),
        curve=Curve(
            marks,
            np.array([last for last, _ in kept]).reshape(-1, p),
            np.array([average for _, average in kept]).reshape(-1, p),
        ),
        reproducible=bool(noise.reproducible),
    )


def _marks(steps: int, points: int) -> npt.NDArray[np.int64]:
    """Return up to `points` steps, evenly spaced, the last one included."""
    points = min(points, steps)
    return (np.arange(1, points + 1, dtype=np.int64) * steps) // max(points, 1)
