# SPDX-License-Identifier: Apache-2.0
"""`CallJournal`: the folder of a stream, whose calls are written ahead and repeated after a crash.

The order of a call is that of `dpftrl_fast.run.journal`, whose steps are the calls here:

1. the un-noised sums of all steps of a call are on the disk, with a keyed hash;
2. only then is their noise made, and something released;
3. the state after the call is written.

A process that dies after the first point has taken the call: whoever opens the folder repeats it,
from the sums that are kept, with the same noise.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from dpftrl_fast._validate import equal, positive_integer, shown
from dpftrl_fast.accounting.statement.statement import Guarantee
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.journal_files import CHECKPOINT

J = TypeVar("J", bound="Journaled")

#: The entry of a stream's state that has its key for ids of users.
USER_KEY = "user_key"


class CallJournal:
    """The folder of one stream.

    Parameters
    ----------
    folder : str or Path
        Empty, missing, or of a stream of this kind. **A secret** (mode 0700).
    kind : str
        Type of the stream, by which another one is refused.
    checkpoint_every : int
        Calls between two states on the disk; all calls since the last are repeated after a crash.
    allow_fork : bool
        See :class:`dpftrl_fast.run.RunJournal`.
    """

    def __init__(
        self, folder: str | Path, kind: str, *, checkpoint_every: int = 1, allow_fork: bool = False
    ) -> None:
        self._every = positive_integer("checkpoint_every", checkpoint_every)
        self._folder = str(folder)
        self._journal = RunJournal(folder, {"kind": kind}, allow_fork=allow_fork)
        self._in_call = False
        self._since = 0
        self._closed = False

    @property
    def folder(self) -> str:
        """The folder, as it was given."""
        return self._folder

    @property
    def forked(self) -> bool:
        """True if the folder was ever opened with ``allow_fork``: the guarantee is void."""
        return self._journal.forked

    def resume(self) -> dict[Any, Any] | None:
        """Return the state in the folder, or None for a new stream; to be called once, first."""
        state = self._journal.resume()
        return None if state is None else self._masked(state)

    def begin(self, state: Mapping[str, Any]) -> None:
        """Write the first state, with the noise key."""
        self._journal.checkpoint(self._masked(state))

    def _masked(self, state: Mapping[str, Any]) -> dict[Any, Any]:
        """Return a state whose key for ids of users is masked by the run's, or is so no longer.

        The run's key follows from ``run.json``: without it a checkpoint does not give the ids.
        """
        found = dict(state)
        if found.get(USER_KEY) is not None:
            pairs = zip(found[USER_KEY], self._journal.user_key(), strict=True)
            found[USER_KEY] = bytes(one ^ other for one, other in pairs)
        return found

    @property
    def has_begun(self) -> bool:
        """Whether the folder holds a state, with the noise key: also after an error of `begin`."""
        return (Path(self._folder) / CHECKPOINT).exists()

    def pending(self) -> dict[Any, Any] | None:
        """Return the next call that was written ahead and is not in the state; None if all are."""
        return self._journal.kept()

    def write_ahead(self, call: Mapping[str, Any]) -> None:
        """Put a call on the disk before its noise is made, or find it there.

        `call` holds arrays, None and flags: all that the call depends on.
        """
        self.refuse_unusable()
        self._in_call = True
        parts: list[Any] = []
        for name in sorted(call):
            value = call[name]
            parts += [name, value if isinstance(value, np.ndarray) else repr(value)]
        step, replayed = self._journal.step + 1, self._journal.replaying
        self._journal.write_ahead(
            step, self._journal.digest(*parts), keep=None if replayed else call
        )

    def done(self, state: Callable[[], Mapping[str, Any]]) -> None:
        """End a call: write the state after it, if it is due, before anything is released."""
        self._since += 1
        if self._since >= self._every:
            self._journal.checkpoint(self._masked(state()))
            self._since = 0
        self._in_call = False

    def refuse_unusable(self) -> None:
        """Refuse a call after `close`, or after one that was interrupted."""
        if self._closed:
            raise RuntimeError(
                f"the folder of this stream, {self._folder!r}, was closed: open it to continue"
            )
        if self._in_call:
            raise RuntimeError(
                f"a call of this stream was interrupted: it is in the folder {self._folder!r}. "
                "Close this object and open the folder, which takes the call"
            )

    @property
    def unusable(self) -> bool:
        """True after `close`, or after a call that was interrupted."""
        return self._closed or self._in_call

    def close(self, state: Callable[[], Mapping[str, Any]] | None = None) -> None:
        """Write a state that is missing, and release the folder."""
        if self._closed:
            return
        self._closed = True
        try:
            if state is not None and self._since and not self._in_call:
                self._journal.checkpoint(self._masked(state()))
        finally:
            self._journal.close()


class Journaled:
    """Common part of the streams that a folder can keep.

    A subclass names the kind of its folder, itself in a word, and the version of its state.
    """

    _kind: ClassVar[str]
    _word: ClassVar[str]
    _version: ClassVar[int]

    _plan: PrivacyPlan
    _journal: CallJournal | None

    @classmethod
    @abstractmethod
    def _resumed(cls: type[J], state: Mapping[str, Any], threads: int | None) -> J:
        """Return the stream of a state."""

    @abstractmethod
    def _repeat(self, call: Mapping[str, Any]) -> None:
        """Take a call that was written ahead."""

    @property
    def plan(self) -> PrivacyPlan:
        """The plan, which made the noise and states the epsilon."""
        return self._plan

    @property
    def guarantee(self) -> Guarantee:
        """The plan's, for all declared steps; a folder that was forked has none: ValueError."""
        if self._journal is not None and self._journal.forked:
            raise ValueError(
                "no epsilon can be stated: this folder is a copy taken with allow_fork, and another"
                " run may have added the same noise to other sums"
            )
        return self._plan.guarantee

    @classmethod
    def _opened(cls: type[J], folder: str | Path, threads: int | None, **options: Any) -> J:
        """Resume the stream that a folder keeps, with all calls that were on the disk."""
        if not Path(folder).is_dir():
            raise FileNotFoundError(
                f"folder must be one of {cls.__name__}.save, got {str(folder)!r}, which does not "
                "exist: make it with save()"
            )
        journal = CallJournal(folder, cls._kind, **options)
        try:
            state = journal.resume()
            if state is None:
                raise ValueError(f"folder must hold a {cls._word}, {str(folder)!r} holds none")
            if not equal(state.get("version"), cls._version):
                raise ValueError(
                    f"the state of a {cls._word} must have version {cls._version}, got "
                    f"{shown(state.get('version'))}: open it with the version of dpftrl_fast that "
                    "saved it"
                )
            found = cls._resumed(state, threads)
            found._journal = journal
            while (kept := journal.pending()) is not None:
                found._repeat(kept)
        except BaseException:
            journal.close()
            raise
        return found

    def _keep_in(
        self, folder: str | Path, state: Callable[[], Mapping[str, Any]], **options: Any
    ) -> None:
        """Keep this stream in an empty folder, beginning with its state now."""
        if self._journal is not None:
            raise ValueError(f"this {self._word} is kept in {self._journal.folder!r} already")
        journal = CallJournal(folder, self._kind, **options)
        try:
            if journal.resume() is not None:
                raise ValueError(
                    f"folder must be empty, {str(folder)!r} holds a {self._word}: "
                    f"{type(self).__name__}.open resumes it"
                )
        except BaseException:
            journal.close()
            raise
        try:
            journal.begin(state())
            self._journal = journal
        except BaseException:
            journal.close()
            if journal.has_begun:  # whoever opens the folder has the key, and continues alone
                self._journal = journal
            raise
