# SPDX-License-Identifier: Apache-2.0
"""What the private estimators share: parameters, plans, orders of batches, rows and targets."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse

from dpftrl_fast.accounting import FixedEpochs, SinglePass, plan_schedule
from dpftrl_fast.convex.row_batches import SparseRows
from dpftrl_fast.convex.setting_rules import check_settings
from dpftrl_fast.kernels.finite import first_bad
from dpftrl_fast.linear_model import DPFTRLRegressor
from dpftrl_fast.linear_model._stream import stream_batch
from dpftrl_fast.linear_model._targets import ClassTargets, NumberTargets, classes_of
from dpftrl_fast.linear_model.sources.labels import group_numbers
from dpftrl_fast.linear_model.sources.memory import (
    MemoryRows,
    batch_order,
    check_rows,
    refuse_bad_rows,
)
from dpftrl_fast.linear_model.sources.source import RowSource
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.plan.from_budget import mechanism_of, participation_of, plan_of

FIRST = {"epsilon": 1.0, "noise_multiplier": None}
PLAN = FIRST | {
    "delta": 1e-6, "clip_norm": 0.5, "variant": "honaker", "restart_every": "auto",
    "complete": "auto", "momentum": 0.0,
}  # fmt: skip


def wanted(pattern, **changes):
    fields = PLAN | changes
    names = ("variant", "restart_every", "complete")
    tree = {name: fields.pop(name) for name in names}
    workload = Workload(momentum=fields.pop("momentum"))
    choice = mechanism_of(tree | {"mechanism": "tree"})
    return plan_of(pattern, mechanism=choice, workload=workload, **fields)


# ---- Parameters ----


@pytest.mark.parametrize(
    ("changes", "came"),
    [
        ({"epsilon": None}, "neither"),
        ({"noise_multiplier": 1.0}, "both"),
    ],
)
def test_one_of_epsilon_and_noise_multiplier_is_given(changes, came):
    with pytest.raises(ValueError, match=f"exactly one of .* got {came}"):
        check_settings(FIRST | changes)


def test_numbers_become_python_numbers():
    checked = check_settings(
        FIRST | {"delta": np.float32(0.5), "batch_size": np.int64(3), "shuffle": np.True_}
    )
    assert type(checked["delta"]) is float and type(checked["batch_size"]) is int
    assert checked["shuffle"] is True


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("delta", 1.0, ValueError, "delta must be a finite number > 0 and < 1, got 1.0"),
        ("radius", math.inf, ValueError, "radius must be a finite number in .* got inf"),
        (
            "learning_rate",
            "fast",
            ValueError,
            "learning_rate must be 'auto', 'theory' or a number, got 'fast'",
        ),
        (
            "restart_every",
            "often",
            ValueError,
            "restart_every must be 'auto' or a number, got 'often'",
        ),
        ("complete", 1, ValueError, "complete must be one of 'auto', False, True, 'all', got 1"),
        ("noise_seed", -1, ValueError, "noise_seed must be an integer >= 0, got a negative one"),
        ("noise_seed", 1.5, TypeError, "noise_seed must be an integer, got float"),
        ("shuffle", 1, TypeError, "shuffle must be a bool, got int"),
        ("verbose", -1, ValueError, "verbose must be an integer >= 0, got -1"),
        ("threads", "all", TypeError, "threads must be an integer >= 1, got str"),
    ],
)
def test_wrong_parameters_are_refused_in_words(name, value, error, message):
    with pytest.raises(error, match=message):
        check_settings(FIRST | {name: value})


# ---- Plans ----


def test_one_pass_has_one_tree():
    plan = wanted(SinglePass(100))
    assert plan.layout.count == 1 and plan.bound == "released" and plan.clip_norm == 0.5
    assert 0.999 < plan.epsilon(1e-6) <= 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_several_epochs_have_the_planners_best(momentum):
    pattern = FixedEpochs(50, 6, reshuffle=False)
    plan = wanted(pattern, momentum=momentum)
    best = plan_schedule(
        1.0, 1e-6, participation=pattern, momentum=momentum,
        rank_by="smoothed" if momentum else "rms",
    ).best  # fmt: skip
    assert plan.mechanism == best.mechanism
    assert plan.noise_multiplier == pytest.approx(best.noise_multiplier, rel=1e-9)
    noisy = wanted(pattern, epsilon=None, noise_multiplier=4.0, momentum=momentum)
    assert noisy.mechanism == plan.mechanism and noisy.noise_multiplier == 4.0


def test_explicit_schedules_are_taken():
    pattern = FixedEpochs(50, 6)
    plan = wanted(pattern, restart_every=100, complete="all")
    assert plan.mechanism == Tree(restart_every=100, complete="all")
    assert wanted(pattern, restart_every=None).layout.count == 1
    assert wanted(pattern, complete=False).mechanism.complete is False
    assert wanted(SinglePass(100), restart_every=20).layout.count == 5


def test_who_takes_part_when():
    assert participation_of(100, 30, 1, True) == SinglePass(4)
    assert participation_of(100, 30, 2, False) == FixedEpochs(4, 2, reshuffle=False)
    assert participation_of(100, 30, 2, True) == FixedEpochs(4, 2, reshuffle=True)


# ---- Orders ----


def places(units, order):
    return [np.arange(units)[part].tolist() for part in order]


def test_batches_in_order():
    order = [*batch_order(7, 3, 2, Tree().layout(6))]
    assert places(7, order) == [[0, 1, 2], [3, 4, 5], [6]] * 2
    assert all(isinstance(units, slice) for units in order)


@pytest.mark.parametrize("every", [None, 3, 6, 2, 4])
def test_shuffled_batches_are_dealt_anew_at_restarts_that_begin_an_epoch(every):
    trees = Tree(restart_every=every).layout(12)
    given = batch_order(7, 3, 4, trees, shuffle=True, random_state=5)
    order = [tuple(place) for place in places(7, given)]
    epochs = [order[i : i + 3] for i in range(0, 12, 3)]
    for epoch in epochs:
        assert sorted(unit for batch in epoch for unit in batch) == list(range(7))
    again = [epochs[i] != epochs[i - 1] for i in range(1, 4)]
    begins = [every is not None and 3 * i % every == 0 for i in range(1, 4)]
    assert again == begins


def test_an_order_is_that_of_its_random_state():
    one, same, other = (
        places(50, batch_order(50, 8, 1, None, shuffle=True, random_state=state))
        for state in (1, 1, 2)
    )
    assert one == same != other


# ---- Rows ----


def test_the_first_bad_number_is_found():
    for dtype in (np.float32, np.float64):
        values = np.random.default_rng(0).standard_normal(10_001).astype(dtype)
        values[:3] = np.finfo(dtype).max, np.finfo(dtype).tiny / 4, -0.0
        assert first_bad(values) is None
        for place in (0, 1, 4095, 4096, 4097, 10_000):
            for value in (np.nan, np.inf, -np.inf):
                bad = values.copy()
                bad[place] = value
                assert first_bad(bad) == place
                bad[place + 1 :] = np.nan
                assert first_bad(bad) == place
        assert first_bad(values[:0]) is None


def test_bad_rows_are_named():
    X = np.ones((5, 3))
    X[3, 1], X[4, 0] = np.inf, np.nan
    for rows in (X, X.astype(np.float32)):
        with pytest.raises(ValueError, match="X must be finite, got infinity in row 3"):
            refuse_bad_rows(rows)
    sparse = scipy.sparse.csr_array(np.where(np.arange(5)[:, None] == 2, 0.0, X))
    with pytest.raises(ValueError, match="got infinity in row 3"):
        refuse_bad_rows(SparseRows.of(sparse))


def test_rows_keep_their_memory():
    for dtype in (np.float32, np.float64):
        X = np.ones((4, 3), dtype=dtype)
        assert np.shares_memory(check_rows(X, estimator=None), X)
        sparse = scipy.sparse.csr_array(X)
        assert np.shares_memory(check_rows(sparse, estimator=None).data, sparse.data)
    assert check_rows(np.ones((4, 3), dtype=int), estimator=None).dtype == np.float64
    assert check_rows(np.asfortranarray(np.eye(3)), estimator=None).flags.c_contiguous


def test_batches_of_rows_in_order_are_views():
    X, y = np.arange(12.0).reshape(6, 2), np.arange(6.0)
    source = MemoryRows(X, y)
    batch = source.batch(slice(2, 4), y)
    assert np.shares_memory(batch.X, X) and batch.ids is None and batch.starts is None
    dealt = source.batch(np.array([5, 0]), y)
    assert dealt.X.tolist() == X[[5, 0]].tolist() and dealt.ids.tolist() == [5, 0]


@pytest.mark.parametrize("sparse", [False, True])
def test_users_come_whole_in_the_order_in_which_they_appear(sparse):
    X, y = np.arange(14.0).reshape(7, 2) + 1, np.arange(7.0)
    groups = ["c", "a", "c", "b", "a", "a", "d"]
    source = MemoryRows(SparseRows.of(scipy.sparse.csr_array(X)) if sparse else X, y, groups)
    assert source.units == 4
    batch = source.batch(slice(0, 2), y)
    assert batch.y.tolist() == [0, 2, 1, 4, 5] and batch.starts.tolist() == [0, 2, 5]
    rows = batch.X.to_scipy().toarray() if sparse else batch.X
    assert rows.tolist() == X[[0, 2, 1, 4, 5]].tolist()
    assert source.batch(np.array([3, 0]), y).y.tolist() == [6, 0, 2]
    assert group_numbers(groups, 7).tolist() == [0, 1, 0, 2, 1, 1, 3]


def test_ids_of_a_stream_are_those_of_the_labels():
    X, y = np.ones((4, 1)), np.zeros(4)
    one = stream_batch(X, y, ["x", "y", "x", "z"])
    other = stream_batch(X, y, np.array(["z", "x", "x", "w"], dtype=object))
    assert one.ids[0] == other.ids[1] and one.ids[2] == other.ids[0]
    assert len({*one.ids.tolist(), *other.ids.tolist()}) == 4
    assert stream_batch(X, y).ids is None


# ---- Targets ----


def test_numbers_are_clipped_and_bad_ones_are_nan():
    y = np.array([0.5, -7.0, np.nan, np.inf, -np.inf])
    within = NumberTargets.within
    np.testing.assert_array_equal(within(1.0).encode(y), [0.5, -1, np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(within((-9.5, 0.5)).encode(y)[:3], [1.0, -0.5, np.nan])
    np.testing.assert_allclose(within((1e100, 2e100)).encode([1.75e100, 0.0]), [0.5, -1.0])
    np.testing.assert_array_equal(within(None).encode([3, -2]), [3.0, -2.0])
    with pytest.raises(ValueError, match="y must be finite, got NaN in row 2"):
        within(1.0).refuse_bad(y)


@pytest.mark.parametrize(
    ("classes", "y"),
    [
        (["a", "b", "d"], ["b", "d", "c", "", "z"]),
        (["a", "b", "d"], np.array(["b", "d", None, {}, 10**400], dtype=object)),
        ([0, 1, 5], [1, 5, 3, -1, 9]),
        ([0, 1, 5], [1.0, 5.0, 0.5, np.nan, np.inf]),
        ([False, True], [True, True, 2, -1, 7]),
    ],
)
def test_labels_become_numbers(classes, y):
    targets = ClassTargets(classes_of(classes, None))
    first = [1.0, 1.0] if len(classes) == 2 else [1.0, 2.0]
    np.testing.assert_array_equal(targets.encode(np.asarray(y)), [*first, *[np.nan] * 3])
    assert targets.outputs == (1 if len(classes) == 2 else 3)
    with pytest.raises(ValueError, match=r"y must hold the classes .* in row 2"):
        targets.refuse_bad(np.asarray(y))


@pytest.mark.parametrize(
    ("classes", "y", "message"),
    [
        (None, [1, 1], "at least 2 classes, got 1 class"),
        ([1], None, "at least 2 labels, each once"),
        ([1, 2, 1], None, "at least 2 labels, each once"),
        ([[1, 2]], None, r"one-dimensional, got shape \(1, 2\)"),
        ([0.0, np.nan], None, "classes must be finite"),
        (None, [0.0, np.nan], "y must be finite, got NaN in row 1"),
    ],
)
def test_wrong_classes_are_refused(classes, y, message):
    with pytest.raises(ValueError, match=message):
        classes_of(classes, y)


# ---- Sources ----


class Source(RowSource):
    def __init__(self, X, y):
        self.inner, self.n_features = MemoryRows(X, y), X.shape[1]
        self.units = self.rows = len(X)

    def feed(self, run, order, encode, progress):
        self.inner.feed(run, order, encode, progress)


def test_a_source_of_batches_makes_the_model_of_a_fit():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3))
    y = X @ [1.0, 0.0, -1.0]
    options = {"batch_size": 8, "x_norm_bound": 2.0, "y_bound": 1.0, "noise_seed": 1}
    one = DPFTRLRegressor(**options).fit(X, y)
    other = DPFTRLRegressor(**options).fit(Source(X, y), None)
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert other.n_features_in_ == 3
    with pytest.raises(ValueError, match="compute_regret needs rows in memory"):
        DPFTRLRegressor(**options, compute_regret=True).fit(Source(X, y), None)


def test_without_scikit_learn_the_extra_is_named():
    code = "import sys; sys.modules['sklearn'] = None; import dpftrl_fast.linear_model"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "scikit-learn: pip install 'dpftrl-fast[sklearn]'" in done.stderr.splitlines()[-1]


def test_an_interruption_leaves_no_model_with_the_epsilon_of_another():
    X, y = np.eye(3), np.ones(3)
    before = DPFTRLRegressor(0.5, x_norm_bound=1.0, y_bound=1.0, batch_size=1, epochs=1).fit(X, y)

    def interrupted_at(line):
        """Fit again, interrupted at a line of the publication; return whether it was reached."""
        model, seen = copy.deepcopy(before).set_params(epsilon=4.0), 0

        def trace(frame, event, argument):
            nonlocal seen
            if frame.f_code.co_name != "_publish":
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    raise KeyboardInterrupt
            return trace

        own = sys.gettrace()
        sys.settrace(trace)
        try:
            model.fit(X, y)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(own)
        for name in ("coef_", "coef_last_", "coef_tail_", "coef_average_"):
            same = np.array_equal(getattr(model, name), getattr(before, name))
            assert (model.epsilon_ == before.epsilon_) == same, (line, name)
        return seen >= line

    lines = 1
    while interrupted_at(lines):
        lines += 1
    assert lines > 20
