# SPDX-License-Identifier: Apache-2.0
"""Train a linear model in PyTorch: SGD on clipped gradient sums plus residual noise is DP-FTRL.

`python examples/sgd_with_residuals.py`
"""

import math

import torch

import dpftrl_fast as dpf

ROWS, FEATURES, BATCH, CLIP_NORM, LEARNING_RATE = 51_200, 20, 256, 1.0, 0.5


def up(epsilon: float) -> str:
    """Return an epsilon with three decimals, rounded up."""
    return f"{math.ceil(1000 * epsilon) / 1000:.3f}"


torch.manual_seed(0)  # for the made-up data only; the noise has its own key
truth = torch.randn(FEATURES)
X = torch.nn.functional.normalize(torch.randn(ROWS, FEATURES))
y = X @ truth

plan = dpf.PrivacyPlan.calibrate(
    epsilon=2.0,
    delta=1e-6,
    clip_norm=CLIP_NORM,
    participation=dpf.SinglePass(steps=ROWS // BATCH),
)
noise = plan.noise(FEATURES)
weights, residual = torch.zeros(FEATURES), torch.empty(FEATURES)
for x_batch, y_batch in zip(X.split(BATCH), y.split(BATCH), strict=True):
    gradients = (x_batch @ weights - y_batch)[:, None] * x_batch
    norms = gradients.norm(dim=1, keepdim=True).clamp(min=1e-12)
    clipped = gradients * (CLIP_NORM * (1 - 2**-20) / norms).clamp(max=1)
    noise.residual(out=residual)
    noisy = clipped.sum(dim=0) + residual
    noisy = torch.floor(noisy / noise.grid + 0.5) * noise.grid  # no low-order bits of the sum
    weights -= LEARNING_RATE * noisy / BATCH

error = (weights - truth).norm() / truth.norm()
replaced = plan.epsilon(1e-6, neighbours="replace-one")
print(f"epsilon {up(plan.epsilon(1e-6))} at delta 1e-6 (replace-one {up(replaced)})")
print(f"relative error of the weights {error:.3f}")
