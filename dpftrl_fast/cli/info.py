# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast info``: the build, the packages and the platform."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from dpftrl_fast import build_info
from dpftrl_fast.cli.options import Json
from dpftrl_fast.cli.output import facts_table, friendly, print_json, show

_PACKAGES = ("numpy", "scipy", "numba", "pyarrow", "torch", "matplotlib", "typer", "rich")


@friendly
def command(json_: Json = False) -> None:
    """Print the build, the kernel targets and package versions."""
    facts: dict[str, Any] = dict(build_info())
    versions = {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}
    system = {"system": platform.platform(), "machine": platform.machine()}
    if json_:
        print_json({"build": facts, "packages": versions, "platform": system})
        return
    lines = {
        name.replace("_", " "): ", ".join(map(str, value)) if isinstance(value, (list, tuple))
        else value
        for name, value in facts.items()
    }  # fmt: skip
    show(facts_table(lines, "build"), "")
    show(facts_table({name: value or "-" for name, value in versions.items()}, "packages"), "")
    show(facts_table(system, "platform"))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
