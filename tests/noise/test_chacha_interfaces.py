# SPDX-License-Identifier: Apache-2.0
"""`ChaCha` from ctypes, cffi, Numba, and from Cython code that cimports it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chacha_oracle import position_of, python_words, seed_key
from numpy.random import Generator

import dpftrl_fast
from dpftrl_fast import _chacha
from dpftrl_fast._chacha import ChaCha

STRETCH = python_words(seed_key(b"i\x0b"), 12, 0, 1400)


def test_ctypes_and_cffi() -> None:
    generator = ChaCha(7)
    assert generator.ctypes is generator.ctypes
    assert generator.ctypes.next_uint64(generator.ctypes.state) == ChaCha(7).random_raw()
    pytest.importorskip("cffi")
    generator = ChaCha(7)
    assert generator.cffi is generator.cffi
    assert generator.cffi.next_uint64(generator.cffi.state) == ChaCha(7).random_raw()


def test_numba_through_ctypes() -> None:
    numba = pytest.importorskip("numba")
    generator = ChaCha(7)
    next_double, address = generator.ctypes.next_double, generator.ctypes.state_address

    @numba.njit
    def mean(n: int, state: int) -> float:
        total = 0.0
        for _ in range(n):
            total += next_double(state)
        return total / n

    assert mean(1000, address) == pytest.approx(Generator(ChaCha(7)).random(1000).mean(), rel=1e-12)
    assert position_of(generator) == 2000


def test_numba_takes_the_generator() -> None:
    numba = pytest.importorskip("numba")

    @numba.njit
    def draw(rng: Any) -> Any:
        return rng.random(), rng.standard_normal()

    expected = Generator(ChaCha(7))
    assert draw(Generator(ChaCha(7))) == (expected.random(), expected.standard_normal())


CONSUMER = """
# cython: language_level=3
from libc.stdint cimport uint32_t
import numpy as np
from dpftrl_fast._chacha cimport (
    ChaCha,
    chacha_fill_uint32,
    chacha_next_double,
    chacha_next_uint32,
    chacha_next_uint64,
    chacha_stream_t,
)

def draws(ChaCha generator, kinds):
    cdef chacha_stream_t *stream = &generator.stream
    result = []
    for kind in kinds:
        if kind == "u32":
            result.append(chacha_next_uint32(stream))
        elif kind == "u64":
            result.append(chacha_next_uint64(stream))
        else:
            result.append(chacha_next_double(stream))
    return result

def fill(ChaCha generator, Py_ssize_t n):
    out = np.zeros(n + 1, dtype=np.uint32)
    cdef uint32_t[::1] view = out
    with generator.lock, nogil:
        chacha_fill_uint32(&generator.stream, n, &view[0])
    assert out[n] == 0
    return out[:n]
"""

SETUP = """
import numpy
from setuptools import Extension, setup
from Cython.Build import cythonize
languages = {"consumer": "c", "example_c": "c", "example_cpp": "c++"}
modules = [
    Extension(name, [name + ".pyx"], include_dirs=[numpy.get_include()], language=language)
    for name, language in languages.items()
]
setup(name="consumer", ext_modules=cythonize(modules))
"""


def pxd_example() -> str:
    """The indented block of the docstring of `_chacha.pxd`, a whole module."""
    text = Path(str(_chacha.__file__)).with_name("_chacha.pxd").read_text("utf-8")
    lines = text.split('"""')[1].splitlines()
    return textwrap.dedent("\n".join(x for x in lines if x.startswith("    ") or not x))


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module built as a user would: from the installed .pxd and NumPy's headers alone."""
    pytest.importorskip("Cython")
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("consumer")
    (folder / "consumer.pyx").write_text(CONSUMER)
    for name in ("example_c", "example_cpp"):
        (folder / f"{name}.pyx").write_text(pxd_example())
    (folder / "setup.py").write_text(SETUP)
    packages = [Path(str(module.__file__)).parents[1] for module in (_chacha, dpftrl_fast)]
    search = os.pathsep.join([*map(str, packages), *sys.path])
    built = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search, "CFLAGS": "-O0"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    sys.path.insert(0, str(folder))
    try:
        for name in ("example_c", "example_cpp"):
            importlib.import_module(name)
        return importlib.import_module("consumer")
    finally:
        sys.path.remove(str(folder))


def test_cython_draws(consumer: Any) -> None:
    kinds = ["u32", "u64", "double"] * 150
    words = iter(STRETCH)
    expected: list[float] = []
    for kind in kinds:
        if kind == "u32":
            expected.append(next(words))
        else:
            draw = next(words) | next(words) << 32
            expected.append(draw if kind == "u64" else (draw >> 11) / 2**53)
    generator = ChaCha(11)
    assert consumer.draws(generator, kinds) == expected
    assert position_of(generator) == 750


def test_cython_fill(consumer: Any) -> None:
    stream = ChaCha(12).random_raw(20_000).astype("<u8").view("<u4")
    generator = ChaCha(12)
    used = 0
    for n in (0, 1, 3, 507, 1, 1, 511, 512, 513, 1024, 1023, 5, 2048, 1500, 0, 10_000):
        assert np.array_equal(consumer.fill(generator, n), stream[used : used + n])
        used += n
        assert position_of(generator) == used
    assert generator.random_raw() == int(stream[used]) | int(stream[used + 1]) << 32


@pytest.mark.parametrize("name", ["example_c", "example_cpp"])
def test_the_example_of_the_pxd(consumer: Any, name: str) -> None:
    generator = ChaCha(7)
    for rows in (1, 1000):
        drawn = sys.modules[name].mean(generator, rows)
        start = 0 if rows == 1 else 1
        expected = Generator(ChaCha(7)).random(1001)[start : start + rows]
        assert drawn == pytest.approx(expected.mean(), rel=1e-14)
    assert position_of(generator) == 2002
