# SPDX-License-Identifier: Apache-2.0
"""Compiled loops of the kernels; the checked calls above them are public."""
