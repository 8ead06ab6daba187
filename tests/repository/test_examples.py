# SPDX-License-Identifier: Apache-2.0
"""Every file in examples/ runs as a script and says something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dpftrl_fast.datasets.fashion_mnist import FASHION_MNIST_FOLDER

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "daily_counts.py": "epsilon 1 at delta 1e-09",
    "epochs.py": "epsilon 8 at delta 1e-06",
    "images.py": "epsilon of the run: 8.000 at delta 1e-05",
    "out_of_core.py": "the model of the rows in memory: True",
    "private_torch.py": "epsilon of the run: 8.000 at delta 1e-06",
    "sgd_with_residuals.py": "epsilon 2.000",
    "shards.py": "the same bits: True",
}
#: Of the examples that take any: small settings.
ARGUMENTS = {"images.py": ["1", "2000"]}


def test_each_example_has_its_line() -> None:
    assert {path.name for path in EXAMPLES} == set(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path) -> None:
    if path.name == "images.py" and not FASHION_MNIST_FOLDER.exists():
        pytest.skip("needs the Debian package dataset-fashion-mnist")
    # From another folder: the installed package is meant, not the sources beside examples/.
    done = subprocess.run(
        [sys.executable, str(path), *ARGUMENTS.get(path.name, [])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[path.name] in done.stdout
