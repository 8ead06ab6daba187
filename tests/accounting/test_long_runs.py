# SPDX-License-Identifier: Apache-2.0
"""The mechanism that "auto" stands for above 2^20 steps."""

import math

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.planner import long_runs
from dpftrl_fast.accounting.planner.choice import chosen_mechanism
from dpftrl_fast.mechanisms import BufferedToeplitz, Tree
from dpftrl_fast.mechanisms.run_error import noise_std_at
from dpftrl_fast.mechanisms.toeplitz.long_run import Grid
from dpftrl_fast.mechanisms.tree_error import mean_variance

BUDGET = (1.0, 1e-6)


def score(mechanism, steps):
    """Return sqrt(zeta) times the root mean square of the noise, by a sum over many steps."""
    pattern = acc.SinglePass(steps)
    times = np.random.default_rng(0).integers(1, steps + 1, 4000)
    zeta = acc.sensitivity_squared(pattern, mechanism, bound="released")
    return math.sqrt(zeta * float(np.mean(noise_std_at(times, steps, mechanism) ** 2)))


@pytest.mark.parametrize(("bits", "gain"), [(21, 1.7), (30, 1.55), (40, 1.05)])
def test_buffers_have_less_noise_than_the_tree(bits, gain):
    found = chosen_mechanism("auto", acc.SinglePass(2**bits), *BUDGET, dtype="float64")
    assert isinstance(found, BufferedToeplitz) and found.vectors == 3
    assert gain * score(found, 2**bits) < score(Tree(), 2**bits)


@pytest.mark.parametrize("vectors", [2, 5])
def test_the_limit_of_vectors_is_kept(vectors):
    found = chosen_mechanism("auto", acc.SinglePass(2**22), *BUDGET, max_vectors=vectors)
    assert isinstance(found, BufferedToeplitz) and found.vectors == vectors


def test_without_a_dtype_the_coefficients_serve_both():
    found = chosen_mechanism("auto", acc.SinglePass(2**26), *BUDGET)
    assert isinstance(found, BufferedToeplitz) and found.is_in("float32")
    plan = dpf.PrivacyPlan(1.0, 4.0, acc.SinglePass(2**26), found)
    assert plan.delta_floor < 1e-9 and plan.noise(2).dtype == np.float32
    wider = chosen_mechanism("auto", acc.SinglePass(2**26), *BUDGET, dtype="float64")
    assert score(wider, 2**26) <= score(found, 2**26) * (1 + 1e-6)


def test_where_a_tree_remains():
    for steps, options in (
        (2**26 + 1, {}),
        (2**30, {"dtype": "float32"}),
        (2**30, {"dtype": "float64", "workload": acc.Workload(momentum=0.9)}),
        (2**30, {"dtype": "float64", "max_vectors": 0}),
    ):
        assert chosen_mechanism("auto", acc.SinglePass(steps), *BUDGET, **options) == Tree()
    epochs = acc.FixedEpochs(2**20, 2)
    assert isinstance(chosen_mechanism("auto", epochs, *BUDGET, dtype="float64"), Tree)
    # One buffer has more noise over 2^40 steps than a tree of 42 vectors.
    one = chosen_mechanism("auto", acc.SinglePass(2**40), *BUDGET, dtype="float64", max_vectors=1)
    assert one == Tree()


def test_runs_too_long_for_a_tree():
    found = chosen_mechanism("auto", acc.SinglePass(2**43), *BUDGET)
    assert isinstance(found, BufferedToeplitz) and found.vectors == 3
    assert acc.sensitivity_squared(acc.SinglePass(2**43), found) < 20.0


def test_a_stream_without_a_declared_end():
    forever = acc.SinglePass.unbounded()
    for vectors, expected in ((None, 10), (20, 10), (10, 10), (4, 4), (2, 2)):
        found = chosen_mechanism("auto", forever, *BUDGET, max_vectors=vectors)
        assert found == BufferedToeplitz.unbounded(buffers=expected)
    plan = dpf.PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-6, clip_norm=1.0, participation=forever, max_vectors=None
    )
    assert plan.mechanism.vectors == 10 and plan.epsilon(1e-6) <= 1.0


@pytest.mark.parametrize("rank_by", ["last", "worst"])
def test_other_errors(rank_by):
    found = chosen_mechanism(
        "auto", acc.SinglePass(2**30), *BUDGET, dtype="float64", rank_by=rank_by
    )
    by_rms = chosen_mechanism("auto", acc.SinglePass(2**30), *BUDGET, dtype="float64")

    def last(mechanism):
        zeta = acc.sensitivity_squared(acc.SinglePass(2**30), mechanism)
        return zeta * noise_std_at([2**30], 2**30, mechanism)[0] ** 2

    assert last(found) < last(by_rms)


def test_the_choice_is_kept(monkeypatch):
    first = chosen_mechanism("auto", acc.SinglePass(2**25), *BUDGET)
    monkeypatch.setattr(long_runs, "single_pass_buffers", None)
    assert chosen_mechanism("auto", acc.SinglePass(2**25), 2.0, 1e-7) == first


@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_mean_variance_of_a_tree(variant):
    for steps in (1, 2, 3, 8, 100, 1023, 1024, 1025):
        every = acc.noise_std(steps, Tree(variant)).prefix ** 2
        assert mean_variance(steps, variant) == pytest.approx(every.mean(), rel=1e-12)


def test_the_grid_is_fine_enough_for_the_choice():
    found = chosen_mechanism("auto", acc.SinglePass(2**22), *BUDGET)
    grid = Grid(2**22)
    every = acc.mechanism_error(found, 2**22).rms ** 2
    assert grid.means(noise_std_at(grid.steps, 2**22, found) ** 2)[-1] == pytest.approx(
        every, rel=1e-3
    )
