# SPDX-License-Identifier: Apache-2.0
"""Ids of users in the folder of a federated run are under a keyed hash."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.accounting.guard.ids import canonical_id, user_id
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds, derived_key
from dpftrl_fast.federated import PrivateRounds
from dpftrl_fast.federated.cohorts import Cohorts
from dpftrl_fast.federated.ids import ClientIds
from dpftrl_fast.run.sealed_files import read_sealed

PLAN = PrivacyPlan(0.5, 3.0, SinglePass(6))
OUTER = b"outside of the folder, 32 bytes!"
USERS: list[Any] = [10**12 + 7, str(10**13 + 8), 2**40 + 9, "Ophelia", "Hamlet", 2**62 + 1]


def opened(folder: Path | None, plan: PrivacyPlan = PLAN, **options: Any) -> PrivateRounds:
    return PrivateRounds([np.zeros(2)], plan=plan, report_goal=2, folder=folder, **options)


def played(folder: Path, **options: Any) -> None:
    with opened(folder, **options) as rounds:
        rounds.begin_round(USERS[:3])
        rounds.end_round()
        rounds.checkpoint()
        rounds.begin_round(USERS[3:])
        rounds.end_round()  # stays in a kept state


def by_hand(key: bytes, user: Any) -> int:
    text = canonical_id(user).encode()
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=b"dpftrl/user/v1").digest()
    return int.from_bytes(digest, "big") >> 1


def integers_in(folder: Path) -> set[int]:
    """Every 8-byte integer at any byte of any file, unpacked, and all numbers in its JSON."""
    found: set[int] = set()
    for path in folder.iterdir():
        content = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = b"\0".join(archive.read(name) for name in archive.namelist())
        for at in range(len(content) - 7):
            found.add(int.from_bytes(content[at : at + 8], "little"))
    return found


def test_ids_are_those_of_the_definition() -> None:
    key = bytes(range(32))
    ids = KeyedIds(key)
    for user in [0, 7, "7", "\ud800", "Nurse", 2**63 - 1, -3, 2**70]:
        text = canonical_id(user).encode("utf-8", "surrogatepass")
        digest = hashlib.blake2b(text, digest_size=8, key=key, person=b"dpftrl/user/v1").digest()
        assert ids.of(user) == int.from_bytes(digest, "big") >> 1 < 2**63
    assert len({ids.of(i) for i in range(1000)} | {KeyedIds(b"k" * 32).of(0)}) == 1001


def test_no_file_lists_a_user_and_the_key_is_in_one_file_only(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    played(folder)
    found = integers_in(folder)
    for user in USERS:
        assert user_id(user) not in found, user
        for path in folder.iterdir():
            assert not isinstance(user, str) or user.encode() not in path.read_bytes()
    secret = json.loads((folder / "run.json").read_text())["secret"]
    kept = read_sealed(folder / "kept-0-2.npz", bytes.fromhex(secret), "kept 0 2")
    state = read_sealed(folder / "checkpoint.npz", bytes.fromhex(secret), "checkpoint")
    with opened(folder) as rounds:
        assert rounds._journal is not None
        key = rounds._journal.user_key()
    # Whoever has the whole folder can test a guess, as the page says.
    assert set(kept["ids"].tolist()) == {by_hand(key, user) for user in USERS[3:]}
    counted = state["state"]["cohorts"]["ids"].tolist()
    assert set(counted) == {by_hand(key, user) for user in USERS[:3]}
    for path in folder.iterdir():
        content = path.read_bytes()
        assert key not in content and key.hex().encode() not in content
        if path.name != "run.json":
            assert bytes.fromhex(secret) not in content and secret.encode() not in content


def test_the_search_for_ids_finds_plain_ones(tmp_path: Path) -> None:
    """A negative control: ids of version 2."""
    with opened(tmp_path / "run") as rounds:
        rounds._cohorts._ids = ClientIds(2)
        rounds.begin_round(USERS)
        rounds.end_round()
        rounds.checkpoint()
    assert integers_in(tmp_path / "run") >= {user_id(user) for user in USERS}


def test_with_a_key_outside_the_folder_alone_gives_no_ids(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    played(folder, user_key=OUTER)
    with opened(folder, user_key=OUTER) as rounds:
        assert len(list(rounds.replay())) == 1
        assert rounds.eligible([*USERS, 11]).tolist() == [False] * 6 + [True]
        assert rounds._journal is not None
        inner, both = rounds._journal.user_key(), rounds._journal.user_key(OUTER)
        counted = set(rounds._cohorts.state_dict()["ids"].tolist())
    assert counted == {by_hand(both, user) for user in USERS}
    assert counted.isdisjoint(by_hand(inner, user) for user in USERS)
    assert counted.isdisjoint(by_hand(OUTER, user) for user in USERS)
    for path in folder.iterdir():
        content = path.read_bytes()
        assert OUTER not in content and OUTER.hex().encode() not in content


def test_two_runs_of_one_user_key_have_other_ids(tmp_path: Path) -> None:
    """Two folders do not show who is in both."""
    seen = []
    for name in ("a", "b"):
        with opened(tmp_path / name, user_key=OUTER) as rounds:
            seen.append(set(rounds._cohorts.choose(USERS).members.tolist()))
    assert seen[0].isdisjoint(seen[1])


@pytest.mark.parametrize("began", [None, OUTER])
@pytest.mark.parametrize("came", [None, OUTER, bytes(32)])
def test_another_user_key_is_refused(
    tmp_path: Path, began: bytes | None, came: bytes | None
) -> None:
    """Under another key all users would pass for new ones."""
    folder = tmp_path / "run"
    played(folder, user_key=began)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if came == began:
        opened(folder, user_key=came).close()
        return
    with pytest.raises(ValueError, match="user_key must be that of the run, which began with"):
        opened(folder, user_key=came)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    opened(folder, user_key=began).close()


def test_a_user_key_that_would_hide_nothing_is_refused(tmp_path: Path) -> None:
    """A folder of an earlier version keeps plain ids, whatever key comes."""
    folder = tmp_path / "run"
    rounds = opened(folder)
    rounds._cohorts._ids = ClientIds(2)
    rounds.begin_round(USERS[:2])
    rounds.end_round()
    rounds.checkpoint()
    rounds.close()
    with pytest.raises(ValueError, match="user_key must be None for this folder"):
        opened(folder, user_key=OUTER)
    with opened(folder) as again:
        assert again.rounds_done == 1 and not again.eligible(USERS[:2]).any()


def test_wrong_user_keys() -> None:
    with pytest.raises(TypeError, match="user_key must be 32 secret bytes, got str"):
        opened(None, user_key="k" * 32)
    with pytest.raises(ValueError, match="user_key must be 32 secret bytes, got 31"):
        opened(None, user_key=bytes(31))
    order = PrivacyPlan(0.5, 3.0, FixedOrder([1, 2]))
    with pytest.raises(ValueError, match="user_key must be None with FixedOrder"):
        opened(None, order, user_key=OUTER)


def test_a_plan_that_lists_its_users_has_plain_ids() -> None:
    cohorts = Cohorts(PrivacyPlan(0.5, 3.0, FixedOrder([1, 3, 2], [0, 2, 3])))
    cohorts.record(cohorts.choose(["3", 1]).members)
    assert cohorts.state_dict()["ids_version"] == 2
    assert sorted(cohorts.state_dict()["ids"].tolist()) == [1, 3]


def test_what_a_run_decides_does_not_depend_on_its_key() -> None:
    """Keys change ids, never who is in a round, in which order, or why somebody is not."""
    plan = PrivacyPlan(0.5, 3.0, MinSeparation(9, 2, 3))
    rng = np.random.default_rng(0)
    arrivals = [rng.permutation(30)[:12].tolist() for _ in range(9)]
    found = []
    for key in (None, OUTER, bytes(32)):
        rounds = opened(None, plan, user_key=key, noise_seed=1)
        said = []
        for clients in arrivals:
            now = rounds.begin_round(clients)
            for client in now.cohort:
                now.add(client, [np.full(2, 0.1 * int(client))])
            said.append((now.cohort, now.turned_away, now.token[-2:], rounds.end_round().tobytes()))
        found.append(said)
    assert found[0] == found[1] == found[2]


def test_a_key_is_not_shown_nor_pickled() -> None:
    ids = KeyedIds(OUTER)
    assert repr(ids) == "KeyedIds()"
    with pytest.raises(TypeError, match="hold a secret key and are not pickled"):
        np.save(io.BytesIO(), np.array(ids, object), allow_pickle=True)
    assert ids.fits(KeyedIds(OUTER).check_value) and not ids.fits(KeyedIds(bytes(32)).check_value)
    assert not ids.fits(None) and OUTER.hex() not in ids.check_value
    keys = [derived_key(), derived_key(OUTER), derived_key(OUTER, None), derived_key(OUTER, OUTER)]
    assert keys[1] == keys[2] and len({*keys, OUTER}) == 4
