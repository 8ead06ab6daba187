# SPDX-License-Identifier: Apache-2.0
"""`clipped_grad`: one example moves the sums by at most L, in the dtypes that JAX has."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

from dpftrl_fast.jax import NotPrivate, bounded_sums, clipped_grad  # noqa: E402
from dpftrl_fast.rounding import clip_limit  # noqa: E402

RNG = np.random.default_rng


def linear(w: Any, batch: Any) -> Any:
    """Loss whose gradient is the row itself, in two leaves."""
    return jnp.sum(w["a"] * batch[0, :3]) + jnp.sum(w["b"] * batch[0, 3:].reshape(w["b"].shape))


def zeros(size: int, dtype: Any = np.float32) -> dict[str, Any]:
    return {"a": jnp.zeros(3, dtype), "b": jnp.zeros((size - 3, 1), dtype)}


def as_vector(tree: Any) -> np.ndarray[Any, Any]:
    leaves = [np.asarray(x, np.float64).reshape(-1) for x in jax.tree.leaves(tree)]
    return np.concatenate(leaves)


@functools.cache
def compiled(**options: Any) -> Any:
    return jax.jit(clipped_grad(linear, **{"clip_norm": 1.0, **options}))


def summed(rows: Any, **options: Any) -> np.ndarray[Any, Any]:
    call = compiled(**options)
    return as_vector(call(zeros(rows.shape[1], rows.dtype), jnp.asarray(rows)))


def clipped_rows(rows: Any, clip_norm: float) -> np.ndarray[Any, Any]:
    wide = rows.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))


# ---- Values ----


@pytest.mark.parametrize("microbatch", [None, 1, 3, 8, 100])
@pytest.mark.parametrize("clip_norm", [0.3, 1.0, 2.0**-60, 5e10])
def test_sums_are_those_of_numpy(clip_norm: float, microbatch: int | None) -> None:
    rows = (RNG(0).standard_normal((10, 40)) * clip_norm / 6).astype(np.float32)
    rows[4] *= 10
    found = summed(rows, clip_norm=clip_norm, microbatch_size=microbatch)
    expected = clipped_rows(rows, clip_norm).sum(0)
    np.testing.assert_allclose(found, expected, atol=1e-4 * clip_norm, rtol=0)


def test_gradients_are_those_of_jax() -> None:
    def loss(model: Any, x: Any, y: Any, factor: float = 1.0) -> Any:
        hidden = jnp.tanh(x @ model["w"] + model["b"])
        return factor * jnp.mean((hidden @ model["v"] - y) ** 2)

    rng = RNG(1)
    model = {
        "w": jnp.asarray(rng.standard_normal((5, 4)), jnp.float32),
        "b": jnp.zeros(4),
        "v": jnp.asarray(rng.standard_normal((4, 2)), jnp.float32),
    }
    x, y = (jnp.asarray(rng.standard_normal((7, n)), jnp.float32) for n in (5, 2))
    alone = [jax.grad(loss)(model, x[i : i + 1], y[i : i + 1], factor=2.0) for i in range(7)]
    rows = np.stack([as_vector(g) for g in alone])
    call = clipped_grad(loss, clip_norm=0.5, batch_argnums=(1, 2), microbatch_size=4)
    found = call(model, x, y, factor=2.0)
    assert jax.tree.structure(found) == jax.tree.structure(model)
    np.testing.assert_allclose(as_vector(found), clipped_rows(rows, 0.5).sum(0), atol=1e-4)
    # Users with five examples each: the gradient of their mean is clipped.
    by_user = clipped_grad(loss, clip_norm=0.5, batch_argnums=(1, 2), keep_batch_dim=False)
    users = as_vector(by_user(model, x[:6].reshape(2, 3, 5), y[:6].reshape(2, 3, 2)))
    means = np.stack([as_vector(jax.grad(loss)(model, x[i : i + 3], y[i : i + 3])) for i in (0, 3)])
    np.testing.assert_allclose(users, clipped_rows(means, 0.5).sum(0), atol=1e-4)


def test_several_parameters_are_clipped_together() -> None:
    def loss(u: Any, rows: Any, v: Any) -> Any:
        return u * rows[0, 0] + v * rows[0, 1]

    call = clipped_grad(loss, clip_norm=1.0, argnums=(0, 2))
    u, v = call(jnp.float32(0), jnp.array([[3.0, 4.0]]), jnp.float32(0))
    assert (float(u), float(v)) == pytest.approx((0.6, 0.8), abs=1e-4)


def test_half_precision_parameters_have_float32_sums() -> None:
    rows = RNG(2).standard_normal((9, 6)).astype(np.float32)
    call = clipped_grad(linear, clip_norm=1.0)
    found = call(zeros(6, jnp.bfloat16), jnp.asarray(rows))
    assert {x.dtype.name for x in jax.tree.leaves(found)} == {"float32"}
    np.testing.assert_allclose(as_vector(found), clipped_rows(rows, 1.0).sum(0), atol=0.05)


# ---- Neighbours ----


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    with jax.enable_x64(request.param == "float64"):
        yield np.dtype(request.param)


@pytest.mark.parametrize("microbatch", [None, 4])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e15, 1e30, -1e-30])
def test_one_example_moves_the_sums_by_at_most_l(
    value: float, microbatch: int | None, dtype: Any
) -> None:
    rows = (RNG(3).standard_normal((11, 50)) * 3).astype(dtype)
    options: dict[str, Any] = {"clip_norm": 0.7, "microbatch_size": microbatch}
    whole = summed(rows, **options)
    for i in range(11):
        other = rows.copy()
        other[i, :] = value
        without = rows.copy()
        without[i] = 0
        zeroed = summed(without, **options)
        assert np.linalg.norm(whole - zeroed) <= 0.7
        moved = np.linalg.norm(summed(other, **options) - zeroed)
        assert moved <= 0.7
        # 1e30 is longer than 10^18 clip norms in float32.
        if value == 1e15 or (value == 1e30 and dtype == np.float64):
            assert moved == pytest.approx(0.7, rel=1e-3)
        elif value != -1e-30:
            assert moved == 0


def test_padding_counts_as_zero(dtype: Any) -> None:
    rows = RNG(4).standard_normal((6, 5)).astype(dtype)
    call = clipped_grad(linear, clip_norm=1.0, microbatch_size=4, return_values=True)
    real = jnp.array([True, True, False, True, True, False])
    for filling in (rows[2], np.full(5, np.nan, dtype)):
        padded = rows.copy()
        padded[2] = filling
        found, _ = call(zeros(5, dtype), jnp.asarray(padded), is_real=real)
        without = rows * np.asarray(real)[:, None].astype(dtype)
        np.testing.assert_array_equal(as_vector(found), summed(without, microbatch_size=4))


def worst_rows(count: int, size: int) -> Any:
    """Examples that all are of one direction, whose sum is as large as it can be."""
    rows = np.abs(RNG(5).standard_normal((count, size))).astype(np.float32) + 1
    return np.repeat(rows[:1] * 100, count, axis=0)


@pytest.mark.parametrize(("count", "microbatch"), [(512, 64), (2048, 2048), (3000, 7)])
def test_the_largest_sums_stay_within_l(count: int, microbatch: int) -> None:
    rows = worst_rows(count, 300)
    whole = summed(rows, microbatch_size=microbatch)
    for i in (0, count // 2, count - 1):
        other = rows.copy()
        other[i] = 0
        assert np.linalg.norm(whole - summed(other, microbatch_size=microbatch)) <= 1.0


def test_without_the_room_for_rounding_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_sums, "contribution_limit", lambda clip_norm, *_, **__: clip_norm)
    monkeypatch.setattr(bounded_sums, "inflation", lambda *_: 1.0)
    compiled.cache_clear()
    moved = []
    for size in range(298, 302):
        rows = worst_rows(2048, size)
        other = rows.copy()
        other[5] = 0
        moved.append(np.linalg.norm(summed(rows) - summed(other)))
    compiled.cache_clear()
    assert max(moved) > 1.0


@pytest.mark.parametrize("size", [10, 129, 10**4, 10**6])
def test_no_norm_is_underestimated(size: int) -> None:
    """Small squares behind a large one are lost where they are added one by one."""
    rng = RNG(6)
    for rows in (
        np.full(size, 2.0**-13),
        np.r_[1.0, np.full(size - 1, 2.0**-12.5)],
        np.r_[np.full(size - 1, 2.0**-12.5), 1.0],
        rng.standard_normal(size),
        rng.standard_normal(size) * 10.0 ** rng.uniform(-8, 8, size),
        rng.standard_normal(size) * 1e-25,
    ):
        for factor in (0.99998, 1.0, 3.0):
            row = (rows * (factor / np.linalg.norm(rows))).astype(np.float32)[None]
            norm = np.linalg.norm(summed(row))
            assert norm <= clip_limit(1.0)
            assert norm >= min(np.linalg.norm(row.astype(np.float64)), 1.0) * (1 - 2e-4)


@pytest.mark.parametrize("sizes", [[1], [128], [10**7, 3], [5] * 1000])
def test_the_room_for_a_norm_is_that_of_its_additions(sizes: list[int]) -> None:
    """A number meets at most 127 additions at each level, of its leaf and over the leaves."""
    additions = 1
    for count in (max(sizes), len(sizes)):
        while count > 1:
            additions += min(count, 128) - 1
            count = -(-count // 128)
    for unit in (2.0**-24, 2.0**-53):
        exact = (1 - Fraction(unit)) ** additions  # of the sum of squares
        enlarged = Fraction(bounded_sums.inflation(sizes, unit)) * (1 - 2 * Fraction(unit))
        assert enlarged**2 * exact > 1 + Fraction(2) ** -16
        assert enlarged < 1.001


def test_a_sum_in_one_number_would_drift() -> None:
    """Many microbatches: the rounding errors of the running total are kept."""
    small = np.float32(3.3e-5)
    rows = np.full((4097, 4), small)
    rows[0] = 0.4
    exact = float(np.float32(0.4)) + 4096 * float(small)
    np.testing.assert_allclose(summed(rows, microbatch_size=1), exact, rtol=2.0**-23)
    one = np.float32(0.4)
    for _ in range(4096):
        one = one + small
    assert abs(one / exact - 1) > 2.0**-22


def test_the_limit_grows_smaller_with_the_sums() -> None:
    limit = bounded_sums.contribution_limit
    unit = 2.0**-24
    assert limit(1.0, 64, 64, unit=unit) > limit(1.0, 128, 64, unit=unit)
    assert limit(1.0, 4096, 64, unit=unit) > limit(1.0, 4096, 4096, unit=unit)
    assert limit(1.0, 64, 64, unit=unit) > limit(1.0, 64, 64, unit=unit, addends=2)
    assert limit(1.0, 64, 64, unit=2.0**-53) > limit(1.0, 64, 64, unit=unit)
    assert limit(1.0, 1, 1, unit=unit) < clip_limit(1.0)


# ---- What is returned ----


def test_no_values_of_examples_unless_asked_for() -> None:
    rows = RNG(7).standard_normal((5, 4)).astype(np.float32)
    w = jax.tree.map(lambda x: x + 1, zeros(4))

    def loss(w: Any, batch: Any) -> Any:
        return linear(w, batch), batch[0, 0]

    options: dict[str, Any] = {"clip_norm": 1.0, "has_aux": True, "microbatch_size": 2}
    plain = clipped_grad(loss, **options)(w, jnp.asarray(rows))
    assert jax.tree.structure(plain) == jax.tree.structure(w)
    sums, shown = clipped_grad(loss, **options, return_values=True)(w, jnp.asarray(rows))
    assert isinstance(shown, NotPrivate)
    np.testing.assert_allclose(shown.values, rows.sum(1), atol=1e-5)
    np.testing.assert_allclose(shown.norms, np.linalg.norm(rows, axis=1), rtol=1e-4)
    np.testing.assert_array_equal(shown.aux, rows[:, 0])
    np.testing.assert_allclose(as_vector(sums), as_vector(plain), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"clip_norm": 0.0}, ValueError, "clip_norm must be"),
        ({"clip_norm": float("nan")}, ValueError, "clip_norm must be"),
        ({"clip_norm": 1e30}, ValueError, "clip_norm must be"),
        ({"microbatch_size": 0}, ValueError, "microbatch_size must be"),
        ({"batch_argnums": 0}, ValueError, "must be different arguments"),
        ({"argnums": ()}, ValueError, "argnums must be one or several"),
        ({"argnums": (0, 0)}, ValueError, "argnums must be one or several"),
        ({"argnums": "w"}, TypeError, "argnums must be"),
        ({"addends": 0}, ValueError, "addends must be"),
        ({"has_aux": 1}, TypeError, "has_aux must be a bool"),
    ],
)
def test_arguments_that_are_refused(options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        clipped_grad(linear, **{"clip_norm": 1.0, **options})


def test_batches_that_are_refused() -> None:
    call = clipped_grad(linear, clip_norm=1.0)
    for rows in (jnp.ones((0, 4)), jnp.float32(1), {}, (jnp.ones((2, 4)), jnp.ones((3, 4)))):
        with pytest.raises(ValueError, match="must have one length of their first axis"):
            call(zeros(4), rows)
    for real in (jnp.ones(2), jnp.ones(3, bool)):
        with pytest.raises(ValueError, match=r"is_real must be bool of shape \(2,\)"):
            call(zeros(4), jnp.ones((2, 4)), is_real=real)
    with pytest.raises(ValueError, match="at least one coordinate"):
        call({}, jnp.ones((2, 4)))
