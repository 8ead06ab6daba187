# SPDX-License-Identifier: Apache-2.0
"""Least squares that does not fit into memory is refused before it allocates."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.convex.least_squares import memory
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch

PLAN = LeastSquaresPlan(1.0, 1.0, 13.0, acc.SinglePass(8), complete=False)


def test_too_many_columns_are_refused_before_anything_is_allocated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "physical_memory", lambda: 2**36)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"262144 columns must fit .* take DPFTRLRegressor"):
            LeastSquares(PLAN, 2**18)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["stored", "regenerate", 2])
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
@pytest.mark.parametrize("mechanism", ["tree", mech.BandedInverse.square_root(3)])
def test_the_need_is_that_of_a_run(mechanism: Any, solver: Any, kind: Any) -> None:
    p, steps = 800, 7  # a power of two less one: the most nodes are live
    plan = LeastSquaresPlan(
        1.0, 1.0, 13.0, acc.SinglePass(steps), complete=False if mechanism == "tree" else "auto",
        mechanism=mechanism,
    )  # fmt: skip
    needed = memory.bytes_needed(plan, p, memory=kind, itemsize=4, matrix=solver == "cholesky")
    batch = Batch(np.ones((1, p)), np.ones(1))
    LeastSquares(plan, 3, solver=solver, memory=kind).step(Batch(np.ones((1, 3)), np.ones(1)))
    tracemalloc.start()
    try:
        run = LeastSquares(plan, p, solver=solver, memory=kind, seed=0)
        for _ in range(steps):
            run.step(batch)
        assert run.last.shape == (1, p)
        seen = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # NumPy's arrays are seen, the vectors of the noise, which are in C++, are not.
    entries = p * (p + 1) // 2
    arrays = entries * 20 + 8 * p * p * (solver == "cholesky")
    assert arrays < seen < arrays + 8 * p * p
    assert arrays < needed <= arrays + entries * 4 * 5


def test_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = memory.bytes_needed(PLAN, 100, memory="stored", itemsize=4, matrix=True)
    monkeypatch.setattr(memory, "physical_memory", lambda: needed)
    LeastSquares(PLAN, 100)
    LeastSquares(PLAN, 100, memory="regenerate")
    for more in ({}, {"radius": 1.0}, {"dtype": "float64"}):
        with pytest.raises(ValueError, match="101 columns must fit into memory"):
            LeastSquares(PLAN, 101, **more)
    monkeypatch.setattr(memory, "physical_memory", lambda: None)
    LeastSquares(PLAN, 101)


def test_a_system_that_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    assert memory.physical_memory() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.delattr(os, "sysconf")
    assert memory.physical_memory() is None
