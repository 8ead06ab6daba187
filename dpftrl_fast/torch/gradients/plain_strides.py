# SPDX-License-Identifier: Apache-2.0
"""Opacus's ``GradSampleModule``, with its formulas fed tensors in the plain layout alone.

Opacus's ``unfold2d`` (1.6.0) works out the strides of a picture from its shape. For inputs that lie
in memory otherwise (channels_last, transposed, expanded) it reads other elements than it means:
wrong gradients at best, and those of another example at worst, so that no clipping bounds what one
example does. All formulas get copies in the layout of a new tensor here, where they are not in it
already; the forward and backward passes of the model itself keep theirs.
"""

from __future__ import annotations

from typing import Any

from opacus.grad_sample import GradSampleModule
from torch import Tensor


class PlainStrides(GradSampleModule):  # type: ignore[misc]
    """A ``GradSampleModule`` whose per-example gradients do not depend on memory layouts.

    Examples
    --------
    >>> import torch
    >>> module = PlainStrides(torch.nn.Conv2d(1, 1, 1, bias=False), loss_reduction="sum")
    >>> pictures = torch.arange(8.0).view(2, 2, 2, 1).permute(2, 3, 0, 1)  # batch innermost
    >>> module(pictures).sum().backward()
    >>> module._module.weight.grad_sample.view(-1)
    tensor([12., 16.])
    """

    def rearrange_grad_samples(self, **how: Any) -> tuple[list[Tensor], Tensor]:
        """Return the inputs and output gradients of a layer for its formula."""
        activations, backprops = super().rearrange_grad_samples(**how)
        return [plain(x) for x in activations], plain(backprops)


def plain(x: Tensor) -> Tensor:
    """Return x with the strides of a new tensor: a view of it, or a copy where it needs one.

    ``contiguous`` by itself leaves any strides to dimensions of size 1, from which ``F.pad``
    concludes that channels lie innermost.

    Examples
    --------
    >>> import torch
    >>> x = torch.zeros(2, 3, 1, 1).to(memory_format=torch.channels_last)
    >>> x.contiguous().stride(), plain(x).stride()
    ((3, 1, 3, 3), (3, 1, 1, 1))
    """
    return x.contiguous().view(-1).view(x.shape)
