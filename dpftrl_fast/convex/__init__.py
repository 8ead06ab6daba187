# SPDX-License-Identifier: Apache-2.0
"""Engines of the convex models: rows in, private models out; they know nothing of scikit-learn.

`glm_fit` follows the regularised leader on one tree of noise over the parameters, `least_squares`
solves normal equations whose two sums lie on two trees.
"""
