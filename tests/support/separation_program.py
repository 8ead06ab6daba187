# SPDX-License-Identifier: Apache-2.0
"""The plain program for a minimum separation: a memoised recurrence over power-of-two blocks.

``best(block, k, a, g)`` is the largest sum of squares over the counted nodes of a block with k
uses, the first at least ``a`` steps after its beginning and the last at least ``g`` steps before
its end. Only offsets below the separation matter. A block is two blocks side by side, and k uses of
it are k1 in the left one and the rest in the right one, with every gap at the seam tried:

    best(block, k, a, g) = counted * k^2 + max over k1, g1 of
        best(left, k1, a, g1) + best(right, k - k1, separation - 1 - g1, g)

Memory and time grow with the square and the cube of the separation. It shares nothing with the
core; what it is for is checking it, and measuring what its pieces are worth.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

Counted = Literal["all", "even"]

_NEVER = -(10**9)


@dataclass(frozen=True, eq=False)
class Block:
    """Steps in a row, of which some at the end may be virtual, and the nodes over them."""

    steps: int  # real ones
    counted: bool  # whether the node over the whole block is
    halves: tuple[Block, Block] | None


_EMPTY = Block(0, False, None)


def plain_min_separation(
    trees: Iterable[tuple[int, bool]], most: int, separation: int, counted: Counted = "all"
) -> int:
    """The largest sum of squares over trees ``(steps, completed)``, by the plain recurrence.

    ``counted`` is ``"all"`` for all nodes that can be read or ``"even"`` for those of vanilla
    prefixes.
    """
    run = _EMPTY
    for steps, completed in trees:
        run = _row(run, _tree(steps, completed, counted))
    reach = separation - 1

    @cache
    def best(block: Block, k: int, a: int, g: int) -> int:
        if k == 0:
            return 0
        if a + g + (k - 1) * separation >= block.steps:
            return _NEVER
        own = k * k if block.counted else 0
        if block.halves is None:
            return own
        left, right = block.halves
        after, before = max(0, g - right.steps), max(0, a - left.steps)
        options = [best(left, k, a, after), best(right, k, before, g)]
        for k1 in range(1, k):
            for g1 in range(separation):
                one = best(left, k1, a, g1)
                if one < 0:
                    break  # nor is there one with a wider gap
                options.append(one + best(right, k - k1, reach - g1, g))
        return own + max(options)

    uses = min(most, -(-run.steps // separation))
    return max(best(run, k, 0, 0) for k in range(1, uses + 1))


def _row(left: Block, right: Block) -> Block:
    if not left.steps:
        return right
    return Block(left.steps + right.steps, False, (left, right))


@cache
def _node(level: int, steps: int, is_even: bool, read: Counted) -> Block:
    """A node over 2^level leaves, the first ``steps`` of them real, in a tree that reaches its end.

    Of all nodes each counts; prefixes read those of even index whose leaves are real.
    """
    size = 1 << level
    counts = read == "all" or (is_even and steps == size)
    if steps == 0:
        return _EMPTY
    if level == 0:
        return Block(1, counts, None)
    half = size // 2
    left = _node(level - 1, min(steps, half), True, read)
    right = _node(level - 1, max(0, steps - half), False, read)
    return Block(steps, counts, (left, right))


@cache
def _tree(steps: int, completed: bool, read: Counted) -> Block:
    if completed:
        level = (steps - 1).bit_length()
        whole = _node(level, steps, True, read)
        return Block(steps, True, whole.halves)  # a prefix reads the root
    tree = _EMPTY
    for level in reversed(range(steps.bit_length())):
        if steps >> level & 1:
            tree = _row(tree, _node(level, 1 << level, True, read))
    return tree
