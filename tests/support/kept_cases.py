# SPDX-License-Identifier: Apache-2.0
"""Streams that are kept in a folder, killed and compared, for the tests of `keep_stream`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from estimator_cases import CLASSES, NAMES, first_of, learned

from dpftrl_fast.linear_model._stream_journal import StreamJournal

every = pytest.mark.parametrize("cls", CLASSES, ids=NAMES)


def kill(journal: StreamJournal) -> None:
    """Release a folder as the system does when the process is killed."""
    journal._closed = True
    journal._journal.close()


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def interrupted(call: Callable[[], Any], place: str = "before_release") -> None:
    """Make a call that ends where it would write its state: its steps are written ahead."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(StreamJournal, place, interrupt)
        call()


def feed(
    model: Any, X: Any, y: Any, start: int, size: int = 13, stop: int = 10**9, **more: Any
) -> None:
    """Feed rows in calls of one size; the arrays of `more` are cut like them."""
    for at in range(start, min(stop, len(y)), size):
        part = slice(at, at + size)
        cut = {name: values[part] for name, values in more.items()}
        model.partial_fit(X[part], y[part], **cut, **first_of(type(model)))


def assert_same(one: Any, other: Any, *, but: tuple[str, ...] = ()) -> None:
    """Compare all that two estimators have learned, bit for bit."""
    assert learned(one) == learned(other)
    for name in learned(one) - {"inference_", *but}:
        found, wanted = getattr(one, name), getattr(other, name)
        if isinstance(wanted, np.ndarray):
            np.testing.assert_array_equal(found, wanted, err_msg=name)
        else:
            assert found == wanted, name
    if hasattr(other, "inference_"):
        a, b = one.inference_.moments, other.inference_.moments
        assert (a.step, a.constant) == (b.step, b.constant)
        for name in ("covariance", "products", "squares"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
