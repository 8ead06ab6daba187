# SPDX-License-Identifier: Apache-2.0
"""The oracle itself: published figures, and released prefixes two ways."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from participation_oracle import (
    all_patterns,
    maximal_patterns,
    tree_specs,
    zeta_by_level,
    zeta_exact,
    zeta_released_honaker,
    zeta_released_vanilla,
    zeta_released_vanilla_dense,
)

specs = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=3)


@settings(deadline=None)
@given(trees=specs, data=st.data())
def test_nodes_and_covariance_agree(trees: list[tuple[int, bool]], data: st.DataObject) -> None:
    step = st.integers(0, sum(n for n, _ in trees) - 1)
    uses = data.draw(st.lists(step, max_size=5))
    exact = zeta_exact(uses, trees)
    assert sum(map(sum, zeta_by_level(uses, trees))) == exact
    vanilla = zeta_released_vanilla(uses, trees)
    assert zeta_released_vanilla_dense(uses, trees) == pytest.approx(vanilla, abs=1e-9)
    assert max(vanilla, zeta_released_honaker(uses, trees)) <= exact + 1e-9


def test_published_figures() -> None:
    # The paper's order [1, 2, 3, 1, 4], alone and with three virtual steps.
    assert zeta_exact([0, 3], tree_specs(5)) == 8
    assert zeta_exact([0, 3], tree_specs(8)) == zeta_exact([0, 3], tree_specs(5, 5, "all")) == 12
    assert max(zeta_exact(uses, tree_specs(64)) for uses in maximal_patterns(64, 2, 32)) == 16


@pytest.mark.parametrize(
    ("steps", "zeta"),
    [(64, 6.091038277517), pytest.param(256, 7.778544714842, marks=pytest.mark.slow)],
)
def test_a_single_pass_where_only_honakers_prefixes_leave(steps: int, zeta: float) -> None:
    # Of 7 and 9 nodes.
    found = [zeta_released_honaker([t], tree_specs(steps)) for t in range(steps)]
    assert max(found) == pytest.approx(zeta, abs=1e-9)


def test_patterns_and_trees_are_listed() -> None:
    assert sorted(all_patterns(4, 2, 2)) == [
        (),
        (0,),
        (0, 2),
        (0, 3),
        (1,),
        (1, 3),
        (2,),
        (3,),
    ]
    assert maximal_patterns(4, 2, 2) == [(0, 2), (0, 3), (1, 3)]
    assert tree_specs(5, 2, True) == [(2, True), (2, True), (1, False)]
    assert tree_specs(4, 2, "all") == [(2, True), (2, True)]
