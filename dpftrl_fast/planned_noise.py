# SPDX-License-Identifier: Apache-2.0
"""`PlannedNoise`: a tree that keeps to the horizon and the restarts of its plan."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from dpftrl_fast.noise import TreeNoise
from dpftrl_fast.noise_arguments import integer
from dpftrl_fast.noise_state import Position

__all__ = ["PlannedNoise"]


class PlannedNoise(TreeNoise):
    """What `PrivacyPlan.noise` returns: a `TreeNoise` whose epsilon can be stated.

    It restarts by itself where the plan says, completing the tree if the plan does, and refuses
    what the epsilon was not stated for: a step past the declared ones, a restart of one's own, a
    look at single nodes.

    Parameters
    ----------
    size, std, **options
        As for `TreeNoise`.
    steps : int
        Declared number of steps, over all trees.
    restart_every : int or None
        Steps of a tree.
    complete : bool
        Whether a tree is completed before the restart.
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        steps: int,
        restart_every: int | None,
        complete: bool,
        **options: Any,
    ) -> None:
        super().__init__(size, std, **options)
        self._steps = steps
        self._restart_every = restart_every
        self._complete = complete
        self._turn = threading.RLock()

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self._steps

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all trees."""
        return self.tree * (self._restart_every or 0) + self.t

    def step(self, out: Any = None) -> Any:
        """Take the next step of the plan and return its noise, as `TreeNoise.step` does.

        Raises
        ------
        ValueError
            If all declared steps are taken.
        """
        with self._turn:
            self._restart_if_due()
            return super().step(out)

    def residual(self, out: Any = None) -> Any:
        """Take the next step of the plan and return its noise less what was last returned.

        Raises
        ------
        ValueError
            If all declared steps are taken.
        """
        with self._turn:
            self._restart_if_due()
            return super().residual(out)

    def _restart_if_due(self) -> None:
        if self.steps_taken >= self._steps:
            raise ValueError(
                f"all {self._steps} declared steps are taken: the epsilon is stated for no more"
            )
        if self._restart_every is not None and self.t >= self._restart_every:
            super().restart(self._complete)

    def advance_to(self, t: int) -> None:
        """Move on within the present tree, at most to where the plan ends or restarts it.

        Raises
        ------
        ValueError
            If t lies before the present step or past that end.
        """
        with self._turn:
            end = self._steps - (self.steps_taken - self.t)
            if self._restart_every is not None:
                end = min(end, self._restart_every)
            if integer("t", t) > end:
                raise ValueError(f"t must be at most {end}, where the plan ends this tree, got {t}")
            super().advance_to(t)

    def restart(self, complete: bool = False) -> None:
        """Refuse: the plan decides, and its epsilon stands on it."""
        every = self._restart_every
        when = "never" if every is None else f"every {every} steps, by itself"
        raise ValueError(f"this tree restarts {when}, as its plan says; got a call of restart")

    def node(self, level: int, index: int, out: Any = None) -> Any:
        """Refuse: a planned run releases prefixes, not single nodes."""
        raise ValueError("the noise of a plan releases prefixes only: got a call of node")

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Go on from a state of this plan, as `TreeNoise.load_state_dict` does.

        Raises
        ------
        ValueError, TypeError
            Also if the state's trees are not the plan's; nothing is then changed.
        """
        with self._turn:
            super().load_state_dict(state, allow_fork=allow_fork)

    def _check_position(self, position: Position) -> None:
        every = self._restart_every
        end = every
        if every is not None and self._complete:
            end = 1 << (every - 1).bit_length()
        taken = len(position.ends) * (every or 0) + position.t
        in_tree = self._steps if every is None else every
        if set(position.ends) - {end} or taken > self._steps or position.t > in_tree:
            raise ValueError(
                f"state must be of a run of {self._steps} steps that restarts every {every}, "
                "got another"
            )
