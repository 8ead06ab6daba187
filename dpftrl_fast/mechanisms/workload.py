# SPDX-License-Identifier: Apache-2.0
"""`Workload`: the sums of noisy gradients that training reads, whose error is to be small."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import MAX_STEPS, non_negative, real


@dataclass(frozen=True)
class Workload:
    r"""The sums that a mechanism's error is computed for: running sums, or the iterates of SGD.

    Steps run as in ``torch.optim.SGD``, with the noise x_t added to the gradient of step t:

        m_t = momentum m_(t-1) + (gradient_t + x_t + weight_decay theta_(t-1)),
        theta_t = theta_(t-1) - rate_t m_t.

    The noise in theta_t, times -(1 - momentum)/r where r is the largest rate, is U_t of

        V_t = momentum V_(t-1) + (1 - momentum) x_t - weight_decay r U_(t-1),
        U_t = U_(t-1) + (rate_t/r) V_t,

    and its standard deviation is the error. With one rate and no decay U_t is the running sum of
    the noise (no momentum), or (1 - momentum) times the sum of momentum^i times the running sum i
    steps before.

    Parameters
    ----------
    momentum : float
        gamma, 0 <= gamma < 1.
    weight_decay : float
        Finite and >= 0. Without ``learning_rates`` the rate is 1: give the product of the two.
    learning_rates : sequence of float, optional
        The rate of each step, finite and >= 0, not all 0. It fixes the number of steps. None is one
        rate for a run of any length.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Examples
    --------
    >>> Workload(momentum=0.9)
    Workload(momentum=0.9, weight_decay=0.0, learning_rates=None)
    >>> Workload(learning_rates=[2, 1]).relative_rates(2).tolist()
    [1.0, 0.5]
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    learning_rates: Sequence[float] | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "momentum", real("momentum", self.momentum, least=0.0, below=1.0))
        set_field(self, "weight_decay", non_negative("weight_decay", self.weight_decay))
        if self.learning_rates is not None:
            set_field(self, "learning_rates", _rates(self.learning_rates))
        if not math.isfinite(self.decay):
            raise ValueError(
                "weight_decay times the largest learning rate must be finite, got "
                f"{self.weight_decay} times {self._largest}"
            )

    @cached_property
    def _largest(self) -> float:
        return 1.0 if self.learning_rates is None else max(self.learning_rates)

    @property
    def decay(self) -> float:
        """Weight decay times the largest rate."""
        return self.weight_decay * self._largest

    def relative_rates(self, steps: int) -> NDArray[np.float64] | None:
        """Return each rate over the largest one, float64 of shape (steps,), or None: all 1.

        Raises
        ------
        ValueError
            If the rates are those of another number of steps.
        """
        self.check_steps(steps)
        if self.learning_rates is None or self._equal:
            return None
        return np.array(self.learning_rates) / self._largest

    @cached_property
    def _equal(self) -> bool:
        return self.learning_rates is not None and min(self.learning_rates) == self._largest

    def check_steps(self, steps: int) -> None:
        """Refuse a number of steps that has not one rate each."""
        if self.learning_rates is not None and len(self.learning_rates) != steps:
            raise ValueError(
                f"learning_rates must have one rate for each of the {steps} steps, got "
                f"{len(self.learning_rates)}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data.

        Examples
        --------
        >>> Workload(0.9).to_dict()
        {'momentum': 0.9, 'weight_decay': 0.0, 'learning_rates': None}
        """
        rates = self.learning_rates
        return {
            "momentum": self.momentum,
            "weight_decay": self.weight_decay,
            "learning_rates": None if rates is None else list(rates),
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Workload:
        """Read back the dictionary of `to_dict`; missing or other keys are a ValueError."""
        if not isinstance(d, Mapping):
            raise TypeError(f"a workload must be a mapping, got {type(d).__name__}")
        keys = ["momentum", "weight_decay", "learning_rates"]
        if set(d) != set(keys):
            raise ValueError(
                f"a workload must have exactly the keys {keys}, got {sorted(map(str, d))}"
            )
        return cls(**{key: d[key] for key in keys})


def check_workload(workload: Any, steps: int) -> Workload:
    """Return `workload` if it is one that fits this number of steps."""
    if not isinstance(workload, Workload):
        raise TypeError(f"workload must be a Workload, got {type(workload).__name__}")
    workload.check_steps(steps)
    return workload


def _rates(values: Any) -> tuple[float, ...]:
    if isinstance(values, (str, bytes, Mapping)):
        raise TypeError(
            f"learning_rates must be a sequence of numbers, got {type(values).__name__}"
        )
    try:
        rates = tuple(non_negative("each of learning_rates", value) for value in values)
    except TypeError as error:
        if "each of" in str(error):
            raise
        came = type(values).__name__
        raise TypeError(f"learning_rates must be a sequence of numbers, got {came}") from None
    if not 1 <= len(rates) <= MAX_STEPS:
        raise ValueError(f"learning_rates must hold one rate a step, got {len(rates)}")
    if not any(rates):
        raise ValueError("learning_rates must hold at least one rate > 0, got zeros only")
    return rates
