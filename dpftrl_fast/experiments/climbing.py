# SPDX-License-Identifier: Apache-2.0
"""The rule by which learning rates are chosen: powers of two, uphill from a first guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def climb(
    score: Callable[[list[tuple[int, int]]], Sequence[float]],
    first: Sequence[int],
    *,
    lowest: int,
    highest: int,
    rounds: int | None = None,
) -> list[int]:
    """Return the exponent with the best score for each place, whose neighbours are not better.

    The first guess of each place and its two neighbours are scored; while the best exponent of a
    place has a neighbour in [lowest, highest] without a score, the neighbour is scored. Of equal
    scores the smallest exponent's is the best. `score` maps a list of (place, exponent) to their
    scores and is called at most `rounds` times.

    Examples
    --------
    >>> climb(lambda pairs: [-abs(k - 3 * place) for place, k in pairs], [0, 0],
    ...       lowest=-5, highest=5)
    [0, 3]
    """
    tried: list[dict[int, float]] = [{} for _ in first]
    wanted = [(place, k) for place, at in enumerate(first) for k in (at - 1, at, at + 1)]
    best = list(first)
    while wanted and rounds != 0:
        for (place, k), value in zip(wanted, score(wanted), strict=True):
            tried[place][k] = value
        best = [-max((value, -k) for k, value in found.items())[1] for found in tried]
        wanted = [
            (place, k)
            for place, at in enumerate(best)
            for k in (at - 1, at + 1)
            if k not in tried[place] and lowest <= k <= highest
        ]
        rounds = None if rounds is None else rounds - 1
    return best
