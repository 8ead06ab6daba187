# SPDX-License-Identifier: Apache-2.0
"""`PrivateSums`: the sums of a run's rounds, from clipped updates to noised sums.

It keeps together the clip norm of the current block, the unit of the integers in which its updates
are summed, and the noise that was made for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping, ClipNorm
from dpftrl_fast.federated.sums.grid import most_contributions, sum_unit
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.federated.sums.round_sum import RoundSum
from dpftrl_fast.federated.sums.running_sum import RunningSum, block_noise
from dpftrl_fast.noise.arguments import std_in
from dpftrl_fast.plan.planned_noise import PlannedNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount

# No value of the noise stream is larger, in standard deviations (docs/plan/accounting.md: 9.419).
_LARGEST = 10.0


class PrivateSums:
    """The sum of the current round (`sums`), and the noised sum of all rounds so far (`running`).

    `options` are ``dtype``, ``memory`` and ``threads`` of the noise. The object holds un-noised
    sums and the key: a secret.

    Raises
    ------
    ValueError
        If the sums of so many updates, or such noise, do not fit into the integers; if the plan
        does not support `clipping`.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        layout: ModelLayout,
        report_goal: int,
        clipping: AdaptiveClipping | None,
        key: bytes,
        **options: Any,
    ) -> None:
        self._plan, self._layout, self._options = plan, layout, options
        self._goal = report_goal
        _, worst = plan.layout.noise_limits
        # `sum_unit` refuses noise near the range of a float64.
        self._noise_limit = math.ceil(min(_LARGEST * plan.noise_multiplier * worst, 2.0**1000))
        self._members = 0  # of the cohorts whose updates are in the integers
        self._clip: ClipNorm | None = None
        if clipping is None:
            noise = plan.noise(layout.size, key=key, **options)
        else:
            self._clip = ClipNorm(plan, clipping, report_goal, key)
            for extreme in self._clip.range:
                spec = replace(plan.noise_spec, clip_norm=extreme)
                std_in(spec.std(options["dtype"]), options["dtype"])
            noise = self._noise_of_block(self._clip)
        self._begin(noise)

    def _begin(self, noise: PlannedNoise) -> None:
        self.running = RunningSum(noise, self._unit)
        self.sums = RoundSum(self._layout, self.clip_norm, self._unit)

    @property
    def clip_norm(self) -> float:
        """Norm that whole updates are clipped to in the current round."""
        return self._plan.clip_norm if self._clip is None else self._clip.value

    @property
    def _unit(self) -> float:
        updates = self._goal * self._plan.steps
        return sum_unit(self.clip_norm, self._layout.size, updates, self._noise_limit)

    def _noise_of_block(self, clip: ClipNorm) -> PlannedNoise:
        size = self._layout.size
        return block_noise(self._plan, clip.block, size, clip.value, clip.key, **self._options)

    def check_room(self, members: int) -> None:
        """Refuse a cohort with which the integers could overflow; sizes of cohorts are public."""
        room = most_contributions(self.clip_norm, self._unit) - self._noise_limit
        if self._members + members > room:
            raise ValueError(
                f"the cohorts of a run must have at most {room} clients together, got "
                f"{self._members + members}: their sums could overflow 64-bit integers"
            )

    def step(self, number: int, members: int, total: NDArray[Any], bits: int) -> None:
        """Add the sum of round `number` to that of all, with the noise of the next step.

        `members` is the size of the cohort, `total` the sum of the clipped updates, `bits` the
        number of updates within the clip norm minus that of those above it.
        """
        self._members += members
        self.running.step(total)
        clip, layout = self._clip, self._plan.layout
        if clip is None:
            return
        clip.count(bits)
        if number == layout.steps_before(clip.block + 1) and number < layout.steps:
            clip.next_block()
            noise = self._noise_of_block(clip)
            self.running.replace_noise(noise, self._unit, ended=True)
            self.sums = RoundSum(self._layout, self.clip_norm, self._unit)
            self._members = 0

    def recover(self, account: RunAccount) -> None:
        """Continue with fresh noise, of a new key, for the current stretch of an account."""
        noise = account.noise(self._layout.size, **self._options)
        self.running.replace_noise(noise, self._unit)
        self._members = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state between two rounds: a secret, without copies."""
        return {
            "members": self._members,
            "clip_norm": None if self._clip is None else self._clip.state_dict(),
            "running": self.running.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], account: RunAccount) -> None:
        """Load a state of the same run, in the current stretch of the account."""
        self._members = state["members"]
        if self._clip is not None:
            self._clip.load_state_dict(state["clip_norm"])
            self._begin(self._noise_of_block(self._clip))
        elif account.abandoned:
            self._begin(account.noise(self._layout.size, **self._options))
        self.running.load_state_dict(state["running"])

    def __reduce__(self) -> Any:
        raise TypeError("PrivateSums holds un-noised sums and a secret key: not copied nor pickled")
