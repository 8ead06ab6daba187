# SPDX-License-Identifier: Apache-2.0
"""Checks of the ids of each step against the declared participation."""
