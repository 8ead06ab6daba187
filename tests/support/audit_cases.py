# SPDX-License-Identifier: Apache-2.0
"""Small audits of every front end, mechanisms of every kind, and faults to put into them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import pytest

import dpftrl_fast as dpf
from dpftrl_fast import PrivacyPlan, rounding
from dpftrl_fast import accounting as acc
from dpftrl_fast.audit import (
    AuditResult,
    audit_estimator,
    audit_federated,
    audit_plan,
    audit_prefix_sum,
    audit_training,
)
from dpftrl_fast.kernels import gradients
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Tree,
)
from dpftrl_fast.plan.noise_spec import NoiseSpec

STEPS = 8
# An error of 1e-9 a test: no seeds are needed, and noise keys come from the system as in use.
CONFIDENCE = 1 - 1e-9

MECHANISMS: dict[str, Any] = {
    "tree": Tree(),
    "vanilla": Tree("vanilla"),
    "trees": Tree(restart_every=3),
    "completed": Tree(restart_every=3, complete=True),
    "vanilla, completed": Tree("vanilla", restart_every=5, complete=True),
    "identity": Identity(),
    "two taps": BandedInverse((1.0, -0.875)),
    "square root": BandedInverse.square_root(4).rounded("float32"),
    "buffers": BufferedToeplitz((0.96875, 0.5), (0.25, 0.125)),
    "bands": BandedToeplitz((1.0, 0.5, 0.25)),
    "buffer, in blocks": BufferedToeplitz((0.875,), (0.25,), restart_every=4),
}


def options(canaries: int, runs: int, given: dict[str, Any]) -> dict[str, Any]:
    return {
        "canaries": canaries,
        "runs": runs,
        "confidence": CONFIDENCE,
        "random_state": 5,
        **given,
    }


def of_plan(mechanism: Any, **given: Any) -> AuditResult:
    plan = PrivacyPlan(0.5, 1.0, acc.MinSeparation(STEPS, 2, 4), mechanism)
    return audit_plan(plan, **options(2048, 2, given))


def of_sums(mechanism: Any, seed: Any = None, make: Any = None, **given: Any) -> AuditResult:
    made = partial(
        make or dpf.PrefixSum,
        steps=STEPS,
        clip_norm=0.5,
        noise_multiplier=0.5,
        mechanism=mechanism,
        seed=seed,
    )
    return audit_prefix_sum(made, **options(512, 4, given))


def of_server(mechanism: Any, seed: Any = None, **given: Any) -> AuditResult:
    plan = PrivacyPlan(0.5, 0.5, acc.SinglePass(STEPS), mechanism)
    return audit_federated(
        plan, momentum=0.5, report_goal=3, noise_seed=seed, **options(256, 4, given)
    )


def of_training(mechanism: Any, seed: Any = None, **given: Any) -> AuditResult:
    return audit_training(
        steps_per_epoch=STEPS,
        noise_multiplier=0.5,
        clip_norm=0.5,
        mechanism=mechanism,
        noise_seed=seed,
        **options(512, 4, given),
    )


def estimator(name: str, mechanism: Any, seed: Any = None, **given: Any) -> AuditResult:
    from dpftrl_fast import linear_model

    fields: dict[str, Any] = {
        "DPFTRLRegressor": {"clip_norm": 0.5, "momentum": 0.5},
        "DPFTRLClassifier": {"clip_norm": 0.5, "learning_rate": 0.1},
        "DPFTRLLeastSquares": {"x_norm_bound": 0.7, "y_bound": 2.0},
    }[name]
    model = getattr(linear_model, name)(
        epsilon=None, noise_multiplier=0.5, mechanism=mechanism, noise_seed=seed, **fields
    )
    small = name == "DPFTRLLeastSquares"
    return audit_estimator(model, steps=STEPS, **options(*((48, 24) if small else (512, 4)), given))


FRONT_ENDS: dict[str, Callable[..., AuditResult]] = {
    "plan": of_plan,
    "PrefixSum": of_sums,
    "federated": of_server,
    "torch": of_training,
    **{
        name: partial(estimator, name)
        for name in ("DPFTRLRegressor", "DPFTRLClassifier", "DPFTRLLeastSquares")
    },
}


def fits(front_end: str, mechanism: Any) -> bool:
    """Least squares has one tree or block."""
    one = getattr(mechanism, "restart_every", None) is None
    return front_end != "DPFTRLLeastSquares" or one


def needs(front_end: str) -> None:
    if front_end == "torch":
        pytest.importorskip("torch")
        pytest.importorskip("opacus")
    if front_end.startswith("DPFTRL"):
        pytest.importorskip("sklearn")


# ---- Faults ----


def less_noise(patch: pytest.MonkeyPatch, factor: float) -> None:
    """All planned noise has this part of its standard deviation."""
    real = NoiseSpec.std
    patch.setattr(NoiseSpec, "std", lambda self, dtype: factor * real(self, dtype))


def clips_to(patch: pytest.MonkeyPatch, factor: float) -> None:
    """Every clip norm, wherever it is applied, is multiplied by the factor."""
    real = rounding.clip_limit
    for name, module in list(sys.modules.items()):
        if name.startswith("dpftrl_fast.") and getattr(module, "clip_limit", None) is real:
            patch.setattr(module, "clip_limit", lambda norm: factor * real(norm))
    fresh = lru_cache(maxsize=1)(gradients._checked_numbers.__wrapped__)
    patch.setattr(gradients, "_checked_numbers", fresh)  # the other one remembers the limits


def counts_twice(patch: pytest.MonkeyPatch, front_end: str) -> None:
    """The sum of every batch is added twice."""
    if front_end == "PrefixSum":
        from dpftrl_fast.streams import prefix_sum

        once = prefix_sum.sum_of_step
        patch.setattr(prefix_sum, "sum_of_step", lambda *given: 2 * once(*given))
    elif front_end == "federated":
        from dpftrl_fast.federated.sums.round_sum import RoundSum

        total: Any = RoundSum.total
        patch.setattr(RoundSum, "total", property(lambda self: 2 * total.fget(self)))
    elif front_end == "torch":
        from dpftrl_fast.torch import DPFTRL

        step = DPFTRL._step

        def twice(self: Any) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = p.grad * 2
            step(self)

        patch.setattr(DPFTRL, "_step", twice)
    elif front_end == "DPFTRLLeastSquares":
        from dpftrl_fast.convex.least_squares import engine
        from dpftrl_fast.convex.row_batches import Batch

        add = engine.LeastSquares.step

        def doubled(self: Any, batch: Batch) -> None:
            import numpy as np

            X, y = (np.concatenate([part, part]) for part in (batch.X, batch.y))
            add(self, Batch(X, y))

        patch.setattr(engine.LeastSquares, "step", doubled)
    else:
        from dpftrl_fast.convex.glm import fit

        sums = fit.clipped_sum
        patch.setattr(fit, "clipped_sum", lambda *given, **more: 2 * sums(*given, **more))
