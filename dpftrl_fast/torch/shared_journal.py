# SPDX-License-Identifier: Apache-2.0
"""`SharedJournal`: the folder of a run of several processes, which rank 0 has for all.

Rank 0 reads and writes, and tells the others what came of it: all have the same state, the same
position and the same refusals. So no rank adds noise before the step is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.step_log import Diverged
from dpftrl_fast.torch.flat.distributed import Ranks

_T = TypeVar("_T")
_KINDS = (ValueError, TypeError, OSError, RuntimeError)


class _Position(NamedTuple):
    """Position of the journal of rank 0."""

    step: int = 0
    last: int = 0
    start: int = 1
    abandoned: tuple[tuple[int, int], ...] = ()
    forked: bool = False


class SharedJournal:
    """A `dpftrl_fast.run.RunJournal` that belongs to several processes; this may be one of one.

    All ranks make every call together, but for `close`. Arguments are those of rank 0, and so is
    the result.

    Parameters
    ----------
    ranks : Ranks
        The processes.
    leads : bool
        Whether this is rank 0.
    folder, identity, allow_fork
        As for `RunJournal`.

    Raises
    ------
    RuntimeError, ValueError, TypeError, OSError
        On all ranks, what `RunJournal` raises on rank 0.
    """

    def __init__(
        self,
        ranks: Ranks,
        leads: bool,
        folder: str | Path,
        identity: Mapping[str, Any],
        *,
        allow_fork: bool,
    ) -> None:
        self._ranks, self._leads = ranks, leads
        self._own: RunJournal | None = None
        self._at = _Position()

        def open_() -> None:
            self._own = RunJournal(folder, identity, allow_fork=allow_fork)

        self._together(open_)

    def _together(self, call: Callable[[], _T]) -> _T:
        """Do a call on rank 0; all get its result, or its refusal."""
        error: Exception | None = None
        told: tuple[Any, Any, _Position] = (None, None, self._at)
        if self._leads:
            try:
                result = call()
                told = None, result, self._position()
            except Exception as raised:
                error, told = raised, (_told(raised), None, self._position())
        refusal, found, self._at = self._ranks.share(told)
        if refusal is not None:
            raise error if error is not None else _raised(*refusal)
        value: _T = found
        return value

    def _position(self) -> _Position:
        own = self._own
        if own is None:
            return self._at
        return _Position(own.step, own.last, own.start, own.abandoned, own.forked)

    def _journal(self) -> RunJournal:
        assert self._own is not None
        return self._own

    @property
    def step(self) -> int:
        """As `RunJournal.step`."""
        return self._at.step

    @property
    def last(self) -> int:
        """As `RunJournal.last`."""
        return self._at.last

    @property
    def replaying(self) -> bool:
        """As `RunJournal.replaying`."""
        return self.step < self.last

    @property
    def start(self) -> int:
        """As `RunJournal.start`."""
        return self._at.start

    @property
    def abandoned(self) -> tuple[tuple[int, int], ...]:
        """As `RunJournal.abandoned`."""
        return self._at.abandoned

    @property
    def forked(self) -> bool:
        """As `RunJournal.forked`."""
        return self._at.forked

    def resume(self) -> dict[Any, Any] | None:
        """As `RunJournal.resume`."""
        return self._together(lambda: self._journal().resume())

    def kept(self) -> dict[Any, Any] | None:
        """As `RunJournal.kept`."""
        return self._together(lambda: self._journal().kept())

    def write_ahead(
        self,
        step: int,
        parts: Callable[[], list[NDArray[Any]]],
        keep: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        """Record the sum of a step, as `RunJournal.write_ahead`; it is on the disk on return.

        `parts` returns all inputs of the step's digest and `keep` the state to keep; both are
        called on rank 0.
        """

        def write() -> None:
            journal = self._journal()
            kept = None if journal.replaying else keep()
            journal.write_ahead(step, journal.digest(*parts()), kept)

        self._together(write)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """As `RunJournal.checkpoint`."""
        self._together(lambda: self._journal().checkpoint(state))

    def recover(self, state: Mapping[str, Any]) -> None:
        """As `RunJournal.recover`."""
        self._together(lambda: self._journal().recover(state))

    def close(self) -> None:
        """Release the folder, if this rank has it."""
        if self._own is not None:
            self._own.close()

    def __repr__(self) -> str:
        if self._own is not None:
            return repr(self._own)
        return f"SharedJournal(step={self.step}, last={self.last})"


def _told(error: Exception) -> tuple[str, Any]:
    """Return an error in plain types: not every error survives a pickle."""
    if isinstance(error, Diverged):
        return "Diverged", (error.step, error.last)
    kind = next((kind for kind in _KINDS if isinstance(error, kind)), RuntimeError)
    return kind.__name__, str(error)


def _raised(kind: str, words: Any) -> Exception:
    if kind == "Diverged":
        return Diverged(*words)
    found: type[Exception] = next(each for each in _KINDS if each.__name__ == kind)
    return found(words)
