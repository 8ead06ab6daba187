# SPDX-License-Identifier: Apache-2.0
"""Arrays and replies of Flower's clients, ids of clients, and updates of a round."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import pytest
from fuzzing import attempt, fuzz, mutated, mutated_bytes, value_of

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import PrivateRounds
from dpftrl_fast.federated.ids import client_id

START = {"w": np.zeros((2, 3), np.float32), "b": np.zeros(2), "s": np.array(0.5, np.float32)}


def npy(array: Any, version: Any = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), version=version)
    return file.getvalue()


ARRAYS = [npy(array) for array in START.values()]
ARRAYS += [npy(np.zeros((0, 3))), npy(np.arange(4), (2, 0)), npy(np.asfortranarray(np.eye(3)))]
ARRAYS += [npy(np.array(["é", "ab"])), npy(np.array([True])), npy(np.zeros(2, ">f8"))]


def header(rng: random.Random) -> bytes:
    """An array whose header has any shape and dtype."""
    shapes = ("(2, 3)", "(1000000000000,)", "(-1,)", "(0, 9223372036854775807)", "()", "(2**70,)")
    shapes += ("(4294967296, 4294967296)", f"({'1,' * 40})", "2", "(2.0,)", "[2]", "(True,)")
    kinds = (
        "<f4",
        "<f8",
        "|O",
        "V8",
        "<U4",
        "(2,)f4",
        "[('a','i4')]",
        "x",
        "<f16",
        "|S0",
        "<M8[D]",
    )
    order = rng.choice(("True", "False", "None", "1"))
    text = (
        f"{{'descr': '{rng.choice(kinds)}', 'fortran_order': {order}, "
        f"'shape': {rng.choice(shapes)}, }}"
    ).encode()
    text = mutated_bytes(text, rng) if rng.random() < 0.3 else text
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = rng.choice((len(text), len(text), len(text), rng.randrange(2**16)))
    data = b"\x93NUMPY\x01\x00" + (size % 2**16).to_bytes(2, "little") + text
    return data + bytes(rng.choice((0, 8, 24, 48)))


def test_bytes_of_arrays() -> None:
    from dpftrl_fast.files import array_in

    def one(rng: random.Random) -> Any:
        data = header(rng) if rng.random() < 0.4 else mutated_bytes(rng.choice(ARRAYS), rng, ARRAYS)
        result = attempt(lambda: array_in(data))
        if not isinstance(result, Exception):
            assert result.nbytes <= len(data) and not (result.size and result.flags.writeable)
        return result

    fuzz("bytes of arrays", one)


def test_records() -> None:
    pytest.importorskip("flwr")
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    from dpftrl_fast.federated.flower.records import (
        arrays_of,
        difference,
        instructions,
        only_arrays,
        untrained,
    )

    def record(rng: random.Random) -> Any:
        arrays = {}
        for name, array in START.items():
            data = npy(array)
            if rng.random() < 0.5:
                data = header(rng) if rng.random() < 0.5 else mutated_bytes(data, rng, ARRAYS)
            stype = rng.choice(("numpy.ndarray",) * 9 + ("pickle",))
            shape = (rng.choice((0, 1, 2, 10**12)),)
            arrays[name] = Array(dtype="float32", shape=shape, stype=stype, data=data)
        return ArrayRecord(arrays)

    def read(content: Any) -> Any:
        _, arrays = only_arrays(content)
        instructions(content)
        difference(arrays, START)
        untrained(arrays)
        return arrays_of(next(iter(content.array_records.values())))

    def one(rng: random.Random) -> Any:
        content = RecordDict({"arrays": record(rng)})
        if rng.random() < 0.1:
            content["more"] = record(rng)
        content["dpftrl"] = ConfigRecord({"token": rng.choice(("", "x", 7, 1.5, b"", [1, 2]))})
        return attempt(lambda: read(content))

    fuzz("records", one)


def test_ids_of_clients() -> None:
    good: list[Any] = [7, "Hamlet", np.int64(3), np.str_("x"), 2**63 - 1]

    def one(rng: random.Random) -> Any:
        client = (
            value_of(rng, plain=False) if rng.random() < 0.6 else mutated(rng.choice(good), rng)
        )
        result = attempt(lambda: client_id(client))
        assert isinstance(result, Exception) or (type(result) is int and 0 <= result < 2**63)
        return result

    fuzz("ids of clients", one)


def test_updates_of_a_round() -> None:
    plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    rounds = PrivateRounds(START, plan=plan, report_goal=2)
    now = rounds.begin_round(list(range(10**4)))
    number = 0

    def one(rng: random.Random) -> Any:
        nonlocal number, now
        number += 1
        if number == 10**4:
            rounds.abandon_round()
            now = rounds.begin_round(list(range(10**4)))
            number = 1
        good = {name: array + 0.25 for name, array in START.items()}
        update = mutated(good, rng, [good])
        # A reason is returned, not raised: no client ends a round.
        reason = attempt(lambda: now.add(number, update))
        return ValueError(reason) if isinstance(reason, str) else reason

    fuzz("updates", one)


def test_clients_of_a_round() -> None:
    plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))

    def one(rng: random.Random) -> Any:
        rounds = PrivateRounds(START, plan=plan, report_goal=2)
        clients = mutated([1, "a", "b"], rng) if rng.random() < 0.7 else value_of(rng, plain=False)
        if isinstance(clients, (str, range, np.ndarray)) and len(np.shape(clients)) == 1:
            clients = clients[:1000]  # a million would take seconds
        call = rng.choice((rounds.begin_round, rounds.eligible))
        return attempt(lambda: call(clients))

    fuzz("clients", one, share=0.3)
