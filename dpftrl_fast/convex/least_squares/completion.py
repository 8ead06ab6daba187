# SPDX-License-Identifier: Apache-2.0
"""The one tree or block of each noise, and its completion after the last step."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

from dpftrl_fast._validate import choice, shown
from dpftrl_fast.accounting.participation import Participation
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, sensitivity_squared
from dpftrl_fast.mechanisms import ToeplitzMechanism, Tree, Variant
from dpftrl_fast.mechanisms.tree_error import prefix_variance
from dpftrl_fast.plan.planned_noise import PlannedNoise


def best_completion(
    participation: Participation, variant: Variant = "honaker", bound: PlanBound = "released"
) -> Literal[False, "all"]:
    """Return "all" if completing the tree reduces the noise of the last prefix at the same epsilon.

    At the same epsilon the noise multiplier goes with sqrt(zeta), so sqrt(zeta v) is compared.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> best_completion(accounting.SinglePass(1045)), best_completion(accounting.SinglePass(1024))
    ('all', False)
    """
    steps = participation.steps
    end = 1 << (steps - 1).bit_length()
    if end == steps:
        return False
    plain = sensitivity_squared(participation, Tree(variant), bound=bound)
    completed = sensitivity_squared(participation, Tree(variant, complete="all"), bound=bound)
    if completed * prefix_variance(end, variant) < plain * prefix_variance(steps, variant):
        return "all"
    return False


def noise_at(noise: PlannedNoise, t: int, last_leaf: int, out: NDArray[Any]) -> None:
    """Write the noise of the sum at the present step t.

    After the last step of a completed tree it is the noise of the tree's last leaf.
    """
    if t == noise.steps and last_leaf > t:
        noise.advance_to(t)
        noise.prefix(last_leaf, out)
    elif noise.t < t:
        noise.advance_to(t - 1)
        noise.step(out)
    else:  # an interrupted call made it before, for the same sum
        noise.prefix(t, out)


def single_block(
    mechanism: Any, complete: Any, variant: Any
) -> tuple[Literal["tree"] | ToeplitzMechanism, Any, Any]:
    """Return mechanism, completion and variant that fit together; a tree is the word "tree"."""
    variant = choice("variant", variant, ("honaker", "vanilla"))
    if isinstance(mechanism, str):
        if mechanism != "tree":
            raise ValueError(f"mechanism must be 'tree' or a mechanism, got {shown(mechanism)}")
        return "tree", complete, variant
    if not isinstance(mechanism, (Tree, ToeplitzMechanism)):
        raise TypeError(
            "mechanism must be 'tree', a Tree or a Toeplitz mechanism, got "
            f"{type(mechanism).__name__}"
        )
    if isinstance(mechanism, Tree):
        if not mechanism.any_length or mechanism.restart_every is not None:
            raise ValueError(
                f"mechanism must be one tree for least squares, got {mechanism!r}: a restart adds "
                "noise and no information"
            )
        if complete != "auto":
            raise ValueError(
                f"complete must be 'auto' where mechanism is a Tree, got {complete!r}: put it into "
                "the Tree"
            )
        return "tree", "all" if mechanism.complete == "all" else False, mechanism.variant
    if mechanism.restart_every is not None:
        raise ValueError(
            "mechanism must be in one block for least squares, got "
            f"restart_every={mechanism.restart_every}: a restart adds noise and no information"
        )
    if complete == "all" or variant != "honaker":
        given = f"complete={complete!r}" if complete == "all" else f"variant={variant!r}"
        raise ValueError(f"{given} must come with mechanism='tree', got {mechanism!r}")
    return mechanism.rounded("float32"), False, variant
