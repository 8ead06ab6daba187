# SPDX-License-Identifier: Apache-2.0
"""The noise of a GPU: its kernel under Triton's interpreter, and what the compiler makes of it.

The interpreter takes half a second for what a GPU does in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton_kernels import check_code, compiled, patch_builtins_once  # noqa: E402

from dpftrl_fast import reference  # noqa: E402
from dpftrl_fast.mechanisms import Tree  # noqa: E402
from dpftrl_fast.noise.keys import key_of_seed  # noqa: E402
from dpftrl_fast.plan.planned_noise import PlannedTree  # noqa: E402
from dpftrl_fast.torch.device import triton_stream  # noqa: E402
from dpftrl_fast.torch.device.noise import DeviceNoise  # noqa: E402
from dpftrl_fast.torch.device.stream import Node, Stream, coefficients  # noqa: E402

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.fixture(scope="module", autouse=True)
def builtins_are_patched_once() -> Iterator[None]:
    yield from patch_builtins_once()


def a_stream(dtype: str, *, offset: int, size: int, rounds: int = 12, purpose: int = 0) -> Stream:
    return Stream(
        key_of_seed(3),
        std=1.5,
        weights=[1.0] * 47,
        dtype=DTYPES[dtype],
        device=CPU,
        rounds=rounds,
        purpose=purpose,
        offset=offset,
        size=size,
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("offset", "size", "level", "index", "tree"),
    [
        (0, 256, 0, 0, 0),
        (300, 50, 3, 5, 70_000),
        (127, 129, 40, 3, 1),
        (5, 2050, 2, 1, 2),  # 2048 coordinates are one program's, 256 or 128 a superblock's
    ],
)
def test_nodes_are_those_of_the_reference(
    dtype: str, offset: int, size: int, level: int, index: int, tree: int
) -> None:
    stream = a_stream(dtype, offset=offset, size=size)
    out = torch.empty(size, dtype=DTYPES[dtype])
    stream.add_up(out, tree=tree, node=Node(level, index, None), plain=True)
    node = {"tree": tree, "level": level, "index": index, "start": offset, "size": size}
    z = reference.normals(key_of_seed(3), dtype=dtype, **node)
    assert np.array_equal(out.numpy(), z * z.dtype.type(1.5))


@pytest.mark.parametrize(("rounds", "purpose"), [(8, 1), (20, 2)])
def test_rounds_and_purposes(rounds: int, purpose: int) -> None:
    stream = a_stream("float32", offset=0, size=256, rounds=rounds, purpose=purpose)
    out = torch.empty(256)
    stream.add_up(out, tree=0, node=Node(0, 0, None), plain=True)
    z = reference.normals(
        key_of_seed(3), tree=0, level=0, index=0, start=0, size=256, rounds=rounds, purpose=purpose
    )
    assert np.array_equal(out.numpy(), z * np.float32(1.5))


def test_rare_radii_take_their_low_bits_from_the_second_block() -> None:
    here = {"offset": 162 * 256, "size": 256}  # with a radius word below 2^18 in row 4, lane 9
    stream = a_stream("float32", **here)
    out = torch.empty(256)
    stream.add_up(out, tree=0, node=Node(0, 0, None), plain=True)
    z = reference.normals(key_of_seed(3), tree=0, level=0, index=0, start=162 * 256, size=256)
    rows = z.astype(np.float64).reshape(16, 16)
    assert np.hypot(rows[4, 9], rows[12, 9]) > np.sqrt(2 * 14 * np.log(2))
    assert np.array_equal(out.numpy(), z * np.float32(1.5))


@pytest.mark.parametrize(
    ("superblock", "row", "lane", "large"),
    [(136, 0, 3, True), (405, 3, 5, True), (6, 6, 6, False), (491, 7, 1, False)],
)
def test_rare_radii_of_float64_take_bits_from_the_second_blocks(
    superblock: int, row: int, lane: int, large: bool
) -> None:
    here = {"offset": superblock * 128, "size": 128}
    stream = a_stream("float64", **here)
    out = torch.empty(128, dtype=torch.float64)
    stream.add_up(out, tree=0, node=Node(0, 0, None), plain=True)
    where = {"tree": 0, "level": 0, "index": 0, "start": superblock * 128, "size": 128}
    z = reference.normals(key_of_seed(3), dtype="float64", **where)
    rows = z.reshape(16, 8)
    radius = np.hypot(rows[row, lane], rows[row + 8, lane])
    assert radius > np.sqrt(2 * 14 * np.log(2)) if large else radius < 2**-6.5
    assert np.array_equal(out.numpy(), z * 1.5)
    without = reference.normals(key_of_seed(3), dtype="float64", **where, version=1)
    assert large or not np.array_equal(z, without)


@triton.jit
def radius_kernel(words, extensions, f, zeros, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    word = tl.load(words + at).to(tl.uint64, bitcast=True)
    extension = tl.load(extensions + at).to(tl.uint64, bitcast=True)
    found, count = triton_stream.rare_radius(word, extension)
    tl.store(f + at, found)
    tl.store(zeros + at, count.to(tl.int64))


def test_rare_radii_at_the_extremes() -> None:
    rng = np.random.default_rng(64)
    ends = [0, 1, 2**50 - 1, 2**64 - 2**50, 2**64 - 2, 2**64 - 1]
    ends += [2**i for i in range(50)] + [2**64 - 2**i for i in range(50)]
    lows = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0, *(2**i for i in range(1, 63, 4))]
    cases = [(u, v) for u in ends for v in lows]
    cases += [(int(u), int(v)) for u in ends for v in rng.integers(0, 2**64, 15, np.uint64)]
    size = 4096
    cases = (cases * 2)[:size]
    words, extensions = (
        torch.from_numpy(np.array(column, np.uint64).view(np.int64))
        for column in zip(*cases, strict=True)
    )
    f, zeros = torch.empty(size, dtype=torch.float64), torch.empty(size, dtype=torch.int64)
    radius_kernel[(1,)](words, extensions, f, zeros, SIZE=size)
    expected = [reference.stream.rare_radius(u, v) for u, v in cases]
    assert list(zip(f.tolist(), zeros.tolist(), strict=True)) == expected


def pair(**options: Any) -> tuple[PlannedTree, DeviceNoise]:
    settings = {
        "layout": Tree(options.pop("variant", "honaker"), 3, complete=True).layout(8),
        "seed": 5,
        "offset": 77,
        **options,
    }
    return PlannedTree(40, 1.25, **settings), DeviceNoise(40, 1.25, device=CPU, **settings)


@pytest.mark.parametrize(
    ("variant", "memory", "dtype"),
    [
        ("honaker", "stored", "float32"),
        pytest.param("honaker", "stored", "float64", marks=pytest.mark.slow),
        pytest.param("honaker", "regenerate", "float32", marks=pytest.mark.slow),
        pytest.param("honaker", 2, "float32", marks=pytest.mark.slow),
        pytest.param("vanilla", "stored", "float32", marks=pytest.mark.slow),
        pytest.param("vanilla", "regenerate", "float32", marks=pytest.mark.slow),
        ("vanilla", 1, "float64"),
    ],
)
def test_a_run_has_the_bits_of_the_cpu(variant: str, memory: Any, dtype: str) -> None:
    on_cpu, on_device = pair(variant=variant, memory=memory, dtype=dtype)
    for t in range(5):  # of a tree of three, which is completed, and of the next
        call = "residual" if t % 4 else "step"
        expected = getattr(on_cpu, call)()
        assert np.array_equal(expected, getattr(on_device, call)().numpy())
        assert on_device.allocated_vectors <= (4 if memory == "stored" else 3) + 1
    assert np.array_equal(on_cpu.prefix(2), on_device.prefix(2).numpy())


@pytest.mark.parametrize("memory", ["stored", pytest.param("regenerate", marks=pytest.mark.slow)])
def test_states_go_from_cpu_to_device_and_back(memory: Any) -> None:
    on_cpu, on_device = pair(memory=memory)
    for _ in range(6):
        on_cpu.residual()
    on_device.load_state_dict(on_cpu.state_dict())
    assert np.array_equal(on_cpu.residual(), on_device.residual().numpy())
    again, _ = pair(memory=memory)
    again.load_state_dict(on_device.state_dict())
    assert np.array_equal(again.residual(), on_device.residual().numpy())


def test_a_broken_position_is_refused_and_changes_nothing() -> None:
    _, on_device = pair()
    on_device.step()
    state = on_device.state_dict()
    for wrong in ({"last_returned": [0, 2]}, {"last_returned": [1, 1]}):
        with pytest.raises(ValueError, match="last returned step"):
            on_device.load_state_dict({**state, **wrong})
    state["vectors"] = [("average", 0, 0, np.zeros(3, np.float32))]
    with pytest.raises(ValueError, match="40 elements"):
        on_device.load_state_dict(state)
    assert on_device.t == 1


@pytest.mark.parametrize(
    "out",
    [
        np.zeros(40, np.float32),
        torch.zeros(39),
        torch.zeros(40, dtype=torch.float64),
        torch.zeros(80)[::2],
    ],
    ids=["array", "size", "dtype", "stride"],
)
def test_what_cannot_take_the_noise_is_refused_before_the_step(out: Any) -> None:
    _, on_device = pair()
    with pytest.raises((TypeError, ValueError), match="out must be"):
        on_device.step(out)
    assert on_device.steps_taken == 0


def a_kernel(dtype: str, absent: tuple[str, ...], **options: Any) -> tuple[Any, Any]:
    """Return signature and constants of a kernel; the pointers `absent` are None."""
    pointer = {"float32": "*fp32", "float64": "*fp64"}[dtype]
    constants = {
        "STD": 47, "HAS_KNOWN": True, "HAS_NODE": True, "DIFFERENCE": True,
        "DOUBLE": dtype == "float64", "ROUNDS": 12, "POLYNOMIALS": coefficients(np.dtype(dtype)),
        "LANES": 128, **dict.fromkeys(absent), **options,
    }  # fmt: skip
    signature = dict.fromkeys(("out", "base", "keep_average", "keep_sum", "last"), pointer)
    signature |= {"table": "*i64", "numbers": pointer}
    signature |= dict.fromkeys(triton_stream.SCALARS.split(), "i32")
    return signature | dict.fromkeys(constants, "constexpr"), constants


# The compiler takes long for loads and stores. The smaller kernels leave out those without
# arithmetic, and one of them the averages at hand, so that its difference is of a product.
STORES = ("keep_average", "keep_sum")
SMALL = [
    ("float32", a_kernel("float32", ("base", "last", *STORES), DIFFERENCE=False)),
    ("float64", a_kernel("float64", ("base", *STORES), HAS_KNOWN=False)),
]
LARGE = [
    *((dtype, a_kernel(dtype, ())) for dtype in DTYPES),
    ("float32", a_kernel("float32", ("base", *STORES), HAS_KNOWN=False)),
    ("float64", a_kernel("float64", ("base", "last", *STORES), DIFFERENCE=False)),
]


@pytest.mark.parametrize(
    "kernels", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"]
)
def test_compiled_code_neither_fuses_nor_shortens(kernels: Any, tmp_path: Path) -> None:
    # The interpreter computes literals in double: only the compiled code shows what they become.
    codes = compiled("sum_kernel", [kernel for _, kernel in kernels], tmp_path)
    for (dtype, _), ptx in zip(kernels, codes, strict=True):
        check_code(ptx, dtype)
