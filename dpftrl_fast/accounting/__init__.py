# SPDX-License-Identifier: Apache-2.0
"""Privacy accounting: who takes part when -> squared sensitivity -> epsilon(delta).

Nothing here knows of noise or data; :class:`dpftrl_fast.plan.PrivacyPlan` joins the two.

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

from dpftrl_fast.accounting.gaussian import delta, epsilon, noise_multiplier
from dpftrl_fast.accounting.participation import SinglePass
from dpftrl_fast.accounting.sensitivity import sensitivity_squared

__all__ = ["SinglePass", "delta", "epsilon", "noise_multiplier", "sensitivity_squared"]
