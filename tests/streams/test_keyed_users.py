# SPDX-License-Identifier: Apache-2.0
"""Ids of users in the folders of streams are under a keyed hash."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrefixSum, PrivateCounter
from dpftrl_fast.accounting import MinSeparation
from dpftrl_fast.accounting.guard.ids import user_id
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds
from dpftrl_fast.run.sealed_files import read_sealed

NAMES: list[Any] = [f"user {i}" for i in range(5)]
NUMBERS = [10**12 + i for i in range(5)]


def sums(**options: Any) -> PrefixSum:
    return PrefixSum(1, 9, 1.0, 4.0, participation=MinSeparation(9, 2, 3), **options)


def summed(folder: Path) -> PrefixSum:
    """Two steps, of which the second is written ahead only."""
    stream = sums()
    stream.save(folder, checkpoint_every=9)
    stream.add(np.ones((5, 1)), users=NAMES)
    stream.add_steps(np.ones((5, 1)), users=NUMBERS)
    return stream


def counter() -> PrivateCounter:
    return PrivateCounter.calibrate(
        ["a"],
        6,
        epsilon=4.0,
        delta=1e-6,
        start="2030-01-01",
        period="1D",
        unit="user",
        user="user",
        user_periods=2,
    )


def counted(folder: Path) -> PrivateCounter:
    """A closed period, and events of the next that are held."""
    table = counter()
    table.save(folder)
    days = ["2030-01-01"] * 5 + ["2030-01-02"] * 5
    users = [*NAMES, *map(str, NUMBERS)]
    table.add({"time": days, "key": ["a"] * 10, "user": users})
    table.release("2030-01-02")
    table.checkpoint()
    return table


def integers_in(folder: Path) -> set[int]:
    found: set[int] = set()
    for path in folder.iterdir():
        content = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = b"\0".join(archive.read(name) for name in archive.namelist())
        found.update(int.from_bytes(content[i : i + 8], "little") for i in range(len(content)))
    return found


@pytest.mark.parametrize("made", [summed, counted])
def test_no_file_of_a_stream_lists_a_user(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = made(tmp_path / "keyed")
    key = stream._users.ids.key if made is summed else stream._ids.key
    stream.close()
    users = {user_id(user) for user in [*NAMES, *NUMBERS]}
    found = integers_in(tmp_path / "keyed")
    assert found.isdisjoint(users)
    assert found >= set(KeyedIds(key).of_numbers(np.array(sorted(users))).tolist())
    for path in (tmp_path / "keyed").iterdir():
        content = path.read_bytes()
        assert key not in content and key.hex().encode() not in content
    with monkeypatch.context() as patch:  # a negative control
        patch.setattr(KeyedIds, "of_numbers", lambda self, numbers: numbers)
        made(tmp_path / "plain").close()
    assert integers_in(tmp_path / "plain") >= users


def test_the_key_is_masked_by_a_secret_of_another_file(tmp_path: Path) -> None:
    stream = summed(tmp_path / "run")
    key = stream._users.ids.key
    stream.close()
    secret = bytes.fromhex(json.loads((tmp_path / "run/run.json").read_text())["secret"])
    kept = read_sealed(tmp_path / "run/checkpoint.npz", secret, "checkpoint")["state"]["user_key"]
    assert len(kept) == 32 and kept != key
    with PrefixSum.open(tmp_path / "run") as again:
        assert again._users.ids.key == key


@pytest.mark.parametrize("every", [1, 9])
def test_a_stream_that_is_opened_again_knows_its_users(every: int, tmp_path: Path) -> None:
    stream = sums()
    stream.save(tmp_path / "run", checkpoint_every=every)
    stream.add([[1.0], [1.0]], users=["a", 7])
    stream.close()
    with PrefixSum.open(tmp_path / "run") as again:
        again.add([[1.0]], users=["b"])
        with pytest.raises(ValueError):
            again.add([[1.0]], users=["7"])
        again.extend(participation=MinSeparation(20, 2, 3), accept_epsilon=(99.0, 1e-6))
        with pytest.raises(ValueError):
            again.add([[1.0]], users=["a"])
        again.add([[1.0]], users=["c"])
        again.add([[1.0], [1.0]], users=["a", 7])
        assert again.t == 4


def test_sums_do_not_depend_on_the_key() -> None:
    """Rows are added up in an order of their own: the bits are the same under every key."""
    rng = np.random.default_rng(0)
    rows, found = rng.normal(size=(40, 1)), set()
    users = rng.permutation(40).tolist()
    for _ in range(5):
        stream = sums(seed=1)
        found.add(stream.add(rows, users=users).tobytes())
    assert len(found) == 1


def test_two_users_with_one_id_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both, one = sums(seed=1), sums(seed=1)
    alone = one.add([[1.0]], users=["a"])
    monkeypatch.setattr(KeyedIds, "_digest", lambda self, text: bytes(8))
    assert both.add([[1.0], [1.0]], users=["a", "b"]) == alone
    assert both._users.guard is not None and both._users.guard.state_dict()["ids"].tolist() == [0]


def test_numbers_of_users() -> None:
    ids = KeyedIds(bytes(32))
    found = ids.of_numbers(np.array([7, -1, 2**63 - 1, 7, -1]))
    assert found.tolist() == [ids.of(7), -1, ids.of(2**63 - 1), ids.of("7"), -1]
    assert ids.of_numbers(np.zeros(0, np.int64)).shape == (0,)
