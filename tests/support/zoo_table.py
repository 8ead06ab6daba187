# SPDX-License-Identifier: Apache-2.0
"""What each mode does with each model of the zoo, and the page of docs that says so."""

from __future__ import annotations

from typing import NamedTuple

from zoo import Case
from zoo_images import CASES as OF_IMAGES
from zoo_plain import CASES as PLAIN
from zoo_transformers import CASES as OF_TRANSFORMERS

MODES = ("auto", "hooks", "functorch", "vmap")
CASES: dict[str, Case] = {**PLAIN, **OF_TRANSFORMERS, **OF_IMAGES}
FIX = "`fix_model`"


class Refusal(NamedTuple):
    """The sentence of a refusal, as a pattern, and what to do instead."""

    sentence: str
    remedy: str


LAYERS = r"the model must have layers that treat examples apart, got\n- "
MIXES = Refusal(
    LAYERS + r"\S+ \(\w*BatchNorm\w*\): its output for an example depends on the other examples "
    r"of the batch, .*; use dpftrl_fast\.torch\.fix_model, which makes it a GroupNorm, or eval\(\)",
    FIX,
)
RECURRENT = Refusal(
    LAYERS + r"layer \((LSTM|GRU)\): its steps through time cannot be taken for each example alone:"
    r" use dpftrl_fast\.torch\.fix_model, which makes it the DPLSTM, DPGRU or DPRNN",
    FIX,
)
ATTENDS = Refusal(
    LAYERS + r"\S+ \(MultiheadAttention\): its four layers are fused, so that hooks see none of "
    r"them: use dpftrl_fast\.torch\.fix_model, .* or grad_sample_mode='vmap'",
    FIX,
)
NO_LIMITS = r"grad_sample_mode='vmap' has no such limits"
INSIDE = Refusal(
    r"the loss that the model returns must treat each example apart, got a gradient for one that "
    r"depends on the argument 'labels' of others, if they are -100: take its logits, .*"
    r"grad_sample_mode='vmap'",
    "`vmap`",
)
SHARED = Refusal(
    r"the model must take what all examples share once for each example \(of .*\), got a "
    r"RuntimeError in .* \(\w+\): " + NO_LIMITS,
    "`vmap`",
)
ROWS = Refusal(
    r"\S+ \(Linear\) must get the 5 rows of the batch, one of them added for a trial, got an input "
    r"of shape \([\d, ]+\): with hooks, examples must be along the first dimension of every trained"
    r" layer's input, each in its own row; " + NO_LIMITS,
    "`vmap`",
)
ONE = Refusal(
    r"\S+ \(\w+\) must get one tensor, got \d arguments and the keywords .*: "
    r"grad_sample_mode='vmap' takes any",
    "`vmap`",
)
OUTSIDE = Refusal(
    r"the per-example gradients of \S+ must add up to its gradient, got others: it is used outside "
    r"of its layer too, or the formula for the layer is wrong; " + NO_LIMITS,
    "`vmap`",
)
HOOKED = Refusal(
    r"\S+ \(Embedding\) must be run for each example by torch\.func, got a RuntimeError \(is there "
    r"a hook on it\?\): grad_sample_mode='auto' finds another way",
    "`auto`",
)
COMPILED = Refusal(
    r"model must be the network itself, got it compiled \(OptimizedModule\): give "
    r"dpftrl_fast\.torch\.unwrap\(model\), since private passes are not compiled",
    "`unwrap`",
)

_BY_HOOKS = ("hooks", "functorch")
#: name of a model -> what refuses it, and the modes that do; all else works.
_REFUSED = {
    **dict.fromkeys(
        ["U-Net", "ResNet of timm", "EfficientNet", "MobileNetV3 of timm", "ResNet18"],
        (MIXES, MODES),
    ),
    "MobileNetV3": (MIXES, MODES),
    "GRU": (RECURRENT, MODES),
    "LSTM": (RECURRENT, _BY_HOOKS),
    "TransformerEncoder": (ATTENDS, _BY_HOOKS),
    "GPT-2, tied head": (INSIDE, _BY_HOOKS),
    "Llama": (INSIDE, _BY_HOOKS),
    "tied weight": (OUTSIDE, _BY_HOOKS),
    "DeBERTa": (ROWS, _BY_HOOKS),
    "T5": (SHARED, _BY_HOOKS),
    "BART": (ONE, _BY_HOOKS),
    "DoRA on BERT": (ONE, _BY_HOOKS),
    "IA3 on BERT": (OUTSIDE, _BY_HOOKS),
    "prompt tuning of BERT": (SHARED, _BY_HOOKS),
    "ConvNeXt": (SHARED, _BY_HOOKS),
    "Swin": (ROWS, _BY_HOOKS),
    "BERT, checkpoints": (HOOKED, ("functorch",)),
    "torch.compile before": (COMPILED, MODES),
}
#: Those that fix_model changes: it makes all modes work.
FIXED = [name for name, (refusal, _) in _REFUSED.items() if refusal.remedy == FIX]


def refusal(name: str, mode: str) -> Refusal | None:
    """What a mode refuses a model with, as its library builds it; None if it works."""
    found, modes = _REFUSED.get(name, (None, ()))
    return found if mode in modes else None


_HEAD = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
# Models that are tested

Each model below is built by its library from a configuration (transformers, peft, timm,
torchvision, Opacus, torch), with random weights, and trained in an ordinary loop with each
`grad_sample_mode` of `make_private`. In a cell,

- *works*: the sums of clipped gradients are those that autograd gives for each example alone, to
  1e-5 of the clip norm;
- a remedy: `make_private`, or the first pass, refuses the model in a sentence that names it.
  `fix_model`: all modes work after `dpftrl_fast.torch.fix_model(model)`, which makes a BatchNorm a
  GroupNorm and replaces recurrent layers and attention. `vmap` and `auto`: this mode works.
  `unwrap`: give `dpftrl_fast.torch.unwrap(model)`.

"auto" prints whether it takes hooks or each example alone. The modes are described in
[gradients.md](gradients.md). Tests run each cell, and compare this page with the results
(`tests/torch/models`).

"""


def page() -> str:
    """docs/torch/models.md."""
    rows = ["| model | " + " | ".join(f'"{mode}"' for mode in MODES) + " |", "|---" * 5 + "|"]
    for name in CASES:
        cells = [refused.remedy if (refused := refusal(name, m)) else "works" for m in MODES]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return _HEAD + "\n".join(rows) + "\n"
