# SPDX-License-Identifier: Apache-2.0
"""BLAS and LAPACK limited to one thread, so that results do not depend on the number of threads.

OpenBLAS's products and factors round differently with two threads than with one (measured, from
about p = 200 on). The limit is set through threadpoolctl, which scikit-learn installs. Most builds
have one setting for the whole process, so threads that set it take turns here. Without
threadpoolctl, results are reproducible only for the same number of BLAS threads.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from typing import Any

_turn = threading.RLock()


def _new_turn() -> None:
    global _turn
    _turn = threading.RLock()  # a thread that the child does not have may hold the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


@functools.cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    import scipy.linalg  # noqa: F401 - its library must be loaded to be found

    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread, as a context or a decorator.

    Examples
    --------
    >>> import numpy as np
    >>> with one_blas_thread():
    ...     float(np.ones(3) @ np.ones(3))
    3.0
    """
    controller = _controller()
    if controller is None:
        yield
        return
    with _turn, controller.limit(limits=1):
        yield
