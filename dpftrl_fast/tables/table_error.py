# SPDX-License-Identifier: Apache-2.0
"""Refusal of a file."""

from __future__ import annotations


class TableError(ValueError):
    """A file that cannot be read with this schema."""
