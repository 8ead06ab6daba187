# SPDX-License-Identifier: Apache-2.0
"""The tree of `dpftrl_fast.reference`: nodes made recognisable, sums against linear algebra."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from dpftrl_fast import reference
from dpftrl_fast.reference import (
    TreeNoise,
    TreeNoisePython,
    covariance,
    live_nodes,
    normals,
    stream,
    variance_factor,
)

VARIANTS = ["vanilla", "honaker"]
DTYPES = ["float32", "float64"]


class Made(TreeNoise):
    """A tree whose nodes are given by a function of (tree, level, index); it records the calls."""

    def __init__(self, function, size: int = 1, **options) -> None:
        super().__init__(size, 1.0, seed=0, dtype="float64", **options)
        self.function = function
        self.calls: list[tuple[int, int, int]] = []

    def node(self, level: int, index: int) -> np.ndarray:
        self.calls.append((self.tree, level, index))
        return np.broadcast_to(np.float64(self.function(self.tree, level, index)), self._size)


def dyadic(steps: int) -> list[tuple[int, int]]:
    """Every node whose leaves lie in 1 .. steps."""
    return [(level, k) for level in range(steps.bit_length()) for k in range(steps >> level)]


def incidence(steps: int) -> np.ndarray:
    """[node, leaf]: 1 where the node covers the leaf."""
    nodes = dyadic(steps)
    leaves = np.arange(steps)
    return np.array([leaves >> level == index for level, index in nodes], float)


def coefficients(steps: int, variant: str) -> np.ndarray:
    """[t - 1, node]: how b_t is made of the nodes, read off by giving each node a unit vector."""
    nodes = dyadic(steps)
    tree = Made(
        lambda _, level, index: np.eye(len(nodes))[nodes.index((level, index))],
        len(nodes),
        variant=variant,
    )
    return np.array([tree.step() for _ in range(steps)])


# --- which nodes, with which weights --------------------------------------------------------------


def test_live_nodes_tile_the_steps_from_high_to_low() -> None:
    for t in range(300):
        nodes = live_nodes(t)
        leaves = [k * 2**level + i for level, k in nodes for i in range(1, 2**level + 1)]
        assert leaves == list(range(1, t + 1))
        assert sorted(nodes, reverse=True) == nodes
        assert len(nodes) == bin(t).count("1")


def test_all_ones_vanilla_is_popcount() -> None:
    tree = Made(lambda *_: 1.0, variant="vanilla")
    for t in range(1, 300):
        assert tree.step() == bin(t).count("1")
        assert tree.prefix(t) == bin(t).count("1")


def test_all_ones_honaker() -> None:
    """With ones, r(l) = 1 + r(l - 1) = l + 1, so b_t is the sum of (l + 1) w_l."""
    tree = Made(lambda *_: 1.0, variant="honaker")
    for t in range(1, 300):
        terms = [(i + 1) / (2 - 0.5**i) for i in range(9) if t >> i & 1]
        assert tree.step()[0] == pytest.approx(sum(terms), rel=1e-15)
    assert tree.prefix(8)[0] == pytest.approx(4 / 1.875, rel=1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("steps", [1, 7, 32, 45])
def test_every_prefix_is_an_unbiased_estimator(variant: str, steps: int) -> None:
    """Put the data's own sums into the nodes: b_t then is the exact sum of the first t values."""
    made = coefficients(steps, variant) @ incidence(steps)
    np.testing.assert_allclose(made, np.tri(steps), atol=1e-14)


@pytest.mark.parametrize("height", range(6))
def test_honaker_is_the_best_estimator_from_the_nodes_below(height: int) -> None:
    """For t = 2^h the variance is the Gauss-Markov bound for the total, given all nodes below."""
    steps = 2**height
    a = incidence(steps)
    bound = np.ones(steps) @ np.linalg.solve(a.T @ a, np.ones(steps))
    assert float(variance_factor(steps, "honaker")) == pytest.approx(bound, rel=1e-12)


def test_variance_factors() -> None:
    assert round(float(variance_factor(25)), 2) == 2.05
    assert round(float(variance_factor(32)), 2) == 0.51
    assert variance_factor(3) == Fraction(2, 3) + 1
    for t in range(200):
        assert variance_factor(t, "vanilla") == bin(t).count("1")
        assert variance_factor(t, "honaker") == sum(
            Fraction(2**i, 2 ** (i + 1) - 1) for i in range(8) if t >> i & 1
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_covariance_is_that_of_the_coefficients(variant: str) -> None:
    steps = 45
    c = coefficients(steps, variant)
    exact = covariance(steps, variant)
    np.testing.assert_allclose(c @ c.T, np.array(exact, float), rtol=0, atol=1e-14)
    assert [exact[t - 1][t - 1] for t in range(1, steps + 1)] == [
        variance_factor(t, variant) for t in range(1, steps + 1)
    ]


def test_honaker_has_less_noise_than_vanilla_at_every_step() -> None:
    """Once a level above the leaves is live; and no combination of its steps is without noise."""
    vanilla, honaker = (np.array(covariance(32, v), float) for v in VARIANTS)
    less = np.diag(vanilla) - np.diag(honaker)
    assert less[0] == 0
    assert less[1:].min() > 0.3
    assert np.linalg.eigvalsh(honaker).min() > 0.05


# --- step, residual, prefix, restart: tables worked by hand ---------------------------------------

# The nodes of three trees that the tables need, each with a number of its own.
#   tree 0, leaves 1 .. 4:     (2,0) = 64
#                      (1,0) = 16       (1,1) = 32
#                  1      2          4      8          leaves (0,0) .. (0,3)
#   tree 1: (0,0) = 100, (0,1) = 200, (1,0) = 400; tree 2: (0,0) = 1000, (0,1) = 2000, (1,0) = 4000
NAMED = {
    (0, 0, 0): 1,
    (0, 0, 1): 2,
    (0, 0, 2): 4,
    (0, 0, 3): 8,
    (0, 1, 0): 16,
    (0, 1, 1): 32,
    (0, 2, 0): 64,
    (1, 0, 0): 100,
    (1, 0, 1): 200,
    (1, 1, 0): 400,
    (2, 0, 0): 1000,
    (2, 0, 1): 2000,
    (2, 1, 0): 4000,
}
# vanilla: tree 0 has b_1 .. b_4 = 1, 16, 16 + 4 = 20, 64
TABLES = {
    "steps": [("step", 1), ("step", 16), ("step", 20), ("step", 64)],
    "residuals": [("residual", 1), ("residual", 15), ("residual", 4), ("residual", 44)],
    "mixed": [("step", 1), ("residual", 15), ("step", 20), ("residual", 44)],
    # carry b_3 = 20, then tree 1; carry 20 + b_2 = 420, then tree 2
    "restart": [
        *[("step", 1), ("step", 16), ("step", 20), "restart"],
        *[("step", 120), ("step", 420), "restart"],
        *[("step", 1420), ("step", 4420)],
    ],
    "restart residual": [
        *[("residual", 1), ("residual", 15), ("residual", 4), "restart"],
        *[("residual", 100), ("residual", 300), "restart"],
        *[("residual", 1000), ("residual", 3000)],
    ],
    # t = 3 is completed to 4: carry b_4 = 64; the residual is b_4 - b_3 + b'_1 = 64 - 20 + 100
    "complete": [
        *[("residual", 1), ("residual", 15), ("residual", 4), "complete"],
        *[("residual", 144), ("residual", 300), "complete"],
        *[("step", 1464)],
    ],
    # t = 1 and t = 2 are powers of two: completion adds nothing
    "complete at a power of two": [
        *[("step", 1), "complete", ("step", 101), ("step", 401), "complete"],
        *[("step", 1401)],
    ],
    # steps passed over were not returned: 20 - 1, then 64 - 20; in the next tree 164 - 64
    "advance": [
        *[("step", 1), 2, ("residual", 19), 3, ("residual", 44), "restart"],
        *[("residual", 100), 1, ("residual", 300)],
    ],
    "advance at once": [2, ("residual", 20), "complete", ("residual", 144)],
    "restart after an advance": [3, "restart", ("residual", 120)],
    "completion after an advance": [3, "complete", ("residual", 164)],
}


@pytest.mark.parametrize("name", TABLES)
def test_semantics_by_hand_vanilla(name: str) -> None:
    tree = Made(lambda *node: NAMED[node], variant="vanilla")
    t = number = 0
    for action in TABLES[name]:
        if isinstance(action, int):
            tree.advance_to(action)
            t = action
        elif isinstance(action, str):
            tree.restart(complete=action == "complete")
            t, number = 0, number + 1
        else:
            call, expected = action
            assert getattr(tree, call)().tolist() == [expected]
            t += 1
        assert (tree.t, tree.tree) == (t, number)


def test_semantics_by_hand_honaker() -> None:
    tree = Made(lambda *node: NAMED[node], variant="honaker")
    r10 = 16 + (1 + 2) / 2  # 17.5
    r11 = 32 + (4 + 8) / 2  # 38
    r20 = 64 + (17.5 + 38) / 2  # 91.75
    assert (r10, r11, r20) == (17.5, 38, 91.75)
    near = pytest.approx
    assert tree.step()[0] == 1
    assert tree.step()[0] == near(17.5 * 2 / 3)
    assert tree.residual()[0] == near(4)
    assert tree.prefix(4)[0] == near(91.75 * 4 / 7)
    assert (tree.t, tree.tree) == (3, 0)
    tree.restart(complete=True)
    assert tree.residual()[0] == near(91.75 * 4 / 7 - (17.5 * 2 / 3 + 4) + 100)
    assert tree.step()[0] == near(91.75 * 4 / 7 + (400 + 150) * 2 / 3)
    tree.restart()
    assert tree.step()[0] == near(91.75 * 4 / 7 + (400 + 150) * 2 / 3 + 1000)
    assert tree.prefix(1)[0] == 1000


@pytest.mark.parametrize("variant", VARIANTS)
def test_residuals_add_up_to_the_steps(variant: str) -> None:
    """The equivalence of SGD on residuals and FTRL on sums, restarts included."""
    schedule = [5, "complete", 3, "restart", 8, "complete", 2]
    a, b = (Made(lambda *n: hash(n) % 64, variant=variant) for _ in range(2))
    total = 0.0
    for item in schedule:
        if isinstance(item, str):
            a.restart(complete=item == "complete")
            b.restart(complete=item == "complete")
            continue
        for _ in range(item):
            total += b.residual()[0]
            assert a.step()[0] == pytest.approx(total, abs=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("complete", [False, True])
def test_no_node_is_drawn_twice(variant: str, complete: bool, monkeypatch) -> None:
    """Neither as (tree, level, index), nor as counter words of ChaCha."""
    counters: list[tuple[int, ...]] = []
    blocks = stream.chacha_blocks

    def recorded(key, numbers, counter, rounds):
        counters.extend((int(number), *counter) for number in numbers)
        return blocks(key, numbers, counter, rounds)

    monkeypatch.setattr(stream, "chacha_blocks", recorded)
    calls: list[tuple[int, int, int]] = []

    class Recorded(TreeNoise):
        def node(self, level: int, index: int) -> np.ndarray:
            calls.append((self.tree, level, index))
            return super().node(level, index)

    tree = Recorded(300, 1.0, seed=1, variant=variant)
    for steps in (5, 1, 8, 13, 5):
        for _ in range(steps):
            tree.step()
        tree.restart(complete=complete)
    assert {number for number, _, _ in calls} == {0, 1, 2, 3, 4}
    assert len(calls) >= 32
    assert len(set(calls)) == len(calls)
    assert len(counters) == 32 * len(calls)  # 300 coordinates: two superblocks of 16 blocks
    assert len(set(counters)) == len(counters)


# --- the same bits, whichever way -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_in_numpy_are_those_in_python(variant: str, dtype: str) -> None:
    options = dict(seed=b"loops", variant=variant, dtype=dtype, rounds=8, offset=250)
    a, b = TreeNoise(9, 0.3, **options), TreeNoisePython(9, 0.3, **options)
    for _ in range(34):
        assert a.step().tobytes() == np.array(b.step(), dtype).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_way_to_a_step_does_not_matter(variant: str, dtype: str) -> None:
    options = dict(seed=3, variant=variant, dtype=dtype)
    walked = TreeNoise(20, 2.0, **options)
    steps = [walked.step() for _ in range(40)]
    for t in (1, 2, 7, 8, 23, 32, 40):
        fresh = TreeNoise(20, 2.0, **options)
        assert fresh.prefix(t).tobytes() == steps[t - 1].tobytes()
        assert fresh.t == 0
        fresh.advance_to(t - 1)
        assert fresh.step().tobytes() == steps[t - 1].tobytes()
        assert walked.prefix(t).tobytes() == steps[t - 1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_in_the_order_written(dtype: str) -> None:
    """b_11 of Honaker after a restart, operation by operation, from the unscaled normals."""
    real = np.dtype(dtype).type
    std = 0.7
    tree = TreeNoise(33, std, seed=9, dtype=dtype, offset=5)
    tree.advance_to(1)
    tree.restart()
    tree.advance_to(10)

    def v(number: int, level: int, index: int) -> np.ndarray:
        node = dict(tree=number, level=level, index=index)
        return normals(tree._key, **node, start=5, size=33, dtype=dtype) * real(std)

    def r(level: int, index: int) -> np.ndarray:
        if level == 0:
            return v(1, 0, index)
        return v(1, level, index) + (r(level - 1, 2 * index) + r(level - 1, 2 * index + 1)) * real(
            0.5
        )

    total = v(0, 0, 0)
    total = total + r(3, 0) * real(1 / 1.875)
    total = total + r(1, 4) * real(1 / 1.5)
    total = total + r(0, 10)
    got = tree.step()
    assert got.dtype == dtype
    assert got.tobytes() == total.tobytes()


def test_offsets_cut_one_vector() -> None:
    whole = TreeNoise(700, 1.5, seed=4)
    parts = [TreeNoise(size, 1.5, seed=4, offset=o) for o, size in ((0, 13), (13, 500), (513, 187))]
    for _ in range(6):
        assert np.concatenate([p.step() for p in parts]).tobytes() == whole.step().tobytes()


def test_returned_vectors_are_the_callers_own() -> None:
    a, b = (TreeNoise(4, 1.0, seed=5, variant="vanilla") for _ in range(2))
    for call in ("residual", "residual", "step", "residual", "step", "step", "residual"):
        mine, other = getattr(a, call)(), getattr(b, call)()
        assert mine.tobytes() == other.tobytes()
        mine.fill(np.nan)
        a.prefix(1).fill(np.nan)


def test_key_and_seed() -> None:
    key = reference.key_from_seed(6)
    by_seed, by_key = TreeNoise(3, 1.0, seed=6), TreeNoise(3, 1.0, key=key)
    assert by_seed.step().tobytes() == by_key.step().tobytes()
    assert TreeNoise(3, 1.0).step().tobytes() != TreeNoise(3, 1.0).step().tobytes()
    assert key.hex() not in repr(by_key) and repr(key) not in repr(by_key)


# --- wrong calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"size": 0}, ValueError, "size must be >= 1, got 0"),
        ({"size": -3}, ValueError, "size must be >= 1, got -3"),
        ({"size": 2.0}, TypeError, "size must be an integer, got float"),
        (
            {"std": float("nan")},
            ValueError,
            "std must be a finite number > 0 in float32, got nan",
        ),
        ({"std": float("inf")}, ValueError, "got inf"),
        ({"std": -1.0}, ValueError, "got -1.0"),
        ({"std": 0.0}, ValueError, "got 0.0"),
        ({"std": 1e-50}, ValueError, "got 1e-50"),
        ({"std": 1e39}, ValueError, "got 1e+39"),
        ({"variant": "best"}, ValueError, "variant must be 'vanilla' or 'honaker', got best"),
        ({"dtype": "int32"}, ValueError, "dtype must be float32 or float64, got int32"),
        ({"rounds": 7}, ValueError, "rounds must be 8, 12 or 20, got 7"),
        ({"offset": -1}, ValueError, "offset must be >= 0, got -1"),
        ({"offset": 2**36 - 1}, ValueError, "coordinates must be below 68719476736"),
        ({"seed": 1.5}, TypeError, "a seed that is not bytes must be an integer, got float"),
        ({"key": bytes(32)}, ValueError, "at most one of seed and key is needed, got both"),
        ({"key": bytes(5), "seed": None}, ValueError, "key must be 32 bytes, got bytes"),
    ],
)
def test_bad_arguments(change: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        TreeNoise(**{"size": 2, "std": 1.0, "seed": 1, **change})


def test_bad_calls_change_nothing() -> None:
    a, b = (TreeNoise(4, 1.0, seed=5) for _ in range(2))
    with pytest.raises(
        ValueError, match="restart needs at least one step of the present tree, got t = 0"
    ):
        a.restart()
    for tree in (a, b):
        tree.step()
        tree.restart()
    with pytest.raises(ValueError, match="got t = 0"):
        a.restart(complete=True)
    for tree in (a, b):
        tree.advance_to(6)
    for t, error in ((5, ValueError), (-1, ValueError), (7.0, TypeError)):
        with pytest.raises(error, match="t must be"):
            a.advance_to(t)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="t must be >= 1, got 0"):
        a.prefix(0)
    with pytest.raises(IndexError, match="level 48, index 0"):
        a.node(48, 0)
    with pytest.raises(ValueError, match="variant"):
        variance_factor(3, "other")
    with pytest.raises(ValueError, match="variant"):
        covariance(3, "other")
    assert (a.t, a.tree) == (6, 1)
    assert a.residual().tobytes() == b.residual().tobytes()
