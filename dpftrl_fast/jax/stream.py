# SPDX-License-Identifier: Apache-2.0
"""The noise stream in pure `jax.numpy`, in float32: for accelerators, and as a second definition.

docs/guarantees/stream.md defines the stream; the bits are those of the C++ core. Words of ChaCha
are uint32 arrays. The normals need IEEE additions, products and roots, each rounded by itself. XLA
compiles for the CPU with contraction: a product and the addition behind it become one operation
with one rounding, which changes about a tenth of the normals. Neither an optimization barrier nor
`reduce_precision` stays in the program until then. So each product passes through an integer: its
bits, exclusive or with a zero that the compiler cannot know to be one (`zero_of`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, integer
from dpftrl_fast.noise.keys import checked_key
from dpftrl_fast.reference.stream import POLYNOMIALS, node_counter, superblocks_of

_WIDTH = 256  # normals of a superblock
KIND, _EXTENSION = 1, 2  # of words
_RARE = 1 << 18
_CONSTANTS = np.frombuffer(b"expand 32-byte k", np.uint32)


def key_words(key: bytes) -> NDArray[np.uint32]:
    """Return a key of 32 bytes as the eight words that `node_normals` takes: **a secret**.

    Examples
    --------
    >>> key_words(bytes(range(32)))[:2].tolist()
    [50462976, 117835012]
    """
    return np.frombuffer(checked_key(key), "<u4").astype(np.uint32)


def node_normals(
    key: Any,
    *,
    level: int = 0,
    index: int = 0,
    tree: int = 0,
    start: int = 0,
    size: int,
    rounds: int = 12,
    purpose: int = 0,
) -> jax.Array:
    """Return the float32 normals of one node of the noise stream, unscaled.

    The bits are those of the core and of :func:`dpftrl_fast.reference.normals`: checked on
    the CPU. No record is kept of the nodes that were used, and no epsilon is stated: adding a
    node to two sums reveals their difference.

    Parameters
    ----------
    key : array of uint32, shape (8,)
        `key_words`; may be traced. **A secret**, also as a constant of a compiled function.
    level, index, tree : int
        The node; level 0 holds the steps, `index` 0 is the first.
    start, size : int
        The range of global coordinates.
    rounds : {8, 12, 20}
        Of ChaCha.
    purpose : int
        0 for trees, 3 for the other mechanisms; see docs/guarantees/stream.md.

    Returns
    -------
    jax.Array of float32, shape (size,)

    Examples
    --------
    >>> from dpftrl_fast.reference.stream import normals
    >>> key = bytes(range(32))
    >>> z = node_normals(key_words(key), level=2, index=1, start=100, size=300)
    >>> bool((z == normals(key, tree=0, level=2, index=1, start=100, size=300)).all())
    True
    """
    choice("rounds", rounds, (8, 12, 20))
    counter = np.array(node_counter(purpose, KIND, tree, level, index), np.uint32)
    made: jax.Array = normals_of(key, counter, start=start, size=size, rounds=rounds)
    return made


def normals_of(key: Any, counter: Any, *, start: int, size: int, rounds: int) -> Any:
    """Return the normals of a node, given as words 13 to 15 of the state (kind `KIND`)."""
    words = jnp.asarray(key)
    if words.dtype != np.uint32 or words.shape != (8,):
        raise TypeError(f"key must be uint32 of shape (8,), got {words.dtype} of {words.shape}")
    blocks = superblocks_of(integer("start", start, 0), integer("size", size, 1), _WIDTH)
    return _normals(
        words, jnp.asarray(counter), np.uint32(blocks.start), start=start, size=size,
        count=len(blocks), rounds=rounds,
    )  # fmt: skip


@partial(jax.jit, static_argnames=("start", "size", "count", "rounds"))
def _normals(
    key: Any, counter: Any, first: Any, *, start: int, size: int, count: int, rounds: int
) -> Any:  # fmt: skip
    numbers = first * 16 + jnp.arange(16 * count, dtype=jnp.uint32)
    words = _chacha(key, counter, numbers, rounds)
    high, angle = jnp.stack(words[:8]), jnp.stack(words[8:])
    extension = counter.at[2].add((_EXTENSION - KIND) << 16)
    low = _low_words(key, extension, numbers, high, rounds)
    rows = jnp.concatenate(_box_muller(high, low, angle))
    # Word j of lane i of a superblock is its coordinate 16 j + i.
    z = rows.reshape(16, count, 16).transpose(1, 0, 2).reshape(-1)
    return lax.slice(z, (start % _WIDTH,), (start % _WIDTH + size,))


def zero_of(x: Any) -> Any:
    """Return zeros in the shape of uint32 or float32 numbers, as integers made of their bits.

    Of two successive numbers one is even: no compiler looks for that. Zeros of a few numbers, or of
    a key, would be folded where these are constants of a program.
    """
    words = x if x.dtype == np.uint32 else lax.bitcast_convert_type(x, jnp.uint32)
    return (words * (words + 1)) & jnp.uint32(1)


def times(a: Any, b: Any, zero: Any) -> Any:
    """Return the rounded product of float32 numbers; `zero` is that of `zero_of`."""
    bits = lax.bitcast_convert_type(jnp.float32(a) * jnp.float32(b), jnp.uint32)
    return lax.bitcast_convert_type(bits ^ zero, jnp.float32)


def _low_words(key: Any, extension: Any, numbers: Any, high: Any, rounds: int) -> Any:
    """Return the low halves of the radius words: of the rare ones from blocks of their own."""
    rare = high < _RARE
    blocks = rare.any(axis=0)
    # One in 2048 of the blocks; room for more than eight standard deviations above.
    room = min(numbers.size, numbers.size // 1024 + 64)
    at = jnp.nonzero(blocks, size=room, fill_value=numbers.size)[0]

    def few() -> Any:
        made = jnp.stack(_chacha(key, extension, numbers[at], rounds)[:8])
        return jnp.zeros_like(high).at[:, at].set(made, mode="drop")

    def all_of_them() -> Any:
        return jnp.stack(_chacha(key, extension, numbers, rounds)[:8])

    return jnp.where(rare, lax.cond(blocks.sum() <= room, few, all_of_them), 0)


def _chacha(key: Any, counter: Any, numbers: Any, rounds: int) -> list[Any]:
    """Return the 16 words of the blocks of these numbers."""
    head = [*_CONSTANTS, *(key[i] for i in range(8))]
    tail = [counter[i] for i in range(3)]
    first = [jnp.broadcast_to(jnp.uint32(word), numbers.shape) for word in head]
    first += [numbers] + [jnp.broadcast_to(word, numbers.shape) for word in tail]

    def double_round(_: Any, x: list[Any]) -> list[Any]:
        x = list(x)
        for i in range(4):
            _quarter_round(x, i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            _quarter_round(x, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        return x

    last = lax.fori_loop(0, rounds // 2, double_round, first)
    return [a + b for a, b in zip(last, first, strict=True)]


def _quarter_round(x: list[Any], a: int, b: int, c: int, d: int) -> None:
    for by_d, by_b in ((16, 12), (8, 7)):
        x[a] = x[a] + x[b]
        x[d] = _rotated(x[d] ^ x[a], by_d)
        x[c] = x[c] + x[d]
        x[b] = _rotated(x[b] ^ x[c], by_b)


def _rotated(x: Any, by: int) -> Any:
    return (x << by) | (x >> (32 - by))


def _box_muller(high: Any, low: Any, angle: Any) -> tuple[Any, Any]:
    """Return pairs of normals of radius words (two halves) and angle words."""
    K, C, S, (two_ln_2,) = POLYNOMIALS[np.dtype(np.float32)]

    product = partial(times, zero=zero_of(angle))

    def horner(coefficients: tuple[float, ...], x: Any) -> Any:
        total = jnp.full_like(x, coefficients[-1])
        for coefficient in coefficients[-2::-1]:
            total = product(total, x) + jnp.float32(coefficient)
        return total

    lead = jnp.where(high == 0, low, high)
    by = lax.clz(lead) & 31
    rest = jnp.where((high == 0) | (by == 0), 0, low >> ((32 - by) & 31))
    top = jnp.where(lead == 0, jnp.uint32(1 << 31), (lead << by) | rest)
    zeros = jnp.where(high == 0, 32 + lax.clz(low), lax.clz(high))
    f = lax.bitcast_convert_type(top, jnp.int32).astype(jnp.float32) * jnp.float32(2.0**-32)
    x = (angle & 0x1FFFFFFF).astype(jnp.float32) * jnp.float32(2.0**-29)
    g = product(f, f)
    bracket = horner(K[0::2], g) + product(f, horner(K[1::2], g))
    r = jnp.sqrt(product(zeros.astype(jnp.float32), two_ln_2) + product(f, bracket))
    y = product(x, x)
    c, s = product(r, horner(C, y)), product(r, product(x, horner(S, y)))
    swap = (angle >> 29) & 1 != 0
    one, two = jnp.where(swap, s, c), jnp.where(swap, c, s)
    return jnp.where(angle >> 31 != 0, -one, one), jnp.where((angle >> 30) & 1 != 0, -two, two)
