# SPDX-License-Identifier: Apache-2.0
"""The privacy plan: one frozen value that makes the noise and states the epsilon."""
