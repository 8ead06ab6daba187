# SPDX-License-Identifier: Apache-2.0
"""Settings that both methods of a private linear fit have: the budget, batches and noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dpftrl_fast.accounting.planner.choice import MechanismChoice
from dpftrl_fast.convex.setting_rules import check_settings
from dpftrl_fast.mechanisms import Variant
from dpftrl_fast.noise.keys import Seed


@dataclass(frozen=True)
class CommonSettings:
    """Settings of both methods."""

    epsilon: float | None = 1.0
    delta: float = 1e-6
    noise_multiplier: float | None = None
    batch_size: int | Literal["auto"] = "auto"
    radius: float | None = None
    mechanism: MechanismChoice = "auto"
    variant: Variant = "honaker"
    noise_seed: Seed = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, value in check_settings(vars(self)).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Any:
        """Return the settings among these values, other names being ignored."""
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})
