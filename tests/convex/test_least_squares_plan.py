# SPDX-License-Identifier: Apache-2.0
"""The two-tree plan: its mu, its least noise, its ridge, its words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast import reference
from dpftrl_fast.convex.least_squares.completion import best_completion
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan

PASS = acc.SinglePass(100)


def plan_of(**options: Any) -> LeastSquaresPlan:
    fields: dict[str, Any] = {
        "x_norm_bound": 2.0,
        "y_bound": 3.0,
        "noise_multiplier": 5.0,
        "participation": PASS,
    }
    return LeastSquaresPlan(**{**fields, **options})


@given(
    st.floats(0.01, 0.99),
    st.floats(0.1, 1e3),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
    st.sampled_from([0.0, 0.5, 2.0]),
)
@settings(max_examples=50, deadline=None)
def test_one_mu_for_both_trees(
    split: float, sigma: float, x_norm_bound: float, y_bound: float, constant: float
) -> None:
    plan = plan_of(
        split=split,
        noise_multiplier=sigma,
        x_norm_bound=x_norm_bound,
        y_bound=y_bound,
        constant=constant,
    )
    zeta, L = plan.sensitivity_squared, math.hypot(x_norm_bound, constant)
    sigma_b, sigma_c = plan.bias.noise_multiplier, plan.covariance.noise_multiplier
    assert plan.bias.clip_norm == pytest.approx(L * y_bound, rel=1e-15)
    assert plan.covariance.clip_norm == pytest.approx(L * L, rel=1e-15)
    # sigma = (1/sigma_b^2 + 1/sigma_c^2)^(-1/2), and the bias tree has its share of mu^2
    assert (sigma_b**-2 + sigma_c**-2) ** -0.5 == pytest.approx(sigma, rel=1e-14)
    assert zeta / sigma_b**2 == pytest.approx(split * plan.mu**2, rel=1e-12)
    assert plan.mu == pytest.approx(math.sqrt(zeta) / sigma, rel=1e-14)
    assert plan.mu**2 >= zeta * (sigma_b**-2 + sigma_c**-2) * (1 - 1e-15)


def test_epsilon_is_that_of_one_tree_up_to_the_floors() -> None:
    plan = plan_of(noise_multiplier=14.0)
    single = acc.epsilon(14.0, plan.sensitivity_squared, 1e-6)
    assert single <= plan.epsilon(1e-6) <= single * (1 + 1e-5)
    assert plan.delta(plan.epsilon(1e-6)) <= 1e-6
    # The floor counts the nodes of both trees.
    floors = plan.bias.delta_floor + plan.covariance.delta_floor
    assert floors <= plan.delta_floor <= floors * (1 + 1e-6)
    assert plan.epsilon(1e-6, neighbours="replace-one") > 2 * single


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("split", [0.1, 0.35, 0.5])
@pytest.mark.parametrize("complete", [False, "all"])
def test_calibration_keeps_the_budget_with_the_least_noise(
    epsilon: float, split: float, complete: Any
) -> None:
    plan = LeastSquaresPlan.calibrate(
        epsilon=epsilon,
        delta=1e-6,
        x_norm_bound=1.0,
        y_bound=1.0,
        participation=acc.SinglePass(1045),
        split=split,
        complete=complete,
    )
    assert plan.epsilon(1e-6) <= epsilon
    assert plan.delta(epsilon) <= 1e-6
    less = replace(plan, noise_multiplier=math.nextafter(plan.noise_multiplier, 0))
    assert less.delta(epsilon) > 1e-6
    assert plan == replace(plan)


def test_other_patterns_of_participation() -> None:
    plan = plan_of(participation=acc.MinSeparation(64, 4, 8), complete=False, bound="exact")
    assert plan.sensitivity_squared == 56
    assert plan_of(participation=acc.FixedEpochs(10, 3)).steps == 30


def test_completion_is_chosen_where_the_last_model_has_less_noise() -> None:
    for steps in (1, 2, 1024):
        assert best_completion(acc.SinglePass(steps)) is False
    for steps in (3, 1023, 1025, 1045):
        participation = acc.SinglePass(steps)
        stds = {}
        for complete in (False, "all"):
            plan = LeastSquaresPlan.calibrate(
                epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0,
                participation=participation, complete=complete,
            )  # fmt: skip
            stds[complete] = plan.noise_multiplier * math.sqrt(plan.variance_factors[-1])
        assert best_completion(participation) == min(stds, key=lambda choice: stds[choice])
    assert plan_of(participation=acc.SinglePass(1045)).complete == "all"
    assert plan_of(participation=acc.SinglePass(1024)).complete is False


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
@pytest.mark.parametrize("complete", [False, "all"])
def test_variance_factors_and_ridge(variant: Any, complete: Any) -> None:
    steps = 37
    plan = plan_of(participation=acc.SinglePass(steps), variant=variant, complete=complete)
    for t in range(1, steps + 1):
        at = 64 if complete and t == steps else t
        v = float(reference.variance_factor(at, variant))
        assert plan.variance_factors[t - 1] == pytest.approx(v, rel=1e-12)
        std = 2.0**2 * plan.covariance.noise_multiplier
        assert plan.half_ridge(t, 30, 2.0) == pytest.approx(2 * std * math.sqrt(v * 30), rel=1e-12)


def test_noise_has_the_plans_standard_deviations_and_keys_of_its_own() -> None:
    plan = plan_of()
    bias, covariance = plan.noise(4, dtype="float32")
    assert (bias.size, bias.dtype) == (4, np.float64)
    assert (covariance.size, covariance.dtype) == (10, np.float32)
    assert bias.std == pytest.approx(6.0 * plan.bias.noise_multiplier, rel=1e-15)
    assert covariance.std == pytest.approx(4.0 * plan.covariance.noise_multiplier, rel=1e-7)
    assert covariance.std >= 4.0 * plan.covariance.noise_multiplier
    assert not bias.reproducible
    one, two = (plan_of().noise(4, dtype="float64", seed=7) for _ in range(2))
    assert one[0].reproducible
    a, b = one[0].step(), one[1].step()[:4] * (one[0].std / one[1].std)
    assert np.array_equal(a, two[0].step())
    assert np.abs(a - b).min() > 1e-6 * one[0].std  # unrelated streams under one seed
    # Fresh keys differ between the trees and between runs.
    fresh = [noise.step()[:4] / noise.std for _ in range(2) for noise in plan.noise(4)]
    assert len({tuple(x.tolist()) for x in fresh}) == 4


def test_both_noises_have_the_options() -> None:
    plan = LeastSquaresPlan(1.0, 1.0, 2.0, acc.SinglePass(10))
    bias, covariance = plan.noise(3, memory=2, dtype="float64", rounds=20, threads=1)
    for noise in (bias, covariance):
        assert (noise.rounds, noise.threads, noise.dtype) == (20, 1, np.float64)
    assert (bias.memory, covariance.memory) == ("stored", 2)
    assert plan.noise(3)[1].dtype == np.float32


def test_a_plan_as_data_and_in_words() -> None:
    plan = plan_of(constant=0.5, split=0.4, bound="exact", complete=False)
    assert LeastSquaresPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    d = plan.to_dict()
    for wrong in (
        {**d, "version": 2},
        {**d, "version": True},
        {**d, "format": "other"},
        {**d, "more": 1},
        {name: value for name, value in d.items() if name != "split"},
        {**d, "noise_multiplier": float("nan")},
    ):
        with pytest.raises(ValueError, match="must"):
            LeastSquaresPlan.from_dict(wrong)
    with pytest.raises(TypeError, match="a plan must be a mapping, got list"):
        LeastSquaresPlan.from_dict([])  # type: ignore[arg-type]
    words = plan.describe(1e-6)
    for text in (
        "x and y replaced by zero",
        "replaced by another's",
        "100 steps",
        "constant column 0.5",
        "delta includes",
    ):
        assert text in words
    # Where the floor of replace-one neighbours is above delta, nothing is stated for them.
    loud = plan_of(noise_multiplier=1.0, bound="exact")
    assert "no epsilon at delta" in loud.describe(1.5 * loud.delta_floor)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"x_norm_bound": 0.0}, "x_norm_bound must be a finite number > 0, got 0.0"),
        ({"x_norm_bound": float("nan")}, "x_norm_bound must be a finite number > 0, got nan"),
        ({"y_bound": float("inf")}, "y_bound must be a finite number > 0, got inf"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number > 0"),
        ({"split": 0.0}, "split must be a finite number > 0 and < 1, got 0.0"),
        ({"split": 1.0}, "split must be a finite number > 0 and < 1, got 1.0"),
        ({"split": float("nan")}, "split must be a finite number > 0 and < 1, got nan"),
        ({"constant": -1.0}, "constant must be a finite number >= 0"),
        ({"constant": float("nan")}, "constant must be a finite number >= 0"),
        ({"complete": True}, 'complete must be False, "all" or "auto", got True'),
        ({"complete": "some"}, 'complete must be False, "all" or "auto"'),
        ({"variant": "best"}, "variant must be"),
        ({"bound": "level"}, "bound must be"),
        ({"x_norm_bound": 1e60}, "clip_norm must be"),
    ],
)
def test_wrong_fields(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        plan_of(**options)


def test_wrong_types() -> None:
    with pytest.raises(TypeError, match="x_norm_bound must be a finite number > 0, got str"):
        plan_of(x_norm_bound="1")
    with pytest.raises(TypeError, match="participation must be"):
        plan_of(participation=100)
    with pytest.raises(ValueError, match="delta must be above the floor"):
        plan_of().epsilon(1e-16)
    with pytest.raises(ValueError, match="delta must be a finite number > 0 and < 1, got nan"):
        LeastSquaresPlan.calibrate(
            epsilon=1.0, delta=float("nan"), x_norm_bound=1.0, y_bound=1.0, participation=PASS
        )
    with pytest.raises(ValueError, match="at most 2\\^36"):
        plan_of().noise(2**19)


@pytest.mark.parametrize("targets", [1, 2, 7])
@pytest.mark.parametrize("squares", [0.0, 0.25, 3.0])
def test_a_longer_bias(targets: int, squares: float) -> None:
    plan = plan_of(constant=0.5, targets=targets, squares=squares)
    L, y_bound = math.hypot(2.0, 0.5), 3.0
    # A row of the largest norm, each target at its bound: y_k x and kappa L/y_bound y_k^2.
    weight = squares * L / y_bound
    largest = math.sqrt(targets * ((y_bound * L) ** 2 + (weight * y_bound**2) ** 2))
    assert plan.bias.clip_norm == pytest.approx(largest, rel=1e-14)
    assert plan.square_weight == pytest.approx(weight, rel=1e-5) and plan.square_weight <= weight
    assert plan.covariance == plan_of(constant=0.5).covariance
    assert plan.guarantee == plan_of(constant=0.5).guarantee
    assert plan.bias_size(4) == targets * (5 if squares else 4)
    bias, covariance = plan.noise(4)
    assert (bias.size, covariance.size) == (plan.bias_size(4), 10)
    assert bias.std >= largest * plan.bias.noise_multiplier * (1 - 1e-12)
    d = json.loads(json.dumps(plan.to_dict()))
    assert LeastSquaresPlan.from_dict(d) == plan
    assert d["version"] == (3 if targets > 1 or squares else 1)
    assert ("targets" in d) == (d["version"] == 3)
    words = plan.describe(1e-6)
    assert (f"of each of {targets} targets" in words) == (targets > 1)
    assert ("y x and y^2" in words) == (squares > 0)
    least = LeastSquaresPlan.calibrate(
        epsilon=1.0, delta=1e-6, x_norm_bound=2.0, y_bound=3.0, participation=PASS,
        targets=targets, squares=squares,
    )  # fmt: skip
    assert (least.targets, least.squares) == (targets, squares)
    assert least.bias.clip_norm == pytest.approx(6 * math.sqrt(targets * (1 + squares**2)))


def test_a_longer_bias_with_another_mechanism_is_read_back() -> None:
    plan = plan_of(targets=2, mechanism=mech.BandedInverse.square_root(3))
    assert LeastSquaresPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    for name, value in (
        ("targets", 0),
        ("targets", 1.5),
        ("squares", -1.0),
        ("squares", math.inf),
        ("squares", 1e4),
    ):
        with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
            plan_of(**{name: value})
