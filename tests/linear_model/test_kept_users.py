# SPDX-License-Identifier: Apache-2.0
"""Users of kept streams are under a keyed hash; a folder that was begun before keeps its ids."""

from __future__ import annotations

import hashlib
import json
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_cases import first_of, make, rows
from kept_cases import assert_same, every, feed, interrupted, kill

from dpftrl_fast.accounting.guard.ids import canonical_id, user_id
from dpftrl_fast.linear_model import DPFTRLRegressor
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.run import Diverged
from dpftrl_fast.run.sealed_files import read_sealed

pytestmark = pytest.mark.filterwarnings("ignore::dpftrl_fast.convex.glm.outlook.LearningWarning")

_NAMES = ["Ophelia", 10**12 + 7, str(10**13 + 8), "Hamlet", 2**40 + 9]
_MORE = ["Horatio", 2**62 + 1, "Laertes", -(10**12), 2**90, "\ud800"]
USERS = np.array([*_NAMES, None, *_MORE], dtype=object)
NAMED = [user for user in USERS if user is not None]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing that the system has: only a failing machine does."""
    monkeypatch.setattr("os.fsync", lambda handle: None)


def new(cls: Any) -> Any:
    return make(cls, batch_size=4, horizon=12, noise_seed=3)


def kept(model: Any, folder: Path, *, plain: bool = False) -> StreamJournal:
    """Keep a new stream; `plain` makes the folder as it was before users were under a key."""
    journal: StreamJournal = model.keep_stream(folder)
    journal.keyed = not plain
    return journal


def secret_of(folder: Path) -> bytes:
    return bytes.fromhex(json.loads((folder / "run.json").read_text())["secret"])


def state_in(folder: Path) -> dict[Any, Any]:
    kept = read_sealed(folder / "checkpoint.npz", secret_of(folder), "checkpoint")
    state: dict[Any, Any] = kept["state"]
    return state


def contents(folder: Path) -> dict[str, bytes]:
    """Return all bytes of all files, unpacked."""
    found = {}
    for path in folder.iterdir():
        found[path.name] = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                found[path.name] += b"\0".join(archive.read(name) for name in archive.namelist())
    return found


def listed(content: bytes, user: Any) -> bool:
    """Return whether a user's label, number, SHA-256 or id of `user_id` is among some bytes."""
    text = canonical_id(user).encode("utf-8", "surrogatepass")
    hashed = [hashlib.sha256(text), hashlib.sha256(b"dpftrl_fast/client/v1\0" + text)]
    forms = [text] if len(text) > 4 else []
    for digest in hashed:
        number = int.from_bytes(digest.digest()[:8], "big")
        forms += [digest.digest()[:8], digest.hexdigest()[:16].encode()]
        forms += [number.to_bytes(8, "little"), (number >> 1).to_bytes(8, "little")]
    forms += [user_id(user).to_bytes(8, order) for order in ("little", "big")]
    return any(form in content for form in forms)


def by_hand(key: bytes, user: Any) -> int:
    text = canonical_id(user).encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=b"dpftrl/user/v1").digest()
    return int.from_bytes(digest, "big") >> 1


def played(cls: Any, folder: Path, *, plain: bool = False) -> bytes:
    """Take three steps, of which the last is written ahead only; return the key of the ids."""
    X, y = rows(cls, n=12)
    model = new(cls)
    journal = kept(model, folder, plain=plain)
    feed(model, X, y, 0, 4, 8, groups=USERS)
    interrupted(lambda: model.partial_fit(X[8:], y[8:], groups=USERS[8:]))
    kill(journal)
    return journal._journal.user_key()


@every
def test_no_file_lists_a_user(tmp_path: Path, cls: Any) -> None:
    key = played(cls, tmp_path / "keyed")
    found = contents(tmp_path / "keyed")
    secret = secret_of(tmp_path / "keyed")
    assert set(found) >= {"run.json", "checkpoint.npz"} and len(found) > 2  # and a log
    for name, content in found.items():
        assert not [user for user in NAMED if listed(content, user)], name
        assert key not in content and key.hex().encode() not in content
        assert name == "run.json" or (
            secret not in content and secret.hex().encode() not in content
        )
    for user in USERS[:8]:  # whoever has the whole folder can test a guess
        assert user is None or by_hand(key, user).to_bytes(8, "little") in found["checkpoint.npz"]
    played(cls, tmp_path / "plain", plain=True)  # a negative control
    before = contents(tmp_path / "plain")["checkpoint.npz"]
    assert all(listed(before, user) for user in USERS[:8] if user is not None)


def test_two_folders_do_not_show_who_is_in_both(tmp_path: Path) -> None:
    keys = [played(DPFTRLRegressor, tmp_path / name) for name in "ab"]
    ids = [{by_hand(key, user) for user in NAMED} for key in keys]
    assert keys[0] != keys[1] and ids[0].isdisjoint(ids[1])


@every
def test_models_do_not_depend_on_the_ids(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls, n=12)
    models = [new(cls) for _ in range(4)]
    feed(models[0], X, y, 0, 4, groups=USERS)
    for k, plain in enumerate([True, False, False], 1):
        with kept(models[k], tmp_path / str(k), plain=plain):
            feed(models[k], X, y, 0, 4, groups=USERS)
        assert state_in(tmp_path / str(k))["version"] == (1 if plain else 2)
        assert_same(models[k], models[0])


@every
@pytest.mark.parametrize("plain", [True, False], ids=["begun before", "under a key"])
def test_a_stream_keeps_the_ids_that_it_began_with(tmp_path: Path, cls: Any, plain: bool) -> None:
    """Under other ids every user would pass for a new one, and a step could not be repeated."""
    X, y = rows(cls, n=12)
    played(cls, tmp_path, plain=plain)
    assert state_in(tmp_path)["version"] == (1 if plain else 2)
    model = new(cls)
    with model.keep_stream(tmp_path) as stream:
        assert stream.position == 8
        for user in USERS[:8]:
            again = np.array([*USERS[8:11], user], dtype=object)
            refused = Diverged if user is None else ValueError
            with pytest.raises(refused, match="earlier step" if user is not None else "step 3"):
                model.partial_fit(X[8:], y[8:], groups=again)
        model.partial_fit(X[8:], y[8:], groups=USERS[8:])
    assert state_in(tmp_path)["version"] == (1 if plain else 2)
    expected = new(cls)
    feed(expected, X, y, 0, 4, groups=USERS)
    assert_same(model, expected)
    found = contents(tmp_path)["checkpoint.npz"]
    assert [listed(found, user) for user in NAMED] == [plain] * len(NAMED)


@every
def test_a_first_step_is_repeated_under_the_same_key(tmp_path: Path, cls: Any) -> None:
    X, y = rows(cls, n=12)
    first = partial(new, cls)
    model = first()
    journal = model.keep_stream(tmp_path)
    interrupted(lambda: model.partial_fit(X[:4], y[:4], groups=USERS[:4], **first_of(cls)))
    kill(journal)
    model, expected = first(), first()
    with model.keep_stream(tmp_path):
        feed(model, X, y, 0, 4, groups=USERS)
    feed(expected, X, y, 0, 4, groups=USERS)
    assert_same(model, expected)


def test_a_user_has_one_form(tmp_path: Path) -> None:
    X, y = rows(DPFTRLRegressor, n=12)
    model = new(DPFTRLRegressor)
    with model.keep_stream(tmp_path):
        model.partial_fit(X[:4], y[:4], groups=np.array([7, 1, 2, 3], np.uint8))
        for users in (["7", "a", "b", "c"], np.array([4.0, 5.0, 6.0, 7.0], np.float32)):
            with pytest.raises(ValueError, match="took part in an earlier step"):
                model.partial_fit(X[4:8], y[4:8], groups=users)
        model.partial_fit(X[4:8], y[4:8], groups=["007", "a", "b", "c"])
        assert model.n_steps_ == 2
