# SPDX-License-Identifier: Apache-2.0
"""States of torch as plain data, and the states of global random numbers."""

from __future__ import annotations

import random

import numpy as np
import torch

from dpftrl_fast.torch.plain_states import (
    from_plain,
    random_state,
    restore_random_state,
    to_plain,
)


def test_states_of_torch_become_plain_and_come_back() -> None:
    state = {
        "a": torch.randn(2, 3, dtype=torch.bfloat16),
        "b": [torch.tensor(2.5), (torch.arange(3), np.float64(1.5))],
        "c": {0: torch.zeros(0), "d": torch.randn(4, 4).T, "e": torch.tensor(True)},
    }
    back = from_plain(to_plain(state))
    assert str(back) == str({**state, "b": [state["b"][0], (state["b"][1][0], 1.5)]})
    assert back["a"].dtype == torch.bfloat16 and back["c"]["e"].dtype == torch.bool
    assert torch.equal(back["a"], state["a"])  # type: ignore[arg-type]


def test_random_states_come_back() -> None:
    kept = to_plain(random_state())
    first = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    restore_random_state(from_plain(kept))
    again = torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    assert str(first) == str(again)
