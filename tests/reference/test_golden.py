# SPDX-License-Identifier: Apache-2.0
"""The golden values of the stream, read as their files say, against the reference."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import reference

DATA = Path(__file__).parents[1] / "data"
VERSIONS = {
    version: json.loads((DATA / f"stream_v{version}.json").read_text(encoding="utf-8"))
    for version in (1, 2)
}
GOLDEN = VERSIONS[2]


def values(digits: str, dtype: str) -> np.ndarray:
    big_endian = np.frombuffer(bytes.fromhex(digits), np.dtype(dtype).newbyteorder(">"))
    return big_endian.astype(dtype)


def assert_same_bits(got: Any, expected: np.ndarray) -> None:
    got = np.asarray(got, expected.dtype)
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def test_the_script_writes_the_file() -> None:
    script = runpy.run_path(str(DATA / "make_stream_golden.py"))
    assert script["text"]() == (DATA / "stream_v2.json").read_text(encoding="utf-8")
    assert (DATA / "stream_v2.json").stat().st_size < 64_000


def test_version() -> None:
    assert GOLDEN["stream_version"] == reference.STREAM_VERSION == 2
    assert VERSIONS[1]["stream_version"] == 1


def test_keys() -> None:
    for case in GOLDEN["keys"]:
        seed = int(case["seed"]) if "seed" in case else bytes.fromhex(case["seed_bytes"])
        assert reference.key_from_seed(seed).hex() == case["key"]


def test_blocks() -> None:
    for case in GOLDEN["blocks"]:
        key, counter, rounds = bytes.fromhex(case["key"]), case["counter"], case["rounds"]
        expected = [int(case["words"][8 * j : 8 * j + 8], 16) for j in range(16)]
        assert reference.chacha_block(key, counter, rounds) == expected
        numbers = np.array(counter[:1], np.uint32)
        blocks = reference.chacha_blocks(key, numbers, counter[1:], rounds)
        assert blocks[:, 0].tolist() == expected


def test_both_versions_share_keys_blocks_and_float32() -> None:
    old = VERSIONS[1]
    assert all(GOLDEN[name] == old[name] for name in ("keys", "blocks", "trees"))
    for name in ("pairs", "normals"):
        old32, new32 = (
            [case for case in golden[name] if case["dtype"] == "float32"]
            for golden in (old, GOLDEN)
        )
        assert old32 == new32


@pytest.mark.parametrize("version", VERSIONS)
def test_pairs(version: int) -> None:
    for case in VERSIONS[version]["pairs"]:
        dtype = case["dtype"]
        V = int(case["V"], 16) if "V" in case else None
        got = reference.box_muller_python(int(case["U"], 16), int(case["A"], 16), dtype, V)
        assert_same_bits(got, values(case["first"] + case["second"], dtype))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_normals(dtype: str, version: int) -> None:
    cases = [case for case in VERSIONS[version]["normals"] if case["dtype"] == dtype]
    assert len(cases) > 25
    for case in cases:
        key = reference.key_from_seed(int(case["seed"]))
        where = {name: value for name, value in case.items() if name not in ("seed", "z")}
        where["version"] = version
        assert_same_bits(reference.normals(key, **where), values(case["z"], dtype))
        assert_same_bits(reference.normals_python(key, **where), values(case["z"], dtype))


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
def test_trees(variant: str) -> None:
    cases = [case for case in GOLDEN["trees"] if case["options"]["variant"] == variant]
    assert len(cases) == 16
    for case in cases:
        options = case["options"]
        tree = reference.TreeNoise(**options)
        for name, arguments, digits in case["calls"]:
            got = getattr(tree, name)(*arguments)
            if digits is None:
                assert got is None
            else:
                assert_same_bits(got, values(digits, options["dtype"]))
