# SPDX-License-Identifier: Apache-2.0
"""A mark of the process: a fork has its parent's keys, and must not continue with them."""

from __future__ import annotations

import os

# How many forks lie between the first process and this one.
_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def process_mark() -> tuple[int, int]:
    """Return what is not the same in a process and its forks: the number of forks, and the pid.

    The number is not that of Python where a library of C forks; the pid may come again, in another
    namespace or after the parent has ended.

    Examples
    --------
    >>> process_mark() == process_mark()
    True
    """
    return _forks, os.getpid()
