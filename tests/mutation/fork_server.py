# SPDX-License-Identifier: Apache-2.0
"""Run pytest in forks of a process that has imported the libraries once, but not the package.

Importing torch and Numba takes longer than most runs of a few tests. Each line of the standard
input is a JSON list: a folder, and the arguments of pytest. Lines of the standard output answer
"pid N" when the fork begins, and "code N" when it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

# Not those that are plugins of pytest, or that read their settings when they are imported.
LIBRARIES = (
    "numba",
    "numpy.testing",
    "scipy.optimize",
    "scipy.sparse",
    "scipy.special",
    "scipy.stats",
    "mpmath",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.parquet",
    "sklearn.linear_model",
    "torch",
    "torch.distributed",
    "torch.func",
    "opacus.grad_sample",
    "rich",
    "typer",
)


def main() -> None:
    """Import, then fork for each line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed goes to the log
    sys.path = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    for name in LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    assert "dpftrl_fast" not in sys.modules
    for line in sys.stdin:
        folder, arguments = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            os.chdir(folder)
            answers.close()
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            code = 3
            try:
                import pytest

                code = int(pytest.main(arguments))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(f"pid {child}", file=answers, flush=True)
        _, status = os.waitpid(child, 0)
        print(f"code {os.waitstatus_to_exitcode(status)}", file=answers, flush=True)


if __name__ == "__main__":
    main()
