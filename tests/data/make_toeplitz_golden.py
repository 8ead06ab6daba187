# SPDX-License-Identifier: Apache-2.0
"""Write toeplitz_v1.json, golden noise of Toeplitz mechanisms, with `dpftrl_fast.reference` alone.

Run ``python tests/data/make_toeplitz_golden.py``. Each entry is a script for a new ToeplitzNoise:
its options, and each call with the bits that it returns, big-endian, in hexadecimal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpftrl_fast import reference

PATH = Path(__file__).parent / "toeplitz_v1.json"

MECHANISMS: list[tuple[str, list[float], list[float]]] = [
    ("taps", [1.0], []),
    ("taps", [1.0, -0.875], []),
    ("taps", [1.0, -0.5, 0.25, -0.0625, -0.0390625], []),
    ("buffers", [0.96875], [0.25]),
    ("buffers", [0.984375, 0.75, 0.5], [0.125, 0.25, 0.0625]),
    ("bands", [1.0, 0.5, 0.375], []),
    ("bands", [2.0, -0.5, 0.25, 0.125], []),
]
CALLS = [
    ["residual"], ["residual"], ["step"], ["residual"], ["prefix", 2], ["advance_to", 6],
    ["residual"], ["step"], ["restart"], ["residual"], ["step"], ["advance_to", 4], ["restart"],
    ["residual"], ["step"],
]  # fmt: skip


def bits(values: Any) -> str:
    """Big-endian bits of the values."""
    array = np.asarray(values)
    return array.astype(array.dtype.newbyteorder(">")).tobytes().hex()


def main() -> None:
    """Write the file."""
    scripts = []
    for number, (kind, first, second) in enumerate(MECHANISMS):
        for dtype in ("float32", "float64"):
            options: dict[str, Any] = {
                "size": 5,
                "std": 1.25,
                "seed": number,
                "dtype": dtype,
                "rounds": (12, 8, 20)[number % 3],
                "offset": 254 * number,
                "purpose": 3 + number % 3,
            }
            noise = reference.ToeplitzNoise(kind=kind, first=first, second=second, **options)
            returned = [getattr(noise, name)(*arguments) for name, *arguments in CALLS]
            scripts.append(
                {
                    "kind": kind, "first": first, "second": second, "options": options,
                    "calls": CALLS,
                    "returned": [None if r is None else bits(r) for r in returned],
                }
            )  # fmt: skip
    PATH.write_text(json.dumps(scripts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
