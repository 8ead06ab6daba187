# SPDX-License-Identifier: Apache-2.0
"""`PlannedNoise`: a source of noise that follows the horizon and the blocks of its plan."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import singledispatch
from itertools import chain, islice, repeat
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import float_dtype, integer
from dpftrl_fast.mechanisms import Layout, ToeplitzLayout, TreeLayout
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzRun
from dpftrl_fast.mechanisms.tree_layout import TreeRun
from dpftrl_fast.noise.source import NoiseSource
from dpftrl_fast.noise.state import Position
from dpftrl_fast.noise.toeplitz import ToeplitzNoise
from dpftrl_fast.noise.tree import TreeNoise
from dpftrl_fast.rounding import release_grid, residual_grid

#: Most by which released sums are divided; a float64 holds it.
MOST_DIVISOR = 2**53


class PlannedNoise(NoiseSource):
    """The noise of a plan: a source whose epsilon can be stated.

    It restarts where the plan says (and completes the tree if the plan does), and refuses
    everything that the stated epsilon does not cover: a step past the declared ones, another
    restart, a single node. Made by `NoiseSpec.source`; a subclass joins it with the source of one
    type of layout.
    """

    #: Word for the source in messages.
    _word: ClassVar[str]
    _layout: TreeLayout | ToeplitzLayout

    def _follow(self, layout: TreeLayout | ToeplitzLayout) -> None:
        self._layout = layout
        self._run_of_block: tuple[int, Any] = (-1, None)
        self._turn = threading.RLock()
        self._busy = False

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self._layout.steps

    @property
    def grid(self) -> float:
        """Power of two to whose multiples a sum with this noise is rounded before its release."""
        return release_grid(self.std * self._layout.least_std)

    @property
    def residual_grid(self) -> float:
        """Grid of `release`: `grid`, but in float32 at least 2^-80."""
        return residual_grid(self.grid, self._dtype)

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all blocks."""
        return self._layout.steps_before(self._block) + self.t

    def step(self, out: Any = None) -> Any:
        """Take the next step of the plan and return its noise, as `TreeNoise.step` does.

        ValueError if all declared steps are taken.
        """
        return self._alone(self._take, super().step, out)

    def residual(self, out: Any = None) -> Any:
        """Take the next step and return its noise less the noise last returned; as `step`."""
        return self._alone(self._take, super().residual, out)

    def release(
        self,
        pieces: NDArray[np.int64],
        at: NDArray[np.int64],
        remainder: NDArray[Any],
        *,
        divisor: int = 1,
    ) -> None:
        """Take the next step, and release sums in place with its noise and what was rounded before.

        With the residual n of the step, the sum g and the remainder r, for each coordinate

            x = r + (n + g),    w = grid floor(x/grid + 1/2),    r = x - w,    g = w / divisor

        n + g is in the wider dtype of the two, then rounded to that of the noise; w is rounded to
        that of g before it is divided. All other operations are in the dtype of the noise. The grid
        is `residual_grid`. Sums lie in the memory of the CPU.

        Parameters
        ----------
        pieces : ndarray of int64, shape (k, 3)
            Start and stop of each piece of the sums in the vector of the noise, in its order and
            apart, and 1 for sums of float64, 0 for float32.
        at : ndarray of int64, shape (k,)
            Addresses of the sums of each piece, contiguous and apart from the remainder. **What
            they lead to is not checked.**
        remainder : ndarray of the dtype, shape (size,)
            What earlier roundings left, **a secret**; zeros before the first step. It is changed.
        divisor : int, optional
            In [1, 2^53].

        Raises
        ------
        TypeError, ValueError
            If all declared steps are taken, or an argument is not as above. Then, and after any
            other error that leaves `steps_taken` as it was, sums and remainder have not changed.
            Ctrl-C may be raised when the step is taken.

        Examples
        --------
        >>> from dpftrl_fast import PrivacyPlan, SinglePass
        >>> plan = PrivacyPlan(1.0, 2.0, SinglePass(10))
        >>> noise, again = (plan.noise(2, seed=0) for _ in range(2))
        >>> sums, r = np.array([1.0, -2.0]), np.zeros(2, np.float32)
        >>> noise.release(np.array([[0, 2, 1]]), np.array([sums.ctypes.data]), r)
        >>> (sums % noise.residual_grid).tolist()
        [0.0, 0.0]
        >>> bool(np.allclose(sums + r, [1.0, -2.0] + again.residual()))
        True
        """
        self._refuse_after_fork()
        # No message of the core's may show an argument that it does not expect.
        for name, array in (("pieces", pieces), ("at", at), ("remainder", remainder)):
            if type(array) is not np.ndarray:
                raise TypeError(f"{name} must be an ndarray, got {type(array).__name__}")
        if pieces.ndim != 2 or pieces.shape[1] != 3:
            raise ValueError(f"pieces must have shape (k, 3), got {pieces.shape}")
        exact = float(integer("divisor", divisor, 1, MOST_DIVISOR))

        def call(_: Any) -> None:
            self._core.release(pieces.reshape(-1), at, remainder, self.residual_grid, exact)

        self._alone(self._take, call, None)

    def next_steps(self, n: int, out: Any = None) -> Any:
        """Take the next n steps of the plan and return the noise of each, as n calls of `step` do.

        See `TreeNoise.next_steps`. ValueError if fewer of the declared steps are left.
        """
        return self._alone(super().next_steps, n, out)

    def _check_steps_left(self, count: int) -> None:
        left = self.steps - self.steps_taken
        if count > left:
            raise ValueError(
                f"n must be at most {left}, since {self.steps_taken} of {self.steps} declared "
                f"steps are taken and the epsilon is stated for no more, got {count}"
            )

    def _take_rows(self, rows: Any, count: int) -> None:
        taken = 0
        while taken < count:
            run = self._restart_if_due()
            part = min(count - taken, run.steps - self.t)
            self._core.steps(rows, count, taken, part)
            taken += part

    # Not a context manager of Python's: one would take longer than a small step.
    def _alone(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call with the position held: other threads wait, calls from within are refused."""
        with self._turn:
            outer = self._busy
            try:
                if outer:
                    raise RuntimeError(
                        "this object is in the middle of a call on this thread: try again when it "
                        "has ended"
                    )
                self._busy = True
                return call(*args, **named)
            finally:
                self._busy = outer

    def _take(self, call: Callable[[Any], Any], out: Any) -> Any:
        self._restart_if_due()
        return call(out)

    def _restart_if_due(self) -> Any:
        """Go to the block of the next step, and return its run."""
        run = self._present_run()
        if self.t < run.steps:
            return run
        if self._block == self._layout.count - 1:
            raise ValueError(
                f"all {self.steps} declared steps are taken: the epsilon is stated for no more; "
                "declare more in the participation of the plan"
            )
        self._begin_block(run)
        return self._present_run()

    def _present_run(self) -> Any:
        block = self._block
        if block != self._run_of_block[0]:  # a search, which would be a tenth of a small step
            self._run_of_block = block, self._layout.run_of(block)
        return self._run_of_block[1]

    @abstractmethod
    def _begin_block(self, run: Any) -> None:
        """Restart after a block of the plan."""

    @abstractmethod
    def _ends(self, run: Any) -> int:
        """Return the step, completion included, at which a block of the plan is left."""

    def advance_to(self, t: int) -> None:
        """Advance within the present block, at most to its end in the plan."""
        self._alone(self._advance_to, t)

    def _advance_to(self, t: int) -> None:
        end = self._layout.run_of(self._block).steps
        if integer("t", t) > end:
            raise ValueError(
                f"t must be at most {end}, where the plan ends this {self._word}, got {t}"
            )
        super().advance_to(t)

    def prefix(self, t: int, out: Any = None) -> Any:
        """Return the noise of the present block at step t, as `TreeNoise.prefix` does.

        t is at most the last step of this block, or the completed end of a tree: the stated epsilon
        covers no further ones.
        """
        with self._turn:
            run = self._layout.run_of(self._block)
            end = self._ends(run)
            if integer("t", t) > run.steps and t != end:
                ends = f"at most {run.steps}" + (f", or {end}" if end != run.steps else "")
                raise ValueError(
                    f"t must be {ends}, where the plan ends this {self._word}, got {t}"
                )
            return super().prefix(t, out)

    def carried(self) -> Any:
        """Return the noise of the present block at its planned end, completion included.

        It stays in all later running sums.
        """
        return self.prefix(self._ends(self._layout.run_of(self._block)))

    def restart(self, complete: bool = False) -> None:
        """Refuse: the plan decides when a block begins."""
        count = self._layout.count
        when = "never" if count == 1 else f"by itself, {count - 1} times"
        raise ValueError(
            f"this {self._word} restarts {when}, as its plan says: got a call of restart"
        )

    def state_dict(self, *, key: bool = True) -> dict[str, Any]:
        """Return the state, **a secret**, as `TreeNoise.state_dict` does."""
        state: dict[str, Any] = self._alone(super().state_dict, key=key)
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of this plan, as `TreeNoise.load_state_dict` does.

        A state of other blocks, or after a call of `node`, is a ValueError.
        """
        self._alone(super().load_state_dict, state, allow_fork=allow_fork)

    def _check_position(self, position: Position) -> None:
        if position.node_used:
            raise ValueError("state must be of a run without a call of node, got one with it")
        taken, planned = len(position.ends), self._layout
        runs: Any = planned.runs
        carried = chain.from_iterable(repeat(self._ends(run), run.count) for run in runs)
        if (
            taken >= planned.count
            or position.t > planned.run_of(taken).steps
            or position.ends != list(islice(carried, taken))
        ):
            raise ValueError(
                f"state must be of a run of {planned.steps} steps in the plan's {planned.count} "
                f"{self._word}s, got one at step {position.t} of {self._word} {taken}"
            )


class PlannedTree(PlannedNoise, TreeNoise):
    """A `TreeNoise` that follows a plan.

    Parameters
    ----------
    size, std, **options
        As for `TreeNoise`.
    layout : TreeLayout
        The trees of the declared steps, which of these are completed, and the variant.
    """

    _word = "tree"

    def __init__(self, size: int, std: float, *, layout: TreeLayout, **options: Any) -> None:
        TreeNoise.__init__(self, size, std, variant=layout.variant, **options)
        self._follow(layout)

    def _begin_block(self, run: TreeRun) -> None:
        TreeNoise.restart(self, run.completed)

    def _ends(self, run: TreeRun) -> int:
        return run.end

    def node(self, level: int, index: int, out: Any = None) -> Any:
        """Refuse: a planned run releases prefixes, not single nodes."""
        raise ValueError("the noise of a plan releases prefixes only: got a call of node")


class PlannedToeplitz(PlannedNoise, ToeplitzNoise):
    """A `ToeplitzNoise` that follows a plan.

    Parameters
    ----------
    size, std, **options
        As for `ToeplitzNoise`, without the mechanism; the purpose "tree" is its "sum".
    layout : ToeplitzLayout
        The blocks of the declared steps and their mechanism.

    Raises
    ------
    ValueError
        If the coefficients are no numbers of the noise's dtype: the epsilon is not that of rounded
        ones.
    """

    _word = "block"

    def __init__(
        self,
        size: int,
        std: float,
        *,
        layout: ToeplitzLayout,
        purpose: str = "tree",
        dtype: Any = "float32",
        **options: Any,
    ) -> None:
        kind = float_dtype(dtype)
        if not layout.mechanism.is_in(kind):
            raise ValueError(
                f"the coefficients of the plan's mechanism must be {kind} numbers for {kind} "
                f"noise: make the plan with mechanism.rounded({kind!r})"
            )
        ToeplitzNoise.__init__(
            self,
            size,
            std,
            layout.mechanism,
            purpose="sum" if purpose == "tree" else purpose,  # type: ignore[arg-type]
            dtype=dtype,
            **options,
        )
        self._follow(layout)

    def _begin_block(self, run: ToeplitzRun) -> None:
        ToeplitzNoise.restart(self)

    def _ends(self, run: ToeplitzRun) -> int:
        return run.steps

    def carried(self) -> Any:
        """Return the noise of the present block at its planned end; it stays in later sums."""
        with self._turn:
            _, ends, *last = self._core.position()
            if not ends and last == [0, self._layout.run_of(0).steps]:
                return self.current()  # kept, where a prefix takes all steps to make again
            return super().carried()


@singledispatch
def source_of(layout: Layout) -> Callable[..., PlannedNoise]:
    """Return the class of the noise of a layout; registered for the type of each layout."""
    raise TypeError(f"no noise is registered for layouts of type {type(layout).__name__}")


@source_of.register
def _(layout: TreeLayout) -> Callable[..., PlannedNoise]:
    return PlannedTree


@source_of.register
def _(layout: ToeplitzLayout) -> Callable[..., PlannedNoise]:
    return PlannedToeplitz
