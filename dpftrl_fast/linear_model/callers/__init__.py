# SPDX-License-Identifier: Apache-2.0
"""Surroundings of a fit: privacy budgets, meta-estimators, transformers in front."""
