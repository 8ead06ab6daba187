# SPDX-License-Identifier: Apache-2.0
"""The noise stream on a GPU: one Triton kernel that makes a tree's sums where they are needed.

docs/stream.md is the definition, and the bits are those of the C++ core: integers, and IEEE add,
subtract, multiply and square root (`sqrt_rn`) in the written order. Contraction has to be off:
`Stream` launches with ``enable_fp_fusion=False``.

A lane makes one ChaCha block (float64: a pair) and the 16 normals of its column of a superblock,
and adds up in registers whatever belongs to them: what is kept of a tree is read once; sum, average
and difference are written once. Kept averages come as a table of addresses. Words and normals of a
lane are tuples of 16 variables, since Triton has no arrays in registers.
"""

# Triton's language is typed by its compiler, not by Python, and has no starred tuples.
# ruff: noqa: RUF005
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from dpftrl_fast.reference.stream import POLYNOMIALS

__all__ = ["HIGHEST_LEVEL", "Node", "Stream"]

#: Of a node of a tree of 2^46 steps.
HIGHEST_LEVEL = 46

_LANES, _WARPS = 128, 4  # of a program


@triton.jit
def _rotate(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _chacha(number, key, counter, rounds: tl.constexpr):
    """Return the 16 words of the blocks of these numbers (uint32, one a lane)."""
    zero = number ^ number
    start = (zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574)
    for i in tl.static_range(8):
        start = start + (zero + key[i],)
    start = start + (number, zero + counter[0], zero + counter[1], zero + counter[2])
    a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3 = start
    for _ in range(rounds // 2):
        a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    end = (a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3)
    words = ()
    for i in tl.static_range(16):
        words = words + (end[i] + start[i],)
    return words


@triton.jit
def _constant(bits, like):
    """Return the number of these bits: the compiler rounds a literal to float32 first."""
    if like.dtype == tl.float64:
        return tl.full((), bits, tl.int64).to(tl.float64, bitcast=True)
    else:
        return tl.full((), bits, tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _horner(x, coefficients):
    total = tl.zeros_like(x) + _constant(coefficients[-1], x)
    for i in tl.static_range(len(coefficients) - 1):
        total = total * x + _constant(coefficients[len(coefficients) - 2 - i], x)
    return total


@triton.jit
def _normalised(high, low):
    """Return the leading zeros of the 64-bit word, and the halves of it without them."""
    lead = tl.where(high == 0, low, high)
    rest = tl.where(high == 0, low ^ low, low)
    # The leading bit without the one behind it: no rounding carries into a new leading bit.
    exponent = (lead & ~(lead >> 1)).to(tl.float32).to(tl.uint32, bitcast=True) >> 23
    by = (158 - exponent) & 31  # of lead = 0 it does not matter
    up = lead << by | tl.where(by == 0, rest ^ rest, rest >> ((32 - by) & 31))
    zeros = tl.where(lead == 0, (by ^ by) + 64, tl.where(high == 0, by + 32, by))
    return zeros, tl.where(lead == 0, (up ^ up) + 0x80000000, up), rest << by


@triton.jit
def _pair(f, zeros, x, swap, first_sign, second_sign, polynomials):
    """Return two normals of f, the leading zeros, the angle x and the three bits beside it."""
    even, odd, cosine, sine, two_ln_2 = polynomials
    g = f * f
    square = zeros * _constant(two_ln_2, f) + f * (_horner(g, even) + f * _horner(g, odd))
    # PTX has no other square root of doubles than the correctly rounded one.
    r = tl.sqrt_rn(square) if square.dtype == tl.float32 else tl.sqrt(square)
    y = x * x
    c = r * _horner(y, cosine)
    s = r * (x * _horner(y, sine))
    first = tl.where(swap, s, c)
    second = tl.where(swap, c, s)
    return tl.where(first_sign, -first, first), tl.where(second_sign, -second, second)


@triton.jit
def _normals32(superblock, lane, key, counter, rounds: tl.constexpr, polynomials):
    number = (superblock * 16 + lane).to(tl.uint32)
    words = _chacha(number, key, (counter[0], counter[1], counter[2] + (1 << 16)), rounds)
    rare = number != number
    for j in tl.static_range(8):
        rare = rare | (words[j] < (1 << 18))
    extension = ()
    for _ in tl.static_range(8):
        extension = extension + (number ^ number,)
    if tl.sum(rare.to(tl.int32), axis=0) > 0:
        more = _chacha(number, key, (counter[0], counter[1], counter[2] + (2 << 16)), rounds)
        extension = (more[0], more[1], more[2], more[3], more[4], more[5], more[6], more[7])
    lower = ()
    upper = ()
    for j in tl.static_range(8):
        high = words[j]
        angle = words[j + 8]
        low = tl.where(high < (1 << 18), extension[j], high ^ high)
        zeros, top, _ = _normalised(high, low)
        f = top.to(tl.int32, bitcast=True).to(tl.float32) * 2.0**-32
        x = (angle & 0x1FFFFFFF).to(tl.float32) * 2.0**-29
        first, second = _pair(
            f,
            zeros.to(tl.float32),
            x,
            (angle & 0x20000000) != 0,
            (angle & 0x80000000) != 0,
            (angle & 0x40000000) != 0,
            polynomials,
        )
        lower = lower + (first,)
        upper = upper + (second,)
    return lower + upper


@triton.jit
def _normals64(superblock, lane, key, counter, rounds: tl.constexpr, polynomials):
    number = (superblock * 16 + 2 * lane).to(tl.uint32)
    own = (counter[0], counter[1], counter[2] + (3 << 16))
    even = _chacha(number, key, own, rounds)
    odd = _chacha(number + 1, key, own, rounds)
    lower = ()
    upper = ()
    for j in tl.static_range(8):
        zeros, top, rest = _normalised(odd[j], even[j])
        n = top.to(tl.uint64) << 32 | rest.to(tl.uint64)
        f = n.to(tl.int64, bitcast=True).to(tl.float64) * 2.0**-64
        angle = odd[j + 8].to(tl.uint64) << 32 | even[j + 8].to(tl.uint64)
        x = ((angle << 3 >> 12) | (0x3FF << 52)).to(tl.float64, bitcast=True) - 1.0
        first, second = _pair(
            f,
            zeros.to(tl.float64),
            x,
            (odd[j + 8] & 0x20000000) != 0,
            (odd[j + 8] & 0x80000000) != 0,
            (odd[j + 8] & 0x40000000) != 0,
            polynomials,
        )
        lower = lower + (first,)
        upper = upper + (second,)
    return lower + upper


@triton.jit
def _load(start, at, inside, lanes: tl.constexpr):
    values = ()
    for j in tl.static_range(16):
        e = at + j * lanes
        values = values + (tl.load(start + e, mask=inside[j], other=0.0),)
    return values


@triton.jit
def _store(start, at, inside, values, lanes: tl.constexpr):
    for j in tl.static_range(16):
        tl.store(start + (at + j * lanes), values[j], mask=inside[j])


@triton.jit
def _address(table, i, like):
    return tl.load(table + i).to(tl.pointer_type(like.dtype.element_ty))


_SCALARS = "known level index first_level tree purpose k0 k1 k2 k3 k4 k5 k6 k7 offset size"


@triton.jit(do_not_specialize=_SCALARS.split())
def _sum_kernel(
    out,
    base,
    keep_average,
    keep_sum,
    last,
    table,
    numbers,
    known,
    level,
    index,
    first_level,
    tree,
    purpose,
    k0,
    k1,
    k2,
    k3,
    k4,
    k5,
    k6,
    k7,
    offset,
    size,
    STD: tl.constexpr,
    HAS_KNOWN: tl.constexpr,
    HAS_NODE: tl.constexpr,
    DIFFERENCE: tl.constexpr,
    DOUBLE: tl.constexpr,
    ROUNDS: tl.constexpr,
    POLYNOMIALS: tl.constexpr,
    LANES: tl.constexpr,
):
    signed = (k0, k1, k2, k3, k4, k5, k6, k7)
    key = ()
    for i in tl.static_range(8):
        key = key + (signed[i].to(tl.uint32, bitcast=True),)
    index = index.to(tl.int64)
    tree = tree.to(tl.int64)
    offset = offset.to(tl.int64)
    size = size.to(tl.int64)
    width: tl.constexpr = 8 if DOUBLE else 16
    lane = tl.arange(0, LANES)
    first = offset // (16 * width) + tl.program_id(0).to(tl.int64) * (LANES // width)
    superblock = first + lane // width
    column = lane % width
    at = superblock * (16 * width) + column - offset
    inside = ()
    for j in tl.static_range(16):
        e = at + j * width
        inside = inside + ((e >= 0) & (e < size),)

    # The sum so far, and the averages at hand, from high levels to low.
    if base is not None:
        total = _load(base, at, inside, width)
        begin = 0
    elif HAS_KNOWN:
        term = _load(_address(table, 0, out), at, inside, width)
        weight = tl.load(numbers + tl.load(table + 1))
        total = ()
        for j in tl.static_range(16):
            total = total + (term[j] * weight,)
        begin = 1
    if HAS_KNOWN:
        for i in range(begin, known):
            term = _load(_address(table, 2 * i, out), at, inside, width)
            weight = tl.load(numbers + tl.load(table + 2 * i + 1))
            sums = ()
            for j in tl.static_range(16):
                sums = sums + (total[j] + term[j] * weight,)
            total = sums

    # The last term: a node, or the average that ends in it, with the left averages at hand.
    if HAS_NODE:
        std = tl.load(numbers + STD)
        average = ()
        for _ in tl.static_range(16):
            average = average + (tl.zeros_like(column).to(out.dtype.element_ty),)
        # One loop body for all levels, since each copy of it takes the compiler long.
        for i in range(first_level, level + 1):
            place = ((index + 1) << (level - i)) - 1
            node = (2 * place + 1) << i
            counter = (
                (node & 0xFFFFFFFF).to(tl.uint32),
                ((node >> 32) | ((tree >> 16) << 16)).to(tl.uint32),
                ((tree & 0xFFFF) | (purpose << 24)).to(tl.uint32),
            )
            if DOUBLE:
                z = _normals64(superblock, column, key, counter, ROUNDS, POLYNOMIALS)
            else:
                z = _normals32(superblock, column, key, counter, ROUNDS, POLYNOMIALS)
            below = column * 0 + i > first_level  # whether there is a level below
            address = _address(table, 2 * known + tl.maximum(i - first_level - 1, 0), out)
            higher = ()
            for j in tl.static_range(16):
                v = z[j] * std
                left = tl.load(address + (at + j * width), mask=inside[j] & below, other=0.0)
                higher = higher + (tl.where(below, v + (left + average[j]) * 0.5, v),)
            average = higher
        if keep_average is not None:
            _store(keep_average, at, inside, average, width)
        weight = tl.load(numbers + level)
        sums = ()
        if (base is not None) or HAS_KNOWN:
            for j in tl.static_range(16):
                sums = sums + (total[j] + average[j] * weight,)
        else:
            for j in tl.static_range(16):
                sums = sums + (average[j] * weight,)
        total = sums

    if keep_sum is not None:
        _store(keep_sum, at, inside, total, width)
    if last is not None:
        if DIFFERENCE:
            before = _load(last, at, inside, width)
            _store(last, at, inside, total, width)
            differences = ()
            for j in tl.static_range(16):
                differences = differences + (total[j] - before[j],)
            total = differences
        else:
            _store(last, at, inside, total, width)
    _store(out, at, inside, total, width)


def _polynomials(dtype):
    """Return the coefficients as integers of their bits: even and odd of K, C, S, 2 ln 2."""
    integer = np.int64 if dtype == np.float64 else np.int32
    K, C, S, (two_ln_2,) = (
        tuple(np.array(row, dtype).view(integer).tolist()) for row in POLYNOMIALS[dtype]
    )
    return K[0::2], K[1::2], C, S, two_ln_2


class Node(NamedTuple):
    """A node that a sum ends with.

    Attributes
    ----------
    level, index : int
    left : sequence of tensors or None
        None: the node's own value. Else its average of Honaker, from the averages of the left
        children on the way down to its last leaf, those of the lowest level first.
    """

    level: int
    index: int
    left: Sequence[torch.Tensor] | None


class Stream:
    """The noise of one key on one device, and the sums of it.

    Parameters
    ----------
    key : bytes
        32 secret bytes. They go to the device with every launch, as arguments of the kernel.
    std : float
        Of a node, in the dtype.
    weights : sequence of float
        The weight of a term by its level, rounded to the dtype.
    dtype : torch.float32 or torch.float64
    device : torch.device
        A CUDA device; the CPU under Triton's interpreter.
    rounds, purpose, offset, size
        As for :class:`dpftrl_fast.TreeNoise`, `purpose` as its number.
    """

    def __init__(
        self,
        key: bytes,
        *,
        std: float,
        weights: Sequence[float],
        dtype: torch.dtype,
        device: torch.device,
        rounds: int,
        purpose: int,
        offset: int,
        size: int,
    ) -> None:
        self.dtype, self.device, self.size = dtype, device, size
        self._key = [int.from_bytes(key[i : i + 4], "little", signed=True) for i in range(0, 32, 4)]
        self._rounds, self._purpose, self._offset = rounds, purpose, offset
        # On level l the weight of a term, then the standard deviation.
        self._weighted = torch.tensor([*weights, std], dtype=dtype, device=device)
        self._plain = torch.tensor([1.0] * len(weights) + [std], dtype=dtype, device=device)
        double = dtype == torch.float64
        self._polynomials = _polynomials(np.dtype(np.float64 if double else np.float32))
        per = 8 if double else 16  # lanes of a superblock
        superblocks = (offset + size - 1) // (16 * per) - offset // (16 * per) + 1
        self._grid = (-(-superblocks // (_LANES // per)),)

    def add_up(
        self,
        out: torch.Tensor,
        *,
        tree: int,
        base: torch.Tensor | None = None,
        known: Sequence[tuple[torch.Tensor, int]] = (),
        node: Node | None = None,
        plain: bool = False,
        keep_average: torch.Tensor | None = None,
        keep_sum: torch.Tensor | None = None,
        last: torch.Tensor | None = None,
        difference: bool = False,
    ) -> None:
        """Set out to base + the known averages by their weights + the node by its weight.

        Parameters
        ----------
        out : tensor of shape (size,)
        tree : int
        base : tensor, optional
        known : sequence of (tensor, level)
            Averages at hand, in the order in which they are added.
        node : Node, optional
            The last term.
        plain : bool
            All weights are 1.
        keep_average, keep_sum, last : tensors, optional
            Where the node's average goes, the sum, and the sum again.
        difference : bool
            Set out to the sum less what is in `last`.
        """
        left = () if node is None or node.left is None else node.left
        entries = [x for average, level in known for x in (average.data_ptr(), level)]
        entries += [average.data_ptr() for average in left]
        table = torch.tensor(entries or [0], dtype=torch.int64).to(self.device, non_blocking=True)
        level, index = (0, 0) if node is None else (node.level, node.index)
        # Triton launches on the current device.
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            _sum_kernel[self._grid](
                out,
                base,
                keep_average,
                keep_sum,
                last,
                table,
                self._plain if plain else self._weighted,
                len(known),
                level,
                index,
                level if node is None or node.left is None else 0,
                tree,
                self._purpose,
                *self._key,
                self._offset,
                self.size,
                STD=HIGHEST_LEVEL + 1,
                HAS_KNOWN=bool(known),
                HAS_NODE=node is not None,
                DIFFERENCE=difference,
                DOUBLE=self.dtype == torch.float64,
                ROUNDS=self._rounds,
                POLYNOMIALS=self._polynomials,
                LANES=_LANES,
                num_warps=_WARPS,
                enable_fp_fusion=False,
            )
