# SPDX-License-Identifier: Apache-2.0
"""Statements of epsilon and delta, and their composition."""
