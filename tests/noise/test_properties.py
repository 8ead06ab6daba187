# SPDX-License-Identifier: Apache-2.0
"""Whatever the memory, the threads, the split and the order of calls: the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import dpftrl_fast as dpf
from dpftrl_fast import reference

MEMORY = st.one_of(st.sampled_from(["stored", "regenerate"]), st.integers(1, 9))
STREAM = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**70),
        "variant": st.sampled_from(["vanilla", "honaker"]),
        "dtype": st.sampled_from(["float32", "float64"]),
        "rounds": st.sampled_from([8, 12, 20]),
        "purpose": st.sampled_from(["tree", "covariance", "clip-norm"]),
    }
)
CALL = st.one_of(
    st.tuples(st.just("step")),
    st.tuples(st.just("residual")),
    st.tuples(st.just("prefix"), st.integers(1, 200)),
    st.tuples(st.just("node"), st.integers(0, 46), st.integers(0, 0)),
    st.tuples(st.just("node"), st.just(0), st.integers(0, 2**46 - 1)),
    st.tuples(st.just("advance"), st.integers(0, 30)),
    st.tuples(st.just("restart"), st.booleans()),
)


def call(noise: Any, name: str, *arguments: int) -> bytes:
    if name == "advance":
        noise.advance_to(noise.t + arguments[0])
        return b""
    if name == "restart":
        if noise.t > 0:
            noise.restart(complete=bool(arguments[0]))
        return b""
    return bytes(getattr(noise, name)(*arguments).tobytes())


@settings(deadline=None, max_examples=30)
@given(stream=STREAM, memory=MEMORY, calls=st.lists(CALL, max_size=25))
def test_any_calls_give_the_references_values(
    stream: dict[str, Any], memory: Any, calls: list[tuple[Any, ...]]
) -> None:
    number = {"tree": 0, "covariance": 1, "clip-norm": 2}[stream["purpose"]]
    noise = dpf.TreeNoise(3, 1.5, memory=memory, threads=1, offset=254, **stream)
    expected = reference.TreeNoise(3, 1.5, offset=254, **{**stream, "purpose": number})
    for name, *arguments in calls:
        assert call(noise, name, *arguments) == call(expected, name, *arguments)
        assert (noise.t, noise.tree) == (expected.t, expected.tree)


@settings(deadline=None, max_examples=20)
@given(
    stream=STREAM,
    memories=st.lists(MEMORY, min_size=2, max_size=4),
    calls=st.lists(CALL, max_size=40),
    reload_every=st.integers(1, 10),
    key_in_state=st.booleans(),
)
def test_saving_and_loading_anywhere_changes_nothing(
    stream: dict[str, Any],
    memories: list[Any],
    calls: list[tuple[Any, ...]],
    reload_every: int,
    key_in_state: bool,
) -> None:
    plain = dpf.TreeNoise(4, 1.5, threads=1, **stream)
    noise = dpf.TreeNoise(4, 1.5, threads=1, memory=memories[0], **stream)
    for i, (name, *arguments) in enumerate(calls):
        if i % reload_every == 0:
            state = noise.state_dict(key=key_in_state)
            other = {**stream, "seed": 12345} if key_in_state else stream
            noise = dpf.TreeNoise(4, 1.5, threads=1, memory=memories[i % len(memories)], **other)
            noise.residual()
            noise.load_state_dict(state)
        assert call(noise, name, *arguments) == call(plain, name, *arguments)


@settings(deadline=None, max_examples=12)
@given(
    stream=STREAM,
    size=st.integers(2, 60_000),
    offset=st.integers(0, 2**34),
    where=st.floats(0, 1),
    threads=st.integers(1, 4),
    memory=MEMORY,
)
def test_any_split_over_any_threads_gives_slices(
    stream: dict[str, Any], size: int, offset: int, where: float, threads: int, memory: Any
) -> None:
    cut = 1 + int(where * (size - 2))
    whole = dpf.TreeNoise(size, 0.7, threads=1, offset=offset, **stream)
    left = dpf.TreeNoise(cut, 0.7, threads=threads, memory=memory, offset=offset, **stream)
    right = dpf.TreeNoise(size - cut, 0.7, threads=threads, offset=offset + cut, **stream)
    for _ in range(3):
        expected = whole.residual()
        assert np.concatenate([left.residual(), right.residual()]).tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=15)
@given(stream=STREAM, order=st.permutations(range(1, 16)))
def test_prefixes_in_any_order(stream: dict[str, Any], order: list[int]) -> None:
    noise = dpf.TreeNoise(3, 1.0, memory="regenerate", threads=1, **stream)
    steps = [noise.step().tobytes() for _ in range(15)]
    other = dpf.TreeNoise(3, 1.0, threads=1, **stream)
    for t in order:
        assert other.prefix(t).tobytes() == steps[t - 1]
    assert other.t == 0
