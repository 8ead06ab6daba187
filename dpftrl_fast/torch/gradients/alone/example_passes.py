# SPDX-License-Identifier: Apache-2.0
"""Forward passes of single examples, whose backward pass gives each example's own gradient.

The parameters of a *chunk* of examples leave one autograd node, with a copy (of no memory) for each
example. Autograd hands this node the gradients of all of them at once, after everything that used
them: other forward passes with the same copies too, which is why clipping can follow at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dpftrl_fast.torch.gradients.accumulate import Accumulator


class ExamplePasses:
    """The forward passes of one piece of a batch, until one backward pass took their gradients.

    Parameters
    ----------
    sums : Accumulator
        Gets the gradients of a chunk as soon as they are complete.
    rows : int
        Examples of the piece.
    size : int
        Examples of a chunk.

    Attributes
    ----------
    chunks : list of Chunk
        In the order of the examples.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([w], FlatClipping(1.0), 2, plan.guard())
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> passes = ExamplePasses(sums, 2, size=2)
    >>> (copies,) = passes.chunks[0].copies
    >>> (copies * torch.tensor([[0.5], [3.0]])).sum().backward()  # 3 is clipped
    >>> sums.finish()
    >>> w.grad
    tensor([1.5000])
    """

    def __init__(self, sums: Accumulator, rows: int, size: int) -> None:
        self.sums, self.rows = sums, rows
        self.chunks = [
            Chunk(self, slice(start, min(start + size, rows))) for start in range(0, rows, size)
        ]
        self.is_over = False

    @property
    def has_begun(self) -> bool:
        """Whether the gradients of some examples were taken."""
        return any(chunk.is_taken for chunk in self.chunks)

    @property
    def is_complete(self) -> bool:
        """Whether the gradients of all examples were taken."""
        return all(chunk.is_taken for chunk in self.chunks)

    def drop(self) -> None:
        """Refuse gradients from now on."""
        self.is_over = True


class Chunk:
    """Copies of the parameters for some examples.

    Attributes
    ----------
    part : slice
        The examples.
    is_taken : bool
        Whether their gradients were added to the sums.
    """

    def __init__(self, passes: ExamplePasses, part: slice) -> None:
        self._passes, self.part, self.is_taken = passes, part, False
        self._copies: tuple[Tensor, ...] | None = None

    @property
    def copies(self) -> tuple[Tensor, ...]:
        """A copy for each example of each parameter of the accumulator, shape (examples, ...).

        Made when they are first asked for, after the pass of the chunk before.

        Autograd runs later nodes first. So the gradients of a chunk are taken before those of the
        chunk before it are computed, and those of one chunk are in memory at a time.
        """
        if self._copies is None:
            # Not the parameters: they get no gradient from here.
            start = torch.zeros((), requires_grad=True)
            self._copies = _Copies.apply(start, self)  # type: ignore[no-untyped-call]
        return self._copies

    def expanded(self) -> tuple[Tensor, ...]:
        """Return the copies as constants."""
        rows = self.part.stop - self.part.start
        parameters = self._passes.sums.parameters
        return tuple(p.detach().expand(rows, *p.shape) for p in parameters)

    def take(self, gradients: Sequence[Tensor | None]) -> None:
        """Clip the examples' gradients and add them up."""
        if self.is_taken or self._passes.is_over:
            raise ValueError(
                "expected one backward pass for the rows of a batch, got gradients of examples "
                "once more: add losses up before one loss.backward()"
            )
        found = list(gradients)
        if all(g is None for g in found):
            found[0] = torch.zeros_like(self.expanded()[0])
        self._passes.sums.add(found)
        self.is_taken, self._copies = True, ()


class _Copies(torch.autograd.Function):
    """Identity from one start to all copies of a chunk, so that their gradients come together."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, chunk: Chunk) -> tuple[Tensor, ...]:
        ctx.chunk = chunk
        ctx.set_materialize_grads(False)
        return chunk.expanded()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, None]:
        ctx.chunk.take(gradients)
        return None, None
