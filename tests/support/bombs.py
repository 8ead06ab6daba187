# SPDX-License-Identifier: Apache-2.0
"""Processes that are killed at an event: before or after a call of one of some functions."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterable
from typing import Any


def bomb(event: int, places: Iterable[tuple[Any, str]]) -> None:
    """Kill this process at one of the next events: around calls of owner.name."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1
        if count == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **named: Any) -> Any:
            tick()
            value = original(*args, **named)
            tick()
            return value

        setattr(owner, name, wrapped)

    for owner, name in places:
        around(owner, name)


def killed_by(arm: Callable[[], object], run: Callable[[], object]) -> int | None:
    """Return the signal that ends a forked process of `arm` and `run`; None if none does."""
    child = os.fork()
    if child == 0:
        try:
            arm()
            os.fsync = lambda handle: None  # a killed process loses nothing that the system has
            run()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(3)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
