# SPDX-License-Identifier: Apache-2.0
"""A model as one vector, and what is said of updates that are none of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from dpftrl_fast.federated.sums.layout import ModelLayout


def model() -> dict[str, Any]:
    return {
        "w": np.arange(6.0, dtype=np.float32).reshape(2, 3),
        "none": np.zeros((0, 4)),
        "b": np.array([6.0, 7.0]),
        "scale": np.array(8.0, np.float16),
    }


def test_arrays_follow_one_another() -> None:
    layout = ModelLayout(model())
    assert layout.names == ("w", "none", "b", "scale")
    assert layout.shapes == ((2, 3), (0, 4), (2,), ())
    assert layout.dtypes == (np.float32, np.float64, np.float64, np.float16)
    assert layout.starts == (0, 6, 6, 8, 9)
    assert layout.size == 9
    assert np.array_equal(layout.flatten(model()), np.arange(9.0))


@pytest.mark.parametrize("structure", [dict, OrderedDict, list, tuple])
def test_there_and_back(structure: Any) -> None:
    given = structure(model() if issubclass(structure, dict) else model().values())
    layout = ModelLayout(given)
    back = layout.unflatten(layout.flatten(given))
    assert type(back) is (dict if issubclass(structure, dict) else structure)
    pairs = (
        zip(given.values(), back.values(), strict=True)
        if isinstance(given, dict)
        else zip(given, back, strict=True)
    )
    for one, other in pairs:
        assert one.dtype == other.dtype and one.shape == other.shape
        assert np.array_equal(one, other)
    if isinstance(back, dict):
        assert list(back) == list(given)


def test_what_comes_back_is_nobody_elses_memory() -> None:
    layout = ModelLayout(model())
    vector = np.arange(9.0)
    back = layout.unflatten(vector)
    back["b"][:] = -1.0
    back["w"][:] = -1.0
    assert np.array_equal(vector, np.arange(9.0))
    assert all(array.flags.owndata or array.base.flags.owndata for array in back.values())


def test_names_count_and_their_order_does_not() -> None:
    layout = ModelLayout(model())
    shuffled = dict(reversed(model().items()))
    assert layout.problem(shuffled) is None
    assert np.array_equal(layout.flatten(shuffled), np.arange(9.0))


def test_any_memory_and_floating_dtype_will_do() -> None:
    layout = ModelLayout(model())
    update = model()
    update["w"] = np.asfortranarray(update["w"].astype(np.float16))
    update["b"] = np.array([6.0, 0.0, 7.0])[::2].astype(">f8")
    update["scale"] = np.float64(8.0)  # np.array(9.0) - 1.0 is such a scalar
    assert layout.problem(update) is None
    out = np.zeros(9, np.float32)
    assert layout.flatten(update, out) is out
    assert np.array_equal(out, np.arange(9.0))
    assert layout.arrays(update)[0] is update["w"]


def test_numbers_that_do_not_fit_a_narrow_dtype_become_infinite() -> None:
    layout = ModelLayout([np.zeros(2, np.float16), np.zeros(1, np.float32)])
    back = layout.unflatten(np.array([1e5, np.nan, -1e300]))
    assert np.isposinf(back[0][0]) and np.isnan(back[0][1]) and np.isneginf(back[1][0])


def test_the_fingerprint_tells_models_apart() -> None:
    one = ModelLayout(model())
    assert one.fingerprint == ModelLayout(model()).fingerprint
    assert one == ModelLayout(model()) and hash(one) == hash(ModelLayout(model()))
    others = [
        dict(reversed(model().items())),
        {**model(), "w": np.zeros((3, 2), np.float32)},
        {**model(), "w": np.zeros((2, 3))},
        {name + "_": array for name, array in model().items()},
        {**model(), "more": np.zeros(1)},
        list(model().values()),
        {str(k): array for k, array in enumerate(model().values())},
    ]
    layouts = [one, *map(ModelLayout, others)]
    assert len({layout.fingerprint for layout in layouts}) == len(layouts)
    assert one != layouts[1] and one != "w"
    swapped = {**model(), "b": model()["b"].astype(">f8")}
    assert ModelLayout(swapped) == one
    assert repr(one) == "ModelLayout(4 arrays, 9 numbers)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"w": np.zeros((3, 2))}, "'w' must have shape (2, 3), got (3, 2)"),
        ({"scale": np.zeros(1)}, "'scale' must have shape (), got (1,)"),
        ({"b": np.zeros(2, int)}, "'b' must be of float16, float32 or float64, got int64"),
        ({"b": np.zeros(2, complex)}, "'b' must be of float16, float32 or float64, got complex128"),
        ({"b": np.zeros(2, bool)}, "'b' must be of float16, float32 or float64, got bool"),
        ({"b": np.array([1.0, None])}, "'b' must be of float16, float32 or float64, got object"),
        ({"b": np.array(["1", "2"])}, "'b' must be of float16, float32 or float64, got str32"),
        ({"b": [6.0, 7.0]}, "'b' must be a NumPy array, got list"),
        ({"b": None}, "'b' must be a NumPy array, got NoneType"),
        ({"scale": 8.0}, "'scale' must be a NumPy array, got float"),
        ({"b": np.float64(8.0)}, "'b' must have shape (2,), got ()"),
        ({"w": scipy.sparse.csr_matrix((2, 3))}, "'w' must be a NumPy array, got csr_matrix"),
        ({"b": np.ma.array([6.0, 7.0], mask=[1, 0])}, "'b' must be a plain NumPy array"),
        ({"c": np.zeros(1)}, "has 'c' too"),
        ({k: np.zeros(1) for k in "cdefg"}, "has 'c', 'd', 'e' and 2 more too"),
        ({3: np.zeros(1)}, "has 3 too"),
        ({"x" * 10**6: np.zeros(1)}, f"has 'x{'x' * 58}... too"),
    ],
)
def test_what_is_wrong_with_an_update_is_said_in_words(change: Any, words: str) -> None:
    layout = ModelLayout(model())
    update = {**model(), **change}
    problem = layout.problem(update)
    assert problem is not None and problem.startswith(words)
    with pytest.raises(ValueError, match="update does not fit the model: "):
        layout.flatten(update)


def test_arrays_that_are_not_there_and_other_structures() -> None:
    layout, update = ModelLayout(model()), model()
    del update["w"], update["b"]
    assert layout.problem(update) == "lacks 'w', 'b'"
    assert layout.problem({**update, "z": np.zeros(1)}) == "lacks 'w', 'b'"
    assert layout.problem(list(model().values())) == (
        "expected a mapping from names to arrays, got list"
    )
    assert layout.problem(None) == "expected a mapping from names to arrays, got NoneType"
    by_place = ModelLayout(list(model().values()))
    assert by_place.problem(model()) == "expected a list of arrays, got dict"
    assert by_place.problem(np.zeros(4)) == "expected a list of arrays, got ndarray"
    assert by_place.problem("0123") == "expected a list of arrays, got str"
    assert by_place.problem(list(model().values())[:2]) == "expected 4 arrays, got 2"
    assert by_place.problem(tuple(model().values())) is None


def test_values_are_no_problem() -> None:
    layout = ModelLayout([np.zeros(2)])
    assert layout.problem([np.array([np.nan, np.inf])]) is None


class Lazy(Mapping[str, Any]):
    """Like an open archive: arrays are made when they are asked for, if that goes well."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.reads = error, 0

    def __getitem__(self, name: str) -> Any:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return model()[name]

    def __contains__(self, name: object) -> bool:
        return name in model()

    def __iter__(self) -> Iterator[str]:
        return iter(model())

    def __len__(self) -> int:
        return len(model())


def test_a_mapping_that_reads_a_file_is_read_once_and_may_fail() -> None:
    layout, lazy = ModelLayout(model()), Lazy()
    assert np.array_equal(layout.flatten(lazy), np.arange(9.0))
    assert lazy.reads == 4
    assert layout.problem(Lazy(OSError("/secret/path"))) == "cannot be read: OSError"


@pytest.mark.parametrize(
    ("parameters", "error", "words"),
    [
        (np.zeros(3), TypeError, "parameters must be a mapping"),
        (None, TypeError, "parameters must be a mapping"),
        ({1: np.zeros(3)}, TypeError, "names of parameters must be strings, got 1"),
        ({"w": [1.0]}, TypeError, "'w' must be a NumPy array, got list"),
        ([np.zeros(3), np.zeros(3, int)], ValueError, "array 1 must be of float16"),
        ({}, ValueError, "at least one number"),
        ([np.zeros((0, 3))], ValueError, "at least one number"),
        ([np.ma.array([1.0])], ValueError, "plain NumPy array"),
    ],
)
def test_what_is_no_model(parameters: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ModelLayout(parameters)


def test_vectors_that_do_not_fit() -> None:
    layout = ModelLayout(model())
    with pytest.raises(ValueError, match=r"vector must have shape \(9,\), got \(8,\)"):
        layout.unflatten(np.zeros(8))
    with pytest.raises(TypeError, match="vector must be of float32 or float64, got int64"):
        layout.unflatten(np.zeros(9, int))
    with pytest.raises(TypeError, match="out must be a NumPy array, got list"):
        layout.flatten(model(), [0.0] * 9)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"out must have shape \(9,\), got \(3, 3\)"):
        layout.flatten(model(), np.zeros((3, 3)))
    fixed = np.zeros(9)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        layout.flatten(model(), fixed)
    out = np.zeros(9)
    with pytest.raises(ValueError, match="out must not overlap"):
        layout.flatten({**model(), "b": out[:2]}, out)
    strided = np.zeros(18)[::2]
    assert np.array_equal(layout.flatten(model(), strided), np.arange(9.0))
