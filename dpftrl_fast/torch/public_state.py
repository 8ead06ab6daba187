# SPDX-License-Identifier: Apache-2.0
"""States without secrets: position and public facts, and when a run may continue from one.

Such a state has neither key nor sums. An object at its position keeps its own. Another one can only
make fresh noise from the next step on, as an accounted recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from dpftrl_fast._validate import equal, integer, shown

#: Entry of a kept optimiser's state: the public state of its noise.
_OF_NOISE = "private_noise"


def is_public(state: Any) -> bool:
    """Whether a state says that it holds no secrets."""
    return isinstance(state, Mapping) and "secrets" in state and equal(state["secrets"], False)


def check_position(state: Mapping[str, Any], here: Mapping[str, Any], declared: int) -> None:
    """Refuse a public state that is neither of the position `here` nor abandoned at it.

    Both are public states of a run of `declared` steps.
    """
    steps = integer("state's steps_taken", state["steps_taken"], 0, declared)
    now, before = here["steps_taken"], here["abandoned"]
    if steps == now:
        if equal([state["abandoned"], state["start"]], [before, here["start"]]):
            return
        earlier = [before[:-1], before[-1][0]] if before and here["start"] == now + 1 else None
        if earlier is not None and equal([state["abandoned"], state["start"]], earlier):
            return
    if steps < now:
        raise ValueError(
            f"state is at step {steps}, behind this object at {now}, and has no key to go back to"
        )
    account = "RunAccount(plan)"
    if not equal(state["abandoned"], []):
        stretches = f"{shown(state['abandoned'])}, start={shown(state['start'])}"
        account = f"RunAccount(plan, abandoned={stretches})"
    recovery = (
        ", or continue with fresh noise at a larger epsilon: first call "
        f"recover({account}.recovered(last, {steps + 1}, accept_epsilon=(epsilon, delta))), where "
        f"last, at least {steps}, is the last step that may have been released"
    )
    raise ValueError(
        f"state is at step {steps} and holds no key, and this object has the noise of step {now}: "
        "resume the run from its folder (TrainingRun) or from a state_dict(secrets=True)"
        f"{recovery if steps < declared else ''}"
    )


def keep_position(optimizer: Optimizer, noise: Any) -> None:
    """Let the state of a kept optimiser have the public state of its noise, and be checked by it.

    Without it the state of step t would load beside noise that begins anew at step 1.

    Examples
    --------
    >>> import torch
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch import ResidualNoise
    >>> w = torch.nn.Parameter(torch.zeros(3))
    >>> adam = torch.optim.Adam([w])
    >>> noise = ResidualNoise([w], plan=PrivacyPlan(1.0, 2.0, accounting.SinglePass(9)))
    >>> keep_position(adam, noise)
    >>> adam.state_dict()["private_noise"]["steps_taken"]
    0
    """

    def add(_: Optimizer, state: dict[str, Any]) -> None:
        state[_OF_NOISE] = noise.state_dict()

    def check(_: Optimizer, state: dict[str, Any]) -> None:
        if _OF_NOISE in state:  # a state of before the run has none
            noise.load_state_dict(state[_OF_NOISE])

    optimizer.register_state_dict_post_hook(add)
    optimizer.register_load_state_dict_pre_hook(check)
