# SPDX-License-Identifier: Apache-2.0
"""Verdicts on made-up data: how often a sound plan is called violated, and each kind of fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.audit import AuditResult, audit_plan, audit_releases, worst_uses
from dpftrl_fast.audit.covariance import noise_factor
from dpftrl_fast.mechanisms import BandedInverse

PLAN = PrivacyPlan(0.5, 2.0, acc.SinglePass(6), BandedInverse((1.0, -0.5)))
N = 4000


def releases(
    rng: Any, *, shift: float = 1.0, noise: float = 1.0, n: int = N, flip: bool = False
) -> tuple[Any, Any]:
    """Sums made here from independent normals and the matrix of the mechanism."""
    coins = rng.random(n) < 0.5
    f = noise_factor(PLAN.layout)
    signs = np.where(coins, 1.0, -1.0 if flip else 0.0)
    sums = shift * np.multiply.outer(worst_uses(PLAN), signs)
    return 0.5 * (sums + 2.0 * noise * f @ rng.normal(size=(f.shape[1], n))), coins


def audited(rng: Any, *, options: Any = None, **made: Any) -> AuditResult:
    sums, coins = releases(rng, **made)
    return audit_releases(sums, coins, PLAN, **(options or {}))


@pytest.mark.parametrize("n", [40, 600])
def test_false_alarms_are_as_rare_as_stated(n: int) -> None:
    """All checks together, at a confidence low enough to count them."""
    rng, alarms, other = np.random.default_rng(0), 0, 0
    for _ in range(200):
        found = audited(rng, n=n, options={"confidence": 0.9})
        alarms += found.violated
        other += found.verdict.startswith("inconclusive: the canaries show less")
    assert alarms / 200 <= 0.1 + 3 * np.sqrt(0.09 / 200)
    assert alarms / 200 > 0.01  # the checks are not idle
    assert other / 200 <= 0.1


def test_a_sound_plan_is_consistent_and_the_scores_are_standard() -> None:
    for flip, by in ((False, "zero-out"), (True, "replace-one")):
        found = audited(np.random.default_rng(1), flip=flip, options={"neighbours": by})
        assert found.verdict == "consistent" and found.violations == ()
        assert abs(found.z) < 3 and found.mu_measured == pytest.approx(found.mu_expected, rel=0.2)
        times = 2.0 if flip else 1.0
        assert found.mu_stated == times * PLAN.mu
        assert found.mu_expected == pytest.approx(times * PLAN.mu, rel=1e-6)
        assert found.epsilon_stated == PLAN.epsilon(1e-6, neighbours=by)  # type: ignore[arg-type]
        assert 0.2 < found.epsilon_lower < found.epsilon_gaussian < found.epsilon_stated * 1.2
        assert found.scores_out.mean() == pytest.approx(0.0, abs=0.1)
        assert found.scores_in.mean() == pytest.approx(found.mu_expected, abs=0.1)
        assert found.scores_in.std() == pytest.approx(1.0, abs=0.1)
        assert found.included == found.scores_in.size


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"noise": 0.5}, "noise over the stated noise"),
        ({"noise": 0.93}, "noise over the stated noise"),
        ({"shift": 2.0}, "mu of the canaries"),
        ({"shift": 10.0, "n": 60_000}, "epsilon is above the stated one"),
    ],
)
def test_less_noise_and_larger_shifts_are_violations(made: Any, words: str) -> None:
    for seed in range(5):
        found = audited(np.random.default_rng(seed), **made)
        assert found.verdict == "violated" and words in found.violations


def test_noise_that_is_used_twice_is_a_violation_though_each_sum_has_enough() -> None:
    rng = np.random.default_rng(2)
    sums, coins = releases(rng)
    twice = np.concatenate([sums, sums], axis=1)  # two runs, one key
    other = rng.random(N) < 0.5
    signs = np.multiply.outer(worst_uses(PLAN), 0.5 * (other * 1.0 - coins))
    twice[:, N:] += signs
    found = audit_releases(twice, np.concatenate([coins, other]), PLAN, runs=2)
    assert found.violations == ("largest correlation between canaries",)


def test_the_noise_of_one_step_on_two_sums_is_a_violation_wherever_the_canary_is() -> None:
    rng = np.random.default_rng(2)
    noise, coins = releases(rng, shift=0.0)
    noise[3] = noise[2]
    for step in range(6):
        uses = (np.arange(6) >= step) * 1.0
        found = audit_releases(noise + 0.5 * np.outer(uses, coins), coins, PLAN, uses=uses)
        assert "least noise in any direction over the stated noise" in found.violations
        assert found.findings[3].measured < 1e-6
        # It shows the canary that comes between the two: an attack without noise.
        attack = found.findings[4]
        assert attack.violated == (step == 3)
        assert step != 3 or attack.measured > 1000 * found.mu_expected


# ---- Noise whose mean, variance and covariance of steps look right ----


def faulty(rng: Any, fault: Any, n: int = N) -> AuditResult:
    """An audit of sums whose independent normals, a row a step, were changed by a fault."""
    coins = rng.random(n) < 0.5
    f = noise_factor(PLAN.layout)
    normals = rng.normal(size=(f.shape[1], n))
    fault(normals, rng)
    sums = np.multiply.outer(worst_uses(PLAN), coins * 1.0)
    return audit_releases(0.5 * (sums + 2.0 * f @ normals), coins, PLAN)


def _overlap(z: Any, rng: Any) -> None:
    z[1] = np.roll(z[0], 4)


def _late_overlap(z: Any, rng: Any) -> None:
    z[5, 100:] = z[0, :-100]


def _mirrored_step(z: Any, rng: Any) -> None:
    z[2] = z[1, ::-1]


def _mirrored(z: Any, rng: Any) -> None:
    half = z.shape[1] // 2
    z[:, -half:] = z[:, :half][:, ::-1]


def _low_step(z: Any, rng: Any) -> None:
    z[2] *= 0.9


def _signs(z: Any, rng: Any) -> None:
    z[:] = np.sign(z)


def _uniform(z: Any, rng: Any) -> None:
    z[:] = rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), z.shape)


def _often_small(z: Any, rng: Any) -> None:
    z *= np.sqrt(np.where(rng.random(z.shape) < 0.5, 0.1, 1.9))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_overlap, "of two steps"),
        (_late_overlap, "of two steps"),
        (_mirrored_step, "of two steps"),
        (_mirrored, "mirrored"),
        (_low_step, "least noise of a step"),
        (_signs, "distance of the noise from the normal law"),
        (_uniform, "distance of the noise from the normal law"),
        (_often_small, "distance of the noise from the normal law"),
    ],
)
def test_noise_of_the_stated_size_that_repeats_or_is_not_normal_is_a_violation(
    fault: Any, words: str
) -> None:
    for seed in range(3):
        found = faulty(np.random.default_rng(seed), fault)
        assert found.verdict == "violated"
        assert any(words in name for name in found.violations)
    assert not faulty(np.random.default_rng(0), lambda z, rng: None).violated


def test_noise_that_all_canaries_share_is_a_violation() -> None:
    rng = np.random.default_rng(3)
    coins = rng.random(N) < 0.5
    f = noise_factor(PLAN.layout)
    shared = f @ rng.normal(size=(f.shape[1], 1))
    sums = 0.5 * (np.multiply.outer(worst_uses(PLAN), coins * 1.0) + 2.0 * shared)
    found = audit_releases(sums, coins, PLAN)
    assert found.verdict == "violated"
    assert {"mu of the canaries", "noise over the stated noise"} <= set(found.violations)
    assert found.mu_measured > 1e6


def test_sums_without_noise_are_a_violation() -> None:
    found = audited(np.random.default_rng(3), noise=0.0)
    assert found.verdict == "violated" and found.mu_measured > 1e6
    assert {f.violated for f in found.findings} == {True, False}
    text = found.describe()
    assert "verdict: violated" in text and "more than 1000000 if Gaussian" in text


def test_more_noise_and_smaller_shifts_are_inconclusive() -> None:
    for made in ({"noise": 1.3}, {"shift": 0.5}):
        found = audited(np.random.default_rng(4), **made)
        assert found.verdict.startswith("inconclusive: the canaries show less than the plan")
    few = audited(np.random.default_rng(5), n=60)
    assert few.verdict.startswith("inconclusive: 60 canaries measure mu to 0.2")
    part = audited(np.random.default_rng(6), shift=0.25, options={"norm": 0.25})
    assert part.mu_expected == pytest.approx(0.25 * PLAN.mu, rel=1e-6)
    assert not part.violated and part.mu_stated == PLAN.mu


def test_one_step_needs_no_learned_score() -> None:
    plan = PrivacyPlan(1.0, 1.0, acc.SinglePass(1))
    found = audit_plan(plan, random_state=0, confidence=1 - 1e-9)
    assert found.verdict == "consistent" and len(found.findings) == 6
    assert found.mu_expected == pytest.approx(1.0)


# ---- The result ----


def test_the_words_the_dictionary_and_the_picture(tmp_path: Path) -> None:
    found = audited(np.random.default_rng(7))
    text = found.describe()
    assert text.splitlines()[0] == "noisy running sums" and text.endswith("verdict: consistent")
    assert f"{N} canaries in one run of 6 steps, {found.included} included" in text
    stated = PLAN.epsilon(1e-6)
    assert f"epsilon stated {np.ceil(stated * 1000) / 1000:.4g}" in text
    data = json.loads(json.dumps(found.to_dict()))
    assert data["mu_measured"] == found.mu_measured and data["verdict"] == "consistent"
    assert data["findings"][0]["z"] == found.z == data["z"]
    assert not any("scores" in key for key in data)
    pytest.importorskip("matplotlib")
    png = found.plot(tmp_path / "scores.png")
    assert png.startswith(b"\x89PNG") and (tmp_path / "scores.png").read_bytes() == png
    bad = audited(np.random.default_rng(8), shift=2.0).describe()
    assert "VIOLATED" in bad and "verdict: violated (" in bad


def test_a_delta_at_which_no_epsilon_is_stated() -> None:
    found = audited(np.random.default_rng(9), options={"delta": 1e-300})
    assert found.epsilon_stated is None and "epsilon stated none" in found.describe()


SUMS, COINS = releases(np.random.default_rng(10), n=32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: audit_releases(SUMS[:5], COINS, PLAN),
            ValueError,
            r"releases must have shape \(6",
        ),
        (lambda: audit_releases(SUMS * np.nan, COINS, PLAN), ValueError, "releases must be finite"),
        (lambda: audit_releases(SUMS, COINS[:5], PLAN), ValueError, "included must have shape"),
        (lambda: audit_releases(SUMS, COINS * 1, PLAN), TypeError, "included must be an array of"),
        (lambda: audit_releases(SUMS, COINS & False, PLAN), ValueError, "an audit needs at least"),
        (lambda: audit_releases(SUMS, COINS, 3), TypeError, "plan must be a PrivacyPlan, got int"),  # type: ignore[arg-type]
        (lambda: audit_releases(SUMS, COINS, PLAN, norm=1.5), ValueError, "norm must be a finite"),
        (lambda: audit_releases(SUMS, COINS, PLAN, uses=[1]), ValueError, "uses must have shape"),
        (lambda: audit_releases(SUMS, COINS, PLAN, delta=0), ValueError, "delta must be"),
        (lambda: audit_releases(SUMS, COINS, PLAN, confidence=1), ValueError, "confidence must"),
        (lambda: audit_plan(PLAN, record=[0.0, 0.0]), ValueError, "record must have a gradient"),
        (lambda: audit_plan(PLAN, canaries=0), ValueError, "canaries must be an integer >= 1"),
        (lambda: audit_plan(PLAN, runs=0), ValueError, "runs must be an integer >= 1"),
    ],
)
def test_wrong_arguments_are_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
