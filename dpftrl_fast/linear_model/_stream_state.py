# SPDX-License-Identifier: Apache-2.0
"""State of a stream in its folder, and the public facts that identify it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from dpftrl_fast._core import build_info
from dpftrl_fast._validate import equal, shown
from dpftrl_fast.linear_model._stream import Stream
from dpftrl_fast.linear_model._targets import ClassTargets
from dpftrl_fast.mechanisms import Mechanism

# Version 2 has ids of users under the folder's key, version 1 those of `user_id`.
_PLAIN, _KEYED = 1, 2

# A resumed stream may have others: its models do not depend on them. The seed is a secret.
_FREE = ("budget", "memory", "noise_seed", "random_state", "threads", "verbose")


def identity_of(model: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public facts that a folder and an estimator must agree on, as JSON.

    Examples
    --------
    >>> from dpftrl_fast.linear_model import DPFTRLRegressor
    >>> found = identity_of(DPFTRLRegressor(), {"horizon": 10, "threads": 2, "y_bound": (0, 1)})
    >>> found["kind"], found["estimator"], found["horizon"], found["y_bound"], "threads" in found
    ('dpftrl_fast.linear_model.stream', 'DPFTRLRegressor', 10, [0, 1], False)
    """
    return {
        "kind": "dpftrl_fast.linear_model.stream",
        "estimator": type(model).__name__,
        "reproducible": model.noise_seed is not None,
        **{name: _plain(name, v) for name, v in parameters.items() if name not in _FREE},
    }


def _plain(name: str, value: Any) -> Any:
    """Return a parameter as data that JSON can hold."""
    if isinstance(value, Mechanism):
        return value.to_dict()
    if isinstance(value, Mapping):
        pairs = [[_plain(name, key), _plain(name, entry)] for key, entry in value.items()]
        return sorted(pairs, key=repr)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy, series of pandas
        return _plain(name, value.tolist())
    if type(value) in (list, tuple):
        return [_plain(name, entry) for entry in value]
    if type(value) is bytes:
        return {"bytes": value.hex()}
    if type(value) is float and not math.isfinite(value):
        return repr(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"{name} must consist of numbers and text where a stream is kept in a folder, got "
        f"{type(value).__name__}"
    )


def features_of(X: Any, count: int) -> tuple[int, list[str] | None]:
    """Return the number of columns of rows, and their names if they have some.

    Examples
    --------
    >>> features_of(np.zeros((1, 2)), 2)
    (2, None)
    """
    probe = BaseEstimator()
    validate_data(probe, X, reset=True, skip_check_array=True)
    names = getattr(probe, "feature_names_in_", None)
    return count, None if names is None else [str(name) for name in names]


def state_of(stream: Stream, *, finished: bool) -> dict[str, Any]:
    """Return the state of a stream after its last step: **a secret**. Held rows are not in it."""
    journal, targets = stream.journal, stream.targets
    assert journal is not None and stream.features is not None
    count, names = stream.features
    return {
        "version": _KEYED if journal.keyed else _PLAIN,
        "library": _library(),
        "name": journal.name,
        "plan": stream.run.plan.to_dict(),
        "classes": _written(targets.classes) if isinstance(targets, ClassTargets) else None,
        "n_features": count,
        "feature_names": names,
        "taken": stream.taken,
        "finished": finished,
        "engine": stream.run.state_dict(),
    }


def check_version(state: Mapping[str, Any]) -> None:
    """Refuse the state of a later version of this format."""
    version = state.get("version")
    if not any(equal(version, known) for known in (_PLAIN, _KEYED)):
        raise ValueError(
            f"the state of a kept stream must have version {_PLAIN} or {_KEYED}, got "
            f"{shown(version)}"
        )


def has_keyed_ids(state: Mapping[str, Any]) -> bool:
    """Return whether users have ids under the folder's key: a stream keeps the kind it began with.

    Examples
    --------
    >>> has_keyed_ids({"version": 1}), has_keyed_ids({"version": 2})
    (False, True)
    """
    return equal(state["version"], _KEYED)


def check_plan(state: Mapping[str, Any], plan: Any) -> None:
    """Refuse a state of another plan than the one made now, of the same parameters."""
    if state["plan"] != plan.to_dict():
        raise ValueError(
            "the plan of this stream must be the one in its folder, made by version "
            f"{state['library']} of dpftrl_fast, got another by version {_library()} from the same "
            "parameters: continue the stream with the version, and on a machine, that began it. A "
            "stream whose mechanism= is a value, not a word, does not depend on the planner"
        )


def classes_in(state: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the classes of a state; None for a regression."""
    kept = state["classes"]
    if kept is None:
        return None
    found = np.empty(len(kept["labels"]), dtype=kept["dtype"])
    found[:] = kept["labels"]
    return found


def _written(classes: NDArray[Any]) -> dict[str, Any]:
    kind = classes.dtype.kind
    return {"dtype": kind if kind in "OT" else classes.dtype.str, "labels": classes.tolist()}


def _library() -> str:
    return str(build_info()["version"])
