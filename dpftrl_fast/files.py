# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent: written to a temporary name, then moved into place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def check_folder(directory: str | Path) -> None:
    """Raise what would make `write_files` into this folder fail: before a run, not after it.

    Raises
    ------
    FileExistsError
        If `directory` is a file.
    PermissionError
        If it cannot be written or made.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"expected a folder, {str(directory)!r} is a file")
    parent = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise PermissionError(f"expected a folder that can be written, got {str(parent)!r}")


def write_files(directory: str | Path, contents: Mapping[str, bytes]) -> None:
    """Write several files into a folder; they appear one after the other, in the given order.

    All are complete on disk before the first one is moved into place, and of several files an older
    last one is taken away before: it never stands beside files of another run. If anything
    interrupts the writing, Ctrl-C included, no temporary file is left.

    Parameters
    ----------
    directory : str or Path
        Made if it does not exist.
    contents : mapping of file name to bytes
        The last file is the one that says the others are there.
    """
    directory = Path(directory)
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    waiting: list[tuple[Path, Path]] = []
    try:
        for name, content in contents.items():
            handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=directory)
            waiting.append((Path(temporary), directory / name))
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            # mkstemp makes files for the owner only; what is written here is no secret
            os.chmod(temporary, 0o666 & ~_umask())
        if len(waiting) > 1:
            waiting[-1][1].unlink(missing_ok=True)
        while waiting:
            os.replace(*waiting[0])
            del waiting[0]
    except BaseException:
        for left, _ in waiting:
            left.unlink(missing_ok=True)
        if made and not any(directory.iterdir()):
            directory.rmdir()
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
