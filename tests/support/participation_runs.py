# SPDX-License-Identifier: Apache-2.0
"""Small random runs for the guard and the ledger, and what may happen in them by definition."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from hypothesis import strategies as st
from participation_oracle import (
    TreeSpecs,
    Zeta,
    max_fixed_epochs,
    max_min_separation,
    zeta_exact,
)

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    Participation,
    SinglePass,
)
from dpftrl_fast.mechanisms import Tree

Steps = list[list[int]]


@dataclass(frozen=True)
class Declared:
    """A pattern and its trees, as the accountant takes them and as the oracle does."""

    pattern: Participation
    trees: TreeSpecs

    @property
    def tree(self) -> Tree:
        return Tree(
            tree_lengths=[steps for steps, _ in self.trees],
            complete=[completed for _, completed in self.trees],
        )


@st.composite
def declared_runs(draw: st.DrawFn, most_steps: int = 10) -> Declared:
    kind = draw(st.sampled_from(["SinglePass", "FixedEpochs", "FixedOrder", "MinSeparation"]))
    small = st.integers(1, 4)
    pattern: Participation
    if kind == "FixedEpochs":
        spe = draw(small)
        pattern = FixedEpochs(spe, draw(st.integers(1, most_steps // spe)), draw(st.booleans()))
    elif kind == "FixedOrder":
        listed = st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=most_steps - 1)
        pattern = FixedOrder.from_steps([*draw(listed), [draw(small)]])
    elif kind == "SinglePass":
        pattern = SinglePass(draw(st.integers(1, most_steps)))
    else:
        pattern = MinSeparation(draw(st.integers(1, most_steps)), draw(small), draw(small))
    cuts = {t for t in range(1, pattern.steps) if draw(st.integers(0, 3)) == 0}
    ends = sorted({*cuts, pattern.steps})
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return Declared(pattern, [(n, draw(st.booleans())) for n in lengths])


def proposed_step(draw: st.DrawFn, declared: Declared, history: Steps) -> list[int]:
    """Ids for the next step, often such as are admissible."""
    pattern, step = declared.pattern, len(history)
    anyone = st.lists(st.integers(0, 5), max_size=3)
    if draw(st.integers(0, 2)) == 0 or step >= pattern.steps:
        return draw(anyone)
    if isinstance(pattern, FixedOrder):
        ids = pattern.ids[pattern.offsets[step] : pattern.offsets[step + 1]].tolist()
        return draw(st.permutations(ids))
    if isinstance(pattern, FixedEpochs) and step >= pattern.steps_per_epoch and draw(st.booleans()):
        return draw(st.permutations(history[step - pattern.steps_per_epoch]))
    return draw(st.lists(st.integers(0, 5), max_size=3, unique=True))


def admissible(declared: Declared, history: Steps) -> bool:
    """Whether the declaration allows these steps, by definition and from the beginning."""
    pattern = declared.pattern
    if len(history) > pattern.steps:
        return False
    if isinstance(pattern, FixedOrder):
        return all(
            Counter(ids) == Counter(pattern.ids[pattern.offsets[t] : pattern.offsets[t + 1]])
            for t, ids in enumerate(history)
        )
    if any(len(set(ids)) < len(ids) for ids in history):
        return False
    if isinstance(pattern, FixedEpochs):
        return all(
            set(history[s]) == set(history[t])
            if s % pattern.steps_per_epoch == t % pattern.steps_per_epoch
            else not set(history[s]) & set(history[t])
            for s, t in combinations(range(len(history)), 2)
            if not pattern.reshuffle or _tree(declared, s) == _tree(declared, t)
        )
    most, separation = 1, 1
    if isinstance(pattern, MinSeparation):
        most, separation = pattern.max_participations, pattern.min_separation
    return all(
        len(steps) <= most and all(b - a >= separation for a, b in combinations(steps, 2))
        for steps in uses_by_id(history).values()
    )


def uses_by_id(history: Steps) -> dict[int, list[int]]:
    """The steps (from 0) of each id, one entry for each time it stands in a step."""
    uses: dict[int, list[int]] = {}
    for t, ids in enumerate(history):
        for i in ids:
            uses.setdefault(i, []).append(t)
    return uses


def declared_zeta(declared: Declared, zeta: Zeta = zeta_exact) -> float:
    """The squared sensitivity of the declaration, by brute force."""
    pattern, trees = declared.pattern, declared.trees
    if isinstance(pattern, FixedOrder):
        listed = [
            pattern.ids[a:b].tolist()
            for a, b in zip(pattern.offsets, pattern.offsets[1:], strict=False)
        ]
        return max(zeta(uses, trees) for uses in uses_by_id(listed).values())
    if isinstance(pattern, FixedEpochs):
        return max_fixed_epochs(
            zeta, pattern.steps_per_epoch, pattern.epochs, trees, pattern.reshuffle
        )
    if isinstance(pattern, MinSeparation):
        return max_min_separation(
            zeta, pattern.steps, pattern.max_participations, pattern.min_separation, trees
        )
    return max_min_separation(zeta, pattern.steps, 1, 1, trees)


def _tree(declared: Declared, step: int) -> int:
    end = 0
    for tree, (steps, _) in enumerate(declared.trees):
        end += steps
        if step < end:
            return tree
    raise AssertionError(step)
