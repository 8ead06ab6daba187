# SPDX-License-Identifier: Apache-2.0
"""`StreamJournal`: the folder of a stream of `partial_fit` calls, which a killed process resumes.

The order of a call is that of `dpftrl_fast.run.journal`:

1. before step 1 a checkpoint holds the noise key; only then are budgets charged;
2. each step is written ahead before its noise is added to its sum;
3. the state is written before the model of the call is released, every `checkpoint_every` steps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.accounting.guard.ids import user_id
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.step_log import Diverged

_ADVICE = (
    "Give the same rows as before, in the same order and of the same dtypes; position says from "
    "which row of the stream on. If they are lost, begin another stream: a clone of the estimator "
    "in an empty folder. It has a fresh key, and compose([old.plan_, new.plan_]) of "
    "dpftrl_fast.accounting states the epsilon of both"
)
_AGAIN = "close it and call keep_stream again, which continues from the last checkpoint"


class StreamJournal:
    """The folder that keeps a stream of `partial_fit` calls; made by `keep_stream`.

    As a context manager it releases the folder at the end of the block. The rest is done by
    `partial_fit` and `finish`.

    Attributes
    ----------
    position : int
        Row of the stream (with groups: user) that the next call of `partial_fit` begins with. Held
        rows are not in the folder: after `close` or a crash, the position is that of the first one.
        A resumed stream takes no call before its position was read: from the first row on, rows
        would count twice.
    closed : bool
        Whether the folder was released: by `close`, or after the last step.
    forked : bool
        Whether the folder is a copy that was opened with ``allow_fork``: no guarantee holds.

    Notes
    -----
    The folder is a secret (mode 0700): it holds the noise key and un-noised sums.
    """

    def __init__(
        self,
        folder: str | Path,
        identity: Mapping[str, Any],
        turn: AbstractContextManager[Any],
        *,
        checkpoint_every: int,
        allow_fork: bool,
    ) -> None:
        self._every = positive_integer("checkpoint_every", checkpoint_every)
        self._folder, self._turn, self._identity = str(folder), turn, dict(identity)
        self._journal = RunJournal(folder, identity, allow_fork=allow_fork)
        self._kept_at = self._journal.step
        self._released: tuple[int, Callable[[], Mapping[str, Any]]] | None = None
        self._taken = self._held = 0
        self._closed, self._unread = False, False
        #: Name of the run, public; a resumed one has that of its state.
        self.name = secrets.token_hex(8)
        #: Whether users have ids under the key of the folder.
        self.keyed = True
        self._ids = KeyedIds(self._journal.user_key())

    @property
    def position(self) -> int:
        self._unread = False
        return self._next_row

    @property
    def _next_row(self) -> int:
        return self._taken + (0 if self._closed else self._held)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def forked(self) -> bool:
        return self._journal.forked

    # ---- For the estimator, which holds the turn ----

    def resume(self) -> dict[Any, Any] | None:
        """Return the state in the folder, **a secret**; None for a new stream. To be called first.

        See :meth:`dpftrl_fast.run.RunJournal.resume`.
        """
        return self._journal.resume()

    def resumed(self, name: str, taken: int, *, keyed: bool) -> None:
        """Set what a state has: name of the run, rows (users) in its steps, the kind of ids."""
        self.name, self._taken, self._unread = name, taken, taken > 0
        self.keyed = keyed

    def refuse_closed(self) -> None:
        """Refuse a call of a stream whose folder was released."""
        if self._closed:
            raise RuntimeError(
                f"the folder of this stream, {self._folder!r}, was closed: call keep_stream again "
                "to continue"
            )

    def refuse_unread(self) -> None:
        """Refuse rows of a resumed stream whose position was not read."""
        if self._unread:
            raise RuntimeError(
                f"this stream was resumed: its next row is number {self._next_row}, and those "
                "before are in its sums. Feed the rows from position on, an attribute of the "
                "object that keep_stream returned, and read it first"
            )

    def refuse_others(self, identity: Mapping[str, Any]) -> None:
        """Refuse parameters that were changed since the folder was opened."""
        changed = sorted(name for name in identity if identity[name] != self._identity.get(name))
        if changed:
            raise ValueError(
                f"the parameters must be those with which keep_stream was called, got another "
                f"{', '.join(changed)}"
            )

    def refuse_interrupted(self, step: int) -> None:
        """Refuse a call unless so many steps were written ahead by this object."""
        if self._journal.step != step:
            raise RuntimeError(
                f"step {self._journal.step} of this stream was interrupted, or is running in "
                f"another thread: the stream is kept in the folder {self._folder!r}; {_AGAIN}"
            )

    def begin(self, state: Mapping[str, Any]) -> None:
        """Write the first state of a stream, with its key, before anything of step 1 is made."""
        self.refuse_interrupted(0)
        if self._journal.replaying:
            raise RuntimeError(
                f"step 1 of this stream was interrupted; {_AGAIN}: another key must not take its "
                "place"
            )
        self._journal.checkpoint(state)

    def write_ahead(self, step: int, sums: Sequence[NDArray[Any]]) -> None:
        """Record a step and a keyed hash of its sums; Diverged if others were recorded before."""
        self.refuse_interrupted(step - 1)
        try:
            self._journal.write_ahead(step, self._journal.digest(*sums))
        except Diverged as error:
            raise Diverged(error.step, error.last, _ADVICE) from None

    def before_release(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write the state after a step before its model is released, or at `close` if not due."""
        self._released = step, state
        if step >= self._kept_at + self._every:
            self._checkpoint()

    def _checkpoint(self) -> None:
        if self._released is not None:
            step, state = self._released
            self._journal.checkpoint(state())
            self._kept_at, self._released = step, None

    def moved(self, taken: int, held: int) -> None:
        """Set the position: rows (users) in steps, and rows that are held."""
        self._taken, self._held = taken, held

    def stand_in(self, step: int, row: int) -> int:
        """Return an id in [0, 2^63) for a row without a user: the same when a step is repeated."""
        return int.from_bytes(self._journal.digest("no user", step, row)[:8], "big") >> 1

    def id_of(self, label: object) -> int:
        """Return the id in [0, 2^63) of a user; errors are those of `canonical_id`."""
        return self._ids.of(label) if self.keyed else user_id(label)

    # ---- The folder ----

    def close(self) -> None:
        """Write a state that is missing, and release the folder; rows that are held are dropped."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            try:
                if self._released is not None and self._journal.step == self._released[0]:
                    self._checkpoint()
            finally:
                self._released = None
                self._journal.close()

    def __enter__(self) -> StreamJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        """Return the public facts only."""
        return (
            f"StreamJournal({self._folder!r}, position={self._next_row}"
            f"{', closed' * self._closed}{', forked: the guarantee is void' * self.forked})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a StreamJournal holds a folder and its secret and is not pickled")
