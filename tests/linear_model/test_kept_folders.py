# SPDX-License-Identifier: Apache-2.0
"""Folders of streams: secrets, copies and other streams; neighbouring rows."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_cases import first_of, learned, make, rows
from kept_cases import assert_same, every, feed

from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.linear_model._stream_state import check_plan, check_version

pytestmark = pytest.mark.filterwarnings("ignore::dpftrl_fast.convex.glm.outlook.LearningWarning")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


# ---- Folders ----


def test_the_folder_is_a_secret_and_open_once(tmp_path: Path) -> None:
    X, y = rows(DPFTRLRegressor)
    folder = tmp_path / "stream"
    model, other = make(DPFTRLRegressor, horizon=60), make(DPFTRLRegressor, horizon=60)
    with model.keep_stream(folder) as stream:
        model.partial_fit(X[:10], y[:10])
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
        with pytest.raises(RuntimeError, match="in use by another run"):
            other.keep_stream(folder)
        with pytest.raises(ValueError, match="keep_stream must come before the first call"):
            model.keep_stream(tmp_path / "second")
        key = model._stream.run._noise._key
        assert key.hex() not in repr(stream) and not hasattr(other, "coef_")
    with pytest.raises(RuntimeError, match="was closed: call keep_stream again"):
        model.partial_fit(X[10:20], y[10:20])
    with other.keep_stream(folder):
        assert_same(other, model)
    folder.chmod(0o750)
    with pytest.raises(PermissionError, match="must have mode 0700"):
        make(DPFTRLRegressor, horizon=60).keep_stream(folder)


@every
def test_a_copied_folder_is_refused_or_has_no_epsilon(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    with model.keep_stream(tmp_path / "stream"):
        model.partial_fit(X[:10], y[:10], **first_of(cls))
    shutil.copytree(tmp_path / "stream", tmp_path / "copy")
    fork = make(cls, horizon=60)
    with pytest.raises(ValueError, match="was copied"):
        fork.keep_stream(tmp_path / "copy")
    assert learned(fork) == set()
    with fork.keep_stream(tmp_path / "copy", allow_fork=True) as stream:
        assert stream.forked and "forked" in repr(stream) and stream.position == 10
        assert_same(fork, model, but=("epsilon_",))
        for call in (lambda: None, lambda: fork.partial_fit(X[10:20], y[10:20])):
            call()
            assert fork.epsilon_ == np.inf
            with pytest.raises(ValueError, match="no epsilon can be stated"):
                fork.guarantee  # noqa: B018
    again = make(cls, horizon=60)
    with again.keep_stream(tmp_path / "copy"):  # it says so for good
        assert again.epsilon_ == np.inf
    with model.keep_stream(tmp_path / "stream"):
        assert model.epsilon_ < 2 and model.guarantee is not None


OTHER: dict[str, Any] = {
    "horizon": 70,
    "epsilon": 2.0,
    "batch_size": 20,
    "x_norm_bound": 2.0,
    "y_bound": (-1.0, 2.0),
    "fit_intercept": False,
    "mechanism": "tree",
    "average": "all",
    "noise_seed": 3,
}


@pytest.mark.parametrize("name", OTHER)
def test_other_parameters_are_refused(tmp_path: Path, name: str) -> None:
    with make(DPFTRLRegressor, horizon=60).keep_stream(tmp_path / "stream"):
        pass
    shown = "reproducible" if name == "noise_seed" else name
    with pytest.raises(ValueError, match=f"of another run: they differ in {shown}; {shown}"):
        make(DPFTRLRegressor, **{"horizon": 60, name: OTHER[name]}).keep_stream(tmp_path / "stream")


@every
def test_parameters_that_change_later_are_refused(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    with model.keep_stream(tmp_path / "stream"):
        model.set_params(epsilon=2.0, threads=1)
        with pytest.raises(ValueError, match=r"with which keep_stream was called.* epsilon$"):
            model.partial_fit(X[:10], y[:10], **first_of(cls))
        model.set_params(epsilon=1.0)
        assert model.partial_fit(X[:10], y[:10], **first_of(cls)).n_steps_ == 1


def test_another_estimator_is_refused(tmp_path: Path) -> None:
    with make(DPFTRLRegressor, horizon=60).keep_stream(tmp_path / "stream"):
        pass
    for cls in (DPFTRLClassifier, DPFTRLLeastSquares):
        with pytest.raises(ValueError, match=r"they differ in .*estimator"):
            make(cls, horizon=60).keep_stream(tmp_path / "stream")


def test_what_models_do_not_depend_on_may_change(tmp_path: Path) -> None:
    X, y = rows(DPFTRLLeastSquares)
    new = partial(make, DPFTRLLeastSquares, horizon=60, noise_seed=3)
    others: list[dict[str, Any]] = [
        {"memory": "regenerate", "threads": 1},
        {"memory": 2, "verbose": 1},
        {"memory": "stored", "random_state": 5},
    ]
    for k, more in enumerate(others):
        model = new(**more)
        with model.keep_stream(tmp_path / "stream") as stream:
            feed(model, X, y, stream.position, 20, 20 * k + 1)
    expected = new()
    feed(expected, X, y, 0)
    assert_same(model, expected)


def test_another_plan_or_version_is_refused() -> None:
    X, y = rows(DPFTRLRegressor)
    plan = make(DPFTRLRegressor, horizon=60).partial_fit(X[:10], y[:10]).plan_
    check_plan({"plan": plan.to_dict(), "library": "0.0"}, plan)
    other = {**plan.to_dict(), "noise_multiplier": plan.noise_multiplier * (1 + 2**-52)}
    with pytest.raises(ValueError, match=r"made by version 0\.0 of dpftrl_fast, got another"):
        check_plan({"plan": other, "library": "0.0"}, plan)
    for version in (1, 2):
        check_version({"version": version})
    for version in (3, None, True, "1"):
        with pytest.raises(ValueError, match="must have version 1 or 2, got"):
            check_version({"version": version})


def test_a_wrong_parameter_claims_no_folder(tmp_path: Path) -> None:
    for options, word in (
        ({"horizon": None}, "horizon must be given"),
        ({"horizon": 5}, "batch_size must be at most the horizon"),
        ({"horizon": 60, "epochs": 2}, "epochs must be 1"),
        ({"horizon": 60, "clip_norm": -1}, "clip_norm must be"),
    ):
        with pytest.raises(ValueError, match=word):
            make(DPFTRLRegressor, **options).keep_stream(tmp_path / "stream")
    with pytest.raises(ValueError, match="checkpoint_every must be"):
        make(DPFTRLRegressor, horizon=60).keep_stream(tmp_path / "stream", checkpoint_every=0)
    assert not (tmp_path / "stream").exists()
    X, y = rows(DPFTRLRegressor)
    fitted = make(DPFTRLRegressor, horizon=60).fit(X, y)
    with pytest.raises(ValueError, match="all 6 declared steps are taken"):
        fitted.keep_stream(tmp_path / "stream")
    begun = make(DPFTRLRegressor, horizon=60).partial_fit(X[:10], y[:10])
    with pytest.raises(ValueError, match="before the first call"):
        begun.keep_stream(tmp_path / "stream")
    assert begun.partial_fit(X[10:20], y[10:20]).n_steps_ == 2


@every
def test_pickles_and_copies_have_no_folder_and_may_resume_from_it(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    with model.keep_stream(tmp_path / "stream") as stream:
        model.partial_fit(X[:10], y[:10], **first_of(cls))
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(stream)
        copies = [copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    for other in copies:
        assert "_journal" not in vars(other)
        with pytest.raises(ValueError, match="cannot continue"):
            other.partial_fit(X[10:20], y[10:20])
    with copies[-1].keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 10
        assert copies[-1].partial_fit(X[10:20], y[10:20]).n_steps_ == 2


# ---- Neighbours and slots ----


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Give the un-noised sums that are written ahead."""
    found: list[Any] = []
    write_ahead = StreamJournal.write_ahead

    def recorded(self: StreamJournal, step: int, parts: Any) -> None:
        found.append([np.array(part) for part in parts])
        write_ahead(self, step, parts)

    monkeypatch.setattr(StreamJournal, "write_ahead", recorded)
    yield found


def upper_norm(packed: Any) -> float:
    """Frobenius norm of the symmetric matrix whose upper triangle this is."""
    p = int((np.sqrt(8 * packed.size + 1) - 1) / 2)
    upper = np.zeros((p, p))
    upper[np.triu_indices(p)] = packed
    return float(np.linalg.norm(upper + np.triu(upper, 1).T))


@every
@pytest.mark.parametrize("users", [False, True])
def test_a_row_moves_a_sum_by_at_most_what_the_plan_says(
    tmp_path: Path, cls: Any, users: bool, sums: list[Any]
) -> None:
    X, y = rows(cls, n=10)
    more: dict[str, Any] = {"groups": np.arange(10)} if users else {}
    public, moved = set(), 0.0
    for k, value in enumerate([None, 0.0, 1e300, np.nan, np.inf, -1e3]):
        data = X.copy()
        if value is not None:
            data[4] = value
        if value == 0.0:
            data[4] = np.nan  # counts as zero
        model = make(cls, horizon=20, noise_seed=3)
        with model.keep_stream(tmp_path / f"stream{k}") as stream:
            model.partial_fit(data, y, **more, **first_of(cls))
            files = [(p.name, p.stat().st_size) for p in (tmp_path / f"stream{k}").iterdir()]
            names = tuple(sorted(learned(model)))
            public.add((stream.position, model.n_steps_, names, tuple(sorted(files))))
        change = [a - b for a, b in zip(sums[-1], sums[0], strict=True)]
        twice = 2.0 if value is not None and np.isfinite(value) and value != 0.0 else 1.0
        if cls is DPFTRLLeastSquares:
            bias, packed = change[-2:]
            assert np.linalg.norm(bias) <= twice * model.plan_.bias.clip_norm
            assert upper_norm(packed) <= twice * model.plan_.covariance.clip_norm
        else:
            assert np.linalg.norm(change[-1]) <= twice * model.plan_.clip_norm
        moved = max(moved, float(np.linalg.norm(change[-1])))
    assert len(public) == 1 and moved > 1e-3


@every
def test_bad_rows_keep_their_slot(tmp_path: Path, cls: Any, sums: list[Any]) -> None:
    X, y = rows(cls, n=40)
    bad = X.copy()
    bad[[3, 17, 18]] = np.array([np.nan, np.inf, -np.inf])[:, np.newaxis]
    zero = {"sample_weight": np.ones(40)}
    zero["sample_weight"][[3, 17, 18]] = 0.0
    models = []
    for name, data, more in (("bad", bad, {}), ("zero", X, zero)):
        model = make(cls, horizon=40, noise_seed=3)
        with model.keep_stream(tmp_path / name):
            feed(model, data, y, 0, 7, **more)
        models.append(model)
    for a, b in zip(sums[:4], sums[4:], strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)
    assert models[0].n_steps_ == models[1].n_steps_ == 4
