# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLLeastSquares`: that it is the engine with the parameters it was given."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

pytest.importorskip("sklearn", reason="needs the extra sklearn")

from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.glm.outlook import LearningWarning
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model.least_squares import DPFTRLLeastSquares

Array = np.ndarray[Any, np.dtype[Any]]
MARGIN = 1 - 2.0**-20


def data(n: int = 90, p: int = 4) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, p)) / np.sqrt(p)
    return X, X @ np.linspace(-1, 1, p) + 0.2


def model_of(**options: Any) -> DPFTRLLeastSquares:
    fields: dict[str, Any] = {"x_norm_bound": 1.0, "y_bound": 1.0, "batch_size": 20}
    return DPFTRLLeastSquares(**{**fields, **options})


@pytest.mark.parametrize("constant", [0.0, 0.5])
@pytest.mark.parametrize("radius", [None, 0.05])
def test_it_is_the_engine(constant: float, radius: float | None) -> None:
    X, y = data()
    plan = LeastSquaresPlan.calibrate(
        epsilon=2.0, delta=1e-6, x_norm_bound=1.0, y_bound=1.0,
        participation=acc.SinglePass(5), split=0.4, complete="all", constant=constant,
    )  # fmt: skip
    engine = LeastSquares(plan, 4, radius=radius, ridge_factor=1.5, solve_every=2, seed=1)
    for i in range(0, 90, 20):
        engine.step(Batch(X[i : i + 20], y[i : i + 20]))
    model = model_of(
        epsilon=2.0, split=0.4, complete="all", radius=radius, ridge_factor=1.5, solve_every=2,
        noise_seed=1, fit_intercept=constant > 0, intercept_scaling=constant or 1.0,
    ).fit(X, y)  # fmt: skip
    assert model.plan_ == plan
    assert model.epsilon_ == plan.epsilon(1e-6) <= 2.0
    assert model.noise_multiplier_ == plan.noise_multiplier
    assert model.sensitivity_squared_ == plan.sensitivity_squared
    assert model.solves_ == engine.solves
    assert (model.n_steps_, model.n_iter_, model.reproducible_) == (5, 1, True)
    for suffix, theta in (("", engine.last), ("average_", engine.average), ("tail_", engine.tail)):
        coef, intercept = getattr(model, f"coef_{suffix}"), getattr(model, f"intercept_{suffix}")
        assert np.array_equal(coef, theta[0, :4])
        expected = theta[0, 4] * constant * MARGIN if constant else 0.0
        assert intercept == pytest.approx(expected, rel=1e-15)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)


def test_an_intercept_is_found() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (20_000, 2))
    y = X @ [0.3, -0.2] + 0.4
    model = DPFTRLLeastSquares(x_norm_bound=1.5, y_bound=1.0, noise_seed=0).fit(X, y)
    assert model.intercept_ == pytest.approx(0.4, abs=0.02)
    assert model.score(X, y) > 0.98


def test_noise_first() -> None:
    X, y = data()
    model = model_of(epsilon=None, noise_multiplier=7.0).fit(X, y)
    plan = LeastSquaresPlan(1.0, 1.0, 7.0, acc.SinglePass(5), constant=1.0)
    assert model.plan_ == plan
    assert model.epsilon_ == plan.epsilon(1e-6)
    assert not model.reproducible_


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_a_stream_gives_the_models_of_a_fit(kind: str) -> None:
    X, y = data()
    rows = scipy.sparse.csr_array(X) if kind == "csr" else X
    whole = model_of(noise_seed=3, solve_every=1).fit(rows, y)
    stream = model_of(noise_seed=3, horizon=90)
    for i in range(0, 90, 20):
        stream.partial_fit(rows[i : i + 20], y[i : i + 20])
        assert stream.solves_ == whole.solves_[: i // 20 + 1]
    assert np.array_equal(stream.coef_, whole.coef_)
    assert stream.intercept_ == whole.intercept_
    np.testing.assert_array_equal(stream.coef_tail_, whole.coef_tail_)


def test_models_between_the_steps_of_a_stream_are_a_right_not_a_duty() -> None:
    X, y = data(80)
    model = model_of(noise_seed=3, horizon=80, solve_every=3)
    steps = []
    for i in range(0, 80, 20):
        model.partial_fit(X[i : i + 20], y[i : i + 20])
        steps.append([solve.step for solve in model.solves_])
    assert steps == [[], [], [3], [3, 4]]


def test_regret_is_half_the_squared_error_per_row() -> None:
    X, y = data()
    y = np.clip(y, -1, 1)
    model = model_of(noise_seed=0, compute_regret=True, fit_intercept=False).fit(X, y)
    path = model_of(noise_seed=0, horizon=90, fit_intercept=False)
    loss, theta = 0.0, np.zeros(4)
    for i in range(0, 90, 20):
        part = slice(i, i + 20)
        loss += float(np.sum((y[part] - X[part] @ theta) ** 2))
        theta = path.partial_fit(X[part], y[part]).coef_
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    expected = (loss - float(np.sum((y - X @ best) ** 2))) / 2 / 90
    assert model.regret_ == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"x_norm_bound": None}, "x_norm_bound must be given, got None"),
        ({"y_bound": None}, "y_bound must be given, got None: .* learned from the rows"),
        ({"split": 1.5}, "split must be a finite number > 0 and < 1, got 1.5"),
        ({"ridge_factor": 0.0}, "ridge_factor must be a finite number > 0"),
        ({"solver": "lu"}, "solver must be"),
        ({"solve_every": 0}, "solve_every must be an integer >= 1"),
        ({"complete": True}, 'complete must be False, "all" or "auto", got True'),
        ({"epsilon": None, "noise_multiplier": 9.0, "delta": 1e-17}, "delta must be above"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_is_fitted(
    options: dict[str, Any], word: str
) -> None:
    X, y = data()
    model = model_of(**options)
    with pytest.raises(ValueError, match=word):
        model.fit(X, y)
    assert not hasattr(model, "coef_")


# ---- Warnings before the fit ----


def warned(X: Array, y: Array, *, stream: bool = False, **options: Any) -> list[str]:
    """Return the warnings of a fit, as texts."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        model = model_of(batch_size="auto", **options)
        model.partial_fit(X, y) if stream else model.fit(X, y)
    assert all(isinstance(one.message, LearningWarning) for one in found)
    assert all(one.filename == __file__ for one in found)
    return [str(one.message) for one in found]


@pytest.mark.parametrize("stream", [False, True])
def test_noise_that_leaves_nothing_is_warned_of(stream: bool) -> None:
    X, y = data(90)
    options: dict[str, Any] = {"stream": stream, "horizon": 90} if stream else {}
    (text,) = warned(X, y, epsilon=0.3, **options)
    assert text.startswith("this model may not learn: the noise in the sum of x x^T needs a ridge")
    assert warned(X, y, epsilon=100.0, **options) == []
    groups = np.arange(90) // 3
    if not stream:
        # Thirty users have a third of the rows' weight.
        assert float(warned_ratio(X, y, groups)) == pytest.approx(3 * warned_ratio(X, y), rel=0.05)


def warned_ratio(X: Array, y: Array, groups: Any = None) -> float:
    with pytest.warns(LearningWarning, match="needs a ridge of") as found:
        model_of(batch_size="auto", noise_multiplier=10.0, epsilon=None).fit(X, y, groups=groups)
    return float(str(found[0].message).split("a ridge of ")[1].split()[0])


def test_the_warning_does_not_depend_on_the_values_of_rows() -> None:
    X, y = data(90)
    other, far = X.copy(), y.copy()
    other[7], far[7] = 1e30, -1e30
    zero = X.copy()
    zero[:] = 0.0
    texts = {tuple(warned(rows, ys, epsilon=0.3)) for rows, ys in ((X, y), (other, far), (zero, y))}
    assert len(texts) == 1
