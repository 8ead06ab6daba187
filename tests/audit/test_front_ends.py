# SPDX-License-Identifier: Apache-2.0
"""Audits of all front ends: the measured mu is the stated one, and broken variants are caught.

The noise of each run has a key of its own from the system; an assertion of this file fails by
chance once in 10^8.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from audit_cases import (
    FRONT_ENDS,
    MECHANISMS,
    STEPS,
    clips_to,
    counts_twice,
    fits,
    less_noise,
    needs,
    of_plan,
    of_sums,
)

import dpftrl_fast as dpf
from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.audit import (
    AuditResult,
    audit_estimator,
    audit_federated,
    audit_plan,
    audit_prefix_sum,
    audit_training,
)
from dpftrl_fast.mechanisms import BufferedToeplitz, Identity, Tree
from dpftrl_fast.plan.planned_noise import PlannedNoise

MECHANISM = "buffers"  # where one is enough
MADE = [name for name in FRONT_ENDS if name != "plan"]
# One front end that needs no extra and the rest once, in the quick tests.
QUICK = [("plan", name) for name in MECHANISMS] + [
    ("PrefixSum", "tree"),
    ("PrefixSum", "two taps"),
    ("federated", "completed"),
    ("federated", "bands"),
    ("torch", "square root"),
    ("DPFTRLRegressor", "trees"),
    ("DPFTRLClassifier", "buffers"),
    ("DPFTRLLeastSquares", "tree"),
    ("DPFTRLLeastSquares", "square root"),
]
GRID = [(e, m) for e in FRONT_ENDS for m in MECHANISMS if fits(e, MECHANISMS[m])]


def check_agrees(found: AuditResult) -> None:
    assert found.verdict == "consistent", found.describe()
    assert abs(found.z) < 6
    assert found.mu_expected <= found.mu_stated * (1 + 1e-9)
    assert found.mu_stderr < 0.1 * found.mu_expected
    # None below the floor of the noise stream.
    assert found.epsilon_stated is None or found.epsilon_lower <= found.epsilon_stated


@pytest.mark.parametrize(("front_end", "mechanism"), QUICK)
def test_the_measured_mu_is_the_expected(front_end: str, mechanism: str) -> None:
    needs(front_end)
    check_agrees(FRONT_ENDS[front_end](MECHANISMS[mechanism]))


@pytest.mark.parametrize("label_flip", [False, True])
@pytest.mark.parametrize("name", ["DPFTRLRegressor", "DPFTRLLeastSquares", "DPFTRLClassifier"])
def test_defaults_spend_what_is_expected(name: str, label_flip: bool) -> None:
    """Nothing is set but the bounds; those of the target are not about zero."""
    linear_model = pytest.importorskip("dpftrl_fast.linear_model")
    bounds: dict[str, Any] = {} if name.endswith("Classifier") else {"y_bound": (100.0, 300.0)}
    estimator = getattr(linear_model, name)(4.0, x_norm_bound=1.0, **bounds)
    found = audit_estimator(estimator, label_flip=label_flip, confidence=1 - 1e-9, random_state=1)
    check_agrees(found)


@pytest.mark.slow
@pytest.mark.parametrize(("front_end", "mechanism"), GRID)
@pytest.mark.parametrize("label_flip", [False, True])
def test_the_measured_mu_is_the_expected_everywhere(
    front_end: str, mechanism: str, label_flip: bool
) -> None:
    needs(front_end)
    made = FRONT_ENDS[front_end](MECHANISMS[mechanism], label_flip=label_flip)
    check_agrees(made)
    assert made.neighbours == ("replace-one" if label_flip else "zero-out")


@pytest.mark.parametrize("name", ["identity", "two taps", "buffers", "square root", "bands"])
def test_the_expected_mu_of_a_worst_canary_is_the_stated(name: str) -> None:
    """sqrt(zeta)/sigma, for mechanisms whose sums hold all that zeta counts."""
    found = of_plan(MECHANISMS[name])
    assert found.mu_expected == pytest.approx(found.mu_stated, rel=1e-6)


# ---- Broken variants ----


@pytest.mark.parametrize("front_end", MADE)
@pytest.mark.parametrize("factor", [0.5, 0.93])
def test_less_noise_is_caught(
    front_end: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(front_end)
    less_noise(monkeypatch, factor)
    found = FRONT_ENDS[front_end](MECHANISMS[MECHANISM])
    assert found.verdict == "violated"
    assert "noise over the stated noise" in found.violations
    assert found.findings[2].measured == pytest.approx(factor, abs=0.02)
    if factor == 0.5:
        assert "mu of the canaries" in found.violations
        assert found.mu_measured == pytest.approx(2 * found.mu_expected, rel=0.2)


@pytest.mark.parametrize("front_end", MADE)
def test_a_clip_norm_that_is_ten_times_too_large_is_caught(
    front_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(front_end)
    clips_to(monkeypatch, 10.0)
    found = FRONT_ENDS[front_end](MECHANISMS[MECHANISM])
    assert found.verdict == "violated"
    assert found.findings[1].measured > 5 * found.mu_expected
    assert {"mu of the canaries", "shift by a canary, over the stated noise"} <= set(
        found.violations
    )


@pytest.mark.parametrize("front_end", MADE)
def test_a_batch_that_counts_twice_is_caught(
    front_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(front_end)
    counts_twice(monkeypatch, front_end)
    found = FRONT_ENDS[front_end](MECHANISMS[MECHANISM])
    assert found.verdict == "violated" and "mu of the canaries" in found.violations
    assert found.findings[1].measured == pytest.approx(2 * found.mu_expected, rel=0.2)


@pytest.mark.parametrize("front_end", MADE)
def test_a_key_of_two_runs_is_caught(front_end: str) -> None:
    needs(front_end)
    found = FRONT_ENDS[front_end](MECHANISMS[MECHANISM], seed=7)
    assert found.verdict == "violated"
    assert "largest correlation between canaries" in found.violations


def test_noise_that_two_steps_share_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator stands still for a step: the noise of the sum at 4 is that at 5."""
    real = PlannedNoise.step

    def stuck(self: Any, out: Any = None) -> Any:
        noise = real(self, out)
        if self.steps_taken == 4:
            self.__dict__["held"] = noise.copy()
        return self.__dict__["held"].copy() if self.steps_taken == 5 else noise

    monkeypatch.setattr(PlannedNoise, "step", stuck)
    found = of_sums(Identity())
    assert found.verdict == "violated"
    assert "least noise in any direction over the stated noise" in found.violations


def test_float32_sums_and_every_memory_agree() -> None:
    for memory in ("stored", "regenerate", 1):
        plan = PrivacyPlan(1.0, 0.5, acc.SinglePass(STEPS), MECHANISMS["tree"])
        given: dict[str, Any] = {"canaries": 1024, "runs": 4, "confidence": 1 - 1e-9}
        check_agrees(audit_plan(plan, dtype="float32", memory=memory, **given))


@pytest.mark.parametrize(
    "participation",
    [
        acc.FixedEpochs(4, 3, reshuffle=False),
        acc.MinSeparation(12, 3, 4),
        acc.FixedOrder([1, 2, 1, 3, 4, 1, 5, 2]),
    ],
)
def test_repeated_participation_adds_up(participation: Any) -> None:
    for mechanism in (Tree(), BufferedToeplitz((0.875,), (0.25,))):
        plan = PrivacyPlan(1.0, 2.0, participation, mechanism)
        once = PrivacyPlan(1.0, 2.0, acc.SinglePass(plan.steps), mechanism)
        found = audit_plan(plan, canaries=2048, runs=4, confidence=1 - 1e-9)
        check_agrees(found)
        assert found.mu_expected > 1.2 * audit_plan(once, canaries=64).mu_expected


# ---- Canaries ----


def test_a_record_of_several_coordinates_has_its_own_mu() -> None:
    record = np.array([0.2, -0.4, 0.1])
    made = {"size": 0, "steps": STEPS, "clip_norm": 0.5, "noise_multiplier": 0.5}

    def sums(size: int) -> dpf.PrefixSum:
        return dpf.PrefixSum(**{**made, "size": size}, mechanism=Identity())

    found = audit_prefix_sum(sums, record=record, canaries=128, runs=16, confidence=1 - 1e-9)
    check_agrees(found)
    norm = float(np.linalg.norm(record))
    assert found.mu_expected == pytest.approx(norm / 0.5 / 0.5, rel=1e-6)
    long = audit_prefix_sum(
        sums, record=100 * record, canaries=128, label_flip=True, confidence=1 - 1e-9
    )
    check_agrees(long)
    assert long.mu_expected == pytest.approx(2 / 0.5, rel=1e-6)


LOSSES = [
    ("squared", None, 0.3, 0.3),
    ("squared", None, -0.3, 0.3),
    ("huber", 0.2, 0.7, 0.2),
    ("epsilon_insensitive", 0.1, 0.5, 1.0),
    ("quantile", 0.3, 0.5, 0.3),
    ("quantile", 0.3, -0.5, 0.7),
    ("linear", None, 0.4, 0.4),
]


@pytest.mark.parametrize(("loss", "param", "y", "slope"), LOSSES)
def test_the_gradient_of_a_row_is_that_of_its_loss(
    loss: str, param: float | None, y: float, slope: float
) -> None:
    pytest.importorskip("sklearn")
    from dpftrl_fast.linear_model import DPFTRLRegressor

    model = DPFTRLRegressor(
        None,
        noise_multiplier=0.5,
        loss=loss,
        loss_param=param,
        clip_norm=0.6 * slope,  # above the gradient
        mechanism=Identity(),
        fit_intercept=False,
    )
    x = np.array([0.3, -0.4])
    found = audit_estimator(
        model, steps=2, record=(x, y), canaries=512, runs=4, confidence=1 - 1e-9
    )
    check_agrees(found)
    assert found.mu_expected == pytest.approx(0.5 / 0.6 / 0.5, rel=1e-5)


@pytest.mark.parametrize("loss", ["logistic", "hinge", "multinomial"])
@pytest.mark.parametrize("classes", [[0, 1], [3, 5, 9]])
@pytest.mark.parametrize("label_flip", [False, True])
def test_flipped_labels_and_classes(loss: str, classes: list[int], label_flip: bool) -> None:
    pytest.importorskip("sklearn")
    from dpftrl_fast.linear_model import DPFTRLClassifier

    k = len(classes)
    if (loss == "logistic") != (k == 2) and loss != "hinge":
        pytest.skip("another number of classes")
    one = {"logistic": 0.5, "hinge": 1.0 if k == 2 else np.sqrt(k)}.get(loss, np.sqrt(1 - 1 / k))
    two = {"logistic": 1.0, "hinge": 2.0 if k == 2 else 2 * np.sqrt(2)}.get(loss, np.sqrt(2))
    model = DPFTRLClassifier(
        None,
        noise_multiplier=0.5,
        loss=loss,
        classes=classes,
        mechanism=Identity(),
        clip_norm=2 * one,  # above the gradient, constant column included
    )
    record = (np.array([0.6, 0.8]), float(classes[-1]))
    found = audit_estimator(
        model,
        steps=2,
        record=record,
        label_flip=label_flip,
        canaries=256,
        runs=8,
        confidence=1 - 1e-9,
    )
    check_agrees(found)
    shift = two if label_flip else one
    assert found.mu_expected == pytest.approx(shift / (2 * one) / 0.5, rel=1e-5)


def test_a_row_of_least_squares_moves_both_sums() -> None:
    pytest.importorskip("sklearn")
    from dpftrl_fast.linear_model import DPFTRLLeastSquares

    for intercept in (False, True):
        model = DPFTRLLeastSquares(
            None,
            noise_multiplier=0.5,
            x_norm_bound=1.0,
            y_bound=1.0,
            mechanism=Identity(),
            fit_intercept=intercept,
        )
        x, y = np.array([0.9, -0.4]), 1.0
        found = audit_estimator(
            model, steps=3, record=(x, y), canaries=16, runs=64, confidence=1 - 1e-9
        )
        check_agrees(found)
        c = 1.0 if intercept else 0.0
        largest = 1.0 + c * c
        bias = y * np.linalg.norm(x) / np.sqrt(largest)  # in clip norms
        square = x @ x
        covariance = np.sqrt(square**2 + 2 * square * c * c) / largest  # without the entry c c
        share = model.split
        want = np.sqrt(share * bias**2 + (1 - share) * covariance**2) / 0.5
        assert found.mu_expected == pytest.approx(want, rel=1e-5)
        flip = audit_estimator(
            model, steps=3, record=(x, y), canaries=16, label_flip=True, confidence=1 - 1e-9
        )
        assert flip.mu_expected == pytest.approx(2 * np.sqrt(share) * bias / 0.5, rel=1e-5)
        assert not flip.violated


@pytest.mark.parametrize(
    "given",
    [
        {"keep_optimizer": True, "momentum": 0.5, "nesterov": True},
        {"epochs": 3, "steps_per_epoch": 2, "grad_sample_mode": "vmap", "dtype": "float64"},
        {"clipping": "per-layer", "clip_norm": [0.5], "grad_sample_mode": "functorch"},
    ],
    ids=["ResidualNoise", "epochs", "per layer"],
)
def test_ways_to_train(given: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("opacus")
    if given.get("dtype") == "float64":
        given = {k: v for k, v in given.items() if k != "dtype"}
    made = {"noise_multiplier": 0.5, "clip_norm": 0.5, "mechanism": Identity(), **given}
    check_agrees(audit_training(canaries=128, runs=8, confidence=1 - 1e-9, **made))


# ---- Refusals ----


def test_what_an_audit_cannot_read_is_refused() -> None:
    pytest.importorskip("sklearn")
    from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLRegressor

    for name, value in (("epochs", 2), ("l1", 0.1), ("radius", 1.0)):
        with pytest.raises(ValueError, match=rf"{name} must be .* in an audit"):
            audit_estimator(DPFTRLRegressor(**{name: value}))
    with pytest.raises(TypeError, match=r"estimator must be a DPFTRLRegressor, .* got int"):
        audit_estimator(3)
    with pytest.raises(ValueError, match="record must be a pair"):
        audit_estimator(DPFTRLRegressor(), record=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="record must have features that are not all zero"):
        audit_estimator(DPFTRLRegressor(), record=([0.0], 1.0))
    with pytest.raises(ValueError, match=r"one of the classes \[0, 1\], got 2"):
        audit_estimator(DPFTRLClassifier(), record=([1.0], 2.0))
    plan = PrivacyPlan(1.0, 1.0, acc.FixedOrder([1, 2, 1]))
    with pytest.raises(ValueError, match="folder is not supported by an audit"):
        audit_federated(plan, folder="x")
    with pytest.raises(ValueError, match=r"clipping is not supported by an audit"):
        audit_federated(plan, clipping=None)


def test_runs_of_different_plans_are_refused() -> None:
    sigma = iter([1.0, 2.0])
    with pytest.raises(ValueError, match="all runs of an audit must have one plan"):
        audit_prefix_sum(lambda size: dpf.PrefixSum(size, 4, 1.0, next(sigma)), runs=2)
