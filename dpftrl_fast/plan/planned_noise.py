# SPDX-License-Identifier: Apache-2.0
"""`PlannedNoise`: a tree that follows the horizon and the restarts of its plan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import singledispatch
from itertools import chain, islice, repeat
from typing import Any

from dpftrl_fast._validate import integer
from dpftrl_fast.mechanisms import Layout, TreeLayout
from dpftrl_fast.noise.state import Position
from dpftrl_fast.noise.tree import TreeNoise


class PlannedNoise(TreeNoise):
    """The noise of a plan: a `TreeNoise` whose epsilon can be stated.

    It restarts where the plan says, completes the tree if the plan does, and refuses everything
    that the stated epsilon does not cover: a step past the declared ones, another restart, a call
    of `node`.

    Parameters
    ----------
    size, std, **options
        As for `TreeNoise`.
    layout : TreeLayout
        The trees of the declared steps, which of these are completed, and the variant.
    """

    def __init__(
        self,
        size: int,
        std: float,
        *,
        layout: TreeLayout,
        **options: Any,
    ) -> None:
        super().__init__(size, std, variant=layout.variant, **options)
        self._layout = layout
        self._turn = threading.RLock()

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self._layout.steps

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all trees."""
        return self._layout.steps_before(self.tree) + self.t

    def step(self, out: Any = None) -> Any:
        """Take the next step of the plan and return its noise, as `TreeNoise.step` does.

        ValueError if all declared steps are taken.
        """
        with self._turn:
            self._restart_if_due()
            return super().step(out)

    def residual(self, out: Any = None) -> Any:
        """Take the next step and return its noise less the noise last returned; as `step`."""
        with self._turn:
            self._restart_if_due()
            return super().residual(out)

    def _restart_if_due(self) -> None:
        run = self._layout.run_of(self.tree)
        if self.t < run.steps:
            return
        if self.tree == self._layout.count - 1:
            raise ValueError(
                f"all {self.steps} declared steps are taken: the epsilon is stated for no more"
            )
        super().restart(run.completed)

    def advance_to(self, t: int) -> None:
        """Advance within the present tree, at most to its end in the plan."""
        with self._turn:
            end = self._layout.run_of(self.tree).steps
            if integer("t", t) > end:
                raise ValueError(f"t must be at most {end}, where the plan ends this tree, got {t}")
            super().advance_to(t)

    def prefix(self, t: int, out: Any = None) -> Any:
        """Return b_t of the present tree, as `TreeNoise.prefix` does.

        t is at most the last step of this tree, or its completed end: the stated epsilon covers no
        further nodes.
        """
        with self._turn:
            run = self._layout.run_of(self.tree)
            if integer("t", t) > run.steps and t != run.end:
                ends = f"at most {run.steps}" + (f", or {run.end}" if run.completed else "")
                raise ValueError(f"t must be {ends}, where the plan ends this tree, got {t}")
            return super().prefix(t, out)

    def carried(self) -> Any:
        """Return the prefix noise at the planned end of the present tree, completion included.

        It stays in all later running sums.
        """
        return self.prefix(self._layout.run_of(self.tree).end)

    def restart(self, complete: bool = False) -> None:
        """Refuse: the plan decides when the tree restarts."""
        count = self._layout.count
        when = "never" if count == 1 else f"by itself, {count - 1} times"
        raise ValueError(f"this tree restarts {when}, as its plan says: got a call of restart")

    def node(self, level: int, index: int, out: Any = None) -> Any:
        """Refuse: a planned run releases prefixes, not single nodes."""
        raise ValueError("the noise of a plan releases prefixes only: got a call of node")

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of this plan, as `TreeNoise.load_state_dict` does.

        A state of other trees, or after a call of `node`, is a ValueError.
        """
        with self._turn:
            super().load_state_dict(state, allow_fork=allow_fork)

    def _check_position(self, position: Position) -> None:
        if position.node_used:
            raise ValueError("state must be of a run without a call of node, got one with it")
        taken, planned = len(position.ends), self._layout
        carried = chain.from_iterable(repeat(run.end, run.count) for run in planned.runs)
        if (
            taken >= planned.count
            or position.t > planned.run_of(taken).steps
            or position.ends != list(islice(carried, taken))
        ):
            raise ValueError(
                f"state must be of a run of {planned.steps} steps in the plan's {planned.count} "
                f"trees, got one at step {position.t} of tree {taken}"
            )


@singledispatch
def source_of(layout: Layout) -> Callable[..., PlannedNoise]:
    """Return the class of the noise of a layout; registered for the type of each layout."""
    raise TypeError(f"no noise is registered for layouts of type {type(layout).__name__}")


@source_of.register
def _(layout: TreeLayout) -> Callable[..., PlannedNoise]:
    return PlannedNoise
