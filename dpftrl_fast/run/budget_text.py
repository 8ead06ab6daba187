# SPDX-License-Identifier: Apache-2.0
"""A privacy budget as text and as HTML: losses are rounded up, and what is left is rounded down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpftrl_fast.accounting.curve.rounding import short_up, text_down, text_up
from dpftrl_fast.run.budget_file import Terms

_HEAD = ("fit", "epsilon", "together")


def budget_text(terms: Terms, rows: Sequence[Any], remaining: float, other: float) -> str:
    """Return the terms, the sum and a line for each fit; `other` is for the other neighbours.

    Examples
    --------
    >>> print(budget_text(Terms(1.0, 1e-6, "zero-out"), [("sums", 0.5, 0.5)], 0.75, 1.04))
    epsilon 0.5 of 1 spent at delta 1e-06, in 1 fit (zero-out)
    epsilon 1.04 for the other neighbours (replace-one)
    one further fit may have epsilon 0.75 (zero-out)
    fit   epsilon  together
    sums      0.5       0.5
    """
    cells = [_HEAD, *_cells(rows)]
    width = max(len(row[0]) for row in cells)
    lines = [f"{label:<{width}}  {alone:>7}  {sums:>8}" for label, alone, sums in cells]
    return "\n".join([*_summary(terms, rows, remaining, other), *(lines if rows else [])])


def budget_html(terms: Terms, rows: Sequence[Any], remaining: float, other: float) -> str:
    """Return the same as HTML.

    Examples
    --------
    >>> budget_html(Terms(1.0, 1e-6, "zero-out"), [("<b>", 0.5, 0.5)], 0.8, 1.0)[-67:]
    '<tr><td>&lt;b&gt;</td><td>0.5</td><td>0.5</td></tr></tbody></table>'
    """
    from html import escape  # not for every import of the package

    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in _cells(rows)
    )
    words = "<br>".join(map(escape, _summary(terms, rows, remaining, other)))
    return f"<p>{words}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _summary(terms: Terms, rows: Sequence[Any], remaining: float, other: float) -> list[str]:
    spent = rows[-1][2] if rows else 0.0
    kinds = ["zero-out", "replace-one"]
    kinds.remove(terms.neighbours)
    return [
        f"epsilon {rounded(spent)} of {short_up(terms.epsilon)} spent at delta {terms.delta!r}, in "
        f"{len(rows)} fit{'s' * (len(rows) != 1)} ({terms.neighbours})",
        f"epsilon {rounded(other)} for the other neighbours ({kinds[0]})",
        f"one further fit may have epsilon {text_down(remaining)} (zero-out)",
    ]


def _cells(rows: Sequence[Any]) -> list[tuple[str, str, str]]:
    return [(label, rounded(alone), rounded(sums)) for label, alone, sums in rows]


def rounded(loss: float) -> str:
    """Return a loss with four digits, as text that reads as a double not below it.

    Examples
    --------
    >>> rounded(0.1), rounded(0.33333)
    ('0.1', '0.3334')
    """
    nearest = f"{loss:.4g}"
    return nearest if float(nearest) >= loss else text_up(loss)
