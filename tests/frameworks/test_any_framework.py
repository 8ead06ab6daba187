# SPDX-License-Identifier: Apache-2.0
"""The page about noise in any framework: its blocks run, and its statements hold."""

from __future__ import annotations

import multiprocessing
import os
import re
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from page_blocks import DOCS, blocks, programs

import dpftrl_fast as dpf

PAGE = "frameworks/any_framework"
PLAN = dpf.PrivacyPlan(1.0, 4.0, dpf.SinglePass(10))
F32 = np.float32


@pytest.mark.parametrize("block", [x for x in programs(PAGE) if "TensorFlow" not in str(x)])
def test_a_block_runs_by_itself(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in ("pyarrow", "torch"):
        if f"import {package}" in block:
            pytest.importorskip(package)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, f"{PAGE}.md", "exec"), names)
    if "print(" in block:
        zero_out, replaced = map(float, re.findall(r"\d+\.\d+", capsys.readouterr().out))
        assert 0 < zero_out < replaced


def loop(rows: np.ndarray | None = None) -> dict[str, Any]:
    """Run the first block of the page with a seed; its weights are then the sum of the releases."""
    block = blocks(PAGE)[0]
    for line, other in (
        ("plan.noise(SIZE)", "plan.noise(SIZE, seed=3)"),
        ("    weights -=", "    weights = weights + released  #"),
        ("rows = ", "rows = rows if rows is not None else "),
    ):
        assert line in block
        block = block.replace(line, other)
    names: dict[str, Any] = {"rows": rows}
    with np.errstate(over="ignore"):  # a norm that overflows is not finite
        exec(block, names)
    return names


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e9, 1e200, np.inf, np.nan])
def test_neighbours_of_the_loop(scale: float) -> None:
    """One row more changes the sum of all releases by at most the clip norm, and the rounding."""
    rows = np.random.default_rng(1).normal(size=(40, 50, 10))
    one = rows.copy()
    rows[7, 3] = 0
    one[7, 3] *= scale
    without, with_row = loop(rows), loop(one)
    change = np.linalg.norm(with_row["weights"] - without["weights"])
    assert change <= 1 + np.sqrt(10) * without["noise"].grid
    if scale in (1.0, 1e9):
        assert change > 0.9
    if not np.isfinite(scale):
        assert change == 0


def test_the_loop_is_the_running_sum_on_the_grid() -> None:
    """Remainders are carried: what has left by step t is the rounded noisy running sum."""
    names = loop()
    noise, rows = names["plan"].noise(10, seed=3), names["rows"]
    norms = np.linalg.norm(rows, axis=2, keepdims=True)
    sums = (rows / np.maximum(norms, 1) * np.where(norms > 1, 1 - 2**-20, 1)).sum(axis=(0, 1))
    prefix = [noise.step() for _ in range(40)][-1]
    assert np.abs(names["weights"] - sums - prefix).max() <= noise.grid / 2 + 1e-4
    assert np.array_equal(names["weights"] / noise.grid % 1, np.zeros(10))


# ---- Rules of out= ----


class Lends:
    """An array of another framework, on some device."""

    def __init__(self, device: tuple[int, int], owner: np.ndarray) -> None:
        self.device, self.owner = device, owner

    def __dlpack__(self, **options: Any) -> Any:
        return self.owner.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OnGpu:
    __cuda_array_interface__: ClassVar = {"shape": (6,), "typestr": "<f4", "data": (64, False)}


def locked() -> np.ndarray:
    array = np.zeros(6, F32)
    array.flags.writeable = False
    return array


REFUSED = {
    "got dtype float64": lambda: np.zeros(6),
    "got 7 elements": lambda: np.zeros(7, F32),
    "got one that is not contiguous": lambda: np.zeros((3, 2), F32).T,
    "got a read-only one": locked,
    "got a misaligned one": lambda: np.frombuffer(bytearray(25), np.uint8)[1:].view(F32),
    "must lie in CPU memory": OnGpu,
    "got list": lambda: [0.0] * 6,
    "it must lie in CPU memory, got DLPack device (2, 0)": lambda: Lends((2, 0), np.zeros(6, F32)),
    "got memory of a GPU": OnGpu,
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_refusal_of_the_page(message: str) -> None:
    text = " ".join((DOCS / f"{PAGE}.md").read_text("utf-8").split())
    assert message in text
    noise, plain = PLAN.noise(6, seed=1), PLAN.noise(6, seed=1)
    for call in (noise.step, noise.residual, lambda out: noise.next_steps(1, out)):
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            call(REFUSED[message]())
    assert noise.steps_taken == 0
    assert noise.residual().tobytes() == plain.residual().tobytes()


def test_every_rule_of_the_table_is_tried() -> None:
    text = (DOCS / f"{PAGE}.md").read_text("utf-8")
    table = re.findall(r"^\| .* \| `(.*)` \|$", text, re.MULTILINE)
    assert len(table) == 7 and set(table) <= set(REFUSED)


def test_pinned_memory_is_taken() -> None:
    pinned = Lends((3, 0), np.zeros(6, F32))
    assert PLAN.noise(6, seed=1).residual(out=pinned) is pinned
    assert pinned.owner.tobytes() == PLAN.noise(6, seed=1).residual().tobytes()


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
def test_a_source_keeps_no_reference_to_what_it_returned(memory: Any) -> None:
    """Overwriting what was returned changes nothing later."""
    noise, plain = (PLAN.noise(6, seed=1, memory=memory) for _ in range(2))
    buffer = np.empty(6, F32)
    for _ in range(10):
        expected = plain.residual().copy()
        fresh = noise.residual(out=buffer)
        assert fresh is buffer and np.array_equal(fresh, expected)
        kept = buffer.copy()
        buffer[:] = np.nan
        noise.prefix(noise.t)[:] = np.nan
        noise.current()[:] = np.nan
        assert not np.isnan(kept).any()


def test_a_tensor_that_shares_the_buffer_changes_with_it() -> None:
    torch = pytest.importorskip("torch")
    noise, buffer = PLAN.noise(6, seed=1), np.zeros(6, F32)
    noise.residual(out=buffer)
    shared, copied = torch.from_numpy(buffer), torch.tensor(buffer)
    noise.residual(out=buffer)
    assert np.array_equal(shared.numpy(), buffer)
    assert not np.array_equal(copied.numpy(), buffer)


# ---- Other holders of memory ----


def test_bytes_need_a_cast_and_locked_arrays_their_object() -> None:
    with pytest.raises(TypeError, match="got dtype uint8"):
        PLAN.noise(6).residual(out=bytearray(24))
    context = multiprocessing.get_context("spawn")
    for lock in (True, False):
        locked_or_not: Any = context.Array("f", 6, lock=lock)
        if lock:
            with pytest.raises(TypeError, match="got SynchronizedArray"):
                PLAN.noise(6).residual(out=locked_or_not)
            locked_or_not = locked_or_not.get_obj()
        PLAN.noise(6, seed=1).residual(out=locked_or_not)
        assert bytes(locked_or_not) == PLAN.noise(6, seed=1).residual().tobytes()


def test_arrow_arrays_are_immutable() -> None:
    pa = pytest.importorskip("pyarrow")
    with pytest.raises(ValueError, match="got a read-only one"):
        PLAN.noise(6).residual(out=pa.array(np.zeros(6, F32)))
    values = np.zeros(6, F32)
    column = pa.array(values)
    values[:] = 1
    assert column.to_pylist() == [1.0] * 6  # no copy, as the page warns
    memory = pa.allocate_buffer(24)
    PLAN.noise(6, seed=1).residual(out=np.frombuffer(memory, F32))
    column = pa.Array.from_buffers(pa.float32(), 6, [None, memory])
    assert column.to_numpy().tobytes() == PLAN.noise(6, seed=1).residual().tobytes()


def test_arrays_of_jax_are_immutable() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for array in (jnp.zeros(6), np.asarray(jnp.zeros(6)), np.from_dlpack(jnp.zeros(6))):
        with pytest.raises(ValueError, match="got a read-only one"):
            PLAN.noise(6).residual(out=array)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_refused(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"(?i)bfloat16|dtype"):
        PLAN.noise(6).residual(out=torch.zeros(6, dtype=getattr(torch, dtype)))


# ---- Shards and keys ----


def test_shards_are_slices_at_every_step() -> None:
    key = os.urandom(32)
    whole = PLAN.noise(11, key=key)
    shards = [PLAN.noise(size, key=key, offset=at) for at, size in ((0, 4), (4, 1), (5, 6))]
    for _ in range(10):
        parts = [shard.residual() for shard in shards]
        assert np.array_equal(np.concatenate(parts), whole.residual())


def test_sources_without_a_key_differ_and_a_key_is_in_the_state() -> None:
    one, two = PLAN.noise(6), PLAN.noise(6)
    assert not np.array_equal(one.residual(), two.residual())
    key = os.urandom(32)
    keyed = PLAN.noise(6, key=key)
    assert not keyed.reproducible and PLAN.noise(6, seed=0).reproducible
    assert key.hex() in str(keyed.state_dict()) or str(key) in str(keyed.state_dict())
    assert key.hex() not in str(keyed.state_dict(key=False))
    assert key.hex() not in repr(keyed)
