# SPDX-License-Identifier: Apache-2.0
"""Private running sums as a product: `PrefixSum`, its users, its error and its folder."""
