# SPDX-License-Identifier: Apache-2.0
"""The noise stream on a GPU: one Triton kernel that makes a tree's sums where they are needed.

docs/guarantees/stream.md is the definition, and the bits are those of the C++ core: integers, and
IEEE add, subtract, multiply and square root (`sqrt_rn`) in the written order. Contraction has to be
off: launches say ``enable_fp_fusion=False`` (`dpftrl_fast.torch.device.stream`).

A lane makes one ChaCha block (float64: a pair) and the 16 normals of its column of a superblock,
and adds up in registers whatever belongs to them: kept vectors of a tree are read once; sum,
average and difference are written once. Kept averages come as a table of addresses. Words and
normals of a lane are tuples of 16 variables, since Triton has no arrays in registers.
"""

# Triton's language is typed by its compiler, not by Python, and has no starred tuples.
# ruff: noqa: RUF005
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl


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
def _is_rare64(high):
    # Within 2^18 of either end; the sum wraps.
    return (high + (1 << 18)) < (1 << 19)


@triton.jit
def _joined(high, low):
    return high.to(tl.uint64) << 32 | low.to(tl.uint64)


@triton.jit
def rare_radius(word, extension):
    """Return f and the leading zeros of a rare radius word, and of any other one some numbers."""
    small = word >= (1 << 63)  # a radius near 0, whose 128 bits X become 2^128 - X
    low = tl.where(small, ~extension + 1, extension)
    high = tl.where(small, ~word + (extension == 0).to(tl.uint64), word)
    lead = tl.where(high == 0, low, high)
    rest = tl.where(high == 0, low ^ low, low)
    by, top, bottom = _normalised((lead >> 32).to(tl.uint32), lead.to(tl.uint32))
    by = tl.where(lead == 0, by ^ by, by)  # of 128 zeros the word is 2^63 too
    moved = by.to(tl.uint64)
    up = tl.where(moved == 0, rest ^ rest, rest >> ((64 - moved) & 63))
    n = _joined(top, bottom) | up
    zeros = tl.where(high == 0, tl.where(lead == 0, by + 128, by + 64), by)
    # -2^-(63 + zeros), by its bits
    unit = ((1 << 63) | ((960 - zeros).to(tl.uint64) << 52)).to(tl.float64, bitcast=True)
    near = (n >> 1).to(tl.int64, bitcast=True).to(tl.float64) * unit
    far = n.to(tl.int64, bitcast=True).to(tl.float64) * 2.0**-64
    return tl.where(small, near, far), tl.where(small, zeros ^ zeros, zeros)


@triton.jit
def _normals64(superblock, lane, key, counter, rounds: tl.constexpr, polynomials):
    number = (superblock * 16 + 2 * lane).to(tl.uint32)
    own = (counter[0], counter[1], counter[2] + (3 << 16))
    even = _chacha(number, key, own, rounds)
    odd = _chacha(number + 1, key, own, rounds)
    rare = number != number
    radii = ()  # f of each row
    counts = ()  # its leading zeros
    for j in tl.static_range(8):
        rare = rare | _is_rare64(odd[j])
        zeros, top, rest = _normalised(odd[j], even[j])
        n = _joined(top, rest)
        radii = radii + (n.to(tl.int64, bitcast=True).to(tl.float64) * 2.0**-64,)
        counts = counts + (zeros,)
    if tl.sum(rare.to(tl.int32), axis=0) > 0:
        more = (counter[0], counter[1], counter[2] + (5 << 16))
        low = _chacha(number, key, more, rounds)
        high = _chacha(number + 1, key, more, rounds)
        longer = ()
        longer_counts = ()
        for j in tl.static_range(8):
            f, zeros = rare_radius(_joined(odd[j], even[j]), _joined(high[j], low[j]))
            here = _is_rare64(odd[j])
            longer = longer + (tl.where(here, f, radii[j]),)
            longer_counts = longer_counts + (tl.where(here, zeros, counts[j]),)
        radii = longer
        counts = longer_counts
    lower = ()
    upper = ()
    for j in tl.static_range(8):
        angle = _joined(odd[j + 8], even[j + 8])
        x = ((angle << 3 >> 12) | (0x3FF << 52)).to(tl.float64, bitcast=True) - 1.0
        first, second = _pair(
            radii[j],
            counts[j].to(tl.float64),
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
def load_rows(start, at, inside, lanes: tl.constexpr):
    """Return the 16 elements of a lane, `lanes` apart from `at` on; 0 outside the vector."""
    values = ()
    for j in tl.static_range(16):
        e = at + j * lanes
        values = values + (tl.load(start + e, mask=inside[j], other=0.0),)
    return values


@triton.jit
def store_rows(start, at, inside, values, lanes: tl.constexpr):
    """Write the 16 elements of a lane that lie inside the vector."""
    for j in tl.static_range(16):
        tl.store(start + (at + j * lanes), values[j], mask=inside[j])


@triton.jit
def address_at(table, i, like):
    """Return entry i of a table of addresses, as a pointer like another."""
    return tl.load(table + i).to(tl.pointer_type(like.dtype.element_ty))


@triton.jit
def key_words(k0, k1, k2, k3, k4, k5, k6, k7):
    """Return the key as 8 words of 32 bits, without their sign."""
    signed = (k0, k1, k2, k3, k4, k5, k6, k7)
    key = ()
    for i in tl.static_range(8):
        key = key + (signed[i].to(tl.uint32, bitcast=True),)
    return key


@triton.jit
def place_of(offset, size, double: tl.constexpr, lanes: tl.constexpr):
    """Return the superblock of each lane, its column, its first element, and which lie inside."""
    width: tl.constexpr = 8 if double else 16
    lane = tl.arange(0, lanes)
    first = offset // (16 * width) + tl.program_id(0).to(tl.int64) * (lanes // width)
    superblock = first + lane // width
    column = lane % width
    at = superblock * (16 * width) + column - offset
    inside = ()
    for j in tl.static_range(16):
        e = at + j * width
        inside = inside + ((e >= 0) & (e < size),)
    return superblock, column, at, inside


@triton.jit
def node_normals(
    node,
    tree,
    purpose,
    superblock,
    column,
    key,
    double: tl.constexpr,
    rounds: tl.constexpr,
    polynomials,
):
    """Return the 16 normals of a lane for the node of this number (level and index in one)."""
    counter = (
        (node & 0xFFFFFFFF).to(tl.uint32),
        ((node >> 32) | ((tree >> 16) << 16)).to(tl.uint32),
        ((tree & 0xFFFF) | (purpose << 24)).to(tl.uint32),
    )
    if double:
        z = _normals64(superblock, column, key, counter, rounds, polynomials)
    else:
        z = _normals32(superblock, column, key, counter, rounds, polynomials)
    return z


#: Arguments that change from call to call: no code of their own for some values.
SCALARS = "known level index first_level tree purpose k0 k1 k2 k3 k4 k5 k6 k7 offset size"


@triton.jit(do_not_specialize=SCALARS.split())
def sum_kernel(
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
    """Set out to base + known averages + the node's average, each by its weight.

    All vectors have `size` elements from coordinate `offset` on; those that are None are left out.

    - `table` holds the address and the level of each of the `known` averages, in the order in which
      they are added, then the addresses of the averages of the left children, lowest first.
    - `numbers` holds the weights by level, and at STD the standard deviation of a node.
    - The node is made from the levels first_level..level on the way down to its last leaf: all of
      them for an average of Honaker, its own level only for a node by itself.
    - `keep_average` and `keep_sum` get copies; `last` gets the sum, and with DIFFERENCE `out` is
      the sum less the old `last`.
    """
    key = key_words(k0, k1, k2, k3, k4, k5, k6, k7)
    index = index.to(tl.int64)
    tree = tree.to(tl.int64)
    offset = offset.to(tl.int64)
    size = size.to(tl.int64)
    width: tl.constexpr = 8 if DOUBLE else 16
    superblock, column, at, inside = place_of(offset, size, DOUBLE, LANES)

    # The sum so far, and the averages at hand, from high levels to low.
    if base is not None:
        total = load_rows(base, at, inside, width)
        begin = 0
    elif HAS_KNOWN:
        term = load_rows(address_at(table, 0, out), at, inside, width)
        weight = tl.load(numbers + tl.load(table + 1))
        total = ()
        for j in tl.static_range(16):
            total = total + (term[j] * weight,)
        begin = 1
    if HAS_KNOWN:
        for i in range(begin, known):
            term = load_rows(address_at(table, 2 * i, out), at, inside, width)
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
            z = node_normals(
                node, tree, purpose, superblock, column, key, DOUBLE, ROUNDS, POLYNOMIALS
            )
            below = column * 0 + i > first_level  # whether there is a level below
            address = address_at(table, 2 * known + tl.maximum(i - first_level - 1, 0), out)
            higher = ()
            for j in tl.static_range(16):
                v = z[j] * std
                left = tl.load(address + (at + j * width), mask=inside[j] & below, other=0.0)
                higher = higher + (tl.where(below, v + (left + average[j]) * 0.5, v),)
            average = higher
        if keep_average is not None:
            store_rows(keep_average, at, inside, average, width)
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
        store_rows(keep_sum, at, inside, total, width)
    if last is not None:
        if DIFFERENCE:
            before = load_rows(last, at, inside, width)
            store_rows(last, at, inside, total, width)
            differences = ()
            for j in tl.static_range(16):
                differences = differences + (total[j] - before[j],)
            total = differences
        else:
            store_rows(last, at, inside, total, width)
    store_rows(out, at, inside, total, width)
