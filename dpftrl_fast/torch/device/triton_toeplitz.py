# SPDX-License-Identifier: Apache-2.0
"""The noise of a step of a Toeplitz mechanism on a GPU: one Triton kernel for all kinds.

A lane makes its normals in registers, as in `triton_stream`, and combines them with earlier ones
that it makes again, or with kept vectors that it reads; then it writes what is asked for: the noise
of the step, the noise of the running sum, and the vectors for later steps. Two taps read nothing
and write one element a coordinate. Nothing is fused (docs/guarantees/stream.md gives the order).
"""

# Triton's language is typed by its compiler, not by Python, and has no starred tuples.
# ruff: noqa: RUF005
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from dpftrl_fast.torch.device.triton_stream import (
    address_at,
    key_words,
    load_rows,
    node_normals,
    place_of,
    store_rows,
)

#: Arguments that change from call to call: no code of their own for some values.
SCALARS = "made index known written tree purpose k0 k1 k2 k3 k4 k5 k6 k7 offset size"


@triton.jit(do_not_specialize=SCALARS.split())
def toeplitz_kernel(
    out,
    sum_so_far,
    keep,
    table,
    numbers,
    made,
    index,
    known,
    written,
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
    KEEP_Z: tl.constexpr,
    DIVIDE: tl.constexpr,
    BUFFERS: tl.constexpr,
    ADD_OUT: tl.constexpr,
    ADD_SUM: tl.constexpr,
    SHOW_SUM: tl.constexpr,
    DOUBLE: tl.constexpr,
    ROUNDS: tl.constexpr,
    POLYNOMIALS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Make x of one step, and add it to what is given.

    All vectors have `size` elements from coordinate `offset` on; those that are None are left out.

    - x is z of the leaf `index`, then + weight * z of the `made` - 1 leaves before it, newest
      first, then + weight * vector for the first `known` vectors of `table`, a table of addresses.
      With DIVIDE it is divided by the divisor.
    - `numbers` holds the standard deviation of z, the divisor, the weights, then the decays.
    - `keep` gets z with KEEP_Z, else x.
    - With BUFFERS the first `written` vectors of the table become decay * vector + x; x where none
      was known.
    - `sum_so_far` becomes x, or with ADD_SUM itself plus x. `out` becomes x, or with
      ADD_OUT itself plus x, or with SHOW_SUM the new sum.
    """
    key = key_words(k0, k1, k2, k3, k4, k5, k6, k7)
    index = index.to(tl.int64)
    tree = tree.to(tl.int64)
    offset = offset.to(tl.int64)
    size = size.to(tl.int64)
    width: tl.constexpr = 8 if DOUBLE else 16
    superblock, column, at, inside = place_of(offset, size, DOUBLE, LANES)

    std = tl.load(numbers)
    x = ()
    for _ in tl.static_range(16):
        x = x + (tl.zeros_like(column).to(numbers.dtype.element_ty),)
    newest = x
    # One loop body for the newest and the others, since each copy of it takes the compiler long.
    for i in range(0, made):
        node = 2 * (index - i) + 1
        normals = node_normals(
            node, tree, purpose, superblock, column, key, DOUBLE, ROUNDS, POLYNOMIALS
        )
        is_first = column * 0 + i == 0
        weight = tl.load(numbers + 1 + i)
        sums = ()
        firsts = ()
        for j in tl.static_range(16):
            z = normals[j] * std
            sums = sums + (tl.where(is_first, z, x[j] + z * weight),)
            if KEEP_Z:
                firsts = firsts + (tl.where(is_first, z, newest[j]),)
            else:
                firsts = firsts + (newest[j],)
        x = sums
        newest = firsts
    for i in range(0, known):
        vector = load_rows(address_at(table, i, numbers), at, inside, width)
        weight = tl.load(numbers + 2 + i)
        sums = ()
        for j in tl.static_range(16):
            sums = sums + (x[j] + vector[j] * weight,)
        x = sums
    if DIVIDE:
        divisor = tl.load(numbers + 1)
        sums = ()
        for j in tl.static_range(16):
            # PTX has no other division of doubles than the correctly rounded one.
            quotient = x[j] / divisor if DOUBLE else tl.div_rn(x[j], divisor)
            sums = sums + (quotient,)
        x = sums

    if keep is not None:
        if KEEP_Z:
            store_rows(keep, at, inside, newest, width)
        else:
            store_rows(keep, at, inside, x, width)
    if BUFFERS:
        was_known = column * 0 + known > 0
        for i in range(0, written):
            start = address_at(table, i, numbers)
            decay = tl.load(numbers + 2 + written + i)
            for j in tl.static_range(16):
                e = start + (at + j * width)
                old = tl.load(e, mask=inside[j] & was_known, other=0.0)
                tl.store(e, tl.where(was_known, old * decay + x[j], x[j]), mask=inside[j])
    total = x
    if sum_so_far is not None:
        if ADD_SUM:
            before = load_rows(sum_so_far, at, inside, width)
            total = ()
            for j in tl.static_range(16):
                total = total + (before[j] + x[j],)
        store_rows(sum_so_far, at, inside, total, width)
    if out is not None:
        if SHOW_SUM:
            store_rows(out, at, inside, total, width)
        elif ADD_OUT:
            before = load_rows(out, at, inside, width)
            sums = ()
            for j in tl.static_range(16):
                sums = sums + (before[j] + x[j],)
            store_rows(out, at, inside, sums, width)
        else:
            store_rows(out, at, inside, x, width)
