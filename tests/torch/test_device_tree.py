# SPDX-License-Identifier: Apache-2.0
"""The bookkeeping of the tree on a GPU beside the compiled one, with sums made by NumPy.

What the kernel does is written here in a few lines, so that hundreds of calls in any order take
less than one launch under Triton's interpreter.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dpftrl_fast import reference  # noqa: E402
from dpftrl_fast.noise.keys import key_of_seed  # noqa: E402
from dpftrl_fast.noise.tree import TreeNoise  # noqa: E402
from dpftrl_fast.torch.device import tree as device_tree  # noqa: E402
from dpftrl_fast.torch.device.source import DeviceSource  # noqa: E402
from dpftrl_fast.torch.device.tree import DeviceTree  # noqa: E402

KEY, SIZE, OFFSET, STD = key_of_seed(3), 5, 7, 1.5


@functools.cache
def node_value(tree: int, level: int, index: int, dtype: str) -> NDArray[Any]:
    node = {"tree": tree, "level": level, "index": index, "start": OFFSET, "size": SIZE}
    z = reference.normals(KEY, dtype=dtype, **node)
    return np.asarray(z * z.dtype.type(STD))


class NumpyStream:
    """`device_stream.Stream` without a device."""

    def __init__(self, key: bytes, *, weights: Sequence[float], dtype: Any, **settings: Any):
        self._dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._weights = np.array(weights, self._dtype)

    def add_up(
        self,
        out: Any,
        *,
        tree: int,
        base: Any = None,
        known: Sequence[tuple[Any, int]] = (),
        node: Any = None,
        plain: bool = False,
        keep_average: Any = None,
        keep_sum: Any = None,
        last: Any = None,
        difference: bool = False,
    ) -> None:
        terms = [] if base is None else [base.numpy().copy()]
        weights = np.ones_like(self._weights) if plain else self._weights
        terms += [average.numpy() * weights[level] for average, level in known]
        if node is not None:
            average = None
            for i in range(node.level if node.left is None else 0, node.level + 1):
                place = ((node.index + 1) << (node.level - i)) - 1
                value = node_value(tree, i, place, self._dtype.name)
                if average is not None:
                    half = self._dtype.type(0.5)
                    value = value + (node.left[i - 1].numpy() + average) * half
                average = value
            terms.append(average * weights[node.level])
            if keep_average is not None:
                keep_average.copy_(torch.from_numpy(average))
        total = torch.from_numpy(np.array(functools.reduce(np.add, terms)))
        result = total - last if difference else total
        for copy in (keep_sum, last):
            if copy is not None:
                copy.copy_(total)
        out.copy_(result)


def most_vectors(memory: Any, t: int) -> int:
    """The paper's bound or what was asked for, and a carry and a last value besides."""
    kept = {"stored": max(1, t).bit_length() + 1, "regenerate": 1}.get(memory, memory)
    return int(kept) + 2


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
@pytest.mark.parametrize("memory", ["stored", "regenerate", 1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_calls_in_any_order_have_the_bits_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, variant: Any, memory: Any, dtype: Any
) -> None:
    monkeypatch.setattr(device_tree, "Stream", NumpyStream)
    chance = random.Random(f"{variant} {memory} {dtype}")

    def on_device() -> DeviceTree:
        vectors = {"stored": -1, "regenerate": 0}.get(memory, memory)
        return DeviceTree(
            size=SIZE, std=STD, key=KEY, rounds=12, purpose=0, offset=OFFSET, variant=variant,
            memory=vectors, dtype=getattr(torch, dtype), device=torch.device("cpu"),
        )  # fmt: skip

    options: dict[str, Any] = {"variant": variant, "memory": memory, "dtype": dtype}
    cpu, tree = TreeNoise(SIZE, STD, key=KEY, offset=OFFSET, **options), on_device()
    kinds = ["step", "residual", "prefix", "node", "restart", "advance", "state"]
    for kind in chance.choices(kinds, [40, 20, 6, 1, 3, 2, 3], k=150):
        if kind in ("step", "residual"):
            assert np.array_equal(getattr(cpu, kind)(), getattr(tree, kind)(None).numpy())
            assert tree.allocated_vectors <= most_vectors(memory, cpu.t)
        elif kind == "prefix":
            t = chance.randint(1, 2 * cpu.t + 3)
            assert np.array_equal(cpu.prefix(t), tree.prefix(t, None).numpy())
        elif kind == "node":
            node = chance.randint(0, 4), chance.randint(0, 5)
            assert np.array_equal(cpu.node(*node), tree.node(*node, None).numpy())
        elif kind == "restart" and cpu.t:
            complete = chance.random() < 0.5
            cpu.restart(complete)
            tree.restart(complete)
        elif kind == "advance":
            t = cpu.t + chance.randint(0, 20)
            cpu.advance_to(t)
            tree.advance_to(t)
        elif kind == "state":
            *position, vectors = tree.saved()
            tree = on_device()
            tree.set_position(*position, vectors if chance.random() < 0.5 else [])
        assert (tree.t, tree.tree) == (cpu.t, cpu.tree)


def test_a_stream_has_a_last_restart() -> None:
    """The number of a block has 24 bits: one more would have the noise of the first."""
    at = SimpleNamespace(_t=1, _ends=range(2**24 - 1))
    DeviceSource._check_restart(at, "tree")  # type: ignore[arg-type]
    at._ends = range(2**24)
    with pytest.raises(ValueError, match=r"at most 2\*\*24 restarts"):
        DeviceSource._check_restart(at, "tree")  # type: ignore[arg-type]
