# SPDX-License-Identifier: Apache-2.0
"""Several outputs: sums against per-example loops in extended precision."""

from __future__ import annotations

import threading
from itertools import product

import numpy as np
import pytest
import scipy.sparse
import torch
from gradient_oracle import kernel, oracle

from dpftrl_fast.kernels import SparseRows, clipped_sum
from dpftrl_fast.kernels.loops.dense import CHUNK

both = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "csr"])
losses = pytest.mark.parametrize("loss", ["multinomial", "hinge"])


def batch(n, p, outputs, dtype=np.float32, seed=0, zeros=0.3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(dtype)
    X[rng.random((n, p)) < zeros] = 0.0
    return X, rng.integers(outputs, size=n).astype(float), rng.standard_normal((outputs, p))


@both
@losses
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_equal_a_loop_over_examples(loss, dtype, sparse):
    for n, p, outputs in product([1, 4, 5, 9], [1, 7, 8, 33], [2, 3, 10]):
        X, y, theta = batch(n, p, outputs, dtype, seed=100 * n + p)
        for clip_norm in (0.5, 1e3):
            expected = oracle(X, y, theta, clip_norm, loss)
            got = kernel(X, y, theta, clip_norm, loss, sparse=sparse)
            if dtype == np.float32 and not sparse and loss == "multinomial":
                # Outputs have the accuracy of float32, and slopes of the softmax follow them.
                norms = np.linalg.norm(X, axis=1)
                error = 2.0**-22 * np.sum(norms**2) * np.linalg.norm(theta)
                assert np.linalg.norm(got - expected) <= error
            else:
                np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("outputs", [2, 3])
@pytest.mark.parametrize(
    ("entries", "parameters"),
    [(1e30, 1e20), (1e-3, 1e60), (1e38, 1e-39), (1e30, 1e-45), (1.0, 0.0), (3e38, 1e-37)],
)
def test_outputs_beyond_float32_are_those_of_float64(entries, parameters, outputs):
    rng = np.random.default_rng(3)
    X = (entries * rng.uniform(-1, 1, (6, 5))).astype(np.float32)
    X[2, 1] = np.nan
    theta = parameters * rng.standard_normal((outputs, 5))
    y = rng.integers(outputs, size=6).astype(float)
    for loss in ("multinomial", "hinge"):
        got = kernel(X, y, theta, 0.5, loss)
        expected = kernel(X.astype(np.float64), y, theta, 0.5, loss)
        tolerance = 1e-6 if entries == 3e38 else 1e-12
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("p", [511, 512, 513, 1024, 1025, 1543])
def test_wide_rows_are_cut_into_parts_that_cover_every_column(p):
    X, y, theta = batch(6, p, 3, np.float64, seed=p)
    expected = oracle(X, y, theta, 0.5, "multinomial")
    np.testing.assert_allclose(
        kernel(X, y, theta, 0.5, "multinomial"), expected, rtol=1e-10, atol=1e-12
    )


@both
def test_gradients_equal_automatic_differentiation(sparse):
    X, y, theta = batch(50, 12, 4, np.float64)
    parameters = torch.tensor(theta, requires_grad=True)
    outputs = torch.tensor(X) @ parameters.T
    torch.nn.functional.cross_entropy(outputs, torch.tensor(y).long(), reduction="sum").backward()
    got = kernel(X, y, theta, 1e50, "multinomial", sparse=sparse)
    np.testing.assert_allclose(got, parameters.grad.numpy(), rtol=1e-10, atol=1e-12)


@both
@losses
def test_a_row_adds_at_most_the_clip_norm(loss, sparse):
    X, y, theta = batch(200, 6, 3, np.float64, seed=5)
    X *= 10.0 ** np.random.default_rng(6).integers(-200, 150, size=(200, 1))
    X[3], X[4, 1], X[5, 2] = 1e200, np.nan, np.inf
    for i in range(len(X)):
        one = kernel(X[i : i + 1], y[i : i + 1], theta, 1e-3, loss, sparse=sparse)
        assert np.linalg.norm(one) <= 1e-3
    total = kernel(X, y, theta, 1e-3, loss, sparse=sparse)
    assert np.all(np.isfinite(total))


@both
def test_bad_rows_keep_their_slots_and_count_as_zero(sparse):
    X, y, theta = batch(8, 5, 3, np.float64, zeros=0.0)
    good = np.array([0, 5, 7])
    X[1, 2], X[2, 0], X[3, 4] = np.nan, np.inf, -np.inf
    y[4], y[6] = np.nan, 3.0
    got = kernel(X, y, theta, 0.5, "multinomial", sparse=sparse)
    np.testing.assert_allclose(
        got, oracle(X[good], y[good], theta, 0.5, "multinomial"), rtol=1e-12, atol=1e-14
    )
    none = kernel(X[1:5], y[1:5], theta, 0.5, "multinomial", sparse=sparse)
    assert not none.any()


@both
@losses
@pytest.mark.parametrize("users", [False, True], ids=["rows", "users"])
def test_a_row_of_no_class_counts_as_zero_whatever_its_weight(users, loss, sparse):
    X, y, theta = batch(4, 5, 3, np.float64, zeros=0.0)
    y[:] = np.nan, -1.0, 3.0, 0.5
    starts = np.arange(5) if users else None
    weights = np.array([0.5, 2.0, -3.0, 1.0])
    got = kernel(X, y, theta, 0.5, loss, sparse=sparse, starts=starts, weights=weights)
    assert not got.any()
    y[:] = 0.0  # they count with a class
    assert kernel(X, y, theta, 0.5, loss, sparse=sparse, starts=starts, weights=weights).any()


@both
@pytest.mark.parametrize("constant", [0.0, 1.0])
def test_rows_without_columns_have_the_gradient_of_their_constant(constant, sparse):
    y = np.array([0.0, 2.0, 2.0])
    theta = np.zeros((3, int(constant > 0)))
    got = kernel(np.zeros((3, 0)), y, theta, 10.0, "multinomial", sparse=sparse, constant=constant)
    expected = np.array([[0.0], [1.0], [-1.0]])[:, : theta.shape[1]]
    np.testing.assert_allclose(got, expected, atol=1e-15)


@both
@losses
def test_bounds_of_rows_and_a_constant(loss, sparse):
    X, y, _ = batch(30, 6, 3, np.float64, seed=8)
    X[4] = 0.0
    theta = np.random.default_rng(9).standard_normal((3, 7))
    options = {"row_bound": 1.5, "constant": 0.25}
    for clip_norm in (0.3, 1e3):
        expected = oracle(X, y, theta, clip_norm, loss, **options)
        got = kernel(X, y, theta, clip_norm, loss, sparse=sparse, **options)
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


@both
@pytest.mark.parametrize("bound", [None, 1.5])
def test_a_row_whose_square_overflows_counts_as_zero(sparse, bound):
    X, y, _ = batch(5, 6, 3, np.float64, seed=8, zeros=0.0)
    theta = np.zeros((3, 7))
    options = {"constant": 0.25, "row_bound": bound, "sparse": sparse}
    X[2, 3] = 1e155
    got = kernel(X, y, theta, 1e3, "multinomial", **options)
    kept = np.arange(5) != 2
    expected = kernel(X[kept], y[kept], theta, 1e3, "multinomial", **options)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@both
@pytest.mark.parametrize("n", [CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_any_number_of_threads_gives_the_same_bits(n, sparse):
    X, y, theta = batch(n, 4, 3, np.float64)
    one = kernel(X, y, theta, 0.5, "multinomial", sparse=sparse)
    np.testing.assert_allclose(one, oracle(X, y, theta, 0.5, "multinomial"), rtol=1e-9)
    for threads in (2, 3, 7):
        more = kernel(X, y, theta, 0.5, "multinomial", sparse=sparse, threads=threads)
        np.testing.assert_array_equal(more, one)


def test_concurrent_calls_give_the_same_bits():
    X, y, theta = batch(501, 30, 4)
    first = kernel(X, y, theta, 0.5, "multinomial")
    results = []
    workers = [
        threading.Thread(target=lambda: results.append(kernel(X, y, theta, 0.5, "multinomial")))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 4 and all(np.array_equal(result, first) for result in results)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_columns_twice_or_out_of_order_are_one_row(index):
    rng = np.random.default_rng(10)
    lengths = rng.integers(0, 9, 40)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    indices = rng.integers(0, 5, indptr[-1]).astype(index)
    data = rng.standard_normal(indptr[-1])
    merged = np.zeros((40, 5))
    np.add.at(merged, (np.repeat(np.arange(40), lengths), indices), data)
    y, theta = rng.integers(3, size=40).astype(float), rng.standard_normal((3, 5))
    rows = SparseRows(data, indices, indptr, 5)
    got = clipped_sum(rows, y, theta, clip_norm=0.3, loss="multinomial", row_bound=1.0)
    expected = oracle(merged, y, theta, 0.3, "multinomial", row_bound=1.0)
    np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-12)


def test_rows_with_impossible_indices_or_bounds_count_as_zero():
    def call(columns, bounds):
        rows = SparseRows(np.array([1.0, 2.0, 3.0]), np.array(columns), np.array(bounds), 3)
        theta = np.zeros((2, 3))
        return clipped_sum(rows, np.zeros(2), theta, clip_norm=99.0, loss="multinomial")[0].tolist()

    assert call([0, 1, 2], [0, 2, 3]) == [-0.5, -1.0, -1.5]
    for wrong in (-1, 3, 2**40):
        assert call([0, wrong, 2], [0, 2, 3]) == [0.0, 0.0, -1.5]
    for bounds in ([0, 2, 4], [0, 2, 1]):
        assert call([0, 1, 2], bounds) == [-0.5, -1.0, 0.0]


def test_inputs_are_not_written_and_may_be_read_only():
    X, y, theta = batch(9, 4, 3)
    arrays = (X, y, theta)
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    clipped_sum(*arrays, clip_norm=0.5, loss="multinomial")
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


GOOD = {
    "rows": np.ones((3, 2)),
    "y": np.zeros(3),
    "theta": np.zeros((2, 2)),
    "clip_norm": 1.0,
    "loss": "multinomial",
    "out": np.full((2, 2), 9.0),
}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"rows": [[1.0]]}, TypeError, "rows must be .* got list"),
        ({"y": np.zeros(4)}, ValueError, "y must have 3 entries .* got 4"),
        ({"y": np.zeros(3, dtype=int)}, TypeError, "y must be .* got dtype int64"),
        ({"theta": np.zeros((1, 2, 2))}, ValueError, r"theta must be .* got shape \(1, 2, 2\)"),
        ({"theta": np.zeros((1, 2))}, ValueError, "loss must be one of .* got 'multinomial'"),
        ({"theta": np.zeros((2, 3))}, ValueError, r"theta must have .* \(K, 2\).* got \(2, 3\)"),
        ({"constant": 1.0}, ValueError, r"\(K, 3\), .* with that of the constant, got \(2, 2\)"),
        ({"constant": -1.0}, ValueError, "constant must be 0 or a number .* got -1.0"),
        ({"constant": np.nan}, ValueError, "constant must be .* got nan"),
        ({"row_bound": 0.0}, ValueError, "row_bound must be a finite number .* got 0.0"),
        ({"row_bound": np.nan}, ValueError, "row_bound must be .* got nan"),
        ({"threads": 0}, ValueError, "threads must be an integer >= 1, got 0"),
        ({"threads": 1.0}, TypeError, "threads must be an integer >= 1, got float"),
        ({"clip_norm": np.nan}, ValueError, "clip_norm must be .* got nan"),
        (
            {"loss": "squared"},
            ValueError,
            "loss must be one of 'multinomial', .* got 'squared'",
        ),
        (
            {"out": np.zeros((2, 3))},
            ValueError,
            r"out must have shape \(2, 2\) .* got \(2, 3\)",
        ),
        ({"out": np.zeros(4)}, ValueError, r"out must be .* 2-d .* got shape \(4,\)"),
    ],
)
def test_a_wrong_call_is_refused_and_changes_nothing(change, error, message):
    arguments = {**GOOD, **change}
    before = arguments["out"].copy()
    with pytest.raises(error, match=message):
        clipped_sum(**arguments)
    np.testing.assert_array_equal(arguments["out"], before)
    if "rows" not in change:
        arguments["rows"] = SparseRows.of(scipy.sparse.csr_array(GOOD["rows"]))
        with pytest.raises(error, match=message):
            clipped_sum(**arguments)


def test_out_may_not_overlap_an_input():
    memory = np.zeros((4, 2))
    arguments = {"clip_norm": 1.0, "loss": "hinge", "out": memory[1:3]}
    with pytest.raises(ValueError, match="out must not overlap theta"):
        clipped_sum(np.ones((1, 2)), np.zeros(1), memory[:2], **arguments)
