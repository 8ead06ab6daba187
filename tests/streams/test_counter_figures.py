# SPDX-License-Identifier: Apache-2.0
"""Figures of a table: exact errors, coverage, the choice of the mechanism, privacy that is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from noise_oracle import sum_matrix
from table_oracle import Facts

import dpftrl_fast as dpf
from dpftrl_fast.accounting import MinSeparation, SinglePass
from dpftrl_fast.audit.covariance import noise_factor
from dpftrl_fast.audit.estimates import epsilon_lower_bound
from dpftrl_fast.mechanisms import BufferedToeplitz, Identity, Tree
from dpftrl_fast.plots import bands
from dpftrl_fast.streams.tables import figures as table_figures

KINDS: list[dict[str, Any]] = [
    {"figures": "running"},
    {"figures": "period"},
    {"figures": "window", "window": 5},
]


def differences(kind: dict[str, Any], steps: int) -> np.ndarray:
    """The matrix from running sums to figures."""
    matrix = np.eye(steps)
    if kind["figures"] != "running":
        back = kind.get("window", 1)
        matrix -= np.eye(steps, k=-back)
    return matrix


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["figures"])
@pytest.mark.parametrize("bounds", [None, (0.0, 4.0), (-3.0, 1.0)])
@pytest.mark.parametrize("mechanism", ["auto", "tree"])
def test_standard_deviations_are_those_of_the_matrix(
    kind: Any, bounds: Any, mechanism: Any
) -> None:
    steps = 16
    table = Facts(periods=steps, values=bounds).counter(3.0, mechanism=mechanism)
    if mechanism == "tree":
        sums = noise_factor(table.plan.layout)
    else:
        sums = sum_matrix(table.plan.mechanism, [steps])
    noise = differences(kind, steps) @ sums
    unit = np.sqrt((noise**2).sum(axis=1)) * 3.0
    norm = 1.0 if bounds is None else np.sqrt(2.0)
    np.testing.assert_allclose(table.std(**kind), unit * norm, rtol=1e-12)
    if bounds is not None:
        low, high = bounds
        scale = np.hypot((low + high) / 2, (high - low) / 2)
        assert scale <= max(abs(low), abs(high))
        found = table.std(**kind, measure="sum")
        np.testing.assert_allclose(found, unit * norm * scale, rtol=1e-12)


# ---- Coverage ----

TABLES, KEYS, PERIODS, LEVEL = 400, 25, 24, 0.95


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["figures"])
def test_intervals_cover(kind: dict[str, Any]) -> None:
    """The keys of a table have independent noise: 400 tables of 25 keys, in 4 of 2500."""
    count = TABLES * KEYS // 4
    keys = [f"key {i}" for i in range(count)]
    rng = np.random.default_rng(7)
    inside, narrow, total = {"count": 0, "sum": 0}, 0, 0
    for seed in range(4):
        table = dpf.PrivateCounter.calibrate(
            keys, PERIODS, epsilon=1.0, delta=1e-6, start=0, period=1, values=(-2.0, 6.0),
            seed=seed, **kind,
        )  # fmt: skip
        n = 3 * count * PERIODS
        time, key = rng.integers(0, PERIODS, n), rng.integers(0, count, n)
        value = rng.uniform(-3, 7, n)
        table.add({"time": time, "key": [keys[k] for k in key], "value": value})
        true = np.zeros((2, PERIODS, count))
        np.add.at(true[0], (time, key), 1)
        np.add.at(true[1], (time, key), np.clip(value, -2, 6))
        true = differences(kind, PERIODS) @ np.cumsum(true, axis=1)
        table.release(PERIODS / 2)
        shown = [table.release()]
        assert len(shown[0]) == count * PERIODS // 2
        found = table.table(level=LEVEL)
        for exact, measure in zip(true, inside, strict=True):
            low, high = (np.asarray(found[f"{measure}_{end}"]) for end in ("low", "high"))
            inside[measure] += int(((low <= exact.ravel()) & (exact.ravel() <= high)).sum())
        error = np.abs(np.asarray(found["count"]) - true[0].ravel())
        narrow += int((error <= 0.9 * 1.96 * np.asarray(found["count_std"])).sum())
        total += exact.size
    assert 0.94 < inside["count"] / total < 0.96
    assert 0.94 < inside["sum"] / total < 0.96
    assert not 0.94 < narrow / total < 0.96  # the test has the power to tell


# ---- The mechanism ----


def test_the_mechanism_is_the_best_for_the_figures() -> None:
    days: dict[str, Any] = {"start": "2013-01-01", "period": "1D"}
    table = {
        kind["figures"]: dpf.PrivateCounter.calibrate(
            ["a"], 365, epsilon=1.0, delta=1e-6, **days, **kind
        )
        for kind in KINDS
    }
    tree = dpf.PrivateCounter.calibrate(
        ["a"], 365, epsilon=1.0, delta=1e-6, mechanism="tree", **days
    )
    assert table["period"].plan.mechanism == Identity()
    assert tree.plan.mechanism == Tree()
    for kind in KINDS:
        error = {
            name: float(np.sqrt(np.mean(one.std(**kind) ** 2)))
            for name, one in {**table, "tree": tree}.items()
        }
        assert error[kind["figures"]] == min(error.values()), (kind, error)
    # The figures of docs/streams/tables.md.
    rms = [
        [round(float(np.sqrt(np.mean(one.std(name) ** 2))), 1) for name in ("period", "running")]
        for one in (table["period"], table["running"], tree)
    ]
    assert rms == [[4.2, 57.2], [7.8, 11.6], [13.9, 19.8]]
    weeks = [
        [round(float(np.sqrt(np.mean(one.std(window=w) ** 2))), 1) for w in (7, 30)]
        for one in (table["period"], table["running"], tree)
    ]
    assert weeks == [[11.1, 22.7], [10.9, 12.6], [20.0, 23.2]]
    last = [one.std("running")[-1].round(1) for one in (table["period"], table["running"], tree)]
    assert last == [80.7, 12.9, 24.1]
    for periods, wanted in ((36_525, 12.6), (None, 13.1)):
        long = dpf.PrivateCounter.calibrate(
            ["a"], periods, epsilon=1.0, delta=1e-6, **days,
            mechanism=None if periods is None else BufferedToeplitz.unbounded(),
        )  # fmt: skip
        assert long.plan.mechanism == BufferedToeplitz.unbounded()
        assert long.epsilon(1e-6) <= 1.0 and long.periods == (periods or 2**20)
        assert round(float(np.sqrt(np.mean(long.std("running")[:365] ** 2))), 1) == wanted


def test_without_an_end_windows_and_users_have_the_best_of_two(tmp_path: Path) -> None:
    given = {"epsilon": 1.0, "delta": 1e-6, "start": 0, "period": 1}
    chosen = {
        window: dpf.PrivateCounter.calibrate(
            ["a"], None, figures="window", window=window, **given
        ).plan.mechanism
        for window in (1, 2, 30)
    }
    assert chosen == {1: Identity(), 2: Identity(), 30: BufferedToeplitz.unbounded()}
    users = dpf.PrivateCounter.calibrate(["a"], None, unit="user", user_periods=20, **given)
    assert users.plan.participation == MinSeparation(2**20, 20, 1)
    users.add({"time": [0, 0, 3], "key": ["a"] * 3, "user": [1, 2, 1]})
    users.save(tmp_path / "table")
    assert len(users.release(until=5)["count"]) == 5
    users.close()
    with dpf.PrivateCounter.open(tmp_path / "table") as again:
        assert again.periods_closed == 5 and len(again.release(until=6)["count"]) == 1


def test_windows_have_the_least_error_of_all_candidates() -> None:
    from dpftrl_fast.streams.tables.mechanism import mechanism_for

    pattern = SinglePass(365)
    found = {w: mechanism_for("window", w, pattern, 1.0, 1e-6) for w in (1, 7, 30, 365)}
    assert found[1] == Identity()
    assert found[365] == mechanism_for("running", None, pattern, 1.0, 1e-6)
    for window, chosen in found.items():
        errors = {}
        for mechanism in (chosen, Identity(), Tree(), Tree(restart_every=2 * window)):
            table = dpf.PrivateCounter.calibrate(
                ["a"], 365, epsilon=1.0, delta=1e-6, start=0, period=1, mechanism=mechanism
            )
            std = table.std("window", window=window)
            errors[mechanism] = float(np.sqrt(np.mean(std**2)))
        assert errors[chosen] <= min(errors.values()) * (1 + 1e-12)


# ---- Privacy that is seen ----


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["figures"])
def test_neighbours_are_told_apart_no_better_than_stated(kind: dict[str, Any]) -> None:
    """Every key is a run of its own, with or without one event with an extreme value."""
    runs, delta = 20_000, 0.01
    keys = [str(i) for i in range(2 * runs)]
    options = {**kind, **({"window": 2} if "window" in kind else {})}
    for epsilon in (0.5, 2.0):
        table = dpf.PrivateCounter.calibrate(
            keys, 3, epsilon=epsilon, delta=delta, start=0, period=1, values=(0.0, 1.0), seed=5,
            **options,
        )  # fmt: skip
        present = keys[:runs]
        table.add({"time": [0] * runs, "key": present, "value": [1.0] * runs})
        table.release()
        # The likelihood ratio of the whole released table, with the public covariance.
        released = table._released.reshape(3, 2, 2 * runs)
        noise = sum_matrix(table.plan.mechanism, [3])
        weights = np.linalg.solve(noise @ noise.T, np.ones(3))
        score = np.einsum("t,tmk->k", weights, released)
        found = epsilon_lower_bound(score[:runs], score[runs:], delta=delta, confidence=0.99)
        stated = table.epsilon(delta)
        assert found <= stated <= epsilon
        assert found > 0.6 * stated  # the test has the power to tell


# ---- Frames ----


def test_columns_of_a_table() -> None:
    table = dpf.PrivateCounter(
        ["a", "b"], 3, 1.0, start="2013-01-01", period="12h", values=(0, 1), seed=1
    )
    empty = table.release("2013-01-01")
    shown = table.release("2013-01-02T05:00")
    measures = [f"{m}{end}" for m in ("count", "sum") for end in ("", "_std", "_low", "_high")]
    assert list(shown) == list(empty) == ["period_start", "period_end", "key", *measures]
    assert len(empty) == 0 and shown["key"].tolist() == ["a", "b"] * 2
    assert shown["period_end"].astype(str).tolist()[2] == "2013-01-02 00:00:00"
    assert table.table().equals(shown)
    for since, rows in (("2012", 4), ("2013-01-01T11:59", 4), ("2013-01-01T12:00", 2), ("2014", 0)):
        assert table.table(since=since).equals(shown[4 - rows :].reset_index(drop=True))
    with pytest.raises(ValueError, match="since must be a time"):
        table.table(since="now")
    half = shown["count_high"] - shown["count"]
    np.testing.assert_allclose(half / shown["count_std"], 1.959964, rtol=1e-6)
    wide = table.table(level=0.99)
    assert (wide["count_high"] > shown["count_high"]).all()
    running = table.table("running")["count"].to_numpy()
    period = table.table("period")["count"].to_numpy()
    np.testing.assert_allclose(running.reshape(2, 2), period.reshape(2, 2).cumsum(axis=0))


def test_arrays_where_pandas_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_figures, "find_spec", lambda name: None)
    table = Facts().counter(4.0)
    shown = table.release(4)
    assert isinstance(shown, dict) and {len(column) for column in shown.values()} == {6}


@pytest.mark.parametrize(
    ("options", "figures", "label"),
    [
        ({}, {"figures": "running"}, "events so far"),
        ({}, {"figures": "period"}, "events a period"),
        ({"unit": "user-period"}, {"figures": "period"}, "users a period"),
        ({"unit": "user", "user_periods": 2}, {"figures": "period"}, "users a period"),
        ({"unit": "user-period"}, {"window": 7}, "users of each period, in 7 periods"),
        ({"unit": "user-period", "events_per_key": 2}, {"figures": "running"}, "events so far"),
        ({"values": (0, 1)}, {"figures": "period", "measure": "sum"}, "value a period"),
    ],
)
def test_a_point_of_a_picture_stands_at_the_start_of_its_period(
    options: dict[str, Any], figures: dict[str, Any], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day stood at the next one: weekdays were shifted. And users were called events."""
    seen: dict[str, Any] = {}

    def picture(drawn: list[bands.Band], **words: str) -> bytes:
        seen.update(words, bands=drawn)
        return b""

    monkeypatch.setattr(bands, "bands_png", picture)
    table = dpf.PrivateCounter(["a", "b"], 9, 1.0, start="2013-01-01", period="1D", **options)
    table.release("2013-01-09")
    table.plot(**figures, since="2013-01-03")
    assert seen["ylabel"] == label
    measure = figures.pop("measure", "count")
    shown = table.table(**figures, since="2013-01-03", keys=["b"])
    assert seen["bands"][1].x.tolist() == np.array(shown["period_start"], "M8[us]").tolist()
    assert seen["bands"][1].y.tolist() == list(shown[measure])


@pytest.mark.parametrize("numbers", [True, False])
def test_pictures(numbers: bool) -> None:
    when: dict[str, Any] = {"start": 0, "period": 1} if numbers else {
        "start": "2013-01-01", "period": "1h"
    }  # fmt: skip
    table = dpf.PrivateCounter(["a", "b"], 9, 1.0, values=(0, 1), spare_keys=1, **when)
    table.release()
    pictures = {
        table.plot(),
        table.plot("period", keys=["b"], level=0.5),
        table.plot("window", window=3, measure="sum", title="sums"),
        table.plot(since=5 if numbers else "2013-01-01T05:00"),
    }
    assert len(pictures) == 4
    assert all(picture[:4] == b"\x89PNG" for picture in pictures)


def test_the_level_of_the_bands_is_named_beside_the_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names covered the lines, and nothing said which level the bands have."""
    figures: list[Any] = []

    def kept(figure: Any) -> bytes:
        figure.canvas.draw()
        figures.append(figure)
        return b""

    monkeypatch.setattr(bands, "png", kept)
    table = dpf.PrivateCounter(["a", "b"], 4, 1.0, start="2013-01-01", period="1D")
    table.release()
    for level, words in ((0.95, "bands: 95 % intervals"), (0.995, "bands: 99.5 % intervals")):
        table.plot(level=level)
        axes, legend = figures[-1].axes[0], figures[-1].legends[0]
        assert legend.get_title().get_text() == words
        assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
        assert axes.get_legend() is None
        assert legend.get_window_extent().x0 >= axes.get_window_extent().x1
