# SPDX-License-Identifier: Apache-2.0
"""Streams that are interrupted, shared by threads, or fed with labels and users of odd types."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from estimator_cases import CLASSES, NAMES, first_of, make, rows, stream

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model import DPFTRLClassifier, DPFTRLLeastSquares, DPFTRLRegressor
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)
linear = pytest.mark.parametrize("cls", [DPFTRLRegressor, DPFTRLClassifier])


# ---- Interruptions ----


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@every
@pytest.mark.parametrize("place", ["_publish", "_further_attributes"])
def test_rows_of_an_interrupted_call_do_not_count_twice(cls: Any, place: str) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    before = model.coef_
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cls, place, interrupt)
        model.partial_fit(X[10:20], y[10:20])
    for part in (slice(10, 20), slice(20, 30)):
        with pytest.raises(RuntimeError, match="interrupted"):
            model.partial_fit(X[part], y[part])
    assert model.coef_ is before and model.n_steps_ == 1
    assert model.fit(X, y).n_steps_ == 6  # another run


@every
def test_a_stream_whose_first_call_was_interrupted_begins_with_another_key(cls: Any) -> None:
    X, y = rows(cls)
    model, keys = make(cls, horizon=60), []
    start = cls._start

    def kept(self: Any, *args: Any) -> Any:
        run = start(self, *args)
        keys.append((run._noises[0] if cls is DPFTRLLeastSquares else run._noise)._key)
        return run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "_start", kept)
        with pytest.MonkeyPatch.context() as inner, pytest.raises(KeyboardInterrupt):
            inner.setattr(cls, "_publish", interrupt)
            model.partial_fit(X[:10], y[:10], **first_of(cls))
        assert not hasattr(model, "coef_")
        model.partial_fit(X[:10], y[:10], **first_of(cls))
    assert model.n_steps_ == 1 and len({*keys}) == 2


@every
def test_a_refused_call_does_not_end_the_stream(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60)
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    for call in (
        lambda: model.partial_fit(X[:9], y[:8]),
        lambda: model.partial_fit(X[:51], y[:51]),
        lambda: model.partial_fit(X[:10, :2], y[:10]),
        lambda: model.partial_fit(X[:10].tolist(), y[:10]),
        lambda: model.partial_fit(X[:10], y[:10].tolist()),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
    assert model.partial_fit(X[10:20], y[10:20]).n_steps_ == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@every
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_copy_of_a_stream_refuses(cls: Any) -> None:
    X, y = rows(cls)
    model = make(cls, horizon=60, threads=1)
    model.partial_fit(X[:10], y[:10], **first_of(cls))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            model.partial_fit(X[10:20], y[10:20])
        except RuntimeError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert model.partial_fit(X[10:20], y[10:20]).n_steps_ == 2


# ---- Threads ----


@pytest.fixture
def impatient() -> Iterator[None]:
    """Switch threads as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def in_threads(call: Callable[[], None], times: int) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(times):
                call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


# Sums of whole numbers do not depend on their order, nor do the gradients of this loss.
WHOLE = Batch(np.arange(40.0).reshape(10, 4) % 3, np.arange(10.0) % 2)


class Meeting:
    """Two threads that meet where each would begin a stream, if they can."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=0.3)

    def wait(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self.barrier.wait()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Return what each of some calls in threads returned or raised."""
    found: list[Any] = [None] * len(calls)

    def run(place: int) -> None:
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@linear
def test_two_threads_begin_one_stream(cls: Any) -> None:
    """They would make two keys, and two guards that admit a user once each."""
    X, y = rows(cls)
    model, meeting, runs = make(cls, batch_size=2, horizon=10), Meeting(), []
    start = cls._start

    def started(self: Any, *args: Any) -> Any:
        meeting.wait()
        runs.append(start(self, *args))
        return runs[-1]

    def call() -> Any:
        return model.partial_fit(X[:2], y[:2], groups=[7, 8], **first_of(cls))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "_start", started)
        found = at_once(call, call)
    assert len(runs) == 1 and model.n_steps_ == runs[0].steps_taken == 1
    (refusal,) = [one for one in found if isinstance(one, Exception)]
    assert isinstance(refusal, ValueError)  # the user took part
    assert model.partial_fit(X[2:4], y[2:4], groups=[9, 10]).n_steps_ == 2


@every
def test_two_threads_fit_one_after_another(cls: Any) -> None:
    """The model of one run would stand beside the epsilon of the other."""
    X, y = rows(cls)
    model, meeting = make(cls), Meeting()
    publish = cls._publish

    def published(self: Any, *args: Any) -> None:
        if vars(self).setdefault("_busy", False):
            raise AssertionError("two calls at once")
        self._busy = True
        meeting.wait()
        publish(self, *args)
        self._busy = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cls, "_publish", published)
        found = at_once(
            lambda: model.fit(X, y),
            lambda: make(cls).fit(X, y),  # another estimator waits for nobody
            lambda: model.fit(X[:50], y[:50]),
        )
    assert not any(isinstance(one, Exception) for one in found), found


def test_locks_are_not_copied() -> None:
    X, y = rows(DPFTRLRegressor)
    model = make(DPFTRLRegressor).fit(X, y)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "_turn" in vars(model) and "_turn" not in vars(other)


@pytest.mark.usefixtures("impatient")
def test_steps_of_a_run_take_turns() -> None:
    def run() -> GLMRun:
        plan = PrivacyPlan(64.0, 1.0, SinglePass(120))
        options: dict[str, Any] = {"learning_rate": 0.1, "batch_size": 10, "threads": 1}
        return GLMRun(Objective("linear", 4, clip_norm=64.0), plan, **options, noise_seed=1)

    alone, shared = run(), run()
    for _ in range(120):
        alone.step(WHOLE)
    in_threads(lambda: shared.step(WHOLE), 30)
    np.testing.assert_array_equal(shared.last, alone.last)
    np.testing.assert_array_equal(shared.average, alone.average)


@pytest.mark.usefixtures("impatient")
def test_models_of_least_squares_are_of_whole_steps_in_threads_too() -> None:
    def engine() -> LeastSquares:
        plan = LeastSquaresPlan(16.0, 4.0, 8.0, SinglePass(120))
        return LeastSquares(plan, 4, seed=1, threads=1)

    models = {}
    alone, shared = engine(), engine()
    for t in range(1, 121):
        alone.step(WHOLE)
        models[t] = alone.last

    def call() -> None:
        shared.step(WHOLE)
        shared.last  # noqa: B018 - makes a model of what is there
        assert shared.released()

    in_threads(call, 30)
    assert shared.steps_taken == 120
    np.testing.assert_array_equal(shared.last, models[120])
    steps = [solve.step for solve in shared.solves]
    assert steps == sorted({*steps})
    total = sum(models[step] for step in steps)
    np.testing.assert_allclose(shared.average, total / len(steps), rtol=1e-9)


# ---- Refusals that would reveal values ----


@every
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bound", [1e-12, 1.0, 1e12])
def test_no_floating_point_error_of_a_callers_settings(
    cls: Any, sparse: bool, bound: float
) -> None:
    model = make(cls, horizon=90, x_norm_bound=bound, fit_intercept=bound == 1.0)
    if cls is not DPFTRLClassifier:
        model.set_params(y_bound=bound)
    first = first_of(cls)
    for scale in (1.0, 1e-300, 1e300, np.nan, np.inf, 5e-324, 1e-160, 1e-155, 1e-308):
        X, y = rows(cls, n=10)
        with np.errstate(all="ignore"):
            data: Any = X * scale
            y = y if cls is DPFTRLClassifier else y * scale
        data = scipy.sparse.csr_array(data) if sparse else data
        with np.errstate(all="raise"):
            model.partial_fit(data, y, **first)
        first = {}
    assert model.n_steps_ == 9 and np.all(np.isfinite(model.coef_))


@every
def test_no_conversion_warns_of_a_value(cls: Any) -> None:
    X, y = rows(cls)
    extended = X.astype(np.longdouble)
    extended[14, 1] = np.finfo(np.longdouble).max
    quiet, signalling = X.astype(np.float32), X.astype(np.float32)
    quiet[14, 1] = np.nan
    signalling.view(np.uint32)[14, 1] = 0x7FA00000
    targets = y.astype(np.float32)
    targets.view(np.uint32)[14] = 0x7FA00000
    options = {"horizon": 60, "noise_seed": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "this model may not learn")  # of public facts
        stream(make(cls, **options), extended, y, **first_of(cls))
        single = y.astype(np.float32)
        expected = stream(make(cls, **options), quiet, single, **first_of(cls))
        for data, labels in ((signalling, single), (X.astype(np.float32), targets)):
            found = stream(make(cls, **options), data, labels, **first_of(cls))
            np.testing.assert_array_equal(found, expected)


UNKNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda labels, kind: np.array([*labels[:-1], None], dtype=object),
    "word": lambda labels, kind: np.array([*labels[:-1], "word"], dtype=object),
    "list": lambda labels, kind: pd.Series([*labels[:-1], [3]], dtype=object),
    "nullable": lambda labels, kind: pd.Series([*labels[:-1], None], dtype=kind),
}


@pytest.mark.parametrize(
    ("classes", "kind"),
    [([0, 1], "Int64"), ([2**53, 2**53 + 1], "Int64"), (["a", "b"], "string")],
    ids=["small", "large", "words"],
)
@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_label_does_not_change_what_others_are(
    classes: Any, kind: str, unknown: Any
) -> None:
    X, y = rows(DPFTRLClassifier, n=10)
    places = np.where(y > 0, 1.0, 0.0)
    labels = [classes[int(place)] for place in places]
    places[-1] = np.nan
    options = {"horizon": 60, "noise_seed": 3}
    expected = make(DPFTRLClassifier, **options).partial_fit(X, places, classes=[0, 1])
    found = make(DPFTRLClassifier, **options)
    found.partial_fit(X, unknown(labels, kind), classes=classes)
    np.testing.assert_array_equal(found.coef_, expected.coef_)


def test_labels_in_a_list_are_refused_whatever_they_are() -> None:
    X, y = rows(DPFTRLClassifier, n=10)
    for labels in ([*y.tolist()], [*y.tolist()[:-1], "word"], [*y.tolist()[:-1], [2]]):
        with pytest.raises(TypeError, match="array of labels, got list"):
            make(DPFTRLClassifier, horizon=60).partial_fit(X, labels, classes=[0, 1])


# ---- Users ----


class Awkward:
    """A label whose own methods raise, with a value in the message."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("private")

    def __hash__(self) -> int:
        raise ValueError("private")

    __repr__ = __str__ = None  # type: ignore[assignment]


MISSING: dict[str, Any] = {
    "NaN": [1.0, np.nan, 2.0, 3.0],
    "none": ["a", None, "b", "c"],
    "NaN beside words": ["a", np.nan, "b", "c"],
    "NaN in an array of objects": np.array(["a", np.nan, "b", "c"], dtype=object),
    "nullable": pd.Series([1, None, 2, 3], dtype="Int64"),
    "strings": pd.Series(["a", None, "b", "c"], dtype="string"),
    "categories": pd.Series(["a", None, "b", "c"], dtype="category"),
    "empty text": np.array(["a", "", "b", "c"]),
    "a fraction": [1, 2.5, 2, 3],
    "float32 that stands for two integers": np.array([1, 2**24, 2, 3], dtype=np.float32),
    "float64 that stands for two integers": np.array([1, 2**53, 2, 3], dtype=np.float64),
    "a bool": np.array([1, True, 2, 3], dtype=object),
    "bytes": np.array(["a", b"a", "b", "c"], dtype=object),
    "a decimal": np.array([1, Decimal(1), 2, 3], dtype=object),
    "an extended float": np.array([1, np.longdouble(5), 2, 3], dtype=object),
    "a complex number": np.array([1, 1j, 2, 3], dtype=object),
    "a time": np.array([1, np.datetime64("2020-01-01"), 2, 3], dtype=object),
    "a list": pd.Series([1, [2], 2, 3], dtype=object),
    "what cannot be compared": np.array([1, Awkward(), 2, 3], dtype=object),
    "a long integer": np.array([1, 10**5000, 2, 3], dtype=object),
}


@linear
@pytest.mark.parametrize("groups", MISSING.values(), ids=MISSING.keys())
def test_a_row_without_a_user_is_refused_before_the_fit(cls: Any, groups: Any) -> None:
    X, y = rows(cls, n=4)
    with pytest.raises(ValueError, match="groups must name a user for every row"):
        make(cls, batch_size=2).fit(X, y, groups=groups)


@linear
@pytest.mark.parametrize("groups", MISSING.values(), ids=MISSING.keys())
def test_a_row_without_a_user_counts_as_zero_in_a_stream(cls: Any, groups: Any) -> None:
    """A refusal between releases would reveal it; twice in a stream it is no one twice."""
    X, y = rows(cls, n=8)
    labels = np.array(["d", "e", "f", "g"], dtype=object)
    empty = X.copy()
    empty[[1, 6]] = np.nan
    later = labels.copy()
    later[2] = None
    parameters = {"batch_size": 4, "horizon": 8, "noise_seed": 1}
    one, other = make(cls, **parameters), make(cls, **parameters)
    one.partial_fit(X[:4], y[:4], groups=groups, **first_of(cls))
    one.partial_fit(X[4:], y[4:], groups=later)
    other.partial_fit(empty[:4], y[:4], groups=np.arange(4), **first_of(cls))
    other.partial_fit(empty[4:], y[4:], groups=np.arange(4, 8))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert one.n_steps_ == 2


@linear
def test_a_batch_without_any_user_is_a_step(cls: Any) -> None:
    X, y = rows(cls, n=4)
    model = make(cls, batch_size=4, horizon=8)
    model.partial_fit(X, y, groups=np.full(4, np.nan), **first_of(cls))
    assert model.n_steps_ == 1


SAME: dict[str, tuple[Any, Any]] = {
    "a number beside words": ([5, "a"], [5, 6]),
    "a float beside words": ([5.0, "a"], [5, 6]),
    "float32 objects": (np.array([np.float32(5), np.float32(1)], dtype=object), [5, 6]),
    "nullable": (pd.Series([5, 1], dtype="Int64"), [5, 6]),
    "strings": (pd.Series(["x", "y"], dtype="string"), np.array(["x", "z"])),
    "digits": ([5, 1], np.array(["5", "6"])),
    "digits as objects": (["5", "1"], np.array([5, 6], dtype=np.uint8)),
    "half": (np.array([5, 1], dtype=np.float16), [5, 6]),
    "Arrow's text": (pd.Series(["x", "y"], dtype="string[pyarrow]"), ["x", "z"]),
    "categories": (pd.Series(["x", "y"], dtype="category"), ["x", "z"]),
    "categories of numbers": (pd.Series([5, 1], dtype="category"), [5, 6]),
    "NumPy's text": (np.array(["x", "y"], dtype=np.dtypes.StringDType()), ["x", "z"]),
    "byte order": (np.array(["x", "y"], dtype=">U1"), np.array(["x", "z"], dtype="<U1")),
    "wide objects": (np.array([2**70, 1], dtype=object), np.array([2**70, 3], dtype=object)),
}


@linear
@pytest.mark.parametrize(("first", "second"), SAME.values(), ids=SAME.keys())
def test_a_user_is_known_again_in_another_type(cls: Any, first: Any, second: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=2, horizon=10)
    model.partial_fit(X[:2], y[:2], groups=first, **first_of(cls))
    with pytest.raises(ValueError):
        model.partial_fit(X[2:4], y[2:4], groups=second)


OTHER_KINDS: dict[str, Any] = {
    "times": np.array([1, 2], dtype="datetime64[s]"),
    "times with NaT": np.array(["NaT", "2020-01-02"], dtype="datetime64[D]"),
    "spans": np.array([1, 2], dtype="timedelta64[s]"),
    "extended": np.array([1, 2], dtype=np.longdouble),
    "complex": np.array([1, 2], dtype=np.complex64),
    "bytes": np.array([b"a", b"b"]),
    "bool": np.array([True, False]),
    "records": np.zeros(2, dtype=[("a", int)]),
    "pandas' times": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"])),
    "times with a zone": pd.Series(pd.to_datetime(["2020-01-01", "2020-01-02"], utc=True)),
    "periods": pd.Series(pd.period_range("2020-01", periods=2, freq="M")),
    "nullable bool": pd.Series([True, False], dtype="boolean"),
    "categories of times": pd.Series(np.array([1, 2], dtype="datetime64[s]")).astype("category"),
    "Arrow's decimals": pd.Series([1, 2], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
    "Arrow's times": pd.Series([1, 2], dtype=pd.ArrowDtype(pa.timestamp("s"))),
}


@linear
@pytest.mark.parametrize("groups", OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_types_in_which_a_user_has_several_forms_are_refused(cls: Any, groups: Any) -> None:
    X, y = rows(cls)
    model = make(cls, batch_size=2, horizon=10)
    model.partial_fit(X[:2], y[:2], groups=[1, 2], **first_of(cls))
    with pytest.raises(TypeError, match="groups must be integers or text"):
        model.partial_fit(X[2:4], y[2:4], groups=groups)
    with pytest.raises(TypeError, match="groups must be integers or text"):
        make(cls, batch_size=2).fit(X[:2], y[:2], groups=groups)
    assert model.partial_fit(X[2:4], y[2:4], groups=[3, 4]).n_steps_ == 2


# ---- Text that is not valid ----


def arrow_text(words: list[bytes]) -> pd.Series:
    """Return Arrow's text of any bytes, as a file may hold it."""
    binary = pa.array(words, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(words), binary.buffers())
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([text])))


def beyond_unicode(place: int) -> Any:
    codes = np.array([97, 98, 97, 99], dtype=np.uint32)
    codes[place] = 0x110000
    return codes.view("U1")


BAD_TEXT: dict[str, Any] = {
    "Arrow's": arrow_text([b"a", b"\xffsecret", b"a", b"c"]),
    "Arrow's type": arrow_text([b"a", b"\xffsecret", b"a", b"c"]).astype(
        pd.ArrowDtype(pa.string())
    ),
    "NumPy's": beyond_unicode(1),
    "lone surrogates": np.array(["a", "\udcffsecret", "a", "c"]),
    "lone surrogates as objects": pd.Series(["a", "\ud800secret", "a", "c"], dtype=object),
    "what cannot be compared": np.array(["a", Awkward(), "a", "c"], dtype=object),
}
bad_text = pytest.mark.parametrize("text", BAD_TEXT.values(), ids=BAD_TEXT.keys())


@bad_text
def test_a_label_that_is_no_text_counts_as_zero_in_a_stream(text: Any) -> None:
    X, _ = rows(DPFTRLClassifier, n=4)
    options = {"batch_size": 4, "horizon": 4, "noise_seed": 3, "classes": ["a", "c"]}
    found = make(DPFTRLClassifier, **options).partial_fit(X, text)
    wanted = np.array(["a", "b", "a", "c"])
    expected = make(DPFTRLClassifier, **options).partial_fit(X, wanted)
    np.testing.assert_array_equal(found.coef_, expected.coef_)


@bad_text
@pytest.mark.parametrize("classes", [["a", "c"], None])
def test_a_label_that_is_no_text_is_refused_without_a_value(text: Any, classes: Any) -> None:
    X, _ = rows(DPFTRLClassifier, n=4)
    with pytest.raises((TypeError, ValueError)) as caught:
        make(DPFTRLClassifier, batch_size=4, classes=classes).fit(X, text)
    shown = f"{caught.value} {caught.value.__cause__}"
    assert not any(word in shown for word in ("secret", "private", "xff", "codec", "Unicode"))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@linear
@bad_text
def test_a_user_that_is_no_text_ends_no_stream(cls: Any, text: Any) -> None:
    X, y = rows(cls, n=8)
    model = make(cls, batch_size=3, horizon=6)
    model.partial_fit(X[:4], y[:4], groups=text, **first_of(cls))
    assert model.partial_fit(X[4:7], y[4:7], groups=["d", "e", "f"]).n_steps_ == 2


def test_bytes_are_labels_of_bytes_only() -> None:
    X, _ = rows(DPFTRLClassifier, n=4)
    bytes_ = np.array([b"a", b"\xff", b"a", b"c"])
    with pytest.raises(
        TypeError, match=r"y must be labels of the type of the classes, text .*, got bytes"
    ):
        make(DPFTRLClassifier, batch_size=4, horizon=4).partial_fit(X, bytes_, classes=["a", "c"])
    model = make(DPFTRLClassifier, batch_size=4, horizon=4)
    assert model.partial_fit(X, bytes_, classes=[b"a", b"c"]).n_steps_ == 1


@every
def test_text_among_numbers_is_refused_without_showing_it(cls: Any) -> None:
    X, y = rows(cls)
    words = X.astype(object)
    words[3, 1] = "secret"
    with pytest.raises(ValueError, match="X must hold real numbers, got an object") as caught:
        make(cls).fit(words, y)
    assert caught.value.__suppress_context__
    if cls is not DPFTRLClassifier:
        targets = y.astype(object)
        targets[3] = "secret"
        with pytest.raises(ValueError, match="y must hold real numbers, got an object") as caught:
            make(cls).fit(X, targets)
        assert caught.value.__suppress_context__


@linear
def test_groups_and_classes_are_named(cls: Any) -> None:
    X, y = rows(cls)
    third = np.ones(60)  # weights, by the habit of scikit-learn
    with pytest.raises(TypeError, match="positional"):
        make(cls).fit(X, y, third)
    with pytest.raises(TypeError, match="positional"):
        make(cls, horizon=60).partial_fit(X[:10], y[:10], third[:10])


def test_sums_that_float32_cannot_hold_are_refused_before_the_first_step() -> None:
    X, y = rows(DPFTRLLeastSquares)
    with pytest.raises(ValueError, match="norm of a row must be at most 1e\\+12"):
        make(DPFTRLLeastSquares, x_norm_bound=1e15).fit(X, y)
    model = make(DPFTRLLeastSquares, x_norm_bound=1e11, y_bound=1e11, fit_intercept=False)
    assert np.all(np.isfinite(model.fit(X * 1e12, y * 1e12).coef_))
