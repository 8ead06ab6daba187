# SPDX-License-Identifier: Apache-2.0
"""The noise of many steps in one call has the bits of as many calls of `step`."""

from __future__ import annotations

import signal
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpftrl_fast as dpf
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz, Identity
from dpftrl_fast.noise.arguments import MAX_STEPS

KINDS: dict[str, Any] = {
    "vanilla": "vanilla",
    "honaker": "honaker",
    "identity": Identity(),
    "taps": BandedInverse((1.0, -0.5, 0.25, 0.0, -0.125)),
    "buffers": BufferedToeplitz((0.984375, 0.75, 0.5), (0.125, 0.25, 0.0625)),
    "bands": BandedToeplitz((2.0, 0.5, 0.375)),
}
MEMORIES = ["stored", "regenerate", 1, 3]


def source(kind: str, size: int = 5, **options: Any) -> Any:
    options = {"seed": 3, "dtype": "float64", **options}
    if isinstance(KINDS[kind], str):
        return dpf.TreeNoise(size, 0.7, variant=KINDS[kind], **options)
    return dpf.ToeplitzNoise(size, 0.7, KINDS[kind], **options)


def one_by_one(noise: Any, n: int) -> np.ndarray[Any, Any]:
    rows = [noise.step() for _ in range(n)]
    return np.array(rows, noise.dtype).reshape(n, noise.size)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("next_steps"), st.integers(0, 40)),
            st.tuples(st.sampled_from(["step", "residual"]), st.integers(1, 3)),
            st.tuples(st.sampled_from(["restart", "complete"]), st.just(0)),
            st.tuples(st.just("skip"), st.integers(1, 30)),
            st.tuples(st.sampled_from(["resume", "resume without vectors"]), st.just(0)),
        ),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(["float32", "float64"]),
    st.sampled_from([(1, 0), (5, 253), (70, 90)]),
)
def test_any_run(kind: str, memory: Any, calls: Any, dtype: str, place: tuple[int, int]) -> None:
    size, offset = place
    options: dict[str, Any] = {"memory": memory, "dtype": dtype, "offset": offset, "rounds": 8}
    noise, plain = source(kind, size, **options), source(kind, size, **options)
    most = 0
    for call, n in calls:
        if call == "next_steps":
            np.testing.assert_array_equal(noise.next_steps(n), one_by_one(plain, n))
        elif call in ("step", "residual"):
            for _ in range(n):
                np.testing.assert_array_equal(getattr(noise, call)(), getattr(plain, call)())
        elif call == "skip":
            noise.advance_to(noise.t + n), plain.advance_to(plain.t + n)
        elif call in ("restart", "complete") and noise.t > 0:
            arguments = {"complete": call == "complete"} if isinstance(KINDS[kind], str) else {}
            noise.restart(**arguments), plain.restart(**arguments)
        elif call.startswith("resume"):
            state = noise.state_dict()
            noise = source(kind, size, **options)
            noise.load_state_dict({**state, "vectors": []} if "without" in call else state)
        assert (noise.t, noise._block) == (plain.t, plain._block)
        np.testing.assert_array_equal(noise.current(), plain.current())
        most = max(most, plain.t)
        if kind in ("vanilla", "honaker"):  # a carry and a value last returned come on top
            assert noise.allocated_vectors <= most.bit_length() + 3


@pytest.mark.parametrize("memory", ["stored", "regenerate"])
@pytest.mark.parametrize("kind", ["vanilla", "honaker", "taps", "buffers"])
def test_vectors_of_many_tiles_and_threads(kind: str, memory: Any) -> None:
    size = 8192 * 3 + 77
    options: dict[str, Any] = {"memory": memory, "offset": 1000, "threads": 3, "dtype": "float32"}
    rows = source(kind, size, **options).next_steps(11)
    np.testing.assert_array_equal(rows, one_by_one(source(kind, size, **options), 11))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_calls_are_made_in_parts(kind: str, dtype: str) -> None:
    n = 4096 + 1500
    rows = source(kind, 3, dtype=dtype, rounds=8).next_steps(n)
    np.testing.assert_array_equal(rows, one_by_one(source(kind, 3, dtype=dtype, rounds=8), n))


@pytest.mark.parametrize("kind", KINDS)
def test_where_it_writes(kind: str) -> None:
    want = source(kind).next_steps(4)
    assert want.shape == (4, 5) and want.dtype == np.float64
    out = np.full((4, 5), np.nan)
    assert source(kind).next_steps(4, out) is out
    np.testing.assert_array_equal(out, want)
    flat = np.full(20, np.nan)
    assert source(kind).next_steps(4, flat) is flat
    np.testing.assert_array_equal(flat, want.reshape(-1))
    memory = bytearray(20 * 8)
    source(kind).next_steps(4, memoryview(memory).cast("d"))
    assert bytes(memory) == want.tobytes()
    assert source(kind).next_steps(0).shape == (0, 5)
    source(kind).next_steps(0, np.empty((0, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_take_no_step(kind: str) -> None:
    noise = source(kind)
    noise.step()
    before = noise.state_dict()
    read_only = np.zeros((2, 5))
    read_only.flags.writeable = False
    for n, out in (
        (2, np.zeros((2, 5), np.float32)),
        (2, np.zeros((3, 5))),
        (0, np.zeros((1, 5))),
        (2, np.zeros((2, 10))[:, ::2]),
        (2, read_only),
        (2, [[0.0] * 5] * 2),
        (-1, None),
        (1.5, None),
        (True, None),
        (MAX_STEPS, None),
        (2**70, None),
        (2**45, np.zeros((2, 5))),
    ):
        with pytest.raises((TypeError, ValueError)):
            noise.next_steps(n, out)
    assert str(noise.state_dict()) == str(before)
    np.testing.assert_array_equal(noise.step(), one_by_one(source(kind), 2)[1])


def test_the_core_refuses_rows_that_are_not_there() -> None:
    core = source("taps")._core
    room = np.zeros((2, 5))
    for rows, first, count in ((2, 1, 2), (2, 3, 0), (2, 0, 3), (2**63, 0, 0), (2**62 + 2, 0, 2)):
        with pytest.raises((TypeError, ValueError)):
            core.steps(room, rows, first, count)
    assert core.t == 0


@pytest.mark.parametrize("kind", ["vanilla", "honaker", "buffers", "taps"])
def test_ctrl_c_leaves_a_whole_step_and_the_rows_before_it(kind: str) -> None:
    size, n = 60, 400_000
    noise = source(kind, size, dtype="float32", rounds=20)
    out = np.zeros((n, size), np.float32)

    class Stop(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Stop

    usual = signal.signal(signal.SIGUSR1, stop)
    timer = threading.Timer(0.15, signal.raise_signal, [signal.SIGUSR1])
    try:
        timer.start()
        with pytest.raises(Stop):
            noise.next_steps(n, out)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, usual)
    taken = noise.t
    assert 0 <= taken < n
    plain = source(kind, size, dtype="float32", rounds=20)
    want = plain.next_steps(taken + 20)
    np.testing.assert_array_equal(out[:taken], want[:taken])
    assert np.isnan(out[taken:]).all()  # no noise that will be given again
    np.testing.assert_array_equal(noise.next_steps(20), want[taken:])


def test_threads_take_turns() -> None:
    noise = source("honaker", 40)
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(noise.next_steps(300))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = source("honaker", 40).next_steps(1200).reshape(4, 300, 40)
    for rows in got:
        assert any(np.array_equal(rows, part) for part in want)
    assert noise.t == 1200


@pytest.mark.parametrize("kind", ["honaker", "taps"])
def test_a_forked_copy_of_a_secret_source_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, public = source(kind, seed=None), source(kind)
    monkeypatch.setattr("dpftrl_fast.noise.source.process_mark", lambda: (1, 1))
    out = np.full((2, 5), 7.0)
    with pytest.raises(RuntimeError, match="forked from one that holds the same key"):
        secret.next_steps(2, out)
    assert secret.t == 0 and (out == 7.0).all()
    public.next_steps(2, out)
