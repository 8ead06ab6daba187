# SPDX-License-Identifier: Apache-2.0
"""Folders of runs for the tests of the journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpftrl_fast.run.journal import RunJournal

IDENTITY = {"plan": {"sigma": 1.5}, "order": "abc"}
KEY = b"k" * 32


def digests(journal: RunJournal, n: int) -> list[bytes]:
    return [journal.digest(i, np.array([float(i)])) for i in range(1, n + 1)]


def begun(folder: Path, steps: int = 0, *, every: int = 10**9) -> Path:
    """A folder of a run that was killed after so many steps."""
    with RunJournal(folder, IDENTITY) as journal:
        journal.checkpoint({"step": 0, "key": KEY})
        for i, digest in enumerate(digests(journal, steps), 1):
            assert journal.write_ahead(i, digest)
            if i % every == 0:
                journal.checkpoint({"step": i, "key": KEY})
    return folder
