# SPDX-License-Identifier: Apache-2.0
"""The daily job of docs/start/private_counts.md: set up once, run each day, one day twice."""

from __future__ import annotations

import csv
import re
import runpy
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "start" / "private_counts.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
SHOPS = ("north", "south", "web")
DAYS = {"2026-01-01": 200, "2026-01-02": 0, "2026-01-03": 90}


def write_events(day: str, visits: int) -> None:
    with open(f"events_{day}.csv", "w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["time", "shop", "customer"])
        lines.writerows([f"{day}T12:00", "south", customer] for customer in range(visits))


def test_the_scripts_publish_each_day_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    text = PAGE.read_text(encoding="utf-8").partition("## 5. ")[2]
    set_up, _, daily = BLOCK.findall(text)[:3]
    monkeypatch.chdir(tmp_path)
    Path("set_up.py").write_text(set_up.replace("epsilon=1.0", "epsilon=500.0"), encoding="utf-8")
    Path("daily.py").write_text(daily, encoding="utf-8")
    runpy.run_path("set_up.py", run_name="__main__")
    assert "figures: counts of each period" in capsys.readouterr().out

    def run(day: str) -> str:
        monkeypatch.setattr("sys.argv", ["daily.py", day])
        runpy.run_path("daily.py", run_name="__main__")
        return capsys.readouterr().out

    def refused(day: str) -> str:
        with pytest.raises(SystemExit) as error:
            run(day)
        assert "\n" not in str(error.value)
        return str(error.value)

    for number, (day, visits) in enumerate(DAYS.items(), start=1):
        write_events(day, visits)
        told, found = [], []
        for _ in range(2):  # the second time as after a kill
            told.append(run(day))
            found.append(Path("counts.csv").read_bytes())
        assert told[0] == f"{day}: batch added; days closed: 1\n"
        assert told[1] == f"{day}: batch skipped, it was added before; days closed: 0\n"
        assert found[0] == found[1]
        with open("counts.csv", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [row["key"] for row in rows] == [*SHOPS] * number
        assert rows[-1]["period_start"] == day
        expected = [float(key == "south") * n for n in [*DAYS.values()][:number] for key in SHOPS]
        assert [float(row["count"]) for row in rows] == pytest.approx(expected, abs=30)

    for wrong in ("2026-01-9", "2126-01-04"):  # no date, not over
        write_events(wrong, 5)
    assert refused("2026-01-9").startswith("daily.py: Invalid isoformat string")
    assert refused("2126-01-04") == (
        "daily.py: the day must be over, got 2126-01-04: nothing is added or closed"
    )
    assert refused("2026-01-04").startswith("daily.py: [Errno 2] No such file")
    Path("events_2026-01-04.csv").write_text("when,shop,customer\n", encoding="utf-8")
    assert "events must have one column 'time'" in refused("2026-01-04")
    assert found[0] == Path("counts.csv").read_bytes()

    for day, closed in (("2026-01-06", 3), ("2026-01-05", 0)):
        write_events(day, 5)
        if closed:
            assert run(day) == f"{day}: batch added; days closed: {closed}\n"
        else:  # after a later day
            with pytest.warns(UserWarning, match="run missed periods in order"):
                assert run(day) == f"{day}: batch added; days closed: {closed}\n"
