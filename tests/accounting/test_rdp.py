# SPDX-License-Identifier: Apache-2.0
"""Epsilon through RDP: published figures, and the optimum against a search in mpmath."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import accounting as acc

# The grid of the paper's code.
GRID = [1 + k / 10 for k in range(1, 100)] + list(range(12, 64))
FAST = settings(max_examples=25, deadline=None, derandomize=True)


def at_order(order, sigma, zeta, delta, conversion):
    order, delta = mpmath.mpf(order), mpmath.mpf(delta)
    rdp = order * mpmath.mpf(zeta) / (2 * mpmath.mpf(sigma) ** 2)
    if conversion == "mironov":
        return rdp + mpmath.log(1 / delta) / (order - 1)
    return rdp + mpmath.log(1 - 1 / order) - mpmath.log(delta * order) / (order - 1)


@pytest.mark.parametrize("orders", [None, GRID])
@pytest.mark.parametrize(
    ("sigma", "eps"), [(1.13, 18.71), (2.33, 7.83), (4.03, 4.19), (6.21, 2.60), (8.83, 1.77)]
)
def test_stackoverflow_table(sigma, eps, orders):
    assert round(acc.epsilon(sigma, 11, 1e-6, "rdp", orders=orders), 2) == eps


@pytest.mark.parametrize("orders", [None, GRID])
@pytest.mark.parametrize(("sigma", "eps"), [(1.13, 19.74), (2.33, 8.50)])
def test_the_papers_text_with_mironovs_conversion(sigma, eps, orders):
    got = acc.epsilon(sigma, 11, 1e-6, "rdp", conversion="mironov", orders=orders)
    assert round(got, 2) == eps


@pytest.mark.parametrize(
    ("population", "goal", "eps"),
    [
        (342477, 100, 363.66),
        (342477, 1000, 32.52),
        (342477, 5060, 9.76),
        (342477, 16300, 4.11),
        (10**6, 3850, 7.57),
        (10**6, 10300, 3.56),
    ],
)
def test_report_goal_table(population, goal, eps):
    per = population // goal
    zeta = math.ceil(1600 / per) * (math.floor(math.log2(min(per, 1600))) + 1)
    got = acc.epsilon(0.00149 * goal, zeta, 1e-6, "rdp", orders=GRID)
    assert round(got, 2) == eps


@pytest.mark.parametrize("orders", [None, GRID])
def test_readme_of_the_papers_code(orders):
    # zeta 4129 belongs to another participation pattern.
    got = acc.epsilon(46.3, 4129, 1e-5, "rdp", orders=orders)
    assert got == pytest.approx(6.922, abs=5e-4)


@pytest.mark.parametrize("conversion", ["cks", "mironov"])
def test_each_order_is_the_formula_rounded_up(conversion):
    with mpmath.workdps(60):
        for order in [1 + 2**-52, 1.1, 1.5, 2, 10.9, 63, 1e6]:
            for sigma, zeta, delta in [(1.13, 11, 1e-6), (0.01, 5000, 1e-300), (300.0, 1, 0.3)]:
                got = acc.epsilon(sigma, zeta, delta, "rdp", orders=[order], conversion=conversion)
                expected = max(mpmath.mpf(0), at_order(order, sigma, zeta, delta, conversion))
                assert got >= expected
                assert got - expected <= 4e-16 * expected


@FAST
@given(
    st.floats(-3, 4).map(lambda x: 10.0**x),
    st.integers(1, 20000),
    st.floats(-300, -0.05).map(lambda x: 10.0**x),
    st.sampled_from(["cks", "mironov"]),
)
def test_the_best_order_is_the_best(sigma, zeta, delta, conversion):
    best = acc.epsilon(sigma, zeta, delta, "rdp", conversion=conversion)
    orders = 1 + np.geomspace(1e-8, 1e8, 400)
    grid = acc.epsilon(sigma, zeta, delta, "rdp", conversion=conversion, orders=orders)
    assert best <= grid
    # A grid this fine misses the optimum by a relative (ln 10 / 25)^2 / 8 of the terms that grow.
    rho = zeta / (2 * sigma**2)
    if orders[0] < 1 + math.sqrt(-math.log(delta) / rho) < orders[-1]:
        assert grid - best <= 0.01 * (grid + 1)


@FAST
@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    st.floats(0, 1, exclude_min=True, exclude_max=True),
)
def test_any_doubles_give_a_number(sigma, zeta, delta):
    best = acc.epsilon(sigma, zeta, delta, "rdp")
    assert 0 <= best <= acc.epsilon(sigma, zeta, delta, "rdp", conversion="mironov")
    assert best >= acc.epsilon(sigma, zeta, delta)


def test_more_orders_never_hurt():
    few = acc.epsilon(2.33, 11, 1e-6, "rdp", orders=[2.0, 30.0])
    more = acc.epsilon(2.33, 11, 1e-6, "rdp", orders=(2.0, 30.0, 4.5))
    assert acc.epsilon(2.33, 11, 1e-6, "rdp") <= more < few
    assert acc.epsilon(2.33, 11, 1e-6, "rdp", orders=(x for x in [2.0, 30.0])) == few


def test_a_negative_value_means_epsilon_zero():
    assert at_order(1.5, 1000.0, 1, 0.9, "cks") < 0
    assert acc.epsilon(1000.0, 1, 0.9, "rdp") == 0.0


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"orders": []}, ValueError, "orders must hold at least one number > 1, got none"),
        ({"orders": 2.0}, TypeError, "orders must be an iterable of numbers > 1, got float"),
        ({"orders": [2, 1.0]}, ValueError, "each of orders must be a finite number > 1, got 1.0"),
        ({"orders": [math.nan]}, ValueError, "each of orders must be a finite number > 1, got nan"),
        ({"orders": [math.inf]}, ValueError, "each of orders must be a finite number"),
        ({"orders": "23"}, TypeError, "each of orders must be a finite number > 1, got str"),
        (
            {"conversion": "best"},
            ValueError,
            "conversion must be one of 'cks', 'mironov', got 'best'",
        ),
        ({"conversion": ""}, ValueError, "conversion must be one of 'cks', 'mironov', got ''"),
        ({"method": "pld"}, ValueError, "method must be one of 'exact', 'rdp', got 'pld'"),
        ({"method": "exact", "orders": [2]}, ValueError, "orders and conversion need"),
        ({"method": "exact", "conversion": "cks"}, ValueError, "orders and conversion need"),
    ],
)
def test_wrong_options(wrong, error, message):
    with pytest.raises(error, match=message):
        acc.epsilon(1.0, 1, 1e-6, **{"method": "rdp", **wrong})
