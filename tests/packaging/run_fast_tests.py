# SPDX-License-Identifier: Apache-2.0
"""Run the fast tests against the installed package: no sources beside it, compiler or torch.

Arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
# The noise, bit for bit against golden files and the implementation in NumPy; the plan and its
# epsilon; the mechanisms; the optimiser; files of earlier versions.
SELECTED = ["noise", "plan", "mechanisms", "test_ftrl.py", "packaging/test_other_systems.py"]


def main(options: list[str]) -> int:
    """Run pytest in an empty folder, so that only an installed package can be imported."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-P"] if sys.version_info >= (3, 11) else [sys.executable]
    command += ["-m", "pytest", "-c", str(TESTS.parent / "pyproject.toml")]
    command += ["--rootdir", str(TESTS.parent), "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not slow and not process and not long", *options]
    command += [str(TESTS / name) for name in SELECTED]
    with tempfile.TemporaryDirectory() as empty:
        return subprocess.run(command, cwd=empty, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
