# SPDX-License-Identifier: Apache-2.0
"""Writing into the caller's memory: NumPy, torch, DLPack, buffers; what is refused."""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast.noise.outputs import writable_view

torch = pytest.importorskip("torch")

SIZE = 6


class OnlyDLPack:
    """What another framework gives: no buffer, no array interface."""

    def __init__(self, owner: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.owner, self.device = owner, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OldDLPack(OnlyDLPack):
    """Before DLPack 1.0, which cannot say that memory may be written."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.owner.__dlpack__()


class OnlyInterface:
    """NumPy's protocol of old, by which a view of named memory is made."""

    def __init__(self, owner: np.ndarray, **changes: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {**owner.__array_interface__, **changes}


class OnGpu:
    """The interface of CuPy's and Numba's arrays, without DLPack."""

    __cuda_array_interface__: ClassVar = {"shape": (6,), "typestr": "<f4", "data": (64, False)}


def lenders(dtype: str) -> dict[str, tuple[Any, Callable[[], bytes]]]:
    """Things to write to, and how to read what they hold."""
    code, ctype = ("f", ctypes.c_float) if dtype == "float32" else ("d", ctypes.c_double)
    nd, matrix = np.zeros(SIZE, dtype), np.zeros((2, 3), dtype)
    inside = np.zeros((3, SIZE), dtype)
    tensor = torch.zeros(SIZE, dtype=getattr(torch, dtype))
    view = torch.zeros(4, SIZE, dtype=getattr(torch, dtype))
    parameter = torch.nn.Parameter(torch.zeros(SIZE, dtype=getattr(torch, dtype)))
    raw = bytearray(SIZE * nd.itemsize)
    c_array = (ctype * SIZE)()
    python = array.array(code, [0.0] * SIZE)
    shared, named = np.zeros(SIZE, dtype), np.zeros(SIZE, dtype)
    return {
        "ndarray": (nd, nd.tobytes),
        "matrix": (matrix, matrix.tobytes),
        "row": (inside[1], inside[1].tobytes),
        "tensor": (tensor, lambda: tensor.numpy().tobytes()),
        "tensor of another shape": (view[2].view(2, 3), lambda: view[2].numpy().tobytes()),
        "detached parameter": (
            parameter.detach(),
            lambda: parameter.detach().numpy().tobytes(),
        ),
        "bytes in a bytearray": (memoryview(raw).cast(code), lambda: bytes(raw)),
        "ctypes": (c_array, lambda: bytes(c_array)),
        "array.array": (python, python.tobytes),
        "DLPack": (OnlyDLPack(shared), shared.tobytes),
        "array interface": (OnlyInterface(named), named.tobytes),
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", lenders("float32"))
def test_noise_goes_into_the_callers_memory(kind: str, dtype: Any) -> None:
    noise, plain = (dpf.TreeNoise(SIZE, 1.0, seed=1, dtype=dtype) for _ in range(2))
    for call, arguments in (
        ("step", ()),
        ("residual", ()),
        ("prefix", (5,)),
        ("node", (2, 1)),
    ):
        out, read = lenders(dtype)[kind]
        assert getattr(noise, call)(*arguments, out=out) is out
        assert read() == getattr(plain, call)(*arguments).tobytes()


def test_a_tensor_keeps_its_memory() -> None:
    noise = dpf.TreeNoise(SIZE, 1.0, seed=1)
    tensor = torch.zeros(SIZE)
    address = tensor.data_ptr()
    noise.step(tensor)
    assert tensor.data_ptr() == address == writable_view(tensor).ctypes.data
    assert bool((tensor != 0).all())


def test_a_model_parameter_under_no_grad() -> None:
    layer = torch.nn.Linear(3, 2, bias=False)
    with pytest.raises(TypeError, match="requires grad"):
        dpf.TreeNoise(SIZE, 1.0).step(layer.weight)
    dpf.TreeNoise(SIZE, 1.0, seed=1).step(layer.weight.data)
    assert (
        layer.weight.detach().numpy().tobytes() == dpf.TreeNoise(SIZE, 1.0, seed=1).step().tobytes()
    )


def test_torchs_flush_to_zero_changes_nothing() -> None:
    expected = dpf.TreeNoise(SIZE, 2e-38, seed=1).step()  # subnormal numbers
    assert (np.abs(expected) < np.finfo(np.float32).tiny).any()
    noise = dpf.TreeNoise(SIZE, 2e-38, seed=1)
    assert torch.set_flush_denormal(True)
    try:
        got = noise.step()
        assert float(torch.tensor([1e-39]) * 1) == 0.0  # the setting is still there
    finally:
        torch.set_flush_denormal(False)
    assert got.tobytes() == expected.tobytes()


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


F32 = np.float32
ZEROS = np.zeros(SIZE, F32)
REFUSED: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("float64", lambda: np.zeros(SIZE), TypeError, "got dtype float64"),
    ("float16", lambda: np.zeros(SIZE, np.float16), TypeError, "got dtype float16"),
    ("int32", lambda: np.zeros(SIZE, np.int32), TypeError, "got dtype int32"),
    ("bool", lambda: np.zeros(SIZE, bool), TypeError, "got dtype bool"),
    ("object", lambda: np.zeros(SIZE, object), TypeError, "got dtype object"),
    ("big-endian", lambda: np.zeros(SIZE, ">f4"), TypeError, "got dtype >f4"),
    ("too short", lambda: np.zeros(SIZE - 1, F32), ValueError, "of 6 elements, got 5 elements"),
    ("too long", lambda: np.zeros(SIZE + 1, F32), ValueError, "of 6 elements, got 7 elements"),
    ("empty", lambda: np.zeros(0, F32), ValueError, "got 0 elements"),
    ("every second", lambda: np.zeros(2 * SIZE, F32)[::2], ValueError, "not contiguous"),
    ("backwards", lambda: np.zeros(SIZE, F32)[::-1], ValueError, "not contiguous"),
    ("columns first", lambda: np.zeros((3, 2), F32).T, ValueError, "not contiguous"),
    (
        "overlapping itself",
        lambda: np.lib.stride_tricks.as_strided(np.zeros(9, F32), (3, 2), (4, 4)),
        ValueError,
        "not contiguous",
    ),
    (
        "one element six times",
        lambda: np.lib.stride_tricks.as_strided(np.zeros(1, F32), (SIZE,), (0,)),
        ValueError,
        "not contiguous",
    ),
    ("read-only", lambda: read_only(np.zeros(SIZE, F32)), ValueError, "got a read-only one"),
    (
        "misaligned",
        lambda: np.frombuffer(bytearray(4 * SIZE + 1), np.uint8)[1:].view(F32),
        ValueError,
        "got a misaligned one",
    ),
    ("bytes", lambda: bytes(4 * SIZE), TypeError, "got dtype uint8"),
    ("bytearray", lambda: bytearray(4 * SIZE), TypeError, "got dtype uint8"),
    (
        "read-only buffer",
        lambda: memoryview(bytes(4 * SIZE)).cast("f"),
        ValueError,
        "got a read-only one",
    ),
    ("list", lambda: [0.0] * SIZE, TypeError, "speaks DLPack or a buffer, got list"),
    ("number", lambda: 1.0, TypeError, "got float"),
    ("string", lambda: "out", TypeError, "got str"),
    ("tensor, float64", lambda: torch.zeros(SIZE).double(), TypeError, "got dtype float64"),
    ("tensor, int", lambda: torch.zeros(SIZE, dtype=torch.int32), TypeError, "got dtype int32"),
    ("tensor, bool", lambda: torch.zeros(SIZE) > 0, TypeError, "got dtype bool"),
    ("tensor, bfloat16", lambda: torch.zeros(SIZE).bfloat16(), TypeError, "(?i)bfloat16|dtype"),
    ("tensor, every second", lambda: torch.zeros(2 * SIZE)[::2], ValueError, "not contiguous"),
    ("tensor, expanded", lambda: torch.zeros(1).expand(SIZE), ValueError, "not contiguous"),
    ("tensor, too long", lambda: torch.zeros(SIZE + 1), ValueError, "got 7 elements"),
    ("tensor, gradient", lambda: torch.zeros(SIZE, requires_grad=True), TypeError, "grad"),
    ("tensor, sparse", lambda: torch.ones(SIZE).to_sparse(), TypeError, "not lend its memory"),
    ("tensor, meta", lambda: torch.zeros(SIZE, device="meta"), TypeError, "not lend its memory"),
    (
        "on a GPU",
        lambda: OnlyDLPack(np.zeros(SIZE, F32), (2, 0)),
        TypeError,
        r"must lie in CPU memory, got DLPack device \(2, 0\)",
    ),
    ("on a GPU, no DLPack", OnGpu, TypeError, "must lie in CPU memory, got memory of a GPU"),
    (
        "read-only interface",
        lambda: OnlyInterface(ZEROS, data=(ZEROS.__array_interface__["data"][0], True)),
        ValueError,
        "got a read-only one",
    ),
    ("NumPy scalar", lambda: F32(0), ValueError, "got 1 elements"),
    ("old DLPack", lambda: OldDLPack(np.zeros(SIZE, F32)), ValueError, "got a read-only one"),
]


@pytest.mark.parametrize("case", [case[0] for case in REFUSED])
def test_bad_out_changes_nothing(case: str) -> None:
    _, make, error, message = next(entry for entry in REFUSED if entry[0] == case)
    noise, plain = (dpf.TreeNoise(SIZE, 1.0, seed=1) for _ in range(2))
    for _ in range(3):
        noise.residual(), plain.residual()
    for call in (noise.step, noise.residual, lambda out: noise.prefix(2, out)):
        with pytest.raises(error, match=message):
            call(make())
    with pytest.raises(error, match=message):
        noise.node(0, 0, make())
    assert (noise.t, noise.tree, noise.node_used) == (3, 0, False)
    assert noise.residual().tobytes() == plain.residual().tobytes()


def test_what_is_refused_is_not_written() -> None:
    noise = dpf.TreeNoise(SIZE, 1.0)
    base = np.zeros(2 * SIZE, F32)
    with pytest.raises(ValueError, match="not contiguous"):
        noise.step(base[::2])
    locked = read_only(np.zeros(SIZE, F32))
    with pytest.raises(ValueError, match="read-only"):
        noise.step(locked)
    assert not base.any()
    assert not locked.any()


def test_a_scalar_of_numpy_is_not_written_to_a_copy() -> None:
    with pytest.raises(ValueError, match="got a read-only one"):
        dpf.TreeNoise(1, 1.0).step(F32(0))
