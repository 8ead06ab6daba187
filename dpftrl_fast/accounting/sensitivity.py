# SPDX-License-Identifier: Apache-2.0
"""From participation to the squared sensitivity zeta of everything the tree releases.

One record adds, to the sum under a node, its clipped gradient once for each of its uses under that
node. In units of the clip norm, the vector of all node sums therefore moves by at most sqrt(zeta),

    zeta = max over who-takes-part-when of  sum over nodes of (contributions under the node)^2

over the nodes that can be read: those whose last leaf is at most the end of their tree (its last
step, or the next power of two where it is completed). Every prefix, vanilla or Honaker, is a
function of those node sums plus noise.
"""

from __future__ import annotations

from typing import Literal

from dpftrl_fast.accounting._checks import positive_int
from dpftrl_fast.accounting.participation import Participation, SinglePass

__all__ = ["Bound", "Complete", "check_complete", "sensitivity_squared"]

Complete = bool | Literal["all"]
Bound = Literal["exact", "level"]


def check_complete(complete: Complete) -> Complete:
    """Return ``complete`` if it is False, True or ``"all"``, else raise."""
    if isinstance(complete, bool):
        return complete
    if not isinstance(complete, str):
        raise TypeError(f'complete must be False, True or "all", got {type(complete).__name__}')
    if complete != "all":
        raise ValueError(f'complete must be False, True or "all", got {complete!r}')
    return complete


def sensitivity_squared(
    participation: Participation,
    *,
    restart_every: int | None = None,
    complete: Complete = False,
    bound: Bound = "exact",
) -> int:
    """Squared L2 sensitivity (zeta) of the tree's node sums, in units of the clip norm squared.

    Parameters
    ----------
    participation : SinglePass
        Who takes part when.
    restart_every : int, optional
        A new tree starts after every ``restart_every`` steps, as long as steps are left: the last
        tree may be shorter. None means one tree.
    complete : bool or "all"
        Trees that are advanced, by steps with zero gradients, to the next power of two: none
        (False), each tree that a restart follows (True), the last tree too ("all").
    bound : {"exact", "level"}
        ``"exact"`` is the maximum itself, ``"level"`` the maximum on each level of the tree summed
        over the levels. For a single pass they are equal, since the first leaf of a tree lies under
        a node of every level.

    Returns
    -------
    int
        zeta. Neighbours differ in one record's (or one user's) gradients, replaced by zero; where
        they are replaced by other gradients the sensitivity doubles and zeta counts four times.

    Raises
    ------
    TypeError, ValueError
        For anything that is not described above.

    Notes
    -----
    For a single pass, a leaf of a tree of n leaves lies under one node of each level l, which can
    be read only if 2^l <= n; the first leaf has them all. So a tree gives floor(log2 n) + 1, a
    completed one ceil(log2 n) + 1, and a record, being in one tree, the largest of these. [1]_

    References
    ----------
    .. [1] Kairouz et al., "Practical and Private (Deep) Learning Without Sampling or Shuffling",
       2021, Theorem 4.1.

    Examples
    --------
    >>> sensitivity_squared(SinglePass(1600))
    11
    >>> sensitivity_squared(SinglePass(1600), complete="all")
    12
    >>> sensitivity_squared(SinglePass(1600), restart_every=100, complete=True)
    8
    """
    every = None if restart_every is None else positive_int("restart_every", restart_every)
    completion = check_complete(complete)
    if bound not in ("exact", "level"):
        raise ValueError(f'bound must be "exact" or "level", got {bound!r}')
    if isinstance(participation, SinglePass):
        return _single_pass(participation.steps, every, completion)
    raise TypeError(f"participation must be a SinglePass, got {type(participation).__name__}")


def _single_pass(steps: int, restart_every: int | None, complete: Complete) -> int:
    if restart_every is None or restart_every >= steps:
        return _levels(steps, complete == "all")
    last = (steps - 1) % restart_every + 1
    return max(_levels(restart_every, complete is not False), _levels(last, complete == "all"))


def _levels(leaves: int, completed: bool) -> int:
    """Return how many levels have nodes that can be read: floor or ceil of log2(leaves), plus 1."""
    return (leaves - 1).bit_length() + 1 if completed else leaves.bit_length()
