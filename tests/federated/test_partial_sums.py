# SPDX-License-Identifier: Apache-2.0
"""Sums of clipped updates that are made elsewhere: the bits of `add`, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, SinglePass
from dpftrl_fast.federated import (
    AdaptiveClipping,
    PartialSum,
    PrivateRounds,
    Round,
    SumSpec,
    clipped_integers,
)
from dpftrl_fast.federated.sums.grid import bits_of_sum, centred, norm_of
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.mechanisms import Tree

MODEL = {"w": np.zeros((2, 2), np.float32), "b": np.zeros(3)}
NAMES = [f"client {i}" for i in range(7)]
KEY = bytes(range(32))


def rounds_of(plan: PrivacyPlan | None = None, **options: Any) -> PrivateRounds:
    plan = plan or PrivacyPlan(1.0, 2.0, SinglePass(4))
    return PrivateRounds(MODEL, plan=plan, report_goal=3, key=KEY, threads=1, **options)


def update(seed: int, scale: float = 0.6) -> dict[str, Any]:
    """Some within the clip norm, some above."""
    rng = np.random.default_rng(seed)
    return {
        name: (scale * rng.standard_normal(array.shape)).astype(array.dtype)
        for name, array in MODEL.items()
    }


def partial_of(now: Round, clients: list[str]) -> PartialSum:
    spec = SumSpec.from_dict(json.loads(json.dumps(now.sum_spec.to_dict())))
    partial = PartialSum(spec)
    for name in clients:
        assert partial.add(name, update(NAMES.index(name))) is None
    return partial


# ---- The bits of `add` ----


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=len(NAMES), max_size=len(NAMES)),
    st.sampled_from([0, 1, 64 - 36]),
    st.sampled_from(["vector", "structure", "unsigned", "residues"]),
)
def test_any_division_among_workers_gives_the_bits_of_add(
    places: list[int], spare: int, form: str
) -> None:
    rounds, directly = rounds_of(), rounds_of()
    now, other = rounds.begin_round(NAMES), directly.begin_round(NAMES)
    for seed, name in enumerate(NAMES):
        assert other.add(name, update(seed)) is None
    for place in range(4):
        clients = [name for name, where in zip(NAMES, places, strict=True) if where == place]
        if place == 3:  # these reach the server itself
            for name in clients:
                assert now.add(name, update(NAMES.index(name))) is None
        elif clients:
            partial = partial_of(now, clients)
            total: Any = partial.total
            bits = min(64, partial.spec.modulus_bits(len(clients)) + spare)
            if form == "structure":
                total = {"b": total[4:], "w": total[:4].reshape(2, 2)}
            elif form == "unsigned":
                total = total.astype(np.uint64)
            elif form == "residues":
                total = total % 2**bits if bits < 63 else total
            options = {"modulus_bits": bits, "within": partial.within, "token": now.token}
            assert now.add_sum(partial.clients, total, **options) is None
    assert rounds.end_round().tobytes() == directly.end_round().tobytes()
    found, expected = now.metrics(), other.metrics()
    assert found.pop("refused") == expected.pop("refused") == {}
    assert found == expected


def test_masked_vectors_of_single_clients_add_up_to_the_bits_of_add() -> None:
    rounds, directly = rounds_of(), rounds_of()
    now, other = rounds.begin_round(NAMES), directly.begin_round(NAMES)
    bits = now.sum_spec.modulus_bits(len(NAMES))
    assert bits == 36  # 7 x 2^32 is below 2^35
    rng = np.random.default_rng(3)
    masks = rng.integers(0, 2**bits, (len(NAMES), 7), dtype=np.uint64)
    total = np.zeros(7, np.uint64)
    for seed, name in enumerate(NAMES):
        other.add(name, update(seed))
        own = clipped_integers(now.sum_spec, update(seed), modulus_bits=bits)
        assert own.max() < 2**bits
        total += own + masks[seed] - masks[seed - 1]  # a ring of pairwise masks
    assert now.add_sum(NAMES, total % 2**bits, modulus_bits=bits) is None
    assert rounds.end_round().tobytes() == directly.end_round().tobytes()


def test_an_answer_has_all_that_a_round_needs() -> None:
    rounds = rounds_of()
    now = rounds.begin_round(NAMES)
    partial = PartialSum(now.sum_spec)
    for number, name in enumerate(NAMES[:4]):
        bad = {key: array * np.nan for key, array in update(number).items()}
        assert (partial.add(name, bad if number < 3 else update(number)) is None) == (number == 3)
    answer = partial.answer()
    partial.add(NAMES[4], update(4))  # no part of the answer
    assert now.add_sum(**answer) is None
    assert now.metrics()["accepted"] == 1 and now.metrics()["missing"] == len(NAMES) - 1
    other = rounds_of()
    other.begin_round(NAMES).add(NAMES[3], update(3))
    assert rounds.end_round().tobytes() == other.end_round().tobytes()


def test_adaptive_clipping_has_the_norms_of_partial_sums() -> None:
    plan = PrivacyPlan(1.0, 2.0, FixedEpochs(2, 3), Tree(restart_every=2, complete=True))
    clipping = AdaptiveClipping(noise_multiplier=0.1, learning_rate=1.0)
    rounds, directly = rounds_of(plan, clipping=clipping), rounds_of(plan, clipping=clipping)
    norms = set()
    for number in range(6):
        names = NAMES[:3] if number % 2 else NAMES[3:]
        now, other = rounds.begin_round(names), directly.begin_round(names)
        for name in names:
            other.add(name, update(NAMES.index(name), 0.6))
        partial = partial_of(now, names)
        with pytest.raises(ValueError, match="within must be given"):
            now.add_sum(partial.clients, partial.total)
        with pytest.raises(ValueError, match="token must be given"):  # it may be of a larger norm
            now.add_sum(partial.clients, partial.total, within=partial.within)
        assert (
            now.add_sum(
                partial.clients, partial.total, within=partial.within, token=partial.spec.token
            )
            is None
        )
        assert rounds.end_round().tobytes() == directly.end_round().tobytes()
        norms.add(rounds.clip_norm)
        assert rounds.clip_norm == directly.clip_norm
    assert len(norms) == 3


def test_a_folder_takes_sums_as_it_takes_updates(tmp_path: Path) -> None:
    with rounds_of(folder=tmp_path / "run", noise_seed=None) as rounds:
        now = rounds.begin_round(NAMES)
        partial = partial_of(now, NAMES)
        assert now.add_sum(partial.clients, partial.total) is None
        expected = rounds.end_round().tobytes()
    with rounds_of(folder=tmp_path / "run") as again:
        assert [value.tobytes() for value in again.replay()] == [expected]


# ---- Neighbours and slots ----


@pytest.mark.parametrize("extreme", [1e300, np.nan, np.inf, 0.7])
def test_a_partial_sum_moves_by_at_most_the_clip_norm(extreme: float) -> None:
    now = rounds_of().begin_round(NAMES)
    zero = {name: np.zeros(array.shape) for name, array in MODEL.items()}
    wild = {**zero, "b": np.array([0.1, extreme, -extreme])}
    totals, clients = [], []
    for third in (zero, wild):
        partial = PartialSum(now.sum_spec)
        for seed, name in enumerate(NAMES):
            partial.add(name, third if seed == 2 else update(seed))
        totals.append(partial.total)
        clients.append(partial.clients)
    assert clients[0] == clients[1] == NAMES  # who is in a sum depends on no value
    moved = sum(int(x) ** 2 for x in totals[1] - totals[0])
    assert moved <= int(1.0 / now.sum_spec.unit) ** 2
    assert (moved > 0) == np.isfinite(extreme)
    own = clipped_integers(now.sum_spec, wild, modulus_bits=40)
    assert (centred(own.copy(), 40) == totals[1] - totals[0]).all()


def test_a_refused_update_keeps_its_slot() -> None:
    now = rounds_of().begin_round(NAMES)
    partial = PartialSum(now.sum_spec)
    nan = {"w": np.full((2, 2), np.nan), "b": np.zeros(3)}
    assert partial.add("client 0", nan) == "update must be finite, got NaN or infinity"
    assert "lacks 'b'" in str(partial.add("client 1", {"w": np.zeros((2, 2))}))
    for name in ("client 0", "client 1"):
        assert partial.add(name, update(1)) == "answered already"
    assert partial.add("client 2", update(2)) is None
    assert (partial.clients, abs(partial.within)) == (NAMES[:3], 1)
    assert now.add_sum(partial.clients, partial.total) is None
    assert now.add("client 1", update(1)) == "answered already in this round"
    with pytest.raises(ValueError, match="lacks 'b'"):
        clipped_integers(now.sum_spec, {"w": np.zeros((2, 2))})


# ---- What is refused ----


def test_sums_that_are_not_of_this_round_change_nothing() -> None:
    rounds, without = rounds_of(), rounds_of()
    rounds.begin_round(["elsewhere"])
    rounds.end_round()
    without.begin_round(["elsewhere"])
    without.end_round()
    now, other = rounds.begin_round([*NAMES, "elsewhere"]), without.begin_round(NAMES)
    total = np.ones(7, np.int64)
    assert now.add("client 0", update(0)) is None
    other.add("client 0", update(0))

    def refused(clients: Any, words: str, **options: Any) -> None:
        reason = now.add_sum(clients, total, **options)
        assert reason is not None and words in reason

    refused(["client 1", "client 0"], "the client at place 1 of the sum: answered already")
    refused(["client 1", "stranger"], "the client at place 1 of the sum: not in the cohort")
    refused(["client 1", "elsewhere"], "at place 1 of the sum: took part in an earlier round")
    refused(["client 1", "client 1"], "named twice")
    refused(["client 1", ""], "must not be empty")
    refused(["client 1", 1.5], "an integer or a name, got float")
    refused([], "at least one client")
    refused(["client 1"], "of another run or round", token="another")
    for wrong, error in (("client 1", TypeError), (7, TypeError)):
        with pytest.raises(error, match="an iterable of ids"):
            now.add_sum(wrong, total)  # type: ignore[arg-type]
    for bits in (0, 65, 33):
        with pytest.raises(ValueError, match="modulus_bits must be"):
            now.add_sum(["client 1"], total, modulus_bits=bits)
    # Nobody's slot is used up.
    for name in NAMES[1:]:
        assert now.add(name, update(NAMES.index(name))) is None
        other.add(name, update(NAMES.index(name)))
    assert rounds.end_round().tobytes() == without.end_round().tobytes()
    refused(["client 1"], "late")


TOO_LONG = 3 * 2**31  # of three clients
WRONG: dict[str, tuple[Any, str]] = {
    "size": (np.ones(6, np.int64), "vector must have shape (7,), got (6,)"),
    "floats": (np.ones(7), "vector must be of integers, got float64"),
    "bools": (np.ones(7, bool), "vector must be of integers, got bool"),
    "structure": ([np.ones(7, np.int64)], "expected a mapping"),
    "names": ({"w": np.ones((2, 2), int)}, "lacks 'b'"),
    "shape": ({"w": np.ones((2, 3), int), "b": np.ones(3, int)}, "'w' must have shape (2, 2)"),
    "norm": (np.array([TOO_LONG + 1, 0, 0, 0, 0, 0, 0]), "a norm above 3 clip norms"),
    "norm of all": (np.full(7, 2**32), "a norm above 3 clip norms"),
    "extreme": (np.full(7, -(2**63)), "a norm above 3 clip norms"),
    "nothing": (None, "expected a mapping"),
}


@pytest.mark.parametrize("kind", list(WRONG))
def test_a_total_that_does_not_fit_leaves_the_slots_empty(kind: str) -> None:
    total, words = WRONG[kind]
    rounds, without = rounds_of(), rounds_of()
    now, other = rounds.begin_round(NAMES), without.begin_round(NAMES)
    reason = now.add_sum(NAMES[:3], total)
    assert reason is not None and words in reason
    assert now.add_sum(NAMES[:3], np.zeros(7, int)) is not None  # the first answer counts
    assert now.add("client 1", update(1)) == "answered already in this round"
    for each in (now, other):
        assert each.add("client 5", update(5)) is None
    assert now.metrics()["refused"] == dict.fromkeys(NAMES[:3], reason)
    assert now.metrics()["accepted"] == 1
    assert rounds.end_round().tobytes() == without.end_round().tobytes()


@pytest.mark.parametrize("within", [4, -4, 1.0, "1", 10**30])
def test_a_count_that_cannot_be_is_an_answer(within: Any) -> None:
    now = rounds_of().begin_round(NAMES)
    reason = now.add_sum(NAMES[:3], np.zeros(7, int), within=within)
    assert reason is not None and "within must be an integer in [-3, 3]" in reason
    assert "answered already" in str(now.add("client 0", update(0)))


def test_the_longest_honest_sum_fits() -> None:
    now = rounds_of().begin_round(NAMES)
    partial = PartialSum(now.sum_spec)
    for name in NAMES:
        partial.add(name, {"w": np.full((2, 2), 1e9), "b": np.full(3, 1e9)})
    assert partial.within == -len(NAMES)
    assert norm_of(partial.total) == pytest.approx(len(NAMES) * 2**31, rel=2e-6)
    assert now.add_sum(NAMES, partial.total) is None


def test_no_total_overflows_what_is_summed() -> None:
    now = rounds_of().begin_round(NAMES)
    most = 7 * 2**31
    for place, name in enumerate(NAMES):
        total = np.zeros(7, np.int64)
        total[place] = 2**31
        assert now.add_sum([name], total) is None
    assert now.add_sum(NAMES, np.full(7, most)) is not None


# ---- Moduli ----


@given(st.integers(1, 2**30), st.sampled_from([1e-3, 1.0, 1.999, 7.0]))
def test_a_modulus_has_room_for_every_sum(clients: int, clip_norm: float) -> None:
    unit = 2.0**-31
    bits = bits_of_sum(clip_norm, unit, clients)
    largest = clients * clip_norm / unit  # of any coordinate
    assert largest < 2 ** (bits - 1)
    assert clients * 2 * clip_norm / unit >= 2 ** (bits - 2)  # and none to waste


@given(st.integers(2, 64), st.integers())
def test_centring_against_integers(bits: int, value: int) -> None:
    residue = value % 2**bits
    expected = residue - 2**bits if residue >= 2 ** (bits - 1) else residue
    assert centred(np.array([value % 2**64], np.uint64), bits).tolist() == [expected]


@pytest.mark.parametrize("dtype", ["i1", "<i2", ">i4", "<i8", ">i8", "u1", ">u4", "<u8"])
def test_integers_of_any_width(dtype: str) -> None:
    layout = ModelLayout([np.zeros((2, 2)), np.zeros(())])
    low = -3 if "i" in dtype else 3
    values = [np.array([[1, 2], [low, 4]], dtype), np.array(low, dtype)]
    expected = [x % 2**64 for x in (1, 2, low, 4, low)]
    assert layout.integers(values).tolist() == expected
    assert layout.integers(np.array([1, 2, low, 4, low], dtype)).tolist() == expected
    assert values[0].tolist() == [[1, 2], [low, 4]]  # left alone


# ---- Specs ----


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_a_spec_survives_json(kind: Any) -> None:
    arrays = [np.zeros((2, 3), np.float16), np.zeros(()), np.zeros((0, 4), np.float32)]
    model = dict(zip("abc", arrays, strict=True)) if kind is dict else kind(arrays)
    spec = SumSpec("run-1", 0.3, 2.0**-33, ModelLayout(model))
    again = SumSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec == pickle.loads(pickle.dumps(spec))
    assert type(again.layout.unflatten(np.zeros(7))) is kind


def test_specs_that_are_none() -> None:
    good = SumSpec("run-1", 1.0, 2.0**-31, ModelLayout(MODEL)).to_dict()
    for wrong, error in (
        ({**good, "token": 3}, TypeError),
        ({**good, "clip_norm": float("nan")}, ValueError),
        ({**good, "unit": 0.3}, ValueError),
        ({**good, "unit": 2.0**-3}, ValueError),
        ({**good, "layout": {}}, ValueError),
        ({**good, "layout": {"structure": "set", "arrays": []}}, ValueError),
        ({**good, "layout": {"structure": "dict", "arrays": [["w", [2], "int64"]]}}, ValueError),
        ({**good, "layout": {"structure": "dict", "arrays": [["w", [-2], "float64"]]}}, ValueError),
        (
            {**good, "layout": {"structure": "list", "arrays": [["0", [2], "float64"]] * 2}},
            ValueError,
        ),
        ({**good, "more": 1}, ValueError),
        ([], TypeError),
    ):
        with pytest.raises(error):
            SumSpec.from_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a ModelLayout"):
        SumSpec("run-1", 1.0, 2.0**-31, MODEL)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a SumSpec"):
        PartialSum(good)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an integer or a name"):
        PartialSum(SumSpec.from_dict(good)).add(1.5, update(1))  # type: ignore[arg-type]


def test_a_layout_of_terabytes_takes_no_memory() -> None:
    huge = {"structure": "dict", "arrays": [["w", [2**20, 2**15], "float32"]]}
    assert ModelLayout.from_dict(huge).size == 2**35
