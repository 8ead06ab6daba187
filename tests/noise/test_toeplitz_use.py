# SPDX-License-Identifier: Apache-2.0
"""`ToeplitzNoise` in use: any order of calls, threads, forks, Ctrl-C, copies, positions."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import child

import dpftrl_fast as dpf
from dpftrl_fast import reference
from dpftrl_fast.mechanisms import BandedInverse, BandedToeplitz, BufferedToeplitz

KINDS = {
    "taps": BandedInverse([1.0, -0.5, 0.25, -0.125]),
    "buffers": BufferedToeplitz([0.75, 0.5], [0.25, 0.125]),
    "bands": BandedToeplitz([2.0, 0.5, 0.25]),
}
SIZE = 40_000  # enough tiles for several threads


def seeded(kind: str, size: int = SIZE, **options: Any) -> dpf.ToeplitzNoise:
    return dpf.ToeplitzNoise(size, 1.0, KINDS[kind], **{"seed": 1, "threads": 1, **options})


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(["float32", "float64"]),
    offset=st.sampled_from([0, 1, 250, 2040]),
    first=st.sampled_from(["stored", "regenerate", 1, 2, 3]),
    calls=st.lists(
        st.sampled_from(["step", "residual", "skip", "restart", "load", "load without vectors"]),
        max_size=14,
    ),
    data=st.data(),
)
def test_any_calls_give_the_references_values(
    kind: str, dtype: Any, offset: int, first: Any, calls: list[str], data: st.DataObject
) -> None:
    name, one, two = KINDS[kind].engine
    plain = reference.ToeplitzNoise(7, 1.0, name, one, two, seed=1, dtype=dtype, offset=offset)
    options: dict[str, Any] = {"size": 7, "dtype": dtype, "offset": offset}
    noise = seeded(kind, memory=first, **options)
    for call in calls:
        if call in ("step", "residual"):
            assert (getattr(noise, call)() == getattr(plain, call)()).all()
            assert (noise.prefix(plain.t) == plain.prefix(plain.t)).all()
        elif call == "skip":
            to = noise.t + data.draw(st.integers(0, 5))
            for source in (noise, plain):
                source.advance_to(to)
        elif call == "restart" and noise.t > 0:
            for source in (noise, plain):
                source.restart()
        elif call.startswith("load"):
            state = noise.state_dict()
            if call != "load":
                state = json.loads(json.dumps({**state, "vectors": []}))
            memory = data.draw(st.sampled_from(["stored", "regenerate", 2]))
            noise = seeded(kind, memory=memory, **{**options, "seed": 5})
            noise.load_state_dict(state)
        assert (noise.t, noise.block) == (plain.t, plain.block)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory", ["stored", "regenerate"])
def test_threads_take_turns_on_one_object(memory: Any, kind: str) -> None:
    noise = seeded(kind, memory=memory, threads=2)
    plain = seeded(kind)
    expected = {plain.step().tobytes() for _ in range(18)}
    third = plain.prefix(3).tobytes()
    got: list[bytes] = []

    def work() -> None:
        for _ in range(6):
            got.append(noise.step().tobytes())
            assert noise.prefix(3).tobytes() == third

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == noise.t == 18
    assert set(got) == expected  # each step was given to one caller


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("is_secret", [True, False])
def test_a_forked_copy_of_a_secret_source_is_refused(is_secret: bool) -> None:
    noise = dpf.ToeplitzNoise(5, 1.0, KINDS["taps"], seed=None if is_secret else 1, threads=1)
    noise.residual()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, noise.residual().tobytes())
        except RuntimeError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        got = pipe.read()
    os.waitpid(pid, 0)
    if is_secret:
        assert b"this process was forked from one that holds the same key" in got
    else:
        assert got == noise.residual().tobytes()


INTERRUPTED = """
    import sys
    import numpy as np
    import dpftrl_fast as dpf
    from dpftrl_fast import mechanisms as mech

    kind, threads, call = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    mechanism = {
        "taps": mech.BandedInverse([1.0, -0.5]),
        "buffers": mech.BufferedToeplitz([0.75, 0.5], [0.25, 0.125]),
        "bands": mech.BandedToeplitz([2.0, 0.5, 0.25]),
    }[kind]
    size = 5 if threads == 1 else 40_000
    noise = dpf.ToeplitzNoise(size, 1.0, mechanism, seed=1, threads=threads)
    noise.residual()
    before = noise.state_dict()
    if call != "prefix":
        noise.advance_to(2**40)
    print("ready", flush=True)
    try:
        noise.prefix(2**40) if call == "prefix" else getattr(noise, call)()
    except KeyboardInterrupt:
        assert noise.t == (1 if call == "prefix" else 2**40)
        noise.load_state_dict({**before, "vectors": []})
        fresh = dpf.ToeplitzNoise(size, 1.0, mechanism, seed=1, threads=1)
        fresh.residual()
        for call in ("residual", "step", "residual"):
            assert getattr(noise, call)().tobytes() == getattr(fresh, call)().tobytes()
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("kind", "threads", "call"),
    [("taps", 1, "prefix"), ("buffers", 2, "residual"), ("bands", 1, "step")],
)
def test_ctrl_c_ends_a_long_call_and_the_object_goes_on(kind: str, threads: int, call: str) -> None:
    script = textwrap.dedent(INTERRUPTED)
    with child(
        [sys.executable, "-c", script, kind, str(threads), call],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
        assert process.stdout.read() == "interrupted\n", process.stderr.read()
        assert process.returncode == 0


@pytest.mark.parametrize("dump", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickles_and_copies_are_refused(dump: Any) -> None:
    with pytest.raises(TypeError, match="a ToeplitzNoise holds a secret key and is not pickled"):
        dump(seeded("taps", 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_without_key_holds_a_position_only(kind: str) -> None:
    secret = dpf.ToeplitzNoise(5, 1.0, KINDS[kind], key=bytes(range(32)))
    for _ in range(4):
        secret.step()
    state = secret.state_dict(key=False)
    assert state["key"] is None and state["vectors"] == []
    assert bytes(range(32)).hex() not in json.dumps(state) + repr(secret)
    other = dpf.ToeplitzNoise(5, 1.0, KINDS[kind], key=bytes(range(32)), memory="regenerate")
    other.load_state_dict(json.loads(json.dumps(state)))
    assert (other.step() == secret.step()).all()


def test_attributes() -> None:
    noise = seeded("buffers", 9, offset=4, rounds=20, memory=3, dtype="float64", threads=2)
    assert (noise.size, noise.std, noise.offset, noise.rounds) == (9, 1.0, 4, 20)
    assert (noise.memory, noise.threads, noise.dtype) == (3, 2, np.dtype(np.float64))
    assert (noise.t, noise.block, noise.reproducible) == (0, 0, True)
    assert noise.mechanism == KINDS["buffers"]
    rounded = dpf.ToeplitzNoise(9, 1.0, BandedInverse([1.0, -0.9]), seed=1).mechanism
    assert rounded.engine.first == (1.0, float(np.float32(-0.9)))


@pytest.mark.parametrize("call", ["step", "residual", "current"])
def test_noise_goes_into_the_callers_memory(call: str) -> None:
    noise, plain = seeded("bands", 6), seeded("bands", 6)
    for source in (noise, plain):
        source.residual(), source.residual()
    out = np.zeros((2, 3), np.float32)
    assert getattr(noise, call)(out) is out
    assert (out.ravel() == getattr(plain, call)()).all()
    buffer = memoryview(bytearray(24)).cast("f")
    assert noise.prefix(2, buffer) is buffer
    assert bytes(buffer) == plain.prefix(2).tobytes()
