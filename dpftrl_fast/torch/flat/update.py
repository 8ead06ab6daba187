# SPDX-License-Identifier: Apache-2.0
"""The FTRL update over one flat vector: running sums, momentum, parameters.

With g_t the clipped sum of step t, n_t the noise of the running sum, B the batch size, gamma the
momentum and lr_t the rate of the parameter's group at this step,

    s_t = s_(t-1) + g_t
    v_t = gamma v_(t-1) + (s_t + n_t) / B,         c_t = gamma c_(t-1) + t l1
    q = theta_0 - lr_t v_t,                         threshold lr_t c_t
    q = theta_0 - lr_t ((s_t + n_t) / B + gamma v_t),     lr_t (t l1 + gamma c_t)     with Nesterov
    theta_t = P_R(soft(q, threshold)).

s_t is kept as the sum `s + low` of two numbers, whose roundings are those of a number of
twice the bits (`dpftrl_fast.torch.gradients.clipped_sums`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dpftrl_fast.kernels.ftrl_step import ftrl_loop
from dpftrl_fast.torch.flat.fused import FusedUpdate
from dpftrl_fast.torch.flat.noise import to_grid_
from dpftrl_fast.torch.flat.views import Block, FlatViews, contiguous

Gradients = Sequence[Tensor | None] | Tensor


@dataclass(frozen=True)
class Rates:
    """Settings of a parameter group for one step."""

    lr: float
    momentum: float
    nesterov: bool
    l1: float


@dataclass(frozen=True)
class Numbers:
    """One group's step in the vectors' terms: theta = soft(theta_0 - (of_sum x + of_v v), c).

    v = gamma v + share x.
    """

    gamma: float
    share: float
    of_sum: float
    of_v: float
    c: float


class FlatFTRL:
    """Secret sums of a run, and its steps.

    After the first step `rates` are those of the last one.

    Parameters
    ----------
    flat : FlatViews
        Position of the parameters in the vector.
    parameters : sequence of Tensor
        theta_0, this rank's parts.
    dtype : torch.dtype
        float32 or float64, of all vectors.
    batch_size, radius
        B and R; R is over the parameters of all groups and ranks together.
    momentum : bool
        Whether v_t is kept.
    groups : int
        Number of parameter groups.
    grid : float
        Power of two to whose multiples s_t + n_t is rounded.
    fused : bool
        One compiled pass on at most `threads` threads, for the CPU, instead of torch's operations.
    """

    def __init__(
        self,
        flat: FlatViews,
        parameters: Sequence[Tensor],
        *,
        dtype: torch.dtype,
        batch_size: int,
        radius: float | None,
        momentum: bool,
        groups: int,
        grid: float,
        fused: bool,
        threads: int,
    ) -> None:
        self._flat, self._batch_size, self._radius = flat, batch_size, radius
        self._grid = grid
        self.theta_0 = torch.empty(flat.size, dtype=dtype, device=parameters[0].device)
        for block in flat.blocks:
            flat.copy_to(self.theta_0[block.part], block, parameters)
        self.sum = torch.zeros_like(self.theta_0)
        self.low = torch.zeros_like(self.theta_0)
        self.velocity = torch.zeros_like(self.theta_0) if momentum else None
        self.l1_weights = [0.0] * groups
        self.rates: list[Rates] = []
        self._may_be_straight = radius is None and all(p.dtype == dtype for p in parameters)
        self._spare: Tensor | None = None
        self._threads = threads
        self._fused = self._compiled() if fused else None

    def _compiled(self) -> FusedUpdate:
        momentum = self.velocity is not None
        vectors = [v for v in (self.sum, self.low, self.velocity, self.theta_0) if v is not None]
        loop = partial(ftrl_loop, momentum=momentum)
        return FusedUpdate(loop, self._flat, vectors, self._grid, self._threads)

    def step(
        self,
        t: int,
        gradients: Gradients,
        noise: Tensor,
        rates: Sequence[Rates],
        parameters: Sequence[Tensor],
        norm: Callable[[Tensor], float],
    ) -> None:
        """Take step t (from 1) and write the parameters, this rank's parts.

        `gradients` are g_t: this rank's parts, None for zeros, or one vector. `noise` is n_t, and
        is overwritten. `norm` returns the L2 norm over all ranks of a vector of which this rank has
        a part; it is called if there is a radius.
        """
        numbers = [self._numbers(t, group, rate) for group, rate in enumerate(rates)]
        self.rates = [*rates]
        if self._fused is None:
            if not isinstance(gradients, Tensor):
                gradients = contiguous(gradients)
            for block in self._flat.blocks:
                self._step(block, gradients, noise, numbers[block.group])
            self._write(noise, parameters, norm)
            return
        straight = self._may_be_straight and all(map(Tensor.is_contiguous, parameters))
        if not straight and self._spare is None:
            self._spare = torch.empty_like(noise)
        out = None if straight else self._spare
        table = [(n.gamma, n.share, n.of_sum, n.of_v, n.c) for n in numbers]
        self._fused.step(gradients, noise, table, parameters, out)
        if out is not None:
            self._write(out, parameters, norm)

    def _numbers(self, t: int, group: int, rate: Rates) -> Numbers:
        weight = rate.momentum * self.l1_weights[group] + t * rate.l1
        self.l1_weights[group] = weight
        return self._at(rate, self._threshold(t, weight, rate))

    def _threshold(self, t: int, weight: float, rate: Rates) -> float:
        """Return the threshold of step t, whose c_t is `weight`."""
        if rate.nesterov:
            weight = t * rate.l1 + rate.momentum * weight
        return rate.lr * weight

    def _at(self, rate: Rates, c: float) -> Numbers:
        share = 1.0 / self._batch_size
        sums_only = self.velocity is None or rate.nesterov
        return Numbers(
            gamma=rate.momentum,
            share=share,
            of_sum=rate.lr * share if sums_only else 0.0,
            of_v=rate.lr * (rate.momentum if rate.nesterov else 1.0),
            c=c,
        )

    def _step(self, block: Block, gradients: Gradients, noise: Tensor, numbers: Numbers) -> None:
        """Do a block by torch's operations, writing over the noise."""
        part = block.part
        n = noise[part]
        if isinstance(gradients, Tensor):
            total = self._add(part, gradients[part])
        else:
            room = self._room[: n.numel()]
            self._flat.copy_to(room, block, gradients)
            total = self._add(part, room)
        # The one rounding of the size of the sum is of the noisy sum.
        noisy = to_grid_(total.add_(n.add_(self.low[part])), self._grid)
        self._move(part, noisy, n, numbers)
        if numbers.c > 0.0:
            n.sub_(torch.clamp(n, -numbers.c, numbers.c))

    def _move(self, part: slice, noisy: Tensor, n: Tensor, numbers: Numbers) -> None:
        """Write the parameters before their threshold over the noise."""
        theta_0 = self.theta_0[part]
        if self.velocity is None:
            torch.add(theta_0, noisy, alpha=-numbers.of_sum, out=n)
            return
        v = self.velocity[part]
        v.mul_(numbers.gamma).add_(noisy, alpha=numbers.share)
        torch.add(theta_0, v, alpha=-numbers.of_v, out=n)
        if numbers.of_sum > 0.0:
            n.add_(noisy, alpha=-numbers.of_sum)

    def _add(self, part: slice, g: Tensor) -> Tensor:
        """Add to the running sum, as the compiled pass does; return a copy of its larger part."""
        s, low = self.sum[part], self.low[part]
        total = s + g
        g_part = total - s
        error = s.sub_(total - g_part).add_(g - g_part)
        low.add_(error)
        torch.add(total, low, out=s)
        low_part = s - total
        total.sub_(s - low_part)
        low.sub_(low_part).add_(total)
        return total.copy_(s)

    @cached_property
    def _room(self) -> Tensor:
        longest = max(block.stop - block.start for block in self._flat.blocks)
        return torch.empty_like(self.sum[:longest])

    def add_to_sum(self, vector: Tensor) -> None:
        """Add a vector to the running sum for good."""
        for block in self._flat.blocks:
            self._add(block.part, vector[block.part])

    def _write(
        self, theta: Tensor, parameters: Sequence[Tensor], norm: Callable[[Tensor], float]
    ) -> None:
        """Project on the ball, if there is one, and write the parameters."""
        if self._radius is not None:
            size = norm(theta)
            if math.isfinite(size) and size > self._radius:
                theta.mul_(self._radius / size)
        for block in self._flat.blocks:
            self._flat.copy_from(theta[block.part], block, parameters)

    def vectors(self) -> dict[str, Tensor]:
        """Return the vectors that a checkpoint holds, by name: themselves, no copies."""
        found = {"theta_0": self.theta_0, "sum": self.sum, "sum_low": self.low}
        if self.velocity is not None:
            found["velocity"] = self.velocity
        return found
