# SPDX-License-Identifier: Apache-2.0
"""Vectors larger than the caches take another way through memory: the numbers are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf

SIZE = (8 << 20) // 4 + 4321  # just past the size from which stores bypass the caches
OFFSET = 777


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_large_vector_equals_its_slices(variant: Any, memory: Any, threads: int) -> None:
    whole = dpf.TreeNoise(
        SIZE, 1.5, seed=3, variant=variant, memory=memory, threads=threads, offset=OFFSET
    )
    starts = [0, 4000, SIZE // 2 + 1, SIZE - 900]
    slices = [
        dpf.TreeNoise(900, 1.5, seed=3, variant=variant, offset=OFFSET + start) for start in starts
    ]
    # Not aligned to a cache line, so that heads and tails of streaming stores are met.
    out = np.empty(SIZE + 3, np.float32)[3:]

    def check(step: str) -> None:
        assert getattr(whole, step)(out) is out
        for start, part in zip(starts, slices, strict=True):
            np.testing.assert_array_equal(out[start : start + 900], getattr(part, step)())

    for _ in range(7):
        check("step")
    for tree in (whole, *slices):
        tree.restart(complete=True)
    for _ in range(4):
        check("residual")


def test_memory_bound_at_ten_million_coordinates() -> None:
    size = 10**7
    out = np.empty(size, np.float32)
    stored = dpf.TreeNoise(size, 1.0, seed=1, memory="stored", variant="honaker")
    regenerate = dpf.TreeNoise(size, 1.0, seed=1, memory="regenerate", variant="vanilla")
    for t in range(1, 9):
        stored.step(out)
        assert stored.allocated_vectors <= t.bit_length() - 1 + 2
        regenerate.step(out)
        assert regenerate.allocated_vectors <= 1
    regenerate.restart()
    regenerate.step(out)
    assert regenerate.allocated_vectors <= 2
    regenerate.residual(out)
    assert regenerate.allocated_vectors <= 3
