# SPDX-License-Identifier: Apache-2.0
"""Checks of what `make_private` is given: a plan of one's own, and the optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dpftrl_fast.accounting import FixedEpochs, MinSeparation, Participation, SinglePass
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.torch.gradients.clipping import Clipping
from dpftrl_fast.torch.optimizer import DPFTRL

#: What a plan decides, as long as nobody asks for it.
_OF_PLAN = {
    "epsilon": None,
    "noise_multiplier": None,
    "mechanism": "auto",
    "bound": "released",
}


def check_plan(
    plan: PrivacyPlan,
    participation: Participation,
    clip: Clipping,
    schedule: Mapping[str, Any],
) -> None:
    """Refuse a plan that is not for this run, or that comes with what a plan decides.

    Parameters
    ----------
    plan : PrivacyPlan
    participation : participation
        Of the run.
    clip : Clipping
    schedule : mapping
        The arguments of `make_private` that a plan stands for.

    Raises
    ------
    TypeError, ValueError
        If it is no plan, is for other steps or fewer uses of an example, has a smaller clip norm,
        or one of `schedule` is not the default.
    """
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    asked = [name for name, value in schedule.items() if value != _OF_PLAN[name]]
    if asked:
        raise ValueError(f"expected a plan, or {', '.join(asked)}, got both")
    if plan.steps != participation.steps:
        raise ValueError(
            f"the plan must be for the {participation.steps} steps of {participation!r}, got "
            f"{plan.steps}"
        )
    if not _allows(plan.participation, participation):
        raise ValueError(
            f"the plan must be for {participation!r}, got {plan.participation!r}, which does not "
            "allow as many uses of an example"
        )
    if not clip.clip_norm <= plan.clip_norm:
        raise ValueError(
            f"clip_norm must be at most the plan's, {plan.clip_norm}, got {clip.clip_norm}"
        )


def _allows(declared: Participation, wanted: Participation) -> bool:
    """Whether whole passes in a fixed order are allowed; the guard looks at the examples too."""
    if not isinstance(wanted, FixedEpochs):
        return True
    if isinstance(declared, MinSeparation):
        often = declared.max_participations >= wanted.epochs
        return often and declared.min_separation <= wanted.steps_per_epoch
    return not isinstance(declared, SinglePass)


def check_dtypes(parameters: Sequence[Tensor], dtype: Any) -> None:
    """Refuse float64 parameters whose noise would be float32, before the first step does.

    Examples
    --------
    >>> check_dtypes([torch.zeros(1, dtype=torch.float64)], "float64")
    """
    if dtype != "float64" and any(p.dtype == torch.float64 for p in parameters):
        raise ValueError(f"float64 parameters need dtype='float64', got {dtype!r}")


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimiser that cannot run on noisy gradients, one a step.

    Examples
    --------
    >>> check_optimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer must take one gradient a step, got LBFGS with its closure")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("optimizer must take dense gradients, got SparseAdam")
    if isinstance(optimizer, DPFTRL):
        raise ValueError("optimizer must be an optimiser without noise, got DPFTRL: give an SGD")


def sgd_options(optimizer: Optimizer) -> dict[str, Any]:
    """Return what DPFTRL takes over from an SGD; refuse what it has not.

    Examples
    --------
    >>> sgd_options(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9))
    {'momentum': 0.9, 'nesterov': False}
    """
    for group in optimizer.param_groups:
        if "initial_lr" in group:
            raise ValueError(
                "an SGD that becomes DPFTRL must have no learning-rate scheduler yet, got one: "
                "make it for the optimiser that make_private returns"
            )
        for name in ("weight_decay", "dampening", "maximize"):
            if group[name]:
                raise ValueError(
                    f"an SGD that becomes DPFTRL must have {name} 0 or False, got {group[name]!r}: "
                    "keep_optimizer=True leaves it an SGD with noise"
                )
    found = {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups}
    if len(found) != 1:
        raise ValueError(
            f"all parameter groups must have the same momentum and nesterov, got {sorted(found)}"
        )
    momentum, nesterov = found.pop()
    return {"momentum": momentum, "nesterov": nesterov}
