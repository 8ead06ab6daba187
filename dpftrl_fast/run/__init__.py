# SPDX-License-Identifier: Apache-2.0
"""Crash-safe runs: a folder written ahead of each step, and the privacy cost of recovering."""
