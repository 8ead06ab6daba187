# SPDX-License-Identifier: Apache-2.0
"""Keys: from seeds and from parents, and what a `ChaCha` and NumPy make of them."""

from __future__ import annotations

import copy
import hashlib
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from chacha_oracle import as_words, key_of, position_of, seed_key
from numpy.random import Generator, SeedSequence
from numpy.random.bit_generator import ISeedSequence, ISpawnableSeedSequence

from dpftrl_fast._chacha import ChaCha
from dpftrl_fast.noise.keys import KeySequence, key_of_seed

# -------------------------------------------------------------------------------------------- seeds


@pytest.mark.parametrize(
    ("seed", "canonical"),
    [
        (0, b"i\x00"),
        (7, b"i\x07"),
        (256, b"i\x01\x00"),
        (2**300, b"i\x10" + bytes(37)),
        (np.uint8(255), b"i\xff"),
        (np.int64(128), b"i\x80"),
        (b"", b"b"),
        (b"\x07", b"b\x07"),
    ],
)
def test_key_of_a_seed(seed: Any, canonical: bytes) -> None:
    assert key_of_seed(seed) == seed_key(canonical)
    assert key_of(ChaCha(seed)) == seed_key(canonical)


def test_key_of_a_numpy_seed_sequence() -> None:
    words = SeedSequence(5).generate_state(8)
    assert key_of(ChaCha(SeedSequence(5))) == seed_key(b"q" + words.astype("<u4").tobytes())


def test_no_seed_gives_a_new_key() -> None:
    assert len({key_of(ChaCha()) for _ in range(20)}) == 20


# -------------------------------------------------------------------------------------------- spawn


def child_key(parent: bytes, i: int) -> bytes:
    return hashlib.sha256(b"dpftrl_fast/spawn/v1\x00" + parent + i.to_bytes(8, "little")).digest()


def test_spawn() -> None:
    generator = ChaCha(7, rounds=20)
    generator.random_raw(5)
    root = seed_key(b"i\x07")
    first, second = generator.spawn(2)
    (third,) = Generator(generator).spawn(1)
    third = third.bit_generator
    for i, child in enumerate((first, second, third)):
        assert type(child) is ChaCha
        assert child.rounds == 20
        assert key_of(child) == child_key(root, i)
        assert child.seed_seq.spawn_key == (i,)
        assert position_of(child) == 0
    (grandchild,) = second.spawn(1)
    assert key_of(grandchild) == child_key(child_key(root, 1), 0)
    assert grandchild.seed_seq.spawn_key == (1, 0)
    assert generator.seed_seq.n_children_spawned == 3
    assert generator.spawn(0) == []


def test_spawn_from_numpy_seed_sequences() -> None:
    generator = ChaCha(SeedSequence(5), rounds=8)
    (child,) = generator.spawn(1)
    assert child.rounds == 8
    assert key_of(child) == key_of(ChaCha(SeedSequence(5).spawn(1)[0]))
    streams = [Generator(ChaCha(s)).random() for s in SeedSequence(1).spawn(10)]
    assert len(set(streams)) == 10


def test_spawn_needs_a_sequence_that_can() -> None:
    class Fixed(ISeedSequence):
        def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
            return np.ones(n_words, dtype=dtype)

    generator = ChaCha(Fixed())
    with pytest.raises(TypeError, match="does not implement spawning"):
        generator.spawn(1)
    with pytest.raises(TypeError, match="does not implement spawning"):
        Generator(generator).spawn(1)


def test_spawn_refuses_wrong_counts() -> None:
    generator = ChaCha(7)
    with pytest.raises(ValueError, match="n_children must be an integer >= 0, got -1"):
        generator.spawn(-1)
    with pytest.raises(TypeError, match="n_children must be an integer >= 0, got float"):
        generator.spawn(1.0)  # type: ignore[arg-type]
    assert generator.seed_seq.n_children_spawned == 0


def test_threads_never_get_the_same_child() -> None:
    sequence = KeySequence(7)
    made: list[KeySequence] = []
    threads = [threading.Thread(target=lambda: made.extend(sequence.spawn(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(child.spawn_key for child in made) == [(i,) for i in range(800)]


def test_key_sequence_seeds_other_generators_with_other_words() -> None:
    sequence = KeySequence(7)
    assert isinstance(sequence, ISpawnableSeedSequence)
    key = seed_key(b"i\x07")
    words = sequence.generate_state(100)
    expected = hashlib.shake_256(b"dpftrl_fast/words/v1\x00" + key).digest(400)
    assert words.dtype == np.uint32
    assert words.astype("<u4").tobytes() == expected
    assert sequence.generate_state(50, np.uint64).astype("<u8").tobytes() == expected
    assert sequence.generate_state(0).shape == (0,)
    assert not set(words.tolist()) & set(as_words(key))
    assert (
        Generator(np.random.PCG64(sequence)).random()
        == Generator(np.random.PCG64(KeySequence(7))).random()
    )
    for wrong in (np.uint8, np.int32, "float64"):
        with pytest.raises(ValueError, match="dtype must be uint32 or uint64"):
            sequence.generate_state(4, wrong)
    with pytest.raises(ValueError, match="n_words must be an integer >= 0, got -1"):
        sequence.generate_state(-1)


def test_pickles_and_copies_of_a_key_sequence_go_on_where_it_is() -> None:
    (sequence,) = KeySequence(7).spawn(1)
    sequence.spawn(2)
    for twin in (
        pickle.loads(pickle.dumps(sequence)),
        copy.copy(sequence),
        copy.deepcopy(sequence),
    ):
        assert twin.spawn_key == (0,)
        assert twin.n_children_spawned == 2
        assert key_of(ChaCha(twin)) == key_of(ChaCha(sequence))
        assert twin.spawn(1)[0].spawn_key == (0, 2)
    assert sequence.n_children_spawned == 2
