# SPDX-License-Identifier: Apache-2.0
"""Fits from Dask collections: the models of the same rows in memory, summed by two processes.

Starting the cluster takes most of the time of this file.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal

import dask
import dask.array as da
import dask.dataframe as dd
import distributed
import distributed.utils_test
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, learned, make, rows

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model.sources import dask as _dask

each_estimator = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
PARAMETERS = ("coef_", "intercept_", "coef_average_", "coef_tail_")


@contextlib.contextmanager
def imported(*modules):
    """Have forks of multiprocessing begin with these modules; Dask's own list is longer."""
    distributed.utils.get_mp_context()  # sets its list once
    multiprocessing.set_forkserver_preload([*modules])
    yield


@pytest.fixture(scope="module")
def client():
    """Two processes with a thread each; tests without it use Dask's threads.

    They are forks of one process that has imported all, and so is one that replaces a dead one.
    """
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    patience = {
        f"distributed.comm.timeouts.{name}": "300s" for name in ("connect", "tcp")
    }  # of a busy machine
    method = {"distributed.worker.multiprocessing-method": "forkserver"}
    with (
        dask.config.set({**patience, **method}),
        imported("distributed", "dask.array", "dask.dataframe", _dask.__name__),
        distributed.LocalCluster(host="127.0.0.1", **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as given,
    ):
        yield given


@pytest.fixture
def on_cluster(client):
    with client.as_current():
        yield client


def extra(cls):
    """Labels, which a fit from Dask needs declared."""
    return {"classes": [0, 1]} if cls is DPFTRLClassifier else {}


def arrays(X, y, chunks=13):
    return da.from_array(X, chunks=(chunks, 2)), da.from_array(y, chunks=(chunks + 4,))


def frame(X, y, partitions=3):
    names = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    return dd.from_pandas(pd.DataFrame({**names, "y": y}), npartitions=partitions)


def assert_same(one, other):
    for name in PARAMETERS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.epsilon_ == other.epsilon_ and one.n_steps_ == other.n_steps_


# ---- On the cluster ----


@each_estimator
@pytest.mark.parametrize("chunks", [19, 75])
def test_workers_make_the_model_of_the_rows_in_memory(cls, chunks, on_cluster):
    X, y = rows(cls, n=75)
    parameters = {"noise_seed": 1, **extra(cls)}
    one = make(cls, **parameters).fit(X, y)
    assert_same(one, make(cls, **parameters).fit(*arrays(X, y, chunks)))


def test_sums_do_not_depend_on_the_threads_of_blas(on_cluster):
    # Workers have one; here there may be more, and from 100 columns on they show in the bits.
    X, y = rows(DPFTRLLeastSquares, n=500, p=150)
    parameters = {"batch_size": 125, "noise_seed": 1}
    one = make(DPFTRLLeastSquares, **parameters).fit(X, y)
    x, targets = da.from_array(X, chunks=(200, 150)), da.from_array(y, chunks=200)
    assert_same(one, make(DPFTRLLeastSquares, **parameters).fit(x, targets))


def test_a_dataframe_on_the_cluster(on_cluster):
    X, y = rows(DPFTRLRegressor)
    one = make(DPFTRLRegressor, noise_seed=1, epochs=2).fit(X, y)
    other = make(DPFTRLRegressor, noise_seed=1, epochs=2).fit(frame(X, y), "y")
    assert_same(one, other)
    assert other.feature_names_in_.tolist() == ["x0", "x1", "x2"]


def test_rows_that_are_on_the_cluster_already(on_cluster):
    X, y = rows(DPFTRLRegressor)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    x, targets = (array.persist() for array in arrays(X, y, 20))
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(x, targets))
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(frame(X, y).persist(), "y"))


def test_what_goes_to_the_workers_has_no_secret_and_rows_stay_there(on_cluster, monkeypatch):
    X, y = rows(DPFTRLRegressor)
    sent, came = [], []
    later, compute = _dask._delayed, _dask._compute

    def watched(function, **options):
        def call(*arguments):
            sent.append((function.__name__, arguments))
            return later(function, **options)(*arguments)

        return call

    def gathered(*tasks, **options):
        came.extend(result := compute(*tasks, **options))
        return result

    monkeypatch.setattr(_dask, "_delayed", watched)
    monkeypatch.setattr(_dask, "_compute", gathered)
    here = os.getpid()

    def made_elsewhere(block):
        if os.getpid() == here:
            raise AssertionError("rows were made in the calling process")
        return block

    x, targets = arrays(X, y)
    x = x.map_blocks(made_elsewhere, dtype=float, meta=X[:0])
    make(DPFTRLRegressor).fit(x, targets)
    assert {name for name, _ in sent} == {"_cut", "_sums"}
    for name, arguments in sent:
        if name == "_sums":
            text = pickle.dumps(arguments[0])
            assert b"Objective" in text
            assert not any(word in text for word in (b"GLMRun", b"Noise", b"key", b"plan"))
    assert [array.shape for array in came] == [(1, 4)] * 6


@pytest.mark.parametrize("made", [GLMRun, LeastSquares], ids=["one tree", "two trees"])
def test_a_failure_on_the_way_leaves_the_estimator_as_it_was(made, on_cluster, monkeypatch):
    cls = DPFTRLRegressor if made is GLMRun else DPFTRLLeastSquares
    X, y = rows(cls)
    model = make(cls).fit(X, y)
    before = dict(vars(model))
    taken = []

    def broken(block):
        if block.shape[0] == 8:
            raise OSError("disk on fire")
        return block

    x = da.from_array(X, chunks=((26, 26, 8), 3)).map_blocks(broken, dtype=float, meta=X[:0])
    advance = made.advance
    monkeypatch.setattr(made, "advance", lambda *a: taken.append(1) or advance(*a))
    log = distributed.utils_test.captured_logger("distributed.worker")
    with log, pytest.raises(OSError, match="disk on fire"):
        model.fit(x, da.from_array(y, chunks=20))
    assert vars(model) == before


def test_a_worker_that_dies_changes_nothing(on_cluster, monkeypatch):
    X, y = rows(DPFTRLRegressor, n=120)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    advance, killed = GLMRun.advance, []

    def watched(self, *arguments):
        advance(self, *arguments)
        if self.steps_taken == 3:
            killed.append(min(on_cluster.run(os.getpid).values()))
            os.kill(killed[0], signal.SIGKILL)

    monkeypatch.setattr(GLMRun, "advance", watched)
    logs = ("distributed.scheduler", "distributed.nanny", "distributed.worker", "distributed.core")
    with contextlib.ExitStack() as stack:
        for name in logs:
            stack.enter_context(distributed.utils_test.captured_logger(name))
        other = make(DPFTRLRegressor, noise_seed=1).fit(*arrays(X, y))
        on_cluster.wait_for_workers(2)
    assert len(killed) == 1
    assert_same(one, other)


# ---- In this process: the same code on Dask's threads ----


@each_estimator
@pytest.mark.parametrize("batch_size", [9, 31, 60])
@pytest.mark.parametrize("chunks", [7, 18, 60])
def test_chunks_are_cut_where_batches_end(cls, batch_size, chunks):
    X, y = rows(cls)
    parameters = {"batch_size": batch_size, "noise_seed": 1, **extra(cls)}
    one = make(cls, **parameters).fit(X, y)
    assert_same(one, make(cls, **parameters).fit(*arrays(X, y, chunks)))


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])
def test_epochs(cls):
    X, y = rows(cls)
    parameters = {"epochs": 3, "momentum": 0.5, "noise_seed": 1, **extra(cls)}
    one = make(cls, **parameters).fit(X, y)
    for chunks in (60, 17):
        assert_same(one, make(cls, **parameters).fit(*arrays(X, y, chunks)))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "?", "f2"])
def test_dtypes_of_arrays(dtype):
    X, y = rows(DPFTRLRegressor)
    X = (10 * X).astype(dtype)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y.astype("f4"))
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(*arrays(X, y.astype("f4"))))


def test_chunks_of_unknown_size():
    X, y = rows(DPFTRLRegressor)
    keep = np.arange(60) % 7 != 3
    one = make(DPFTRLRegressor, noise_seed=1).fit(X[keep], y[keep])
    x, targets = arrays(X, y)
    mask = da.from_array(keep, chunks=13)
    x, targets = x[mask], targets.rechunk(13)[mask]
    assert np.isnan(x.shape[0])
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(x, targets))
    assert np.isnan(x.shape[0])  # the caller's arrays are left as they are


def test_chunks_without_rows():
    X, y = rows(DPFTRLRegressor)
    x, targets = da.from_array(X, chunks=((0, 30, 0, 30), 3)), da.from_array(y, chunks=25)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(x, targets))


@pytest.mark.parametrize("form", ["name", "series", "array"])
@pytest.mark.parametrize("types", ["numpy", "nullable", "mixed"])
def test_dataframes(form, types):
    X, y = rows(DPFTRLRegressor)
    X[:, 1] = X[:, 1] > 0
    given = frame(X, y)
    if types == "nullable":
        given = given.astype("Float64")
    if types == "mixed":
        given = given.astype({"x0": "f4", "x1": "bool"})
        X[:, 0] = X[:, 0].astype("f4")
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    model = make(DPFTRLRegressor, noise_seed=1)
    if form == "name":
        model.fit(given, "y")
    else:
        targets = given["y"] if form == "series" else da.from_array(y, chunks=11)
        model.fit(given[["x0", "x1", "x2"]], targets)
    assert_same(one, model)
    assert model.feature_names_in_.tolist() == ["x0", "x1", "x2"]


@pytest.mark.parametrize("kind", ["string", "category", "Int64", "object"])
def test_labels_of_a_dataframe(kind):
    X, y = rows(DPFTRLClassifier)
    words = [3, 5] if kind == "Int64" else ["no", "yes"]
    given = pd.DataFrame(X, columns=["a", "b", "c"])
    given["y"] = pd.Series([words[i] for i in y]).astype(kind)
    given.loc[4, "y"] = None
    zero = X.copy()
    zero[4] = 0.0
    parameters = {"noise_seed": 1, "classes": words, "fit_intercept": False}
    one = make(DPFTRLClassifier, **parameters).fit(zero, np.array(words)[y])
    other = make(DPFTRLClassifier, **parameters).fit(dd.from_pandas(given, npartitions=3), "y")
    assert_same(one, other)


@each_estimator
@pytest.mark.parametrize("place", ["X", "y"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_keeps_its_slot_and_counts_as_zero(cls, place, bad):
    X, y = rows(cls)
    zero, x, targets = X.copy(), X.copy(), y.astype(float)
    zero[17] = 0.0
    if place == "X":
        x[17, 1] = bad
    else:
        targets[17] = bad
    parameters = {"noise_seed": 1, "fit_intercept": False, **extra(cls)}
    one = make(cls, **parameters).fit(zero, y)
    assert_same(one, make(cls, **parameters).fit(*arrays(x, targets)))


@pytest.mark.parametrize("part", ["X", "y", "both"])
@pytest.mark.parametrize("change", ["fewer", "more"])
def test_a_chunk_with_other_rows_than_declared_is_refused(part, change):
    """Otherwise later rows of the chunk would be in other batches, in full fits too."""
    X, y = rows(DPFTRLRegressor)

    def given(values, changed):
        if changed:
            kept = np.delete(values, 2, 0) if change == "fewer" else np.repeat(values, 2, 0)[:61]
        else:
            kept = values
        return da.from_delayed(dask.delayed(kept), shape=values.shape, dtype=float, meta=values[:0])

    model = make(DPFTRLRegressor)
    with pytest.raises(RuntimeError, match="a chunk must have the 60 rows that its collection"):
        model.fit(given(X, part != "y"), given(y, part != "X"))
    assert learned(model) == set()


def test_predictions_of_an_array():
    X, y = rows(DPFTRLRegressor)
    model = make(DPFTRLRegressor).fit(*arrays(X, y))
    blocks = da.from_array(X, chunks=(13, 3)).map_blocks(model.predict, drop_axis=1, dtype=float)
    np.testing.assert_array_equal(blocks.compute(), model.predict(X))


# ---- What is refused, before the first step ----

X3, Y3 = rows(DPFTRLRegressor)
DX, DY = arrays(X3, Y3)


@pytest.mark.parametrize(
    ("X", "y", "error", "message"),
    [
        (DX, Y3, TypeError, "y must be a Dask collection, got ndarray"),
        (DX, None, TypeError, "y must be a Dask collection, got"),
        (DX, "y", TypeError, "y must be a Dask collection, got"),
        (frame(X3, Y3), "z", ValueError, r"a column 'z', got \['x0', 'x1', 'x2', 'y'\]"),
        (DX, DY[:50], ValueError, r"got \(60, 3\) and \(50,\)"),
        (DY, DY, ValueError, r"got \(60,\) and \(60,\)"),
        (DX, DX, ValueError, r"got \(60, 3\) and \(60, 3\)"),
        (DX[:0], DY[:0], ValueError, "at least 1 row"),
        (DX[:, :0], DY, ValueError, "1 column"),
        (DX.astype(complex), DY, TypeError, "X must be of numbers or bool, got dtype complex128"),
        (DX, DY.astype("M8[s]"), TypeError, "y must be of numbers or bool"),
        (DX.map_blocks(scipy.sparse.csr_array), DY, TypeError, "dense chunks, got chunks of csr"),
        (frame(X3, Y3).astype({"x1": str}), "y", TypeError, "X must be of numbers or bool"),
        (frame(X3, Y3).astype({"y": str}), "y", TypeError, "y must be of numbers or bool"),
        (frame(X3, Y3), frame(X3, Y3)[["y"]], ValueError, r"y must have one column, got \['y'\]"),
    ],
)
def test_rows_that_do_not_fit(X, y, error, message):
    model = make(DPFTRLRegressor)
    with pytest.raises(error, match=message):
        model.fit(X, y)
    assert learned(model) == set()


@pytest.mark.parametrize("parameter", ["shuffle", "compute_regret"])
@each_estimator
def test_what_needs_rows_in_memory(cls, parameter):
    with pytest.raises(ValueError, match=parameter):
        make(cls, **{parameter: True}, **extra(cls)).fit(DX, DY)


def test_groups_are_refused():
    with pytest.raises(ValueError, match="a user's rows may lie in several chunks"):
        make(DPFTRLRegressor).fit(DX, DY, groups=np.arange(60))


def test_classes_must_be_declared():
    with pytest.raises(ValueError, match="classes must be given"):
        make(DPFTRLClassifier).fit(DX, DY)


def test_a_label_that_is_no_utf_8_counts_as_zero():
    X = np.eye(4)
    binary = pa.array([b"a", b"\xffsecret", b"a", b"c"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 4, binary.buffers())
    labels = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([text])))
    frame = pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "y": labels})
    options = {"batch_size": 4, "noise_seed": 3, "classes": ["a", "c"]}
    found = make(DPFTRLClassifier, **options).fit(dd.from_pandas(frame, npartitions=2), "y")
    frame["y"] = ["a", "other", "a", "c"]
    expected = make(DPFTRLClassifier, **options).fit(dd.from_pandas(frame, npartitions=2), "y")
    np.testing.assert_array_equal(found.coef_, expected.coef_)
