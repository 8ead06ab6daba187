# SPDX-License-Identifier: Apache-2.0
"""The accuracies in docs/results/federated.md are those of the rows that lie beside it."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_accuracy_of_the_docs_comes_from_the_rows() -> None:
    fits = defaultdict(list)
    for line in (DOCS / "results" / "federated.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["setting"].get("stage") == "test":
            key = row["experiment"], json.dumps(row["setting"], sort_keys=True)
            fits[key].append(100.0 * row["values"]["accuracy"])
    cells = {
        (name, f"{statistics.fmean(found):.2f} ({statistics.stdev(found):.2f})")
        for (name, _), found in fits.items()
        if len(found) == 3
    }
    text = (DOCS / "results" / "federated.md").read_text()
    sections = text.split("\n### Results: ")[1:]
    names = ("shakespeare", "shakespeare-96", "online-retail")
    for name, section in zip(names, sections, strict=True):
        table = section.split("\n|---")[1].split("\n\n")[0]
        shown = {
            cell.strip()
            for line in table.splitlines()
            for cell in line.split("|")
            if "(" in cell and "." in cell
        }
        assert len(shown) >= 2
        assert {(name, cell) for cell in shown} <= cells
