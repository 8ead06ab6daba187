# SPDX-License-Identifier: Apache-2.0
"""Values against per-example loops in extended precision and against automatic differentiation."""

from __future__ import annotations

import threading
from itertools import product

import numba
import numpy as np
import pytest
import scipy.sparse
import torch

from dpftrl_fast.kernels import SparseRows, clipped_sum, gradients, jit, predict
from dpftrl_fast.kernels.loops import dense as dense_loops
from dpftrl_fast.kernels.loops.dense import CHUNK

LOSSES = ["squared", "logistic", "huber", "hinge"]
MARGIN = 1 - 2.0**-20


def slope_of(loss, z, y, k):
    """l'(z, y) written from the definitions, in extended precision."""
    s = np.longdouble(1 if y > 0 else -1)
    if loss == "squared":
        return z - y
    if loss == "huber":
        return z - y if abs(z - y) <= k else k * np.sign(z - y)
    if loss == "logistic":
        return -s / (1 + np.exp(s * z))
    return -s if 1 - s * z > 0 else np.longdouble(0)


def oracle(X, y, theta, clip_norm, loss, k=1.0):
    """Sum of clipped gradients, one example at a time."""
    total = np.zeros(X.shape[1], dtype=np.longdouble)
    for x, target in zip(X.astype(np.longdouble), y.astype(np.longdouble), strict=True):
        gradient = slope_of(loss, x @ theta, target, k) * x
        norm = np.sqrt(gradient @ gradient)
        limit = clip_norm * MARGIN
        total += gradient if norm <= limit else gradient * (limit / norm)
    return total.astype(np.float64)


def dense(X, y, theta, clip_norm, loss, **options):
    out = np.full(X.shape[1], np.nan)
    return clipped_sum(X, y, theta, clip_norm=clip_norm, loss=loss, out=out, **options)


def csr(X, y, theta, clip_norm, loss, **options):
    rows = SparseRows.of(scipy.sparse.csr_array(X))
    return dense(rows, y, theta, clip_norm, loss, **options)


def batch(n, p, dtype, seed=0, zeros=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)).astype(dtype)
    X[rng.random((n, p)) < zeros] = 0.0
    y = rng.standard_normal(n)
    return X, y, rng.standard_normal(p) / np.sqrt(p)


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sum_equals_a_loop_over_examples(form, loss, dtype):
    for n, p in product([1, 3, 9], [1, 2, 7, 8, 9, 16, 17, 33, 129]):
        X, y, theta = batch(n, p, dtype, seed=n * 1000 + p, zeros=0.3)
        for clip_norm in (0.5, 1e3):
            expected = oracle(X, y, theta, clip_norm, loss)
            got = form(X, y, theta, clip_norm, loss)
            np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_sum_over_several_chunks(form, n):
    X, y, theta = batch(n, 5, np.float32)
    expected = oracle(X, y, theta, 0.5, "squared")
    np.testing.assert_allclose(form(X, y, theta, 0.5, "squared"), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_equal_automatic_differentiation(loss):
    X, y, theta = batch(50, 12, np.float64, seed=4)
    k = 0.7
    if loss in ("logistic", "hinge"):
        y = (y > 0).astype(np.float64)
    parameters = torch.tensor(theta, requires_grad=True)
    z, target = torch.tensor(X) @ parameters, torch.tensor(y)
    value = {
        "squared": lambda: torch.nn.functional.mse_loss(z, target, reduction="sum") / 2,
        "huber": lambda: torch.nn.functional.huber_loss(z, target, reduction="sum", delta=k),
        "logistic": lambda: torch.nn.functional.binary_cross_entropy_with_logits(
            z, target, reduction="sum"
        ),
        "hinge": lambda: torch.clamp(1 - (2 * target - 1) * z, min=0).sum(),
    }[loss]()
    value.backward()
    got = dense(X, y, theta, 1e50, loss, loss_param=k)
    np.testing.assert_allclose(got, parameters.grad.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("form", [dense, csr])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_labels_zero_one_and_minus_one_one_mean_the_same(form, loss):
    X, y, theta = batch(20, 4, np.float32, seed=6)
    y01 = (y > 0).astype(np.float32)
    got = form(X, y01, theta, 0.5, loss)
    np.testing.assert_array_equal(got, form(X, 2 * y01 - 1, theta, 0.5, loss))
    assert np.any(got != 0)


def test_logistic_far_from_the_boundary():
    X = np.array([[1.0]])
    for z, y, expected in [(800.0, 0.0, 1.0), (800.0, 1.0, 0.0), (-800.0, 1.0, -1.0)]:
        assert dense(X, np.array([y]), np.array([z]), 10.0, "logistic")[0] == expected
    got = dense(X, np.array([1.0]), np.array([40.0]), 10.0, "logistic")[0]
    assert got == pytest.approx(-np.exp(-40.0), rel=1e-12)  # no cancellation in sigmoid(z) - 1


@pytest.mark.parametrize(
    ("form", "dtype"), [(dense, np.float32), (csr, np.float32), (dense, np.float64)]
)
def test_targets_in_float32(form, dtype):
    X, y, theta = batch(9, 4, dtype)
    y = y.astype(np.float32)
    expected = oracle(X, y, theta, 0.5, "squared")
    np.testing.assert_allclose(form(X, y, theta, 0.5, "squared"), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions(dtype):
    X, _, theta = batch(11, 33, dtype, zeros=0.5)
    expected = (X.astype(np.longdouble) @ theta).astype(np.float64)
    np.testing.assert_allclose(predict(X, theta, np.empty(11)), expected, rtol=1e-12, atol=1e-14)
    got = predict(SparseRows.of(scipy.sparse.csr_array(X)), theta)
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
    assert predict(X[:0], theta, np.empty(0)).shape == (0,)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_csr_columns_twice_or_out_of_order_are_merged_before_clipping(index):
    rng = np.random.default_rng(9)
    p, n = 6, 40
    lengths = rng.integers(0, 12, n)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(index)
    indices = rng.integers(0, p, indptr[-1]).astype(index)
    data = rng.standard_normal(indptr[-1])
    merged = np.zeros((n, p))
    np.add.at(merged, (np.repeat(np.arange(n), lengths), indices), data)
    y, theta = rng.standard_normal(n), rng.standard_normal(p)
    rows = SparseRows(data, indices, indptr, p)
    for clip_norm in (0.2, 1e3):
        expected = oracle(merged, y, theta, clip_norm, "squared")
        got = dense(rows, y, theta, clip_norm, "squared")
        np.testing.assert_allclose(got, expected, rtol=1e-11, atol=1e-11)


def test_csr_duplicates_cannot_exceed_the_clip_norm():
    def call(data, indices):
        indptr = np.array([0, len(data)], dtype=np.int32)
        rows = SparseRows(np.array(data), np.array(indices, dtype=np.int32), indptr, 2)
        return dense(rows, np.array([-5.0]), np.zeros(2), 1.0, "squared")

    out = call([1.0] * 100, [0] * 100)
    assert 0.999 < out[0] <= 1.0 and out[1] == 0.0
    # Large entries that cancel, all but one.
    out = call([1e300, -1e300, 3.0], [1, 1, 1])
    assert out[0] == 0.0 and 0.999 < out[1] <= 1.0


def test_csr_rows_with_impossible_indices_or_bounds_count_as_zero():
    data = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    y, theta = np.array([1.0, 1.0, 1.0]), np.zeros(3)

    def call(indices, indptr):
        rows = SparseRows(data, np.array(indices), np.array(indptr), 3)
        out = dense(rows, y, theta, 1e3, "squared")
        return out.tolist(), np.isnan(predict(rows, theta)).tolist()

    good, bad = call([0, 1, 2, 0, 1], [0, 2, 3, 5])
    assert good == [-5.0, -7.0, -3.0] and bad == [False] * 3
    for wrong in (-1, 3, 2**40, -(2**40)):
        assert call([0, wrong, 2, 0, 1], [0, 2, 3, 5]) == ([-4.0, -5.0, -3.0], [True, False, False])
        assert call([wrong, 0, 2, 0, 1], [0, 2, 3, 5]) == ([-4.0, -5.0, -3.0], [True, False, False])
    assert call([0, 1, 2, 0, 1], [0, 2, 3, 6]) == ([-1.0, -2.0, -3.0], [False, False, True])
    assert call([0, 1, 2, 0, 1], [-1, 2, 3, 5]) == ([-4.0, -5.0, -3.0], [True, False, False])
    assert call([0, 1, 2, 0, 1], [0, 2, 1, 5])[1] == [False, True, False]


def test_the_same_bits_every_time_and_from_every_thread():
    X, y, theta = batch(501, 130, np.float32)
    X[::7, 3] = np.nan
    first = dense(X, y, theta, 0.5, "squared")
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(dense(X, y, theta, 0.5, "squared")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        np.testing.assert_array_equal(result, first)


def test_read_only_inputs_need_no_second_compilation():
    X, y, theta = batch(6, 3, np.float32)
    expected = dense(X, y, theta, 0.5, "squared")
    for array in (X, y, theta):
        array.flags.writeable = False
    kernel = gradients.sum_loop("row", X.dtype.char, "", y.dtype.char)
    np.testing.assert_array_equal(dense(X, y, theta, 0.5, "squared"), expected)
    assert len(kernel.signatures) == 1


def test_inputs_are_not_written():
    X, y, theta = batch(6, 3, np.float64)
    copies = [a.copy() for a in (X, y, theta)]
    dense(X, y, theta, 0.5, "squared")
    for array, copy in zip((X, y, theta), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_cached_loop_is_used_only_while_all_sources_are_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    types = (jit.read_only("f", 2), jit.read_only("d", 1), jit.writable("d", 1))

    def cache_hits():
        loop = jit.compiled(dense_loops.predictions, *types)
        assert len(loop.signatures) == 1
        return sum(loop.stats.cache_hits.values())

    assert [cache_hits(), cache_hits()] == [0, 1]
    monkeypatch.setattr(jit, "source_stamp", lambda: "a helper in another file has changed")
    assert [cache_hits(), cache_hits()] == [0, 1]


def test_a_loop_compiles_without_a_folder_for_the_cache():
    namespace = {}
    exec(
        "def double(x, out):\n    out[0] = 2 * x[0]\n", namespace
    )  # no file: Numba cannot cache it
    double = jit.compiled(namespace["double"], jit.read_only("d", 1), jit.writable("d", 1))
    out = np.empty(1)
    double(np.array([21.0]), out)
    assert out[0] == 42.0


GOOD = {
    "rows": np.ones((3, 2), dtype=np.float32),
    "y": np.zeros(3),
    "theta": np.zeros(2),
    "clip_norm": 1.0,
    "loss": "squared",
    "out": np.full(2, 9.0),
    "loss_param": 1.0,
}


def read_only_out():
    out = np.full(2, 9.0)
    out.flags.writeable = False
    return out


SHARED = np.zeros(8)

BAD_CALLS = [
    ({"rows": [[1.0, 2.0]]}, TypeError, "rows must be a C-contiguous 2-d array .* got list"),
    ({"rows": np.ones((3, 2), dtype=np.int64)}, TypeError, "float32 or float64, got dtype int64"),
    ({"rows": np.ones((3, 2), dtype=np.float16)}, TypeError, "got dtype float16"),
    ({"rows": np.ones((3, 2), dtype=">f8")}, TypeError, "got dtype >f8"),
    ({"rows": np.ones(3)}, ValueError, r"2-d array .* got shape \(3,\)"),
    ({"rows": np.ones((2, 3)).T}, ValueError, "C-contiguous .* got strides"),
    ({"rows": np.ones((3, 4))[:, ::2]}, ValueError, "got strides"),
    ({"rows": np.broadcast_to(np.ones(2), (3, 2))}, ValueError, "got strides"),
    ({"rows": np.ones((3, 5))}, ValueError, r"theta must have shape \(5,\) .* got \(2,\)"),
    ({"y": np.zeros(4)}, ValueError, r"y must have 3 entries \(the number of rows\), got 4"),
    ({"y": np.zeros(3, dtype=int)}, TypeError, "y must be .* got dtype int64"),
    ({"theta": np.zeros(2, dtype=np.float32)}, TypeError, "theta must be .* float64, got dtype"),
    ({"out": np.zeros(3)}, ValueError, r"out must have shape \(2,\) .* got \(3,\)"),
    (
        {"out": np.zeros(2, dtype=np.float32)},
        TypeError,
        "out must be .* float64, got dtype float32",
    ),
    ({"out": np.zeros(4)[::2]}, ValueError, "out must be .* got strides"),
    ({"out": read_only_out()}, ValueError, "out must be writable, got a read-only array"),
    ({"out": [0.0, 0.0]}, TypeError, "got list"),
    ({"theta": SHARED[:2], "out": SHARED[1:3]}, ValueError, "out must not overlap theta"),
    ({"clip_norm": np.nan}, ValueError, "clip_norm must be a finite number .* got nan"),
    ({"clip_norm": 0.0}, ValueError, "clip_norm must be .* got 0.0"),
    ({"clip_norm": -1.0}, ValueError, "got -1.0"),
    ({"clip_norm": np.inf}, ValueError, "got inf"),
    ({"clip_norm": 1e-320}, ValueError, "clip_norm must be"),
    ({"clip_norm": "1"}, TypeError, "clip_norm must be a finite number .* got str"),
    ({"clip_norm": True}, TypeError, "clip_norm must be a finite number .* got bool"),
    ({"loss": "log"}, ValueError, "loss must be one of 'squared', .*, 'linear', got 'log'"),
    ({"loss": 0}, ValueError, "got 0"),
    ({"loss_param": 0.0}, ValueError, "loss_param must be a finite number > 0, got 0.0"),
    ({"loss_param": np.nan}, ValueError, "got nan"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_CALLS)
def test_a_wrong_call_is_refused_and_changes_nothing(change, error, message):
    arguments = {**GOOD, **change}
    out = arguments["out"]
    before = None if out is None else out.copy()
    with pytest.raises(error, match=message):
        clipped_sum(**arguments)
    if before is not None:
        np.testing.assert_array_equal(out, before)


def test_out_may_not_overlap_the_rows():
    memory = np.zeros(16)
    X = memory[:12].reshape(6, 2)
    numbers = {"clip_norm": 1.0, "loss": "squared"}
    with pytest.raises(ValueError, match="out must not overlap rows"):
        clipped_sum(X, np.zeros(6), np.zeros(2), out=memory[11:13], **numbers)
    with pytest.raises(ValueError, match="out must not overlap y"):
        clipped_sum(X.copy(), memory[:6], np.zeros(2), out=memory[5:7], **numbers)
    users = np.zeros(4, dtype=np.int64)
    with pytest.raises(ValueError, match="out must not overlap users"):
        shared = users.view(np.float64)[:2]
        clipped_sum(X, np.zeros(6), np.zeros(2), users=users, out=shared, **numbers)
    with pytest.raises(ValueError, match="out must not overlap theta"):
        predict(np.ones((2, 2)), memory[:2], memory[:2])


def test_unaligned_rows_are_refused():
    X = np.zeros(8 * 6 + 1, dtype=np.uint8)[1:].view(np.float64).reshape(3, 2)
    with pytest.raises(ValueError, match=r"rows must be .* got unaligned memory"):
        dense(X, np.zeros(3), np.zeros(2), 1.0, "squared")


INDICES, INDPTR = np.array([0, 1, 0], dtype=np.int32), np.array([0, 2, 3], dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"indices": INDICES.astype(np.uint32)}, TypeError, "int32 or int64, got dtype uint32"),
        (
            {"indptr": INDPTR.astype(np.int64)},
            TypeError,
            "indptr must be .* int32, got dtype int64",
        ),
        ({"indices": INDICES[:2]}, ValueError, r"indices must have 3 entries .* got 2"),
        ({"indptr": INDPTR[:2]}, ValueError, "y must have 1 entries .* got 2"),
        ({"indptr": INDPTR[:0]}, ValueError, "indptr must have at least 1 entry, got 0"),
        ({"data": np.ones(3, dtype=int)}, TypeError, "data must be .* got dtype int64"),
        (
            {"theta": np.zeros(3)},
            ValueError,
            r"theta must have shape \(2,\) or \(K, 2\).* got \(3,\)",
        ),
    ],
)
def test_a_wrong_csr_call_is_refused(change, error, message):
    arguments = {"data": np.ones(3), "indices": INDICES, "indptr": INDPTR, "theta": np.zeros(2)}
    arguments |= change
    theta, out = arguments.pop("theta"), np.full(2, 9.0)
    rows = SparseRows(**arguments, n_features=2)
    with pytest.raises(error, match=message):
        clipped_sum(rows, np.zeros(2), theta, clip_norm=1.0, loss="squared", out=out)
    np.testing.assert_array_equal(out, [9.0, 9.0])
