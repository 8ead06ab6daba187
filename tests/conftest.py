# SPDX-License-Identifier: Apache-2.0
"""Away from the sources, where `python -c` would import from; without a clock; no child left."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from processes import children, ended

# No test asserts a time: a busy machine is not a fault.
# A mutant that is found needs no smallest example (tests/mutation/run.py).
PHASES = [Phase.explicit, Phase.generate] if "DPFTRL_MUTATION" in os.environ else [*Phase]
settings.register_profile("no clock", deadline=None, phases=PHASES)
settings.load_profile("no clock")

# Two workers of pytest-xdist on two cores: idle threads of OpenMP sleep instead of spinning.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Kernels for a GPU run in Triton's interpreter; it reads this when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Files whose tests start processes, kill them or run Triton's interpreter. They get the marker
# `process`, which `make test-fast` leaves out.
TESTS = Path(__file__).parent
PROCESS_FILES = {
    "cli/test_commands.py",
    "compatibility/test_written_by_0_1_torch.py",
    "experiments/test_convex.py",
    "experiments/test_federated.py",
    "experiments/test_images.py",
    "federated/test_flower_clients.py",
    "federated/test_flower_faults.py",
    "federated/test_flower_runs.py",
    "federated/test_kills.py",
    "frameworks/test_keras.py",
    "jax/test_devices.py",
    "kernels/test_blas_threads.py",
    "linear_model/test_dask.py",
    "noise/test_chacha_interfaces.py",
    "noise/test_concurrency.py",
    "repository/test_examples.py",
    "repository/test_readme.py",
    "repository/test_torch_pages.py",
    "run/test_journal_crashes.py",
    "streams/test_counter_folder.py",
    "torch/test_checkpoint.py",
    "torch/test_device.py",
    "torch/test_device_toeplitz.py",
    "torch/test_device_tree.py",
    "torch/test_distributed.py",
    "torch/test_make_private_ranks.py",
    "torch/test_training_run_ranks.py",
}


# Files of thorough searches and statistics. They get the marker `long`, which `make test-fast`
# leaves out too.
LONG_FILES = {
    "accounting/test_dp_event.py",
    "accounting/test_hockey_stick.py",
    "accounting/test_ledger.py",
    "accounting/test_participation_oracle.py",
    "accounting/test_rdp.py",
    "accounting/test_sensitivity.py",
    "accounting/test_sensitivity_core.py",
    "audit/test_front_ends.py",
    "audit/test_judge.py",
    "noise/test_properties.py",
    "noise/test_statistics.py",
}


# The tests of a file share its fixtures, so one worker of pytest-xdist runs them all; but for
# this one, whose tests are long and share nothing.
SPLIT_FILES = {"torch/test_device.py"}


# Modules and thousands of tests stay to the end: searching them for garbage would take half of the
# time of collection.
@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the files above, keep files together, and start with the long ones."""
    for item in items:
        name = str(item.path.relative_to(TESTS)) if item.path.is_relative_to(TESTS) else ""
        if name in PROCESS_FILES:
            item.add_marker("process")
        if name in LONG_FILES:
            item.add_marker("long")
        if name not in SPLIT_FILES:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
    # A long file at the end would leave the other workers idle. The sort keeps the order within.
    items.sort(key=lambda item: item.get_closest_marker("process") is None)


@pytest.fixture
def fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released sums lie on a grid far below what is compared: rounding has tests of its own."""
    for module in ("planned_noise", "noise_spec"):
        monkeypatch.setattr(f"dpftrl_fast.plan.{module}.release_grid", lambda std: 2.0**-60)


@pytest.fixture(scope="session", autouse=True)
def another_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run all tests in an empty folder, so that their processes import the installed package."""
    before = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("cwd"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def no_child_is_left() -> Iterator[None]:
    """Fail at the end where a process that a test started still runs."""
    before = children()
    yield
    left = children() - before
    # Helpers of multiprocessing end with this process.
    own = {pid for pid in left if b"multiprocessing" in Path(f"/proc/{pid}/cmdline").read_bytes()}
    assert ended(left - own), "a test left a process behind"
