# SPDX-License-Identifier: Apache-2.0
"""The noise stream on a GPU."""
