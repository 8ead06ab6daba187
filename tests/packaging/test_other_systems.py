# SPDX-License-Identifier: Apache-2.0
"""The package on systems that lack a part of POSIX, and without optional packages."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Modules and functions of POSIX that Windows lacks, and the packages that the bare noise does not
# need. `import` of a module that is None in sys.modules raises ImportError.
WITHOUT_POSIX = """
import os, signal, sys, time
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "sched_getaffinity", "getuid", "geteuid", "killpg",
             "fchmod", "mkfifo", "pread", "pwrite", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGALRM", "SIGKILL", "setitimer", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
"""
WITHOUT_PACKAGES = """
import sys
for name in ("numba", "llvmlite", "torch", "sklearn", "pyarrow", "flwr", "dask"):
    sys.modules[name] = None
"""
NOISE = """
import numpy as np
import dpftrl_fast as dpf
noise = dpf.TreeNoise(size=1000, std=1.0, seed=1, threads=2)
golden = [noise.step().tobytes() for _ in range(9)]
again = dpf.TreeNoise(size=1000, std=1.0, seed=1, memory="regenerate")
assert golden == [again.step().tobytes() for _ in range(9)]
plan = dpf.PrivacyPlan.calibrate(
    epsilon=2.0, delta=1e-6, clip_norm=1.0, participation=dpf.SinglePass(steps=1000)
)
assert 1.9 < plan.epsilon(1e-6) <= 2.0
plan.noise(size=10).step()
assert np.random.Generator(dpf.ChaCha(7)).normal(size=3).shape == (3,)
print("made noise")
"""
SUMS = """
sums = dpf.PrefixSum.calibrate(size=3, steps=365, epsilon=1.0, delta=1e-6, clip_norm=1.0)
assert np.isfinite(sums.add(np.ones((5, 3)))).all()
print("added rows")
"""
# With what is said where a lock would be needed: two runs in one folder would reuse noise.
REFUSED = """
import tempfile
from pathlib import Path
from dpftrl_fast.run.folder_lock import FolderLock
with tempfile.TemporaryDirectory() as folder:
    for refused in (
        lambda: FolderLock(Path(folder)),
        lambda: dpf.PrivacyBudget(1.0, 1e-6, path=Path(folder) / "budget"),
    ):
        try:
            refused()
        except OSError as error:
            assert "needs POSIX file locks, this system has none" in str(error), error
        else:
            raise AssertionError("two processes could use one folder")
    print("refused")
"""


def run(*parts: str) -> list[str]:
    """Lines printed by a new interpreter that runs the parts one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(parts)],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "NUMBA_DISABLE_JIT"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_blocked_names_are_missed() -> None:
    """Negative control: a module that needs one of them cannot be imported."""
    with pytest.raises(AssertionError, match="fcntl"):
        run(WITHOUT_POSIX, "import fcntl")
    with pytest.raises(AssertionError, match="numba"):
        run(WITHOUT_PACKAGES, "import dpftrl_fast.kernels.jit")


def test_noise_and_sums_need_no_posix() -> None:
    assert run(WITHOUT_POSIX, NOISE, SUMS) == ["made noise", "added rows"]


def test_noise_needs_no_optional_package() -> None:
    assert run(WITHOUT_PACKAGES, NOISE) == ["made noise"]


def test_kept_runs_are_refused_without_file_locks() -> None:
    assert run(WITHOUT_POSIX, NOISE, REFUSED) == ["made noise", "refused"]
