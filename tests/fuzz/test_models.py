# SPDX-License-Identifier: Apache-2.0
"""Model files, folders of runs, and their sealed files."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzzing import attempt, fuzz, json_bytes, mutated, mutated_bytes, value_of
from journal_cases import IDENTITY, begun, digests

from dpftrl_fast.fitting import FitSettings, LeastSquaresSettings, fit
from dpftrl_fast.fitting.model_file import load_model, save_model
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.run.journal import RunJournal
from dpftrl_fast.run.run_file import _check
from dpftrl_fast.run.sealed_files import read_sealed, write_sealed
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.reader import TableError
from dpftrl_fast.tables.schema import Schema, SchemaError

SCHEMA = Schema.from_dict(
    {
        "rows": 6,
        "target": {"name": "y", "bounds": [0, 10], "divisor": 5, "offset": 2},
        "columns": {"a": {"bounds": [0, 1]}, "c": {"categories": ["u", "v"]}},
    }
)
TEXT = "a,c,y\n0.5,u,3\n1,v,9\n0.123456,u,4\n0,v,2\n,u,5\n0.75,u,6\n"


# ---- Models ----


def models(folder: Path) -> list[bytes]:
    """The files of a model of either method, compressed and not."""
    (folder / "t.csv").write_text(TEXT, encoding="utf-8")
    found = []
    for settings in (FitSettings(batch_size=2, noise_seed=1), LeastSquaresSettings(batch_size=2)):
        result = fit(TableReader(folder / "t.csv", SCHEMA), settings)
        save_model(folder / "m", result, force=True)
        found.append((folder / "m" / "model.npz").read_bytes())
        arrays = dict(np.load(folder / "m" / "model.npz"))
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **arrays)
        found.append(file.getvalue())
    return found


def changed_members(data: bytes, rng: random.Random) -> bytes:
    """The file with a member whose bytes, facts or array are mutated, and a directory that fits."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(file, "w") as new:
        names = old.namelist()
        victim = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name != victim:
                new.writestr(name, content)
                continue
            pick = rng.random()
            if pick < 0.15:
                continue
            if pick < 0.5:
                content = mutated_bytes(content, rng)
            elif name == "facts.npy":
                facts = json.loads(str(np.load(io.BytesIO(content))))
                text = json_bytes(mutated(facts, rng, [facts], plain=True), rng)
                content = npy(np.array(text.decode("utf-8", "replace")))
            else:
                changed = mutated(np.load(io.BytesIO(content)), rng)
                content = npy(changed)
            new.writestr(name if pick < 0.95 else name + "x", content)
    return file.getvalue()


def npy(value: Any) -> bytes:
    file = io.BytesIO()
    try:
        np.save(file, np.asarray(value), allow_pickle=True)
    except (ValueError, TypeError, OverflowError):
        np.save(file, np.zeros(2))
    return file.getvalue()


def test_models(tmp_path: Path) -> None:
    kept = models(tmp_path)
    path = tmp_path / "m" / "model.npz"

    def one(rng: random.Random) -> Any:
        data = rng.choice(kept)
        data = changed_members(data, rng) if rng.random() < 0.7 else mutated_bytes(data, rng, kept)
        path.write_bytes(data)
        result = attempt(lambda: load_model(path.parent), own=(SchemaError,))
        if not isinstance(result, Exception):
            attempt(lambda: result.predict(tmp_path / "t.csv"), own=(TableError,))
        return result

    fuzz("models", one)


# ---- Folders of runs ----


def filled(folder: Path) -> Path:
    begun(folder, 5, every=2)
    with RunJournal(folder, IDENTITY) as journal:
        journal.resume()
        journal.write_ahead(5, digests(journal, 5)[4])
        journal.write_ahead(6, journal.digest(6, np.array([6.0])), {"sum": np.ones(2)})
    return folder


def run_json(content: bytes, rng: random.Random) -> bytes:
    """The file of a run with other fields, and often with a check that fits them."""
    fields = json.loads(content)
    changed = mutated(fields, rng, [fields], plain=True)
    if isinstance(changed, dict) and rng.random() < 0.8:
        changed.pop("check", None)
        try:
            changed["check"] = _check(changed)
        except (TypeError, ValueError, RecursionError):
            changed["check"] = "0"
    return json_bytes(changed, rng)


def log_bytes(content: bytes, rng: random.Random) -> bytes:
    """A log that is cut, extended by whole or broken records, or mutated."""
    pick = rng.randrange(4)
    if pick == 0:
        return content[: rng.randrange(len(content) + 1)]
    if pick == 1:
        return content + bytes(rng.choice((1, 63, 64, 65, 128)))
    if pick == 2:
        at = 64 * rng.randrange(len(content) // 64)
        return content + content[at : at + 64]
    return mutated_bytes(content, rng)


def test_folders_of_runs(tmp_path: Path) -> None:
    origin = filled(tmp_path / "run")
    files = {p.name: p.read_bytes() for p in origin.iterdir()}
    change: dict[str, Callable[[bytes, random.Random], bytes]] = {"run.json": run_json}
    folder = tmp_path / "copy"
    shutil.copytree(origin, folder)

    def one(rng: random.Random) -> Any:
        for path in folder.iterdir():
            if path.name not in files:
                path.unlink()
        for name, content in files.items():
            if name != "lock":
                (folder / name).write_bytes(content)
        victim = rng.choice([name for name in files if name != "lock"])
        path = folder / victim
        pick = rng.random()
        if pick < 0.1:
            path.unlink()
        elif pick < 0.6:
            made = change.get(victim, log_bytes if victim.endswith("log") else mutated_bytes)
            path.write_bytes(made(files[victim], rng))
        elif pick < 0.9:
            path.write_bytes(mutated_bytes(files[victim], rng, list(files.values())))
        else:
            odd = ("kept-x-y.npz", "kept-1.npz", "steps-9.log", "kept-0-99999999999999999999.npz")
            (folder / rng.choice(odd)).write_bytes(b"x")
        # A copy has another inode: without `allow_fork` nothing further would be read.
        os.chmod(folder, 0o700)
        return attempt(lambda: resumed(folder), own=(PermissionError,))

    fuzz("folders of runs", one)


def resumed(folder: Path) -> Any:
    with RunJournal(folder, IDENTITY, allow_fork=True) as journal:
        state = journal.resume()
        kept = journal.kept() if state is not None else None
        journal.checkpoint({"step": journal.step})
        return state, kept


def test_sealed_files_that_hold_anything(tmp_path: Path) -> None:
    """Files that are sealed rightly, with other data than `write_sealed` would write."""
    secret, path = b"s" * 32, tmp_path / "state.npz"
    state = {"a": [1, (2.5, None)], "b": np.arange(3), 7: b"xy", "nan": float("nan")}
    write_sealed(path, state, secret, "label")
    content = path.read_bytes()

    def one(rng: random.Random) -> Any:
        path.write_bytes(mutated_bytes(content, rng, [content]))
        return attempt(lambda: read_sealed(path, secret, "label"))

    fuzz("sealed files", one)

    def written(rng: random.Random) -> Any:
        value = mutated(state, rng, [state])
        result = attempt(lambda: write_sealed(path, value, secret, "label"))
        if not isinstance(result, Exception):
            attempt(lambda: read_sealed(path, secret, "label"))
        return result

    fuzz("states to be sealed", written, share=0.3)


def test_accounts_of_runs() -> None:
    from dpftrl_fast import PrivacyPlan, accounting

    plan = PrivacyPlan(1.0, 8.0, accounting.SinglePass(20))
    good: list[Any] = [plan, 1, ((1, 8), (5, 9)), 6]

    def one(rng: random.Random) -> Any:
        args = list(good)
        i = rng.randrange(4)
        args[i] = value_of(rng, plain=False) if i == 0 else mutated(good[i], rng)
        return attempt(lambda: RunAccount(*args))

    fuzz("accounts of runs", one)
