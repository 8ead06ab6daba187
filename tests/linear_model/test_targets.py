# SPDX-License-Identifier: Apache-2.0
"""Each target of this machine, forced by name, against scalar and against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import _core, reference

TARGETS = dpf.build_info()["targets"]
FILL = {"float32": _core.normals_f32, "float64": _core.normals_f64}
KEY = reference.key_from_seed(b"targets")
SIZES = [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000]
OFFSETS = [0, 1, 7, 8, 15, 16, 17, 127, 128, 129, 255, 257]


def normals(target: str, dtype: str, first: int, size: int, **change: Any) -> np.ndarray:
    where = {"rounds": 12, "purpose": 0, "tree": 0, "level": 0, "index": 0, "scale": 1.0, **change}
    out = np.full(size, np.nan, dtype)
    FILL[dtype](target=target, key=KEY, first=first, out=out, **where)
    return out


def test_scalar_is_there_and_the_fastest_is_active() -> None:
    info = dpf.build_info()
    assert TARGETS[0] == "scalar"
    assert info["active_target"] == TARGETS[-1]
    assert info["rejected_target"] is None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rounds", [8, 12, 20])
@pytest.mark.parametrize("target", TARGETS)
def test_normals_at_every_edge(target: str, rounds: int, dtype: str) -> None:
    where = {"tree": 0x12345678, "level": 4, "index": 2**41 + 3}
    whole = reference.normals(KEY, **where, start=0, size=1300, rounds=rounds, dtype=dtype)
    whole = whole * np.dtype(dtype).type(0.7)
    for size in SIZES:
        for first in OFFSETS:
            got = normals(target, dtype, first, size, rounds=rounds, scale=0.7, **where)
            assert got.tobytes() == whole[first : first + size].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", TARGETS)
def test_many_normals(target: str, dtype: str) -> None:
    """Rare words, all exponents, ties of the integer conversions."""
    size = 1 << 18
    expected = reference.normals(
        KEY, tree=0, level=0, index=0, start=5, size=size, rounds=8, dtype=dtype
    )
    assert normals(target, dtype, 5, size, rounds=8).tobytes() == expected.tobytes()
    last = 2**36 if dtype == "float32" else 2**35
    assert (
        normals(target, dtype, last - 300, 300).tobytes()
        == normals("scalar", dtype, last - 300, 300).tobytes()
    )


@pytest.mark.parametrize("rounds", [8, 12, 20])
@pytest.mark.parametrize("target", TARGETS)
def test_keystream_wraps(target: str, rounds: int) -> None:
    for start in (0, 1, 2**32 - 16, 2**32 - 9, 2**32 - 8, 2**32 - 1):
        counter = np.array([start, 2**32 - 1, 7, 9], np.uint32)
        out = np.empty(256, np.uint32)
        _core.keystream16(target, KEY, rounds, counter, out)
        for i in range(16):
            block = ((start + i) % 2**32, 2**32 - 1, 7, 9)
            expected = reference.chacha_block(KEY, block, rounds)
            assert out[16 * i : 16 * i + 16].tolist() == expected


RADII = [0, 1, 2**11, 2**50 - 1, 2**50, 2**53 + 1, 2**63]
RADII += [2**64 - 2**50 - 1, 2**64 - 2**50, 2**64 - 2**10, 2**64 - 1]


@pytest.mark.parametrize(
    ("dtype", "radius", "angle", "extension"),
    [
        ("float32", radius, angle, None)
        for radius in (0, 1, 2**32 - 1, 2**50 - 1, 2**63, 2**64 - 2**32)
        for angle in (0, 2**29 - 1, 2**32 - 1)
    ]
    + [
        ("float64", radius, angle, extension)
        for radius in RADII
        for angle in (0, 2**61 - 1, 2**64 - 1)
        for extension in (0, 1, 2**10 + 1, 2**63, 2**64 - 1)
    ],
)
def test_extreme_words(dtype: str, radius: int, angle: int, extension: int | None) -> None:
    if extension is None:
        got = _core.normal_pair_f32(radius, angle)
    else:
        got = _core.normal_pair_f64(radius, angle, extension)
    expected = reference.box_muller_python(radius, angle, dtype, extension)
    assert np.array(got).tobytes() == np.array(expected).tobytes()


def test_random_extensions() -> None:
    rng = np.random.default_rng(51)
    shifts = rng.integers(0, 128, 4000).tolist()
    for n, shift in enumerate(shifts):
        bits = int.from_bytes(rng.bytes(16), "little") >> shift
        word = bits if n % 2 else 2**128 - 1 - bits
        radius, extension, angle = word >> 64, word % 2**64, int.from_bytes(rng.bytes(8), "little")
        got = _core.normal_pair_f64(radius, angle, extension)
        expected = reference.box_muller_python(radius, angle, "float64", extension)
        assert np.array(got).tobytes() == np.array(expected).tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target": "sse9"}, "no target 'sse9'"),
        ({"rounds": 7}, "rounds must be 8, 12 or 20, got 7"),
        ({"level": 48}, "level in"),
        ({"level": -1}, "level in"),
        ({"level": 46, "index": 2}, "index in"),
        ({"purpose": 256}, "purpose must be"),
        ({"first": 2**36}, "coordinates out of range"),
        ({"key": b"short"}, "32 bytes, got 5"),
    ],
)
def test_bad_arguments(change: dict[str, Any], message: str) -> None:
    out = np.full(3, 7, np.float32)
    arguments: dict[str, Any] = {
        **{"target": "scalar", "key": KEY, "rounds": 12, "purpose": 0, "tree": 0, "level": 0},
        **{"index": 0, "first": 0, "scale": 1.0, "out": out},
        **change,
    }
    with pytest.raises(ValueError, match=message):
        _core.normals_f32(**arguments)
    assert (out == 7).all()
