# SPDX-License-Identifier: Apache-2.0
"""The mechanism of a run from a choice: a value, the best one for a budget, or the best tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from dpftrl_fast._validate import float_dtype
from dpftrl_fast.accounting.participation import Participation, SinglePass
from dpftrl_fast.accounting.planner.long_runs import long_run_buffers
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.accounting.planner.schedules import plan_schedule
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms import Completion, Mechanism, ToeplitzMechanism, Tree, Variant
from dpftrl_fast.mechanisms.mechanism import check_mechanism
from dpftrl_fast.mechanisms.workload import Workload

#: Vectors that a mechanism chosen for "auto" keeps at most.
MAX_VECTORS = 3
# A search over all steps of longer runs takes a minute or more.
_MOST_STEPS = 2**20


@dataclass(frozen=True)
class TreeSearch:
    """A tree whose restarts the planner chooses: the best row of `plan_schedule`.

    Parameters
    ----------
    variant : {"honaker", "vanilla"}
        As for `Tree`.
    complete : bool, "all" or "auto"
        As for `Tree`; with "auto" the ranking chooses between False and True.
    """

    variant: Variant = "honaker"
    complete: Completion | Literal["auto"] = "auto"

    def best(
        self,
        participation: Participation,
        epsilon: float,
        delta: float,
        *,
        momentum: float = 0.0,
        bound: PlanBound = "released",
    ) -> Tree:
        """Return the best tree for a budget; for a single pass, one tree."""
        if isinstance(participation, SinglePass):
            return Tree(self.variant, complete=self.complete != "auto" and self.complete)
        return plan_schedule(
            epsilon,
            delta,
            participation=participation,
            complete=(False, True) if self.complete == "auto" else self.complete,
            variants=self.variant,
            momentum=momentum,
            bound=bound,
            rank_by="smoothed" if momentum > 0.0 else "rms",
        ).best.mechanism


#: A mechanism, or the way to choose one: "auto", the best of all kinds; "tree", the best tree.
MechanismChoice: TypeAlias = Mechanism | TreeSearch | Literal["auto", "tree"]


def check_choice(mechanism: Any) -> MechanismChoice:
    """Return `mechanism` if it is a mechanism or a way to choose one.

    Raises
    ------
    TypeError, ValueError
        If it is neither.
    """
    if isinstance(mechanism, str):
        words: tuple[Literal["auto", "tree"], ...] = ("auto", "tree")
        for word in words:
            if mechanism == word:
                return word
        raise ValueError(
            f"mechanism must be 'auto', 'tree' or a mechanism such as Tree(), got {mechanism!r}"
        )
    return mechanism if isinstance(mechanism, TreeSearch) else check_mechanism(mechanism)


@lru_cache(maxsize=64)
def _best(
    epsilon: float,
    delta: float,
    participation: Participation,
    workload: Workload,
    max_vectors: int | None,
    bound: PlanBound,
    rank_by: Literal["rms", "last", "worst"],
) -> Mechanism:
    """Return `best_mechanism`, kept: it takes a second, and searches make the same plan often."""
    return best_mechanism(
        epsilon,
        delta,
        participation,
        workload=workload,
        max_vectors=max_vectors,
        bound=bound,
        rank_by=rank_by,
    )


def chosen_mechanism(
    mechanism: MechanismChoice,
    participation: Participation,
    epsilon: float,
    delta: float,
    *,
    workload: Workload = Workload(),
    max_vectors: int | None = MAX_VECTORS,
    bound: PlanBound = "released",
    dtype: Any = None,
    rank_by: Literal["rms", "last", "worst"] = "rms",
) -> Mechanism:
    """Return the mechanism that a choice stands for.

    Parameters
    ----------
    mechanism : Mechanism, TreeSearch, "auto" or "tree"
        "auto" is the best of all kinds within `max_vectors`, by the error of the workload; "tree"
        is ``TreeSearch()``. Above 2^20 steps "auto" is buffers for the running sums of a single
        pass, where they have less error than a tree, and else ``TreeSearch()``, which keeps more
        vectors than `max_vectors`. Above 2^26 steps buffers need ``dtype="float64"``.
    participation : participation
        Who takes part when.
    epsilon, delta : float
        Budget for which mechanisms are ranked.
    workload : Workload
        Of the run.
    max_vectors : int or None
        Vectors that the mechanism may keep between steps, for "auto" (a tree above 2^20 steps
        keeps log2(T) + 2).
    bound : {"released", "exact"}
        Of the guarantee: trees are ranked by theirs.
    dtype : {"float32", "float64"}, optional
        Of the noise: coefficients of a value are rounded to it. None leaves them.
    rank_by : {"rms", "last", "worst"}
        Error by which "auto" ranks.

    Examples
    --------
    >>> chosen_mechanism(Tree(restart_every=5), SinglePass(10), 1.0, 1e-6).restart_every
    5
    >>> chosen_mechanism("auto", SinglePass(2**30), 1.0, 1e-6, dtype="float64").words
    'buffered Toeplitz noise, 3 buffers'
    >>> chosen_mechanism("auto", SinglePass(2**30), 1.0, 1e-6)
    Tree(variant='honaker', restart_every=None, tree_lengths=None, complete=False)
    """
    chosen = check_choice(mechanism)
    if isinstance(chosen, str):
        if chosen == "auto" and participation.steps <= _MOST_STEPS:
            return _best(epsilon, delta, participation, workload, max_vectors, bound, rank_by)
        if chosen == "auto":
            buffers = long_run_buffers(
                participation, workload, max_vectors, bound=bound, dtype=dtype, rank_by=rank_by
            )
            if buffers is not None:
                return buffers
        chosen = TreeSearch()
    if isinstance(chosen, TreeSearch):
        momentum = workload.momentum
        return chosen.best(participation, epsilon, delta, momentum=momentum, bound=bound)
    if dtype is not None and isinstance(chosen, ToeplitzMechanism):
        return chosen.rounded(float_dtype(dtype))
    return chosen
