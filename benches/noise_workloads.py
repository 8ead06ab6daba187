# SPDX-License-Identifier: Apache-2.0
"""What the noise benches time: our calls and what a user would write without us.

Each maker returns a call without arguments that does one unit of work, and leaves its result where
`check` finds it. Sizes are parameters, so that the same calls run small as tests.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.metadata
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import dpftrl_fast as dpf
from dpftrl_fast import _core, reference

Call = Callable[[], Any]


def node(size: int, rounds: int = 12, threads: int = 1, dtype: str = "float32") -> Call:
    noise = dpf.TreeNoise(size, 1.0, seed=1, rounds=rounds, threads=threads, dtype=dtype)
    out = np.zeros(size, dtype)
    return lambda: noise.node(3, 5, out)


def kernel(size: int, target: str) -> Call:
    """The same node from one target's kernel, by name."""
    out = np.zeros(size, np.float32)
    key = bytes(32)

    def call() -> np.ndarray[Any, Any]:
        _core.normals_f32(target, key, 12, 0, 0, 3, 5, 0, 1.0, out)
        return out

    return call


def torch_normal(size: int) -> Call:
    out = torch.zeros(size)
    return lambda: out.normal_().numpy()


def numpy_normal(size: int, dtype: str = "float32") -> Call:
    rng = np.random.Generator(np.random.PCG64(1))
    out = np.zeros(size, dtype)
    return lambda: rng.standard_normal(out=out, dtype=out.dtype)


def mkl_normal(size: int) -> Call | None:
    """MKL's fastest float32 normal: SFMT, inverse CDF. None where `mkl` is not installed."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next(str(f.locate()) for f in files if "libmkl_rt.so" in f.name)
    mkl = ctypes.CDLL(path)
    mkl.MKL_Set_Threading_Layer(1)  # sequential
    stream = ctypes.c_void_p()
    sfmt19937, inverse_cdf = 14680064, 2
    if mkl.vslNewStream(ctypes.byref(stream), sfmt19937, 1) != 0:
        raise RuntimeError("vslNewStream failed")
    out = np.zeros(size, np.float32)
    pointer = out.ctypes.data_as(ctypes.c_void_p)

    def call() -> np.ndarray[Any, Any]:
        status = mkl.vsRngGaussian(
            inverse_cdf, stream, size, pointer, ctypes.c_float(0), ctypes.c_float(1)
        )
        if status != 0:
            raise RuntimeError(f"vsRngGaussian returned {status}")
        return out

    return call


class Tree:
    """Steps of one of our trees; `steps` are taken by each call, on one tree that goes on."""

    def __init__(self, size: int, variant: Any, memory: Any, threads: int = 1) -> None:
        self.noise = dpf.TreeNoise(
            size, 1.0, seed=1, variant=variant, memory=memory, threads=threads
        )
        self.out = np.zeros(size, np.float32)

    def step(self) -> np.ndarray[Any, Any]:
        return self.noise.step(self.out)


class TorchVanilla:
    """Buffers per level and a running total, as the paper's authors' code does."""

    def __init__(self, size: int) -> None:
        self.size, self.t = size, 0
        self.total = torch.zeros(size)
        self.nodes: list[torch.Tensor] = []

    def step(self) -> torch.Tensor:
        level = 0
        while self.t >> level & 1:
            self.total -= self.nodes[level]
            level += 1
        if level == len(self.nodes):
            self.nodes.append(torch.empty(self.size))
        self.total += self.nodes[level].normal_()
        self.t += 1
        return self.total


class TorchHonaker:
    """The averages r of the live nodes, a buffer a level, summed afresh."""

    def __init__(self, size: int) -> None:
        self.size, self.t = size, 0
        self.averages: list[torch.Tensor] = []
        self.out = torch.zeros(size)

    def step(self) -> torch.Tensor:
        level = 0
        r = torch.empty(self.size).normal_()
        while self.t >> level & 1:
            r = torch.empty(self.size).normal_().add_(r.add_(self.averages[level]), alpha=0.5)
            level += 1
        if level == len(self.averages):
            self.averages.append(r)
        self.averages[level] = r
        self.t += 1
        self.out.zero_()
        for k in range(len(self.averages)):
            if self.t >> k & 1:
                self.out.add_(self.averages[k], alpha=1 / (2 - 2.0**-k))
        return self.out


class ReferenceTree:
    """`dpftrl_fast.reference`, its NumPy or its pure-Python loops."""

    def __init__(self, size: int, variant: Any, *, python: bool = False) -> None:
        kind = reference.TreeNoisePython if python else reference.TreeNoise
        self.noise = kind(size, 1.0, seed=1, variant=variant)

    def step(self) -> Any:
        return self.noise.step()


def stream(size: int) -> Call:
    """Read two vectors and write one: three vectors' worth of memory traffic."""
    a, b, out = (np.full(size, 1.0, np.float32) for _ in range(3))
    return lambda: np.add(a, b, out=out)


def check_normal(values: Any, std: float = 1.0) -> None:
    """The call made noise of this standard deviation, within six standard errors."""
    x = np.asarray(values, dtype=np.float64).ravel()
    error = std / np.sqrt(x.size)
    assert abs(x.mean()) < 6 * error
    assert abs(x.std() - std) < 6 * error
