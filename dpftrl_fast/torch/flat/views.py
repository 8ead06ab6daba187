# SPDX-License-Identifier: Apache-2.0
"""`FlatViews`: many tensors as one flat vector, and the copies between the two.

The vector is cut into blocks, and a block into pieces of tensors. Copies take a block at a time, so
that a thousand small tensors cost little more than one; and no block lies in two parameter groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 2**18


@dataclass(frozen=True)
class Piece:
    """Coordinates [first, stop) of tensor `index`; `whole` if these are all it has."""

    index: int
    first: int
    stop: int
    whole: bool


@dataclass(frozen=True)
class Block:
    """Coordinates [start, stop) of the flat vector, all of parameter group `group`."""

    start: int
    stop: int
    group: int
    pieces: tuple[Piece, ...]

    @property
    def part(self) -> slice:
        """The block's coordinates, to cut a vector with."""
        return slice(self.start, self.stop)


class FlatViews:
    """Layout of tensors in a flat vector, and the copies between the two.

    Tensors of these shapes follow one another; `group_sizes` is the number of them in each
    parameter group. A block has at most `block_size` coordinates, except for a tensor whose memory
    is not contiguous.

    Examples
    --------
    >>> flat = FlatViews([torch.zeros(2, 2), torch.zeros(3)], [2])
    >>> vector = torch.zeros(flat.size)
    >>> for block in flat.blocks:
    ...     flat.add_to(vector[block.part], block, [torch.ones(2, 2), None])
    >>> vector
    tensor([1., 1., 1., 1., 0., 0., 0.])
    """

    def __init__(
        self, tensors: Sequence[Tensor], group_sizes: Sequence[int], *, block_size: int = _BLOCK
    ) -> None:
        self.shapes = [tensor.shape for tensor in tensors]
        self._views: dict[tuple[int, int], list[Tensor]] = {}
        self.blocks: list[Block] = []
        self.size = first = 0
        for group, count in enumerate(group_sizes):
            pieces: list[Piece] = []
            held = 0
            for index in range(first, first + count):
                for piece in _pieces(index, tensors[index], block_size):
                    size = piece.stop - piece.first
                    if pieces and held + size > block_size:
                        self._close(group, pieces, held)
                        pieces, held = [], 0
                    pieces.append(piece)
                    held += size
            self._close(group, pieces, held)
            first += count

    def _close(self, group: int, pieces: list[Piece], held: int) -> None:
        if pieces:
            self.blocks.append(Block(self.size, self.size + held, group, tuple(pieces)))
            self.size += held

    def add_to(self, part: Tensor, block: Block, tensors: Sequence[Tensor | None]) -> None:
        """Add a block of the tensors to that part of a vector; None counts as zeros."""
        to, of = self._pairs(part, block, tensors)
        if to:
            torch._foreach_add_(to, of)

    def copy_to(self, part: Tensor, block: Block, tensors: Sequence[Tensor | None]) -> None:
        """Copy a block of the tensors into that part of a vector; None counts as zeros."""
        part.zero_()
        self.add_to(part, block, tensors)

    def copy_from(self, part: Tensor, block: Block, tensors: Sequence[Tensor]) -> None:
        """Copy that part of a vector into a block of the tensors, rounding to their dtypes."""
        of, to = self._pairs(part, block, tensors)
        torch._foreach_copy_(to, of)

    def _pairs(
        self, part: Tensor, block: Block, tensors: Sequence[Tensor | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the views of the part, and beside them the pieces of the tensors."""
        in_part, in_tensors = [], []
        for view, piece in zip(self._views_of(part, block), block.pieces, strict=True):
            tensor = tensors[piece.index]
            if tensor is not None:
                in_part.append(view)
                in_tensors.append(
                    tensor if piece.whole else tensor.view(-1)[piece.first : piece.stop]
                )
        return in_part, in_tensors

    def _views_of(self, part: Tensor, block: Block) -> list[Tensor]:
        # Vectors live as long as the run, and a thousand views of them take milliseconds.
        key = (part.data_ptr(), block.start)
        if key not in self._views:
            cut = torch.split(part, [piece.stop - piece.first for piece in block.pieces])
            self._views[key] = [
                view.view(self.shapes[piece.index]) if piece.whole else view
                for view, piece in zip(cut, block.pieces, strict=True)
            ]
        return self._views[key]


def _pieces(index: int, tensor: Tensor, block_size: int) -> list[Piece]:
    size = tensor.numel()
    if size <= block_size or not tensor.is_contiguous():
        return [Piece(index, 0, size, True)] if size else []
    return [
        Piece(index, first, min(size, first + block_size), False)
        for first in range(0, size, block_size)
    ]


def contiguous(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return the tensors, with copies of those whose memory is not contiguous."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]
