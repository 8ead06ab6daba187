# SPDX-License-Identifier: Apache-2.0
"""Squared sensitivity of a mechanism, and the floor of delta of its noise."""

import dpftrl_fast.accounting.sensitivity.toeplitz
import dpftrl_fast.accounting.sensitivity.toeplitz_shifts
import dpftrl_fast.accounting.sensitivity.tree
import dpftrl_fast.accounting.sensitivity.tree_nodes  # noqa: F401 - all register their layout's
