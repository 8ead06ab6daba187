# SPDX-License-Identifier: Apache-2.0
"""A full or read-only disk at every write of a federated run: nothing is lost."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import failing_disk
import limited_disk
import pytest
from failing_disk import failing
from limited_disk import finished, played
from processes import child


@pytest.fixture(scope="module")
def wholes() -> Any:
    """The runs that nothing stops, in memory."""
    return {job: finished(None, job) for job in ("rounds", "buffered")}


FAULTS = {
    "full once": (errno.ENOSPC, False, False),
    "full from then on": (errno.ENOSPC, True, True),
    "read-only once": (errno.EACCES, False, False),
    "read-only from then on": (errno.EACCES, True, False),
}


@pytest.mark.parametrize(
    ("job", "fault"),
    [*(("rounds", fault) for fault in FAULTS), *(("buffered", fault) for fault in [*FAULTS][:2])],
)
def test_a_run_goes_on_after_a_fault_at_every_call(
    job: str, fault: str, tmp_path: Path, wholes: Any
) -> None:
    """What was released before is that of the whole run, and so is the end; also tried again."""
    whole = wholes[job]
    error, lasting, half = FAULTS[fault]
    seen: set[str] = set()
    call, got_as_far = 0, True
    while got_as_far:
        call += 1
        folder = tmp_path / str(call) / "run"
        folder.parent.mkdir()
        released: dict[int, str] = {}
        with failing(folder, call, error, lasting=lasting, half=half) as disk:
            try:
                played(folder, released, job)
            except OSError as caught:
                assert str(folder) in str(caught), f"call {call}: {caught!r} names no path"
        got_as_far = bool(disk.failed)
        seen.update(disk.failed[:1])
        assert released.items() <= whole.released.items(), f"call {call}"
        with failing(folder, 0, error):  # without waits for the disk
            assert finished(folder, job).is_end_of(whole), f"call {call}: {disk.failed[:1]}"
        assert not list(folder.glob(".writing-*"))
    assert call > 40
    assert seen == {"file.write", *failing_disk.BY_HANDLE, *failing_disk.BY_PATH} - {"chmod"}


def test_a_fault_that_is_not_noticed_would_be_found(tmp_path: Path, wholes: Any) -> None:
    """A negative control: the run of another noise has other releases."""
    other: dict[int, str] = {}
    played(tmp_path / "run", other, key=bytes(32))
    assert other.items() & wholes["rounds"].released.items() == {(0, wholes["rounds"].released[0])}


@pytest.mark.parametrize("job", ["limits", "read-only"])
def test_real_limits_of_an_ordinary_user(job: str, tmp_path: Path) -> None:
    """Files that may not grow, and folders without permission to write, by the system itself."""
    program = [sys.executable, "-W", "error", limited_disk.__file__, job]
    with child(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said = process.communicate()[0]
    assert process.returncode == 0, said
    assert said.endswith("all held\n")
