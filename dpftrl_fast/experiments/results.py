# SPDX-License-Identifier: Apache-2.0
"""Results as a file of JSON lines: a row that exists is not computed again."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from dpftrl_fast.files import naming_path

Setting: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Mapping[str, float]


class Results:
    """Rows ``{"experiment", "setting", "seed", "values"}``, one a line, kept in a file.

    Lines are only appended, each in one write, and are on disk before the next is computed. An
    incomplete line at the end is dropped. A row is found again by experiment, setting and seed; to
    measure again, delete the file. One process writes to a file at a time. File and folder are
    created with the first row; ValueError if a complete line is not such a row.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> Results(path).add("demo", {"epsilon": 1.0}, 0, {"score": 0.5})
    >>> Results(path).get("demo", {"epsilon": 1.0}, 0)
    {'score': 0.5}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Values] = {}
        self._whole = 0  # bytes of whole lines
        content = path.read_bytes() if path.exists() else b""
        self._size = len(content)
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                key = _key(row["experiment"], row["setting"], row["seed"])
                self._rows[key] = {str(name): float(v) for name, v in row["values"].items()}
            except (ValueError, TypeError, KeyError, AttributeError):
                raise ValueError(
                    f"expected a row of results in line {number} of {str(path)!r}, got "
                    f"{line[:60]!r}"
                ) from None
            self._whole += len(line)

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, experiment: str, setting: Setting, seed: int) -> Values | None:
        """Return the values of a row, or None."""
        return self._rows.get(_key(experiment, setting, seed))

    def add(self, experiment: str, setting: Setting, seed: int, values: Values) -> None:
        """Append a row.

        Raises
        ------
        ValueError
            If a value is not finite: JSON has no such numbers.
        FileExistsError
            If another process has written to the file.
        """
        values = {name: float(value) for name, value in values.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"{name} must be finite, got {value} in {experiment} {setting}")
        row = {"experiment": experiment, "setting": dict(setting), "seed": seed, "values": values}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            if os.fstat(handle).st_size != self._size:
                raise FileExistsError(f"another process writes to {str(self.path)!r}")
            with naming_path(self.path):
                os.ftruncate(handle, self._whole)
                os.lseek(handle, 0, os.SEEK_END)
                written = 0
                while written < len(line):
                    written += os.write(handle, line[written:])
                    self._size = self._whole + written
                os.fsync(handle)
        finally:
            os.close(handle)
        self._whole += len(line)
        self._rows[_key(experiment, setting, seed)] = values


def _key(experiment: str, setting: Setting, seed: int) -> str:
    return json.dumps([experiment, dict(setting), int(seed)], sort_keys=True, allow_nan=False)
