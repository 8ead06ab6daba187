# SPDX-License-Identifier: Apache-2.0
"""Models of libraries, trained in an ordinary loop in each mode: right sums, or a refusal we know.

Right are the sums of clipped gradients that autograd gives for each example alone.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

if any(importlib.util.find_spec(name) is None for name in ("transformers", "peft", "timm")):
    pytest.skip("needs transformers, peft and timm", allow_module_level=True)

import zoo_cells
from zoo_table import CASES, FIXED, MODES, page, refusal

from dpftrl_fast.torch import fix_model, unwrap

COMPILED = "torch.compile before"
PAGE = Path(__file__).parents[3] / "docs" / "torch" / "models.md"
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries


def cells(names: Any) -> list[Any]:
    """Each model with each mode."""
    return [
        pytest.param(name, mode, marks=pytest.mark.slow if CASES[name].slow else ())
        for name in names
        for mode in MODES
    ]


@pytest.mark.parametrize(("name", "mode"), cells(CASES))
def test_as_its_library_builds_it(name: str, mode: str) -> None:
    expected = refusal(name, mode)
    if expected is None:
        assert zoo_cells.difference_of(CASES[name], mode) < 1e-5
    else:
        zoo_cells.check_refused(CASES[name], mode, expected.sentence)


@pytest.mark.parametrize(("name", "mode"), cells(["frozen BatchNorm", *FIXED]))
def test_fixed(name: str, mode: str) -> None:
    assert zoo_cells.difference_of(CASES[name], mode, lambda m: fix_model(m).model) < 1e-5


@pytest.mark.parametrize("mode", MODES)
def test_what_is_compiled_before_is_handed_out_itself(mode: str) -> None:
    assert zoo_cells.difference_of(CASES[COMPILED], mode, unwrap) < 1e-5


def test_the_page_of_models_says_what_is_tested() -> None:
    assert PAGE.read_text() == page(), "write zoo_table.page() to docs/torch/models.md"
