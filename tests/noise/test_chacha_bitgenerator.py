# SPDX-License-Identifier: Apache-2.0
"""`ChaCha` as NumPy uses a bit generator: draws, state, pickle, jumps, refusals."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from chacha_oracle import (
    END,
    JUMP,
    as_words,
    at,
    key_of,
    position_of,
    python_draws64,
    python_words,
    same_state,
    seed_key,
)
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import Generator, RandomState
from scipy import stats

from dpftrl_fast._chacha import ChaCha

# ---------------------------------------------------------------------------- under NumPy's classes


def test_raw_shapes() -> None:
    generator = ChaCha(1)
    assert generator.random_raw((2, 3)).shape == (2, 3)
    assert generator.random_raw(4, output=False) is None
    assert position_of(generator) == 20
    assert isinstance(generator.random_raw(), int)


def test_uniform_doubles_and_floats() -> None:
    draws = np.array(python_draws64(seed_key(b"i\x01"), 12, 0, 100), dtype=np.uint64)
    assert Generator(ChaCha(1)).random(100).tolist() == ((draws >> 11) / 2.0**53).tolist()
    words = np.array(python_words(seed_key(b"i\x01"), 12, 0, 100), dtype=np.uint32)
    floats = Generator(ChaCha(1)).random(100, dtype=np.float32)
    assert floats.tolist() == ((words >> 8) / 2.0**24).tolist()


def test_legacy_polar_normals() -> None:
    doubles = iter(
        d / 2**53 for d in (x >> 11 for x in python_draws64(seed_key(b"i\x02"), 12, 0, 200))
    )
    expected: list[float] = []
    while len(expected) < 50:
        u, v = 2 * next(doubles) - 1, 2 * next(doubles) - 1
        square = u * u + v * v
        if 0 < square < 1:
            factor = np.sqrt(-2 * np.log(square) / square)
            expected += [factor * v, factor * u]
    np.testing.assert_allclose(RandomState(ChaCha(2)).standard_normal(50), expected, rtol=1e-13)


def test_generators_are_deterministic_and_seeds_differ() -> None:
    def normals(seed: int, rounds: int = 12) -> np.ndarray:
        return Generator(ChaCha(seed, rounds=rounds)).standard_normal(1000)

    assert np.array_equal(normals(5), normals(5))
    others = [normals(5), normals(6), normals(5, 8), normals(5, 20)]
    assert len(np.unique(np.concatenate(others))) == 4000


def test_many_distributions() -> None:
    rng = Generator(ChaCha(8))
    n = 20_000
    assert stats.kstest(rng.standard_normal(n), "norm").pvalue > 1e-3
    assert stats.kstest(rng.standard_exponential(n), "expon").pvalue > 1e-3
    assert stats.kstest(rng.gamma(2.5, size=n), "gamma", args=(2.5,)).pvalue > 1e-3
    assert abs(rng.integers(0, 10, n).mean() - 4.5) < 0.1
    assert abs(rng.poisson(3.0, n).mean() - 3.0) < 0.1
    assert sorted(rng.permutation(100).tolist()) == list(range(100))
    assert len(rng.bytes(33)) == 33
    assert np.random.default_rng(rng.bit_generator).bit_generator is rng.bit_generator


def test_numpy_knows_it_as_a_bit_generator() -> None:
    generator = ChaCha(1)
    assert isinstance(generator, np.random.BitGenerator)
    assert str(Generator(generator)) == "Generator(ChaCha)"
    generator._benchmark(1)
    generator._benchmark(1, "double")
    with pytest.raises(ValueError):
        generator._benchmark(1, "int32")


def test_lock_is_held_by_numpy_and_reentrant() -> None:
    generator = ChaCha(1)
    with generator.lock:
        assert generator.lock.acquire(blocking=False)
        generator.lock.release()
        assert Generator(generator).random() == Generator(ChaCha(1)).random()
        assert generator.state["state"]["position"] == 2


def test_threads_share_one_stream() -> None:
    shared = Generator(ChaCha(4))
    taken: list[np.ndarray] = []

    def work() -> None:
        for _ in range(50):
            taken.append(shared.random(37))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = np.concatenate(taken)
    assert np.array_equal(np.sort(everything), np.sort(Generator(ChaCha(4)).random(4 * 50 * 37)))


# --------------------------------------------------------------------------------- state and pickle


def test_state_holds_all() -> None:
    generator = ChaCha(7, rounds=20)
    generator.random_raw(300)
    state = generator.state
    assert set(state) == {"bit_generator", "stream_version", "rounds", "state"}
    assert (state["bit_generator"], state["stream_version"], state["rounds"]) == ("ChaCha", 2, 20)
    assert state["state"]["position"] == 600
    other = ChaCha(8, rounds=8)
    other.state = state
    assert other.rounds == 20
    assert same_state(other.state, state)
    assert np.array_equal(other.random_raw(999), generator.random_raw(999))


def test_state_is_a_copy() -> None:
    generator = ChaCha(7)
    state = generator.state
    state["state"]["key"][:] = 0
    state["state"]["position"] = 99
    assert same_state(generator.state, ChaCha(7).state)


def test_state_goes_through_json() -> None:
    generator = ChaCha(7)
    generator.random_raw(5)
    state = generator.state
    state["state"]["key"] = state["state"]["key"].tolist()
    other = ChaCha()
    other.state = json.loads(json.dumps(state))
    assert np.array_equal(other.random_raw(9), generator.random_raw(9))


KEY = [11, 22, 33, 44, 55, 66, 77, 88]
GOOD = {"bit_generator": "ChaCha", "stream_version": 2, "rounds": 12}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"1"}, TypeError, "must be a dict, got set"),
        ({}, ValueError, "must have an entry 'bit_generator'"),
        ({**GOOD, "bit_generator": "PCG64"}, ValueError, "got 'PCG64'"),
        ({**GOOD, "stream_version": 1}, ValueError, "stream_version must be 2, got 1"),
        ({**GOOD, "rounds": 7}, ValueError, "rounds must be 8, 12 or 20, got 7"),
        ({**GOOD, "rounds": 12.0}, TypeError, "rounds must be an integer, got float"),
        ({**GOOD, "rounds": True}, TypeError, "rounds must be an integer, got bool"),
        ({"bit_generator": "ChaCha", "stream_version": 2}, ValueError, "an entry 'rounds'"),
        (GOOD, ValueError, "an entry 'state'"),
        ({**GOOD, "state": 3}, TypeError, "'state' must be a dict, got int"),
        ({**GOOD, "state": {"position": 0}}, ValueError, "an entry 'key'"),
        ({**GOOD, "state": {"key": KEY}}, ValueError, "an entry 'position'"),
        ({**GOOD, "state": {"key": KEY[:7], "position": 0}}, ValueError, r"shape \(8,\)"),
        ({**GOOD, "state": {"key": [KEY], "position": 0}}, ValueError, r"shape \(8,\)"),
        ({**GOOD, "state": {"key": [0.5] * 8, "position": 0}}, TypeError, "got float64"),
        ({**GOOD, "state": {"key": [True] * 8, "position": 0}}, TypeError, "got bool"),
        ({**GOOD, "state": {"key": "secret", "position": 0}}, TypeError, "must hold integers"),
        ({**GOOD, "state": {"key": [*KEY[1:], -1], "position": 0}}, ValueError, "one outside"),
        ({**GOOD, "state": {"key": [*KEY[1:], 2**32], "position": 0}}, ValueError, "one outside"),
        ({**GOOD, "state": {"key": KEY, "position": -1}}, ValueError, "position"),
        ({**GOOD, "state": {"key": KEY, "position": END}}, ValueError, "position"),
        (
            {**GOOD, "state": {"key": KEY, "position": 1.0}},
            TypeError,
            "position must be an integer",
        ),
    ],
)
def test_a_wrong_state_is_refused_and_changes_nothing(
    value: Any, error: type, message: str
) -> None:
    generator = ChaCha(7)
    generator.random_raw(3)
    before = generator.state
    with pytest.raises(error, match=message):
        generator.state = value
    assert same_state(generator.state, before)
    assert generator.random_raw() == ChaCha(7).random_raw(4)[3]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(protocol: int) -> None:
    generator = ChaCha(7, rounds=20)
    generator.random_raw(301)
    generator.spawn(3)
    loaded = pickle.loads(pickle.dumps(generator, protocol=protocol))
    assert type(loaded) is ChaCha
    assert same_state(loaded.state, generator.state)
    assert loaded.seed_seq.n_children_spawned == 3
    assert key_of(loaded.spawn(1)[0]) == key_of(generator.spawn(1)[0])
    assert np.array_equal(loaded.random_raw(1000), generator.random_raw(1000))


def test_copies_are_independent_and_generators_pickle() -> None:
    generator = ChaCha(7)
    generator.random_raw(100)
    expected = ChaCha(7).random_raw(110)[100:]
    for twin in (copy.copy(generator), copy.deepcopy(generator)):
        assert np.array_equal(twin.random_raw(10), expected)
    rng = pickle.loads(pickle.dumps(Generator(generator)))
    assert np.array_equal(rng.bit_generator.random_raw(10), expected)
    assert np.array_equal(generator.random_raw(10), expected)


def test_getstate() -> None:
    generator = ChaCha(7)
    state, seed_seq = generator.__getstate__()  # type: ignore[misc]
    assert same_state(state, generator.state)
    assert seed_seq is generator.seed_seq


def test_the_key_is_never_shown() -> None:
    generator = ChaCha(b"a secret seed")
    shown = [repr(generator), str(generator), repr(generator.seed_seq), str(generator.seed_seq)]
    shown += [
        repr(Generator(generator)),
        f"{generator.spawn(2)}",
        repr(generator.seed_seq.spawn(1)),
    ]
    state = generator.state
    state["state"]["position"] = -1
    with pytest.raises(ValueError) as refused:
        generator.state = state
    shown.append(str(refused.value))
    key = key_of(generator)
    secrets = [key.hex(), str(key), "secret seed", *(str(word) for word in as_words(key))]
    secrets += [f"{word:x}" for word in as_words(key)]
    assert not [secret for secret in secrets for text in shown if secret in text]
    assert all("ChaCha" in text or "KeySequence" in text or "position" in text for text in shown)


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "seed",
    [
        1.0,
        np.float64(3),
        True,
        np.True_,
        [1, 2],
        (1,),
        "7",
        np.array([1, 2]),
        {},
        1j,
        bytearray(b"1"),
    ],
)
def test_seeds_of_a_wrong_type(seed: Any) -> None:
    with pytest.raises(TypeError, match="seed must be an integer, got"):
        ChaCha(seed)


def test_other_wrong_arguments() -> None:
    for seed in (-1, np.int64(-5), -(2**200)):
        with pytest.raises(ValueError, match="seed must be an integer >= 0, got a negative one"):
            ChaCha(seed)
    for rounds in (0, 7, 10, 13, -8, 2**40):
        with pytest.raises(ValueError, match=f"rounds must be 8, 12 or 20, got {rounds}"):
            ChaCha(1, rounds=rounds)
    for wrong in (12.0, "12", None, True):
        with pytest.raises(TypeError, match="rounds must be an integer, got"):
            ChaCha(1, rounds=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ChaCha(1, 12)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ChaCha(1).rounds = 20  # type: ignore[misc]


# --------------------------------------------------------------------------------- advance and jump


@given(start=st.integers(0, 1200), deltas=st.lists(st.integers(0, 800), max_size=4))
def test_advance_is_drawing(start: int, deltas: list[int]) -> None:
    moved, drawn = at(9, start), at(9, start)
    for delta in deltas:
        assert moved.advance(delta) is moved
        drawn.random_raw(delta, output=False)
        assert same_state(moved.state, drawn.state)
    assert moved.random_raw() == drawn.random_raw()


@given(st.integers(0, END - 1), st.integers(-(2**115), 2**115))
def test_advance_over_any_distance(start: int, delta: int) -> None:
    generator = at(9, start)
    if 0 <= start + 2 * delta < END:
        generator.advance(delta)
        assert position_of(generator) == start + 2 * delta
        assert generator.advance(-delta).state["state"]["position"] == start
    else:
        with pytest.raises(ValueError, match="delta must lead to a position in"):
            generator.advance(delta)
        assert position_of(generator) == start


def test_advance_refuses_what_is_not_an_integer() -> None:
    for delta in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="delta must be an integer"):
            ChaCha(1).advance(delta)  # type: ignore[arg-type]


def test_jumped_is_the_next_of_2_to_the_32_parts() -> None:
    generator = ChaCha(7, rounds=20)
    generator.random_raw(11)
    before = generator.state
    jumped = generator.jumped()
    assert same_state(generator.state, before)
    assert jumped.rounds == 20
    assert position_of(jumped) == 22 + JUMP
    assert position_of(generator.jumped(5)) == 22 + 5 * JUMP
    assert position_of(jumped.jumped(4)) == 22 + 5 * JUMP
    assert same_state(generator.jumped(0).state, before)
    assert same_state(at(7, 22, 20).advance(JUMP // 2).state, jumped.state)
    assert jumped.random_raw(9).tolist() == python_draws64(seed_key(b"i\x07"), 20, 22 + JUMP, 9)
    assert position_of(ChaCha(7).jumped(2**32 - 1)) == END - JUMP


def test_jumped_keeps_a_key_that_was_set() -> None:
    generator = ChaCha(7)
    generator.state = ChaCha(8).state
    assert key_of(generator.jumped()) == key_of(ChaCha(8))


def test_jumps_do_not_wrap() -> None:
    generator = ChaCha(7)
    with pytest.raises(ValueError, match="jumps must lead to a position in"):
        generator.jumped(2**32)
    with pytest.raises(ValueError, match="jumps must lead to a position in"):
        generator.jumped(2**32 - 1).jumped()
    with pytest.raises(ValueError, match="jumps must be >= 0, got -1"):
        generator.jumped(-1)
    with pytest.raises(TypeError, match="jumps must be an integer, got float"):
        generator.jumped(1.0)  # type: ignore[arg-type]


def test_children_of_a_jumped_generator_are_not_those_of_the_first() -> None:
    generator = ChaCha(7)
    jumped = generator.jumped()
    children = generator.spawn(2) + jumped.spawn(2) + generator.spawn(1)
    assert [child.seed_seq.spawn_key for child in children] == [(i,) for i in range(5)]
