# SPDX-License-Identifier: Apache-2.0
"""Noise sources: keys, streams, states and output buffers."""
