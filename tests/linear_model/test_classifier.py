# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLClassifier`: two classes and more, labels of all kinds, probabilities, streams."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse
from gradient_oracle import oracle
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from dpftrl_fast import reference
from dpftrl_fast.linear_model import DPFTRLClassifier


def problem(classes, n=20_000, p=5, seed=0):
    """Rows of norm at most 1, and labels 0, .., classes - 1 by softmax draws."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    X /= np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1.0)
    z = X @ (6 * rng.standard_normal((p, classes))) + rng.gumbel(size=(n, classes))
    return X, np.argmax(z, axis=1)


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "hinge"])
@pytest.mark.parametrize("classes", [2, 4])
def test_labels_are_learned(classes, loss):
    X, y = problem(classes)
    best = LogisticRegression(C=np.inf).fit(X, y).score(X, y)
    model = DPFTRLClassifier(10.0, loss=loss, x_norm_bound=1.0, learning_rate=8.0, epochs=2)
    assert model.fit(X, y).score(X, y) > best - 0.02
    assert model.epsilon_ <= 10.0
    assert model.coef_.shape == ((1, 5) if classes == 2 else (classes, 5))


def test_probabilities_are_those_of_the_labels():
    for classes in (2, 4):
        X, y = problem(classes)
        model = DPFTRLClassifier(20.0, x_norm_bound=1.0, learning_rate=8.0, epochs=4).fit(X, y)
        best = LogisticRegression(C=np.inf).fit(X, y)
        got, wanted = (log_loss(y, m.predict_proba(X)) for m in (model, best))
        assert wanted - 1e-6 < got < wanted + 0.03


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("users", [False, True])
def test_the_first_step_is_the_definitions(sparse, users):
    X, y = problem(3, n=60)
    model = DPFTRLClassifier(
        None, noise_multiplier=0.7, batch_size=20 if users else 60, clip_norm=0.2,
        learning_rate=0.5, epochs=1, x_norm_bound=0.8, intercept_scaling=0.3, noise_seed=9,
        mechanism="tree",
    )  # fmt: skip
    rows = scipy.sparse.csr_array(X) if sparse else X
    model.fit(rows, y, groups=np.repeat(np.arange(20), 3) if users else None)
    noise = reference.TreeNoise(18, 0.2 * 0.7, seed=9, dtype="float64").step().reshape(3, 6)
    starts = np.arange(0, 61, 3) if users else None
    total = oracle(
        X, y, np.zeros((3, 6)), 0.2, "multinomial", row_bound=0.8, constant=0.3, starts=starts
    )
    theta = -0.5 * (total + noise) / model.batch_size
    np.testing.assert_allclose(model.coef_last_, theta[:, :-1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(model.intercept_last_, 0.3 * theta[:, -1], rtol=1e-9, atol=1e-12)


def test_one_tree_is_over_all_classes():
    X, y = problem(4, n=500)
    model = DPFTRLClassifier(batch_size=50, x_norm_bound=1.0, horizon=500, classes=[0, 1, 2, 3])
    model.partial_fit(X[:50], y[:50])
    assert model._stream.run._noise.size == 4 * 6


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["no", "perhaps", "yes"]),
        np.array(["no", "perhaps", "yes"], dtype=object),
        np.array([-1, 0, 7]),
        np.array([-1.0, 0.0, 7.0]),
        np.array([1, 2, 3], dtype=np.uint8),
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_of_all_kinds_make_the_same_model(labels):
    X, y = problem(3, n=600)
    options = {"batch_size": 50, "x_norm_bound": 1.0, "noise_seed": 1}
    plain = DPFTRLClassifier(**options).fit(X, y)
    model = DPFTRLClassifier(**options).fit(X, labels[y])
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.predict(X), labels[plain.predict(X)])
    declared = DPFTRLClassifier(**options, classes=labels[::-1]).fit(X, labels[y])
    np.testing.assert_array_equal(declared.coef_, plain.coef_)


def test_declared_classes_may_lack_from_the_rows():
    X, y = problem(2, n=200)
    options = {"batch_size": 20, "x_norm_bound": 1.0}
    model = DPFTRLClassifier(**options, classes=[0, 1, 2]).fit(X, y)
    assert model.coef_.shape == (3, 5) and model.predict_proba(X).shape == (200, 3)
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)))
    far = model.predict_log_proba(1e4 * X)
    assert np.all(np.isfinite(far)) and np.any(np.exp(far) == 0.0)
    one = DPFTRLClassifier(**options, classes=[0, 1]).fit(X, np.ones(200, dtype=int))
    assert one.predict(X).shape == (200,)
    with pytest.raises(ValueError, match="at least 2 classes, got 1 class"):
        DPFTRLClassifier(**options).fit(X, np.ones(200, dtype=int))


def test_hinge_has_no_probabilities():
    model = DPFTRLClassifier(loss="hinge")
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError):
        model.predict_proba([[1.0]])


def test_two_classes_by_their_sign():
    X, y = problem(2, n=2000)
    model = DPFTRLClassifier(x_norm_bound=1.0).fit(X, y)
    z = model.decision_function(X)
    assert z.shape == (2000,)
    np.testing.assert_array_equal(model.predict(X), (z > 0).astype(int))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-z)), rtol=1e-6)
    near = {"rtol": 1e-7, "atol": 1e-15}  # log(1 - 1e-11) has few digits
    np.testing.assert_allclose(model.predict_log_proba(X), np.log(model.predict_proba(X)), **near)


def test_l1_and_ball_over_all_classes():
    X, y = problem(4, n=4000)
    noisy = np.column_stack([X, np.zeros((4000, 40))])
    model = DPFTRLClassifier(
        2.0, x_norm_bound=1.0, l1=0.01, radius=0.7, learning_rate=10.0, average="last"
    ).fit(noisy, y)
    norm = np.sqrt(np.sum(model.coef_**2) + np.sum(model.intercept_**2))
    assert norm <= 0.7 + 1e-6
    assert 0.5 < model.sparsity_ == np.mean(model.coef_ == 0.0)


def test_labels_that_are_not_declared_are_announced():
    X, y = problem(2, n=200)
    with pytest.warns(UserWarning, match="classes is not given: the labels that occur") as seen:
        DPFTRLClassifier(x_norm_bound=1.0).fit(X, y)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPFTRLClassifier(100.0, x_norm_bound=1.0, classes=[0, 1]).fit(X, y)


def test_probabilities_of_many_rows_are_calibrated():
    """Labels are clipped only as far as the noise asks for; many rows ask for nothing."""
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (100_000, 4))
    truth = 1 / (1 + np.exp(-(X @ [2.0, -1.0, 0.5, 0.0] + 0.3)))
    y = (rng.uniform(size=len(X)) < truth).astype(int)
    model = DPFTRLClassifier(1.0, x_norm_bound=2.0, classes=[0, 1], noise_seed=0).fit(X, y)
    found = model.predict_proba(X)[:, 1]
    assert np.abs(found - truth).mean() < 0.02
    for low in np.arange(0.1, 0.9, 0.1):
        inside = (found > low) & (found <= low + 0.1)
        assert abs(y[inside].mean() - found[inside].mean()) < 0.04
    clipped = DPFTRLClassifier(1.0, x_norm_bound=2.0, classes=[0, 1], clip_norm=0.2).fit(X, y)
    assert np.abs(clipped.predict_proba(X)[:, 1] - truth).mean() > 0.1
