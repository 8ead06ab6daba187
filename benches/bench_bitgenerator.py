# SPDX-License-Identifier: Apache-2.0
"""`ChaCha` under NumPy's Generator, beside the bit generators that NumPy users have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import PCG64, SFC64, BitGenerator, Generator, Philox

from dpftrl_fast._chacha import ChaCha

N = 1_000_000
GENERATORS: dict[str, Callable[[], BitGenerator]] = {
    "ChaCha8": lambda: ChaCha(1, rounds=8),
    "ChaCha12": lambda: ChaCha(1, rounds=12),
    "ChaCha20": lambda: ChaCha(1, rounds=20),
    "PCG64": lambda: PCG64(1),
    "SFC64": lambda: SFC64(1),
    "Philox": lambda: Philox(1),
}
every_generator = pytest.mark.parametrize("name", GENERATORS)


@every_generator
@pytest.mark.benchmark(group="bit generator, one million uint64")
def test_raw(benchmark: Any, name: str) -> None:
    generator = GENERATORS[name]()
    benchmark(generator.random_raw, N, output=False)
    generator = GENERATORS[name]()
    words = generator.random_raw(N)
    assert abs(np.mean(words >> np.uint64(63)) - 0.5) < 0.003


@every_generator
@pytest.mark.benchmark(group="bit generator, one million uint32")
def test_uint32(benchmark: Any, name: str) -> None:
    rng = Generator(GENERATORS[name]())
    words = benchmark(rng.integers, 0, 2**32, N, dtype=np.uint32)
    assert abs(np.mean(words >> np.uint32(31)) - 0.5) < 0.003


@every_generator
@pytest.mark.benchmark(group="bit generator, one million doubles")
def test_random(benchmark: Any, name: str) -> None:
    rng = Generator(GENERATORS[name]())
    out = np.empty(N)
    benchmark(rng.random, out=out)
    assert abs(out.mean() - 0.5) < 0.002


@every_generator
@pytest.mark.benchmark(group="bit generator, one million normals")
def test_standard_normal(benchmark: Any, name: str) -> None:
    rng = Generator(GENERATORS[name]())
    out = np.empty(N)
    benchmark(rng.standard_normal, out=out)
    assert abs(out.std() - 1) < 0.005


@every_generator
@pytest.mark.benchmark(group="bit generator, construction")
def test_construction(benchmark: Any, name: str) -> None:
    assert isinstance(benchmark(GENERATORS[name]), BitGenerator)
