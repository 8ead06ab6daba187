# SPDX-License-Identifier: Apache-2.0
"""The command line, called in this process."""

from __future__ import annotations

import json
from typing import Any

import typer.testing

from dpftrl_fast.cli.app import app


def run(*arguments: object, code: int = 0) -> Any:
    result = typer.testing.CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def run_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--json").stdout)
