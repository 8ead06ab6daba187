# SPDX-License-Identifier: Apache-2.0
"""Privacy accounting: who takes part when -> squared sensitivity -> epsilon(delta).

Nothing here knows of noise or data; :class:`dpftrl_fast.PrivacyPlan` joins the two.

Examples
--------
>>> from dpftrl_fast import accounting as acc
>>> zeta = acc.sensitivity_squared(acc.SinglePass(1600))
>>> zeta
11
>>> round(acc.epsilon(2.33, zeta, 1e-6), 3)
7.342
>>> acc.epsilon(acc.noise_multiplier(7.0, 1e-6, zeta), zeta, 1e-6) <= 7.0
True
"""

from dpftrl_fast.accounting.curve.conversions import best_order, gdp_mu, rdp, zcdp_rho
from dpftrl_fast.accounting.curve.gaussian import delta, epsilon, noise_multiplier
from dpftrl_fast.accounting.guard.guard import Guard
from dpftrl_fast.accounting.guard.ledger import Ledger
from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.accounting.planner.budget import (
    largest_epochs,
    largest_participations,
    largest_steps,
    largest_trees,
)
from dpftrl_fast.accounting.planner.mechanisms import (
    MechanismRow,
    MechanismTable,
    plan_mechanism,
)
from dpftrl_fast.accounting.planner.schedules import Schedule, ScheduleTable, plan_schedule
from dpftrl_fast.accounting.sensitivity.squared import (
    sensitivity_squared,
    sensitivity_squared_by_id,
)
from dpftrl_fast.accounting.sensitivity.theorems import (
    closed_form_noise_multiplier,
    least_squares_noise_multiplier,
    restarts_noise_multiplier,
    single_pass_noise_multiplier,
)
from dpftrl_fast.accounting.statement.dp_event import (
    dp_event,
    dpsgd_epsilon,
    dpsgd_noise_multiplier,
    unamplified_dpsgd_epsilon,
)
from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement, compose
from dpftrl_fast.mechanisms.run_error import (
    MechanismError,
    mechanism_error,
    noise_std,
    noise_std_at,
)
from dpftrl_fast.mechanisms.workload import Workload

__all__ = [
    "FixedEpochs",
    "FixedOrder",
    "Guarantee",
    "Guard",
    "Ledger",
    "MechanismError",
    "MechanismRow",
    "MechanismTable",
    "MinSeparation",
    "Participation",
    "PrivacyStatement",
    "Schedule",
    "ScheduleTable",
    "SinglePass",
    "Workload",
    "best_order",
    "closed_form_noise_multiplier",
    "compose",
    "delta",
    "dp_event",
    "dpsgd_epsilon",
    "dpsgd_noise_multiplier",
    "epsilon",
    "gdp_mu",
    "largest_epochs",
    "largest_participations",
    "largest_steps",
    "largest_trees",
    "least_squares_noise_multiplier",
    "mechanism_error",
    "noise_multiplier",
    "noise_std",
    "noise_std_at",
    "plan_mechanism",
    "plan_schedule",
    "rdp",
    "restarts_noise_multiplier",
    "sensitivity_squared",
    "sensitivity_squared_by_id",
    "single_pass_noise_multiplier",
    "unamplified_dpsgd_epsilon",
    "zcdp_rho",
]
