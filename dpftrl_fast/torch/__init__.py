# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL for PyTorch; torch and Opacus are the extra ``torch``.

`make_private` wraps a model, an optimiser and a loader; `fix_model` replaces the layers that it
refuses. Below it stand `DPFTRL`, an optimiser on sums of clipped gradients, and `ResidualNoise`,
which makes any other optimiser private.
`TrainingRun` keeps a run in a folder from which it resumes; `unwrap` returns the trained network.
"""

from dpftrl_fast.torch.checkpoint import TrainingRun
from dpftrl_fast.torch.fix_model import FixedModel, fix_model
from dpftrl_fast.torch.gradients.loss.per_example_loss import PerExampleLoss
from dpftrl_fast.torch.make_private import make_private
from dpftrl_fast.torch.model_state import model_state_dict, unwrap
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.residual import ResidualNoise

__all__ = [
    "DPFTRL",
    "FixedModel",
    "PerExampleLoss",
    "ResidualNoise",
    "TrainingRun",
    "fix_model",
    "make_private",
    "model_state_dict",
    "unwrap",
]
