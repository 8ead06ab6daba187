# SPDX-License-Identifier: Apache-2.0
"""BLAS and LAPACK held at one thread: how they cut a product among threads decides its last bits.

OpenBLAS's products and factors have other roundings with two threads than with one (measured; so
from about p = 200 on). The setting is made through threadpoolctl, which scikit-learn brings. For
most builds it is one for the whole process: so threads that hold it take turns here, and nothing is
held in a thread while another one is inside a limit of its own making. Where threadpoolctl is not
installed, results are the same for the same number of BLAS threads only.
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
    _turn = threading.RLock()  # the old one may have been held by a thread that is not in the child


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


@functools.cache
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
    except ImportError:
        return None
    import scipy.linalg  # noqa: F401 - its library has to be loaded to be found

    return ThreadpoolController().select(user_api="blas")


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Hold BLAS at one thread, as a context or a decorator.

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
