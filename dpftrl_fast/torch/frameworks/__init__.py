# SPDX-License-Identifier: Apache-2.0
"""Private training in loops that belong to other tools: the Trainer of transformers, Lightning.

The tools are imported where they are used only; none is needed to import this folder.
"""

from dpftrl_fast.torch.frameworks.lightning import lightning_callback
from dpftrl_fast.torch.frameworks.trainer import make_trainer_private

__all__ = ["lightning_callback", "make_trainer_private"]
