# SPDX-License-Identifier: Apache-2.0
"""The settings of the command line and the parameters of the estimators are one thing."""

from __future__ import annotations

import inspect
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fitting_cases import CLASSES, REGRESSION, SEVERAL, features, lines, table

from dpftrl_fast.fitting import (
    FitSettings,
    LeastSquaresSettings,
    RunSettings,
    fit,
    make_plan,
)
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.mechanisms import BandedInverse
from dpftrl_fast.tables.schema import Schema

LINEAR = (DPFTRLRegressor, DPFTRLClassifier)
REQUESTS: list[dict[str, Any]] = [
    {},
    {"batch_size": "auto"},
    {"epsilon": 0.3, "delta": 1e-5},
    {"epsilon": None, "noise_multiplier": 4.0},
    {"batch_size": 7},
    {"variant": "vanilla"},
    {"radius": 2.0},
    {"epsilon": np.float32(3), "batch_size": np.int64(8)},
    {"mechanism": "tree"},
    {"mechanism": BandedInverse((1.0, -0.9))},
]
FTRL_REQUESTS: list[dict[str, Any]] = [
    {"batch_size": "auto", "epochs": 2, "learning_rate": 0.1},
    {"clip_norm": 0.3, "l1": 0.01},
    {"epochs": 3},
    {"epochs": 2, "momentum": 0.9},
    {"epochs": 4, "restart_every": 12, "complete": True},
    {"restart_every": 3, "complete": "all"},
]
LEAST_SQUARES_REQUESTS: list[dict[str, Any]] = [
    {"solve_every": 2},
    {"split": 0.5, "ridge_factor": 1.0},
    {"complete": False},
    {"complete": "all"},
]


def same_plan(plan: Any, model: Any) -> None:
    assert plan == model.plan_
    assert plan.noise_multiplier == model.noise_multiplier_
    assert plan.sensitivity_squared == model.sensitivity_squared_
    assert plan.epsilon(model.delta_) == model.epsilon_


@pytest.mark.parametrize("request_", [*REQUESTS, *FTRL_REQUESTS], ids=repr)
@pytest.mark.parametrize("cls", LINEAR)
def test_the_same_request_has_the_same_plan(cls: Any, request_: dict[str, Any]) -> None:
    x, y = features(lines())
    request_ = {"batch_size": 10, **request_}
    bounds: dict[str, Any] = {"x_norm_bound": 1.0, "fit_intercept": False}
    model = cls(**request_, **bounds).fit(x, y if cls is DPFTRLRegressor else y > 0.3)
    schema = Schema.from_dict(REGRESSION if cls is DPFTRLRegressor else CLASSES)
    same_plan(make_plan(schema, FitSettings(**request_)), model)


@pytest.mark.parametrize("request_", [*REQUESTS, *LEAST_SQUARES_REQUESTS], ids=repr)
def test_the_same_request_has_the_same_plan_of_least_squares(request_: dict[str, Any]) -> None:
    request_ = {"batch_size": 10, **request_}
    model = DPFTRLLeastSquares(
        x_norm_bound=1.0, y_bound=2.0, fit_intercept=False, **request_
    ).fit(*features(lines()))  # fmt: skip
    schema = Schema.from_dict({**REGRESSION, "target": {"name": "y", "bounds": [-2, 2]}})
    same_plan(make_plan(schema, LeastSquaresSettings(**request_)), model)


def test_running_sums_need_less_noise_than_all_nodes() -> None:
    settings = RunSettings(epsilon=1.0, delta=1e-6, batch_size=256, mechanism="tree")
    plan = settings.plan(267_346)
    assert plan.bound == "released"
    assert plan.noise_multiplier == pytest.approx(12.9980, abs=1e-3)
    exact = RunSettings(bound="exact", mechanism="tree").plan(267_346)
    assert exact.noise_multiplier == pytest.approx(14.0117, abs=1e-3)


@pytest.mark.parametrize(
    ("cls", "settings"),
    [(cls, FitSettings) for cls in LINEAR] + [(DPFTRLLeastSquares, LeastSquaresSettings)],
)
def test_defaults_are_the_same(cls: Any, settings: Any) -> None:
    own = {field.name: field.default for field in fields(settings)}
    others = {
        name: parameter.default for name, parameter in inspect.signature(cls).parameters.items()
    }
    shared = own.keys() & others.keys() - {"loss"}  # None stands for the loss of the task
    assert len(shared) >= 13
    assert {name: own[name] for name in shared} == {name: others[name] for name in shared}


@pytest.mark.parametrize("rule", ["auto", "theory", 0.7])
@pytest.mark.parametrize(
    ("schema", "cls", "target"),
    [(REGRESSION, DPFTRLRegressor, 2), (CLASSES, DPFTRLClassifier, 3),
     (SEVERAL, DPFTRLClassifier, 4)],
)  # fmt: skip
@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_rates_and_models_are_the_same(
    tmp_path: Path, schema: dict[str, Any], cls: Any, target: int, rule: Any, epsilon: float
) -> None:
    request_ = {"epsilon": epsilon, "batch_size": 10, "learning_rate": rule, "noise_seed": 3}
    result = fit(table(tmp_path / "t.csv", lines(), schema), FitSettings(**request_))
    x, y = features(lines())
    x = x.astype(np.float32)  # as the command line encodes them
    if target > 2:
        labels = schema["target"]["categories"]
        y = np.array([labels.index(row.split(",")[target]) for row in lines()])
    model = cls(**request_, x_norm_bound=1.0, fit_intercept=False).fit(x, y)
    assert result.learning_rate == model.learning_rate_
    np.testing.assert_allclose(result.last, np.squeeze(model.coef_last_), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", np.float32(2)), ("delta", np.float64(0.25)), ("l1", np.int64(1)),
     ("momentum", Fraction(1, 2)), ("batch_size", np.int64(256)), ("epochs", np.uint8(2)),
     ("restart_every", np.int32(4))],
)  # fmt: skip
def test_numbers_of_numpy_become_plain(name: str, value: Any) -> None:
    found = getattr(FitSettings(**{name: value}), name)
    whole = name in ("batch_size", "epochs", "restart_every")
    assert found == value and type(found) is (int if whole else float)
