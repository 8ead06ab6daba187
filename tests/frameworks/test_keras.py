# SPDX-License-Identifier: Apache-2.0
"""docs/frameworks/keras.md on both backends: the cases of tests/support/keras_cases.py."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import child

PROGRAM = Path(__file__).parents[1] / "support" / "keras_cases.py"
CASES = re.findall(r"^@case\ndef (\w+)", PROGRAM.read_text("utf-8"), re.MULTILINE)
#: One process for each backend runs all cases: the imports take longer than they do.
RESULTS: dict[str, dict[str, str]] = {}


def results(backend: str) -> dict[str, str]:
    for package in ("keras", backend):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    if backend not in RESULTS:
        environment = {
            **os.environ,
            "KERAS_BACKEND": backend,
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with child(
            [sys.executable, PROGRAM],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            out, errors = process.communicate()
        found = [line for line in out.splitlines() if line.startswith("[")]
        RESULTS[backend] = {"": errors, **dict(map(json.loads, found))}
    return RESULTS[backend]


def test_there_are_cases() -> None:
    assert len(CASES) > 20


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, backend: str) -> None:
    found = results(backend)
    assert name in found, found[""][-2000:]
    assert found[name] == "ok", found[name]
