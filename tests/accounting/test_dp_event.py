# SPDX-License-Identifier: Apache-2.0
"""Our runs in dp_accounting's RDP and PLD accountants, alone and composed; DP-SGD as a baseline."""

import math
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc
from dpftrl_fast.accounting.statement.dp_event import (
    dp_event,
    dpsgd_epsilon,
    unamplified_dpsgd_epsilon,
)

DELTA = 1e-6


@pytest.fixture
def dp_accounting():
    return pytest.importorskip("dp_accounting", reason="needs the package dp-accounting")


@pytest.fixture
def accountants(dp_accounting):
    return {"rdp": dp_accounting.rdp.RdpAccountant, "pld": dp_accounting.pld.PLDAccountant}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.floats(-6, 6).map(lambda x: 10.0**x), st.one_of(st.integers(1, 2**63), st.floats(1e-6, 1))
)
def test_the_noise_multiplier_is_rounded_down(sigma, zeta):
    pytest.importorskip("dp_accounting", reason="needs the package dp-accounting")
    got = dp_event(sigma, zeta).noise_multiplier
    true_square = Fraction(sigma) ** 2 / Fraction(zeta)
    assert Fraction(got) ** 2 <= true_square < Fraction(math.nextafter(got, math.inf)) ** 2


def test_an_exact_quotient_is_kept(dp_accounting):
    assert dp_event(3.0, 4) == dp_accounting.GaussianDpEvent(1.5)


@pytest.mark.parametrize(("sigma", "zeta"), [(2.33, 11), (8.83, 11), (46.3, 4129)])
def test_one_run_alone(accountants, sigma, zeta):
    event = dp_event(sigma, zeta)
    exact = acc.epsilon(sigma, zeta, DELTA)
    pld = accountants["pld"]().compose(event).get_epsilon(DELTA)
    rdp = accountants["rdp"]().compose(event).get_epsilon(DELTA)
    assert exact <= pld * (1 + 1e-9)
    assert pld == pytest.approx(exact, rel=1e-3)
    best = acc.epsilon(sigma, zeta, DELTA, "rdp")
    assert best * (1 - 1e-9) <= rdp <= best * 1.01


def test_equal_runs_add_their_squared_sensitivities(accountants):
    event = dp_event(8.83, 11)
    for accountant in accountants.values():
        three = accountant().compose(event, 3).get_epsilon(DELTA)
        one = accountant().compose(dp_event(8.83, 33)).get_epsilon(DELTA)
        assert three == pytest.approx(one, rel=1e-4)
    assert three == pytest.approx(acc.epsilon(8.83, 33, DELTA), rel=1e-3)


def test_composed_with_a_poisson_sampled_gaussian(dp_accounting, accountants):
    run = dp_event(8.83, 11)
    sampled = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    composed = {}
    for name, accountant in accountants.items():
        ours = accountant().compose(run)
        theirs = accountant().compose(sampled, 100)
        both = accountant().compose(run).compose(sampled, 100)
        composed[name] = both.get_epsilon(DELTA)
        assert composed[name] > max(ours.get_epsilon(DELTA), theirs.get_epsilon(DELTA))
        # Basic composition, delta halved, is never better.
        halves = ours.get_epsilon(DELTA / 2) + theirs.get_epsilon(DELTA / 2)
        assert composed[name] < halves
    assert composed["pld"] < composed["rdp"]


def test_composed_with_a_sample_of_everything_it_is_gaussian(dp_accounting, accountants):
    all_of_it = dp_accounting.PoissonSampledDpEvent(1.0, dp_accounting.GaussianDpEvent(3.0))
    both = accountants["pld"]().compose(dp_event(8.83, 11)).compose(all_of_it)
    square = 11 / 8.83**2 + 1 / 9
    assert both.get_epsilon(DELTA) == pytest.approx(acc.epsilon(1.0, square, DELTA), rel=1e-3)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_dpsgd(dp_accounting, accountant):
    amplified = dpsgd_epsilon(1.1, 0.01, 100, 1e-5, accountant)
    plain = unamplified_dpsgd_epsilon(1.1, 1, 1e-5, accountant)
    assert 0 < amplified < plain
    assert plain >= acc.epsilon(1.1, 1, 1e-5) * (1 - 1e-9)
    assert plain == pytest.approx(acc.epsilon(1.1, 1, 1e-5), rel=0.1)
    everything = dpsgd_epsilon(1.1, 1, 1, 1e-5, accountant)
    assert everything == pytest.approx(plain, rel=1e-3)


def test_pld_is_the_tighter_accountant(dp_accounting):
    assert dpsgd_epsilon(1.1, 0.01, 100, 1e-5, "pld") < dpsgd_epsilon(1.1, 0.01, 100, 1e-5)
    exact = acc.epsilon(10.0, 100, 1e-5)
    assert unamplified_dpsgd_epsilon(10.0, 100, 1e-5, "pld") == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: dp_event(math.nan, 1), ValueError, "noise_multiplier must be a finite number > 0"),
        (lambda: dp_event(1.0, 0), ValueError, "sensitivity_squared must be a finite number > 0"),
        (lambda: dpsgd_epsilon(0.0, 0.5, 1, 0.1), ValueError, "noise_multiplier must be"),
        (lambda: dpsgd_epsilon(1.0, 1.5, 1, 0.1), ValueError, "sampling_probability must be a num"),
        (lambda: dpsgd_epsilon(1.0, math.nan, 1, 0.1), ValueError, "sampling_probability must be"),
        (lambda: dpsgd_epsilon(1.0, 0.5, 0, 0.1), ValueError, "steps must be an integer >= 1"),
        (
            lambda: dpsgd_epsilon(1.0, 0.5, 1, 0.0),
            ValueError,
            "delta must be a finite number > 0",
        ),
        (
            lambda: dpsgd_epsilon(1.0, 0.5, 1, 0.1, "prv"),
            ValueError,
            'accountant must be "rdp" or "pld", got \'prv\'',
        ),
        (
            lambda: unamplified_dpsgd_epsilon(1.0, 2.0, 0.1),
            TypeError,
            "epochs must be an integer >= 1, got float",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    for call in (lambda: dp_event(1.0, 1), lambda: dpsgd_epsilon(1.0, 0.5, 1, 0.1)):
        with pytest.raises(ModuleNotFoundError, match="pip install dp-accounting"):
            call()


def test_the_package_is_not_imported_before_it_is_needed(tmp_path):
    code = (
        "import sys, dpftrl_fast.accounting.statement.dp_event\n"
        "print([name for name in sys.modules if name.startswith('dp_accounting')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
