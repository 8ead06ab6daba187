# SPDX-License-Identifier: Apache-2.0
"""A federated training with user-level differential privacy."""
