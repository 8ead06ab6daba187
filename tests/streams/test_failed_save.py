# SPDX-License-Identifier: Apache-2.0
"""A save that fails: either the folder or the object has the noise, never both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpftrl_fast as dpf
from dpftrl_fast.run import sealed_files

STREAMS: dict[str, Callable[[], Any]] = {
    "sum": lambda: dpf.PrefixSum(1, 9, 1.0, 4.0, seed=1),
    "table": lambda: dpf.PrivateCounter(["a"], 9, 4.0, start=0, period=1, seed=1),
}


def take(stream: Any) -> None:
    if isinstance(stream, dpf.PrefixSum):
        stream.add([1.0])
    else:
        stream.release(until=1)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("name", STREAMS)
def test_the_noise_of_a_failed_save_has_one_owner(
    name: str, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of the disk in a save fails in turn, before it and after it."""
    owners = set()
    for module, place in ((sealed_files.os, "replace"), (sealed_files.os, "fsync")):
        for late in (False, True):
            for failing in range(1, 9):
                stream, folder = STREAMS[name](), tmp_path / f"{place}{late}{failing}"
                real, calls = getattr(module, place), 0

                def fails(*given: Any) -> Any:
                    nonlocal calls
                    calls += 1
                    if calls == failing and not late:  # noqa: B023
                        raise error("in the way")
                    result = real(*given)  # noqa: B023
                    if calls == failing:  # noqa: B023
                        raise error("in the way")
                    return result

                with monkeypatch.context() as patch:
                    patch.setattr(module, place, fails)
                    try:
                        stream.save(folder)
                    except error:
                        pass
                    else:
                        break  # all changes have failed
                try:
                    take(stream)
                    alone = True
                except RuntimeError:
                    alone = False
                try:
                    with type(stream).open(folder) as opened:
                        take(opened)
                    resumed = True
                except (ValueError, FileNotFoundError):
                    resumed = False
                assert alone != resumed
                owners.add(alone)
    assert owners == {False, True}
