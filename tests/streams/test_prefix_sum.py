# SPDX-License-Identifier: Apache-2.0
"""`PrefixSum`: the raw sums under the noise, the clip, the horizon, the epsilon, bad input."""

from __future__ import annotations

import math
import sys
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from mechanism_cases import MECHANISMS, TOEPLITZ
from noise_oracle import noise_of_sums, sum_matrix
from tree_options import with_tree

import dpftrl_fast as dpf
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.accounting.planner.mechanisms import best_mechanism
from dpftrl_fast.mechanisms import BandedInverse, Tree
from dpftrl_fast.reference.stream import key_from_seed
from dpftrl_fast.streams.contributions import Clipped, sum_of_step

L = 0.75
CLIP = L * (1 - 2.0**-20)


def make(size: int = 3, steps: int = 20, **change: Any) -> dpf.PrefixSum:
    options: dict[str, Any] = {
        "clip_norm": L,
        "noise_multiplier": 2.0,
        "seed": 3,
        "bound": "exact",
        **change,
    }
    return dpf.PrefixSum(size, steps, **{"mechanism": "tree", **with_tree(options)})


def clipped_sum(x: np.ndarray, clip_norm: float) -> np.ndarray:
    return sum_of_step(Clipped(clip_norm, x.shape[1]), x)


def raw_sums(sums: dpf.PrefixSum, records: list[Any]) -> np.ndarray:
    """The sums without the noise; what is released is those with it, on the grid."""
    noise = noise_of_sums(sums.plan, sums.size, key_from_seed(3))
    grid, found = sums.plan.noise_spec.grid("float64"), []
    for x, b in zip(records, noise[: len(records)], strict=True):
        value = sums.add(x)
        exact = sums._running._sum + (sums._running._low + b)
        assert (value == np.floor(exact / grid + 0.5) * grid).all()
        found.append(sums._running._sum + sums._running._low)
    return np.array(found)


@pytest.mark.parametrize("variant", ["vanilla", "honaker"])
@pytest.mark.parametrize(("every", "complete"), [(None, False), (7, False), (7, True), (6, "all")])
def test_sums_under_the_noise(variant: Any, every: Any, complete: Any) -> None:
    records = np.random.default_rng(1).normal(size=(20, 3)) * 0.2
    sums = make(variant=variant, restart_every=every, complete=complete)
    raw = raw_sums(sums, list(records))
    np.testing.assert_allclose(raw, np.cumsum(records, axis=0), atol=1e-12)
    assert sums.t == 20
    assert sums.epsilon(1e-6) == sums.plan.epsilon(1e-6)
    plan = dpf.PrivacyPlan(
        L,
        2.0,
        SinglePass(20),
        mechanism=Tree(variant=variant, restart_every=every, complete=complete),
    )
    assert sums.plan == plan
    assert sums.epsilon(1e-6, neighbours="replace-one") == plan.epsilon(
        1e-6, neighbours="replace-one"
    )


@pytest.mark.parametrize("name", MECHANISMS)
def test_sums_under_the_noise_of_every_mechanism(name: str) -> None:
    records = np.random.default_rng(1).normal(size=(10, 3)) * 0.2
    sums = make(steps=10, mechanism=MECHANISMS[name])
    raw = raw_sums(sums, list(records))
    np.testing.assert_allclose(raw, np.cumsum(records, axis=0), atol=1e-12)
    assert sums.plan == dpf.PrivacyPlan(L, 2.0, SinglePass(10), MECHANISMS[name])
    assert sums.epsilon(1e-6) == sums.plan.epsilon(1e-6)


@pytest.mark.parametrize("name", TOEPLITZ)
def test_the_covariance_of_the_sums(name: str) -> None:
    size, mechanism = 20_000, TOEPLITZ[name]
    sums = make(size, 6, mechanism=mechanism)
    left = np.array([sums.add(np.zeros((0, size))) for _ in range(6)])
    matrix = sum_matrix(mechanism, [4, 2] if sums.plan.layout.count > 1 else [6])
    wanted = matrix @ matrix.T
    found = left @ left.T / size / (2.0 * L) ** 2
    spread = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)) * 2 / size)
    assert (np.abs(found - wanted) < 5 * spread).all()
    assert not (np.abs(found / 1.1 - wanted) < 5 * spread).all()  # the test has the power to tell


def test_the_epsilon_of_a_tree_is_that_of_the_released_sums() -> None:
    """Only running sums leave the object."""
    given = {"clip_norm": L, "noise_multiplier": 2.0}
    released = dpf.PrefixSum(3, 50, mechanism="tree", **given)
    plan = dpf.PrivacyPlan(L, 2.0, SinglePass(50), Tree(), bound="released")
    assert released.plan == plan
    exact = dpf.PrefixSum(3, 50, mechanism="tree", bound="exact", **given)
    assert released.epsilon(1e-6) < 0.95 * exact.epsilon(1e-6)
    best = dpf.PrefixSum(3, 50, **given)
    assert best.epsilon(1e-6) == dpf.PrefixSum(3, 50, bound="exact", **given).epsilon(1e-6)
    calibrated = dpf.PrefixSum.calibrate(
        3, 50, epsilon=1.0, delta=1e-6, clip_norm=L, mechanism="tree"
    )
    assert calibrated.plan.bound == "released" and 0.999 < calibrated.epsilon(1e-6) <= 1.0


def test_auto_is_the_best_mechanism_of_a_pass() -> None:
    sums = dpf.PrefixSum(3, 50, L, 2.0)
    for epsilon, delta in ((0.1, 1e-9), (30.0, 1e-3)):
        assert sums.plan.mechanism == best_mechanism(epsilon, delta, SinglePass(50))
    tree = dpf.PrefixSum(3, 50, L, 2.0, mechanism="tree")
    assert tree.plan.mechanism == Tree()
    assert dpf.PrefixSum(3, 2**20 + 1, L, 2.0).plan.mechanism.vectors == 3
    with pytest.raises(ValueError, match="mechanism must be 'auto', 'tree' or a mechanism"):
        dpf.PrefixSum(3, 20, L, 2.0, mechanism="forest")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_coefficients_are_rounded_before_they_are_accounted(dtype: Any) -> None:
    given = BandedInverse((1.0, -0.1))
    sums = make(mechanism=given, dtype=dtype)
    assert sums.plan.mechanism == given.rounded(dtype)
    assert (sums.plan.mechanism == given) is (dtype == "float64")


HUGE, TINY = 1e308, 5e-324
ROWS = [
    [0.1, 0.2, 0.3],
    [10.0, -20.0, 5.0],
    [HUGE, HUGE, -HUGE],
    [HUGE, 1.0, 0.0],
    [TINY, TINY, -TINY],
    [TINY, 0.0, 1.0],
    [1e-160, 1e-160, 0.0],
    [1e200, 1e-200, 1e200],
    [0.0, 0.0, 0.0],
    [L, 0.0, 0.0],
    [CLIP, 0.0, 0.0],
    [np.nextafter(L, 1), 0.0, 0.0],
    [L / np.sqrt(3)] * 3,
]
NOT_FINITE = [[np.inf, 0.0, 0.0], [1.0, -np.inf, np.nan], [np.nan] * 3, [HUGE, HUGE, np.inf]]


def exact_norm(row: np.ndarray) -> float:
    scale = float(np.abs(row).max())
    return 0.0 if scale == 0 else float(np.linalg.norm(row / scale)) * scale


@pytest.mark.parametrize("row", ROWS + NOT_FINITE, ids=str)
def test_no_record_moves_the_sum_by_more_than_the_clip_norm(row: list[float]) -> None:
    moved = make(noise_multiplier=1e-300, seed=1)
    base = np.array(moved.add(row))  # the noise is far below every digit
    assert exact_norm(base) <= L
    norm = exact_norm(np.array(row)) if np.isfinite(row).all() else 0.0
    if norm == 0:
        assert np.abs(base).max() < 1e-290
    elif norm <= CLIP:
        np.testing.assert_allclose(base, row, atol=1e-290)
    else:
        # The direction stays, the length is the bound.
        scale = np.abs(row).max()
        unit = np.array(row) / scale / np.linalg.norm(np.array(row) / scale)
        np.testing.assert_allclose(base, unit * CLIP, rtol=1e-14, atol=1e-290)


def test_no_value_raises_or_warns_whatever_the_callers_settings() -> None:
    sums = make(steps=100)
    with np.errstate(all="raise"):
        for row in ROWS + NOT_FINITE:
            sums.add(row)
        sums.add(np.array([np.finfo(np.longdouble).max] * 3))
        sums.add(np.array([[1, 2, 3], [4, 5, 6]], np.int64))
        sums.add(np.array([2**63, 0, 1], np.uint64))
        sums.add(np.array([True, False, True]))
        sums.add(np.zeros((0, 3)))
    assert sums.t == len(ROWS + NOT_FINITE) + 5


@pytest.mark.parametrize("record", range(12))
def test_neighbours_differ_by_at_most_the_clip_norm_at_every_step(record: int) -> None:
    rng = np.random.default_rng(record)
    batches = [rng.normal(size=(3, 4)) * 10.0 ** rng.integers(-4, 5) for _ in range(4)]
    batches[1][2] = [np.inf, 1, 1, 1]
    batches[3][0] = [1e308] * 4
    changed = [batch.copy() for batch in batches]
    step, row = divmod(record, 3)
    changed[step][row] = 0.0
    mechanism = list(MECHANISMS.values())[record % len(MECHANISMS)]
    one = raw_sums(make(4, 4, mechanism=mechanism), batches)
    other = raw_sums(make(4, 4, mechanism=mechanism), changed)
    gaps = np.linalg.norm(one - other, axis=1)
    assert (gaps <= L).all()
    assert (gaps[:step] == 0).all()
    if np.isfinite(batches[step][row]).all():
        assert gaps[step] > 0
    # Each node's sum of contributions, which the accountant counts, is one record's.
    np.testing.assert_allclose(gaps[step:], gaps[step], atol=1e-12)


def test_rows_of_a_step_are_clipped_one_by_one() -> None:
    sums = make(noise_multiplier=1e-300)
    got = sums.add([[100.0, 0, 0], [100.0, 0, 0], [0, 0.1, 0]])
    np.testing.assert_allclose(got, [2 * CLIP, 0.1, 0.0], atol=1e-290)
    assert sums.t == 1


@pytest.mark.parametrize(
    "bad",
    [[None, 0.2, 0.3], [0.1, 10**400, 0.3], [0.1, Decimal("NaN"), 0.3], [0.1, Decimal("sNaN"), 0],
     [object(), 0.2, 0.3], [0.1, "a", 0.3], [0.1, b"a", 0.3], [0.1, 1j, 0.3],
     ["0.1", "0.2", "0.3"], [0.1, np.datetime64("2020"), 0.3], [0.1, np.complex64(1j), 0.3]],
)  # fmt: skip
def test_a_value_that_makes_an_array_of_objects_or_text_counts_as_zero(bad: list[Any]) -> None:
    good = [0.1, 0.2, 0.3]
    raw = raw_sums(make(), [good, bad, [good, bad], good])
    np.testing.assert_allclose(raw, np.outer([1, 1, 2, 3], good), atol=1e-12)
    np.testing.assert_allclose(
        raw_sums(make(), [[Fraction(1, 10), Decimal("0.2"), 0.3]]), [good], atol=1e-12
    )


def interrupt(*given: Any, **named: Any) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_before_the_noise_leaves_the_records_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`t` has not advanced, so the records are passed again: they must not be in the sum yet."""
    sums, plain = make(), make()
    for each in (sums, plain):
        each.add([0.1, 0.2, 0.3])
    with monkeypatch.context() as patch:
        patch.setattr(type(sums._running.noise), "step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sums.add([0.3, 0.3, 0.3])
    assert sums.t == 1
    assert (sums.value == plain.value).all()
    for _ in range(2):
        assert (sums.add([0.3, 0.3, 0.3]) == plain.add([0.3, 0.3, 0.3])).all()


def test_an_interrupt_after_the_noise_can_lose_records_but_repeats_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sums, plain = make(), make()
    step = type(sums._running.noise).step

    def taken(noise: Any, *given: Any) -> None:
        step(noise, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(sums._running.noise), "step", taken)
        with pytest.raises(KeyboardInterrupt):
            sums.add([0.3, 0.3, 0.3])
    plain.add(np.zeros((0, 3)))
    assert sums.t == plain.t == 1
    assert (sums.add([0.3, 0.3, 0.3]) == plain.add([0.3, 0.3, 0.3])).all()


def test_no_digit_of_the_sum_is_lost_over_many_steps() -> None:
    """A plain sum in float64 would be off by many units in the last place after 2,000 steps."""
    steps = 2000
    sums = make(1, steps, clip_norm=1e3, noise_multiplier=1e-300)
    records = np.random.default_rng(2).uniform(0.1, 0.2, steps)
    records[0] = 900.0
    exact, plain = Fraction(0), 0.0
    for record in records.tolist():
        exact, plain = exact + Fraction(record), plain + record
        got = sums.add([record]).item()
        assert got == float(exact)
    assert plain != float(exact)


def test_the_horizon() -> None:
    sums = make(steps=5, restart_every=2)
    for _ in range(5):
        sums.add([0.1, 0.0, 0.0])
    last = sums.value
    for x in ([0.1, 0.0, 0.0], np.zeros((0, 3)), [np.nan] * 3):
        with pytest.raises(ValueError, match="all 5 declared steps are taken"):
            sums.add(x)
    assert sums.t == 5
    assert (sums.value == last).all()


def test_a_stream_that_ends_early_states_the_declared_epsilon() -> None:
    sums = make(steps=1000)
    before = sums.epsilon(1e-6)
    sums.add([0.0, 0.0, 0.0])
    assert sums.epsilon(1e-6) == before


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_bit_of_the_sum_below_the_noises_own(dtype: Any) -> None:
    sums = make(dtype=dtype)
    for _ in range(10):
        got = sums.add([0.1, 1e-9, 0.3])
        assert got.dtype == np.float64
        assert (got == got.astype(dtype)).all()


def test_out() -> None:
    plain = make()
    expected = [plain.add([0.1, 0.2, 0.3]) for _ in range(6)]
    sums = make()
    out = np.zeros(3)
    assert sums.add([0.1, 0.2, 0.3], out=out) is out
    np.testing.assert_array_equal(out, expected[0])
    tensor = torch.zeros(1, 3, dtype=torch.float64)
    assert sums.add([0.1, 0.2, 0.3], tensor) is tensor
    np.testing.assert_array_equal(tensor.numpy()[0], expected[1])
    raw = memoryview(bytearray(24)).cast("d")
    sums.add([0.1, 0.2, 0.3], raw)
    np.testing.assert_array_equal(np.asarray(raw), expected[2])
    record = np.array([0.1, 0.2, 0.3])
    sums.add(record, out=record)  # the record's own memory
    np.testing.assert_array_equal(record, expected[3])
    got = sums.add([0.1, 0.2, 0.3])
    got[:] = 0
    sums.value[:] = 0
    np.testing.assert_array_equal(sums.value, expected[4])
    np.testing.assert_array_equal(sums.add([0.1, 0.2, 0.3]), expected[5])


GOOD = [0.1, 0.2, 0.3]
BAD_CALLS: list[tuple[Any, Any, type[Exception], str]] = [
    ([0.1, 0.2], None, ValueError, r"shape \(3,\) or \(n, 3\), got \(2,\)"),
    (np.zeros((2, 2)), None, ValueError, r"got \(2, 2\)"),
    (np.zeros((1, 1, 3)), None, ValueError, r"got \(1, 1, 3\)"),
    (0.5, None, ValueError, r"got \(\)"),
    ([], None, ValueError, r"got \(0,\)"),
    (np.array(["a", "b", "c"]), None, TypeError, "records must hold real numbers, got dtype <U1"),
    (np.array([1j, 0, 0]), None, TypeError, "records must hold real numbers, got dtype complex128"),
    (GOOD, np.zeros(3, np.float32), TypeError, "float64 array .* got dtype float32"),
    (GOOD, np.zeros(2), ValueError, "got 2 elements"),
    (GOOD, np.zeros(6)[::2], ValueError, "not contiguous"),
    (GOOD, np.broadcast_to(np.zeros(1), (3,)), ValueError, "not contiguous|read-only"),
    (GOOD, memoryview(bytes(24)).cast("d"), ValueError, "read-only"),
    (GOOD, torch.zeros(3, dtype=torch.float64, requires_grad=True), TypeError, "grad"),
    (GOOD, [0.0, 0.0, 0.0], TypeError, "got list"),
]


@pytest.mark.parametrize(("x", "out", "error", "message"), BAD_CALLS)
def test_bad_calls_change_nothing(x: Any, out: Any, error: Any, message: str) -> None:
    sums, plain = make(), make()
    for _ in range(3):
        sums.add(GOOD), plain.add(GOOD)
    with pytest.raises(error, match=message):
        sums.add(x, out=out)
    assert sums.t == 3
    np.testing.assert_array_equal(sums.value, plain.value)
    np.testing.assert_array_equal(sums.add(GOOD), plain.add(GOOD))


NAN = float("nan")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be"),
        ({"steps": 0}, ValueError, "steps must be"),
        ({"steps": 2.5}, TypeError, "steps must be"),
        ({"clip_norm": NAN}, ValueError, r"clip_norm must be a finite number in \[.*, got nan"),
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be"),
        (
            {"clip_norm": 1e101},
            ValueError,
            r"clip_norm must be .* in \[1e-100, 1e\+100\], got 1e\+101",
        ),
        ({"clip_norm": 1e-101, "noise_multiplier": 9}, ValueError, "clip_norm must be"),
        ({"noise_multiplier": NAN}, ValueError, "noise_multiplier must be .* got nan"),
        ({"noise_multiplier": -1.0}, ValueError, "noise_multiplier must be"),
        ({"noise_multiplier": float("inf")}, ValueError, "noise_multiplier must be"),
        ({"variant": "tree"}, ValueError, "variant must be"),
        ({"restart_every": 0}, ValueError, "restart_every must be"),
        ({"complete": "some"}, (TypeError, ValueError), "complete must be"),
        ({"dtype": "float16"}, ValueError, "dtype must be"),
        ({"seed": 0.5}, TypeError, "seed must be"),
    ],
)
def test_bad_arguments(change: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        make(**change)


@pytest.mark.parametrize(
    "option", [{"rounds": 20}, {"memory": "regenerate"}, {"memory": 2}, {"threads": 1}], ids=str
)
def test_options_reach_the_noise(option: dict[str, Any]) -> None:
    (name,) = option
    plain, given = make(), make(**option)
    assert getattr(given._running.noise, name) == option[name]
    same = (given.add(GOOD) == plain.add(GOOD)).all()
    assert same == (name != "rounds")


def test_marked_when_seeded() -> None:
    assert make().reproducible
    assert "reproducible, not private" in repr(make())
    unseeded = make(seed=None)
    assert not unseeded.reproducible
    assert "reproducible" not in repr(unseeded)
    assert "0.1" not in repr(unseeded)


# ---- Many records in one step ----


def drifting_records(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two neighbours, of a first record 1 and 0, whose plain sums drift apart.

    Records of 1/2 climb until one sum is above a power of two and the other below. There the unit
    in the last place of one sum is twice that of the other, which adds all the rest exactly: cycles
    of +h, -h, -2h, h half a unit, which ties to even turn into no change.
    """
    climb = n // 4 * 2  # records of 1/2: up to n / 4
    level = 2.0 ** (int(np.log2(climb / 2)))
    filled = int(2 * level) - 1
    h = level * 2.0**-53
    rest = n - filled - 2
    cycle = np.resize([h, -h, -2 * h], rest)
    column = np.concatenate([[1 - 2.0**-20], np.full(filled, 0.5), [2.0 * h], cycle])
    x = np.zeros((n, 2))
    x[:, 0] = column
    other = x.copy()
    other[0] = 0.0
    return x, other


def test_many_records_of_one_step_keep_the_clip_norm() -> None:
    x, other = drifting_records(2**20)
    plain = x.sum(axis=0) - other.sum(axis=0)
    assert plain[0] > 1.0  # what a plain sum would release
    limit = 1 - 2.0**-20
    found = clipped_sum(x, 1.0) - clipped_sum(other, 1.0)
    assert abs(found[0] - limit) < 2.0**-22
    exact = math.fsum(x[:, 0])
    assert abs(clipped_sum(x, 1.0)[0] - exact) <= np.spacing(exact)


def test_sums_of_blocks_keep_their_rounding_errors() -> None:
    x = np.zeros((3 * 4096, 1))
    x[0], x[4096], x[-1] = 2.0**53, 1.0, -(2.0**53)
    assert clipped_sum(x, 2.0**60).tolist() == [1.0]


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
def test_a_bad_record_does_not_move_others_to_another_block(
    bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[np.ndarray] = []
    of = Clipped.of

    def seen(rule: Clipped, records: np.ndarray) -> np.ndarray:
        blocks.append(records)
        return of(rule, records)

    monkeypatch.setattr(Clipped, "of", seen)
    x = np.ones((10_000, 1))
    x[17] = bad
    assert clipped_sum(x, L).tolist() == [9999 * CLIP]
    assert [len(one) for one in blocks] == [4096, 4096, 10_000 - 2 * 4096]


def test_more_records_than_the_margin_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpftrl_fast.rounding._ROUNDING", 10 * 2.0**-51)
    sums = dpf.PrefixSum(2, 5, 1.0, 1.0)
    sums.add(np.ones((6, 2)))
    with pytest.raises(ValueError, match=r"records must be so few that the rounding .*, got 12 in"):
        sums.add(np.ones((6, 2)))
    assert sums.t == 1
    sums.add(np.ones((3, 2)))
    assert sums.t == 2


def test_an_output_has_no_places_below_those_of_the_noise() -> None:
    """At sums of 2^24 cells and more the numbers of float32 are coarser than the grid."""
    sums = dpf.PrefixSum(1, 30, 1e6, 1e-3, dtype="float32", mechanism="tree")
    grid = sums.plan.noise_spec.grid("float32")
    released = [sums.add(np.full((150, 1), 1e6))] + [sums.add(np.zeros((0, 1))) for _ in range(29)]
    values = np.concatenate(released)
    assert values.dtype == np.float64 and values.min() > 2**24 * grid
    assert np.array_equal(values, values.astype(np.float32))


def test_sums_that_are_read_while_others_are_added_are_all_kept() -> None:
    """Reading joined the parts of the history: a step that another thread took was lost."""
    sums, over = dpf.PrefixSum(1, 2000, 1.0, 4.0, history=True), threading.Event()
    found: list[bool] = []

    def read() -> None:
        while not over.is_set():
            before, values = sums.t, sums.values
            found.append(before <= len(values) <= sums.t)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(sums.steps):
            sums.add([1.0])
    finally:
        over.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert len(sums.values) == sums.t == 2000 and found and all(found)
