# SPDX-License-Identifier: Apache-2.0
"""Streams in a folder: a resumed one is a stream that nothing stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from estimator_cases import first_of, make, rows
from kept_cases import assert_same, every, feed, interrupted, kill

from dpftrl_fast import mechanisms
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.run import Diverged

pytestmark = pytest.mark.filterwarnings("ignore::dpftrl_fast.convex.glm.outlook.LearningWarning")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def resumed_at_every_call(new: Callable[[], Any], folder: Path, X: Any, y: Any, **more: Any) -> Any:
    """Return the model of a stream whose process ends after every call."""
    for calls in range(100):
        model = new()
        stream = model.keep_stream(folder)
        assert calls == 0 or model.n_steps_ == -(-stream.position // model.batch_size)
        if stream.closed:
            assert stream.position == len(y) and calls > 3
            return model
        start = stream.position
        feed(model, X, y, start, stop=start + 1, **more)
        kill(stream) if calls % 2 else stream.close()
    raise AssertionError("no end")


CASES: dict[str, Any] = {
    "least squares": (DPFTRLLeastSquares, {}),
    "least squares, regenerated": (DPFTRLLeastSquares, {"memory": "regenerate"}),
    "least squares, two vectors, tree": (DPFTRLLeastSquares, {"memory": 2, "mechanism": "tree"}),
    "least squares, completed": (DPFTRLLeastSquares, {"complete": "all", "variant": "vanilla"}),
    "least squares, few models": (DPFTRLLeastSquares, {"solve_every": 3, "average": "tail"}),
    "least squares, intervals": (DPFTRLLeastSquares, {"intervals": True}),
    "least squares, ball": (DPFTRLLeastSquares, {"radius": 0.5, "compute_regret": True}),
    "least squares, gradients": (DPFTRLLeastSquares, {"solver": "cg", "average": "all"}),
    "regressor": (DPFTRLRegressor, {}),
    "regressor, momentum and l1": (DPFTRLRegressor, {"momentum": 0.9, "l1": 1e-3, "radius": 1.0}),
    "regressor, trees": (DPFTRLRegressor, {"restart_every": 2, "complete": True}),
    "regressor, vanilla": (DPFTRLRegressor, {"mechanism": "tree", "variant": "vanilla"}),
    "regressor, banded": (
        DPFTRLRegressor,
        {"mechanism": mechanisms.BandedToeplitz([1.0, 0.5, 0.25])},
    ),
    "classifier": (DPFTRLClassifier, {}),
    "classifier, weights of classes": (DPFTRLClassifier, {"class_weight": {0: 1.0, 1: 2.0}}),
}


@pytest.mark.parametrize(("cls", "options"), CASES.values(), ids=CASES.keys())
def test_a_resumed_stream_is_one_that_nothing_stopped(
    tmp_path: Path, cls: Any, options: Any
) -> None:
    X, y = rows(cls, n=67)
    new = partial(make, cls, horizon=67, noise_seed=3, **options)
    expected = new()
    feed(expected, X, y, 0)
    assert_same(resumed_at_every_call(new, tmp_path / "stream", X, y), expected)


@every
@pytest.mark.parametrize("kind", ["sparse", "float32", "frame", "weights"])
def test_rows_of_all_kinds(tmp_path: Path, cls: Any, kind: str) -> None:
    X, y = rows(cls, n=40)
    new = partial(make, cls, horizon=40, noise_seed=3)
    more = {"sample_weight": np.linspace(0, 1, 40)} if kind == "weights" else {}
    data: Any = {
        "sparse": scipy.sparse.csr_array(X),
        "float32": X.astype(np.float32),
        "frame": pd.DataFrame(X, columns=["a", "b", "c"]),
        "weights": X,
    }[kind]
    expected = new()
    feed(expected, data, y, 0, **more)
    found = resumed_at_every_call(new, tmp_path / "stream", data, y, **more)
    assert_same(found, expected)
    if kind == "frame":
        assert found.feature_names_in_.tolist() == ["a", "b", "c"]


LABELS: dict[str, list[Any]] = {
    "numbers": [1.5, 2.5, 3.5],
    "bool": [False, True],
    "text": ["a", "b", "\udcff"],
    "bytes": [b"a", b"b"],
}


@pytest.mark.parametrize("kind", [*LABELS, "objects", "StringDType"])
@pytest.mark.parametrize("declared", [True, False])
def test_classes_of_all_kinds_are_in_the_folder(tmp_path: Path, kind: str, declared: bool) -> None:
    X, _ = rows(DPFTRLClassifier, n=40)
    classes = np.array(LABELS.get(kind, ["a", "b", "c"]))
    if kind == "objects":
        classes = classes.astype(object)
    elif kind == "StringDType":
        classes = classes.astype(np.dtypes.StringDType())
    y = classes[np.arange(40) % len(classes)]
    options = {"classes": classes} if declared else {}
    new = partial(make, DPFTRLClassifier, horizon=40, noise_seed=3, **options)
    first = {} if declared else {"classes": classes}
    expected = new().partial_fit(X[:20], y[:20], **first).partial_fit(X[20:], y[20:])
    with new().keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 0
    model = new()
    with model.keep_stream(tmp_path / "stream"):
        model.partial_fit(X[:20], y[:20], **first)
    model = new()
    with model.keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 20
        assert model.classes_.dtype == expected.classes_.dtype
        model.partial_fit(X[20:], y[20:])
    assert_same(model, expected)


def test_several_targets(tmp_path: Path) -> None:
    X, y = rows(DPFTRLLeastSquares, n=40)
    both = np.stack([y, 3 * y[::-1]], axis=1)
    bounds = [1.0, (-4.0, 3.0)]
    new = partial(make, DPFTRLLeastSquares, horizon=40, noise_seed=3, y_bound=bounds)
    expected = new()
    feed(expected, X, both, 0)
    assert_same(resumed_at_every_call(new, tmp_path / "stream", X, both), expected)


@every
def test_a_fresh_key_lives_in_the_folder(tmp_path: Path, cls: Any) -> None:
    """Without a seed, the steps that are repeated have the bits that were released before."""
    X, y = rows(cls)
    model = make(cls, horizon=60)
    stream = model.keep_stream(tmp_path / "stream", checkpoint_every=100)
    path = []
    for at in range(0, 40, 10):
        feed(model, X, y, at, 10, at + 1)
        path.append(model.coef_last_)
    kill(stream)
    model = make(cls, horizon=60)
    with model.keep_stream(tmp_path / "stream") as stream:
        assert stream.position == 0 and not hasattr(model, "coef_")
        for at, wanted in zip(range(0, 40, 10), path, strict=True):
            feed(model, X, y, at, 10, at + 1)
            np.testing.assert_array_equal(model.coef_last_, wanted)
    other = make(cls, horizon=60)
    feed(other, X, y, 0, 10, 31)
    assert not np.array_equal(other.coef_last_, path[-1])  # the key is not a constant


@every
def test_a_stream_of_an_estimator_that_is_gone_continues(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    for begin in range(0, 30, 10):  # a cell of a notebook, run again
        model = make(cls, horizon=60)
        stream = model.keep_stream(tmp_path / "stream")
        assert stream.position == begin
        feed(model, X, y, begin, 10, begin + 1)
        del model, stream


# ---- Where it continues ----


@every
def test_held_rows_are_not_in_the_folder(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    X[15] = [0.1234, 0.2345, 0.3456]
    model = make(cls, horizon=60)
    with model.keep_stream(tmp_path / "stream") as stream:
        model.partial_fit(X[:16], y[:16], **first_of(cls))
        assert stream.position == 16
        stream._checkpoint()
    assert stream.position == 10
    files = [path.read_bytes() for path in (tmp_path / "stream").iterdir()]
    assert not any(X[15, :2].tobytes() in content for content in files)
    first = make(cls, horizon=60, batch_size=1)  # a control: its sums show the row
    with first.keep_stream(tmp_path / "control"):
        first.partial_fit(X[15:16], y[15:16], **first_of(cls))
    if cls is DPFTRLLeastSquares:
        content = (tmp_path / "control" / "checkpoint.npz").read_bytes()
        assert (X[15, 0] * X[15, :2]).tobytes() in content


@every
def test_the_position_counts_rows_and_ends_with_the_stream(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls, n=35)
    model = make(cls, horizon=35)
    with model.keep_stream(tmp_path / "stream") as stream:
        found = [stream.position]
        for at in range(0, 35, 7):
            model.partial_fit(X[at : at + 7], y[at : at + 7], **first_of(cls))
            found.append(stream.position)
    assert found == [0, 7, 14, 21, 28, 35] and stream.closed
    with pytest.raises(ValueError, match="all 4 declared steps are taken"):
        model.partial_fit(X[:1], y[:1])
    again = make(cls, horizon=35)
    assert again.keep_stream(tmp_path / "stream").position == 35
    assert_same(again, model)


@every
def test_a_resumed_stream_takes_no_row_before_its_position_was_read(
    tmp_path: Path, cls: Any
) -> None:
    """A program that begins with the first row again would count its rows twice."""
    X, y = rows(cls)
    first = first_of(cls)
    for position in (0, 10):
        model = make(cls, horizon=60)
        with model.keep_stream(tmp_path / "stream") as stream:
            assert f"position={position}" in repr(stream)
            if position:
                with pytest.raises(RuntimeError, match="its next row is number 10, and those"):
                    model.partial_fit(X[:10], y[:10], **first)
                assert stream.position == 10
            model.partial_fit(X[position : position + 10], y[position : position + 10], **first)
            assert model.n_steps_ == 1 + position // 10


@every
@pytest.mark.parametrize("held", [0, 4])
def test_a_stream_that_was_finished_stays_so(tmp_path: Path, cls: Any, held: int) -> None:
    X, y = rows(cls)
    plain = make(cls, horizon=60, noise_seed=3)
    plain.partial_fit(X[: 20 + held], y[: 20 + held], **first_of(cls)).finish()
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "stream"):
        model.partial_fit(X[:20], y[:20], **first_of(cls))
    model = make(cls, horizon=60, noise_seed=3)
    stream = model.keep_stream(tmp_path / "stream")
    assert not held or stream.position == 20
    if held:
        model.partial_fit(X[20 : 20 + held], y[20 : 20 + held])
    model.finish()
    assert stream.closed and stream.position == 20 + held
    assert_same(model, plain)
    again = make(cls, horizon=60, noise_seed=3)
    stream = again.keep_stream(tmp_path / "stream")
    assert stream.closed and stream.position == 20 + held
    assert_same(again, plain)
    with pytest.raises(ValueError, match=f"stopped at step {2 + (held > 0)} of 6 and cannot"):
        again.partial_fit(X[20:], y[20:])


@every
def test_finish_is_repeated_with_the_same_rows(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls)
    folder = tmp_path / "stream"
    model = make(cls, horizon=60, noise_seed=3)
    stream = model.keep_stream(folder)
    model.partial_fit(X[:24], y[:24], **first_of(cls))
    interrupted(model.finish)
    kill(stream)
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(folder) as stream:
        assert stream.position == 20
        model.partial_fit(X[20:23], y[20:23])
        with pytest.raises(Diverged):
            model.finish()
        assert not stream.closed and stream.position == 23
        model.partial_fit(X[23:24], y[23:24])
        assert model.finish().n_steps_ == 3
    plain = make(cls, horizon=60, noise_seed=3)
    assert_same(model, plain.partial_fit(X[:24], y[:24], **first_of(cls)).finish())


@every
def test_states_are_written_when_they_are_due_and_at_the_end(
    tmp_path: Path, cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = rows(cls)
    kept: list[int] = []
    checkpoint = StreamJournal._checkpoint

    def counted(self: StreamJournal) -> None:
        kept.append(self._journal.step)
        checkpoint(self)

    monkeypatch.setattr(StreamJournal, "_checkpoint", counted)
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "stream", checkpoint_every=2):
        feed(model, X, y, 0, 10, 30)
        assert kept == [2]
        feed(model, X, y, 30, 25, 50)
        assert kept == [2, 5]
    assert kept == [2, 5]
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "stream", checkpoint_every=10**9) as stream:
        assert model.n_steps_ == 5 and stream.position == 50
        model.partial_fit(X[50:], y[50:])
    assert kept == [2, 5, 6]
    model = make(cls, horizon=60, noise_seed=3)
    with model.keep_stream(tmp_path / "other", checkpoint_every=10**9) as stream:
        feed(model, X, y, 0, 12, 24)
    assert kept == [2, 5, 6, 2] and stream.position == 20
    assert make(cls, horizon=60, noise_seed=3).keep_stream(tmp_path / "other").position == 20
