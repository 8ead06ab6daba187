# SPDX-License-Identifier: Apache-2.0
"""A privacy budget: its arithmetic, its file, crashes and races, and handles of it."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import pickle
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import child

from dpftrl_fast import BudgetExceeded, PrefixSum, PrivacyBudget, PrivacyPlan, SinglePass
from dpftrl_fast import accounting as acc
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run import budget_file
from dpftrl_fast.run.budget import charge, check, entered_budgets
from dpftrl_fast.run.budget_file import locked
from dpftrl_fast.run.budget_share import share

DELTA = 1e-6


def plan(sigma: float = 20.0, steps: int = 10) -> PrivacyPlan:
    return PrivacyPlan(1.0, sigma, SinglePass(steps))


def calibrated(epsilon: float, steps: int = 10) -> PrivacyPlan:
    return PrivacyPlan.calibrate(
        epsilon=epsilon, delta=DELTA, clip_norm=1.0, participation=SinglePass(steps)
    )


# ---- Arithmetic ----


@settings(max_examples=40, deadline=None)
@given(
    sigmas=st.lists(st.floats(2.0, 500.0), min_size=1, max_size=5),
    steps=st.integers(1, 40),
    neighbours=st.sampled_from(["zero-out", "replace-one"]),
)
def test_all_runs_together_are_those_that_compose_states(
    sigmas: list[float], steps: int, neighbours: Any
) -> None:
    plans = [plan(sigma, steps) for sigma in sigmas]
    plans += [LeastSquaresPlan(1.0, 1.0, sigmas[0], SinglePass(steps))]
    budget = PrivacyBudget(1000.0, DELTA, neighbours=neighbours)
    for one in plans:
        budget.spend(one)
    together = acc.compose(plans)
    assert budget.spent == together.epsilon(DELTA, neighbours=neighbours)
    assert budget.guarantee.mu_squared == together.mu_squared
    rows = budget.table()
    for place, (one, row) in enumerate(zip(plans, rows, strict=True)):
        assert row.epsilon == one.epsilon(DELTA, neighbours=neighbours)
        total = acc.compose(plans[: place + 1]).epsilon(DELTA, neighbours=neighbours)
        assert row.together == total
    # By hand, the floor of delta left aside: mu^2 of all is the sum.
    square = sum(Fraction(one.guarantee.mu_squared) for one in plans)
    scale = 4 if neighbours == "replace-one" else 1
    least = acc.epsilon(1.0, float(square * scale) * (1 - 1e-12), DELTA)
    assert least <= budget.spent <= least * (1 + 1e-4) + 1e-6


@settings(max_examples=40, deadline=None)
@given(
    epsilon=st.floats(0.05, 4.0),
    delta=st.sampled_from([1e-6, 1e-9]),
    fits=st.integers(1, 30),
    before=st.one_of(st.none(), st.floats(0.01, 0.9)),
    neighbours=st.sampled_from(["zero-out", "replace-one"]),
)
def test_shares_use_up_the_budget_and_never_exceed_it(
    epsilon: float, delta: float, fits: int, before: float | None, neighbours: Any
) -> None:
    spent = None
    if before is not None:
        half = before * epsilon / (2.1 if neighbours == "replace-one" else 1)
        spent = PrivacyPlan.calibrate(
            epsilon=half, delta=delta, clip_norm=1.0, participation=SinglePass(10)
        ).guarantee
    each = share(spent, fits, epsilon=epsilon, delta=delta, neighbours=neighbours)
    assert 0 < each <= epsilon
    one = PrivacyPlan.calibrate(
        epsilon=each, delta=delta, clip_norm=1.0, participation=SinglePass(10)
    ).guarantee
    runs = [*([spent] if spent is not None else []), *[one] * fits]
    together = acc.compose(runs).epsilon(delta, neighbours=neighbours)
    assert together <= epsilon
    # And a share of 1 % more would not do.
    more = PrivacyPlan.calibrate(
        epsilon=each * 1.01, delta=delta, clip_norm=1.0, participation=SinglePass(10)
    ).guarantee
    runs = [*([spent] if spent is not None else []), *[more] * fits]
    if before is None or before < 0.8:
        assert acc.compose(runs).epsilon(delta, neighbours=neighbours) > epsilon


def test_a_fresh_budget_fits_one_run_exactly() -> None:
    budget = PrivacyBudget(1.0, DELTA)
    assert (budget.spent, budget.remaining) == (0.0, 1.0)
    budget.spend(calibrated(budget.remaining))
    assert budget.spent <= 1.0 and budget.remaining == 0.0
    with pytest.raises(BudgetExceeded):
        budget.spend(calibrated(0.01))


def test_nothing_is_left_below_zero_and_without_room_for_floors() -> None:
    spent = acc.compose([plan(5.0)])
    assert share(spent, 1, epsilon=0.1, delta=DELTA) == 0.0
    assert share(spent, 1, epsilon=9.0, delta=spent.floor() * (1 + 1e-6)) == 0.0


def test_what_is_left_fits_beside_what_is_spent() -> None:
    budget = PrivacyBudget(2.0, DELTA)
    budget.spend(calibrated(1.5))
    left = budget.remaining
    assert 1.2 < left < 1.4  # in mu, not in epsilon, where 0.5 would be left
    budget.spend(calibrated(left, steps=500))
    assert 1.99 < budget.spent <= 2.0


def test_a_refusal_has_its_figures_and_charges_nothing() -> None:
    budget = PrivacyBudget(1.0, DELTA)
    budget.spend(calibrated(0.7))
    before = budget.path.read_bytes()
    with pytest.raises(BudgetExceeded) as caught:
        budget.spend(calibrated(0.9))
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, ValueError)
    assert error.spent == budget.spent == calibrated(0.7).epsilon(DELTA)
    assert error.asked == calibrated(0.9).epsilon(DELTA)
    together = acc.compose([calibrated(0.7), calibrated(0.9)]).epsilon(DELTA)
    assert error.together == together > 1.0
    assert (error.left, error.budget, error.delta) == (budget.remaining, 1.0, DELTA)
    for words in ("0.7", "0.9", "epsilon 1 at", "1e-06", "not charged", "one further fit may have"):
        assert words in str(error)
    assert budget.path.read_bytes() == before


def test_a_run_without_an_epsilon_at_this_delta_is_refused() -> None:
    budget = PrivacyBudget(100.0, 1e-15)
    with pytest.raises(BudgetExceeded) as caught:
        budget.spend(plan(0.5))
    assert caught.value.asked == math.inf


def test_the_other_guarantee_of_a_run_is_kept() -> None:
    """Of released sums of a Honaker tree: it has the lower floor, where delta is tiny."""
    one = PrivacyPlan(1.0, 2.0, SinglePass(64), Tree(), bound="released")
    assert one.guarantee.otherwise is not None
    lower = one.guarantee.other.floor()
    budget = PrivacyBudget(1000.0, lower * 1.5)
    assert lower < budget.delta < one.guarantee.floor()
    budget.spend(one)
    assert budget.spent == one.epsilon(budget.delta) < math.inf


# ---- Anything with a guarantee ----


def test_everything_that_states_an_epsilon_is_charged() -> None:
    budget = PrivacyBudget(100.0, DELTA)
    runs = [plan(), PrefixSum(2, 10, 1.0, 20.0), acc.Ledger(SinglePass(10), 20.0)]
    for run in runs:
        budget.spend(run)
    assert budget.spent == acc.compose(runs).epsilon(DELTA)
    assert acc.compose([budget, plan()]).mu_squared == acc.compose([*runs, plan()]).mu_squared
    assert [row.label for row in budget.table()] == ["PrivacyPlan", "PrefixSum", "Ledger"]


def test_what_is_no_private_run_is_refused() -> None:
    budget = PrivacyBudget(100.0, DELTA)
    with pytest.raises(ValueError, match="fresh key"):
        budget.spend(PrefixSum(2, 10, 1.0, 20.0, seed=1))
    with pytest.raises(TypeError, match="got float"):
        budget.spend(0.5)
    with pytest.raises(ValueError, match="after its first fit"):
        budget.guarantee  # noqa: B018
    assert budget.table() == []


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ((0.0, DELTA), "epsilon must be"),
        ((math.nan, DELTA), "epsilon must be"),
        ((math.inf, DELTA), "epsilon must be"),
        ((1.0, 0.0), "delta must be"),
        ((1.0, math.nan), "delta must be"),
    ],
)
def test_wrong_terms_are_refused(terms: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        PrivacyBudget(*terms)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="neighbours must be"):
        PrivacyBudget(1.0, DELTA, neighbours="row")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="epsilon must be"):
        PrivacyBudget(True, DELTA)
    for wrong in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="fits must be"):
            PrivacyBudget(1.0, DELTA).epsilon_per_fit(wrong)  # type: ignore[arg-type]


# ---- Text ----


def test_text_states_the_terms_and_rounds_losses_up() -> None:
    budget = PrivacyBudget(1.0, DELTA, neighbours="replace-one")
    assert "epsilon 0 of 1 spent at delta 1e-06, in 0 fits (replace-one)" in str(budget)
    budget.spend(plan(100.0), label="<daily>")
    text, html = str(budget), budget._repr_html_()
    assert "in 1 fit (replace-one)\n" in text and "<daily>" in text
    other = text.splitlines()[1].split()
    assert other[-1] == "(zero-out)"
    exact = plan(100.0).epsilon(DELTA)
    assert exact <= float(other[1]) <= exact * 1.001
    assert "&lt;daily&gt;" in html and "<daily>" not in html
    shown = float(text.splitlines()[-1].split()[-1])
    assert budget.spent <= shown <= budget.spent * 1.001
    left = float(text.splitlines()[2].split()[-2])
    assert budget.remaining * 0.999 <= left <= budget.remaining


# ---- The file ----


def test_a_second_session_continues_the_file(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    PrivacyBudget(1.0, DELTA, path=path).spend(plan(), label="first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for again in (PrivacyBudget(1.0, DELTA, path=path), PrivacyBudget.open(str(path))):
        assert [row.label for row in again.table()] == ["first"]
        assert (again.epsilon, again.delta, again.neighbours) == (1.0, DELTA, "zero-out")
    for other in ((2.0, DELTA, "zero-out"), (1.0, 1e-7, "zero-out"), (1.0, DELTA, "replace-one")):
        with pytest.raises(ValueError, match=r"must be that of .*budget"):
            PrivacyBudget(*other[:2], path=path, neighbours=other[2])  # type: ignore[arg-type]


def test_the_figures_of_the_file_are_those_of_the_plan(tmp_path: Path) -> None:
    big = acc.Guarantee(
        (acc.compose([plan(3.3)]).mechanisms[0], *acc.compose([plan(1e9)]).mechanisms)
    )
    path = tmp_path / "budget"
    PrivacyBudget(100.0, DELTA, path=path).spend(big)
    text = path.read_text().splitlines()
    assert len(text) == 2 and all(len(line.partition(" ")[0]) == 32 for line in text)
    entry = json.loads(text[1].partition(" ")[2])
    assert [row[0] for row in entry["mechanisms"]] == [3.3, 1e9]
    assert PrivacyBudget.open(path).guarantee == big


def damaged(lines: list[bytes]) -> dict[str, bytes]:
    label = lines[1].replace(b'"first"', b'"fi1st"')
    sigma = lines[1].replace(b"[[20.0", b"[[99.0")
    return {
        "a label": b"".join([lines[0], label, *lines[2:]]),
        "a multiplier": b"".join([lines[0], sigma, *lines[2:]]),
        "a charge removed": b"".join([lines[0], *lines[2:]]),
        "charges in another order": b"".join([lines[0], lines[2], lines[1]]),
        "a charge twice": b"".join([*lines, lines[2]]),
        "terms": b"".join([lines[0].replace(b'"epsilon": 10.0', b'"epsilon": 99.0'), *lines[1:]]),
        "no terms": b"".join(lines[1:]),
        "text": b"some text\n",
        "text without an end": b"some text",
        "an empty line": b"".join([lines[0], b"\n", *lines[1:]]),
    }


def test_a_damaged_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    budget.spend(plan(), label="first")
    budget.spend(plan(), label="second")
    whole = path.read_bytes()
    for name, content in damaged(whole.splitlines(keepends=True)).items():
        path.write_bytes(content)
        calls: list[Callable[[], Any]] = [
            lambda: budget.spent,
            lambda: budget.spend(plan()),
            lambda: PrivacyBudget.open(path),
            lambda: PrivacyBudget(10.0, DELTA, path=path),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"damaged|not the file of a budget|is cut"):
                call()
            assert path.read_bytes() == content, name


def test_every_changed_byte_is_noticed_and_every_cut_takes_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    for label in ("first", "second"):
        budget.spend(plan(), label=label)
    whole = path.read_bytes()
    start = whole.find(b"\n") + 1
    for place in range(len(whole) - 1):  # the last end of line is what a crash may leave out
        changed = bytearray(whole)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=r"damaged|is cut"):
            PrivacyBudget.open(path)
    for size in range(start, len(whole) + 1):
        path.write_bytes(whole[:size])
        another_process(monkeypatch)
        with locked([path], read=True) as (file,):
            assert len(file.charges) == whole[start:size].count(b"\n")


# ---- An older copy of the file ----


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has seen, as another one would not know it."""
    monkeypatch.setattr(budget_file, "_seen", {})


def test_an_older_copy_is_refused_by_the_process_that_has_spent_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    budget.spend(plan())
    older = path.read_bytes()
    budget.spend(plan())
    newest = path.read_bytes()
    shutil.copy(path, tmp_path / "kept")
    path.write_bytes(older)  # restored in place, then as another file
    for restored in (path, tmp_path / "restored"):
        restored.write_bytes(older)
        for call in (
            lambda: budget.spend(plan()),
            lambda: budget.spent,
            lambda: check([budget], plan()),
            lambda file=restored: PrivacyBudget.open(file),
            lambda file=restored: PrivacyBudget(10.0, DELTA, path=file),
        ):
            with pytest.raises(ValueError, match="hold the 2 charges that this process has seen"):
                call()
        assert restored.read_bytes() == older
    path.write_bytes(newest)
    budget.spend(plan())
    assert len(budget.table()) == 3
    # A process that has not seen more cannot notice: docs/plan/budget.md says so.
    path.write_bytes(older)
    another_process(monkeypatch)
    assert len(PrivacyBudget.open(path).table()) == 1


def test_a_copy_that_was_spent_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    older = path.read_bytes()
    budget.spend(plan(), label="mine")
    mine = dict(budget_file._seen)
    path.write_bytes(older)
    another_process(monkeypatch)
    for label in ("theirs", "more of theirs"):
        budget.spend(plan(), label=label)
    monkeypatch.setattr(budget_file, "_seen", mine)
    with pytest.raises(ValueError, match="hold the 1 charges that this process has seen in this"):
        budget.spend(plan())


def test_what_others_have_spent_is_taken_and_then_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    budget.spend(plan())
    before, mine = path.read_bytes(), dict(budget_file._seen)
    another_process(monkeypatch)
    budget.spend(plan())
    monkeypatch.setattr(budget_file, "_seen", mine)
    assert len(budget.table()) == 2  # the other's charge is read here
    path.write_bytes(before)
    with pytest.raises(ValueError, match="the 2 charges that this process has seen"):
        budget.spend(plan())


def test_a_charge_that_failed_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = [PrivacyBudget(10.0, DELTA, path=tmp_path / name) for name in "ab"]
    sync, left = os.fsync, [1]

    def fails(handle: int) -> None:
        if not left:
            raise OSError("disk full")
        left.pop()
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(budget_file.os, "fsync", fails)
        with pytest.raises(OSError, match="disk full"):
            charge(budgets, plan(), label="both")
    for budget in budgets:
        assert budget.table() == []
        budget.spend(plan())


def test_a_missing_or_an_other_file_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "budget", tmp_path / "other"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    PrivacyBudget(10.0, DELTA, path=other)
    os.replace(other, path)
    for call in (lambda: budget.spend(plan()), lambda: budget.spent):
        with pytest.raises(ValueError, match="must be the file of this budget"):
            call()
    path.unlink()
    for call in (lambda: budget.spend(plan()), lambda: budget.spent):
        with pytest.raises(FileNotFoundError, match="is missing"):
            call()
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match="is missing"):
        PrivacyBudget.open(path)


def test_a_file_that_is_replaced_while_its_lock_is_awaited_is_refused(tmp_path: Path) -> None:
    path, errors = tmp_path / "budget", []
    budget = PrivacyBudget(10.0, DELTA, path=path)

    def spend() -> None:
        try:
            budget.spend(plan())
        except OSError as error:
            errors.append(str(error))

    thread = threading.Thread(target=spend)
    with locked([path]):
        thread.start()
        handles = f"/proc/{os.getpid()}/fd"
        while sum(os.path.realpath(f"{handles}/{n}") == str(path) for n in os.listdir(handles)) < 2:
            thread.join(0.01)
        os.replace(shutil.copy(path, tmp_path / "copy"), path)
    thread.join()
    assert len(errors) == 1 and "was replaced" in errors[0] and budget.table() == []


def test_a_line_that_a_crash_has_cut_is_not_counted_and_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    budget.spend(plan())
    budget.spend(plan())
    whole = path.read_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    one = plan().epsilon(DELTA)
    for end in (start + 1, start + 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        another_process(monkeypatch)  # that of the last line has crashed
        assert budget.spent == one
        budget.spend(plan())
        assert path.read_bytes() == whole
    path.write_bytes(whole[:start] + bytes(50))  # a crash of the machine can leave zeros
    another_process(monkeypatch)
    assert budget.spent == one


def test_the_charge_is_on_the_disk_before_spend_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    synced: list[bytes] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(path.read_bytes()))
    budget.spend(plan())
    assert synced == [path.read_bytes()] and synced[0].count(b"\n") == 2


def test_an_error_of_the_disk_refuses_the_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "budget"
    budget = PrivacyBudget(10.0, DELTA, path=path)
    before = path.read_bytes()

    def fails(handle: int) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="no space"):
            budget.spend(plan())
    assert path.read_bytes() == before
    with monkeypatch.context() as patch:
        patch.setattr(budget_file.os, "write", lambda handle, data: 3)
        with pytest.raises(OSError, match="expected to write"):
            budget.spend(plan())
    assert path.read_bytes() == before and budget.spent == 0.0


def test_a_temporary_file_goes_with_the_budget() -> None:
    budget = PrivacyBudget(10.0, DELTA)
    folder = budget.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with budget:
        pass
    budget.spend(plan())  # the block is over, the budget is not
    handle = pickle.dumps(budget)
    del budget
    assert not folder.exists()
    other = pickle.loads(handle)
    with pytest.raises(FileNotFoundError, match="is missing"):
        other.spend(plan())


def test_a_forked_process_leaves_the_file() -> None:
    budget = PrivacyBudget(10.0, DELTA)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            budget.spend(plan())
            folder = budget.path.parent
            del budget
            code = 0 if folder.exists() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert budget.spent == plan().epsilon(DELTA)


# ---- Several budgets ----


def test_a_run_is_charged_to_all_budgets_or_to_none(tmp_path: Path) -> None:
    large, small = PrivacyBudget(10.0, DELTA), PrivacyBudget(0.01, DELTA)
    for order in ([large, small], [small, large]):
        with pytest.raises(BudgetExceeded):
            charge(order, plan(), label="")
        with pytest.raises(BudgetExceeded):
            check(order, plan())
        assert (large.table(), small.table()) == ([], [])
    charge([large, PrivacyBudget(9.0, DELTA), large], plan(), label="")
    assert len(large.table()) == 1  # once, however often it is named


def test_an_error_in_the_second_file_takes_the_first_charge_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets = [PrivacyBudget(10.0, DELTA), PrivacyBudget(9.0, DELTA)]
    before = [budget.path.read_bytes() for budget in budgets]
    calls = []

    def second_fails(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError("no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", second_fails)
        with pytest.raises(OSError, match="no space"):
            charge(budgets, plan(), label="")
    assert [budget.path.read_bytes() for budget in budgets] == before
    charge(budgets, plan(), label="")
    assert [len(budget.table()) for budget in budgets] == [1, 1]


def test_handles_and_links_of_one_file_are_charged_once(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    first = PrivacyBudget(10.0, DELTA, path=path)
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    others = [PrivacyBudget(10.0, DELTA, path=tmp_path / name) for name in ("link", "hard")]
    charge([first, PrivacyBudget(10.0, DELTA, path=path), *others], plan(), label="")
    assert len(first.table()) == len(others[0].table()) == 1


def test_blocks_nest_and_end_with_their_own() -> None:
    def active_budgets() -> tuple[PrivacyBudget, ...]:
        return tuple(budget for budget, _ in entered_budgets())

    outer, inner = PrivacyBudget(10.0, DELTA), PrivacyBudget(9.0, DELTA)
    with outer, inner, outer:
        assert active_budgets() == (outer, inner, outer)
    assert active_budgets() == ()
    with pytest.raises(KeyError), outer:
        raise KeyError
    assert active_budgets() == ()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__()  # threads may leave in any order
    assert active_budgets() == (inner,)
    inner.__exit__()


# ---- Handles ----


def test_copies_and_pickles_are_handles_of_one_file() -> None:
    budget = PrivacyBudget(10.0, DELTA, neighbours="replace-one")
    for other in (
        copy.copy(budget),
        copy.deepcopy([budget])[0],
        pickle.loads(pickle.dumps(budget)),
    ):
        assert other is budget
    twin = PrivacyBudget.open(budget.path)
    assert twin == budget and hash(twin) == hash(budget) and twin is not budget
    assert PrivacyBudget(10.0, DELTA) != budget and budget != 1
    assert repr(budget) == "PrivacyBudget(epsilon=10.0, delta=1e-06, neighbours='replace-one')"
    with pytest.raises(AttributeError):
        budget.epsilon = 99.0  # type: ignore[misc]


CHARGES = """
import pickle, sys
from dpftrl_fast import BudgetExceeded, PrivacyPlan, SinglePass
budget = pickle.loads(bytes.fromhex(sys.argv[1]))
plan = PrivacyPlan.calibrate(epsilon=float(sys.argv[2]), delta=1e-6, clip_norm=1.0,
                             participation=SinglePass(10))
print("ready", flush=True)
for line in sys.stdin:
    try:
        budget.spend(plan, label=line.strip())
        print("charged", flush=True)
    except BudgetExceeded:
        print("refused", flush=True)
"""


@pytest.mark.process
def test_processes_that_race_for_the_last_fit() -> None:
    budget = PrivacyBudget(1.0, DELTA)
    budget.spend(calibrated(0.5))
    last = budget.remaining
    words = [sys.executable, "-c", CHARGES, pickle.dumps(budget).hex(), str(last)]
    start = functools.partial(child, words, stdin=-1, stdout=-1, text=True)
    with start() as a, start() as b:
        both = (a, b)
        assert [p.stdout.readline() for p in both] == ["ready\n"] * 2
        for p in both:
            p.stdin.write("last\n")
        for p in both:
            p.stdin.flush()
        assert sorted(p.stdout.readline() for p in both) == ["charged\n", "refused\n"]
    assert [row.label for row in budget.table()] == ["PrivacyPlan", "last"]
    assert budget.spent <= 1.0


@pytest.mark.process
def test_many_charges_of_threads_and_processes_are_all_there() -> None:
    budget = PrivacyBudget(50.0, DELTA)
    words = [sys.executable, "-c", CHARGES, pickle.dumps(budget).hex(), "0.1"]
    with child(words, stdin=-1, stdout=-1, text=True) as process:
        process.stdin.write("".join(f"process {i}\n" for i in range(20)))
        process.stdin.close()

        def spend(name: int) -> None:
            for i in range(10):
                budget.spend(plan(200.0), label=f"thread {name} {i}")

        threads = [threading.Thread(target=spend, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert process.stdout.read().split() == ["ready", *["charged"] * 20]
    labels = [row.label for row in budget.table()]
    expected = {f"process {i}" for i in range(20)}
    expected |= {f"thread {name} {i}" for name in range(3) for i in range(10)}
    assert len(labels) == 50 and set(labels) == expected


def test_a_lock_of_a_thread_is_held_against_another(tmp_path: Path) -> None:
    budget = PrivacyBudget(10.0, DELTA, path=tmp_path / "budget")
    done = threading.Event()

    def spend() -> None:
        budget.spend(plan())
        done.set()

    thread = threading.Thread(target=spend)
    with locked([budget.path]):
        thread.start()
        assert not done.wait(0.3)
    thread.join()
    assert done.is_set() and len(budget.table()) == 1


def test_mu_of_ten_equal_fits_by_hand() -> None:
    """10 fits under epsilon 1: mu of each is that of epsilon 1, over sqrt(10)."""
    budget = PrivacyBudget(1.0, DELTA)
    each = budget.epsilon_per_fit(10)
    whole = 1 / Decimal(acc.noise_multiplier(1.0, DELTA, 1))
    part = 1 / Decimal(acc.noise_multiplier(each, DELTA, 1))
    assert part * Decimal(10).sqrt() <= whole
    assert part * Decimal(10).sqrt() >= whole * Decimal("0.9999")
