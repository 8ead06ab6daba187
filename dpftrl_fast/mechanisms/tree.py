# SPDX-License-Identifier: Apache-2.0
"""`Tree`: binary-tree aggregation, with restarts and completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np

from dpftrl_fast._validate import choice, equal, flag, optional, positive_integer, shown, step_count
from dpftrl_fast.mechanisms.blocks import merged_runs
from dpftrl_fast.mechanisms.mechanism import register_kind
from dpftrl_fast.mechanisms.tree_layout import TreeLayout, TreeRun, Variant

Completion: TypeAlias = bool | Literal["all"]
"""Completion that fits any number of trees: none, before each restart, or of all trees.

Examples
--------
>>> from dpftrl_fast import accounting
>>> run = accounting.FixedEpochs(steps_per_epoch=100, epochs=4)
>>> for complete in (False, True):
...     tree = Tree(restart_every=100, complete=complete)
...     std = accounting.noise_std(400, tree).prefix[-1]
...     print(accounting.sensitivity_squared(run, tree), std.round(2))
28 2.52
31 1.76
"""

_KEYS = ("kind", "variant", "restart_every", "tree_lengths", "complete")
_COMPLETE = 'False, True, "all" or a sequence of bools, one a tree'


@dataclass(frozen=True)
class Tree:
    """Binary-tree aggregation: the noise of a running sum grows with the log of its steps.

    Parameters
    ----------
    variant : {"honaker", "vanilla"}
        How a prefix is computed from the nodes of the tree. "vanilla" adds the live nodes,
        "honaker" averages each of them with the nodes below it, which has less variance. It matters
        to the epsilon under ``bound="released"`` only.
    restart_every : int, optional
        A new tree starts after every ``restart_every`` steps, as long as steps are left: the last
        tree may be shorter. None means one tree.
    tree_lengths : sequence of int, optional
        The steps of each tree, instead of ``restart_every``; their sum is the steps of the run.
    complete : bool, "all" or sequence of bool
        Trees that are advanced, by steps with zero gradients, to the next power of two: none
        (False), each tree that a restart follows (True), the last tree too ("all"), or one bool for
        each tree.

    Raises
    ------
    TypeError, ValueError
        If a field is not as described, or both ``restart_every`` and ``tree_lengths`` are given.

    Examples
    --------
    >>> Tree(restart_every=4, complete=True).layout(10).runs[1]
    TreeRun(steps=2, completed=False, count=1)
    >>> Tree(tree_lengths=[3, 2], complete="all").layout(5).tallest
    4
    """

    variant: Variant = "honaker"
    restart_every: int | None = None
    tree_lengths: Sequence[int] | None = None
    complete: bool | Literal["all"] | Sequence[bool] = False

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "variant", choice("variant", self.variant, ("honaker", "vanilla")))
        every = optional(positive_integer, "restart_every", self.restart_every)
        set_field(self, "restart_every", every)
        set_field(self, "tree_lengths", optional(_lengths, "tree_lengths", self.tree_lengths))
        set_field(self, "complete", _completion(self.complete))
        if every is not None and self.tree_lengths is not None:
            raise ValueError("expected restart_every or tree_lengths, got both")

    @property
    def any_length(self) -> bool:
        """True if it can lay out any number of steps: nothing is listed tree by tree."""
        return self.tree_lengths is None and not isinstance(self.complete, tuple)

    def layout(self, steps: int) -> TreeLayout:
        """Lay out the steps of a run over trees.

        Parameters
        ----------
        steps : int
            Real steps of the run (T), 1 to 2^40.

        Raises
        ------
        TypeError, ValueError
            If ``steps`` is not such an integer, or lengths or bools for single trees do not fit.

        Examples
        --------
        >>> Tree(restart_every=1).layout(2**40).count == 2**40
        True
        """
        total = step_count("steps", steps)
        if self.tree_lengths is not None:
            if sum(self.tree_lengths) != total:
                raise ValueError(
                    f"tree_lengths must add up to the {total} steps of the run, "
                    f"got {sum(self.tree_lengths)}"
                )
            trees = [(n, len(list(same))) for n, same in groupby(self.tree_lengths)]
        else:
            every = total if self.restart_every is None else self.restart_every
            count, rest = divmod(total, every)
            trees = [(n, k) for n, k in ((every, count), (rest, 1)) if n and k]
        return TreeLayout(merged_runs(self._completed(trees)), self.variant)

    def _completed(self, trees: list[tuple[int, int]]) -> list[TreeRun]:
        """Return runs of trees from pairs of their steps and their count."""
        if isinstance(self.complete, tuple):
            count = sum(k for _, k in trees)
            if len(self.complete) != count:
                raise ValueError(
                    f"complete must have one bool for each of {count} trees, "
                    f"got {len(self.complete)}"
                )
            each = iter(self.complete)
            return [TreeRun(n, next(each), 1) for n, k in trees for _ in range(k)]
        *before, (last_length, last_count) = trees
        restarts = self.complete is not False
        return [
            *(TreeRun(n, restarts, k) for n, k in before),
            TreeRun(last_length, restarts, last_count - 1),
            TreeRun(last_length, self.complete == "all", 1),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-able data, which :meth:`from_dict` reads back.

        Examples
        --------
        >>> Tree(tree_lengths=[3, 2]).to_dict()["tree_lengths"]
        [3, 2]
        """
        fields = {"kind": "tree", **self.__dict__}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Tree:
        """Read back a tree; keys that are missing or unknown are refused.

        Raises
        ------
        TypeError, ValueError
            If ``d`` is not a mapping with exactly the keys of `to_dict`, or a field is wrong.
        """
        if not isinstance(d, Mapping):
            raise TypeError(f"a tree must be a mapping, got {type(d).__name__}")
        if set(d) != set(_KEYS) or not equal(d["kind"], "tree"):
            came = sorted(map(str, d))
            raise ValueError(f"a tree must have exactly the keys {list(_KEYS)}, got {came}")
        return cls(**{name: d[name] for name in _KEYS[1:]})


register_kind("tree", Tree.from_dict)


def _completion(complete: Any) -> bool | Literal["all"] | tuple[bool, ...]:
    if isinstance(complete, (bool, np.bool_)):
        return bool(complete)
    if isinstance(complete, str):
        if complete != "all":
            raise ValueError(f"complete must be {_COMPLETE}, got {shown(complete)}")
        return "all"
    values = _listed("complete", complete, _COMPLETE)
    return tuple(flag("each of complete", value) for value in values)


def _lengths(name: str, tree_lengths: Any) -> tuple[int, ...]:
    values = _listed(name, tree_lengths, "a sequence of integers >= 1")
    if not values:
        raise ValueError(f"{name} must hold at least one tree, got none")
    return tuple(step_count(f"each of {name}", value) for value in values)


def _listed(name: str, values: Any, expected: str) -> list[Any]:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"{name} must be {expected}, got an array of shape {values.shape}")
        return list(values)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be {expected}, got {type(values).__name__}")
    return list(values)
