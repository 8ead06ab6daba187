# SPDX-License-Identifier: Apache-2.0
"""Every file in examples/ runs as the main module and says something."""

from __future__ import annotations

import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpftrl_fast.datasets.fashion_mnist import FASHION_MNIST_FOLDER

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "accelerate_run.py": "60 steps, epsilon of the run: 8.000 at delta 1e-05",
    "audited_loop.py": "clipped to 1.5 by mistake: violated",
    "daily_counts.py": "epsilon 1 at delta 1e-09",
    "epochs.py": "epsilon 8 at delta 1e-06",
    "images.py": "epsilon of the run: 8.000 at delta 1e-05",
    "lightning_run.py": "60 steps, of which the ledger has 60\nepsilon of the run: 8.000 at",
    "mechanisms.py": "no mechanism has a smaller rms than",
    "out_of_core.py": "the model of the rows in memory: True",
    "private_torch.py": "epsilon of the run: 8.000 at delta 1e-06",
    "sgd_with_residuals.py": "epsilon 2.000",
    "shards.py": "the same bits: True",
    "trainer_run.py": "8 steps, of which the ledger has 8\nepsilon of the run: 8.000 at",
}
#: Of the examples that take any: small settings.
ARGUMENTS = {"images.py": ["1", "2000"], "mechanisms.py": ["memory.png", "20", "3"]}
#: Packages that no part of this one needs.
TOOLS = {
    "accelerate_run.py": ["accelerate"],
    "lightning_run.py": ["lightning"],
    "trainer_run.py": ["transformers", "accelerate"],
}
#: Examples that start processes of their own.
WITH_CHILDREN = {"shards.py"}


def test_each_example_has_its_line() -> None:
    assert {path.name for path in EXAMPLES} == set(SAYS)


@pytest.fixture
def one_script() -> Iterator[None]:
    """Undo what a script sets for its process."""
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


# A script of its own process would import torch and compile the kernels anew; only the one whose
# children import it needs that.
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one_script: None,
) -> None:
    if path.name == "images.py" and not FASHION_MNIST_FOLDER.exists():
        pytest.skip("needs the Debian package dataset-fashion-mnist")
    if path.name in TOOLS:
        import torchvision_ops

        torchvision_ops.declare()
    for tool in TOOLS.get(path.name, []):
        pytest.importorskip(tool)
    # From another folder: the installed package is meant, not the sources beside examples/.
    if path.name in WITH_CHILDREN:
        done = subprocess.run(
            [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        output = done.stdout
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(path), *ARGUMENTS.get(path.name, [])])
        with warnings.catch_warnings():
            if path.name in TOOLS:  # which warn of each other
                warnings.simplefilter("ignore")
            runpy.run_path(str(path), run_name="__main__")
        output = capsys.readouterr().out
    assert SAYS[path.name] in output
