# SPDX-License-Identifier: Apache-2.0
"""Audit of the linear estimators: canaries are rows of a stream."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from dpftrl_fast._validate import finite_vector, flag, integer, optional, positive_integer, real
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.audit.canaries import BEYOND
from dpftrl_fast.audit.covariance import Whitener, check_steps
from dpftrl_fast.audit.judge import Setting, judge
from dpftrl_fast.audit.models import sums_of_models
from dpftrl_fast.audit.result import AuditResult
from dpftrl_fast.audit.slopes import class_slopes, slope
from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.settings import LeastSquaresSettings
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.convex.target_scaling import scaling_of

Vector = NDArray[np.float64]

# Canaries of a run by default; least squares keeps the square of their number.
_CANARIES, _LEAST_SQUARES_CANARIES, _ENTRIES = 1024, 64, 2**15
# Canaries of all runs by default.
_IN_ALL, _LEAST_SQUARES_IN_ALL = 8192, 2048


@dataclass(frozen=True, eq=False)
class _Row:
    """A canary: a row and its target (or class)."""

    x: Vector
    y: float


def audit_estimator(
    estimator: Any,
    *,
    steps: int = 16,
    label_flip: bool = False,
    record: tuple[ArrayLike, float] | None = None,
    canaries: int | None = None,
    runs: int | None = None,
    delta: float | None = None,
    confidence: float = 0.999,
    random_state: Any = None,
) -> AuditResult:
    """Audit `DPFTRLRegressor`, `DPFTRLClassifier` or `DPFTRLLeastSquares` with given parameters.

    The estimator streams batches by `partial_fit`; its models after all steps give the noisy sums.
    For least squares the noisy sums of the engine, of which the models are functions, are read
    instead. Canaries are the rows of the first batch, each with features of its own; the others are
    zero.

    Parameters
    ----------
    estimator : estimator
        Not changed. Its `epochs` must be 1 or "auto", which is 1 in a stream, `l1` 0 and `radius`
        None: the models then hold as much as the noisy sums. `batch_size` and `horizon` are
        replaced.
    steps : int
        Of a run, at most 2048: for n rows, ceil(n/batch_size).
    label_flip : bool
        Canaries that are not included have another label (the opposite target, or another class),
        instead of being replaced by zero: replace-one neighbours.
    record : (x, y), optional
        Features and target (class) of the canaries: of a real row. By default one feature, and
        target and norm as large as the bounds allow.
    canaries : int, optional
        In each run; by default 1024, fewer for rows of many features, 64 for least squares.
    runs : int, optional
        Runs with keys of their own; by default as many as have 8192 canaries, 2048 for least
        squares.
    delta : float, optional
        By default the estimator's.
    confidence, random_state
        As for :func:`dpftrl_fast.audit.audit_prefix_sum`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLClassifier
    >>> audit_estimator(DPFTRLClassifier(epsilon=4.0), confidence=1 - 1e-9).verdict
    'consistent'
    """
    from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor

    if not isinstance(estimator, (DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor)):
        raise TypeError(
            "estimator must be a DPFTRLRegressor, DPFTRLClassifier or DPFTRLLeastSquares, got "
            f"{type(estimator).__name__}"
        )
    squares = isinstance(estimator, DPFTRLLeastSquares)
    parameters = dict(estimator.get_params(deep=False))
    if parameters.get("epochs") == "auto":
        parameters["epochs"] = 1
    for name, needed in (("epochs", 1), ("l1", 0.0), ("radius", None)):
        if parameters.get(name, needed) != needed:
            raise ValueError(
                f"{name} must be {needed} in an audit, got {parameters[name]!r}: the noisy sums "
                "cannot be read off its models; audit the estimator without it, which has the same "
                "plan, or the plan itself with audit_plan"
            )
    flipped = flag("label_flip", label_flip)
    row = _default_row(parameters) if record is None else _row_of(record)
    default = _LEAST_SQUARES_CANARIES if squares else _CANARIES
    fewer = max(16, min(default, (math.isqrt(2**12) if squares else _ENTRIES) // row.x.size))
    count = fewer if canaries is None else integer("canaries", canaries, 1)
    wanted = _LEAST_SQUARES_IN_ALL if squares else _IN_ALL
    times = -(-wanted // count) if runs is None else positive_integer("runs", runs)
    total = check_steps(steps)
    rng = np.random.default_rng(random_state)
    coins = rng.random((times, count)) < 0.5
    at = optional(real, "delta", delta, above=0.0, below=1.0) or float(parameters["delta"])
    neighbours: Neighbours = "replace-one" if flipped else "zero-out"
    parameters |= {"batch_size": count, "horizon": count * total}
    probe: _Probe
    if squares:
        probe = _Squares(parameters, row, total, flipped)
    else:
        classes = None
        if isinstance(estimator, DPFTRLClassifier):
            declared = parameters.get("classes")
            classes = np.arange(2) if declared is None else np.unique(np.asarray(declared))
        probe = _Stream(type(estimator), parameters, row, total, flipped, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LearningWarning)  # no model of an audit has to learn
        found = [probe.run(one) for one in coins]
    white, shift, plan, words = probe.whitened(found)
    kind = "worst-case rows" if record is None else "copies of a row"
    setting = Setting(
        subject=f"{type(estimator).__name__}, {kind}{', labels flipped' * flipped}: {words}",
        plan=plan,
        steps=total,
        runs=times,
        neighbours=neighbours,
        delta=at,
        confidence=confidence,
    )
    return judge(white, shift, coins.reshape(-1), setting)


def _row_of(record: Any) -> _Row:
    try:
        x, y = record
    except (TypeError, ValueError):
        raise ValueError("record must be a pair (x, y) of features and target") from None
    features = finite_vector("the features of record", x)
    if not bool(features.any()):
        raise ValueError("record must have features that are not all zero, got zeros")
    return _Row(features, real("the target of record", y))


def _default_row(parameters: dict[str, Any]) -> _Row:
    bound = parameters.get("x_norm_bound")
    clip = parameters.get("clip_norm", 1.0)
    clip = 1.0 if clip == "auto" else clip
    x = BEYOND * max(1.0, clip) if bound is None else BEYOND * bound
    if "loss" in parameters and parameters["loss"] in ("logistic", "multinomial", "hinge"):
        return _Row(np.array([x]), 1.0)
    centre, scale = _scaling(parameters)
    return _Row(np.array([x]), centre + BEYOND * scale)


def _scaling(parameters: dict[str, Any]) -> tuple[float, float]:
    """Return the centre and half the width of the bounds of a regression's targets."""
    bounds = parameters.get("y_bound")
    if bounds is None:
        return 0.0, 1.0
    return scaling_of(tuple(bounds) if isinstance(bounds, list) else bounds)


def _blocks(row: Vector, coins: NDArray[np.bool_], *, always: bool) -> csr_matrix:
    """Return the rows of a batch: row j in features of its own, or zero where it is out."""
    count, width = coins.size, row.size
    there = np.flatnonzero(coins | always)
    columns = (there[:, None] * width + np.arange(width)).reshape(-1)
    owners = np.repeat(there, width)
    data = np.tile(row, there.size)
    return csr_matrix((data, (owners, columns)), shape=(count, count * width))


class _Probe:
    """Runs of one kind of estimator, and the law of the data that they release."""

    def run(self, coins: NDArray[np.bool_]) -> Any:
        raise NotImplementedError

    def whitened(self, found: list[Any]) -> tuple[Vector, Vector, Any, str]:
        raise NotImplementedError


# ---- Gradients ----


class _Stream(_Probe):
    """Streams of an estimator by FTRL."""

    def __init__(
        self,
        cls: Any,
        parameters: dict[str, Any],
        row: _Row,
        steps: int,
        flipped: bool,
        classes: NDArray[Any] | None,
    ) -> None:
        parameters |= {"shuffle": False, "compute_regret": False}
        self.cls, self.parameters, self.row = cls, parameters, row
        self.centre, self.scale = _scaling(parameters)
        self.steps, self.flipped, self.classes = steps, flipped, classes
        if classes is not None:
            place = int(np.searchsorted(classes, row.y))
            if place == len(classes) or classes[place] != row.y:
                raise ValueError(
                    f"the target of record must be one of the classes {classes.tolist()}, got "
                    f"{row.y!r}"
                )
            self.place, self.other = place, (place + 1) % len(classes)

    def run(self, coins: NDArray[np.bool_]) -> Any:
        model, row, count = self.cls(**self.parameters), self.row, coins.size
        first = {} if self.classes is None else {"classes": self.classes}
        X = _blocks(row.x, coins, always=self.flipped)
        empty = csr_matrix(X.shape)
        # A row without a target counts as zero.
        if self.classes is None:
            other = 2.0 * self.centre - row.y if self.flipped else math.nan
            y, none = np.where(coins, row.y, other), np.full(count, math.nan)
        else:
            unknown = self.classes.max() + 1
            other = self.classes[self.other] if self.flipped else unknown
            y = np.where(coins, self.classes[self.place], other)
            none = np.full(count, unknown)
        models = []
        for step in range(self.steps):
            batch = (X, y) if step == 0 else (empty, none)
            model.partial_fit(*batch, **(first if step == 0 else {}))
            models.append(np.atleast_2d(model.coef_last_) / self.scale)
        found = np.array(models)  # (steps, outputs, features)
        sums = sums_of_models(
            found.reshape(self.steps, -1),
            -model.learning_rate_ / count,
            momentum=model.momentum_,
        )
        sums = sums.reshape(self.steps, found.shape[1], count, row.x.size)
        return model.plan_, sums

    def whitened(self, found: list[Any]) -> tuple[Vector, Vector, Any, str]:
        plan = found[0][0]
        clip_norm = plan.clip_norm
        difference = self._gradient(True, clip_norm) - self._gradient(False, clip_norm)
        length = float(np.linalg.norm(difference))
        unit = difference / length if length else difference
        sums = np.concatenate([np.einsum("tkmd,kd->tm", s, unit) for _, s in found], axis=1)
        white = Whitener(plan.layout, plan.noise_multiplier)
        shift = white(np.ones(self.steps)) * (length / plan.clip_norm)
        return white(sums / plan.clip_norm), shift, plan, plan.layout.describe()

    def _gradient(self, included: bool, clip_norm: float) -> Vector:
        """Return the clipped gradient of a canary at theta = 0, of shape (outputs, features)."""
        given, x = self.parameters, self.row.x
        classes = self.classes
        outputs = len(classes) if classes is not None and len(classes) > 2 else 1
        if not included and not self.flipped:
            return np.zeros((outputs, x.size))
        bound = given["x_norm_bound"]
        norm = float(np.linalg.norm(x))
        if bound is not None and norm > bound:
            x = x * (bound / norm)
        constant = given["intercept_scaling"] if given["fit_intercept"] else 0.0
        if classes is not None:
            slopes = class_slopes(given["loss"], self.place if included else self.other, outputs)
        else:
            y = (self.row.y - self.centre) / self.scale * (1.0 if included else -1.0)
            y = y if given["y_bound"] is None else min(max(y, -1.0), 1.0)
            slopes = np.array([slope(given["loss"], given["loss_param"], y)])
        full = float(np.linalg.norm(slopes) * math.hypot(float(np.linalg.norm(x)), constant))
        scale = min(1.0, clip_norm / full) if full > 0.0 else 1.0
        return np.asarray(np.outer(slopes, x) * scale)


# ---- Least squares ----


class _Squares(_Probe):
    """Runs of the engine of least squares, whose noisy sums are read."""

    def __init__(self, parameters: dict[str, Any], row: _Row, steps: int, flipped: bool) -> None:
        for name in ("x_norm_bound", "y_bound"):
            if parameters[name] is None:
                raise ValueError(f"{name} must be given, got None")
        self.parameters, self.row, self.steps, self.flipped = parameters, row, steps, flipped
        self.settings: LeastSquaresSettings = LeastSquaresSettings.of(
            {**parameters, "solve_every": 1, "intervals": False}
        )
        self.constant = parameters["intercept_scaling"] if parameters["fit_intercept"] else 0.0
        self.plan: LeastSquaresPlan = self.settings.plan(
            parameters["batch_size"] * steps,
            x_norm_bound=parameters["x_norm_bound"],
            y_bound=1.0,
            constant=self.constant,
        )
        centre, scale = _scaling(parameters)
        self.target = (row.y - centre) / scale

    def run(self, coins: NDArray[np.bool_]) -> Any:
        count, width = coins.size, self.row.x.size
        size = count * width
        engine = self.settings.start(self.plan, size, threads=self.parameters["threads"])
        there = coins | self.flipped
        X = _blocks(self.row.x, coins, always=self.flipped).toarray()
        y = np.where(coins, self.target, -self.target)
        y[~there] = math.nan
        # Blocks of the packed upper triangle that belong to one canary alone.
        p = size + (1 if self.constant else 0)
        i, j = np.triu_indices(width)
        start = np.arange(count)[:, None] * width
        rows, columns = start + i, start + j
        places = rows * p - rows * (rows - 1) // 2 + (columns - rows)
        if self.constant:
            own = start + np.arange(width)
            last = own * p - own * (own - 1) // 2 + (p - 1 - own)
            places = np.concatenate([places, last], axis=1)
        bias, covariance = [], []
        for step in range(self.steps):
            batch = Batch(X, y) if step == 0 else Batch(np.zeros((0, size)), np.zeros(0))
            engine.step(batch)
            noisy, packed = engine.released()
            bias.append(noisy[:size].reshape(count, width))
            # Products of two columns count twice in the norm: they have 1/sqrt(2) of the noise.
            covariance.append(packed.astype(np.float64)[places] * self._weights())
        return np.array(bias), np.array(covariance)

    def _weights(self) -> Vector:
        """Return 1 for squares and sqrt(2) for products, in the order of a canary's entries."""
        i, j = np.triu_indices(self.row.x.size)
        products = np.where(i == j, 1.0, math.sqrt(2.0))
        constant = np.full(self.row.x.size if self.constant else 0, math.sqrt(2.0))
        return np.concatenate([products, constant])

    def whitened(self, found: list[Any]) -> tuple[Vector, Vector, Any, str]:
        plan, x = self.plan, self.row.x
        norm = float(np.linalg.norm(x))
        if norm > plan.x_norm_bound:
            x = x * (plan.x_norm_bound / norm)
        y = min(max(self.target, -plan.y_bound), plan.y_bound)
        products = np.outer(x, x)[np.triu_indices(x.size)]
        if self.constant:
            products = np.concatenate([products, x * self.constant])
        products = products * self._weights()
        parts = [
            (plan.bias, y * x * (2.0 if self.flipped else 1.0), [b for b, _ in found]),
            # The label is in the first sum only.
            (plan.covariance, products * (0.0 if self.flipped else 1.0), [c for _, c in found]),
        ]
        rows, shifts = [], []
        for sub, vector, sums in parts:
            length = float(np.linalg.norm(vector))
            unit = vector / length if length else np.eye(vector.size)[0]
            along = np.concatenate([s @ unit for s in sums], axis=1)
            white = Whitener(sub.layout, sub.noise_multiplier, finished=plan.last_leaf > plan.steps)
            rows.append(white(along / sub.clip_norm))
            shifts.append(white(np.ones(self.steps)) * (length / sub.clip_norm))
        return (
            np.concatenate(rows),
            np.concatenate(shifts),
            plan,
            f"two sums, {plan.bias.layout.describe()}",
        )
