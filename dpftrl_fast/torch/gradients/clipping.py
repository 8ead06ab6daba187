# SPDX-License-Identifier: Apache-2.0
"""Clipping of per-example gradients, each kind with the norm L that it guarantees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import torch
from torch import Tensor

from dpftrl_fast._validate import choice, norm_bound, positive, positive_integer
from dpftrl_fast.torch.gradients.clipped_sums import joint_norms


class Clipping(Protocol):
    """Rule that turns the norms of per-example gradients into factors for them."""

    @property
    def clip_norm(self) -> float:
        """Norm L that no example's part of the sum exceeds, over all parameters together."""
        ...

    def factors(self, norms: Tensor, shrink: float) -> Tensor:
        """Return the factor of each example in each parameter tensor, in float64.

        `norms`, of shape (parameters, examples), are those of the per-example gradients of each
        parameter tensor; an example with one that is not finite gets factors of 0. L times `shrink`
        is the norm to clip to.
        """
        ...


@dataclass(frozen=True)
class FlatClipping:
    """Scale each example's gradient, over all parameters together, to a norm of at most L.

    Parameters
    ----------
    clip_norm : float
        L, in [1e-100, 1e100].

    Examples
    --------
    >>> norms = torch.tensor([[3.0, 0.3], [4.0, 0.4]], dtype=torch.float64)
    >>> FlatClipping(1.0).factors(norms, 1.0)
    tensor([[0.2000, 1.0000],
            [0.2000, 1.0000]], dtype=torch.float64)
    """

    clip_norm: float

    def __post_init__(self) -> None:
        _set_clip_norm(self)

    def factors(self, norms: Tensor, shrink: float) -> Tensor:
        """Return min(1, L / norm), as `Clipping.factors` says."""
        joint = joint_norms(norms)
        factors = (self.clip_norm * shrink / joint).clamp(max=1.0)
        return _zero_where_not_finite(factors, joint).expand_as(norms)


@dataclass(frozen=True)
class PerLayerClipping:
    """Scale each example's gradient of each parameter tensor k to a norm of at most L_k.

    Parameters
    ----------
    clip_norms : sequence of float
        L_k in [1e-100, 1e100], one for each parameter tensor in the order of the optimiser.

    Examples
    --------
    >>> PerLayerClipping((3.0, 4.0)).clip_norm
    5.0
    """

    clip_norms: tuple[float, ...]

    def __post_init__(self) -> None:
        norms = tuple(
            norm_bound("clip_norm", positive("each of clip_norms", norm))
            for norm in self.clip_norms
        )
        if not norms:
            raise ValueError("clip_norms must hold a number for each parameter tensor, got none")
        object.__setattr__(self, "clip_norms", norms)

    @classmethod
    def equal(cls, clip_norm: float, count: int) -> PerLayerClipping:
        """Return L_k = L / sqrt(count) for so many parameter tensors, whose norm is at most L."""
        total = norm_bound("clip_norm", clip_norm)
        each = total / math.sqrt(positive_integer("count", count))
        while count * Fraction(each) ** 2 > Fraction(total) ** 2:
            each = math.nextafter(each, 0.0)
        return cls((each,) * count)

    @property
    def clip_norm(self) -> float:
        """L = sqrt(sum of L_k^2), rounded up."""
        exact = sum(Fraction(norm) ** 2 for norm in self.clip_norms)
        largest = max(self.clip_norms)
        total = largest * math.sqrt(math.fsum((norm / largest) ** 2 for norm in self.clip_norms))
        while Fraction(below := math.nextafter(total, 0.0)) ** 2 >= exact:
            total = below
        while Fraction(total) ** 2 < exact:
            total = math.nextafter(total, math.inf)
        return total

    def factors(self, norms: Tensor, shrink: float) -> Tensor:
        """Return min(1, L_k / norm_k), as `Clipping.factors` says."""
        if norms.shape[0] != len(self.clip_norms):
            raise ValueError(
                f"clip_norms must hold one number for each of the {norms.shape[0]} parameter "
                f"tensors, got {len(self.clip_norms)}"
            )
        limits = torch.tensor(self.clip_norms, dtype=torch.float64, device=norms.device) * shrink
        factors = (limits[:, None] / norms).clamp(max=1.0)
        return _zero_where_not_finite(factors, joint_norms(norms))


@dataclass(frozen=True)
class AutomaticClipping:
    """Scale each example's gradient g to g L / (|g| + gamma), over all parameters together.

    Every gradient is scaled, small ones up, and none reaches a norm of L (Bu et al. 2022,
    "Automatic Clipping").

    Parameters
    ----------
    clip_norm : float
        L, in [1e-100, 1e100].
    gamma : float
        Stability constant, finite and > 0, in units of the gradients.

    Examples
    --------
    >>> norms = torch.tensor([[3.0], [4.0]], dtype=torch.float64)
    >>> AutomaticClipping(1.0, gamma=5.0).factors(norms, 1.0)[:, 0].tolist()
    [0.1, 0.1]
    """

    clip_norm: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        _set_clip_norm(self)
        object.__setattr__(self, "gamma", positive("gamma", self.gamma))

    def factors(self, norms: Tensor, shrink: float) -> Tensor:
        """Return L / (norm + gamma), as `Clipping.factors` says."""
        joint = joint_norms(norms)
        factors = self.clip_norm * shrink / (joint + self.gamma)
        factors = factors.clamp(max=torch.finfo(torch.float64).max)  # infinity times 0 is NaN
        return _zero_where_not_finite(factors, joint).expand_as(norms)


def _zero_where_not_finite(factors: Tensor, joint: Tensor) -> Tensor:
    return factors.masked_fill(~torch.isfinite(joint), 0.0)


def _set_clip_norm(clipping: Any) -> None:
    clip_norm = norm_bound("clip_norm", clipping.clip_norm)
    object.__setattr__(clipping, "clip_norm", clip_norm)


def clipping_of(
    kind: str, clip_norm: float | Sequence[float], count: int, gamma: float | None = None
) -> Clipping:
    """Return the clipping of a kind for `count` parameter tensors.

    Examples
    --------
    >>> clipping_of("per-layer", 1.0, 4).clip_norms
    (0.5, 0.5, 0.5, 0.5)
    """
    choice("clipping", kind, ("flat", "per-layer", "automatic"))
    if gamma is not None and kind != "automatic":
        raise ValueError(f"gamma belongs to clipping='automatic', got it with {kind!r}")
    if isinstance(clip_norm, Sequence):
        if kind != "per-layer":
            raise ValueError(f"a list of clip norms needs clipping='per-layer', got {kind!r}")
        if len(clip_norm) != count:
            raise ValueError(
                f"clip_norm must hold one number for each of the {count} parameter tensors, got "
                f"{len(clip_norm)}"
            )
        return PerLayerClipping(tuple(clip_norm))
    if kind == "flat":
        return FlatClipping(clip_norm)
    if kind == "automatic":
        return AutomaticClipping(clip_norm, 0.01 if gamma is None else gamma)
    return PerLayerClipping.equal(clip_norm, count)
