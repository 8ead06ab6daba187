# SPDX-License-Identifier: Apache-2.0
"""Participation patterns: which record can take part in which steps."""

from dpftrl_fast.accounting.participation.fixed_order import FixedOrder
from dpftrl_fast.accounting.participation.patterns import (
    FixedEpochs,
    MinSeparation,
    Participation,
    SinglePass,
    check_participation,
    participation_from_dict,
)

__all__ = [
    "FixedEpochs",
    "FixedOrder",
    "MinSeparation",
    "Participation",
    "SinglePass",
    "check_participation",
    "participation_from_dict",
]
