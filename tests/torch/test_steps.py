# SPDX-License-Identifier: Apache-2.0
"""`Steps`: the noise of a step is made after its ids are counted and its sums written ahead."""

from __future__ import annotations

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.torch.steps import Steps


def test_no_noise_for_sums_that_were_not_written_ahead() -> None:
    steps = Steps(2)
    steps.guard = PrivacyPlan(1.0, 1.0, SinglePass(2)).guard()
    steps.begin(np.array([1]))
    steps.admit()
    with pytest.raises(ValueError, match="the noise of a step must come once"):
        steps.check_next_noise()
    with pytest.raises(RuntimeError, match="resume from a checkpoint"):
        steps.check_between()
    steps.due()
    steps.check_next_noise()
