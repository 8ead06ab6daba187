# SPDX-License-Identifier: Apache-2.0
"""Log of rounds that miss updates: NOT PRIVATE, on loggers that can be silenced by name."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable

from dpftrl_fast.federated.round import ANSWERED, Round

NOT_PRIVATE = "dpftrl_fast.not_private"
"""Name of the logger of `ServerDPFTRL`: its lines follow from private data without noise."""

_LAST, _LONGEST = 4, 500  # lines and characters of a reason in a line of the log
_NO_UPDATE = "the app failed, or its update was not finite (see the client's log)"
_CAUSE = "The above exception was the direct cause of the following exception:"
_WRAPPERS = ("ClientAppException", "RayTaskError")  # Flower's and Ray's, around a client's error
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


def last_lines(reason: str) -> str:
    r"""Return the last lines of a reason in one line: of a traceback, the client's own error.

    Wrappers of Flower and Ray around the error of a client are left out, and characters that could
    change the log are escaped.

    Examples
    --------
    >>> last_lines('Traceback:\n  File "a.py", line 3\nRuntimeError: out of battery')
    'Traceback: | File "a.py", line 3 | RuntimeError: out of battery'
    """
    parts = _COLOUR.sub("", reason).split(_CAUSE)
    while len(parts) > 1 and any(wrapper in parts[-1] for wrapper in _WRAPPERS):
        parts.pop()
    lines = [line.strip() for line in parts[-1].splitlines() if line.strip()]
    text = " | ".join(lines[-_LAST:])
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    return text if len(text) <= _LONGEST else f"... {text[-_LONGEST:]}"


def commonest(reasons: Iterable[str]) -> tuple[str, int] | None:
    """Return the commonest reason and its number; reasons that differ in numbers only are one.

    Examples
    --------
    >>> commonest(["no file 7.csv", "no answer", "no file 12.csv"])
    ('no file 7.csv', 2)
    """
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for reason in reasons:
        kind = _NUMBER.sub("0", reason)
        first.setdefault(kind, reason)
        counts[kind] += 1
    if not counts:
        return None
    ((kind, count),) = counts.most_common(1)
    return first[kind], count


class Answers:
    """Counts of the updates that rounds asked for and accepted, and the log of them.

    Attributes
    ----------
    log : logging.Logger
        Logger of the lines, all of which end in "(not private)".
    """

    def __init__(self) -> None:
        self.log = logging.getLogger(NOT_PRIVATE)
        self._first = self._last = self._asked = self._accepted = 0

    def ended(self, round_: Round) -> None:
        """Count a round that has ended; warn if it accepted under half of its cohort."""
        found = round_.metrics()
        asked, accepted = len(round_.cohort), found["accepted"]
        self._first, self._last = self._first or round_.number, round_.number
        self._asked, self._accepted = self._asked + asked, self._accepted + accepted
        if not asked or 2 * accepted >= asked:
            return
        members = set(round_.cohort)
        whys = [
            why for client, why in found["refused"].items() if client in members and why != ANSWERED
        ]
        whys += [_NO_UPDATE] * round_.without_update
        whys += ["no answer"] * max(0, found["missing"] - len(whys))
        reason, count = commonest(whys) or ("unknown", 0)
        self.log.warning(
            "Round %d: accepted %d of %d updates; commonest reason (%d of %d): %s (not private)",
            *(round_.number, accepted, asked, count, len(whys), last_lines(reason)),
        )

    def finish(self) -> None:
        """Log the counts of the rounds since the last call, if there were any."""
        if not self._last:
            return
        level = logging.INFO if 2 * self._accepted >= self._asked else logging.WARNING
        self.log.log(
            level,
            "Rounds %d to %d: accepted %d of %d updates (not private)",
            *(self._first, self._last, self._accepted, self._asked),
        )
        self._first = self._last = self._asked = self._accepted = 0
