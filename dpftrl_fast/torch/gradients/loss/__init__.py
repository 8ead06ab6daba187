# SPDX-License-Identifier: Apache-2.0
"""Losses that keep examples apart, and the trial of others."""
