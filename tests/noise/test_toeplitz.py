# SPDX-License-Identifier: Apache-2.0
"""Noise of Toeplitz mechanisms: the bits of the reference for every kind and setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import reference
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    ToeplitzMechanism,
)

KINDS: dict[str, ToeplitzMechanism] = {
    "identity": Identity(),
    "two taps": BandedInverse.anticorrelated(0.9),
    "signed taps": BandedInverse([1.0, -0.5, 0.2, -0.15]),
    "twelve taps": BandedInverse.square_root(12),
    "one buffer": BufferedToeplitz([0.9], [0.3]),
    "two buffers": BufferedToeplitz([0.98, 0.5], [0.25, 0.2]),
    "no scale, full decay": BufferedToeplitz([1.0, 0.5], [0.0, 0.2]),
    "one band": BandedToeplitz([1.0]),
    "three bands": BandedToeplitz([1.0, 0.5, 0.3]),
    "six bands": BandedToeplitz([2.0, 0.5, -0.3, 0.1, 0.05, 0.2]),
}
SIZE, OFFSET, STD = 5000, 300, 1.5
MEMORY = ["stored", "regenerate", 1, 2, 3, 5]
TARGETS = dpf.build_info()["targets"]


def make(name: str, **options: Any) -> dpf.ToeplitzNoise:
    given: dict[str, Any] = {"seed": 7, "offset": OFFSET, "threads": 1}
    return dpf.ToeplitzNoise(options.pop("size", SIZE), STD, KINDS[name], **{**given, **options})


def oracle(name: str, dtype: str, size: int = SIZE) -> reference.ToeplitzNoise:
    kind, first, second = KINDS[name].engine
    return reference.ToeplitzNoise(
        size, STD, kind, first, second, seed=7, dtype=dtype, offset=OFFSET
    )


@pytest.fixture(scope="module", params=[(n, d) for n in KINDS for d in ("float32", "float64")])
def expected(request: pytest.FixtureRequest) -> tuple[str, Any, list[Any], list[Any]]:
    """A kind, a dtype, and x of nine steps of block 0 and of four of block 1."""
    name, dtype = request.param
    noise = oracle(name, dtype)
    noise.advance_to(9)
    first = noise.x
    noise.restart()
    noise.advance_to(4)
    return name, dtype, first, noise.x


def total(parts: list[Any]) -> Any:
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


@pytest.mark.parametrize("memory", MEMORY)
@pytest.mark.parametrize("threads", [1, 2])
def test_every_setting_has_the_bits_of_the_definition(
    expected: Any, memory: Any, threads: int
) -> None:
    name, dtype, x, y = expected
    options = {"dtype": dtype, "memory": memory, "threads": threads}
    residuals, steps, mixed = (make(name, **options) for _ in range(3))
    for t in range(1, 10):
        assert (residuals.residual() == x[t - 1]).all()
        assert (steps.step() == total(x[:t])).all()
        found, right = (mixed.step(), total(x[:t])) if t % 2 else (mixed.residual(), x[t - 1])
        assert (found == right).all() and mixed.t == t
    assert (residuals.prefix(6) == total(x[:6])).all() and residuals.t == 9
    for noise in (residuals, steps, mixed):
        assert (noise.current() == total(x)).all()
        noise.restart()
        assert (noise.residual() == y[0]).all() and (noise.block, noise.t) == (1, 1)
        assert (noise.step() == total([*x, y[0], y[1]])).all()
        assert (noise.prefix(3) == total(y[:3])).all()


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
def test_skipped_steps_are_in_the_next_value(expected: Any, memory: Any) -> None:
    name, dtype, x, y = expected
    noise = make(name, dtype=dtype, memory=memory)
    noise.residual()
    noise.advance_to(4)
    assert (noise.residual() == total(x[1:5])).all()
    assert (noise.residual() == x[5]).all() and (noise.residual() == x[6]).all()
    noise.advance_to(9)
    noise.restart()
    noise.advance_to(1)
    assert (noise.residual() == total([x[7], x[8], y[0], y[1]])).all()
    assert (noise.current() == total([*x, *y[:2]])).all()
    late = make(name, dtype=dtype, memory=memory)
    late.advance_to(8)
    assert (late.step() == total(x)).all()
    untouched = make(name, dtype=dtype, memory=memory)
    assert not untouched.current().any()


@pytest.mark.parametrize("memory", ["stored", "regenerate", 1, 3])
def test_a_state_resumes_with_the_same_bits(expected: Any, memory: Any) -> None:
    name, dtype, x, y = expected
    for taken, restarted in ((0, False), (1, False), (4, False), (4, True)):
        first = make(name, dtype=dtype, memory=memory)
        for t in range(taken):
            first.step() if t % 2 else first.residual()
        if restarted:
            first.restart()
            first.residual()
        state = first.state_dict()
        # JSON holds the position; vectors only save work.
        plain = {**json.loads(json.dumps({**state, "vectors": []})), "vectors": []}
        rest = [*x[:4], y[0], y[1]] if restarted else [*x[: taken + 1]]
        for saved in (state, plain):
            for setting in ("stored", "regenerate", 2):
                again = make(name, dtype=dtype, memory=setting, seed=99)
                again.load_state_dict(saved)
                assert (again.current() == first.current()).all()
                assert (again.residual() == rest[-1]).all()
                assert (again.step() == total([*rest, (y if restarted else x)[again.t - 1]])).all()


def test_a_state_with_wrong_vectors_is_not_used() -> None:
    noise = make("three bands")
    for _ in range(4):
        noise.step()
    state = noise.state_dict()
    one_less = {**state, "vectors": [v for v in state["vectors"] if v[:2] != ("slot", 1)]}
    again = make("three bands", seed=99)
    again.load_state_dict(one_less)  # the rest is made again from the key
    assert (again.residual() == noise.residual()).all()
    for bad in ("slot", 1, state["vectors"][0][2][:3]), ("other", 1, state["vectors"][0][2]):
        with pytest.raises(ValueError, match="a saved vector must be"):
            again.load_state_dict({**state, "vectors": [bad]}, allow_fork=True)
    secret = dpf.ToeplitzNoise(5, 1.0, KINDS["two taps"])
    secret.step()
    earlier = secret.state_dict()
    secret.step()
    with pytest.raises(ValueError, match="state is at step 1 of block 0, behind this object"):
        secret.load_state_dict(earlier)
    with pytest.raises(ValueError, match="state has mechanism"):
        make("six bands").load_state_dict(state)


@pytest.mark.parametrize("name", KINDS)
def test_splits_of_the_coordinates_give_slices(name: str) -> None:
    whole = make(name, size=3000)
    parts = [make(name, size=n, offset=OFFSET + at) for at, n in ((0, 700), (700, 1), (701, 2299))]
    for _ in range(5):
        joined = np.concatenate([part.residual() for part in parts])
        assert (joined == whole.residual()).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["signed taps", "two buffers", "six bands"])
def test_every_target_has_the_same_bits(target: str, dtype: Any, name: str) -> None:
    noise = make(name, dtype=dtype, size=700)
    noise._core = noise._cores[dtype](
        key=noise._key, threads=1, target=target, **noise._core_settings()
    )
    right = oracle(name, dtype, 700)
    for _ in range(6):
        assert (noise.residual() == right.residual()).all()


def test_golden_values() -> None:
    path = Path(__file__).parents[1] / "data" / "toeplitz_v1.json"
    purposes = {number: name for name, number in dpf.ToeplitzNoise._purposes.items()}
    values = {"taps": BandedInverse, "bands": BandedToeplitz}
    scripts = json.loads(path.read_text("utf-8"))
    assert len(scripts) == 14
    for script in scripts:
        options = {**script["options"], "purpose": purposes[script["options"]["purpose"]]}
        mechanism: Any = (
            BufferedToeplitz(script["first"], script["second"])
            if script["kind"] == "buffers"
            else values[script["kind"]](script["first"])
        )
        noise = dpf.ToeplitzNoise(options.pop("size"), options.pop("std"), mechanism, **options)
        for (call, *arguments), right in zip(script["calls"], script["returned"], strict=True):
            found = getattr(noise, call)(*arguments)
            if right is not None:
                assert found.astype(found.dtype.newbyteorder(">")).tobytes().hex() == right
            else:
                assert found is None


@pytest.mark.parametrize("name", ["two taps", "two buffers", "six bands"])
def test_covariance_is_that_of_the_matrix(name: str) -> None:
    steps, size = 64, 10**6
    kind, first, second = KINDS[name].engine
    inverse = np.linalg.inv(reference.strategy_matrix(kind, first, second, steps=steps))
    sums = np.tril(np.ones((steps, steps))) @ inverse
    # Sums over coordinates of products with a few fixed steps: a column of the covariance each.
    picked = [0, 1, 7, 31, 63]
    for call, matrix in (("residual", inverse), ("step", sums)):
        noise = dpf.ToeplitzNoise(size, 1.0, KINDS[name], seed=11)
        drawn = np.stack([getattr(noise, call)() for _ in range(steps)])
        found = drawn @ drawn[picked].T / size
        right = (matrix @ matrix.T)[:, picked]
        spread = np.sqrt(
            (np.outer((matrix**2).sum(1), (matrix**2).sum(1)[picked]) + right**2) / size
        )
        assert np.abs((found - right) / spread).max() < 5.0


def test_memory_is_bounded() -> None:
    bounds = {
        ("two taps", "stored"): 1, ("two taps", "regenerate"): 0, ("twelve taps", "stored"): 11,
        ("twelve taps", 3): 3, ("two buffers", "stored"): 2, ("two buffers", "regenerate"): 0,
        ("two buffers", 1): 0, ("two buffers", 2): 2, ("six bands", "stored"): 5,
        ("six bands", 4): 0, ("identity", "stored"): 0,
    }  # fmt: skip
    for (name, memory), most in bounds.items():
        noise = make(name, memory=memory, size=10)
        for _ in range(15):
            noise.residual()
        assert noise.allocated_vectors == most
        noise.step()
        assert noise.allocated_vectors == most + 1  # the noise of the running sum


def test_streams_are_unrelated() -> None:
    one = make("two taps", size=100)
    first = one.residual()
    for options in ({"purpose": "covariance"}, {"purpose": "clip-norm"}, {"seed": 8}):
        assert not (make("two taps", size=100, **options).residual() == first).any()
    tree = dpf.TreeNoise(100, STD, seed=7, offset=OFFSET).step()
    assert not (tree == first).any()
    one.restart()
    assert not (one.residual() == first).any()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda n: n.advance_to(1), ValueError, r"t must be an integer in \[2, "),
        (lambda n: n.prefix(0), ValueError, "t must be an integer in"),
        (lambda n: n.step(np.empty(5, np.float64)), TypeError, "out must be a writable"),
        (lambda n: n.step(np.empty(4, np.float32)), ValueError, "out must be a writable"),
        (lambda n: n.load_state_dict({}), ValueError, "state lacks format"),
        (lambda n: n.__reduce__(), TypeError, "a ToeplitzNoise holds a secret key"),
    ],
)
def test_refused_calls_change_nothing(call: Any, error: type[Exception], words: str) -> None:
    noise, right = make("two buffers", size=5), make("two buffers", size=5)
    for one in (noise, right):
        one.residual()
        one.residual()
    with pytest.raises(error, match=words):
        call(noise)
    assert (noise.residual() == right.residual()).all()


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"mechanism": "tree"}, TypeError, "mechanism must be a Toeplitz mechanism such as"),
        ({"mechanism": Identity}, TypeError, "mechanism must be a Toeplitz mechanism such as"),
        ({"purpose": "tree"}, ValueError, "purpose must be one of 'sum', 'covariance'"),
        ({"memory": 0}, ValueError, "memory must be an integer in"),
        ({"dtype": "float16"}, ValueError, "dtype must be 'float32' or 'float64'"),
        ({"std": np.nan}, ValueError, "std must be a finite number > 0"),
        ({"size": 0}, ValueError, "size must be an integer in"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], words: str) -> None:
    given: dict[str, Any] = {"size": 5, "std": 1.0, "mechanism": Identity(), "seed": 1, **options}
    with pytest.raises(error, match=words):
        dpf.ToeplitzNoise(**given)


def test_restart_needs_a_step() -> None:
    with pytest.raises(ValueError, match="restart needs at least one step"):
        make("two taps").restart()
