# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity of a mechanism, and the floor of delta of its noise."""

import dpftrl_fast.accounting.sensitivity.tree
import dpftrl_fast.accounting.sensitivity.tree_nodes  # noqa: F401 - both register the tree's
