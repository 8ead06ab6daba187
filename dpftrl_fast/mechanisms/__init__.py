# SPDX-License-Identifier: Apache-2.0
"""Mechanisms: frozen descriptions of the correlated noise, with its layout and its error."""
