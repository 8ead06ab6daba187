# SPDX-License-Identifier: Apache-2.0
"""Outputs of layers in the graph of autograd, and hooks that a copy of a network does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def in_graph(output: Tensor, anchor: Tensor, *, may_change: bool) -> Tensor:
    """Return an output that has a place in the graph, at which its gradient can be waited for.

    It has the memory of `output`. `anchor` is any tensor that requires a gradient; `may_change` is
    whether the output may be changed in place without harm to the layer's own backward pass.
    """
    if output.grad_fn is None:
        # It may be a leaf, made one by another hook for checkpoints.
        return _rooted(anchor, [_alias(output) if output.requires_grad else output])
    if output._is_view() and may_change:
        return _aliased(output, [_alias(output)])
    return output


class _Root(torch.autograd.Function):
    """Give an output that needs no gradient a place in the graph, where its gradient ends."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, held: list[Tensor]) -> Tensor:
        return held[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


class _Alias(torch.autograd.Function):
    """Make of a view a tensor with the same memory, which may be changed in place.

    A hook on a view is lost when the view is changed, as `nn.ReLU(inplace=True)` does.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, held: list[Tensor]) -> Tensor:
        return held[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def _alias(x: Tensor) -> Tensor:
    """Return a tensor of its own with the memory of x."""
    alias = torch.empty_like(x.detach()[:0])
    return alias.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())


_rooted: Callable[[Tensor, list[Tensor]], Tensor] = _Root.apply
_aliased: Callable[[Tensor, list[Tensor]], Tensor] = _Alias.apply


class Inert:
    """A hook that stays with its network: copies and pickles of the network do nothing instead.

    It is never compiled.
    """

    of_dpftrl = True

    def __init__(self, call: Callable[..., Any], *first: Any) -> None:
        self._call, self._first = call, first

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def __call__(self, *given: Any) -> Any:
        """Call the hook."""
        return self._call(*self._first, *given)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return do_nothing

    def __reduce__(self) -> Any:
        return _nothing, ()


def do_nothing(*given: Any) -> None:
    """Stand for a hook in a copy of a network."""


def _nothing() -> Callable[..., None]:
    return do_nothing
