# SPDX-License-Identifier: Apache-2.0
"""Differentially private FTRL: noise for prefix sums from a C++ core, and the epsilon it buys.

`TreeNoise` makes the noise; `PrivacyPlan` makes it and states its epsilon; `PrivacyBudget` bounds
the epsilon of several fits together; `PrefixSum` is a private running sum, `PrivateCounter` a table
of counts over time; `ChaCha` is a NumPy bit generator over the same cipher.
`dpftrl_fast.accounting` holds the accountant, `dpftrl_fast.reference` the whole mechanism in plain
NumPy.
"""

from typing import TYPE_CHECKING, Any

from dpftrl_fast._chacha import ChaCha
from dpftrl_fast._core import build_info
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.noise.source import STREAM_VERSION
from dpftrl_fast.noise.toeplitz import ToeplitzNoise
from dpftrl_fast.noise.tree import TreeNoise
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.streams.prefix_sum import PrefixSum

if TYPE_CHECKING:
    from dpftrl_fast.run import BudgetExceeded, PrivacyBudget
    from dpftrl_fast.streams.tables.counter import PrivateCounter

__all__ = [
    "STREAM_VERSION",
    "BudgetExceeded",
    "ChaCha",
    "PrefixSum",
    "PrivacyBudget",
    "PrivacyPlan",
    "PrivateCounter",
    "SinglePass",
    "ToeplitzNoise",
    "TreeNoise",
    "__version__",
    "build_info",
]

__version__: str = build_info()["version"]

#: Loaded at their first use: they need modules that the rest does not.
_LATER = {
    "BudgetExceeded": "dpftrl_fast.run",
    "PrivacyBudget": "dpftrl_fast.run",
    "PrivateCounter": "dpftrl_fast.streams.tables.counter",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
