# SPDX-License-Identifier: Apache-2.0
"""Running statistics of a model are refused by name, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.federated import PrivateRounds, ServerDPFTRL
from dpftrl_fast.federated.model_state import refuse_model_state

PLAN = PrivacyPlan(0.5, 3.0, SinglePass(4))


@pytest.mark.parametrize("made", [PrivateRounds, ServerDPFTRL])
@pytest.mark.parametrize(
    "name",
    [
        "running_mean",
        "layer1.0.bn1.running_var",
        "num_batches_tracked",
        "block/bn/moving_mean",
        "block/bn/moving_variance:0",
        "batch_stats/Norm_0/mean",
        "batch_stats.Norm_0.var",
    ],
)
def test_a_state_is_refused_with_both_remedies(made: Any, name: str, tmp_path: Path) -> None:
    model = {"w": np.zeros(2), name: np.ones(2)}
    with pytest.raises(ValueError, match="got running statistics") as error:
        made(model, plan=PLAN, report_goal=2, folder=tmp_path / "run")
    said = str(error.value)
    assert name in said and "Leave these arrays out" in said and "GroupNorm" in said
    assert not (tmp_path / "run").exists()
    made({"w": np.zeros(2)}, plan=PLAN, report_goal=2, folder=tmp_path / "run").close()


def test_parameters_of_similar_names_pass() -> None:
    refuse_model_state(
        [
            "bn.weight",
            "bn.bias",
            "running_mean.weight",
            "my_running_mean",
            "moving_mean_head/kernel",
        ]
    )
    PrivateRounds([np.zeros(2), np.ones(2)], plan=PLAN, report_goal=2)  # no names


def test_many_names_are_cut() -> None:
    with pytest.raises(ValueError, match=r"a0\.running_var, .*a2\.running_var and 47 more\. "):
        refuse_model_state([f"a{i}.running_var" for i in range(50)])


def test_noise_turns_a_variance_negative() -> None:
    """The reason: as a parameter under another name, a variance of 1 does not stay positive."""
    server = ServerDPFTRL({"v": np.ones(200)}, plan=PLAN, report_goal=1, noise_seed=1)
    server.begin_round(["a"])
    assert (server.end_round()["v"] < 0).any()
