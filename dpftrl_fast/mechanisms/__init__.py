# SPDX-License-Identifier: Apache-2.0
"""Mechanisms: frozen descriptions of the correlated noise of a run.

Examples
--------
>>> from dpftrl_fast import accounting as acc
>>> from dpftrl_fast import mechanisms as mech
>>> acc.sensitivity_squared(acc.SinglePass(1600), mech.Tree(restart_every=100, complete=True))
8
"""

import dpftrl_fast.mechanisms.toeplitz.error
import dpftrl_fast.mechanisms.toeplitz.windows
import dpftrl_fast.mechanisms.tree_error
import dpftrl_fast.mechanisms.tree_windows  # noqa: F401 - they register the errors of layouts
from dpftrl_fast.mechanisms.mechanism import Layout, Mechanism, mechanism_from_dict
from dpftrl_fast.mechanisms.optimise import OptimisedKind, optimise
from dpftrl_fast.mechanisms.toeplitz.layout import ToeplitzLayout, ToeplitzMechanism
from dpftrl_fast.mechanisms.toeplitz.values import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
)
from dpftrl_fast.mechanisms.tree import Completion, Tree
from dpftrl_fast.mechanisms.tree_layout import TreeLayout, Variant
from dpftrl_fast.mechanisms.window_error import window_std, window_stds

__all__ = [
    "BandedInverse",
    "BandedToeplitz",
    "BufferedToeplitz",
    "Completion",
    "Identity",
    "Layout",
    "Mechanism",
    "OptimisedKind",
    "ToeplitzLayout",
    "ToeplitzMechanism",
    "Tree",
    "TreeLayout",
    "Variant",
    "mechanism_from_dict",
    "optimise",
    "window_std",
    "window_stds",
]
