# SPDX-License-Identifier: Apache-2.0
"""Several threads on one object, forks, Ctrl-C and signal handlers."""

from __future__ import annotations

import multiprocessing
import os
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
from processes import child

import dpftrl_fast as dpf

SIZE = 40_000  # enough tiles for several threads


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.parametrize("memory", ["stored", "regenerate"])
def test_threads_take_turns_on_one_object(memory: Any, variant: Any) -> None:
    noise = dpf.TreeNoise(SIZE, 1.0, seed=1, memory=memory, variant=variant, threads=2)
    plain = dpf.TreeNoise(SIZE, 1.0, seed=1, variant=variant, threads=1)
    expected = {plain.step().tobytes() for _ in range(60)}
    third = plain.prefix(3).tobytes()
    got: list[bytes] = []

    def work(number: int) -> None:
        for _ in range(20):
            got.append(noise.step().tobytes())
            assert noise.prefix(3).tobytes() == third
            assert 0 < noise.t <= 60

    in_threads(3, work)
    assert noise.t == 60
    assert len(got) == 60
    assert set(got) == expected  # each step was given to one caller


def test_objects_in_threads_do_not_disturb_each_other() -> None:
    expected = [dpf.TreeNoise(SIZE, 1.0, seed=i, threads=1).prefix(9).tobytes() for i in range(4)]

    def work(number: int) -> None:
        noise = dpf.TreeNoise(SIZE, 1.0, seed=number, threads=2)
        for _ in range(5):
            assert noise.prefix(9).tobytes() == expected[number]

    in_threads(4, work)


def test_prefix_sum_takes_no_step_too_many_in_threads() -> None:
    sums = dpf.PrefixSum(2, 50, 1.0, 1e-6, seed=1)
    refused: list[ValueError] = []

    def work(number: int) -> None:
        for _ in range(30):
            try:
                sums.add([0.5, 0.0])
            except ValueError as error:
                refused.append(error)

    in_threads(3, work)
    assert sums.t == 50
    assert len(refused) == 40
    np.testing.assert_allclose(sums.value, [25.0, 0.0], atol=1e-3)  # no record was lost


# --- fork -------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def values(noise: dpf.TreeNoise) -> bytes:
    return b"".join(noise.residual().tobytes()[:4000] for _ in range(3))


@needs_fork
@pytest.mark.parametrize("used_before", [False, True])
def test_a_forked_child_makes_the_same_noise(used_before: bool) -> None:
    noise = dpf.TreeNoise(SIZE, 1.0, seed=1, threads=2)
    plain = dpf.TreeNoise(SIZE, 1.0, seed=1, threads=1)
    if used_before:  # then the pool's threads exist in the parent and not in the child
        noise.step(), plain.step()
    expected = values(plain)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of a fork in a process with threads: the point of this test.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(30)
            os.write(writer, values(noise))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        got = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert got == expected
    assert values(noise) == expected


def child_values(seed: int) -> bytes:
    return values(dpf.TreeNoise(SIZE, 1.0, seed=seed, threads=2))


@needs_fork
def test_multiprocessing_with_fork() -> None:
    expected = [child_values(seed) for seed in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(child_values, range(3)) == expected


@needs_fork
def test_unseeded_objects_of_parent_and_child_differ() -> None:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.write(writer, dpf.TreeNoise(100, 1.0, threads=1).step().tobytes())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        got = pipe.read()
    os.waitpid(child, 0)
    assert len(got) == 400
    assert got != dpf.TreeNoise(100, 1.0, threads=1).step().tobytes()


FORKED_BY_C = """
    import ctypes, os, sys
    import numpy as np
    import dpftrl_fast as dpf
    from dpftrl_fast import mechanisms as mech
    from dpftrl_fast.convex.least_squares.engine import LeastSquares
    from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
    from dpftrl_fast.convex.row_batches import Batch

    tree = dpf.TreeNoise(2, 1.0, threads=1)
    taps = dpf.ToeplitzNoise(2, 1.0, mech.BandedInverse([1.0, -0.5]), threads=1)
    sums = dpf.PrefixSum(2, 4, 1.0, 10.0, threads=1)
    model = LeastSquares(LeastSquaresPlan(1.0, 1.0, 9.0, dpf.SinglePass(4)), 2, threads=1)
    calls = [
        tree.step,
        taps.residual,
        lambda: sums.add(np.zeros(2)),
        lambda: model.step(Batch(np.eye(2), np.ones(2))),
    ]
    for call in calls:
        call()
    pid = ctypes.PyDLL(None).fork()  # Python does not see it
    for call in calls:
        try:
            call()
            found = "went on"
        except RuntimeError as error:
            found = "refused" if "forked" in str(error) else str(error)
        if (found == "refused") != (pid == 0):
            os._exit(1)
    os._exit(0 if pid == 0 else os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@needs_fork
@pytest.mark.skipif(sys.platform == "win32", reason="C library by another name")
def test_a_fork_that_python_does_not_see_is_refused() -> None:
    program = textwrap.dedent(FORKED_BY_C)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


# --- signals ----------------------------------------------------------------------------------

INTERRUPTED = """
    import sys
    import numpy as np
    import dpftrl_fast as dpf

    size, threads, call = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    noise = dpf.TreeNoise(size, 1.0, seed=1, memory="regenerate", threads=threads)
    first = noise.step()
    if call != "prefix":
        noise.advance_to(2**40)
    out = np.zeros(size, np.float32)
    before = noise.state_dict()
    print("ready", flush=True)
    try:
        if call == "prefix":
            noise.prefix(2**40, out)
        elif call == "restart":
            noise.restart()
        else:
            getattr(noise, call)(out)
    except KeyboardInterrupt:
        assert noise.state_dict() == before
        fresh = dpf.TreeNoise(size, 1.0, seed=1, threads=1)
        assert noise.prefix(7).tobytes() == fresh.prefix(7).tobytes()
        if call == "prefix":
            fresh.step()
            assert noise.residual().tobytes() == fresh.residual().tobytes()
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    ("size", "threads", "call"),
    [
        (1, 1, "prefix"),
        (5, 1, "step"),
        (40_000, 2, "prefix"),
        (40_000, 2, "residual"),
        (3, 2, "restart"),
    ],
)
def test_ctrl_c_ends_a_long_call_and_the_object_goes_on(size: int, threads: int, call: str) -> None:
    script = textwrap.dedent(INTERRUPTED)
    with child(
        [sys.executable, "-c", script, str(size), str(threads), call],
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


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers")
def test_a_signal_handler_may_not_come_back_into_the_call() -> None:
    noise = dpf.TreeNoise(3, 1.0, seed=1, memory="regenerate")
    noise.step()
    seen: list[str] = []

    def handler(*_: object) -> None:
        for call in (lambda: noise.step(), lambda: noise.t, lambda: noise.state_dict()):
            try:
                call()
            except RuntimeError as error:
                seen.append(str(error))
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(InterruptedError):
            noise.prefix(2**40)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) == 3
    assert all("in the middle of a call on this thread" in text for text in seen)
    assert noise.t == 1
    plain = dpf.TreeNoise(3, 1.0, seed=1)
    plain.step()
    assert noise.step().tobytes() == plain.step().tobytes()
