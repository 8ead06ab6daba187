# SPDX-License-Identifier: Apache-2.0
"""Runs that survive a crash: writing ahead, and the privacy cost of a recovery.

- :class:`RunJournal`: the folder of a run; a killed run resumes without adding the same noise to
  two different sums.
- :class:`Diverged`: raised where a step cannot be repeated exactly.
- :class:`RunAccount`: the guarantee of a run that had to recover with fresh noise.
- :class:`PrivacyBudget`: the epsilon that several fits on the same rows may have together;
  :class:`BudgetExceeded` is raised where a fit does not fit into it.
"""

from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.budget import BudgetExceeded, PrivacyBudget
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.step_log import Diverged

__all__ = ["BudgetExceeded", "Diverged", "PrivacyBudget", "RunAccount", "RunJournal"]
