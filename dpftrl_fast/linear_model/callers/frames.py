# SPDX-License-Identifier: Apache-2.0
"""Running calls that fit private estimators, found in the stacks of the threads of this process."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from sklearn.base import BaseEstimator

from dpftrl_fast.linear_model.callers.counts import private_parts

_METHODS = {"fit", "fit_transform", "fit_predict", "partial_fit"}
_FUNCTIONS = {
    "cross_validate",
    "cross_val_score",
    "cross_val_predict",
    "learning_curve",
    "validation_curve",
    "permutation_test_score",
}
_SELECTION = "sklearn.model_selection._validation"
_LIBRARIES = ("sklearn.", "joblib.", "dpftrl_fast.")


class Call(NamedTuple):
    """A running call: its frame, the frame of the code that made it, and its thread."""

    frame: FrameType
    outer: FrameType
    thread: int


def calls_here(is_private: Callable[[Any], bool]) -> list[Call]:
    """Return the callers that fit private estimators, the innermost first.

    Examples
    --------
    >>> calls_here(lambda value: True)
    []
    """
    return [*_calls(sys._getframe(1), threading.get_ident(), is_private)]


def calls_elsewhere(estimator: Any, is_private: Callable[[Any], bool]) -> list[Call]:
    """Return the calls of another thread for which joblib runs in this one, the innermost first.

    joblib pickles tasks, and takes further ones, in threads of its own, and its workers may be
    threads. There the estimator is the very one that the innermost of the calls holds.

    Examples
    --------
    >>> calls_elsewhere(object(), lambda value: True)
    []
    """
    own = threading.get_ident()
    if any(_module(frame).startswith("joblib.") for frame in _stack(sys._getframe(1))):
        for thread, frame in sys._current_frames().items():
            calls = [] if thread == own else [*_calls(frame, thread, is_private)]
            for place, call in enumerate(calls):
                if holds(_meta(call), is_private, estimator):
                    return calls[place:]
    return []


def in_worker() -> bool:
    """Return whether this is a task of joblib in a worker, or a process of `multiprocessing`.

    Examples
    --------
    >>> in_worker()
    False
    """
    return multiprocessing.parent_process() is not None or any(
        _module(frame) == "joblib.parallel" and "BatchedCalls" in type(_self(frame)).__name__
        for frame in _stack(sys._getframe(1))
        if frame.f_code.co_name == "__call__"
    )


def holds(caller: Any, is_private: Callable[[Any], bool], part: Any = None) -> bool:
    """Return whether a caller is a meta-estimator around private estimators, or around this one.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> holds(make_pipeline(Ridge()), lambda value: isinstance(value, Ridge))
    True
    """
    if not isinstance(caller, BaseEstimator) or (part is None and is_private(caller)):
        return False
    try:
        parts = private_parts(caller, is_private)
        return any(part is None or part is one for one in parts)
    except Exception:  # an estimator whose parameters cannot be read
        return False


def _calls(frame: FrameType, thread: int, is_private: Callable[[Any], bool]) -> Iterator[Call]:
    """Yield the calls of a stack that fit private estimators."""
    held: list[FrameType] = []
    for outer in _stack(frame):
        if not _module(outer).startswith(_LIBRARIES):
            yield from (Call(one, outer, thread) for one in held)
            held = []
        name = outer.f_code.co_name
        function = _module(outer) == _SELECTION and name in _FUNCTIONS
        if function or (name in _METHODS and holds(_self(outer), is_private)):
            held.append(outer)
    yield from (Call(one, outer, thread) for one in held)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _self(frame: FrameType) -> Any:
    return frame.f_locals.get("self")


def _meta(call: Call) -> Any:
    """Return the meta-estimator of a call, or the estimator that a function was given."""
    found = _self(call.frame)
    return call.frame.f_locals.get("estimator") if found is None else found
