# SPDX-License-Identifier: Apache-2.0
"""Clipping of per-example gradients: norms, factors, and what one example can do to a sum."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import threading
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.rounding import clip_limit
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.clipped_sums import (
    add_clipped_,
    contribution_limit,
    joint_norms,
    row_norms,
    sum_dtype,
)
from dpftrl_fast.torch.gradients.clipping import (
    AutomaticClipping,
    Clipping,
    FlatClipping,
    PerLayerClipping,
    clipping_of,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def exact_norm_squared(values: torch.Tensor) -> Fraction:
    """The squared norm as an exact number: every floating-point number is a fraction."""
    return sum((Fraction(float(x)) ** 2 for x in values.double().flatten()), Fraction(0))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 1), (5, 7), (2, 3, 4, 5), (4,), (1, 1001)])
def test_row_norms_are_those_of_exact_arithmetic(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    sample = torch.randn(*shape, generator=generator(1), dtype=torch.float64).to(dtype)
    expected = [math.sqrt(exact_norm_squared(row)) for row in sample]
    assert row_norms(sample).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1.0, 1e200, 1e307])
def test_row_norms_neither_overflow_nor_vanish_in_float64(scale: float) -> None:
    norms = row_norms(torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float64) * scale)
    assert norms.tolist() == pytest.approx([5 * scale, 0.0], rel=1e-3 if scale < 1e-300 else 1e-14)
    joint = joint_norms(torch.tensor([[3.0], [4.0], [0.0]], dtype=torch.float64) * scale)
    assert joint.tolist() == pytest.approx([5 * scale], rel=1e-3 if scale < 1e-300 else 1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_row_norms_tell_rows_that_are_not_finite(dtype: torch.dtype, bad: float) -> None:
    sample = torch.ones(4, 3, 2, dtype=dtype)
    sample[2, 1, 1] = bad
    assert torch.isfinite(row_norms(sample)).tolist() == [True, True, False, True]


def test_row_norms_of_nothing() -> None:
    assert row_norms(torch.zeros(3, 0)).tolist() == [0.0, 0.0, 0.0]
    assert row_norms(torch.zeros(0, 3)).tolist() == []


def test_float32_norms_of_many_entries_use_float64() -> None:
    # A running sum in float32 stops growing at 2^24 ones.
    assert row_norms(torch.ones(1, 2**24 + 2**22)).item() == math.sqrt(2**24 + 2**22)


@pytest.mark.parametrize("seed", range(5))
def test_flat_clipping_scales_to_the_clip_norm_and_not_up(seed: int) -> None:
    norms = torch.rand(3, 50, generator=generator(seed), dtype=torch.float64) * 2
    joint = norms.square().sum(0).sqrt()
    factors = FlatClipping(1.5).factors(norms, 0.5)
    assert torch.equal(factors[0], factors[1]) and torch.equal(factors[0], factors[2])
    assert torch.equal(factors[0][joint <= 0.75], torch.ones(int((joint <= 0.75).sum())).double())
    clipped = (factors[0] * joint)[joint > 0.75]
    torch.testing.assert_close(clipped, torch.full_like(clipped, 0.75))


def test_per_layer_clipping_has_the_norm_of_all_layers_together() -> None:
    clipping = PerLayerClipping((1.0, 2.0, 2.0))
    assert clipping.clip_norm == 3.0
    norms = torch.tensor([[10.0, 0.5], [10.0, 3.0], [10.0, 2.0]], dtype=torch.float64)
    assert clipping.factors(norms, 1.0).T.tolist() == [[0.1, 0.2, 0.2], [1.0, 2 / 3, 1.0]]


@pytest.mark.parametrize("seed", range(20))
def test_the_norm_of_per_layer_clipping_is_never_understated(seed: int) -> None:
    rng = np.random.default_rng(seed)
    norms = tuple(map(float, rng.lognormal(0.0, 3.0, size=1 + seed)))
    exact = sum(Fraction(norm) ** 2 for norm in norms)
    total = PerLayerClipping(norms).clip_norm
    assert Fraction(total) ** 2 >= exact > Fraction(math.nextafter(total, 0.0)) ** 2
    equal = PerLayerClipping.equal(float(norms[0]), len(norms))
    assert sum(Fraction(norm) ** 2 for norm in equal.clip_norms) <= Fraction(norms[0]) ** 2
    assert equal.clip_norm == pytest.approx(norms[0], rel=1e-15) and equal.clip_norm <= norms[0]


def test_automatic_clipping_scales_every_gradient_below_the_clip_norm() -> None:
    norms = torch.tensor([[0.0, 1e-6, 0.01, 5.0, 1e300]], dtype=torch.float64)
    parts = AutomaticClipping(2.0, gamma=0.01).factors(norms, 1.0) * norms
    expected = [2.0 * n / (n + 0.01) for n in norms[0].tolist()]
    assert parts[0].tolist() == pytest.approx(expected, rel=1e-14)
    tiny = AutomaticClipping(1e100, gamma=5e-324).factors(torch.zeros(1, 2).double(), 1.0)
    assert bool(torch.isfinite(tiny).all())


@pytest.mark.parametrize(
    "clipping", [FlatClipping(1.0), PerLayerClipping((0.6, 0.8)), AutomaticClipping(1.0)]
)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_example_that_is_not_finite_somewhere_counts_as_zero_everywhere(
    clipping: Clipping, bad: float
) -> None:
    norms = torch.tensor([[1.0, bad, 1.0], [1.0, 1.0, bad]], dtype=torch.float64)
    factors = clipping.factors(norms, 1.0)
    assert (factors > 0).tolist() == [[True, False, False], [True, False, False]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_leave_out_what_has_factor_zero(dtype: torch.dtype) -> None:
    sample = torch.randn(6, 4, 3, generator=generator(2), dtype=torch.float64).to(dtype)
    sample[1], sample[4, 2, 1] = math.nan, math.inf
    factors = torch.tensor([0.5, 0.0, 1.0, 0.25, 0.0, 1e-3], dtype=torch.float64)
    total = torch.ones(4, 3, dtype=torch.float64)
    add_clipped_(total, sample, factors)
    kept = [0, 2, 3, 5]
    expected = 1 + sum(float(factors[i]) * sample[i].double() for i in kept)
    torch.testing.assert_close(total, expected, rtol=1e-14, atol=1e-15)
    add_clipped_(total, sample, torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(total, expected, rtol=1e-14, atol=1e-15)


def test_long_gradients_are_summed_in_parts() -> None:
    sample = torch.randn(5, 2**18 + 3, generator=generator(3))
    factors = torch.rand(5, generator=generator(4), dtype=torch.float64)
    total = torch.zeros(2**18 + 3, dtype=torch.float64)
    add_clipped_(total, sample, factors)
    torch.testing.assert_close(total, factors @ sample.double(), rtol=1e-13, atol=1e-14)


def written_sums(
    clipping: Clipping, samples: list[torch.Tensor], dtype: torch.dtype, batch_size: int
) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(torch.zeros(s.shape[1:], dtype=dtype)) for s in samples]
    plan = PrivacyPlan(clipping.clip_norm, 1.0, SinglePass(1))
    sums = Accumulator(parameters, clipping, batch_size, plan.guard())
    rows = samples[0].shape[0]
    sums.begin(range(rows))
    half = rows // 2
    for part in (slice(0, half), slice(half, rows)):
        if part.start < part.stop:
            sums.expect(part.stop - part.start)
            sums.add([s[part] for s in samples])
    sums.finish()
    return [p.grad for p in parameters if p.grad is not None]


def test_of_two_threads_with_one_piece_the_second_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both would have room, and each example would be in the sums twice."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    plan = PrivacyPlan(1.0, 1.0, SinglePass(1))
    sums = Accumulator([parameter], FlatClipping(1.0), 1, plan.guard())
    sums.begin([0])
    sums.expect(1)
    barrier, room = threading.Barrier(2, timeout=0.3), Accumulator.check_room

    def slow(self: Accumulator, rows: int) -> None:
        room(self, rows)
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()

    monkeypatch.setattr(Accumulator, "check_room", slow)
    refused: list[ValueError] = []

    def add() -> None:
        try:
            sums.add([torch.tensor([[0.6, 0.0]])])
        except ValueError as error:
            refused.append(error)

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    sums.finish()
    torch.testing.assert_close(parameter.grad, torch.tensor([0.6, 0.0]))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_sums_are_not_copied(copied: Any) -> None:
    plan = PrivacyPlan(1.0, 1.0, SinglePass(1))
    parameter = torch.nn.Parameter(torch.zeros(2))
    sums = Accumulator([parameter], FlatClipping(1.0), 1, plan.guard())
    with pytest.raises(TypeError, match="an Accumulator is not copied nor pickled"):
        copied(sums)


def fresh(parameters: list[torch.nn.Parameter], clipping: Clipping) -> Accumulator:
    plan = PrivacyPlan(clipping.clip_norm, 1.0, SinglePass(4))
    return Accumulator(parameters, clipping, 4, plan.guard())


def rows_of(seed: int, rows: int) -> list[torch.Tensor]:
    return [torch.randn(rows, *shape, generator=generator(seed)) for shape in ((3,), (2, 2))]


def parameters_of() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(3)), torch.nn.Parameter(torch.zeros(2, 2))]


def sums_after(sums: Accumulator, seed: int) -> list[torch.Tensor]:
    """The written sums of a batch of three examples."""
    sums.begin([1, 2, 3])
    sums.expect(3)
    sums.add(rows_of(seed, 3))
    sums.finish()
    found = [p.grad.clone() for p in sums.parameters if p.grad is not None]
    sums.done()
    return found


def interrupt(*given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_nothing_of_an_abandoned_batch_is_in_the_next_sums(rows: int) -> None:
    """One example would count in two batches: 2 L, where the plan states L."""
    clipping = FlatClipping(0.7)
    expected = sums_after(fresh(parameters_of(), clipping), seed=5)
    sums = fresh(parameters_of(), clipping)
    sums.begin([1, 2, 3, 7])
    sums.expect(rows)
    sums.add(rows_of(6, rows))
    sums.abandon()
    assert not sums.is_open and sums.rows_due == 0 and sums.steps_taken == 0
    assert all(torch.equal(a, b) for a, b in zip(sums_after(sums, 5), expected, strict=True))


def test_the_limit_is_that_of_the_coarsest_sum() -> None:
    for dtypes in ((torch.float32, torch.float64), (torch.float64, torch.bfloat16)):
        members = [torch.nn.Parameter(torch.zeros(2, dtype=dtype)) for dtype in dtypes]
        sums = fresh(members, FlatClipping(0.7))
        assert sums._shrink == contribution_limit(0.7, 4) / 0.7
    double = [torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))]
    limit = contribution_limit(0.7, 4, torch.float64)
    found = fresh(double, FlatClipping(0.7))._shrink
    assert found == limit / 0.7 > contribution_limit(0.7, 4) / 0.7


def test_no_more_rows_come_than_were_announced() -> None:
    """Also where the batch has more: they are another piece's."""
    sums = fresh(parameters_of(), FlatClipping(0.7))
    sums.begin([1, 2, 3, 7])
    sums.expect(2)
    with pytest.raises(ValueError, match=r"gradients of the 2 examples .* got 3"):
        sums.add(rows_of(5, 3))
    sums.add(rows_of(5, 2))
    with pytest.raises(ValueError, match=r"gradients of the 0 examples .* got 1"):
        sums.add(rows_of(5, 1))
    assert sums.rows_due == 0


def test_nothing_of_a_batch_stays_after_its_step() -> None:
    sums = fresh(parameters_of(), FlatClipping(0.7))
    sums_after(sums, seed=6)
    assert all(p.grad is None for p in sums.parameters)
    assert sums._sums == [None, None]


def test_a_parameter_without_a_part_in_a_batch_has_a_sum_of_zero() -> None:
    """Not the one of the batch before."""
    sums = fresh(parameters_of(), FlatClipping(0.7))
    sums_after(sums, seed=6)
    sums.begin([4, 5])
    sums.expect(2)
    sums.add([rows_of(7, 2)[0], None])
    sums.finish()
    grad = sums.parameters[1].grad
    assert grad is not None and bool((grad == 0).all())


def test_an_interrupt_while_sums_are_written_leaves_none_behind() -> None:
    sums = fresh(parameters_of(), FlatClipping(0.7))
    sums.before_step = interrupt
    sums.begin([1, 2, 3])
    sums.expect(3)
    sums.add(rows_of(5, 3))
    with pytest.raises(KeyboardInterrupt):
        sums.finish()
    assert all(p.grad is None for p in sums.parameters)
    assert sums._sums == [None, None]


@pytest.mark.parametrize("processes", [2, 7, 64])
def test_each_addition_of_a_reduction_has_its_room(processes: int) -> None:
    """Sums of so many processes in float32, in the worst order: one rounding an addition."""
    rows = 250
    limit = contribution_limit(1.0, rows, roundings=processes)
    unit = Fraction(1, 2**24)
    off = sum(
        (Fraction(rows) * Fraction(limit) * unit for _ in range(processes)),
        Fraction(rows + 2) * rows * Fraction(limit) / 2**53,
    )
    assert Fraction(limit) + 2 * off <= 1
    plan = PrivacyPlan(1.0, 1.0, SinglePass(1))
    sums = Accumulator(
        [torch.nn.Parameter(torch.zeros(1))],
        FlatClipping(1.0),
        rows,
        plan.guard(),
        roundings=processes,
    )
    sums.begin(range(1))
    sums.expect(1)
    sums.add([torch.full((1, 1), 1e6)])
    sums.finish()
    grad = sums.parameters[0].grad
    assert grad is not None
    assert grad.item() == pytest.approx(limit, rel=1e-7) and limit < contribution_limit(1.0, rows)


CLIPPINGS = {
    "flat": FlatClipping(0.7),
    "per-layer": PerLayerClipping((0.3, 0.5, 0.4)),
    "automatic": AutomaticClipping(0.7, gamma=1e-6),
}


@pytest.mark.parametrize("kind", CLIPPINGS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(6))
def test_one_example_changes_the_written_sums_by_at_most_the_clip_norm(
    kind: str, dtype: torch.dtype, seed: int
) -> None:
    """Exact arithmetic on what is written, roundings of both sums included."""
    clipping, rows = CLIPPINGS[kind], (2, 3, 17, 64, 250, 1000)[seed]
    shapes = [(3,), (2, 2), (1,)]
    # All gradients point nearly the same way, so that sums are as large as can be.
    samples = [
        (100.0 * (1.0 + 1e-3 * torch.randn(rows, *shape, generator=generator(seed)))).to(dtype)
        for shape in shapes
    ]
    whole = written_sums(clipping, samples, dtype, rows)
    assert all(s.dtype == sum_dtype(dtype) for s in whole)
    for i in (0, rows // 2, rows - 1):
        for loss in (0.0, math.nan):  # replaced by zero, and by what counts as zero
            less = [s.clone() for s in samples]
            for s in less:
                s[i] = loss
            without = written_sums(clipping, less, dtype, rows)
            change = sum(
                (Fraction(float(a)) - Fraction(float(b))) ** 2
                for x, y in zip(whole, without, strict=True)
                for a, b in zip(x.flatten(), y.flatten(), strict=True)
            )
            assert change <= Fraction(clipping.clip_norm) ** 2
            assert change >= Fraction(clipping.clip_norm * 0.99) ** 2


def worst_change(limit: float, rows: int) -> float:
    """The largest change, over many directions, of a sum of equal gradients of norm `limit`."""
    directions = torch.randn(4000, 2, generator=generator(rows), dtype=torch.float64)
    parts = directions / directions.norm(dim=1, keepdim=True) * limit
    whole = (rows * parts).float().double()
    without = ((rows - 1) * parts).float().double()
    return float((whole - without).norm(dim=1).max())


@pytest.mark.parametrize("rows", [33, 250, 1025, 4097, 65537])
def test_the_limit_leaves_room_for_the_rounding_of_the_sum(rows: int) -> None:
    assert worst_change(contribution_limit(1.0, rows), rows) <= 1.0
    # The margin of a single gradient, 2^-20, does not.
    assert worst_change(clip_limit(1.0), rows) > 1.0


def test_the_limit_is_close_to_the_clip_norm() -> None:
    for rows, loss in [(1, 2e-6), (250, 3.2e-5), (4096, 5.1e-4), (65536, 8e-3)]:
        assert 1.0 - loss < contribution_limit(1.0, rows) < clip_limit(1.0)
        assert contribution_limit(1.0, rows, torch.float64) > 1.0 - 2e-6
    assert contribution_limit(1.0, 250, roundings=4) < contribution_limit(1.0, 250)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((math.nan, 1), "clip_norm"),
        ((0.0, 1), "clip_norm"),
        ((1.0, 0), "batch_size"),
        ((1e-30, 1), "float32"),
        ((1e30, 1), "float32"),
        ((1.0, 1, torch.bfloat16), "dtype"),
    ],
)
def test_bad_limits_are_refused(arguments: tuple[object, ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        contribution_limit(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (
            ("ghost", 1.0, 2),
            "clipping must be one of 'flat', 'per-layer', 'automatic', got 'ghost'",
        ),
        (("flat", math.nan, 2), "clip_norm"),
        (("flat", [1.0, 1.0], 2), "per-layer"),
        (("flat", 1.0, 2, 0.1), "gamma"),
        (("automatic", 1.0, 2, 0.0), "gamma"),
        (("automatic", 1.0, 2, math.inf), "gamma"),
        (("per-layer", [1.0], 2), "each of the 2 parameter tensors, got 1"),
        (("per-layer", [1.0, -1.0], 2), "clip_norms"),
    ],
)
def test_bad_clippings_are_refused(arguments: tuple[object, ...], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        clipping_of(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="got none"):
        PerLayerClipping(())
    with pytest.raises(ValueError, match="got 2"):
        PerLayerClipping((1.0, 1.0)).factors(torch.ones(3, 1).double(), 1.0)


def test_clippings_by_name() -> None:
    assert clipping_of("flat", 2.0, 3) == FlatClipping(2.0)
    assert clipping_of("automatic", 2.0, 3) == AutomaticClipping(2.0, 0.01)
    assert clipping_of("per-layer", [3.0, 4.0], 2).clip_norm == 5.0
