# SPDX-License-Identifier: Apache-2.0
"""Output of ``--validate``: counts of the values of a table, which are NOT private."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from dpftrl_fast.cli.output import facts_table, print_json, show
from dpftrl_fast.tables import TableReader, validate


def show_validation(table: TableReader, *, json_: bool) -> None:
    """Print counts of the values of a table: NOT private."""
    report = validate(table)
    if json_:
        print_json(report)
        return
    columns = {
        name: ", ".join(f"{count:,} {kind}" for kind, count in found.items())
        for name, found in report["columns"].items()
    }
    facts = {
        "rows declared": report["rows_declared"],
        "rows in the file": report["rows_in_file"],
        "invalid rows (they count as zero)": report["rows_invalid"],
    }
    if "users_declared" in report:
        facts["users declared"] = report["users_declared"]
        facts["users in the file"] = report["users_in_file"]
        facts["rows of the largest user"] = report["rows_of_the_largest_user"]
    show(report["label"], facts_table({**facts, **columns}))
    if report["findings"]:
        place = "first line" if table.first_line > 1 else "first row"
        show("", _findings_table(report["findings"], place))


def _findings_table(findings: list[dict[str, Any]], place: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("column", "found"):
        table.add_column(heading, overflow="fold")
    for heading in ("number", place):
        table.add_column(heading, justify="right")
    table.add_column("option to try", overflow="fold")
    for found in findings:
        count, first = (f"{found[key]:,}" for key in ("count", "first"))
        table.add_row(found["column"] or "", found["kind"], count, first, found["hint"] or "")
    return table
