# SPDX-License-Identifier: Apache-2.0
"""The core's program for a minimum separation: coarse modes, limits, interruption, bad input."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import child
from tree_options import zeta_of

from dpftrl_fast import _core
from dpftrl_fast import accounting as acc
from dpftrl_fast.mechanisms import Tree

FAST = settings(max_examples=50, deadline=None, derandomize=True)
NO_LIMIT = 2**63 - 1


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[tuple[int, int, bool]], int, int]:
    lengths = draw(st.lists(st.integers(1, 120), min_size=1, max_size=3))
    trees = [(n, draw(st.integers(1, 3)), draw(st.booleans())) for n in lengths]
    return trees, draw(st.integers(1, 8)), draw(st.integers(1, 60))


def level_bound(trees: list[tuple[int, int, bool]], most: int, separation: int) -> int | float:
    listed = [(n, completed) for n, count, completed in trees for _ in range(count)]
    return acc.sensitivity_squared(
        acc.MinSeparation(sum(n for n, _ in listed), most, separation),
        Tree(tree_lengths=[n for n, _ in listed], complete=[completed for _, completed in listed]),
        bound="level",
    )


@FAST
@given(problems(), st.integers(1, 8))
def test_coarse_places_are_between_the_exact_value_and_the_level_bound(
    problem: Any, place_bits: int
) -> None:
    for statistic in ("all_nodes", "even_nodes"):
        exact = _core.min_separation_counts(*problem, statistic, 0, NO_LIMIT)
        coarse = _core.min_separation_counts(*problem, statistic, place_bits, NO_LIMIT)
        assert exact is not None
        assert coarse is not None
        assert exact <= coarse <= level_bound(*problem)
        if problem[2] - 1 < 2**place_bits:  # the grid is that of the steps
            assert coarse == exact


@FAST
@given(problems(), st.integers(0, 8), st.integers(1, 12))
def test_coarse_weights_are_never_below_and_little_above(
    problem: Any, place_bits: int, weight_bits: int
) -> None:
    exact = _core.min_separation_weights(*problem, 0, 0, NO_LIMIT)
    coarse = _core.min_separation_weights(*problem, 0, weight_bits, NO_LIMIT)
    both = _core.min_separation_weights(*problem, place_bits, weight_bits, NO_LIMIT)
    assert exact is not None
    assert coarse is not None
    assert both is not None
    # W = uses + W(right)/2 is rounded up by uses * 2^-bits at most, at each level: by W 2^(1-bits).
    factor = (1 + 2.0 ** (1 - weight_bits)) ** 2
    assert exact * (1 - 1e-12) <= coarse <= exact * factor * (1 + 1e-12)
    if place_bits == 0:
        assert both == coarse
    assert exact * (1 - 1e-12) <= both <= level_bound(*problem) * factor


def test_work_beyond_the_limit_has_no_value() -> None:
    trees = [(2000, 1, False)]
    assert _core.min_separation_counts(trees, 20, 100, "even_nodes", 0, 1000) is None
    assert _core.min_separation_counts(trees, 20, 100, "even_nodes", 0, -(2**63)) is None
    assert _core.min_separation_weights(trees, 20, 100, 0, 0, 1000) is None


def test_prefixes_beyond_the_limit_stay_between_an_order_and_all_nodes() -> None:
    # More work than is allowed, so that the value is an upper bound.
    run = acc.MinSeparation(6000, 60, 100)
    exact = acc.sensitivity_squared(run)
    order = np.full(6000, -1)
    order[::100] = 0
    for variant in ("honaker", "vanilla"):
        released = acc.sensitivity_squared(run, Tree(variant=variant), bound="released")
        single = acc.sensitivity_squared(
            acc.FixedOrder(order), Tree(variant=variant), bound="released"
        )
        assert single <= released <= exact


def test_separations_and_counts_as_large_as_they_come() -> None:
    trees = [(300, 1, False)]
    for most, separation in ((2**63 - 1, 2**63 - 1), (2**63 - 1, 2**62), (1, 2**63 - 1)):
        for place_bits in (0, 40):
            assert (
                _core.min_separation_counts(
                    trees, most, separation, "all_nodes", place_bits, NO_LIMIT
                )
                == 9
            )
            assert _core.min_separation_weights(
                trees, most, separation, place_bits, 40, NO_LIMIT
            ) == pytest.approx(7.778544714842, abs=1e-9)


def test_the_longest_runs() -> None:
    longest = 2**40
    assert acc.sensitivity_squared(acc.SinglePass(longest), Tree(complete="all")) == 41
    assert acc.sensitivity_squared(acc.MinSeparation(longest, longest, longest)) == 41
    # Two uses half a run apart: 40 levels each, and two under the root.
    assert acc.sensitivity_squared(acc.MinSeparation(longest, longest, longest // 2)) == 84
    # One more step for the first, so that completion doubles the tree.
    run = acc.MinSeparation(longest // 2 + 1, 2, longest // 2)
    assert acc.sensitivity_squared(run) == 40 + 1
    assert acc.sensitivity_squared(run, Tree(complete="all")) == 40 + 40 + 4
    assert (
        acc.sensitivity_squared(acc.MinSeparation(longest, 100, 10**9), Tree(restart_every=1))
        == 100
    )
    far = acc.MinSeparation(longest, 100, 10**9)
    assert acc.sensitivity_squared(far, Tree(restart_every=3, complete="all")) == 300


@pytest.mark.parametrize("bound", ["exact", "released"])
@pytest.mark.parametrize("variant", ["honaker", "vanilla"])
def test_overflow_is_refused(bound: Any, variant: Any) -> None:
    run = acc.MinSeparation(2**40, 2**40, 1)
    with pytest.raises(ValueError, match="could pass 2\\^63"):
        acc.sensitivity_squared(run, Tree(variant=variant), bound=bound)
    with pytest.raises(ValueError, match="could pass 2\\^63"):
        acc.sensitivity_squared(run, Tree(variant=variant, restart_every=1), bound=bound)


def test_level_bound_has_no_overflow() -> None:
    wanted = sum(2 ** (40 - level) * 4**level for level in range(41))
    assert acc.sensitivity_squared(acc.MinSeparation(2**40, 2**40, 1), bound="level") == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"most_uses": 0}, "most_uses must be an integer >= 1, got 0"),
        ({"most_uses": -(2**63)}, "most_uses must be an integer >= 1"),
        ({"separation": 0}, "separation must be an integer >= 1, got 0"),
        ({"place_bits": -1}, "place_bits and weight_bits must be in \\[0, 40\\]"),
        ({"place_bits": 41}, "place_bits and weight_bits must be in \\[0, 40\\]"),
        ({"trees": []}, "trees must hold at least one tree"),
        ({"trees": [(2**39, 2, True), (1, 1, False)]}, "at most 2\\^40 steps together"),
        ({"statistic": "honaker_prefixes"}, "statistic must be"),
    ],
)
def test_wrong_arguments_of_the_core(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "trees": [(8, 1, False)],
        "most_uses": 2,
        "separation": 1,
        "statistic": "all_nodes",
        "place_bits": 0,
        "work_limit": NO_LIMIT,
    }
    with pytest.raises(ValueError, match=message):
        _core.min_separation_counts(**(arguments | changes))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"restart_every": 0}, ValueError, "restart_every must be an integer >= 1, got 0"),
        ({"restart_every": -1}, ValueError, "restart_every must be an integer >= 1, got -1"),
        ({"restart_every": 2.0}, TypeError, "restart_every must be an integer >= 1, got float"),
        ({"restart_every": float("nan")}, TypeError, "restart_every must be an integer"),
        ({"tree_lengths": [4, 3]}, ValueError, "add up to the 8 steps of the run, got 7"),
        (
            {"tree_lengths": [8, 0]},
            ValueError,
            "each of tree_lengths must be an integer in",
        ),
        ({"tree_lengths": [8], "restart_every": 8}, ValueError, "got both"),
        ({"complete": "restarts"}, ValueError, "complete must be False, True"),
        ({"complete": 1}, TypeError, "complete must be False, True"),
        ({"complete": None}, TypeError, "complete must be False, True"),
        ({"complete": [True, False]}, ValueError, "one bool for each of 1 trees, got 2"),
        (
            {"bound": "rdp"},
            ValueError,
            "bound must be one of .*, got 'rdp'",
        ),
        (
            {"bound": None},
            ValueError,
            "bound must be one of .*, got None",
        ),
        (
            {"variant": "full"},
            ValueError,
            "variant must be one of .*, got 'full'",
        ),
    ],
)
@pytest.mark.parametrize(
    "run",
    [
        acc.SinglePass(8),
        acc.FixedEpochs(4, 2),
        acc.FixedOrder([0, 1, 2, 3, 0, 1, 2, 3]),
        acc.MinSeparation(8, 2, 4),
    ],
    ids=lambda run: type(run).__name__,
)
def test_wrong_options(run: Any, wrong: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        zeta_of(run, **wrong)


@pytest.mark.parametrize("participation", [1600, None, acc.SinglePass, [0, 1, 2]])
def test_wrong_participation(participation: Any) -> None:
    with pytest.raises(TypeError, match=r"participation must be one of .*, got \w+"):
        acc.sensitivity_squared(participation)


LONG = "_core.min_separation_weights([(10**6, 1, False)], 500, 1999, 0, 0, 2**63 - 1)"


def test_an_exception_of_a_signal_handler_stops_the_program() -> None:
    class Stop(Exception):
        pass

    def handler(*_: Any) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Stop):
            eval(LONG)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert acc.sensitivity_squared(acc.MinSeparation(64, 4, 8)) == 56


def test_ctrl_c_stops_the_program() -> None:
    code = f"""
        from dpftrl_fast import _core
        try:
            print("started", flush=True)
            {LONG}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    program = [sys.executable, "-c", textwrap.dedent(code)]
    with child(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(0.5)  # until it is in the program
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert rest == "interrupted\n"


@pytest.mark.parametrize("overlap", ["ids", "offsets"])
def test_out_may_not_overlap_what_is_read(overlap: str) -> None:
    n = 1 << 10
    arrays = {"ids": np.zeros(n, np.int64), "offsets": np.arange(n + 1)}
    before = {name: array.copy() for name, array in arrays.items()}
    out = arrays[overlap][:n]
    with pytest.raises(ValueError, match="must not overlap"):
        _core.order_counts([(n, 1, False)], arrays["ids"], arrays["offsets"], "all_nodes", out)
    with pytest.raises(ValueError, match="must not overlap"):
        weights = out.view(np.float64)
        _core.order_weights([(n, 1, False)], arrays["ids"], arrays["offsets"], weights)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[name])


def test_misaligned_ids_are_refused() -> None:
    ids = np.zeros(8 * 4 + 1, np.uint8)[1:].view(np.int64)
    with pytest.raises(ValueError, match="aligned"):
        _core.order_counts([(4, 1, False)], ids, np.arange(5), "all_nodes", np.zeros(1, np.int64))


def test_too_many_separated_uses_are_refused() -> None:
    run = acc.MinSeparation(2**22, 2**21, 1)
    with pytest.raises(ValueError, match="level"):
        acc.sensitivity_squared(run)
    assert acc.sensitivity_squared(run, bound="level") > 2**42
