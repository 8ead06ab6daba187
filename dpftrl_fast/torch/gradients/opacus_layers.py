# SPDX-License-Identifier: Apache-2.0
"""Opacus's layers and formulas, without its import where a model has no use of them.

The import takes as long as that of this package, and 30 MB. A layer of Opacus can only be in a
model if Opacus was imported, so that names are enough to find it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn


def is_opacus(layer: nn.Module, *kinds: str) -> bool:
    """Whether a layer is of one of these types of ``opacus.layers``, or of one made of it.

    Examples
    --------
    >>> from opacus.layers import DPLSTM
    >>> is_opacus(DPLSTM(2, 3), "DPRNNBase"), is_opacus(nn.LSTM(2, 3), "DPRNNBase")
    (True, False)
    """
    return any(
        kind.__module__.startswith("opacus.layers.") and kind.__name__ in kinds
        for kind in type(layer).__mro__
    )


def is_wrapped(model: nn.Module) -> bool:
    """Whether a model is a network inside of a module that Opacus makes.

    Examples
    --------
    >>> from opacus import GradSampleModule
    >>> is_wrapped(GradSampleModule(nn.Linear(2, 1))), is_wrapped(nn.Linear(2, 1))
    (True, False)
    """
    return any(kind.__module__.startswith("opacus.grad_sample") for kind in type(model).__mro__)


def opacus_formula(layer: nn.Module) -> Callable[..., Any] | None:
    """Return Opacus's function for the per-example gradients of this type of layer, if any.

    Examples
    --------
    >>> opacus_formula(nn.Conv1d(1, 2, 3)).__name__, opacus_formula(nn.ReLU())
    ('compute_conv_grad_sample', None)
    """
    kind = type(layer)
    of_torch = kind.__module__.startswith("torch.nn.") and bool(layer._parameters)
    if not (of_torch or "opacus.grad_sample" in sys.modules):
        return None  # others have a formula if the caller registered one with Opacus
    from opacus.grad_sample import GradSampleModule

    found: Callable[..., Any] | None = GradSampleModule.GRAD_SAMPLERS.get(kind)
    return found


def objections(layer: nn.Module) -> list[str]:
    """Return the reasons for which Opacus's validators refuse a layer.

    Those of Opacus itself are for layers that are refused without them; the caller may have
    registered more.

    Examples
    --------
    >>> objections(nn.Linear(2, 1))
    []
    """
    if "opacus.validators" not in sys.modules:
        return []
    from opacus.validators import ModuleValidator

    validate = ModuleValidator.VALIDATORS.get(type(layer))
    return [] if validate is None else [str(error) for error in validate(layer)]
