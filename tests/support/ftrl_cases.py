# SPDX-License-Identifier: Apache-2.0
"""Runs of the FTRL recurrence, drawn by hypothesis, and their iterates by the reference."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpftrl_fast.reference.convex import FTRL

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Group:
    """Coordinates with the same settings."""

    size: int
    learning_rate: float
    momentum: float
    nesterov: bool
    l1: float


@dataclass(frozen=True)
class Case:
    """A run: gradients and noises have a row for each step."""

    groups: list[Group]
    theta_0: Vector
    gradients: Vector
    noises: Vector
    batch_size: int
    radius: float | None
    grid: float
    #: Steps after which the run is saved and resumed in another object.
    resume_at: int

    @property
    def steps(self) -> int:
        return len(self.gradients)

    @property
    def parts(self) -> list[slice]:
        """The coordinates of each group."""
        bounds = accumulate((group.size for group in self.groups), initial=0)
        return [slice(*pair) for pair in pairwise(bounds)]

    def references(self) -> list[FTRL]:
        """The groups' runs by the reference, without the ball."""
        runs = []
        for group, part in zip(self.groups, self.parts, strict=True):
            run = FTRL(
                self.theta_0[part].tolist(),
                group.learning_rate,
                batch_size=self.batch_size,
                steps=self.steps,
                momentum=group.momentum,
                nesterov=group.nesterov,
                l1=group.l1,
                grid=self.grid,
            )
            for gradient, noise in zip(self.gradients, self.noises, strict=True):
                run.step(gradient[part].tolist(), noise[part].tolist())
            runs.append(run)
        return runs

    def iterates(self) -> Vector:
        """theta_1, theta_2, ...: projected on the ball, which holds the coordinates of all groups.

        The recurrence does not read theta, so that the projection can come last.
        """
        theta = np.hstack([np.array(run.iterates) for run in self.references()])
        if self.radius is not None:
            norms = np.linalg.norm(theta, axis=1, keepdims=True)
            theta *= np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
        return theta


@st.composite
def cases(
    draw: Any, *, groups: int = 1, nesterov: bool = True, l1: bool = True, ball: bool = True
) -> Case:
    """Runs with up to so many groups, and with what an implementation has."""
    found = []
    for _ in range(draw(st.integers(1, groups))):
        momentum = draw(st.sampled_from([0.0, 0.5, 0.9, 0.99]))
        found.append(
            Group(
                size=draw(st.integers(1, 20)),
                learning_rate=draw(st.sampled_from([0.01, 0.3, 1.0, 7.0])),
                momentum=momentum,
                nesterov=nesterov and momentum > 0.0 and draw(st.booleans()),
                l1=draw(st.sampled_from([0.0, 0.01, 0.3])) if l1 else 0.0,
            )
        )
    steps, size = draw(st.integers(1, 9)), sum(group.size for group in found)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return Case(
        groups=found,
        theta_0=rng.standard_normal(size) * draw(st.sampled_from([0.0, 1.0])),
        gradients=rng.standard_normal((steps, size)),
        noises=rng.standard_normal((steps, size)) * draw(st.sampled_from([0.0, 1.0, 100.0])),
        batch_size=draw(st.integers(1, 300)),
        radius=draw(st.sampled_from([None, 0.1, 1.0, 1e6])) if ball else None,
        grid=2.0**-60,  # below what is compared
        resume_at=draw(st.integers(0, steps)),
    )


def assert_close(found: Any, expected: Any, precision: float = 1e-11) -> None:
    """Compare iterates, to a part of the largest entry of all."""
    scale = float(np.abs(expected).max(initial=1.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=precision * scale)
