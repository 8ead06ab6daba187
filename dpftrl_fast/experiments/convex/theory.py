# SPDX-License-Identifier: Apache-2.0
"""Measured regret and risk as n, p and epsilon grow, and the bounds of docs/results/convex.md."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.rates import learning_rate
from dpftrl_fast.convex.glm.regret import loss_sum
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.least_squares.trust_region import minimise_on_ball
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.experiments.convex.bounds import excess_risk_bound, mean_noise_norm, regret_bound
from dpftrl_fast.experiments.results import Values
from dpftrl_fast.experiments.study import Laboratory, Report, Table, seeded
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.plots import Line, Panel, panels_png

FloatArray = NDArray[np.float64]

DELTA = 1e-6
BATCH = 16
_LARGE_BATCH = 256
_DISTANCE = 4.0  # of the logistic parameters
_RADIUS = 1.0  # of the ball of least squares


class _Measure(NamedTuple):
    """A measurement at (n, p, epsilon, seed), and the name of its line."""

    name: str
    quantity: str
    take: Callable[..., Values]
    bounded: bool = True  # whether the bound is that of the rate in use


def _plan(n: int, epsilon: float) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        epsilon=epsilon, delta=DELTA, clip_norm=1.0, participation=SinglePass(-(-n // BATCH)),
        bound="released",
    )  # fmt: skip


def adversary(n: int, p: int, epsilon: float, seed: int) -> Values:
    """Measure the regret where each gradient is chosen after the model was seen, against its noise.

    Losses are linear, all gradients of norm 1. An adversary who chose the past gradients knows the
    model without noise, and hence the noise n_(t-1)/(B lambda) in theta_t; the next gradient is the
    unit vector against n_(t-1), orthogonal to the sum of the gradients so far: the direction in
    which the noise costs most while the model without noise gains nothing. The guarantee holds
    against such data, and so does the bound. It needs p >= 2. "measured" is the regret against the
    best parameters in the unit ball, over T.
    """
    plan = _plan(n, epsilon)
    objective = Objective("linear", p)
    rate = learning_rate("theory", objective, plan, batch_size=BATCH)
    model = FTRL(np.zeros(p), rate, batch_size=BATCH, steps=plan.steps)
    source = plan.noise(p, seed=seed, dtype="float64", threads=1)
    noise = np.eye(p)[0]  # before the first step all directions are equal
    total, losses = np.zeros(p), 0.0
    for _ in range(plan.steps):
        gradient = -noise + (total @ noise) / max(float(total @ total), 1.0) * total
        gradient /= np.linalg.norm(gradient)
        losses += float(gradient @ model.theta)
        total += gradient
        noise = source.step(out=noise)
        model.step(BATCH * gradient, noise)
    regret = losses + float(np.linalg.norm(total))
    bound = regret_bound(plan.steps, 1.0, 1.0, mean_noise_norm(plan, p, BATCH), rate)
    return {"measured": regret / plan.steps, "bound": bound}


def logistic_regret(rule: str) -> Callable[..., Values]:
    """Return a measurement of the regret of logistic regression with a rule for the rate.

    Rows are uniform on the unit sphere, labels follow the logistic model with parameters u of norm
    4; the regret is the mean over the rows of l(theta_t) - l(u).
    """

    def take(n: int, p: int, epsilon: float, seed: int) -> Values:
        generator = np.random.default_rng([seed, n, p])
        X, truth = _sphere(generator, n, p), _DISTANCE * _sphere(generator, 1, p)
        chance = 1.0 / (1.0 + np.exp(-(X @ truth[0])))
        y = (generator.random(n) < chance).astype(np.float64)
        plan = _plan(n, epsilon)
        objective = Objective("logistic", p, row_bound=1.0)
        rate = learning_rate(rule, objective, plan, batch_size=BATCH, radius=_DISTANCE)
        run = GLMRun(
            objective, plan, learning_rate=rate, batch_size=BATCH, threads=1, noise_seed=seed
        )
        regret = 0.0
        for start in range(0, n, BATCH):
            batch = Batch(X[start : start + BATCH], y[start : start + BATCH])
            regret += loss_sum(objective, run.theta, batch) - loss_sum(objective, truth, batch)
            run.step(batch)
        bound = regret_bound(plan.steps, _DISTANCE, 1.0, mean_noise_norm(plan, p, BATCH), rate)
        return {"measured": regret / n, "bound": bound}

    return take


def excess_risk(n: int, p: int, epsilon: float, seed: int) -> Values:
    """Measure the excess mean squared error, on the rows, of the last least-squares model.

    Rows are uniform on the unit sphere, y = <x, u> + N(0, 0.1^2) with ||u|| = 1; the radius is 1.
    """
    generator = np.random.default_rng([seed, n, p])
    X, truth = _sphere(generator, n, p), _sphere(generator, 1, p)[0]
    y = np.clip(X @ truth + 0.1 * generator.standard_normal(n), -1.0, 1.0)
    size = min(_LARGE_BATCH, n)
    plan = LeastSquaresPlan.calibrate(
        epsilon=epsilon, delta=DELTA, x_norm_bound=1.0, y_bound=1.0,
        participation=SinglePass(-(-n // size)),
    )  # fmt: skip
    run = LeastSquares(plan, p, radius=_RADIUS, seed=seed, threads=1)
    for start in range(0, n, size):
        run.step(Batch(X[start : start + size], y[start : start + size]))
    gram, cross = X.T @ X, X.T @ y

    def risk(theta: FloatArray) -> float:
        return float(theta @ gram @ theta - 2.0 * cross @ theta)

    best = minimise_on_ball(gram, cross, _RADIUS).theta
    excess = (risk(run.last[0]) - risk(best)) / n
    return {"measured": excess, "bound": excess_risk_bound(plan, p, n, _RADIUS)}


def _sphere(generator: np.random.Generator, n: int, p: int) -> FloatArray:
    rows = generator.standard_normal((n, p))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float64)


_MEASURES = (
    _Measure("FTRL, adversary", "regret a step", adversary),
    _Measure("FTRL, logistic", "regret a row", logistic_regret("theory")),
    _Measure('FTRL, logistic, rate "auto"', "regret a row", logistic_regret("auto"), False),
    _Measure("least squares", "excess risk", excess_risk),
)
_BASE: Mapping[str, Any] = {"n": 1 << 15, "p": 32, "epsilon": 1.0}
_AXES: Mapping[str, tuple[float, ...]] = {
    "n": tuple(1 << k for k in (11, 13, 15, 17)),
    "p": (4, 16, 64, 256),
    "epsilon": (0.1, 0.3, 1.0, 3.0, 10.0),
}
_QUICK_BASE: Mapping[str, Any] = {"n": 1 << 9, "p": 4, "epsilon": 1.0}
_QUICK_AXES: Mapping[str, tuple[float, ...]] = {
    "n": (1 << 8, 1 << 9),
    "p": (2, 4),
    "epsilon": (1.0, 3.0),
}
_BOUND_SLOPES = {
    "FTRL": {"n": "-1/2", "p": "1/4", "epsilon": "-1/2"},
    "least squares": {"n": "-1", "p": "1/2", "epsilon": "-1"},
}


def study(laboratory: Laboratory, *, quick: bool = False) -> Report:
    """Measure along each axis, from n = 2^15, p = 32, epsilon = 1, delta = 1e-6.

    `quick` measures two small points an axis with two seeds.
    """
    base, axes = (_QUICK_BASE, _QUICK_AXES) if quick else (_BASE, _AXES)
    seeds = 2 if quick else 5
    data: list[Mapping[str, Any]] = []
    for measure in _MEASURES:
        for axis, places in axes.items():
            points = [{**base, axis: place} for place in places]
            jobs = [
                seeded({"measure": measure.name, **point}, partial(measure.take, **point))
                for point in points
            ]
            found = laboratory.repeat(f"{measure.name} as {axis} grows", jobs, seeds)
            for place, part in zip(places, found, strict=True):
                values = [v["measured"] for v in part]
                data.append({
                    "measure": measure.name, "axis": axis, "place": place,
                    "measured": statistics.fmean(values), "low": min(values), "high": max(values),
                    "bound": part[0]["bound"],
                })  # fmt: skip
    slopes = Table(
        "Slopes on logarithmic axes: the bound where noise is all, the bound here, measured",
        ("", *axes, "measured/bound"),
        [_slope_row(measure, data, axes) for measure in _MEASURES],
    )
    return Report(data, [slopes], {
        "convex_regret.png": panels_png([_panel(axis, data, _MEASURES[:3]) for axis in axes]),
        "convex_risk.png": panels_png([_panel(axis, data, _MEASURES[3:]) for axis in axes]),
    })  # fmt: skip


def _of(data: list[Mapping[str, Any]], name: str, axis: str) -> list[Mapping[str, Any]]:
    return [row for row in data if row["measure"] == name and row["axis"] == axis]


def slope(x: list[float], y: list[float]) -> float | None:
    """Return the slope of the line through (log x, log y), None where some y is not above 0.

    Examples
    --------
    >>> round(slope([1.0, 10.0, 100.0], [3.0, 0.3, 0.03]), 9)
    -1.0
    """
    if min(y) <= 0.0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _slope_row(
    measure: _Measure, data: list[Mapping[str, Any]], axes: Mapping[str, Any]
) -> tuple[str, ...]:
    asymptotic = _BOUND_SLOPES[measure.name.split(",")[0]]
    cells, ratios = [measure.name], []
    for axis in axes:
        rows = _of(data, measure.name, axis)
        x = [row["place"] for row in rows]
        found = [slope(x, [row[key] for row in rows]) for key in ("bound", "measured")]
        words = ["none" if value is None else f"{value:.2f}" for value in found]
        cells.append(", ".join([asymptotic[axis], *words] if measure.bounded else words[1:]))
        ratios += [row["measured"] / row["bound"] for row in rows]
    return (*cells, f"{min(ratios):.2g} to {max(ratios):.2g}" if measure.bounded else "")


def _panel(axis: str, data: list[Mapping[str, Any]], measures: tuple[_Measure, ...]) -> Panel:
    lines = []
    for colour, measure in enumerate(measures):
        rows = _of(data, measure.name, axis)
        x = [row["place"] for row in rows]
        if measure.bounded:
            label = f"{measure.name}, bound"
            lines.append(Line(label, x, [r["bound"] for r in rows], dashed=True, colour=colour))
        drawn = [row for row in rows if row["low"] > 0.0]
        if drawn:
            lines.append(
                Line(
                    measure.name, [r["place"] for r in drawn], [r["measured"] for r in drawn],
                    [r["low"] for r in drawn], [r["high"] for r in drawn], colour=colour,
                )
            )  # fmt: skip
    quantity = measures[0].quantity if len({m.quantity for m in measures}) == 1 else "regret"
    return Panel(f"as {axis} grows", axis, quantity, lines, log_x=True, log_y=True)
