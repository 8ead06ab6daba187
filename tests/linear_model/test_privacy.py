# SPDX-License-Identifier: Apache-2.0
"""What never leaves a private estimator: keys, sums, and what is computed from raw rows."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import pickletools
from collections.abc import Iterator
from typing import Any

import joblib
import numpy as np
import pytest
from estimator_cases import CLASSES, NAMES, first_of, make, recorded_noises, rows, stream
from sklearn.base import clone
from sklearn.utils import estimator_html_repr

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares
from dpftrl_fast.plan.planned_noise import PlannedNoise

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)


@pytest.fixture
def noises() -> Iterator[list[PlannedNoise]]:
    with recorded_noises() as made:
        yield made


# ---- Secrets: keys and sums stay in the object that has them ----


def secrets_of(model: Any, noises: list[PlannedNoise]) -> dict[str, bytes]:
    """Return what must not leave a model in the middle of a stream, as bytes."""
    found: dict[str, bytes] = {}
    for number, noise in enumerate(noises):
        found[f"key {number}"] = noise._key
    run = model._stream.run
    if isinstance(model, DPFTRLLeastSquares):
        found["bias"], found["covariance"] = run._bias.tobytes(), run._total.tobytes()
    else:
        found["sum"] = run._ftrl.state_dict()["sum"].tobytes()
    assert all(len(value) >= 8 and any(value) for value in found.values())
    return found


def texts_of(model: Any) -> str:
    return "\n".join(
        [repr(model), str(model), estimator_html_repr(model), repr(model.get_params())]
        + [repr(value) for value in vars(model).values()]
        + [model.plan_.describe(model.delta_), repr(model.plan_.to_dict())]
    )


def numbers_in(data: bytes) -> Iterator[Any]:
    """Return the strings of bytes that a pickle holds."""
    for _, argument, _ in pickletools.genops(data):
        if isinstance(argument, bytes | bytearray | str):
            yield (
                argument if not isinstance(argument, str) else argument.encode("latin-1", "replace")
            )


@every
def test_no_key_and_no_sum_leaves(cls: Any, noises: list[PlannedNoise]) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    for start in range(0, 30, 10):
        part = slice(start, start + 10)
        model.partial_fit(X[part], y[part], **(first_of(cls) if start == 0 else {}))
    assert len(noises) == 1 + (cls is DPFTRLLeastSquares)
    assert not any(noise.reproducible for noise in noises) and not model.reproducible_
    secrets = secrets_of(model, noises)
    keys = [value for name, value in secrets.items() if name.startswith("key")]
    assert len(set(keys)) == len(keys)
    text = texts_of(model)
    for key in keys:
        for form in (key.hex(), repr(key), str(int.from_bytes(key, "little")), str(list(key))):
            assert form not in text
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(model, protocol)
        held = b"\n".join([data, *numbers_in(data)])
        for name, value in secrets.items():
            assert value not in held, name
    buffer = io.BytesIO()
    joblib.dump(model, buffer)
    for name, value in secrets.items():
        assert value not in buffer.getvalue(), name


@every
def test_a_copy_is_a_model_and_no_stream(cls: Any) -> None:
    X, y = rows(cls)
    model, plain = (make(cls, horizon=60, noise_seed=3) for _ in range(2))
    expected = stream(plain, X, y, **first_of(cls))
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(other.predict(X), model.predict(X))
        assert vars(other).keys() == vars(model).keys() - {"_stream", "_turn"}
        with pytest.raises(ValueError, match=r"step 1 of 6.*key"):
            other.partial_fit(X[10:20], y[10:20])
        assert other.fit(X, y).n_steps_ == 6  # another run
    assert not hasattr(clone(model), "coef_")
    rest = stream(model, X, y)
    np.testing.assert_array_equal(rest, expected[1:])  # copying took nothing from it


@pytest.mark.usefixtures("fine_grid")
@every
def test_keys_come_from_the_system(cls: Any, noises: list[PlannedNoise]) -> None:
    X, y = rows(cls)
    model = make(cls, random_state=0) if "random_state" in make(cls).get_params() else make(cls)
    found = []
    for _ in range(3):  # the same object, fitted again
        found.append(model.fit(X, y).coef_)
        assert not model.reproducible_
    np.random.seed(0)  # noqa: NPY002 - what some fits would take their randomness from
    found.append(model.fit(X, y).coef_)
    np.random.seed(0)  # noqa: NPY002 - what some fits would take their randomness from
    found.append(copy.deepcopy(model).fit(X, y).coef_)
    for one, other in itertools.combinations(found, 2):
        assert np.all(one != other)
    keys = [noise._key for noise in noises]
    assert len(set(keys)) == len(keys)


@every
def test_a_seed_marks_what_it_makes(cls: Any) -> None:
    X, y = rows(cls)
    for seed in (7, b"seven", np.int64(7)):
        one, other = (make(cls, noise_seed=seed).fit(X, y) for _ in range(2))
        assert one.reproducible_ and other.reproducible_
        np.testing.assert_array_equal(one.coef_, other.coef_)
        assert pickle.loads(pickle.dumps(one)).reproducible_
    assert np.any(make(cls, noise_seed=8).fit(X, y).coef_ != one.coef_)
    model = make(cls, horizon=60, noise_seed=7)
    stream(model, X, y, **first_of(cls))
    assert model.reproducible_
    assert not make(cls).fit(X, y).reproducible_


# ---- What is computed from raw rows is off by default, and in no model file ----


@every
def test_regret_is_on_request_and_in_no_pickle(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, mechanism="tree").fit(X, y)
    assert not hasattr(model, "regret_")
    model.set_params(compute_regret=True, noise_seed=1).fit(X, y)
    assert np.isfinite(model.regret_)
    other = make(cls, noise_seed=1, mechanism="tree").fit(X, y)
    np.testing.assert_array_equal(model.coef_, other.coef_)
    assert not hasattr(pickle.loads(pickle.dumps(model)), "regret_")
    assert not hasattr(copy.deepcopy(model), "regret_")
    model.set_params(compute_regret=False).fit(X, y)
    assert not hasattr(model, "regret_")  # nor one of an earlier run


@every
def test_a_clipping_report_is_asked_for_and_says_that_it_is_not_private(cls: Any) -> None:
    X, y = rows(cls)
    X[:5] *= 50.0 / np.linalg.norm(X[:5], axis=1, keepdims=True)
    X[7, 0] = np.nan
    model = make(cls)
    before = dict(vars(model))
    report = model.clipping_report(X, y)
    assert vars(model) == before
    assert report["private"] is False
    assert (report["rows"], report["invalid_rows"]) == (60, 1)
    assert report["rows_beyond_x_norm_bound"] == 5
    if cls is not DPFTRLClassifier:
        assert model.set_params(y_bound=0.1).clipping_report(X, y)["targets_beyond_y_bound"] == int(
            np.sum(np.abs(np.delete(y, 7)) > 0.1)
        )


@every
def test_a_fit_says_nothing(cls: Any, capfd: pytest.CaptureFixture[str]) -> None:
    X, y = rows(cls)
    make(cls).fit(X, y)
    assert capfd.readouterr() == ("", "")
    if "verbose" in make(cls).get_params():
        texts = []
        for values in (X, X[::-1] * 1e9):
            make(cls, verbose=1, **first_of(cls)).fit(values, y)
            texts.append(capfd.readouterr())
        assert texts[0] == texts[1]  # public facts only
        assert "step" in texts[0].out
