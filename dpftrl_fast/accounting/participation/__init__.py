# SPDX-License-Identifier: Apache-2.0
"""Participation patterns: which record can take part in which steps."""
