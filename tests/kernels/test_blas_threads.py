# SPDX-License-Identifier: Apache-2.0
"""Least squares gives the same bits for any number of threads, BLAS's and ours."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import dpftrl_fast.kernels.blas_threads as kernels_blas
from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.kernels.blas_threads import one_blas_thread

threadpoolctl = pytest.importorskip("threadpoolctl")

P = 260  # from about 200 columns on, OpenBLAS gives a product to several threads


def blas_threads() -> set[int]:
    return {
        library["num_threads"]
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    }


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "cholesky"},
        {"solver": "cg"},
        {"ridge_factor": 0.05},  # not positive definite: projected
        {"radius": 0.2},
        {"radius": 0.2, "ridge_factor": 0.05},
    ],
    ids=str,
)
def test_models_are_the_same_to_the_bit(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, P)) / np.sqrt(P)
    y = rng.standard_normal(600)
    plan = LeastSquaresPlan(1.0, 1.0, 0.5, acc.SinglePass(2))
    found = []
    for blas, own in [(1, 1), (2, 1), (2, 2), (3, 1)]:
        model = LeastSquares(plan, P, seed=1, threads=own, solve_every=1, **options)
        with threadpoolctl.threadpool_limits(blas, user_api="blas"):
            for part in (slice(0, 300), slice(300, 600)):
                model.step(Batch(X[part], y[part]))
        found.append([model.last, model.average, *model.released()])
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert a.tobytes() == b.tobytes()


def test_blas_is_held_in_any_thread_and_then_as_before() -> None:
    seen = []

    def hold(times: int) -> None:
        for _ in range(times):
            with one_blas_thread(), one_blas_thread():
                seen.append(blas_threads())

    before = blas_threads()
    others = [threading.Thread(target=hold, args=(20,)) for _ in range(3)]
    for thread in others:
        thread.start()
    hold(20)
    for thread in others:
        thread.join()
    assert seen == [{1}] * 80
    with pytest.raises(KeyError), one_blas_thread():
        raise KeyError
    assert blas_threads() == before


def test_without_threadpoolctl_nothing_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_blas, "_controller", lambda: None)
    with threadpoolctl.threadpool_limits(2, user_api="blas"), one_blas_thread():
        assert blas_threads() == {2}
