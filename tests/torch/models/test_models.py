# SPDX-License-Identifier: Apache-2.0
"""Models of libraries, trained in an ordinary loop in each mode: right sums, or a refusal we know.

Right are the sums of clipped gradients that autograd gives for each example alone.
"""

from __future__ import annotations

import importlib.util

import pytest

if any(importlib.util.find_spec(name) is None for name in ("transformers", "peft", "timm")):
    pytest.skip("needs transformers, peft and timm", allow_module_level=True)

import zoo_cells
import zoo_images
import zoo_plain
import zoo_transformers
from zoo import Case

from dpftrl_fast.torch import fix_model, unwrap

COMPILED = "torch.compile before"
CASES: dict[str, Case] = {**zoo_plain.CASES, **zoo_transformers.CASES, **zoo_images.CASES}
SLOW = [
    pytest.param(name, marks=pytest.mark.slow) if case.slow else name
    for name, case in CASES.items()
    if name != COMPILED
]

# What "auto" refuses without fix_model, and "hooks" with it. All else works.
MIXES = r"BatchNorm.*\): its output for an example depends on .* use dpftrl_fast.torch.fix_model"
REFUSED_BY_AUTO = {
    **dict.fromkeys(
        ["U-Net", "ResNet of timm", "EfficientNet", "MobileNetV3 of timm", "ResNet18"], MIXES
    ),
    "MobileNetV3": MIXES,
    "GRU": "use dpftrl_fast.torch.fix_model, which makes it the DPLSTM, DPGRU or DPRNN",
}
ROWS = "examples must be along the first dimension of every trained layer's input"
INSIDE = "the loss that the model returns must treat each example apart"
SHARED = "must take what all examples share once for each example"
REFUSED_BY_HOOKS = {
    "GPT-2, tied head": INSIDE,
    "Llama": INSIDE,
    "tied weight": "it is used outside of its layer too",
    "DeBERTa": ROWS,
    "T5": SHARED,
    "BART": "must get one tensor",
    "DoRA on BERT": "must get one tensor",
    "IA3 on BERT": "it is used outside of its layer too",
    "prompt tuning of BERT": SHARED,
    "ConvNeXt": SHARED,
    "Swin": ROWS,
}
pytestmark = pytest.mark.filterwarnings("ignore")  # those of the libraries


def fixed(model):  # type: ignore[no-untyped-def]
    return fix_model(model).model


@pytest.mark.parametrize("name", SLOW)
def test_as_it_is_by_auto(name: str) -> None:
    case = CASES[name]
    if name not in REFUSED_BY_AUTO:
        result, off = zoo_cells.cell(case, "auto")
        assert result == "works", off
        return
    model, batch = zoo_cells.made(case)
    with pytest.raises(ValueError, match=REFUSED_BY_AUTO[name]):
        zoo_cells.sums_of(case, model, batch, 1.0, grad_sample_mode="auto")
    result, off = zoo_cells.cell(case, "auto", fix=fixed)  # the remedy
    assert result == "works", off


@pytest.mark.parametrize("name", SLOW)
def test_fixed_by_hooks(name: str) -> None:
    result, off = zoo_cells.cell(CASES[name], "hooks", fix=fixed)
    if name in REFUSED_BY_HOOKS:
        assert result == "refused" and REFUSED_BY_HOOKS[name] in off, off
    else:
        assert result == "works", off


@pytest.mark.parametrize("mode", ["auto", "hooks", "functorch", "vmap"])
def test_what_is_compiled_before_is_handed_out_itself(mode: str) -> None:
    result, off = zoo_cells.cell(CASES[COMPILED], mode)
    assert result == "refused" and "must be the network itself, got it compiled" in off, off
    result, off = zoo_cells.cell(CASES[COMPILED], mode, fix=unwrap)  # the remedy
    assert result == "works", off
