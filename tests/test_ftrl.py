# SPDX-License-Identifier: Apache-2.0
"""The update against numerical minimisation, tables worked by hand, and online gradient descent."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dpftrl_fast.ftrl import FTRL, project_ball, soft_threshold, theory_learning_rate


def minimise(v, c, lam, theta_0, radius):
    """Minimise <v, x> + c ||x||_1 + lam/2 ||x - theta_0||^2 over the ball; x = a - b, a, b >= 0."""
    p = v.size

    def value(ab):
        x = ab[:p] - ab[p:]
        return v @ x + c * ab.sum() + lam / 2 * np.sum((x - theta_0) ** 2)

    def gradient(ab):
        g = v + lam * (ab[:p] - ab[p:] - theta_0)
        return np.concatenate([g + c, -g + c])

    ball = {
        "type": "ineq",
        "fun": lambda ab: radius**2 - np.sum((ab[:p] - ab[p:]) ** 2),
        "jac": lambda ab: -2 * np.concatenate([ab[:p] - ab[p:], ab[p:] - ab[:p]]),
    }
    start = np.full(2 * p, 0.05)
    start[:p] += np.linspace(0, 0.02, p)
    result = scipy.optimize.minimize(
        *(value, start),
        jac=gradient,
        method="SLSQP",
        bounds=[(0, None)] * (2 * p),
        constraints=[] if radius is None else [ball],
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    # 8: no descent left in the line search, which is where it ends at this tolerance.
    assert result.status in (0, 8), result.message
    return result.x[:p] - result.x[p:]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("l1", [0.0, 0.05])
@pytest.mark.parametrize("radius", [None, 0.4, 5.0])
def test_the_iterate_minimises_the_regularised_sum(seed, l1, radius):
    rng = np.random.default_rng(seed)
    p, momentum = 4, 0.5 * (seed % 2)
    theta_0 = rng.standard_normal(p) * 0.3
    learning_rate, batch_size = 0.3, 2
    ftrl = FTRL(
        theta_0,
        learning_rate,
        batch_size=batch_size,
        steps=3,
        momentum=momentum,
        l1=l1,
        radius=radius,
    )
    s, v, c = np.zeros(p), np.zeros(p), 0.0
    for t in range(1, 4):
        g, noise = rng.standard_normal(p), rng.standard_normal(p) * 0.3
        theta = ftrl.step(g, noise)
        s = s + g
        v = momentum * v + (s + noise) / batch_size
        c = momentum * c + t * l1
        expected = minimise(v, c, 1 / learning_rate, theta_0, radius)
        np.testing.assert_allclose(theta, expected, atol=2e-5)


def test_momentum_by_a_table_worked_by_hand():
    # gamma = 1/2, B = 2, rate 1, l1 = 1/4; sums 4, 6, 6; noises 2, -2, 0.
    # v: 3, 3/2 + 2 = 3.5, 1.75 + 3 = 4.75;  c: 1/4, 1/8 + 1/2 = 5/8, 5/16 + 3/4 = 17/16
    # theta: -(3 - 0.25), -(3.5 - 0.625), -(4.75 - 1.0625)
    ftrl = FTRL([0.0], 1.0, batch_size=2, steps=3, momentum=0.5, l1=0.25)
    thetas = [
        ftrl.step(np.array([g]), np.array([b]))[0] for g, b in [(4.0, 2.0), (2.0, -2.0), (0.0, 0.0)]
    ]
    assert thetas == [-2.75, -2.875, -3.6875]


def test_without_noise_and_momentum_it_is_online_gradient_descent():
    rng = np.random.default_rng(1)
    theta = theta_0 = rng.standard_normal(5)
    ftrl = FTRL(theta_0, 0.1, batch_size=4, steps=50)
    np.testing.assert_array_equal(ftrl.theta, theta_0)
    for _ in range(50):
        g = rng.standard_normal(5)
        theta = theta - 0.1 * g / 4
        np.testing.assert_allclose(ftrl.step(g, np.zeros(5)), theta, rtol=0, atol=1e-13)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("l1", [0.0, 0.01])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 7, 8, 9, 193])
def test_a_step_is_its_operations_one_by_one_to_the_bit(size, dtype, l1, momentum):
    rng = np.random.default_rng(size)
    theta_0 = rng.standard_normal(size)
    grid = None if size < 8 else 2.0**-7
    ftrl = FTRL(theta_0, 0.3, batch_size=7, steps=20, momentum=momentum, l1=l1, grid=grid)
    total, low, v, iterates, tail, c = *(np.zeros(size) for _ in range(5)), 0.0
    theta = theta_0
    for t in range(1, 21):
        # Of all magnitudes: the rounding errors of the sums show.
        g = rng.standard_normal(size) * 10 ** rng.uniform(-8, 8, size)
        noise = rng.standard_normal(size).astype(dtype)
        iterates = iterates + theta
        tail = tail + theta if t > 10 else tail
        new = total + g
        part = new - total
        low = low + ((total - (new - part)) + (g - part))
        total = new
        noisy = total + (low + noise)
        own = (noisy if grid is None else np.floor(noisy / grid + 0.5) * grid) / 7
        v = own + momentum * v if momentum else own
        c = momentum * c + t * l1
        q = v * -0.3 + theta_0
        theta = q - np.clip(q, -(c * 0.3), c * 0.3) if l1 else q
        assert ftrl.step(g, noise).tobytes() == theta.tobytes()
    assert ftrl.average.tobytes() == (iterates / 20).tobytes()
    assert ftrl.tail_average.tobytes() == (tail / 10).tobytes()
    state = ftrl.state_dict()
    assert state["sum"].tobytes() == total.tobytes()
    assert state["sum_low"].tobytes() == low.tobytes() and np.any(low)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 100, 1000])
def test_the_ball_is_left_as_it_is_inside_and_reached_from_outside(size):
    x = np.random.default_rng(size).standard_normal(size)
    norm = np.linalg.norm(x)
    inside = project_ball(x, norm * (1 + 1e-12))
    assert inside.tobytes() == x.tobytes() and inside is not x
    np.testing.assert_allclose(project_ball(x, norm / 3), x / 3, rtol=1e-14)
    for bad in (np.nan, np.inf):
        x[-1] = bad
        assert project_ball(x, 0.1).tobytes() == x.tobytes()


@pytest.mark.parametrize("layout", ["strided", "unaligned", "readonly"])
def test_vectors_of_any_layout(layout):
    def as_laid(x):
        if layout == "strided":
            return np.repeat(x, 2)[::2]
        if layout == "unaligned":
            room = np.zeros(x.nbytes + 1, np.uint8)
            room[1:] = x.view(np.uint8)
            return room[1:].view(x.dtype)
        x = x.copy()
        x.flags.writeable = False
        return x

    rng = np.random.default_rng(0)
    one, two = (FTRL(np.zeros(9), 0.3, batch_size=2, steps=3, l1=0.1) for _ in range(2))
    for dtype in (np.float32, np.float64, np.float64):
        g, noise = rng.standard_normal(9), rng.standard_normal(9).astype(dtype)
        assert one.step(g, noise).tobytes() == two.step(as_laid(g), as_laid(noise)).tobytes()


def test_the_first_iterate_is_in_the_ball():
    ftrl = FTRL([3.0, 4.0], 1.0, batch_size=1, steps=1, radius=1.0)
    assert ftrl.theta.tolist() == [0.6, 0.8]
    # The regulariser is still centred at theta_0.
    assert ftrl.step(np.array([2.5, 3.5]), np.zeros(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("steps", [1, 2, 3, 6, 7])
def test_averages(steps):
    rng = np.random.default_rng(steps)
    ftrl = FTRL(rng.standard_normal(3), 0.5, batch_size=1, steps=steps)
    iterates = [ftrl.theta.copy()]  # theta_1, theta_2, ...
    np.testing.assert_array_equal(ftrl.average, iterates[0])
    np.testing.assert_array_equal(ftrl.tail_average, iterates[0])
    for t in range(1, steps + 1):
        iterates.append(ftrl.step(rng.standard_normal(3), rng.standard_normal(3)).copy())
        np.testing.assert_allclose(ftrl.average, np.mean(iterates[:t], axis=0), atol=1e-14)
        tail = iterates[steps // 2 : t]  # theta_i with i > steps // 2, i <= t
        expected = np.mean(tail, axis=0) if tail else iterates[t]
        np.testing.assert_allclose(ftrl.tail_average, expected, atol=1e-14)
    assert len(tail) == math.ceil(steps / 2)


def test_the_tail_begins_where_the_last_iterate_stands():
    ftrl = FTRL([0.0], 1.0, batch_size=1, steps=4)
    values = []
    for g in (1.0, 1.0, 1.0, 1.0):
        ftrl.step(np.array([g]), np.zeros(1))
        values.append(ftrl.tail_average[0])
    # theta_1..5 = 0, -1, -2, -3, -4: twice the last iterate, then theta_3, mean(theta_3, theta_4).
    assert values == [-1.0, -2.0, -2.0, -2.5]


def test_a_user_prox_replaces_the_threshold():
    seen = []

    def shrink(q, c):
        seen.append(c)
        return q / (1 + c)  # prox of c ||.||^2 / 2

    ftrl = FTRL([1.0, -1.0], 0.5, batch_size=1, steps=3, l1=0.2, prox=shrink)
    theta = ftrl.step(np.array([2.0, 4.0]), np.zeros(2))
    np.testing.assert_allclose(theta, np.array([0.0, -3.0]) / 1.1)
    ftrl.step(np.zeros(2), np.zeros(2))
    assert seen == pytest.approx([0.1, 0.2])

    def soft(q, c):
        return soft_threshold(q, c)

    rng = np.random.default_rng(0)
    a = FTRL(np.ones(4), 0.3, batch_size=1, steps=9, l1=0.1, radius=1.0)
    b = FTRL(np.ones(4), 0.3, batch_size=1, steps=9, l1=0.1, radius=1.0, prox=soft)
    for _ in range(9):
        g = rng.standard_normal(4)
        np.testing.assert_array_equal(a.step(g, np.zeros(4)), b.step(g, np.zeros(4)))


def test_a_prox_may_keep_its_array():
    buffer = np.zeros(2)

    def kept(q, c):
        buffer[:] = q
        return buffer

    ftrl = FTRL([0.0, 0.0], 1.0, batch_size=1, steps=2, prox=kept)
    first = ftrl.step(np.ones(2), np.zeros(2))
    buffer[:] = 99.0
    assert first.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("prox", "error", "message"),
    [
        (lambda q, c: None, TypeError, "the result of prox must be a NumPy array, got NoneType"),
        (lambda q, c: q[:1], ValueError, r"must have shape \(2,\), got \(1,\)"),
        (lambda q, c: q.astype(np.float32), TypeError, "float64, got float32"),
        (lambda q, c: 1 / 0, ZeroDivisionError, "division"),
    ],
)
def test_a_bad_prox_changes_nothing(prox, error, message):
    switch = {"bad": False}
    momentum = {"batch_size": 1, "steps": 4, "momentum": 0.9, "l1": 0.1}
    ftrl = FTRL([1.0, 2.0], 0.5, prox=lambda q, c: prox(q, c) if switch["bad"] else q, **momentum)
    twin = FTRL([1.0, 2.0], 0.5, prox=lambda q, c: q, **momentum)
    for k in range(4):
        g, b = np.array([1.0, k]), np.array([0.5, -0.5])
        switch["bad"] = True
        with pytest.raises(error, match=message):
            ftrl.step(g, b)
        switch["bad"] = False
        np.testing.assert_array_equal(ftrl.step(g, b), twin.step(g, b))
    np.testing.assert_array_equal(ftrl.tail_average, twin.tail_average)


def test_an_iterate_stays_as_it_was_and_cannot_be_written():
    ftrl = FTRL([0.0, 0.0], 1.0, batch_size=1, steps=3, radius=10.0)
    first = ftrl.step(np.ones(2), np.zeros(2))
    second = ftrl.step(np.ones(2), np.zeros(2))
    assert first.tolist() == [-1.0, -1.0] and second.tolist() == [-2.0, -2.0]
    for theta in (first, second, ftrl.theta):
        with pytest.raises(ValueError, match="read-only"):
            theta[0] = 5.0
    average = ftrl.average
    average[:] = 7.0
    assert ftrl.average.tolist() == [-0.5, -0.5]


def test_the_callers_arrays_are_neither_kept_nor_written():
    theta_0, g, b = np.array([1.0, 2.0]), np.array([3.0, 4.0]), np.array([0.5, 0.5])
    ftrl = FTRL(theta_0, 0.1, batch_size=1, steps=2, momentum=0.5)
    ftrl.step(g, b)
    assert theta_0.tolist() == [1.0, 2.0] and g.tolist() == [3.0, 4.0] and b.tolist() == [0.5, 0.5]
    theta_0[:] = g[:] = b[:] = 1e9
    twin = FTRL([1.0, 2.0], 0.1, batch_size=1, steps=2, momentum=0.5)
    twin.step(np.array([3.0, 4.0]), np.array([0.5, 0.5]))
    args = np.zeros(2), np.zeros(2)
    np.testing.assert_array_equal(ftrl.step(*args), twin.step(*args))


def test_float32_noise_is_added_in_float64():
    ftrl = FTRL([0.0], 1.0, batch_size=1, steps=1)
    noise = np.array([0.1], dtype=np.float32)
    assert ftrl.step(np.array([1e-9]), noise)[0] == -(1e-9 + float(noise[0]))


def test_values_are_never_refused():
    ftrl = FTRL([0.0], 1.0, batch_size=1, steps=2, radius=1.0, l1=0.1)
    with np.errstate(invalid="ignore"):
        ftrl.step(np.array([np.nan]), np.array([np.inf]))
    assert ftrl.t == 1


PARAMETERS = {"batch_size": 3, "steps": 9, "momentum": 0.9, "l1": 0.01, "radius": 2.0}


@pytest.mark.parametrize("at", range(10))
def test_save_and_load_at_every_step_to_the_bit(at):
    rng = np.random.default_rng(2)
    inputs = [(rng.standard_normal(4), rng.standard_normal(4)) for _ in range(9)]
    straight = FTRL(np.ones(4), 0.1, **PARAMETERS)
    first = FTRL(np.ones(4), 0.1, **PARAMETERS)
    for g, b in inputs[:at]:
        straight.step(g, b)
        first.step(g, b)
    state = first.state_dict()
    second = FTRL(np.ones(4), 0.1, **PARAMETERS)
    second.load_state_dict(state)
    for value in state.values():  # a copy was taken
        if isinstance(value, np.ndarray):
            value[:] = np.nan
    assert second.t == at
    for g, b in inputs[at:]:
        np.testing.assert_array_equal(straight.step(g, b), second.step(g, b))
    for name in ("theta", "average", "tail_average"):
        np.testing.assert_array_equal(getattr(straight, name), getattr(second, name))
    assert not second.theta.flags.writeable
    with pytest.raises(RuntimeError, match="9 declared"):
        second.step(np.zeros(4), np.zeros(4))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, ValueError, "state must have version 1, got 2"),
        ({"version": True}, ValueError, "state must have version 1, got True"),
        ({"momentum": 0.5}, ValueError, "momentum 0.9, got 0.5"),
        ({"radius": None}, ValueError, "radius 2.0, got None"),
        ({"steps": 10}, ValueError, "steps 9, got 10"),
        ({"prox": True}, ValueError, "prox False, got True"),
        ({"theta_0": np.zeros(4)}, ValueError, "theta_0 of this object, got another"),
        ({"sum": np.zeros(5)}, ValueError, r"state's sum must have shape \(4,\), got \(5,\)"),
        ({"sum": np.zeros(4, dtype=np.float32)}, TypeError, "state's sum must be of float64"),
        ({"velocity": None}, TypeError, "state's velocity must be a NumPy array, got NoneType"),
        ({"t": 10}, ValueError, r"state's t must be an integer in \[0, 9\], got 10"),
        ({"t": -1}, ValueError, "got -1"),
        ({"t": 1.0}, ValueError, "got 1.0"),
        ({"l1_weight": np.nan}, ValueError, "l1_weight must be a finite number >= 0, got nan"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, error, message):
    ftrl = FTRL(np.ones(4), 0.1, **PARAMETERS)
    ftrl.step(np.ones(4), np.ones(4))
    state = ftrl.state_dict()
    ftrl.step(np.ones(4), np.ones(4))
    before = ftrl.state_dict()
    with pytest.raises(error, match=message):
        ftrl.load_state_dict({**state, **change})
    missing = dict(state)
    del missing["sum"]
    with pytest.raises(ValueError, match="got none of sum"):
        ftrl.load_state_dict(missing)
    with pytest.raises(TypeError, match="state must be a mapping, got list"):
        ftrl.load_state_dict([])
    after = ftrl.state_dict()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_the_sum_is_in_no_repr_and_no_pickle():
    ftrl = FTRL([0.0], 1.0, batch_size=1, steps=2)
    ftrl.step(np.array([1234.5]), np.zeros(1))
    assert repr(ftrl) == "FTRL(size=1, t=1, steps=2)"
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="state_dict"):
            take(ftrl)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"theta_0": [[0.0]]}, ValueError, r"theta_0 must have shape \(p,\) .* got shape \(1, 1\)"),
        ({"theta_0": []}, ValueError, r"got shape \(0,\)"),
        ({"theta_0": [np.nan]}, ValueError, "theta_0 must be finite"),
        ({"theta_0": ["a"]}, TypeError, "theta_0 must be an array of real numbers"),
        ({"theta_0": [1j]}, TypeError, "got dtype complex128"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be a finite number > 0, got 0.0"),
        ({"learning_rate": np.nan}, ValueError, "got nan"),
        ({"learning_rate": np.inf}, ValueError, "got inf"),
        (
            {"learning_rate": "theory"},
            TypeError,
            "learning_rate must be .* > 0, got str",
        ),
        ({"batch_size": 0}, ValueError, "batch_size must be an integer >= 1, got 0"),
        ({"batch_size": 1.5}, TypeError, "batch_size must be an integer >= 1, got float"),
        ({"batch_size": True}, TypeError, "batch_size must be an integer >= 1, got bool"),
        ({"steps": -1}, ValueError, "steps must be an integer >= 1, got -1"),
        ({"momentum": 1.0}, ValueError, "momentum must be a finite number >= 0 and < 1, got 1.0"),
        ({"momentum": -0.1}, ValueError, "got -0.1"),
        ({"momentum": np.nan}, ValueError, "got nan"),
        ({"l1": -1.0}, ValueError, "l1 must be a finite number >= 0, got -1.0"),
        ({"radius": 0.0}, ValueError, "radius must be a finite number > 0, got 0.0"),
        ({"radius": np.inf}, ValueError, "got inf"),
        ({"prox": 3}, TypeError, "prox must be callable or None, got int"),
    ],
)
def test_bad_parameters(change, error, message):
    arguments = {"theta_0": [0.0], "learning_rate": 0.1, "batch_size": 1, "steps": 1} | change
    with pytest.raises(error, match=message):
        FTRL(**arguments)


@pytest.mark.parametrize(
    ("gradient_sum", "noise", "error", "message"),
    [
        ([0.0, 0.0], np.zeros(2), TypeError, "gradient_sum must be a NumPy array, got list"),
        (np.zeros(3), np.zeros(2), ValueError, r"gradient_sum must have shape \(2,\), got \(3,\)"),
        (np.zeros((2, 1)), np.zeros(2), ValueError, r"got \(2, 1\)"),
        (np.zeros(2, dtype=np.float32), np.zeros(2), TypeError, "float64, got float32"),
        (np.zeros(2), np.zeros(1), ValueError, r"noise must have shape \(2,\), got \(1,\)"),
        (np.zeros(2), np.zeros(2, dtype=int), TypeError, "noise must be of float32 or float64"),
        (np.zeros(2), 0.0, TypeError, "noise must be a NumPy array, got float"),
    ],
)
def test_a_wrong_step_changes_nothing(gradient_sum, noise, error, message):
    ftrl = FTRL([0.0, 0.0], 0.1, batch_size=1, steps=1)
    with pytest.raises(error, match=message):
        ftrl.step(gradient_sum, noise)
    assert ftrl.t == 0
    assert ftrl.step(np.ones(2), np.zeros(2)).tolist() == [-0.1, -0.1]


def test_a_step_past_the_declared_is_refused():
    ftrl = FTRL([0.0], 1.0, batch_size=1, steps=1)
    theta = ftrl.step(np.ones(1), np.zeros(1))
    with pytest.raises(RuntimeError, match="step must be one of the 1 declared, got one more"):
        ftrl.step(np.ones(1), np.zeros(1))
    assert ftrl.t == 1 and ftrl.theta is theta


VECTORS = hnp.arrays(np.float64, 5, elements=st.floats(-1e6, 1e6))
SCALES = st.floats(1e-3, 1e3)


@settings(deadline=None)
@given(x=VECTORS, y=VECTORS, c=SCALES)
def test_threshold_is_the_prox_of_the_l1_norm(x, y, c):
    a, b = soft_threshold(x, c), soft_threshold(y, c)
    assert np.linalg.norm(a - b) <= np.linalg.norm(x - y) * (1 + 1e-12) + 1e-9
    # Optimality: x - a is in c times the subdifferential of the norm at a.
    assert np.all(np.abs(x - a) <= c * (1 + 1e-9) + 1e-9)
    active = a != 0
    np.testing.assert_allclose((x - a)[active], c * np.sign(a[active]), rtol=1e-6, atol=1e-6)


@settings(deadline=None)
@given(x=VECTORS, y=VECTORS, radius=SCALES)
def test_projection_is_the_nearest_point_and_nonexpansive(x, y, radius):
    a, b = project_ball(x, radius), project_ball(y, radius)
    assert np.linalg.norm(a) <= radius * (1 + 1e-12)
    assert np.linalg.norm(a - b) <= np.linalg.norm(x - y) * (1 + 1e-9) + 1e-9
    # Subnormal numbers have fewer digits.
    np.testing.assert_allclose(project_ball(a, radius), a, rtol=1e-12, atol=1e-307)
    # Optimality: <x - a, u - a> <= 0 for every u in the ball.
    assert (x - a) @ (b - a) <= 1e-6 * (1 + np.linalg.norm(x)) * radius
    if np.linalg.norm(x) <= radius * (1 - 1e-12):
        np.testing.assert_array_equal(a, x)


def test_projection_at_the_edges_of_float64():
    np.testing.assert_allclose(
        project_ball(np.array([1e300, -1e300]), 1.0), [0.5**0.5, -(0.5**0.5)]
    )
    tiny = np.array([1e-300, 2e-300])
    np.testing.assert_array_equal(project_ball(tiny, 1.0), tiny)
    np.testing.assert_allclose(project_ball(tiny, 1e-300), np.array([1, 2]) / 5**0.5 * 1e-300)
    np.testing.assert_array_equal(project_ball(np.zeros(3), 1.0), np.zeros(3))
    assert soft_threshold(np.array([-0.0, 1.0]), 0.0).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("value", [np.nan, -1.0, np.inf])
def test_bad_threshold_and_radius(value):
    with pytest.raises(ValueError, match="c must be a finite number >= 0, got"):
        soft_threshold(np.zeros(1), value)
    for radius in (value, 0.0):
        with pytest.raises(ValueError, match="radius must be a finite number > 0, got"):
            project_ball(np.zeros(1), radius)


def bound(lam, steps, distance, gradient_norm, noise_norm):
    g = gradient_norm
    return lam / 2 * distance**2 + steps * g**2 / (2 * lam) + steps * g * noise_norm / lam


@pytest.mark.parametrize("noise_norm", [0.0, 0.3, 20.0])
def test_theory_learning_rate_minimises_the_bound(noise_norm):
    setting = (100, 2.0, 0.5, noise_norm)
    lam = 1 / theory_learning_rate(*setting)
    best = scipy.optimize.minimize_scalar(
        lambda x: bound(x, *setting), bracket=(lam / 3, lam, lam * 3)
    )
    assert best.x == pytest.approx(lam, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_regret_stays_below_the_bound(seed):
    # Linear losses <g_t, .>, |g_t| <= G: the bound holds with the noise that was drawn.
    rng = np.random.default_rng(seed)
    steps, p, size, distance, mean_noise = 400, 6, 0.5, 2.0, 0.8
    rate = theory_learning_rate(steps, distance, size, mean_noise)
    ftrl = FTRL(np.zeros(p), rate, batch_size=1, steps=steps)
    paid, total, noise_norms, previous = 0.0, np.zeros(p), 0.0, 0.0
    for _ in range(steps):
        g = rng.standard_normal(p)
        g *= size / np.linalg.norm(g)
        paid += g @ ftrl.theta
        total += g
        noise_norms += previous
        noise = rng.standard_normal(p) * mean_noise / math.sqrt(p)
        previous = float(np.linalg.norm(noise))
        ftrl.step(g, noise)
    regret = paid + distance * np.linalg.norm(total)  # against the best theta* of that norm
    assert 0 < regret <= bound(1 / rate, steps, distance, size, noise_norms / steps)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0, 1.0, 1.0), ValueError),
        ((1.5, 1.0, 1.0), TypeError),
        ((1, 0.0, 1.0), ValueError),
        ((1, np.nan, 1.0), ValueError),
        ((1, 1.0, -1.0), ValueError),
        ((1, 1.0, 1.0, -0.1), ValueError),
        ((1, 1.0, 1.0, np.inf), ValueError),
    ],
)
def test_bad_arguments_of_the_theory_rate(arguments, error):
    with pytest.raises(error, match="must be"):
        theory_learning_rate(*arguments)
