# SPDX-License-Identifier: Apache-2.0
"""Empirical audits: lower bounds on epsilon, and the measured mu beside the stated one.

An audit inserts canaries by the toss of a coin, looks at all that a run releases, and compares how
well the coins can be guessed with the guarantee. It can find a fault; it cannot prove that there is
none. `audit_prefix_sum`, `audit_estimator`, `audit_training` and `audit_federated` make the runs;
`audit_releases`, `one_run_bound`, `epsilon_lower_bound` and `estimate_mu` take the results of
others.

Examples
--------
>>> import numpy as np
>>> import dpftrl_fast as dpf
>>> from dpftrl_fast import audit
>>> result = audit.audit_prefix_sum(
...     lambda size: dpf.PrefixSum(size, steps=8, clip_norm=1.0, noise_multiplier=1.0),
...     confidence=1 - 1e-9,
... )
>>> result.verdict
'consistent'
"""

from dpftrl_fast.audit.estimates import (
    MuEstimate,
    clopper_pearson,
    epsilon_lower_bound,
    estimate_mu,
)
from dpftrl_fast.audit.estimators import audit_estimator
from dpftrl_fast.audit.federated import audit_federated
from dpftrl_fast.audit.one_run import (
    OneRunBound,
    best_guesses,
    one_run_bound,
    one_run_p_value,
)
from dpftrl_fast.audit.releases import audit_plan, audit_prefix_sum, audit_releases, worst_uses
from dpftrl_fast.audit.result import AuditResult, Finding
from dpftrl_fast.audit.training import audit_training

__all__ = [
    "AuditResult",
    "Finding",
    "MuEstimate",
    "OneRunBound",
    "audit_estimator",
    "audit_federated",
    "audit_plan",
    "audit_prefix_sum",
    "audit_releases",
    "audit_training",
    "best_guesses",
    "clopper_pearson",
    "epsilon_lower_bound",
    "estimate_mu",
    "one_run_bound",
    "one_run_p_value",
    "worst_uses",
]
