# SPDX-License-Identifier: Apache-2.0
"""Fast-math flags of the compiled loops, read from their code, and the cache on disk."""

from __future__ import annotations

import functools
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from dpftrl_fast.kernels import ftrl_step, ftrl_update, jit
from dpftrl_fast.kernels.jit import exact_helper, helper, read_only, writable
from dpftrl_fast.kernels.loops import triangle as triangle_loops


@pytest.fixture(autouse=True)
def no_cached_loops(tmp_path, monkeypatch):
    """A loop from the cache has no readable code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))


def flags_of(loop):
    """The fast-math flags of all additions, products and quotients of a compiled loop."""
    (code,) = loop.inspect_llvm().values()
    found = re.findall(r"= f(?:add|sub|mul|div) ((?:[a-z]+ )*)(?:double|float|<)", code)
    assert found
    return [frozenset(flags.split()) for flags in found]


def calling(inner):
    def call(x, out):
        inner(x, out)

    return call


def test_an_exact_helper_keeps_its_order_in_a_loop_that_may_reorder():
    def body(x, out):
        total = 0.0
        for i in range(x.size):
            total = total + x[i] / 3.0
        out[0] = total

    arrays = read_only("d", 1), writable("d", 1)
    for wrapper, expected in (
        (exact_helper, frozenset()),
        (helper, frozenset({"reassoc", "contract"})),
    ):
        inner = wrapper(body)

        loop = jit.compiled(calling(inner), *arrays)
        assert {*flags_of(loop)} == {expected}


def test_the_rounding_errors_of_sums_are_not_reordered():
    arrays = read_only("d", 1), writable("d", 1), writable("d", 1)
    flags = flags_of(jit.compiled(triangle_loops.add_packed, *arrays))
    # Of the seven operations an entry, only the one that adds the error to the others is free.
    assert flags.count(frozenset()) >= 6 * flags.count(frozenset({"reassoc", "contract"}))


@pytest.mark.parametrize("exact", [False, True])
def test_an_exact_loop_keeps_its_order(exact):
    def add(x, out):
        for i in range(x.size):
            out[0] += x[i] / 3.0

    loop = jit.compiled(add, read_only("d", 1), writable("d", 1), exact=exact)
    assert {*flags_of(loop)} == {frozenset() if exact else frozenset({"reassoc", "contract"})}


@pytest.mark.parametrize(
    "make",
    [
        *(functools.partial(ftrl_update.update_loop.__wrapped__, noise) for noise in "fd"),
        ftrl_update.project_loop.__wrapped__,
        *(
            functools.partial(ftrl_step.ftrl_loop.__wrapped__, dtype, momentum)
            for dtype, momentum in (("float32", True), ("float64", False))
        ),
        *(
            functools.partial(ftrl_step.sgd_loop.__wrapped__, dtype, momentum)
            for dtype, momentum in (("float32", True), ("float64", False))
        ),
    ],
)
def test_no_operation_of_an_update_is_reordered(make):
    assert all(not each for each in flags_of(make()))


VECTORS = """
import re, sys
from dpftrl_fast.kernels import gradients, least_squares, packed

loops = {
    "row": gradients.sum_loop("row", "f", "", "d"),
    "outputs": gradients.sum_loop("outputs", "f", "", "d"),
    "scale": least_squares._scale_rows("f", "d"),
    "square": least_squares._add_square(),
    "rectangle": least_squares._add_rectangle(),
    "noise": packed._add_noise("f"),
    "product": packed._product("f"),
}
for name, loop in loops.items():
    (code,) = loop.inspect_asm().values()
    print(name, *(len(re.findall(rf"v\\w+pd\\b.*%{width}mm", code)) for width in "yz"))
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="vectors of x86")
@pytest.mark.parametrize(
    ("cpu", "features"),
    [("haswell", ""), ("sapphirerapids", "f vl bw dq cd")],
)
def test_loops_over_numbers_are_made_of_vectors(cpu, features, tmp_path):
    """An index that may be negative would be wrapped, and no vectors made; Intel's are 512 bits."""
    names = ["avx", "avx2", "fma", "f16c", "bmi", "bmi2", "sse4.2"]
    names += [f"avx512{part}" for part in features.split()]
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_CPU_NAME": cpu,
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in names),
    }
    done = subprocess.run(
        [sys.executable, "-c", VECTORS], env=environment, capture_output=True, text=True, check=True
    )
    for line in done.stdout.splitlines():
        name, *counts = line.split()
        narrow, wide = map(int, counts)
        assert narrow + wide >= 4, line
        if features and name in ("row", "outputs"):
            assert wide >= 16, line
    assert len(done.stdout.splitlines()) == 7


def test_the_stamp_of_the_cache_covers_every_source(tmp_path, monkeypatch):
    folder = Path(jit.__file__).parent
    copy = tmp_path / "kernels"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(jit, "__file__", str(copy / "jit.py"))
    stamp = jit.source_stamp.__wrapped__
    before = stamp()
    for path in [*copy.rglob("*.py")]:
        text = path.read_text()
        path.write_text(text + "# changed\n")

        assert stamp() != before, path
        path.write_text(text)
    assert stamp() == before
