# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a `TreeNoise`: exact, small, secret, refused when it does not fit."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz
from dpftrl_fast.noise import keys

MEMORIES: list[Any] = ["stored", "regenerate", 1, 3]


def make(memory: Any = "stored", **change: Any) -> dpf.TreeNoise:
    options: dict[str, Any] = {"seed": 9, "variant": "honaker", **change}
    return dpf.TreeNoise(options.pop("size", 5), options.pop("std", 1.5), memory=memory, **options)


def run(noise: dpf.TreeNoise, call: int) -> bytes:
    """One call of a run of 70 steps with restarts."""
    if call in (13, 14, 40):
        noise.restart(complete=call == 13)
    return bytes((noise.step() if call % 4 == 1 else noise.residual()).tobytes())


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_save_and_load_at_every_step_into_every_memory(memory: Any, variant: str) -> None:
    noise = make(memory, variant=variant)
    expected = [run(copied, call) for copied in [make(variant=variant)] for call in range(72)]
    for call in range(70):
        state = noise.state_dict()
        for other in MEMORIES:
            loaded = make(other, variant=variant, seed=None)
            loaded.load_state_dict(state)
            assert [run(loaded, call + i) for i in range(2)] == expected[call : call + 2]
        assert run(noise, call) == expected[call]


def test_a_regenerate_state_is_small_and_json() -> None:
    noise = make("regenerate", size=100_000)
    for call in range(70):
        run(noise, call)
    for _ in range(1000):  # equal trees are counted, not listed
        noise.step()
        noise.restart()
    text = json.dumps(noise.state_dict())
    assert len(text) < 1000
    loaded = make("regenerate", size=100_000, seed=None)
    loaded.load_state_dict(json.loads(text))
    assert loaded.tree == noise.tree
    assert loaded.residual().tobytes() == noise.residual().tobytes()
    assert loaded.reproducible


def test_a_state_without_key_holds_a_position_only() -> None:
    noise = make()
    for call in range(20):
        run(noise, call)
    state = noise.state_dict(key=False)
    assert state["key"] is None
    assert state["vectors"] == []
    assert noise._key.hex() not in repr(state)
    same_key = make()
    same_key.load_state_dict(state)
    assert run(same_key, 20) == run(noise, 20)
    other_key = make(seed=None)
    other_key.load_state_dict(state)
    assert (other_key.t, other_key.tree) == (same_key.t - 1, same_key.tree)
    assert not other_key.reproducible  # its own key is
    assert run(other_key, 20) != run(make(), 20)


def test_a_state_takes_no_part_of_the_object_along() -> None:
    noise = make()
    for call in range(20):
        run(noise, call)
    state = noise.state_dict()
    kept = copy.deepcopy(state)
    expected = run(noise, 20)
    assert repr(state) == repr(kept)
    loaded = make()
    loaded.load_state_dict(state)
    for _, _, _, vector in state["vectors"]:
        vector[:] = np.nan
    assert run(loaded, 20) == expected


def test_node_used_is_remembered() -> None:
    noise = make()
    noise.node(0, 0)
    loaded = make()
    loaded.load_state_dict(noise.state_dict())
    assert loaded.node_used


DIFFERENT = {
    "size": 6,
    "std": 1.25,
    "variant": "vanilla",
    "dtype": "float64",
    "rounds": 20,
    "purpose": "covariance",
    "offset": 1,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_state_of_another_tree_is_refused(name: str) -> None:
    noise, other = make(), make(**{name: DIFFERENT[name]})
    run(noise, 0)
    with pytest.raises(ValueError, match=f"state has {name} .*, but this object has"):
        other.load_state_dict(noise.state_dict())
    assert other.t == 0
    assert other.step().tobytes() == make(**{name: DIFFERENT[name]}).step().tobytes()


def test_every_fact_of_a_source_has_another_that_is_refused() -> None:
    assert make()._identity().keys() == {*DIFFERENT, "stream_version"}


TAPS, BUFFERS = BandedInverse((1.0, -0.5)), BufferedToeplitz((0.75, 0.5), (0.25, 0.125))
OTHER_TOEPLITZ: dict[str, list[Any]] = {
    "size": [6],
    "std": [1.25],
    "mechanism": [BandedInverse((1.0, -0.25)), BandedToeplitz((1.0, 0.5)), BUFFERS],
    "dtype": ["float64"],
    "rounds": [20],
    "purpose": ["covariance"],
    "offset": [1],
}


def toeplitz(**change: Any) -> dpf.ToeplitzNoise:
    options = {"size": 5, "std": 1.5, "mechanism": TAPS, "seed": 9, **change}
    return dpf.ToeplitzNoise(
        options.pop("size"), options.pop("std"), options.pop("mechanism"), **options
    )


@pytest.mark.parametrize("name", OTHER_TOEPLITZ)
def test_a_state_of_another_toeplitz_source_is_refused(name: str) -> None:
    noise = toeplitz()
    assert noise._identity().keys() == {*OTHER_TOEPLITZ, "stream_version"}
    noise.step()
    for value in OTHER_TOEPLITZ[name]:
        other = toeplitz(**{name: value})
        with pytest.raises(ValueError, match=f"state has {name} .*, but this object has"):
            other.load_state_dict(noise.state_dict())
        assert other.t == 0


VECTOR = np.zeros(5, np.float32)
BROKEN: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"format": "something"}, ValueError, "state has format 'something'"),
    ({"version": 2}, ValueError, "state has version 2, but this object has 1"),
    (
        {"stream_version": 1},
        ValueError,
        "state has stream_version 1, but this object has 2: finish that run with the release of "
        "dpftrl_fast that saved it, or begin a new one",
    ),
    ({"stream_version": 3}, ValueError, "state has stream_version 3, but this object has 2: "),
    ({"t": -1}, ValueError, "t must be an integer in"),
    ({"t": 2**46 + 1}, ValueError, "t must be an integer in"),
    ({"t": 1.0}, TypeError, r"t must be an integer in \[0, 70368744177664\], got float"),
    ({"t": True}, TypeError, r"t must be an integer in \[0, 70368744177664\], got bool"),
    ({"earlier_trees": [[0, 1]]}, ValueError, "earlier tree must be an integer in"),
    ({"earlier_trees": [[1, 0]]}, ValueError, "count of trees must be"),
    ({"earlier_trees": [[1]]}, ValueError, "pairs of integers"),
    ({"earlier_trees": [[1, 2**24 + 1]]}, ValueError, "count of trees must be"),
    ({"earlier_trees": [[1, 5], [2, 2**24 - 4]]}, ValueError, "count of trees must be"),
    ({"earlier_trees": 3}, TypeError, "earlier_trees must be a list, got int"),
    ({"last_returned": [5, 1]}, ValueError, "after its present one"),
    ({"last_returned": [1, 100]}, ValueError, "after its present one"),
    ({"last_returned": "ab"}, TypeError, "last_returned must be a list, got str"),
    ({"key": "00"}, ValueError, "64 hexadecimal digits"),
    ({"key": 7}, ValueError, "64 hexadecimal digits"),
    ({"key": None, "vectors": [("carry", 0, 0, VECTOR)]}, ValueError, "no vectors when it has no"),
    ({"reproducible": 1}, TypeError, "reproducible must be a bool, got 1"),
    ({"node_used": None}, TypeError, "node_used must be a bool, got None"),
    ({"vectors": 5}, TypeError, "vectors must be a list, got int"),
    ({"vectors": [VECTOR]}, ValueError, r"must be \(kind, level, index, array\)"),
    ({"vectors": [("carry", 0, 0)]}, ValueError, r"must be \(kind, level, index, array\)"),
    ({"vectors": [("head", 0, 0, VECTOR)]}, ValueError, "a 'carry', a 'last' or an 'average'"),
    ({"vectors": [("average", 47, 0, VECTOR)]}, ValueError, "level in"),
    ({"vectors": [("average", 0, 2**80, VECTOR)]}, ValueError, "index in"),
    ({"vectors": [("average", 0.0, 0, VECTOR)]}, ValueError, "level in"),
    ({"vectors": [("carry", 0, 0, VECTOR[:4])]}, ValueError, "float32 array of 5 elements"),
    ({"vectors": [("carry", 0, 0, np.zeros(5))]}, ValueError, "float32 array of 5 elements"),
    ({"vectors": [("carry", 0, 0, np.zeros(10, np.float32)[::2])]}, ValueError, "C-contiguous"),
    ({"vectors": [("carry", 0, 0, [0.0] * 5)]}, ValueError, "float32 array of 5 elements"),
]


@pytest.mark.parametrize(("change", "error", "message"), BROKEN)
def test_a_broken_state_is_refused_and_changes_nothing(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    noise, plain = make(seed=10), make(seed=10)
    saved = make()
    for call in range(20):
        run(noise, call), run(plain, call), run(saved, call)
    state = {**saved.state_dict(), **change}
    with pytest.raises(error, match=message) as caught:
        noise.load_state_dict(state)
    assert saved._key.hex() not in str(caught.value)
    assert "0." not in str(caught.value)  # no element of a vector
    assert (noise.t, noise.tree) == (plain.t, plain.tree)
    assert run(noise, 20) == run(plain, 20)


def test_a_state_that_lacks_something_is_refused() -> None:
    noise = make()
    complete = noise.state_dict()
    for name in complete:
        state = {other: value for other, value in complete.items() if other != name}
        with pytest.raises(ValueError, match=f"state lacks {name}"):
            noise.load_state_dict(state)
    with pytest.raises(TypeError, match="state must be a mapping, got list"):
        noise.load_state_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize("dump", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickles_and_copies_are_refused(dump: Any) -> None:
    with pytest.raises(TypeError, match="secret key and is not pickled"):
        dump(make())
    with pytest.raises(TypeError, match="secret key and is not pickled"):
        dump(dpf.PrefixSum(2, 3, 1.0, 1.0))


def test_the_key_is_in_no_text() -> None:
    for seed in (0, b"seed"):
        key = keys.key_of_seed(seed)
        noise = make(seed=seed)
        noise.step()
        plan_sum = dpf.PrefixSum(2, 3, 1.0, 1.0, seed=seed)
        texts = [repr(noise), str(noise), repr(plan_sum), str(plan_sum), repr(plan_sum.plan)]
        for bad in ({"size": 2**70}, {"offset": 2**70}, {"threads": 2**70}, {"memory": 2**70}):
            with pytest.raises((TypeError, ValueError, OverflowError)) as caught:
                make(seed=seed, **bad)
            texts.append(str(caught.value))
        for call, argument in ((noise.step, [1]), (noise.prefix, -1), (noise.advance_to, 0)):
            with pytest.raises((TypeError, ValueError)) as caught:
                call(argument)  # type: ignore[operator]
            texts.append(str(caught.value))
        for text in texts:
            for secret in (key.hex(), repr(key), repr(key)[2:-1], repr(key)[2:10]):
                assert secret not in text
