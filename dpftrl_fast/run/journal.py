# SPDX-License-Identifier: Apache-2.0
"""`RunJournal`: a run that can be killed at any byte and goes on, and puts no noise on two sums.

A run takes steps. In each it puts the noise of the tree's step t on a sum s_t, and lets something
of both leave. Whoever sees the same noise on two different sums has their difference, bare. So a
run that is killed and goes on from an earlier checkpoint may take a step again only with the same
sum; this object sees to it, by writing ahead.

The protocol, for whoever runs the steps:

1. Open the journal. Take `resume()`: None for a new run, else the state that was last kept.
2. Keep a first `checkpoint` before step 1: it holds the noise key, without which the steps that a
   killed run had taken could not be told from those of another.
3. Each step: make the sum; `write_ahead` its `digest`; then, and only then, let the step happen.
4. `checkpoint` as often as one likes; all steps since the last one are taken again after a crash.

What `write_ahead` does with step t, where `last` is the last step written so far:

==========================  ========================================================================
t = last + 1                appends t and the digest, waits for the disk, returns True
t <= last, same digest      the step was written ahead earlier: nothing is written, returns False.
                            The same noise goes on the same sum: whatever leaves had left, or could
t <= last, other digest     raises `Diverged`. The steps t..last may have left with other sums
==========================  ========================================================================

After `Diverged` the steps t..last are abandoned: what they released stays released. The run may go
on from the state before t with *fresh* noise of another key, and owes the privacy of the abandoned
steps besides (:class:`dpftrl_fast.run.account.RunAccount` counts it). `restart` begins that.

Crashes:

- before `write_ahead` returns: nothing of the step has left. Its record may be on the disk, in part
  (cut off when the folder is opened) or whole (the step must then come with the same digest).
- between `write_ahead` and the next `checkpoint`: the step is taken again, with the same digest.
- during `checkpoint` or `restart`: the folder holds the state before or the one after, whole.
- a record, checkpoint or run file that is not, bit for bit, what was written: refused. A disk that
  forgets what it was told to keep, and a backup put back in place of newer files, cannot be told.

The folder has mode 0700, and all of it is a secret: `run.journal_files` says what is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpftrl_fast.run.folder_lock import FolderLock
from dpftrl_fast.run.journal_files import JournalFiles
from dpftrl_fast.run.run_file import RunFile, claim_folder
from dpftrl_fast.run.step_log import DIGEST_SIZE, StepLog, step_digest


class RunJournal:
    """The folder of one run: checkpoints, and the steps written ahead.

    Parameters
    ----------
    folder : str or Path
        Made if it does not exist (mode 0700). Else empty, or that of the same run.
    identity : mapping
        What the run is, as JSON can hold it: plan, data order, shapes. No secrets: differences are
        named in errors. A folder of a run with another identity is refused.
    allow_fork : bool, optional
        A folder that was copied, or moved in a way that makes a copy, is refused: two runs that go
        on from it put the same noise on different sums. True takes it all the same and voids the
        guarantee, unless nobody ever goes on with the other copy; `forked` remembers it for good.

    Raises
    ------
    RuntimeError
        If the folder is open elsewhere, in this process or another.
    ValueError
        If the folder holds something else, or is of another run or version, damaged, or a copy.
    OSError
        If it cannot be read and written: FileExistsError if it is a file, PermissionError if others
        could read it.

    Notes
    -----
    Calls from several threads take turns. A copy that a fork makes refuses to write. One step costs
    one wait for the disk; the log grows by 64 bytes a step.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> with RunJournal(folder, {"plan": "P"}) as journal:
    ...     journal.resume() is None
    ...     journal.checkpoint({"key": b"secret", "sum": np.zeros(2)})
    ...     journal.write_ahead(1, journal.digest(np.array([1.0, 2.0])))
    True
    True
    >>> with RunJournal(folder, {"plan": "P"}) as journal:  # killed before the next checkpoint
    ...     journal.resume()["sum"].tolist(), journal.step, journal.last
    ...     journal.write_ahead(1, journal.digest(np.array([1.0, 2.0])))
    ([0.0, 0.0], 0, 1)
    False
    """

    def __init__(
        self, folder: str | Path, identity: Mapping[str, Any], *, allow_fork: bool = False
    ) -> None:
        self._folder = Path(folder)
        self._turn = threading.RLock()
        self._log: StepLog | None = None
        self._state: dict[Any, Any] | None = None
        self._step, self._generation, self._start = 0, 0, 1
        self._abandoned: list[tuple[int, int]] = []
        self._closed = self._unknown = False
        claim_folder(self._folder)
        self._lock = FolderLock(self._folder)
        try:
            self._run = RunFile.open(self._folder, identity, allow_fork=allow_fork)
            self._files = JournalFiles(self._folder, self._run.secret)
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        kept = self._files.checkpoint()
        self._resumed = kept is None
        if kept is None:
            return
        self._state, self._step = kept["state"], kept["step"]
        self._generation, self._start = kept["generation"], kept["start"]
        self._abandoned = list(kept["abandoned"])
        self._log = self._files.log(self._generation, self._start)
        if self._log.last < kept["last"]:
            raise ValueError(
                f"the log must hold the steps up to {kept['last']}, which the checkpoint knows of, "
                f"got those up to {self._log.last}: the folder is damaged"
            )

    # ---- Where the run stands ----

    @property
    def step(self) -> int:
        """Step of the state that the caller has: the checkpoint's, and one more each write."""
        return self._step

    @property
    def last(self) -> int:
        """The last step written ahead."""
        return self._step if self._log is None else self._log.last

    @property
    def replaying(self) -> bool:
        """Whether the next step was written ahead earlier."""
        return self._step < self.last

    @property
    def start(self) -> int:
        """First step of the present generation: 1, or the first one after the last restart."""
        return self._start

    @property
    def abandoned(self) -> tuple[tuple[int, int], ...]:
        """First and last step of each earlier generation; its last steps were taken again."""
        return tuple(self._abandoned)

    @property
    def forked(self) -> bool:
        """Whether the folder was ever taken with ``allow_fork``: the guarantee is void."""
        return self._run.forked

    # ---- The protocol ----

    def resume(self) -> dict[Any, Any] | None:
        """Return the state last kept, or None for a new run. To be called once, first.

        Raises
        ------
        RuntimeError
            If it was taken already: two owners of one state would go on from it twice.
        """
        with self._turn:
            self._check_open()
            if self._resumed and self._state is None and self._log is not None:
                raise RuntimeError("expected one call of resume, got another: the state is taken")
            self._resumed, state, self._state = True, self._state, None
            return state

    def digest(self, *parts: int | str | bytes | NDArray[Any]) -> bytes:
        """Return the keyed hash (HMAC-SHA-256) of a step's sum and ids, for `write_ahead`.

        Parameters
        ----------
        *parts : int, str, bytes or ndarray
            All that the step's sum is made of; arrays with their dtype and shape, bit for bit (0.0
            is not -0.0 here).

        Returns
        -------
        bytes
            32 bytes.
        """
        return step_digest(self._run.secret, *parts)

    def write_ahead(self, step: int, digest: bytes, keep: Mapping[str, Any] | None = None) -> bool:
        """Say which sum a step is about to use, before anything of the step leaves.

        Parameters
        ----------
        step : int
            ``self.step + 1``.
        digest : bytes
            32 bytes of `digest`.
        keep : mapping, optional
            A state (see `checkpoint`) from which the step can be taken again exactly, the sum
            itself for instance: then nothing has to be computed anew after a crash. `kept` returns
            it until the next checkpoint.

        Returns
        -------
        bool
            True: written. False: written earlier, with the same digest.

        Raises
        ------
        Diverged
            If it was written earlier with another digest. Nothing is changed.
        RuntimeError
            If there is no checkpoint yet, or the state was not taken with `resume`.
        ValueError, TypeError
            If it is not the next step, or the digest is not one.
        OSError
            If it cannot be written: the step must not be taken.
        """
        with self._turn:
            log = self._ready()
            if type(step) is not int or step != self._step + 1:
                raise ValueError(f"step must be the next one, {self._step + 1}, got {step!r}")
            if type(digest) is not bytes or len(digest) != DIGEST_SIZE:
                raise ValueError(f"digest must be the {DIGEST_SIZE} bytes of a call of digest")
            replayed = step <= log.last
            if replayed:
                log.check(step, digest)
            else:
                if keep is not None:
                    self._files.keep(self._generation, step, keep)
                log.append(digest)
            self._step = step
            return not replayed

    def kept(self) -> dict[Any, Any] | None:
        """Return what was kept for the next step, if that was written ahead earlier; else None.

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        with self._turn:
            self._ready()
            if not self.replaying:
                return None
            return self._files.kept(self._generation, self._step + 1)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Keep the state that the caller has after `step`.

        Parameters
        ----------
        state : mapping
            Dictionaries (keys: strings or integers), lists, tuples, None, bool, int, float, str,
            bytes and ndarrays of numbers, nested as one likes.

        Raises
        ------
        TypeError
            If the state holds something else.
        RuntimeError
            If the state kept before was not taken with `resume`.
        OSError
            If it cannot be written: the checkpoint before is then still there.
        """
        with self._turn:
            self._check_open()
            if not self._resumed:
                raise RuntimeError("expected a call of resume first: the folder holds a state")
            if self._log is None:
                self._begin(state, 0, 1)
                return
            self._write(state, self._generation, self._start, self._log.last)
            self._files.drop_kept(self._generation, self._step)

    def restart(self, state: Mapping[str, Any]) -> None:
        """Abandon the steps after `step` that were written ahead, and go on with fresh noise.

        Parameters
        ----------
        state : mapping
            What to go on from: the state after `step`, with noise of a *new* key from
            ``step + 1`` on. The caller has made sure that the abandoned steps are accounted for.

        Raises
        ------
        ValueError
            If no step after `step` was written ahead: there is nothing to abandon.
        TypeError, RuntimeError
            As `checkpoint`; the run then stands where it stood.
        OSError
            If it cannot be written. The folder holds the state before or the one after, and this
            object takes no further call: open the run anew.
        """
        with self._turn:
            log = self._ready()
            if not self.replaying:
                raise ValueError(
                    f"restart is for steps written ahead after step {self._step}, got none"
                )
            segment = (self._start, log.last)
            self._abandoned.append(segment)
            try:
                self._begin(state, self._generation + 1, self._step + 1)
            except TypeError:  # the state is none: no checkpoint was touched
                self._abandoned.remove(segment)
                raise
            except BaseException:
                self._unknown = True
                raise
            log.close()
            self._files.drop_log(self._generation - 1)
            self._files.drop_kept(self._generation, self._step)

    def _begin(self, state: Mapping[str, Any], generation: int, start: int) -> None:
        """Begin a generation: its log first, then the checkpoint that names it, which decides."""
        log = self._files.new_log(generation, start)
        try:
            self._write(state, generation, start, start - 1)
        except BaseException:
            log.close()
            raise
        self._log, self._generation, self._start = log, generation, start

    def _write(self, state: Mapping[str, Any], generation: int, start: int, last: int) -> None:
        content = {
            "state": state,
            "step": self._step,
            "generation": generation,
            "start": start,
            "last": last,
            "abandoned": self._abandoned,
        }
        self._files.write_checkpoint(content)

    def _ready(self) -> StepLog:
        self._check_open()
        if not self._resumed:
            raise RuntimeError("expected a call of resume first: the folder holds a state")
        if self._log is None:
            raise RuntimeError("expected a checkpoint before the first step, with the noise key")
        return self._log

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("this journal is closed")
        if self._unknown:
            raise RuntimeError(
                "a restart failed while it was written, so that the folder may hold the state "
                "before or after it: open the run anew"
            )
        self._lock.hold()
        if self._log is not None:
            self._log.check_untouched()

    def close(self) -> None:
        """Let the folder go. What was written is on disk already."""
        with self._turn:
            if self._closed:
                return
            self._closed = True
            if self._log is not None:
                self._log.close()
            self._lock.release()

    def __enter__(self) -> RunJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"RunJournal({str(self._folder)!r}, step={self._step}, last={self.last}"
            f"{', forked: the guarantee is void' if self.forked else ''})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a RunJournal holds a folder and its secret and is not pickled")
