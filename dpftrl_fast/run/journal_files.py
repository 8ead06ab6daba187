# SPDX-License-Identifier: Apache-2.0
"""The files in the folder of a run, by their names.

All of them are a secret (mode 0600):

- ``run.json``: format, version, the secret of the hashes, the identity of the run (`run_file`);
- ``lock``: held while a process has the run open;
- ``checkpoint.npz``: the last state, its step, the generation (number of recoveries);
- ``steps-<generation>.log``: the steps written ahead;
- ``kept-<generation>-<step>.npz``: a state to repeat a step from, until the next checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpftrl_fast.run.sealed_files import read_sealed, sync_folder, write_sealed
from dpftrl_fast.run.step_log import EMPTY_SIZE, StepLog, create_log

#: Name of the file with the last state.
CHECKPOINT = "checkpoint.npz"

_LOG = re.compile(r"steps-([0-9]+)\.log")
_KEPT = re.compile(r"kept-([0-9]+)-([0-9]+)\.npz")


class JournalFiles:
    """Reads and writes the checkpoint, the logs and the kept states; `secret` keys all hashes."""

    def __init__(self, folder: Path, secret: bytes) -> None:
        self._folder, self._secret = folder, secret

    def checkpoint(self) -> dict[Any, Any] | None:
        """Return the content of the checkpoint; None if there is none yet."""
        path = self._folder / CHECKPOINT
        return read_sealed(path, self._secret, "checkpoint") if path.exists() else None

    def refuse_steps(self) -> None:
        """Refuse a folder without a checkpoint whose other files are not those of a new run.

        Begun again, a run would have a fresh key, and the releases of its lost steps no account. A
        run that was killed before its first checkpoint has at most the empty log of generation 0.
        """
        for path in sorted(self._folder.iterdir()):
            log = _LOG.fullmatch(path.name)
            later = log is not None and (int(log[1]) > 0 or path.stat().st_size > EMPTY_SIZE)
            if later or _KEPT.fullmatch(path.name):
                raise ValueError(
                    f"the checkpoint is missing beside {path.name!r}: the folder is damaged, and "
                    "steps of its run may have been released"
                )

    def write_checkpoint(self, content: Mapping[str, Any]) -> None:
        """Write a checkpoint in place of the one before."""
        write_sealed(self._folder / CHECKPOINT, content, self._secret, "checkpoint")

    def new_log(self, generation: int, start: int) -> StepLog:
        """Return an empty log, on the disk."""
        path = self._log_path(generation)
        create_log(path, generation, self._secret)
        sync_folder(self._folder)
        return StepLog(path, generation, start, self._secret)

    def log(self, generation: int, start: int) -> StepLog:
        """Open the log of a generation to continue it; ValueError if it is missing."""
        path = self._log_path(generation)
        if not path.exists():
            raise ValueError(f"{str(path)!r} is missing: the folder is damaged")
        return StepLog(path, generation, start, self._secret)

    def drop_log(self, generation: int) -> None:
        """Remove the log of a generation that is over."""
        self._log_path(generation).unlink(missing_ok=True)

    def keep(self, generation: int, step: int, state: Mapping[str, Any]) -> None:
        """Keep a state from which a step can be repeated."""
        write_sealed(
            self._kept_path(generation, step), state, self._secret, f"kept {generation} {step}"
        )

    def kept(self, generation: int, step: int) -> dict[Any, Any] | None:
        """Return the state kept for a step, if there is one."""
        path = self._kept_path(generation, step)
        if not path.exists():
            return None
        return read_sealed(path, self._secret, f"kept {generation} {step}")

    def drop_kept(self, generation: int, up_to: int) -> None:
        """Remove the kept states of earlier generations, and of steps up to this one."""
        for path in self._folder.glob("kept-*.npz"):
            name = _KEPT.fullmatch(path.name)
            if name and (int(name[1]) < generation or int(name[2]) <= up_to):
                path.unlink(missing_ok=True)

    def _log_path(self, generation: int) -> Path:
        return self._folder / f"steps-{generation}.log"

    def _kept_path(self, generation: int, step: int) -> Path:
        return self._folder / f"kept-{generation}-{step}.npz"
