# SPDX-License-Identifier: Apache-2.0
"""Several devices, and float64 through a callback: in processes whose JAX is set up for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan, SinglePass

pytest.importorskip("optax")

PROGRAM = Path(__file__).parents[1] / "support" / "jax_devices.py"
PLAN = PrivacyPlan(1.0, 2.0, SinglePass(3))


@pytest.fixture(scope="module", params=["0", "1"], ids=["float32", "float64"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_X64": request.param,
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer["devices"] == 4
    return answer


def released(sums: np.ndarray[Any, Any], steps: int, dtype: Any) -> list[list[float]]:
    noise = PLAN.noise(sums.size, seed=1, dtype=dtype)
    remainder, rows = np.zeros(sums.size, dtype), []
    for _ in range(steps):
        x = remainder + (noise.residual() + sums.astype(dtype))
        w = np.floor(x / noise.dtype.type(noise.grid) + noise.dtype.type(0.5)) * noise.grid
        remainder = (x - w).astype(dtype)
        rows.append(w.tolist())
    return rows


@pytest.mark.parametrize("transport", ["ffi", "callback", "auto"])
def test_in_shard_map_all_devices_have_the_noise_of_one(
    found: dict[str, Any], transport: str
) -> None:
    total = np.arange(8.0).reshape(4, 2).sum(0)
    assert found[transport] == [released(total, 3, found["dtype"]), 3]
    assert "all 3 declared steps are taken" in found[f"{transport}, past the end"]
    assert "jax.lax.psum(sums, 'data')" in found[f"{transport}, forgotten"]


def test_in_jit_a_sharded_sum_gets_its_noise_once(found: dict[str, Any]) -> None:
    assert found["whole"] == [released(np.arange(8.0), 1, found["dtype"])[0], 1]


def test_without_an_axis_the_second_device_is_refused(found: dict[str, Any]) -> None:
    assert "has taken step 1" in found["each"]
