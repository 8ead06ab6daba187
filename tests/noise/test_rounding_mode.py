# SPDX-License-Identifier: Apache-2.0
"""Another library may have changed how the processor rounds: no bit of a result depends on it."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import _core
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux",
    reason="the numbers of the rounding modes are those of x86 and glibc",
)


@contextmanager
def rounding(mode: int) -> Iterator[None]:
    libm = ctypes.CDLL("libm.so.6")
    before = libm.fegetround()
    assert libm.fesetround(mode) == 0
    try:
        as_set = rounded()
        yield
        assert rounded() == as_set  # a call gives it back as it was
    finally:
        libm.fesetround(before)


def rounded() -> list[float]:
    """Sums that every mode rounds otherwise (the library's own answer is that of another unit)."""
    ones, tiny = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1e-30, 1e-30, -1e-30, -1e-30])
    return list((ones + tiny).tolist())


UPWARD, DOWNWARD, TO_ZERO = 0x800, 0x400, 0xC00
LARGE = 40_000  # several tiles, for two threads
STEPS: dict[str, Callable[[], list[Callable[[], Any]]]] = {
    "tree": lambda: [dpf.TreeNoise(LARGE, 1.1, seed=1, threads=2).step] * 5,
    "tree in float64": lambda: (
        [dpf.TreeNoise(LARGE, 1.1, seed=1, dtype="float64", memory="regenerate").residual] * 5
    ),
    "vanilla tree": lambda: [dpf.TreeNoise(300, 1.1, seed=1, variant="vanilla").step] * 5,
    "buffers": lambda: (
        [dpf.ToeplitzNoise(LARGE, 1.1, BufferedToeplitz((0.9, 0.5), (0.25, 0.125)), seed=1).step]
        * 5
    ),
    "taps": lambda: (
        [dpf.ToeplitzNoise(300, 1.1, BandedInverse((1.0, -0.3)), seed=1, dtype="float64").residual]
        * 5
    ),
    "bands": lambda: [dpf.ToeplitzNoise(300, 1.1, BandedToeplitz((1.0, 0.3)), seed=1).step] * 5,
    "epsilon": lambda: [lambda: _core.gaussian_epsilon(1.13, 11.0, 0.0, 1e-6)],
    "delta": lambda: [lambda: _core.gaussian_delta(1.13, 11.0, 0.0, 3.0)],
    "noise multiplier": lambda: [lambda: _core.gaussian_noise_multiplier(3.0, 1e-6, 11.0, 0.0)],
}


@pytest.mark.parametrize("mode", [UPWARD, DOWNWARD, TO_ZERO])
@pytest.mark.parametrize("name", STEPS)
def test_the_callers_rounding_mode_changes_nothing(name: str, mode: int) -> None:
    expected = [np.asarray(call()).tobytes() for call in STEPS[name]()]
    calls = STEPS[name]()
    with rounding(mode):
        got = [call() for call in calls]
    assert [np.asarray(value).tobytes() for value in got] == expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_callers_rounding_mode_changes_no_bit_of_any_target(dtype: str) -> None:
    normals = _core.normals_f32 if dtype == "float32" else _core.normals_f64
    for target in dpf.build_info()["targets"]:

        def made(target: str = target) -> bytes:
            out = np.empty(1000, dtype)
            normals(target, bytes(32), 8, 0, 0, 0, 0, 0, 1.1, out)
            return out.tobytes()

        expected = made()
        with rounding(UPWARD):
            assert made() == expected
