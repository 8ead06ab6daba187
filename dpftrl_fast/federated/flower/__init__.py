# SPDX-License-Identifier: Apache-2.0
"""DP-FTRL for Flower: the strategy, the clients' mod and the answer to which user a node is."""
