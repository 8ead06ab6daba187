# SPDX-License-Identifier: Apache-2.0
"""Differentially private FTRL: noise for prefix sums from a C++ core, and the epsilon it buys.

`TreeNoise` makes the noise; `PrivacyPlan` makes it and states its epsilon; `PrefixSum` is a private
running sum; `ChaCha` is a NumPy bit generator over the same cipher. `dpftrl_fast.accounting` holds
the accountant, `dpftrl_fast.reference` the whole mechanism in plain NumPy.
"""

from dpftrl_fast._chacha import ChaCha
from dpftrl_fast._core import build_info
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.noise.source import STREAM_VERSION
from dpftrl_fast.noise.toeplitz import ToeplitzNoise
from dpftrl_fast.noise.tree import TreeNoise
from dpftrl_fast.plan.prefix_sum import PrefixSum
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

__all__ = [
    "STREAM_VERSION",
    "ChaCha",
    "PrefixSum",
    "PrivacyPlan",
    "SinglePass",
    "ToeplitzNoise",
    "TreeNoise",
    "__version__",
    "build_info",
]

__version__: str = build_info()["version"]
