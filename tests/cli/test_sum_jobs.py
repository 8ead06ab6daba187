# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast sum`` of rows: error bars, cells without a number, daily jobs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json

RNG = np.random.default_rng(4)
VALUES = RNG.uniform(1000, 1001, 40).round(3)


def write(path: Path, values: Any) -> Path:
    path.write_text("x\n" + "".join(f"{value}\n" for value in values), encoding="utf-8")
    return path


def words(path: Path, out: Path, **change: object) -> list[object]:
    options = {"column": "x", "rows": 40, "every": 4, "noise-seed": 1, "out": out, **change}
    bounds = options.pop("bounds", (1000, 1001))
    given = [x for key, value in options.items() if value is not None for x in (f"--{key}", value)]
    return ["sum", path, "--bounds", *bounds, *given]  # type: ignore[misc]


def figures(out: Path) -> np.ndarray[Any, Any]:
    return np.atleast_1d(np.genfromtxt(out, delimiter=",", names=True))


def test_error_bars_are_those_of_the_noise(tmp_path: Path) -> None:
    """Over seeds, the error over its standard deviation has variance 1; 95 % are inside."""
    path, out = write(tmp_path / "t.csv", VALUES), tmp_path / "o.csv"
    true = VALUES.reshape(10, 4).sum(axis=1).cumsum()
    scaled, inside = [], []
    for seed in range(40):
        facts = run_json(*words(path, out, **{"noise-seed": seed}), "--force")
        table = figures(out)
        scaled.append((table["private_sum"] - true) / table["std"])
        inside.append((table["low"] <= true) & (true <= table["high"]))
        assert facts["std"] == table["std"][-1] and facts["private_sum"] == table["private_sum"][-1]
    assert abs(np.mean(np.square(scaled)) - 1) < 0.35
    assert abs(np.mean(inside) - 0.95) < 0.06
    width = table["high"] - table["low"]
    run(*words(path, out, level=0.5), "--force")
    narrow = figures(out)
    np.testing.assert_allclose((narrow["high"] - narrow["low"]) / width, 0.6745 / 1.96, rtol=1e-3)


def test_bounds_far_from_zero_cost_their_width_only(tmp_path: Path) -> None:
    path, out = write(tmp_path / "t.csv", VALUES), tmp_path / "o.csv"
    middle = run_json(*words(path, out))
    zero = run_json(*words(path, out, missing="zero"), "--force")
    np.testing.assert_allclose(zero["std"] / middle["std"], 2002, rtol=1e-4)
    assert middle["neighbours"].endswith("middle of the bounds")
    assert zero["neighbours"].endswith("zero") and zero["epsilon"] == middle["epsilon"]
    around = run_json(*words(path, out, bounds=(0, 1001)), "--force")
    assert around["neighbours"].endswith("zero")
    told = run(*words(path, out), "--force").stdout
    assert "middle of the bounds" in told.replace("\n", " ") or "middle" in told


@pytest.mark.parametrize(
    ("missing", "bounds", "each"), [("middle", (1000, 1001), 1000.5), ("zero", (0, 1001), 0.0)]
)
def test_a_cell_without_a_number_and_a_slot_without_a_row(
    missing: str, bounds: tuple[int, int], each: float, tmp_path: Path
) -> None:
    """They count as a cell with that number: the same noise, the same sums."""
    odd = [*VALUES[:10].tolist(), "?", "", "nan", "inf", *VALUES[10:30].tolist()]
    plain = [*VALUES[:10].tolist(), *[each] * 4, *VALUES[10:30].tolist(), *[each] * 6]
    found = []
    for values in (odd, plain, [each, *plain[1:]]):
        path, out = write(tmp_path / "t.csv", values), tmp_path / "o.csv"
        run(*words(path, out, missing=missing, bounds=bounds), "--force")
        found.append(out.read_bytes())
    assert found[0] == found[1] != found[2]


def test_a_daily_job_continues_with_the_bits_of_one_run(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole.csv", tmp_path / "o.csv"
    expected = run_json(*words(write(tmp_path / "t.csv", VALUES), whole))
    folder = tmp_path / "job"
    for rows, steps in ((3, 0), (9, 2), (9, 2), (12, 3), (39, 9), (40, 10), (40, 10)):
        path = write(tmp_path / "t.csv", VALUES[:rows])
        seed = None if folder.exists() else 1
        facts = run_json(*words(path, out, folder=folder, **{"noise-seed": seed}))
        assert facts["steps_taken"] == steps and facts["epsilon"] == expected["epsilon"]
        assert facts["marks"] == ["reproducible, not private"]
        lines = out.read_bytes().splitlines()
        assert lines == whole.read_bytes().splitlines()[: steps + 1]
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"every": 5}, "--every must be as in the first run"),
        ({"bounds": (1000, 1002)}, "--bounds must be as"),
        ({"rows": 44}, "--rows must be as"),
        ({"missing": "zero"}, "--missing must be as"),
        ({"noise-seed": 1}, "--noise-seed are of the first run"),
        ({"epsilon": 0.5}, "--epsilon must be at least 1"),
    ],
)
def test_another_job_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    path, out, folder = write(tmp_path / "t.csv", VALUES[:20]), tmp_path / "o.csv", tmp_path / "job"
    fresh = {"noise-seed": None, "folder": folder}
    run(*words(path, out, **fresh))
    before = out.read_bytes()
    result = run(*words(path, out, **{**fresh, **change}), code=2)
    assert message in result.stderr.replace("\n", " ")
    assert out.read_bytes() == before
    short = write(tmp_path / "t.csv", VALUES[:19])
    result = run(*words(short, out, **fresh), code=2)
    assert "DATA must hold all rows of the job so far, at least 20, got 19" in result.stderr


def test_options_of_events_need_times(tmp_path: Path) -> None:
    path, out = write(tmp_path / "t.csv", VALUES), tmp_path / "o.csv"
    result = run(*words(path, out, user="u"), code=2)
    assert "--user needs --time" in result.stderr
    for missing in ("column", "rows"):
        result = run(*words(path, out, **{missing: None}), code=2)
        assert f"--{missing} is needed for a sum of rows" in result.stderr
    assert not out.exists()
