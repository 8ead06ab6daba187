# SPDX-License-Identifier: Apache-2.0
"""docs/start/parameters.md: names and defaults of parameters are those of the code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpftrl_fast as dpf
from dpftrl_fast.federated import ServerDPFTRL, plan_rounds
from dpftrl_fast.streams.tables.settings import counter_settings

PAGE = Path(__file__).parents[2] / "docs" / "start" / "parameters.md"
SHORT = (
    "plan",
    "sum",
    "counter",
    "regressor",
    "classifier",
    "squares",
    "torch",
    "server",
    "rounds",
)


def rows() -> dict[str, tuple[str, list[str]]]:
    """Default and calls of each parameter of the page."""
    found = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and re.fullmatch(r"`\w+`", cells[0]):
            name = cells[0].strip("`")
            assert name not in found, name
            found[name] = cells[2], cells[4].split(", ")
    return found


def calls(short: str) -> list[Callable[..., Any]]:
    if short in ("regressor", "classifier", "squares"):
        linear_model = pytest.importorskip("dpftrl_fast.linear_model")
        names = {"regressor": "Regressor", "classifier": "Classifier", "squares": "LeastSquares"}
        return [getattr(linear_model, f"DPFTRL{names[short]}")]
    if short == "torch":
        return [pytest.importorskip("dpftrl_fast.torch").make_private]
    return {
        "plan": [dpf.PrivacyPlan.calibrate],
        "sum": [dpf.PrefixSum],
        # The settings of a table go through **options.
        "counter": [counter_settings, dpf.PrivateCounter],
        "server": [ServerDPFTRL],
        "rounds": [plan_rounds],
    }[short]


def parameters(short: str) -> dict[str, inspect.Parameter]:
    found = {}
    for call in calls(short):
        for name, parameter in inspect.signature(call).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD:
                found[name] = parameter
    return found


@pytest.mark.parametrize("short", SHORT)
def test_every_parameter_is_listed_with_its_default(short: str) -> None:
    listed = {name: default for name, (default, where) in rows().items() if short in where}
    of_the_code = parameters(short)
    assert set(listed) == set(of_the_code)
    for name, parameter in of_the_code.items():
        if parameter.default is inspect.Parameter.empty:
            assert "required" in listed[name], name
        else:
            assert f"`{parameter.default!r}`" in listed[name], name


def test_every_row_names_calls() -> None:
    assert len(rows()) > 80
    for name, (_, where) in rows().items():
        assert where and set(where) <= set(SHORT), name
