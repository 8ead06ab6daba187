# SPDX-License-Identifier: Apache-2.0
"""The SGD update over one flat vector, for runs whose rates change.

With x_t the noisy running sum of step t, on its grid, B the batch size, and the rates of step t,

    r_t = (x_t - x_(t-1)) / B
    u_t = gamma_t u_(t-1) + r_t,                        h_t = gamma_t h_(t-1) + l1_t
    theta_t = theta_(t-1) - lr_t u_t,                   C_t = C_(t-1) + lr_t h_t
    theta_t = theta_(t-1) - lr_t (r_t + gamma_t u_t),   ... + lr_t (l1_t + gamma_t h_t)    Nesterov
    parameters = P_R(soft(theta_t, C_t)).

theta_t is neither thresholded nor projected itself (lazy updates): with rates that never change
the parameters are those of `dpftrl_fast.torch.flat.update`. Where gamma_t is 0, u and h stay, as
the buffer of ``torch.optim.SGD`` does.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from dpftrl_fast.kernels.ftrl_step import sgd_loop
from dpftrl_fast.torch.flat.fused import FusedUpdate
from dpftrl_fast.torch.flat.noise import to_grid_
from dpftrl_fast.torch.flat.update import FlatFTRL, Numbers, Rates


class FlatSGD(FlatFTRL):
    """A run of SGD that continues one of `FlatFTRL`, and takes over its vectors.

    Parameters
    ----------
    before : FlatFTRL
        With the same rates at all its steps; not used any more.
    t : int
        Steps taken.
    noise : Tensor, optional
        n_t, the noise of the running sum; overwritten. Not needed for t = 0.

    Attributes
    ----------
    theta_0 : Tensor
        theta_t.
    velocity : Tensor or None
        u_t.
    noisy : Tensor
        x_t.
    l1_weights, thresholds : list of float
        h_t and C_t of each group.
    """

    def __init__(self, before: FlatFTRL, t: int, noise: Tensor | None = None) -> None:
        vars(self).update(vars(before))
        self.noisy = torch.zeros_like(self.sum)
        self.thresholds = [0.0] * len(self.l1_weights)
        if self._fused is not None:
            self._fused = self._compiled()
        if t > 0:
            assert noise is not None
            self._convert(t, noise)

    def as_ftrl(self) -> FlatFTRL:
        """Return an update of constant rates with these vectors, to load the values of another."""
        found = object.__new__(FlatFTRL)
        own = {"noisy", "thresholds"}
        vars(found).update({name: value for name, value in vars(self).items() if name not in own})
        if found._fused is not None:
            found._fused = found._compiled()
        return found

    def _convert(self, t: int, noise: Tensor) -> None:
        for group, rate in enumerate(self.rates):
            weight = self.l1_weights[group]
            self.thresholds[group] = self._threshold(t, weight, rate)
            gamma, last = rate.momentum, 0.0
            if gamma > 0.0:
                last = max(0.0, weight - (weight - t * rate.l1) / gamma)
            self.l1_weights[group] = last
        for block in self._flat.blocks:
            part, rate = block.part, self.rates[block.group]
            x, theta, numbers = self.noisy[part], self.theta_0[part], self._at(rate, 0.0)
            x.copy_(to_grid_(self.sum[part].add(noise[part].add_(self.low[part])), self._grid))
            theta.add_(x, alpha=-numbers.of_sum)
            if self.velocity is None:
                continue
            v = self.velocity[part]
            theta.add_(v, alpha=-numbers.of_v)
            # v_t = gamma v_(t-1) + x_t / B, and u_t = v_t - v_(t-1).
            if rate.momentum > 0.0:
                v.mul_(1.0 - 1.0 / rate.momentum).add_(x, alpha=numbers.share / rate.momentum)
            else:
                v.zero_()

    def _compiled(self) -> FusedUpdate:
        momentum = self.velocity is not None
        vectors = (self.sum, self.low, self.velocity, self.noisy, self.theta_0)
        loop = partial(sgd_loop, momentum=momentum)
        given = [v for v in vectors if v is not None]
        return FusedUpdate(loop, self._flat, given, self._grid, self._threads)

    def _numbers(self, t: int, group: int, rate: Rates) -> Numbers:
        gamma, weight = rate.momentum, self.l1_weights[group]
        step = rate.l1
        if gamma > 0.0:
            weight = self.l1_weights[group] = gamma * weight + rate.l1
            step = rate.l1 + gamma * weight if rate.nesterov else weight
        self.thresholds[group] += rate.lr * step
        c = self.thresholds[group]
        if self.velocity is None or gamma > 0.0:
            return self._at(rate, c)
        share = 1.0 / self._batch_size
        return Numbers(gamma=1.0, share=0.0, of_sum=rate.lr * share, of_v=0.0, c=c)

    def _move(self, part: slice, noisy: Tensor, n: Tensor, numbers: Numbers) -> None:
        theta, last = self.theta_0[part], self.noisy[part]
        torch.sub(noisy, last, out=n)
        last.copy_(noisy)
        theta.add_(n, alpha=-numbers.of_sum)
        if self.velocity is not None:
            u = self.velocity[part]
            u.mul_(numbers.gamma).add_(n, alpha=numbers.share)
            theta.add_(u, alpha=-numbers.of_v)
        n.copy_(theta)

    def vectors(self) -> dict[str, Tensor]:
        """Return the vectors that a checkpoint holds, by name: themselves, no copies."""
        found = super().vectors()
        return {"theta": found.pop("theta_0"), "noisy": self.noisy, **found}
