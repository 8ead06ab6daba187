# SPDX-License-Identifier: Apache-2.0
"""Fits from pyarrow datasets: the models of the same rows in memory, read a little at a time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from estimator_cases import CLASSES, NAMES, learned, make, rows

from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model.sources import parquet as _parquet
from dpftrl_fast.linear_model.sources.parquet import DatasetRows

each_estimator = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
PARAMETERS = ("coef_", "intercept_", "coef_average_", "coef_tail_")


def extra(cls):
    """What a fit from a dataset needs besides: the labels."""
    return {"classes": [0, 1]} if cls is DPFTRLClassifier else {}


def table(X, y, **columns):
    """Rows as a table, the target between the features."""
    names = {f"x{j}": X[:, j] for j in range(X.shape[1])}
    first = dict([next(iter(names.items()))])
    return pa.table({**first, "y": y, **names, **columns})


def folder(path, whole, files=3, **options):
    """A folder of Parquet files with the rows in their order."""
    path.mkdir()
    edges = np.linspace(0, whole.num_rows, files + 1).astype(int)
    for i, (begin, end) in enumerate(pairwise(edges)):
        pq.write_table(whole.slice(begin, end - begin), path / f"part-{i}.parquet", **options)
    return path


def assert_same(one, other):
    for name in PARAMETERS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.epsilon_ == other.epsilon_ and one.n_steps_ == other.n_steps_


# ---- The same model ----


@each_estimator
@pytest.mark.parametrize("batch_size", [1, 7, 64, 150])
def test_a_folder_makes_the_model_of_its_rows_in_memory(cls, batch_size, tmp_path):
    X, y = rows(cls, n=151)
    path = folder(tmp_path / "rows", table(X, y), row_group_size=13)
    parameters = {"batch_size": batch_size, "noise_seed": 1, **extra(cls)}
    one = make(cls, **parameters).fit(X, y)
    other = make(cls, **parameters).fit(path, "y")
    assert_same(one, other)
    assert other.n_features_in_ == 3
    assert other.feature_names_in_.tolist() == ["x0", "x1", "x2"]


@pytest.mark.parametrize("form", ["path", "str", "file", "dataset", "memory", "union"])
def test_forms_of_a_dataset(form, tmp_path):
    X, y = rows(DPFTRLRegressor)
    whole = table(X, y)
    path = folder(tmp_path / "rows", whole, files=1 if form == "file" else 2)
    halves = [ds.dataset(whole.slice(0, 30)), ds.dataset(whole.slice(30))]
    given = {
        "path": path,
        "str": str(path),
        "file": path / "part-0.parquet",
        "dataset": ds.dataset(path),
        "memory": ds.dataset(whole),
        "union": ds.dataset(halves),
    }[form]
    model = make(DPFTRLRegressor, noise_seed=1)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    assert_same(one, model.fit(given, y="y"))


@pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])
def test_epochs_read_the_rows_again(cls, tmp_path):
    X, y = rows(cls, n=55)
    path = folder(tmp_path / "rows", table(X, y), row_group_size=8)
    parameters = {"epochs": 3, "momentum": 0.5, "noise_seed": 1, **extra(cls)}
    assert_same(make(cls, **parameters).fit(X, y), make(cls, **parameters).fit(path, "y"))


@pytest.mark.parametrize(
    ("dtypes", "together"),
    [
        (["f4", "f4", "f4"], "f4"),
        (["f4", "f8", "f4"], "f8"),
        (["f2", "i1", "?"], "f8"),
        (["i8", "u8", "i4"], "f8"),
    ],
)
def test_columns_of_numbers_are_those_of_an_array(dtypes, together, monkeypatch):
    rng = np.random.default_rng(0)
    columns = [rng.integers(0, 2, 60).astype(dtype) for dtype in dtypes]
    columns[0] = (columns[0] * 2**62 if dtypes[0] == "i8" else columns[0]).astype(dtypes[0])
    y = rng.integers(-1, 2, 60)
    X = np.stack([column.astype(together) for column in columns], axis=1)
    one = make(DPFTRLRegressor, noise_seed=1).fit(X, y)
    seen = []
    blocks = DatasetRows._blocks
    monkeypatch.setattr(
        DatasetRows,
        "_blocks",
        lambda self, encode: (seen.append(b.X.dtype) or b for b in blocks(self, encode)),
    )
    whole = pa.table({"a": columns[0], "b": columns[1], "c": columns[2], "y": y})
    assert_same(one, make(DPFTRLRegressor, noise_seed=1).fit(ds.dataset(whole), "y"))
    assert set(seen) == {np.dtype(together)}


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "int8", "bool"])
def test_labels(kind):
    X, y = rows(DPFTRLClassifier)
    words = {"int8": [3, 5], "bool": [False, True]}.get(kind, ["no", "yes"])
    labels = pa.array([words[i] for i in y])
    labels = labels.dictionary_encode() if kind == "dictionary" else labels.cast(kind)
    parameters = {"noise_seed": 1, "classes": words}
    one = make(DPFTRLClassifier, **parameters).fit(X, np.array(words)[y])
    other = make(DPFTRLClassifier, **parameters).fit(ds.dataset(table(X, labels)), "y")
    assert_same(one, other)
    np.testing.assert_array_equal(other.classes_, one.classes_)


@pytest.mark.parametrize("kind", ["string", "dictionary", "int64", "float32"])
@pytest.mark.parametrize("row_group", [1, 9, 200])
def test_users_whose_rows_lie_together(kind, row_group, tmp_path):
    X, y = rows(DPFTRLRegressor, n=90)
    numbers = np.repeat(np.random.default_rng(1).permutation(30), 3)
    numbers[40:52] = numbers[40]  # one with many rows
    users = pa.array(
        [f"user {i}" for i in numbers] if kind in ("string", "dictionary") else numbers
    )
    users = users.dictionary_encode() if kind == "dictionary" else users.cast(kind)
    path = folder(tmp_path / "rows", table(X, y, who=users), row_group_size=row_group)
    parameters = {"batch_size": 4, "epochs": 2, "noise_seed": 1}
    one = make(DPFTRLRegressor, **parameters).fit(X, y, groups=numbers)
    assert_same(one, make(DPFTRLRegressor, **parameters).fit(path, "y", groups="who"))


# ---- Slots ----


@each_estimator
@pytest.mark.parametrize("bad", [None, np.nan, np.inf, "y"])
def test_a_bad_row_keeps_its_slot_and_counts_as_zero(cls, bad, tmp_path):
    X, y = rows(cls)
    place, zero = 17, X.copy()
    zero[place] = 0.0
    columns = [X[:, j].tolist() for j in range(3)]
    targets = y.tolist()
    if bad == "y":
        targets[place] = None
    else:
        columns[1][place] = bad
    whole = pa.table({**{f"x{j}": c for j, c in enumerate(columns)}, "y": targets})
    path = folder(tmp_path / "rows", whole)
    # Without a constant column a row of zeros is what it counts as.
    parameters = {"noise_seed": 1, "fit_intercept": False, **extra(cls)}
    one = make(cls, **parameters).fit(zero, y)
    assert_same(one, make(cls, **parameters).fit(path, "y"))


def test_a_label_that_is_not_declared_counts_as_zero():
    X, y = rows(DPFTRLClassifier)
    zero = X.copy()
    zero[5] = 0.0
    other = np.where(np.arange(60) == 5, 7, y)
    parameters = {"noise_seed": 1, "fit_intercept": False, "classes": [0, 1]}
    one = make(DPFTRLClassifier, **parameters).fit(zero, y)
    assert_same(one, make(DPFTRLClassifier, **parameters).fit(ds.dataset(table(X, other)), "y"))


def strings(words, kind="string"):
    """Return strings of any bytes, as a file may hold them."""
    values = pa.array(words, pa.binary() if kind != "large_string" else pa.large_binary())
    kinds = {"string": pa.string(), "large_string": pa.large_string(), "dictionary": pa.string()}
    found = pa.Array.from_buffers(kinds[kind], len(values), values.buffers())
    return found.dictionary_encode() if kind == "dictionary" else found


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary"])
@pytest.mark.parametrize("source", ["table", "file"])
def test_a_label_that_is_no_utf_8_counts_as_zero(kind, source, tmp_path):
    X, y = rows(DPFTRLClassifier)
    words = [b"no", b"yes"]
    labels = [b"\xff" if i == 33 else words[label] for i, label in enumerate(y)]
    zero = X.copy()
    zero[33] = 0.0
    parameters = {"noise_seed": 1, "fit_intercept": False, "classes": ["no", "yes"]}
    one = make(DPFTRLClassifier, **parameters).fit(zero, np.array(["no", "yes"])[y])
    whole = table(X, strings(labels, kind))
    given = ds.dataset(whole) if source == "table" else folder(tmp_path / "rows", whole)
    assert_same(one, make(DPFTRLClassifier, **parameters).fit(given, "y"))


def test_users_whose_labels_are_no_utf_8_are_users():
    X, y = rows(DPFTRLRegressor)
    numbers = np.repeat(np.arange(20), 3)
    who = strings([b"\xfe" + bytes([65 + number]) for number in numbers])
    one = make(DPFTRLRegressor, noise_seed=1, batch_size=4).fit(X, y, groups=numbers)
    given = ds.dataset(table(X, y, who=who))
    assert_same(
        one, make(DPFTRLRegressor, noise_seed=1, batch_size=4).fit(given, "y", groups="who")
    )


# ---- Memory ----


def test_memory_is_that_of_blocks_and_row_groups_not_of_the_file(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    n, p = 300_000, 20
    whole = pa.table({f"x{j}": rng.normal(size=n) for j in range(p)} | {"y": np.zeros(n)})
    pq.write_table(whole, tmp_path / "rows.parquet", row_group_size=2_000, use_dictionary=False)
    size = whole.nbytes
    del whole
    before, held, step = pa.total_allocated_bytes(), [], GLMRun.step

    def watched(self, batch):
        held.append(pa.total_allocated_bytes() - before)
        step(self, batch)

    monkeypatch.setattr(GLMRun, "step", watched)
    monkeypatch.setattr(_parquet, "_BLOCK", 1_000 * p)
    make(DPFTRLRegressor, batch_size=500).fit(tmp_path / "rows.parquet", "y")
    assert len(held) == n / 500
    assert 0 < max(held) < size / 5


# ---- What is refused, before the first step ----

X3, Y3 = rows(DPFTRLRegressor)


@pytest.mark.parametrize(
    ("columns", "arguments", "error", "message"),
    [
        ({"x": pa.array(["a"])}, {}, ValueError, "of numbers or bool, got 'x' of type string"),
        ({"x": pa.array(["a"]).dictionary_encode()}, {}, ValueError, "got 'x' of type dictionary"),
        ({"x": pa.array([[1.0]])}, {}, ValueError, "got 'x' of type list"),
        ({"x": pa.array([None])}, {}, ValueError, "got 'x' of type null"),
        ({}, {}, ValueError, r"columns besides \['y'\], got none"),
        ({"x": pa.array([1.0])}, {"y": "z"}, ValueError, r"a column 'z', got \['y', 'x'\]"),
        ({"x": pa.array([1.0])}, {"groups": "z"}, ValueError, "a column 'z'"),
        ({"x": pa.array([1.0])}, {"groups": "y"}, ValueError, "two columns, got 'y' for both"),
        ({"x": pa.array([1.0])}, {"y": [1.0]}, TypeError, "y must be the name of a column"),
        ({"x": pa.array([1.0])}, {"groups": [1]}, TypeError, "groups must be the name of a column"),
        ({"x": pa.array([1.0]), "y": pa.array(["a"])}, {}, ValueError, "y must be of numbers"),
        ({"x": pa.array([1.0]), "u": pa.array([[1]])}, {"groups": "u"}, ValueError, "column of gr"),
        (
            {"x": pa.array([1.0], pa.float64())[:0], "y": pa.array([1.0])[:0]},
            {},
            ValueError,
            "at l",
        ),
    ],
)
def test_columns_that_do_not_fit(columns, arguments, error, message):
    whole = pa.table({"y": pa.array([1.0]), **columns})
    model = make(DPFTRLRegressor, batch_size=1)
    with pytest.raises(error, match=message):
        model.fit(ds.dataset(whole), **{"y": "y", **arguments})
    assert learned(model) == set()


def test_names_that_occur_twice():
    whole = pa.Table.from_arrays([pa.array([1.0])] * 3, names=["x", "y", "x"])
    with pytest.raises(ValueError, match=r"different names, got two \['x'\]"):
        make(DPFTRLRegressor, batch_size=1).fit(ds.dataset(whole), "y")


@pytest.mark.parametrize("parameter", ["shuffle", "compute_regret"])
@each_estimator
def test_what_needs_rows_in_memory(cls, parameter):
    model = make(cls, **{parameter: True}, **extra(cls))
    with pytest.raises(ValueError, match=parameter):
        model.fit(ds.dataset(table(*rows(cls))), "y")
    assert learned(model) == set()


def test_classes_must_be_declared():
    with pytest.raises(ValueError, match="classes must be given"):
        make(DPFTRLClassifier).fit(ds.dataset(table(*rows(DPFTRLClassifier))), "y")


@pytest.mark.parametrize(
    ("users", "message"),
    [
        ([1, 1, 2, 1], r"got a user again in row 3; sort the dataset by 'who'"),
        ([1, None, 2, 2], "not null"),
        ([1.0, np.nan, 2.0, 2.0], "finite"),
    ],
)
def test_users_that_do_not_fit(users, message):
    whole = table(X3[:4], Y3[:4], who=pa.array(users, from_pandas=False))
    model = make(DPFTRLRegressor, batch_size=1)
    with pytest.raises(ValueError, match=message):
        model.fit(ds.dataset(whole), "y", groups="who")
    assert learned(model) == set()


def test_text_formats_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    with pytest.raises(
        ValueError, match="must have typed files, such as Parquet or Arrow, got csv"
    ):
        make(DPFTRLRegressor).fit(ds.dataset(tmp_path, format="csv"), "y")


def test_a_batch_that_is_larger_than_the_dataset():
    with pytest.raises(ValueError, match="batch_size=100 for n_samples=60"):
        make(DPFTRLRegressor, batch_size=100).fit(ds.dataset(table(X3, Y3)), "y")


# ---- Failures on the way ----


@pytest.mark.parametrize("change", [-1, 1])
def test_a_dataset_that_changes_leaves_the_estimator_as_it_was(change, monkeypatch):
    model = make(DPFTRLLeastSquares).fit(X3, Y3)
    before = dict(vars(model))
    count = ds.Dataset.count_rows
    given = ds.dataset(table(X3, Y3))

    class Changing:
        """Counts another number of rows than it has."""

        __module__ = "pyarrow.dataset"
        schema = given.schema
        to_batches = staticmethod(given.to_batches)
        get_fragments = staticmethod(given.get_fragments)

        def count_rows(self):
            return count(given) + change

    with pytest.raises(
        RuntimeError, match="the dataset must not change while it is read, got another number"
    ):
        model.fit(Changing(), "y")
    assert vars(model) == before


def test_an_earlier_fit_leaves_no_names():
    model = make(DPFTRLRegressor).fit(ds.dataset(table(X3, Y3)), "y")
    assert hasattr(model, "feature_names_in_")
    model.fit(X3, Y3)
    assert not hasattr(model, "feature_names_in_")
    assert model.predict(X3).shape == (60,)


@each_estimator
@pytest.mark.parametrize("value", [1, 2**40])
def test_files_of_other_types_are_refused_whatever_they_hold(cls, value, tmp_path):
    """Arrow converts integers of 64 bits to those of 32 only where they fit."""
    for name, kind, last in (("a", pa.int32(), 1), ("b", pa.int64(), value)):
        columns = {"a": pa.array([0, last], kind), "y": pa.array([0, 1], pa.int64())}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    options = {"classes": [0, 1]} if cls is DPFTRLClassifier else {}
    with pytest.raises(ValueError, match=r"'a' of type int64 beside int32 in .*b.parquet"):
        make(cls, batch_size=2, **options).fit(tmp_path, "y")
