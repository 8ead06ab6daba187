# SPDX-License-Identifier: Apache-2.0
"""`private_quantiles`: their ranks, the sums that a row moves, and the epsilon that they state."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpftrl_fast import BudgetExceeded, PrivacyBudget
from dpftrl_fast.accounting import SinglePass, compose
from dpftrl_fast.preprocessing import BoundedScaler, private_quantiles, quantiles
from dpftrl_fast.streams.prefix_sum import PrefixSum


def columns(n: int = 20_000) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return np.column_stack([rng.uniform(20, 60, n), rng.lognormal(10, 1, n)])


@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_ranks_are_as_close_as_the_noise_says(spacing: str) -> None:
    x = columns()
    wanted = (0.0, 0.05, 0.5, 0.95, 1.0)
    bounds = [(-100, 100), (0, 1e6)]
    found = private_quantiles(
        x, bounds, wanted, epsilon=1.0, spacing=spacing, bins=4096, noise_seed=1
    )
    assert found.values.shape == (5, 2) and found.reproducible
    for j in range(2):
        ranks = [(x[:, j] <= value).sum() for value in found.values[1:4, j]]
        bin_rows = 300 if (spacing, j) == ("linear", 1) else 120
        assert np.abs(np.array(ranks) - np.array(wanted[1:4]) * len(x)).max() < (
            5 * found.count_std + bin_rows
        )
    assert np.all(np.diff(found.values, axis=0) >= 0)
    assert found.count_std < 60


def test_the_budget_is_that_of_all_columns() -> None:
    x = np.zeros((10, 7))
    found = private_quantiles(x, (-1, 1), epsilon=0.7, delta=1e-7, bins=64)
    assert 0.6999 < found.epsilon(1e-7) <= 0.7 and len(found.plans) == 7
    one = private_quantiles(x[:, :1], (-1, 1), epsilon=0.7, delta=1e-7, bins=64)
    ratio = found.plans[0].noise_multiplier / one.plans[0].noise_multiplier
    assert ratio == pytest.approx(math.sqrt(7), rel=1e-3)
    assert all(plan.participation == SinglePass(64) for plan in found.plans)
    together = compose([found, one])
    assert together.mu**2 == pytest.approx(found.mu**2 + one.mu**2)
    assert not found.reproducible


def sums_of(x: Any, **options: Any) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """Return what each column adds at each step, and the result."""
    added: list[Any] = []
    add = PrefixSum.add

    def kept(self: Any, records: Any, out: Any = None) -> Any:
        added.append(np.sum(records))
        return add(self, records, out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrefixSum, "add", kept)
        found = private_quantiles(x, [(-1, 1), (0, 9)], bins=16, noise_seed=5, **options)
    return np.array(added).reshape(2, 16), found


@pytest.mark.parametrize("row", [(0.3, 4.0), (1e300, -np.inf), (np.nan, 3.0), (np.nan, np.nan)])
@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_a_row_is_one_record_of_one_step_of_each_column(row: Any, spacing: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform([-1, 0], [1, 9], (50, 2))
    other = x.copy()
    other[7] = row
    gone = x.copy()
    gone[7] = np.nan  # not counted: the neighbour
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        (sums, one), (without, two) = (sums_of(data, spacing=spacing) for data in (other, gone))
    for column in range(2):
        moved = sums[column] - without[column]
        counted = not np.isnan(row[column])
        assert sorted(moved.tolist()) == [0.0] * 15 + [float(counted)]
    assert one.plans == two.plans and one.count_std == two.count_std


def test_counts_are_those_of_a_histogram() -> None:
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=1000)
    edges = np.linspace(-1, 1, 9)
    found = quantiles._counts(np.append(numbers, [np.nan, np.inf, -np.inf]), edges)
    expected = np.histogram(np.clip(np.append(numbers, [9, -9]), -1, 1), edges)[0]
    np.testing.assert_array_equal(found, expected)


def test_frames_and_names() -> None:
    rows = pd.DataFrame(columns(), columns=["age", "income"])
    found = private_quantiles(
        rows, {"income": (0, 1e6), "age": (0, 120)}, epsilon=2.0, noise_seed=0
    )
    scaler = BoundedScaler(found.bounds).fit(rows)
    assert scaler.get_feature_names_out().tolist() == ["income", "age"]
    assert 18 < found.bounds["age"][0] < 22 and 58 < found.bounds["age"][1] < 62
    series = private_quantiles(rows["age"], (0, 120), epsilon=2.0, noise_seed=0)
    assert series.bounds[0][1] == pytest.approx(60, abs=1)


def test_bounds_of_one_bin_are_usable() -> None:
    found = private_quantiles(np.zeros(2000), (0, 1), (0.5,), epsilon=5.0, bins=4)
    assert BoundedScaler(found.bounds).fit_transform([[0.3]]).shape == (1, 1)


def test_no_rows_and_only_noise_have_quantiles() -> None:
    for x in (np.zeros((0, 1)), np.full((3, 1), np.nan), np.full((1, 1), "Smith")):
        found = private_quantiles(x, (0, 10), epsilon=0.01, bins=32)
        assert np.all((found.values >= 0) & (found.values <= 10))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"quantiles": ()}, "at least one"),
        ({"quantiles": (1.1,)}, r"\[0, 1\]"),
        ({"quantiles": (math.nan,)}, r"\[0, 1\]"),
        ({"epsilon": 0}, "epsilon"),
        ({"delta": 1}, "delta"),
        ({"bins": 1}, "bins"),
        ({"spacing": "sqrt"}, "spacing"),
        ({"bounds": [["a", "b"]]}, "every column"),
        ({"bounds": [(0, 1)] * 3}, "3 columns"),
    ],
)
def test_wrong_arguments_are_refused(options: Any, words: str) -> None:
    given = {"bounds": (0, 1), **options}
    with pytest.raises(ValueError, match=words):
        private_quantiles(np.zeros((5, 1)), **given)


# ---- Budgets ----


def test_quantiles_are_charged_to_the_block_and_to_the_budget_given() -> None:
    x = np.zeros((10, 3))
    own = PrivacyBudget(2.0, 1e-6)
    with PrivacyBudget(1.0, 1e-6, neighbours="replace-one") as block:
        one = private_quantiles(x, (-1, 1), epsilon=0.3, bins=16)
        two = private_quantiles(x, (-1, 1), epsilon=0.1, bins=16, budget=own)
        private_quantiles(x, (-1, 1), epsilon=0.1, bins=16, budget=block)  # once
    third = private_quantiles(x, (-1, 1), epsilon=0.2, bins=16, budget=own)
    assert [row.label for row in own.table()] == [
        "private_quantiles, 3 columns, epsilon 0.1, 16 bins",
        "private_quantiles, 3 columns, epsilon 0.2, 16 bins",
    ]
    assert own.spent == compose([two, third]).epsilon(1e-6)
    expected = compose([one, two, two])
    assert block.spent == expected.epsilon(1e-6, neighbours="replace-one")
    assert block.guarantee.mu_squared == pytest.approx(sum(q.mu**2 for q in (one, two, two)))


def test_quantiles_beyond_a_budget_are_refused_before_a_row_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    budget = PrivacyBudget(0.3, 1e-6)

    def counts(*_: Any) -> Any:
        read.append(len(budget.table()))
        raise OSError("the rows end here")

    monkeypatch.setattr(quantiles, "_counts", counts)
    x = np.zeros((10, 1))
    with budget, pytest.raises(BudgetExceeded):
        private_quantiles(x, (0, 1), epsilon=0.4)
    assert read == [] and budget.table() == []
    with budget, pytest.raises(OSError, match="the rows end here"):
        private_quantiles(x, (0, 1), epsilon=0.2)
    assert read == [1] and len(budget.table()) == 1  # charged before, and it stays


def test_a_call_that_is_wrong_is_not_charged() -> None:
    x = np.zeros((10, 1))
    with PrivacyBudget(0.3, 1e-6) as budget:
        with pytest.raises(ValueError, match="noise_seed must be None inside a privacy budget"):
            private_quantiles(x, (0, 1), noise_seed=1)
        for wrong in ({"bounds": (1, 0)}, {"quantiles": (2.0,)}, {"x": np.zeros((3, 1, 2))}):
            with pytest.raises(ValueError, match=r"bounds|quantiles|dim"):
                private_quantiles(**{"x": x, "bounds": (0, 1), **wrong})
    with pytest.raises(TypeError, match="budget must be a PrivacyBudget or None, got float"):
        private_quantiles(x, (0, 1), budget=1.0)  # type: ignore[arg-type]
    assert budget.table() == []


@pytest.mark.parametrize("row", [(1e300, -np.inf), (np.nan, np.nan)])
def test_a_charge_does_not_depend_on_values(row: Any) -> None:
    rng = np.random.default_rng(2)
    x = rng.uniform([-1, 0], [1, 9], (50, 2))
    other = x.copy()
    other[7] = row
    tables = []
    for data in (x, other):
        with PrivacyBudget(1.0, 1e-6) as budget, np.errstate(all="raise"):
            private_quantiles(data, [(-1, 1), (0, 9)], bins=16)
        tables.append(budget.table())
    assert tables[0] == tables[1] and len(tables[0]) == 1
