# SPDX-License-Identifier: Apache-2.0
"""A forked process has the keys of its parent: it takes no call of a stream, and saves none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, PrivateCounter
from dpftrl_fast.streams.kept_sum import KeptSum
from dpftrl_fast.streams.tables.kept_table import KeptTable


def in_a_fork(call: Callable[[], Any]) -> str:
    """Return what a call in a fork of this process raises: its type and the begin of its words."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        try:
            words = f"returned {call()!r}"
        except BaseException as error:
            words = f"{type(error).__name__}: {error}"
        os.write(write, words.encode()[:200])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return found


def extended(sums: PrefixSum) -> Any:
    sums.extend(20, accept_epsilon=(9.0, 1e-6))
    return sums.add([1.0])


def saved(stream: KeptSum | KeptTable, folder: Path) -> Any:
    stream.save(folder)
    stream.close()
    again: Any = type(stream).open(folder)
    return again.add([1.0]) if isinstance(again, PrefixSum) else again.release()


CALLS: dict[str, Callable[[PrefixSum, Path], Any]] = {
    "add": lambda sums, _: sums.add([1.0]),
    "add_steps": lambda sums, _: sums.add_steps([[1.0], [2.0]]),
    "add_counts": lambda sums, _: sums.add_counts([1]),
    "a later end": lambda sums, _: extended(sums),
    "a folder": saved,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_sum_takes_no_call(call: str, tmp_path: Path) -> None:
    sums = PrefixSum(1, 10, 1.0, 4.0)
    assert in_a_fork(lambda: CALLS[call](sums, tmp_path / "sum")).startswith(
        "RuntimeError: this process was forked"
    )
    assert not (tmp_path / "sum").exists()
    assert np.isfinite(sums.add([1.0])).all()  # this process continues


def test_a_table_takes_no_call(tmp_path: Path) -> None:
    table = PrivateCounter(["a"], 10, 4.0, start=0, period=1)
    calls: list[Callable[[], Any]] = [table.release, lambda: saved(table, tmp_path / "table")]
    for call in calls:
        assert in_a_fork(call).startswith("RuntimeError: this process was forked")
    assert not (tmp_path / "table").exists()
    assert len(table.release()) == 10


def test_a_seed_for_tests_may_be_used_in_both() -> None:
    sums = PrefixSum(1, 10, 1.0, 4.0, seed=1)
    assert in_a_fork(lambda: extended(sums)) == f"returned {extended(sums)!r}"
