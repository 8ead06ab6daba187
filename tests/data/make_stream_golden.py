# SPDX-License-Identifier: Apache-2.0
"""Write stream_v2.json, the golden values of docs/guarantees/stream.md, with
`dpftrl_fast.reference` alone.

Run ``python tests/data/make_stream_golden.py``. Values are the bits of the IEEE numbers,
big-endian, in hexadecimal, one after the other: 8 digits for a float32, 16 for a float64.

- ``keys``: seeds (``seed``, a decimal number in a string, or ``seed_bytes``) and their keys.
- ``blocks``: ChaCha blocks, as sixteen words of 8 digits.
- ``pairs``: radius word U, angle word A and (float64) extension V to a pair of normals.
- ``normals``: z of a node over coordinates start .. start + size - 1, unscaled. Several hold a rare
  radius word.
- ``trees``: a script for a new TreeNoise with the given options, each call with what it returns
  (``restart`` and ``advance_to`` return nothing).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dpftrl_fast import reference

PATH = Path(__file__).parent / "stream_v2.json"
Json = dict[str, Any]


def to_hex(values: Any, dtype: str) -> str:
    """Big-endian bits of the values."""
    return np.asarray(values, np.dtype(dtype).newbyteorder(">")).tobytes().hex()


def keys() -> list[Json]:
    """Seeds and keys."""
    integers = [0, 1, 2, 7, 255, 256, 2**32, 2**64 - 1, 2**64]
    texts = [b"", b"\x00", b"\x07", b"i\x07", bytes(range(40))]
    return [
        *({"seed": str(n), "key": reference.key_from_seed(n).hex()} for n in integers),
        *({"seed_bytes": s.hex(), "key": reference.key_from_seed(s).hex()} for s in texts),
    ]


def blocks() -> list[Json]:
    """ChaCha blocks."""
    counters = [(0, 0, 0, 0), (1, 0x09000000, 0x4A000000, 0), (2**32 - 1,) * 4]
    return [
        {
            "key": key.hex(),
            "counter": list(counter),
            "rounds": rounds,
            "words": "".join(f"{w:08x}" for w in reference.chacha_block(key, counter, rounds)),
        }
        for key, counter in zip((bytes(32), bytes(range(32)), b"\xff" * 32), counters, strict=True)
        for rounds in (8, 12, 20)
    ]


def pairs(dtype: str) -> list[Json]:
    """Extreme and ordinary words."""
    width = 32 if dtype == "float32" else 64
    common = 0xFEDCBA98 << 32 | (0x76543210 if dtype == "float64" else 0)
    radii = [0, 1, 2**32 - 1, (2**18 << 32) - 1, 2**18 << 32, 2**63 - 2**32, 2**63]
    radii += [2**64 - 2**32] if dtype == "float32" else [2**63 - 1, 2**63 + 1, 2**64 - 1]
    edge = (2**32 - 2**18) << 32
    extended = [(u, 0) for u in radii]
    if dtype == "float64":
        extended += [(u, v) for u in (0, 2**64 - 1) for v in (1, 2**11, 2**63, 2**64 - 1)]
        extended += [(u, 2**64 - 1) for u in (edge - 1, edge, 2**18 << 32, (2**18 << 32) - 1)]
        extended += [(1, 0x0123456789ABCDEF), (2**64 - 2, 0x0123456789ABCDEF)]
    angles = [0, 2**width - 1, 2 ** (width - 3) - 1, 0x0123456789ABCDEF >> (64 - width)]
    words = [(u, angles[-1], v) for u, v in extended]
    words += [(common, a, 0) for a in angles]
    words += [(common, angles[-1] ^ (octant << (width - 3)), 0) for octant in range(8)]
    made = []
    for u, a, v in words:
        first, second = reference.box_muller_python(u, a, dtype, v)
        made.append(
            {
                "dtype": dtype,
                "U": f"{u:016x}",
                "A": f"{a:0{width // 4}x}",
                **({"V": f"{v:016x}"} if dtype == "float64" else {}),
                "first": to_hex(first, dtype),
                "second": to_hex(second, dtype),
            }
        )
    return made


def rare_coordinates(dtype: str) -> list[int]:
    """Lower coordinates of pairs with an extension: leaf 0 of tree 0, key of seed 0.

    They are among the first 2^17 (float32) or 2^16 (float64).
    """
    lanes, kind, per = (16, 1, 1) if dtype == "float32" else (8, 3, 2)  # blocks of a lane
    counter = reference.stream.node_counter(0, kind, 0, 0, 0)
    numbers = np.arange(1 << 13, dtype=np.uint32)
    words = reference.chacha_blocks(reference.key_from_seed(0), numbers, counter)[:8]
    radius = words[:, per - 1 :: per].T
    rare = radius < 1 << 18
    if dtype == "float64":
        rare |= radius >= 2**32 - 2**18
    found = np.argwhere(rare).tolist()
    return [n // lanes * 16 * lanes + j * lanes + n % lanes for n, j in found]


def normals() -> list[Json]:
    """Nodes and ranges."""
    cases: list[Json] = []

    def add(seed: int, size: int, **where: Any) -> None:
        case = dict(tree=0, level=0, index=0, start=0, size=size, rounds=12, purpose=0)
        for dtype in ("float32", "float64"):
            full = case | {"dtype": dtype} | where
            if full["dtype"] == dtype:
                z = reference.normals(reference.key_from_seed(seed), **full)
                cases.append({"seed": str(seed), **full, "z": to_hex(z, dtype)})

    add(0, 300)
    for rounds in (8, 12, 20):
        add(1, 40, rounds=rounds, start=100, tree=1, level=3, index=2)
    for level, index in ((1, 0), (0, 1), (5, 77), (20, 2**20), (0, 2**31), (0, 2**46 - 1)):
        add(2, 10, level=level, index=index)
    for level, index in ((31, 1), (45, 1), (46, 0)):
        add(2, 10, level=level, index=index)
    for tree in (2**16 - 1, 2**16, 2**16 + 1, 2**32 - 1):
        add(2, 10, tree=tree, level=2, index=1)
    add(2, 10, tree=0x89ABCDEF, level=12, index=0x765432101, rounds=20)
    for purpose in (1, 2, 254):
        add(0, 10, purpose=purpose)
    for start, size in ((127, 3), (255, 3), (2**31 - 5, 10), (2**32 - 20, 40), (2**32 + 1000, 5)):
        add(7, size, start=start, level=1, index=3)
    add(7, 20, start=2**36 - 20, dtype="float32")
    add(7, 20, start=2**35 - 20, dtype="float64")
    for dtype, half in (("float32", 128), ("float64", 64)):
        for lower in rare_coordinates(dtype):
            add(0, 3, start=lower - 1, dtype=dtype)
            add(0, 3, start=lower + half - 1, dtype=dtype)
    add(2**64, 10)
    return cases


SCRIPTS: dict[str, list[list[Any]]] = {
    "steps": [["step"]] * 9 + [["prefix", 64], ["prefix", 45], ["node", 3, 2]],
    "restarts": [
        *[["step"]] * 5,
        ["restart", False],
        *[["step"]] * 3,
        ["restart", True],
        *[["step"]] * 4,
        ["prefix", 7],
        ["restart", True],
        *[["residual"]] * 2,
    ],
    "residuals": [
        *[["residual"]] * 3,
        ["restart", True],
        *[["residual"]] * 2,
        ["step"],
        ["residual"],
        ["restart", False],
        *[["residual"]] * 2,
    ],
    "advances": [
        ["advance_to", 11],
        ["residual"],
        ["advance_to", 37],
        ["restart", True],
        ["advance_to", 254],
        *[["step"]] * 3,
        ["node", 8, 0],
    ],
}


def trees() -> list[Json]:
    """Scripts of calls."""
    made = []
    options = [
        {"size": 3, "std": 1.0, "seed": 0, "rounds": 12, "offset": 0},
        {"size": 2, "std": 0.3, "seed": 5, "rounds": 8, "offset": 255},
    ]
    for option in options:
        for variant in ("vanilla", "honaker"):
            for dtype in ("float32", "float64"):
                for script in SCRIPTS.values():
                    full = {**option, "variant": variant, "dtype": dtype}
                    tree = reference.TreeNoise(**full)
                    calls = []
                    for name, *arguments in script:
                        value = getattr(tree, name)(*arguments)
                        result = None if value is None else to_hex(value, dtype)
                        calls.append([name, arguments, result])
                    made.append({"options": full, "calls": calls})
    return made


def golden() -> Json:
    """Everything, as the file holds it."""
    return {
        "stream_version": reference.STREAM_VERSION,
        "keys": keys(),
        "blocks": blocks(),
        "pairs": pairs("float32") + pairs("float64"),
        "normals": normals(),
        "trees": trees(),
    }


def text() -> str:
    """The text of the file: one case a line."""
    parts = []
    for name, value in golden().items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(case) for case in value)
            parts.append(f'"{name}": [\n{lines}\n]')
        else:
            parts.append(f'"{name}": {value}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(PATH, PATH.stat().st_size, "bytes")
