# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or absent: written to a temporary name, then moved into place.

And arrays that are read from files and messages of others, with no memory beyond their bytes.
"""

from __future__ import annotations

import math
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


@contextmanager
def naming_path(path: str | Path) -> Iterator[None]:
    """Let an OSError of the block name this path, if it names none: a full disk does not.

    Examples
    --------
    >>> with naming_path("run/steps.log"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    ...
    OSError: [Errno 28] No space left on device: 'run/steps.log'
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


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
            with naming_path(directory / name), os.fdopen(handle, "wb") as file:
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


# ---- Arrays in NumPy's format ----

_SHOWN = 100
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def array_in(data: bytes) -> NDArray[Any]:
    """Return a read-only view of the array in NumPy's format that `data` holds.

    The number of bytes is compared with the header first: a header that announces a terabyte
    allocates nothing. No pickle is read.

    Raises
    ------
    ValueError
        If the bytes are not a whole array of numbers or text.
    """
    file = BytesIO(data)
    try:
        read_header = _HEADERS.get(npy.read_magic(file))
        header = None if read_header is None else read_header(file)
    except Exception:  # of NumPy, of Python's tokenizer and parser
        raise ValueError("expected a header of NumPy's format, got other bytes") from None
    if header is None:
        raise ValueError("expected version 1 or 2 of NumPy's format, got another")
    shape, fortran, dtype = header
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None:
        raise ValueError(f"expected an array of numbers, got dtype {str(dtype)[:_SHOWN]}")
    size = len(data) - file.tell()
    if (
        len(shape) > 32
        or any(type(n) is not int or n < 0 for n in shape)
        or dtype.itemsize == 0  # NumPy makes text of length 1 of it, with whatever is in memory
        or math.prod(shape) * dtype.itemsize != size
        # Lengths that NumPy cannot hold, beside one of 0.
        or math.prod(max(n, 1) for n in shape) * dtype.itemsize >= 2**63
    ):
        raise ValueError(f"expected the bytes of {dtype} {str(shape)[:_SHOWN]}, got {size}")
    if size == 0:
        return np.empty(shape, dtype)
    flat = np.frombuffer(data, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if fortran else "C")


def arrays_in(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file of `numpy.savez`, uncompressed: no more than its own bytes.

    Raises
    ------
    ValueError
        If the file is none, or compressed; if two arrays share a name or bytes.
    OSError
        If it cannot be read.
    """
    content = BytesIO(path.read_bytes())
    found: dict[str, NDArray[Any]] = {}
    try:
        with zipfile.ZipFile(content) as archive:
            entries = archive.infolist()
            for entry in entries:
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise ValueError(
                        f"expected uncompressed arrays, got {entry.filename[:_SHOWN]!r}"
                    )
            # Members may share bytes: a file of megabytes could hold terabytes.
            if sum(entry.file_size for entry in entries) > content.getbuffer().nbytes:
                raise ValueError("expected arrays of bytes of their own, got some that share them")
            if len({entry.filename for entry in entries}) < len(entries):
                raise ValueError("expected arrays with a name each, got a name twice")
            for entry in entries:
                found[entry.filename.removesuffix(".npy")] = array_in(archive.read(entry))
    except ValueError:
        raise
    except Exception:  # zipfile raises many kinds
        raise ValueError("expected a zip file of arrays, got a damaged one") from None
    return found
