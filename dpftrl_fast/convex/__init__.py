# SPDX-License-Identifier: Apache-2.0
"""Engines of the convex models: rows in, private models out, independent of scikit-learn.

`glm` follows the regularised leader on the noisy sum of gradients, `least_squares` solves normal
equations made of two noisy sums.
"""
