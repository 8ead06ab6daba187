# SPDX-License-Identifier: Apache-2.0
"""Comparisons of inputs, outputs and gradients in the trials of a model, up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dpftrl_fast.torch.gradients.clipped_sums import add_clipped_, row_norms
from dpftrl_fast.torch.gradients.hooked_layers import Layer
from dpftrl_fast.torch.gradients.row_errors import of_rows
from dpftrl_fast.torch.gradients.trials import close, rounding


class Trial(NamedTuple):
    """Findings of a pass without hooks; gradients are autograd's, by parameter."""

    inputs: dict[Layer, list[Tensor]]
    outputs: list[Tensor]
    buffers: dict[str, Tensor]
    gradients: dict[str, Tensor]


class GradientsOfRows(NamedTuple):
    """Per-example gradients of a pass, by parameter: sums, and numbers of the rows that are kept.

    The numbers, of shape (3, rows), are the norm, the sum, and that of half of the coordinates.
    `sizes` are no less than the sum of the absolute values in any coordinate; they and `totals` are
    empty unless `sums` is set.
    """

    outputs: list[Tensor]
    totals: dict[str, Tensor]
    sizes: dict[str, float]
    numbers: dict[str, Tensor]
    dtypes: dict[str, torch.dtype]
    sums: bool

    def add(self, name: str, sample: Tensor, kept: Tensor) -> None:
        """Add the gradients of some rows."""
        sample = sample.detach()
        flat = sample.flatten(1)
        if self.sums:
            total = self.totals.get(name)
            if total is None:
                total = sample.new_zeros(sample.shape[1:], dtype=torch.float64)
                self.totals[name] = total
            ones = torch.ones(len(sample), dtype=torch.float64, device=sample.device)
            add_clipped_(total, sample, ones)
            # a norm of order infinity takes ten times as long
            ends = (flat.amax(1), -flat.amin(1)) if flat.numel() else (ones * 0, ones * 0)
            largest = float(torch.maximum(*ends).sum())
            self.sizes[name] = self.sizes.get(name, 0.0) + largest
        flat = flat[kept.to(sample.device)] if len(kept) < len(flat) else flat
        scale = max(1, flat.shape[1]) ** -0.5
        half = flat[:, : flat.shape[1] // 2]
        numbers = torch.stack(
            [row_norms(flat), flat.sum(1).double() * scale, half.sum(1).double() * scale]
        )
        before = self.numbers.get(name)
        self.numbers[name] = numbers if before is None else torch.cat([before, numbers], 1)
        self.dtypes[name] = sample.dtype


OTHERS = (
    "the per-example gradients of {name} must add up to its gradient, got others: it is used "
    "outside of its layer too, or the formula for the layer is wrong; grad_sample_mode='vmap' has "
    "no such limits"
)


def check_outputs(found: GradientsOfRows, alone: Trial) -> None:
    """Refuse a model that computes something else where examples have their own positions."""
    alike = len(found.outputs) == len(alone.outputs) and all(
        a.shape == b.shape and same(a, b) for a, b in zip(found.outputs, alone.outputs, strict=True)
    )
    if not alike:
        raise of_rows(
            "the model must compute the same where each example has its own copy of what all "
            "share (positions, tokens), got other outputs: grad_sample_mode='vmap' has no such "
            "limits"
        )


def check_sums(found: GradientsOfRows, alone: Trial, trained: set[str]) -> None:
    """Refuse parameters whose examples' gradients have another sum than autograd's gradient.

    Rounding is allowed for, and values that are not finite have no sum.
    """
    sizes = found.sizes
    largest = max(sizes.values(), default=0.0)
    if not math.isfinite(largest):
        return
    for name, total in alone.gradients.items():
        if name not in trained:
            continue
        if name not in found.totals:
            raise of_rows(OTHERS.format(name=name))
        part = rounding(found.dtypes[name])[1]
        away = (found.totals[name] - total.double()).abs()
        # A gradient that is 0 but for rounding is measured by those beside it.
        if away.numel() and float(away.max()) > part * (sizes[name] + 0.1 * largest):
            raise of_rows(OTHERS.format(name=name))


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same up to rounding; those of other shapes tell nothing."""
    if a.shape != b.shape:
        return True  # padded to other lengths
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return close(a, b, rounding(a.dtype)[0])


def same_rows(kept: Tensor) -> Callable[[Tensor, Tensor], bool]:
    """Return a function that compares the rows that are kept."""

    def alike(a: Tensor, b: Tensor) -> bool:
        rows = kept[kept < min(len(a), len(b))].to(a.device)
        return same(a[rows], b[rows])

    return alike


def apart(a: Tensor, b: Tensor, rows: int, kept: Tensor, first: int) -> bool:
    """Whether an output has a dimension of examples along which those kept are the same."""
    dims = [dim for dim in (first, 1 - first) if a.dim() > dim and a.shape[dim] == rows]
    alike = same_rows(kept)
    return not dims or any(alike(a.movedim(dim, 0), b.movedim(dim, 0)) for dim in dims)
