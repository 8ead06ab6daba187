# SPDX-License-Identifier: Apache-2.0
"""The FTRL recurrence over tensors against the reference, compiled and by torch's operations."""

from __future__ import annotations

import pytest
import torch
from ftrl_cases import Case, assert_close, cases
from hypothesis import given, settings

from dpftrl_fast.torch.flat.update import FlatFTRL, Rates
from dpftrl_fast.torch.flat.views import FlatViews


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@settings(deadline=None, max_examples=60)
@given(case=cases(groups=3))
def test_the_flat_update(fused: bool, dtype: torch.dtype, case: Case) -> None:
    def tensors(vector: object) -> list[torch.Tensor]:
        return [torch.tensor(vector)[part].to(dtype) for part in case.parts]  # type: ignore[index]

    rates = [Rates(g.learning_rate, g.momentum, g.nesterov, g.l1) for g in case.groups]
    start = tensors(case.theta_0)
    flat = FlatViews(start, [1] * len(start), block_size=8)

    def made() -> FlatFTRL:
        return FlatFTRL(
            flat,
            start,
            dtype=dtype,
            batch_size=case.batch_size,
            radius=case.radius,
            momentum=any(rate.momentum > 0.0 for rate in rates),
            groups=len(rates),
            grid=case.grid,
            fused=fused,
            threads=1,
        )

    update, values, found = made(), [value.clone() for value in start], []
    for t, (gradient, noise) in enumerate(zip(case.gradients, case.noises, strict=True), 1):
        if t == case.resume_at:
            last, update = update, made()
            update.l1_weights = list(last.l1_weights)
            for name, vector in update.vectors().items():
                vector.copy_(last.vectors()[name])
        noisy = torch.cat(tensors(noise))
        update.step(t, tensors(gradient), noisy, rates, values, lambda x: float(x.norm()))
        found.append(torch.cat(values).numpy())
    # In float32 the ball and thresholds amplify roundings of a sum of up to 100 sigma.
    assert_close(found, case.iterates()[1:], 1e-11 if dtype == torch.float64 else 1e-4)
