# SPDX-License-Identifier: Apache-2.0
"""Crash-safe run state: a killed run resumes without adding the same noise to two different sums.

In step t a run adds the noise of the tree's step t to a sum s_t and releases something computed
from both. An observer of the same noise on two different sums learns their difference without
noise. So a run that is killed and resumes from an earlier checkpoint may repeat a step only with
the same sum. The journal enforces this by writing ahead.

The protocol:

1. Open the journal and call `resume()`: it returns None for a new run, else the last checkpoint.
2. Make a first `checkpoint` before step 1: it holds the noise key, without which the steps of a
   killed run could not be told from those of another.
3. In each step compute the sum, and `write_ahead` its `digest`; only then take the step.
4. Call `checkpoint` as often as needed; the steps since the last one are repeated after a crash.

`write_ahead` of step t, where `last` is the last step written so far:

==========================  ========================================================================
t = last + 1                appends t and the digest, waits for the disk, returns True
t <= last, same digest      the step was written before: nothing is written, returns False. The
                            same noise is added to the same sum, so nothing new is released
t <= last, other digest     raises `Diverged`: steps t..last may have been released with other sums
==========================  ========================================================================

After `Diverged` the steps t..last are abandoned: their releases stay released. The run may continue
from the state before t with *fresh* noise of another key, and the privacy cost of the abandoned
steps is added (:class:`dpftrl_fast.run.RunAccount`). `recover` begins that.

Crashes:

- before `write_ahead` returns: nothing of the step is released. Its record may be on the disk, in
  part (cut off when the folder is opened) or whole (the step then needs the same digest).
- between `write_ahead` and the next `checkpoint`: the step is repeated with the same digest.
- during `checkpoint` or `recover`: the folder holds the state before or after, whole.
- a record, checkpoint or run file that differs by any bit from the one written: refused. A disk
  that loses data it reported as written, or an old backup of the whole folder, is not detected.

The folder has mode 0700, and all of it is a secret: `run.journal_files` lists its files.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from dpftrl_fast._validate import flag
from dpftrl_fast.accounting.guard.keyed_ids import derived_key
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
        Identifies the run, in JSON types: plan, data order, shapes. No secrets: differences are
        named in errors. A folder of a run with another identity is refused.
    allow_fork : bool, optional
        A folder that was copied, or moved in a way that makes a copy, is refused: two runs that
        resume from it add the same noise to different sums. True accepts it and voids the
        guarantee, unless the other copy is never used again; `forked` records this for good.

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
    Calls from several threads take turns. A forked copy of the process cannot write. A step costs
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
        fork = flag("allow_fork", allow_fork)
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
            self._run = RunFile.open(self._folder, identity, allow_fork=fork)
            self._files = JournalFiles(self._folder, self._run.secret)
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        kept = self._files.checkpoint()
        self._resumed = kept is None
        if kept is None:
            self._files.refuse_steps()
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

    # ---- Position ----

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
        """True if the next step was written ahead before."""
        return self._step < self.last

    @property
    def start(self) -> int:
        """First step of the present generation: 1, or the first one after the last recovery."""
        return self._start

    @property
    def abandoned(self) -> tuple[tuple[int, int], ...]:
        """First and last step of each earlier generation; its last steps were repeated."""
        return tuple(self._abandoned)

    @property
    def forked(self) -> bool:
        """True if the folder was ever opened with ``allow_fork``: the guarantee is void."""
        return self._run.forked

    # ---- The protocol ----

    def resume(self) -> dict[Any, Any] | None:
        """Return the last checkpoint, or None for a new run. To be called once, first.

        Raises
        ------
        RuntimeError
            If it was returned already: two owners of one state would resume from it twice.
        """
        with self._turn:
            self._check_open()
            if self._resumed and self._state is None and self._log is not None:
                raise RuntimeError("expected one call of resume, got another")
            self._resumed, state, self._state = True, self._state, None
            return state

    def digest(self, *parts: int | str | bytes | NDArray[Any]) -> bytes:
        """Return the keyed hash (HMAC-SHA-256) of a step's sum and ids, for `write_ahead`.

        Parameters
        ----------
        *parts : int, str, bytes or ndarray
            All inputs of the step's sum; arrays with their dtype and shape, bit for bit (0.0 is not
            -0.0 here).

        Returns
        -------
        bytes
            32 bytes.
        """
        return step_digest(self._run.secret, *parts)

    def user_key(self, outer: bytes | None = None) -> bytes:
        """Return the run's key for ids of users (`dpftrl_fast.accounting.guard.keyed_ids`).

        It follows from the secret in ``run.json``, which no checkpoint, log or kept state holds.

        Parameters
        ----------
        outer : bytes, optional
            Another secret of 32 bytes, kept outside of the folder, without which the folder does
            not give the key.
        """
        return derived_key(step_digest(self._run.secret, "ids of users"), outer)

    def write_ahead(self, step: int, digest: bytes, keep: Mapping[str, Any] | None = None) -> bool:
        """Record the sum that a step is about to use, before anything of the step is released.

        Parameters
        ----------
        step : int
            ``self.step + 1``.
        digest : bytes
            32 bytes of `digest`.
        keep : mapping, optional
            A state (see `checkpoint`) from which the step can be repeated exactly, for instance the
            sum: then nothing is computed again after a crash. `kept` returns it until the next
            checkpoint.

        Returns
        -------
        bool
            True: written. False: written before, with the same digest.

        Raises
        ------
        Diverged
            If it was written before with another digest. Nothing is changed.
        RuntimeError
            If there is no checkpoint yet, or `resume` was not called.
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
        """Return the state kept for the next step if it was written ahead, else None.

        A damaged file is a ValueError.
        """
        with self._turn:
            self._ready()
            if not self.replaying:
                return None
            return self._files.kept(self._generation, self._step + 1)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state that the caller has after `step`.

        Parameters
        ----------
        state : mapping
            Dictionaries (keys: strings or integers), lists, tuples, None, bool, int, float, str,
            bytes and ndarrays of numbers, nested to any depth.

        Raises
        ------
        TypeError
            If the state holds another type.
        RuntimeError
            If `resume` was not called.
        OSError
            If it cannot be written; the checkpoint before is then still there.
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

    def recover(self, state: Mapping[str, Any]) -> None:
        """Abandon the steps written ahead after `step`, and continue with fresh noise.

        Parameters
        ----------
        state : mapping
            The state after `step`, with noise of a *new* key from ``step + 1`` on. The caller must
            have accounted for the abandoned steps.

        Raises
        ------
        ValueError
            If no step after `step` was written ahead: there is nothing to abandon.
        TypeError, RuntimeError
            As `checkpoint`; nothing is then changed.
        OSError
            If it cannot be written. The folder holds the state before or after, and this object
            takes no further call: open the run again.
        """
        with self._turn:
            log = self._ready()
            if not self.replaying:
                raise ValueError(
                    f"recover is for steps written ahead after step {self._step}, got none"
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
                "a recovery failed while it was written, so that the folder may hold the state "
                "before or after it: open the run again"
            )
        self._lock.hold()
        if self._log is not None:
            self._log.check_untouched()

    def close(self) -> None:
        """Release the folder; everything written is on disk already."""
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
