# SPDX-License-Identifier: Apache-2.0
"""What the compiler may do to the loops, read off from the code that it makes of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numba
import pytest
from numba import types

from dpftrl_fast.kernels import _jit, ftrl_update
from dpftrl_fast.kernels._jit import exact_helper, helper, read_only, writable
from dpftrl_fast.kernels.loops import triangle as triangle_loops


def flags_of(function, *argument_types):
    """The fast-math flags of all additions, products and quotients of a loop."""
    loop = numba.njit(**_jit._OPTIONS)(function)
    loop.compile(types.void(*argument_types))
    (code,) = loop.inspect_llvm().values()
    found = re.findall(r"= f(?:add|sub|mul|div) ((?:[a-z]+ )*)(?:double|<)", code)
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

        assert {frozenset(flags) for flags in flags_of(calling(inner), *arrays)} == {expected}


def test_the_rounding_errors_of_sums_are_not_reordered():
    arrays = read_only("d", 1), writable("d", 1), writable("d", 1)
    flags = flags_of(triangle_loops.add_packed, *arrays)
    # Of the seven operations an entry, only the one that adds the error to the others is free.
    assert flags.count(frozenset()) >= 6 * flags.count(frozenset({"reassoc", "contract"}))


@pytest.mark.parametrize("noise", ["f", "d"])
def test_no_operation_of_the_ftrl_update_is_reordered(noise):
    flags = flags_of(
        ftrl_update.update,
        *(read_only("d", 2), read_only("d", 1), read_only("d", 1), read_only(noise, 1)),
        *(read_only("d", 1), *[types.float64] * 5, types.boolean),
        *(writable("d", 2), writable("d", 1)),
    )
    assert all(not each for each in flags)


def test_the_stamp_of_the_cache_covers_every_source(tmp_path, monkeypatch):
    folder = Path(_jit.__file__).parent
    copy = tmp_path / "kernels"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_jit, "__file__", str(copy / "_jit.py"))
    stamp = _jit.source_stamp.__wrapped__
    before = stamp()
    for path in [*copy.rglob("*.py")]:
        text = path.read_text()
        path.write_text(text + "# changed\n")

        assert stamp() != before, path
        path.write_text(text)
    assert stamp() == before
