# SPDX-License-Identifier: Apache-2.0
"""The noise of Toeplitz mechanisms on a GPU.

The bookkeeping beside the compiled cores, with steps made by NumPy; the kernel beside `reference`
under Triton's interpreter, which takes about a second a step; and what the compiler makes of it.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mechanism_cases import MECHANISMS, TOEPLITZ
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton_kernels import check_code, compiled, patch_builtins_once  # noqa: E402

from dpftrl_fast import PrivacyPlan, ToeplitzNoise, reference  # noqa: E402
from dpftrl_fast import accounting as acc  # noqa: E402
from dpftrl_fast.mechanisms import (  # noqa: E402
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
)
from dpftrl_fast.noise.keys import key_of_seed  # noqa: E402
from dpftrl_fast.reference.toeplitz import ToeplitzNoise as ReferenceNoise  # noqa: E402
from dpftrl_fast.torch.device import toeplitz as device_toeplitz  # noqa: E402
from dpftrl_fast.torch.device import triton_toeplitz  # noqa: E402
from dpftrl_fast.torch.device.noise import (  # noqa: E402
    DeviceNoise,
    DeviceToeplitz,
    device_source_of,
)
from dpftrl_fast.torch.device.stream import coefficients  # noqa: E402
from dpftrl_fast.torch.device.toeplitz import ToeplitzCore  # noqa: E402

CPU = torch.device("cpu")
KEY, SIZE, OFFSET, STD = key_of_seed(3), 5, 7, 1.5
KINDS: dict[str, Any] = {
    "identity": Identity(),
    "two taps": BandedInverse((1.0, -0.875)),
    "four taps": BandedInverse.square_root(4),
    "buffers": BufferedToeplitz((0.96875, 0.5), (0.25, 0.125)),
    "bands": BandedToeplitz((1.0, 0.5, 0.25)),
    "divided bands": BandedToeplitz((1.25, 0.5, 0.25, -0.125)),
}


@pytest.fixture(scope="module", autouse=True)
def builtins_are_patched_once() -> Iterator[None]:
    yield from patch_builtins_once()


# ---- the bookkeeping ----


@functools.cache
def leaf(key: bytes, purpose: int, block: int, t: int, offset: int, size: int, dtype: str) -> Any:
    return reference.normals(
        key, tree=block, level=0, index=t - 1, start=offset, size=size, dtype=dtype, purpose=purpose
    )


class NumpyStream:
    """`ToeplitzStream` without a device, written with differences."""

    def __init__(
        self,
        key: bytes,
        *,
        std: float,
        kind: str,
        first: Sequence[float],
        second: Sequence[float],
        dtype: Any,
        purpose: int,
        offset: int,
        size: int,
        **settings: Any,
    ) -> None:
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._std, self._kind = self._dtype.type(std), kind
        self._first = [self._dtype.type(v) for v in first]
        self._second = [self._dtype.type(v) for v in second]
        self._leaf = functools.partial(leaf, key, purpose)
        self._place = (offset, size, self._dtype.name)
        self.made = 0

    def _z(self, block: int, t: int) -> NDArray[Any]:
        self.made += 1
        return np.asarray(self._std * self._leaf(block, t, *self._place))

    def take(
        self,
        block: int,
        t: int,
        *,
        made: int,
        known: Sequence[Any],
        keep: Any,
        written: Sequence[Any],
        out: Any,
        total: Any,
        add_out: bool,
        add_total: bool,
        show_total: bool,
    ) -> None:
        x = z = self._z(block, t)
        for j in range(1, made):
            x = x + self._first[j] * self._z(block, t - j)
        for i, vector in enumerate(known):
            if self._kind == "buffers":
                x = x - self._second[i] * vector.numpy()
            elif self._kind == "bands":
                x = x - self._first[i + 1] * vector.numpy()
            else:
                x = x + self._first[i + 1] * vector.numpy()
        if self._kind == "bands":
            x = x / self._first[0]
        if keep is not None:
            keep.copy_(torch.from_numpy(z if self._kind == "taps" else x))
        for i, buffer in enumerate(written):
            s = self._first[i] * buffer.numpy() + x if known else x
            buffer.copy_(torch.from_numpy(s))
        x = torch.from_numpy(x.copy())
        if total is not None:
            total.copy_(total + x if add_total else x)
        if out is not None:
            out.copy_(total if show_total else out + x if add_out else x)


@pytest.fixture
def numpy_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_toeplitz, "ToeplitzStream", NumpyStream)


def a_core(mechanism: Any, memory: Any, dtype: str, purpose: int = 3) -> ToeplitzCore:
    kind, first, second = mechanism.engine
    vectors = {"stored": -1, "regenerate": 0}.get(memory, memory)
    return ToeplitzCore(
        size=SIZE, std=STD, key=KEY, rounds=12, purpose=purpose, offset=OFFSET, kind=kind,
        first=first, second=second, memory=vectors, dtype=getattr(torch, dtype), device=CPU,
    )  # fmt: skip


def most_vectors(mechanism: Any, memory: Any) -> int:
    """What the setting allows, and the noise of the running sum besides."""
    all_of_them = max(mechanism.vectors, mechanism.normals - 1)
    return 1 + int({"stored": all_of_them, "regenerate": 0}.get(memory, memory))


@pytest.mark.usefixtures("numpy_steps")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("memory", ["stored", "regenerate", 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_calls_in_any_order_have_the_bits_of_the_cpu(
    name: str, memory: Any, dtype: Any
) -> None:
    chance = random.Random(f"{name} {memory} {dtype}")
    mechanism = KINDS[name]
    cpu = ToeplitzNoise(SIZE, STD, mechanism, key=KEY, offset=OFFSET, memory=memory, dtype=dtype)
    core = a_core(mechanism, memory, dtype)
    kinds = ["step", "residual", "prefix", "current", "restart", "advance", "state", "from CPU"]
    for kind in chance.choices(kinds, [15, 40, 5, 5, 3, 3, 3, 3], k=100):
        if kind in ("step", "residual", "current"):
            assert np.array_equal(getattr(cpu, kind)(), getattr(core, kind)(None).numpy())
        elif kind == "prefix":
            t = chance.randint(1, cpu.t + 3)
            assert np.array_equal(cpu.prefix(t), core.prefix(t, None).numpy())
        elif kind == "restart" and cpu.t:
            cpu.restart()
            core.restart()
        elif kind == "advance":
            t = cpu.t + chance.randint(0, 5)
            cpu.advance_to(t)
            core.advance_to(t)
        elif kind == "state":
            *position, vectors = core.saved()
            core = a_core(mechanism, memory, dtype)
            core.set_position(*position, vectors if chance.random() < 0.5 else [])
        elif kind == "from CPU":
            core = a_core(mechanism, memory, dtype)
            core.set_position(*cpu._core.saved())
        assert core.allocated_vectors <= most_vectors(mechanism, memory)
        assert (core.t, core.block) == (cpu.t, cpu.block)


@pytest.mark.usefixtures("numpy_steps")
@pytest.mark.parametrize(
    ("name", "memory", "made"),
    [
        ("two taps", "stored", 2),
        ("four taps", "stored", 1),
        ("four taps", 2, 4),
        ("four taps", "regenerate", 4),
        ("buffers", "stored", 1),
        ("bands", 2, 1),
        ("bands", 1, 6),  # the whole block
        ("buffers", "regenerate", 6),
    ],
)
def test_normals_of_the_sixth_step(name: str, memory: Any, made: int) -> None:
    core = a_core(KINDS[name], memory, "float32")
    for _ in range(5):
        core.residual(None)
    stream: Any = core._stream
    stream.made = 0
    core.residual(None)
    assert stream.made == made


@pytest.mark.usefixtures("numpy_steps")
@pytest.mark.parametrize("name", KINDS)
def test_an_interrupted_step_is_taken_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = KINDS[name]
    cpu = ToeplitzNoise(SIZE, STD, mechanism, key=KEY, offset=OFFSET)
    core = a_core(mechanism, "stored", "float32")
    for _ in range(4):
        assert np.array_equal(cpu.step(), core.step(None).numpy())
    core.advance_to(5)  # two steps to make, of which one is made
    cpu.advance_to(5)
    take = NumpyStream.take

    def interrupted(self: Any, block: int, t: int, **options: Any) -> None:
        take(self, block, t, **options)
        if t == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(NumpyStream, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            core.residual(None)
    assert core.position() == (5, [], 0, 4)
    assert core.allocated_vectors == 0
    assert np.array_equal(cpu.residual(), core.residual(None).numpy())
    assert np.array_equal(cpu.step(), core.step(None).numpy())


@pytest.mark.usefixtures("numpy_steps")
def test_broken_positions_and_vectors_are_refused_and_change_nothing() -> None:
    core = a_core(KINDS["buffers"], "stored", "float32")
    core.residual(None)
    before = core.position()
    good = np.zeros(SIZE, np.float32)
    for position in ((1, [], 0, 2), (1, [], 1, 1), (0, [3], 0, 4)):
        with pytest.raises(ValueError, match="last returned step after its present one"):
            core.set_position(*position, [])
    with pytest.raises(ValueError, match="must be a 'sum' or a 'slot'"):
        core.set_position(*before, [("average", 0, good)])
    for wrong in (good[1:], good.astype(np.float64), [0.0] * SIZE):
        with pytest.raises(ValueError, match="array of 5 elements of float32"):
            core.set_position(*before, [("sum", 0, wrong)])  # type: ignore[list-item]
    assert core.position() == before and core.allocated_vectors == 2
    with pytest.raises(ValueError, match=r"t must be an integer in \[1, 2\*\*46\], got 0"):
        core.advance_to(0)
    core.restart()
    with pytest.raises(ValueError, match="at least one step of the present block"):
        core.restart()
    with pytest.raises(TypeError, match="out must be a tensor on cpu, got ndarray"):
        core.step(good)  # type: ignore[arg-type]


@pytest.mark.usefixtures("numpy_steps")
@pytest.mark.parametrize("name", TOEPLITZ)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_noise_of_a_plan(name: str, dtype: Any) -> None:
    plan = PrivacyPlan(0.5, 3.0, acc.SinglePass(10), TOEPLITZ[name])
    spec = plan.noise_spec
    make = partial(device_source_of(spec.layout), device=CPU)
    cpu = plan.noise(SIZE, seed=3, offset=OFFSET, dtype=dtype)
    device = spec.source(SIZE, make=make, seed=3, offset=OFFSET, dtype=dtype)
    assert isinstance(device, DeviceToeplitz) and device.device == CPU
    for step in range(10):
        call = "step" if step % 3 == 1 else "residual"
        out = torch.empty(SIZE, dtype=getattr(torch, dtype))
        assert getattr(device, call)(out) is out
        assert np.array_equal(getattr(cpu, call)(), out.numpy())
        assert np.array_equal(cpu.current(), device.current().numpy())
        if step == 5:  # a state goes to the CPU, and another one back
            state = device.state_dict()
            device = spec.source(SIZE, make=make, offset=OFFSET, dtype=dtype)
            device.load_state_dict(cpu.state_dict())
            cpu.load_state_dict(state)
    assert np.array_equal(cpu.carried(), device.carried().numpy())
    with pytest.raises(ValueError, match="all 10 declared steps are taken"):
        device.residual()
    with pytest.raises(ValueError, match=f"out must be a {dtype} tensor of 5 elements"):
        device.prefix(1, torch.zeros(4))


@pytest.mark.usefixtures("numpy_steps")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["four taps", "a buffer, in blocks"])
def test_many_steps(name: str, dtype: Any) -> None:
    plan = PrivacyPlan(0.5, 3.0, acc.SinglePass(10), TOEPLITZ[name])
    make = partial(device_source_of(plan.noise_spec.layout), device=CPU)
    cpu = plan.noise(SIZE, seed=3, dtype=dtype)
    device = plan.noise_spec.source(SIZE, make=make, seed=3, dtype=dtype)
    rows = device.next_steps(6)
    assert rows.shape == (6, SIZE) and rows.dtype == getattr(torch, dtype)
    assert np.array_equal(rows.numpy(), cpu.next_steps(6))
    out = torch.empty(3, SIZE, dtype=getattr(torch, dtype))
    with pytest.raises(ValueError, match="n must be at most 4"):
        device.next_steps(5)
    with pytest.raises(ValueError, match=f"a {dtype} tensor of {4 * SIZE} elements on cpu"):
        device.next_steps(4, out)
    assert device.steps_taken == 6
    assert device.next_steps(3, out) is out
    assert np.array_equal(out.numpy(), cpu.next_steps(3))
    assert np.array_equal(device.step().numpy(), cpu.step())


def test_each_layout_has_a_class() -> None:
    assert device_source_of(MECHANISMS["trees"].layout(8)) is DeviceNoise
    with pytest.raises(TypeError, match="no noise on a GPU for layouts of type int"):
        device_source_of(3)  # type: ignore[arg-type]


# ---- the kernel ----


def check_kernel(
    name: str, dtype: str, calls: Sequence[str], *, memory: int = -1, **options: Any
) -> None:
    """Compare with the plain definition; element 0 and the last one are of two superblocks."""
    kind, first, second = KINDS[name].engine
    settings = {"key": KEY, "rounds": 12, "purpose": 3, "offset": 250, **options}
    plain = ReferenceNoise(40, STD, kind, first, second, dtype=dtype, **settings)
    core = ToeplitzCore(
        size=40, std=STD, kind=kind, first=first, second=second, memory=memory,
        dtype=getattr(torch, dtype), device=CPU, **settings,
    )  # fmt: skip
    for call in calls:
        if call == "restart":
            plain.restart()
            core.restart()
        elif call == "skip":
            plain.advance_to(plain.t + 1)
            core.advance_to(core.t + 1)
        else:
            assert np.array_equal(getattr(plain, call)(), getattr(core, call)(None).numpy())


@pytest.mark.parametrize(
    ("name", "dtype", "calls"),
    [
        ("two taps", "float32", ["residual", "residual"]),
        pytest.param("two taps", "float64", ["residual", "residual"], marks=pytest.mark.slow),
        ("buffers", "float32", ["step", "residual", "step"]),
        ("divided bands", "float32", ["residual", "residual"]),
    ],
)
def test_steps_are_those_of_the_reference(name: str, dtype: str, calls: Sequence[str]) -> None:
    check_kernel(name, dtype, calls)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("memory", [-1, 0])
def test_longer_runs_are_those_of_the_reference(name: str, dtype: str, memory: int) -> None:
    calls = ["step", "residual", "residual", "step", "skip", "residual"]
    check_kernel(name, dtype, [*calls, "restart", *calls[:3]], memory=memory)


@pytest.mark.slow
@pytest.mark.parametrize(("rounds", "purpose", "offset"), [(8, 4, 0), (20, 5, 2**35 - 300)])
def test_rounds_purposes_and_offsets(rounds: int, purpose: int, offset: int) -> None:
    calls = ["residual", "residual"]
    check_kernel("two taps", "float32", calls, rounds=rounds, purpose=purpose, offset=offset)


def a_variant(dtype: str, absent: Sequence[str], **options: Any) -> tuple[Any, Any]:
    """Return signature and constants of the kernel; the pointers `absent` are None."""
    pointer = {"float32": "*fp32", "float64": "*fp64"}[dtype]
    flags = ("KEEP_Z", "DIVIDE", "BUFFERS", "ADD_OUT", "ADD_SUM", "SHOW_SUM")
    constants = {
        **dict.fromkeys(flags, False),
        "DOUBLE": dtype == "float64", "ROUNDS": 12, "POLYNOMIALS": coefficients(np.dtype(dtype)),
        "LANES": 128, **dict.fromkeys(absent), **options,
    }  # fmt: skip
    signature = dict.fromkeys(("out", "sum_so_far", "keep"), pointer)
    signature |= {"table": "*i64", "numbers": pointer}
    signature |= dict.fromkeys(triton_toeplitz.SCALARS.split(), "i32")
    return signature | dict.fromkeys(constants, "constexpr"), constants


# The smaller one has every product with its sum but the stores that only copy.
SMALL = [("float32", a_variant("float32", ("keep", "sum_so_far"), DIVIDE=True))]
LARGE = [
    *(
        (dtype, a_variant(dtype, (), DIVIDE=True, BUFFERS=True, ADD_OUT=True, ADD_SUM=True))
        for dtype in ("float32", "float64")
    ),
    ("float32", a_variant("float32", ("sum_so_far",), KEEP_Z=True)),
    ("float32", a_variant("float32", ("keep",), BUFFERS=True, ADD_SUM=True, SHOW_SUM=True)),
]


@pytest.mark.parametrize(
    "variants", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"]
)
def test_compiled_code_neither_fuses_nor_shortens(variants: Any, tmp_path: Path) -> None:
    codes = compiled("toeplitz_kernel", [variant for _, variant in variants], tmp_path)
    for (dtype, (_, constants)), ptx in zip(variants, codes, strict=True):
        check_code(ptx, dtype)
        assert bool(re.search(r"div\.rn\.f(32|64)", ptx)) == constants["DIVIDE"]
