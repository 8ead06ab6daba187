# SPDX-License-Identifier: Apache-2.0
"""Least squares by two trees in plain Python and NumPy, after docs/sklearn/least_squares.md.

The model after step t is the minimiser over C of theta^T W theta - 2 <s, theta> + h ||theta||^2, W
and s being the noisy sums of x x^T and y x, and h half of the ridge lambda_t. Sums are made in
loops, models from all eigenvalues of W, over a ball by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from dpftrl_fast.reference._checks import Array
from dpftrl_fast.reference.convex import MARGIN, Matrix, Vector, norm, on_grid
from dpftrl_fast.reference.tree import TreeNoise, variance_factor


class Released(NamedTuple):
    """Release of a step: the noisy sums, half of the ridge, and the model."""

    W: Array
    s: Array
    half_ridge: float
    theta: Array


def released_grid(std: float) -> float:
    """Return the largest power of two that is at most sqrt(1/2) std / 128.

    The least standard deviation of a tree's prefix is sqrt(1/2) of a node's.

    Examples
    --------
    >>> released_grid(1.0) == 2.0**-8
    True
    """
    return 2.0 ** math.floor(math.log2(std * math.sqrt(0.5) / 128))


def symmetric_noise(triangle: Array, p: int) -> Array:
    """Return the symmetric matrix of noise made of the independent normals of an upper triangle.

    It is distributed as the projection of a p x p matrix of independent normals on the symmetric
    matrices: off the diagonal the mean of two of them, of half the variance.

    Examples
    --------
    >>> symmetric_noise(np.array([1.0, 2.0, 3.0]), 2).round(3).tolist()
    [[1.0, 1.414], [1.414, 3.0]]
    """
    noise = np.zeros((p, p))
    at = 0
    for i in range(p):
        for j in range(i, p):
            entry = float(triangle[at]) * (1.0 if i == j else math.sqrt(0.5))
            noise[i, j] = noise[j, i] = entry
            at += 1
    return noise


def add_batch(
    W: Array,
    s: Array,
    X: Matrix,
    y: Vector,
    *,
    x_norm_bound: float,
    y_bound: float,
    constant: float = 0.0,
) -> None:
    """Add x x^T and y x of scaled rows and clipped targets to W and s.

    A row with a number that is not finite, in x or y, counts as zero.

    Examples
    --------
    >>> W, s = np.zeros((1, 1)), np.zeros(1)
    >>> add_batch(W, s, [[2.0]], [9.0], x_norm_bound=5.0, y_bound=1.0)
    >>> W.tolist(), s.tolist()
    ([[4.0]], [2.0])
    """
    for x, target in zip(X, y, strict=True):
        if not all(map(math.isfinite, [*x, target])):
            continue
        length, limit = norm([x]), x_norm_bound * MARGIN
        row = [value * (limit / length) if length > limit else value for value in x]
        if constant:
            row.append(constant * MARGIN)
        target = max(-y_bound, min(y_bound, target))
        for i, a in enumerate(row):
            s[i] += target * a
            for j, b in enumerate(row):
                W[i, j] += a * b


def minimise(W: Array, s: Array, half_ridge: float, radius: float = math.inf) -> Array:
    """Return a minimiser of theta^T W theta - 2 <s, theta> + half_ridge ||theta||^2 over a ball.

    Over R^p: if W + half_ridge I is not positive definite, W loses its negative eigenvalues first.
    Over a ball the minimum is exact whatever W is. In coordinates along the eigenvectors, with a_i
    the eigenvalues of W + half_ridge I and s_i the parts of s, it is s_i / (a_i + m) with the least
    m >= max(0, -a_1) that puts it in the ball; if it lies inside with m = -a_1 > 0, the eigenvector
    of a_1, its largest entry positive, is added up to the boundary.

    Examples
    --------
    >>> minimise(np.eye(2), np.array([3.0, 4.0]), 0.0).tolist()
    [3.0, 4.0]
    >>> minimise(np.eye(2), np.array([3.0, 4.0]), 0.0, 1.0).round(12).tolist()
    [0.6, 0.8]
    """
    values, vectors = np.linalg.eigh(W)
    parts = vectors.T @ s
    if radius == math.inf:
        if values[0] + half_ridge <= 0:
            values = np.maximum(values, 0.0)
        return np.asarray(vectors @ (parts / (values + half_ridge)))
    values = values + half_ridge

    def point(m: float) -> Array:
        shifted = values + m
        return np.asarray(np.divide(parts, shifted, out=np.zeros_like(parts), where=shifted > 0))

    def length(m: float) -> float:
        return math.sqrt(float(np.sum(point(m) ** 2)))

    if values[0] > 0 and length(0.0) <= radius:
        return np.asarray(vectors @ point(0.0))
    low = max(0.0, -float(values[0]))
    negligible = abs(parts[0]) <= 1e-12 * norm([s.tolist()])
    if values[0] <= 0 and negligible and length(low) <= radius:
        along = vectors[:, 0] * math.copysign(1.0, vectors[np.argmax(np.abs(vectors[:, 0])), 0])
        inside = point(low)
        inside[0] = 0.0
        outward = math.sqrt(radius**2 - float(np.sum(inside**2)))
        return np.asarray(vectors @ inside + outward * along)
    high = low + norm([s.tolist()]) / radius
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if length(middle) > radius else (low, middle)
    return np.asarray(vectors @ point(high))


def run(
    batches: Iterable[tuple[Matrix, Vector]],
    *,
    columns: int,
    bias_noise: TreeNoise,
    covariance_noise: TreeNoise,
    bias_std: float,
    covariance_std: float,
    x_norm_bound: float,
    y_bound: float,
    constant: float = 0.0,
    radius: float = math.inf,
    ridge_factor: float = 2.0,
    variant: str = "honaker",
    steps: int,
    complete: bool = False,
) -> list[Released]:
    """Return the releases of all steps of a run.

    Parameters
    ----------
    batches : iterable of (rows, targets)
    columns : int
        Of the rows, without the constant.
    bias_noise, covariance_noise : TreeNoise
        Over p and p (p + 1) / 2 coordinates, p with the constant.
    bias_std, covariance_std : float
        L y_bound sigma_b and L^2 sigma_c, the standard deviations of their nodes.
    x_norm_bound, y_bound, constant : see `add_batch`
    radius : R
    ridge_factor : float
        Half of the ridge is ridge_factor L^2 sigma_c sqrt(v_t p).
    variant : of the trees
    steps : int
        Declared number of steps.
    complete : bool
        Advance the tree to the next power of two at the last step.

    Examples
    --------
    >>> noises = [TreeNoise(1, 1e-9, seed=1, dtype="float64") for _ in range(2)]
    >>> (only,) = run(
    ...     [([[1.0], [2.0]], [1.0, 2.0])], columns=1, steps=1, x_norm_bound=9.0, y_bound=9.0,
    ...     bias_noise=noises[0], covariance_noise=noises[1], bias_std=1e-9, covariance_std=1e-9,
    ... )
    >>> only.theta.round(6).tolist()
    [1.0]
    """
    p = columns + (constant != 0.0)
    W, s = np.zeros((p, p)), np.zeros(p)
    upper = np.triu_indices(p)
    released = []
    for t, (X, y) in enumerate(batches, 1):
        add_batch(W, s, X, y, x_norm_bound=x_norm_bound, y_bound=y_bound, constant=constant)
        end = 1 << (t - 1).bit_length() if complete and t == steps else t
        if end == t:
            b, c = bias_noise.step(), covariance_noise.step()
        else:
            b, c = bias_noise.prefix(end), covariance_noise.prefix(end)
        noisy = W + symmetric_noise(c, p)
        # The upper triangle is released, on the grid and in the dtype of its noise.
        grid = released_grid(covariance_std)
        triangle = np.array([on_grid(value, grid) for value in noisy[upper]])
        triangle = triangle.astype(c.dtype).astype(float)
        noisy[upper] = noisy.T[upper] = triangle
        grid = released_grid(bias_std)
        noisy_s = np.array([on_grid(value, grid) for value in s + b])
        factor = float(variance_factor(end, variant))
        half_ridge = ridge_factor * covariance_std * math.sqrt(factor * p)
        theta = minimise(noisy, noisy_s, half_ridge, radius)
        released.append(Released(noisy, noisy_s, half_ridge, theta))
    return released
