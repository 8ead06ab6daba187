# SPDX-License-Identifier: Apache-2.0
"""`owned_names`, `check_unwrapped`: what a model must have, and what not, to be made private."""

from __future__ import annotations

from torch import nn

from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.opacus_layers import is_wrapped


def owned_names(model: nn.Module, accumulator: Accumulator) -> list[str]:
    """Return the names of an accumulator's parameters in a model, ValueError if one has none.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> model = nn.Linear(2, 1)
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([model.bias], FlatClipping(1.0), 2, plan.guard())
    >>> owned_names(model, sums)
    ['bias']
    """
    names = {id(p): name for name, p in model.named_parameters()}
    missing = [i for i, p in enumerate(accumulator.parameters) if id(p) not in names]
    if missing:
        raise ValueError(
            f"the optimizer's parameters must be those of the model, got others at {missing}: "
            "make the optimizer of the model that fix_model returned, or of the one given here"
        )
    return [names[id(p)] for p in accumulator.parameters]


def check_unwrapped(model: nn.Module) -> None:
    """Refuse a model that has hooks for per-example gradients already.

    Examples
    --------
    >>> check_unwrapped(nn.Linear(2, 1))
    """
    if is_wrapped(model) or hasattr(model, "autograd_grad_sample_hooks"):
        raise ValueError("model must not be wrapped by Opacus yet, got one that is")
    put = [*model._forward_pre_hooks.values(), vars(model).get("forward")]
    if any(getattr(hook, "of_dpftrl", False) for hook in put):
        raise ValueError("model must not be wrapped or made private before, got one that has hooks")
