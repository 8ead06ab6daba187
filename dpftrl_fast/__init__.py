# SPDX-License-Identifier: Apache-2.0
"""Differentially private FTRL: noise for prefix sums from a C++ core, and the epsilon it buys.

`TreeNoise` makes the noise; `PrivacyPlan` makes it and states its epsilon; `PrivacyBudget` bounds
the epsilon of several fits together; `PrefixSum` is a private running sum, `PrivateCounter` a table
of counts over time; `ChaCha` is a NumPy bit generator over the same cipher.
`dpftrl_fast.accounting` holds the accountant, `dpftrl_fast.reference` the whole mechanism in plain
NumPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpftrl_fast._core import build_info

if TYPE_CHECKING:
    from dpftrl_fast._chacha import ChaCha
    from dpftrl_fast.accounting import SinglePass
    from dpftrl_fast.noise.source import STREAM_VERSION
    from dpftrl_fast.noise.toeplitz import ToeplitzNoise
    from dpftrl_fast.noise.tree import TreeNoise
    from dpftrl_fast.plan.privacy_plan import PrivacyPlan
    from dpftrl_fast.run import BudgetExceeded, PrivacyBudget
    from dpftrl_fast.streams.prefix_sum import PrefixSum
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

#: Where each name lives. It is loaded at its first use, so that the import itself takes no time.
_MODULES = {
    "STREAM_VERSION": "dpftrl_fast.noise.source",
    "BudgetExceeded": "dpftrl_fast.run",
    "ChaCha": "dpftrl_fast._chacha",
    "PrefixSum": "dpftrl_fast.streams.prefix_sum",
    "PrivacyBudget": "dpftrl_fast.run",
    "PrivacyPlan": "dpftrl_fast.plan.privacy_plan",
    "PrivateCounter": "dpftrl_fast.streams.tables.counter",
    "SinglePass": "dpftrl_fast.accounting",
    "ToeplitzNoise": "dpftrl_fast.noise.toeplitz",
    "TreeNoise": "dpftrl_fast.noise.tree",
}
_PACKAGES = ("accounting", "mechanisms", "noise", "plan", "run", "streams")


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"dpftrl_fast.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_PACKAGES})
