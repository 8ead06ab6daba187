# SPDX-License-Identifier: Apache-2.0
"""Write the folder written_by_0_1: what version 0.1 saves, and how it goes on from there.

It is not run again: the tests prove that later versions read what this version wrote, and go on bit
for bit. It was run with version 0.1 (commit 17b825d), whose modules and arguments it uses:

    PYTHONPATH=<a checkout of 17b825d, built in place> python tests/data/make_written_by_0_1.py

The values that follow on a saved run are those of noisy sums that are rounded to a grid, which came
after that commit; what was saved is as it was.

Everything in it is made from seeds and fixed keys. Secrets that a run draws from the operating
system are taken from a counter, and the number of its file, by which a run's folder is told from
a copy, is set to 1; running it twice gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer.testing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import written_by_0_1 as old
import written_by_0_1_federated as federated
import written_by_0_1_torch as training
from dpftrl_fast.run_file import _parsed
from written_by_0_1 import DATA, KEY

import dpftrl_fast as dpf
from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.accounting import FixedEpochs, FixedOrder, MinSeparation, SinglePass
from dpftrl_fast.cli.app import app

Json = dict[str, Any]

_drawn = 0


def counted(size: int) -> bytes:
    """Return bytes in place of those of the operating system."""
    global _drawn
    _drawn += 1
    return hashlib.shake_256(f"written by 0.1, {_drawn}".encode()).digest(size)


def write(name: str, content: Any) -> None:
    """Write a JSON file, with a line for each case."""
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_lines(content, 0) + "\n", encoding="utf-8")


def _lines(content: Any, depth: int) -> str:
    """Return JSON with line breaks in containers of containers, down to the cases."""
    if depth < 2 and isinstance(content, (dict, list)) and content:
        values = content.values() if isinstance(content, dict) else content
        if all(isinstance(value, (dict, list)) for value in values):
            names = [f"{json.dumps(k)}: " for k in content] if isinstance(content, dict) else None
            parts = [_lines(value, depth + 1) for value in values]
            if names is not None:
                parts = [name + part for name, part in zip(names, parts, strict=True)]
            left, right = "{}" if isinstance(content, dict) else "[]"
            return left + "\n" + ",\n".join(parts) + "\n" + right
    return json.dumps(content, separators=(",", ":"))


def settle(folder: Path) -> None:
    """Make the folder of a run one of always the same bytes."""
    (folder / "lock").unlink()
    path = folder / "run.json"
    path.write_bytes(replace(_parsed(path), inode=1)._content())


def in_copy(name: str, go_on: Callable[[Path], Any]) -> Any:
    """Go on in a copy of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        return go_on(old.taken(name, Path(folder) / "run"))


# ---- Plans ----

ORDER = FixedOrder.from_steps([[1, 2], [3], [1], [], [4, 2], [1, 1], [5], [3, 4], [], [2]])
EPOCHS = FixedEpochs(4, 3)
PLANS: dict[str, PrivacyPlan] = {
    "single_pass": PrivacyPlan(1.0, 4.0, SinglePass(12)),
    "vanilla_released": PrivacyPlan(0.5, 3.3, SinglePass(11), variant="vanilla", bound="released"),
    "restarts": PrivacyPlan(1.0, 5.0, SinglePass(12), restart_every=5, complete=True),
    "restarts_all": PrivacyPlan(0.3, 2.0, SinglePass(11), restart_every=4, complete="all"),
    "restarts_open": PrivacyPlan(2.0, 7.0, SinglePass(12), restart_every=5, variant="vanilla"),
    "lengths": PrivacyPlan(
        1.0, 6.0, EPOCHS, tree_lengths=[3, 5, 4], complete=[True, False, True]
    ),
    "epochs": PrivacyPlan(
        1.5, 6.5, EPOCHS, restart_every=4, complete=True, bound="released"
    ),
    "same_order": PrivacyPlan(1.0, 8.0, FixedEpochs(4, 3, reshuffle=False), restart_every=5),
    "listed": PrivacyPlan(1.0, 4.5, ORDER, complete="all"),
    "listed_released": PrivacyPlan(
        1.0, 4.5, ORDER, restart_every=3, complete=True, variant="vanilla", bound="released"
    ),
    "apart": PrivacyPlan(0.5, 3.0, MinSeparation(12, 4, 3), restart_every=5, complete=True),
    "apart_released": PrivacyPlan(
        1.0, 9.0, MinSeparation(12, 3, 4), tree_lengths=[4, 4, 4], bound="released"
    ),
    "calibrated": PrivacyPlan.calibrate(
        epsilon=2.0, delta=1e-6, clip_norm=0.7, participation=SinglePass(9), bound="released"
    ),
    "scheduled": PrivacyPlan.from_schedule(
        accounting.plan_schedule(8.0, 1e-5, 4, 4).best, clip_norm=1.25
    ),
    "long": PrivacyPlan(1.0, 20.0, FixedEpochs(1000, 50), restart_every=5000, complete=True),
    "training": PrivacyPlan(
        64.0, 2.0, EPOCHS, restart_every=4, complete=True, bound="released"
    ),
}  # fmt: skip
LEAST_SQUARES: dict[str, old.LeastSquaresPlan] = {
    "default": old.LeastSquaresPlan(1.0, 1.0, 13.0, SinglePass(10)),
    "vanilla": old.LeastSquaresPlan(
        2.0, 0.5, 9.0, SinglePass(7), complete=False, variant="vanilla", bound="exact", split=0.5
    ),
    "constant": old.LeastSquaresPlan(
        1.5, 3.0, 11.0, FixedEpochs(5, 2), complete="all", constant=1.0
    ),
    "calibrated": old.LeastSquaresPlan.calibrate(
        epsilon=1.0, delta=1e-6, x_norm_bound=1.0, y_bound=2.0, participation=SinglePass(6)
    ),
}
_SHORT = 16


def plans() -> None:
    """Write plan files and what the plans promise."""
    (DATA / "plans").mkdir(parents=True)
    for name, plan in PLANS.items():
        plan.save(DATA / "plans" / f"{name}.json")
    for name, least_squares in LEAST_SQUARES.items():
        write(f"least_squares_plans/{name}.json", least_squares.to_dict())
    write(
        "promises.json",
        {
            "plans": {name: old.promises(old.plan(name)) for name in PLANS},
            "least_squares_plans": {
                name: old.promises(old.least_squares_plan(name)) for name in LEAST_SQUARES
            },
        },
    )


# ---- Noise ----

_RUN = [["step"]] * 5 + [["restart", True]] + [["step"]] * 3 + [["restart"], ["residual"]]
_ON = [["residual"], ["step"], ["prefix", 7], ["step"], ["restart", True], ["residual"], ["step"]]


def noise_cases() -> list[Json]:
    """Return how each source is made, what is called before it is saved, and what after."""
    common: Json = {"size": 3, "std": 1.5, "threads": 1}
    cases: list[Json] = [
        {
            "name": f"{variant}, {memory}, {dtype}",
            "options": {**common, "variant": variant, "memory": memory, "dtype": dtype, "seed": 7},
            "before": [*_RUN, ["residual"], ["step"]],
        }
        for variant in ("vanilla", "honaker")
        for memory in ("stored", "regenerate", 2)
        for dtype in (("float32", "float64") if memory == "stored" else ("float32",))
    ]
    more: dict[str, tuple[Json, list[list[Any]]]] = {
        "before the first step": ({"seed": 8}, []),
        "after one step": ({"seed": 8, "variant": "vanilla"}, [["step"]]),
        "at a restart": ({"seed": 8}, _RUN[:6]),
        "at a restart, open": ({"seed": 8, "variant": "vanilla"}, [*_RUN[:3], ["restart"]]),
        "after a residual": ({"seed": 8}, [["step"], ["residual"], ["residual"]]),
        "a part of a vector": ({"seed": 8, "offset": 1001}, _RUN),
        "20 rounds": ({"seed": 8, "rounds": 20}, _RUN),
        "8 rounds": ({"seed": 8, "rounds": 8, "variant": "vanilla"}, _RUN),
        "covariance": ({"seed": 8, "purpose": "covariance"}, _RUN),
        "clip norm": ({"seed": 8, "purpose": "clip-norm", "dtype": "float64"}, _RUN),
        "seed of bytes": ({"seed": {"bytes": b"some".hex()}}, _RUN),
        "a key": ({"key": {"bytes": KEY.hex()}}, _RUN),
        "a node was used": ({"seed": 8}, [["step"], ["node", 1, 3], ["step"]]),
        "far on": ({"seed": 8}, [["advance_to", 10**6 + 7], ["step"]]),
        "far on, vanilla": ({"seed": 8, "variant": "vanilla"}, [["advance_to", 2**40 + 7]]),
        "one level": ({"seed": 8, "memory": 1}, [["step"]] * 13),
        "no key in the state": ({"seed": 8}, _RUN),
    }
    for name, (options, before) in more.items():
        cases.append({"name": name, "options": {**common, **options}, "before": before})
    for case in cases:
        far = case["name"].startswith("far")
        case["after"] = [call for call in _ON if not (far and call[0] == "restart")]
    return cases


def noise() -> None:
    """Write states of sources and of plans' noises, and what they return next."""
    cases = noise_cases()
    for case in cases:
        source = dpf.TreeNoise(**old.from_plain(case["options"]))
        old.noise_calls(source, case["before"])
        state = source.state_dict(key=case["name"] != "no key in the state")
        case["state"] = old.to_plain(state)
        case["next"] = old.noise_calls(source, case["after"])
        case["then"] = old.digest_of(source.state_dict())
    planned: list[Json] = []
    short = [name for name in PLANS if old.plan(name).steps <= _SHORT and name != "training"]
    for i, name in enumerate(short):
        plan = old.plan(name)
        memory, dtype = ("stored", "regenerate", 2)[i % 3], ("float32", "float64")[i % 2]
        options: Json = {"size": 3, "memory": memory, "dtype": dtype, "threads": 1}
        source, taken = plan.noise(seed=i, **options), 4 + i % 5  # within trees, and at their ends
        for _ in range(taken - 1):
            source.step()
        source.residual()
        case = {"plan": name, "options": options, "steps_taken": taken}
        case["state"] = old.to_plain(source.state_dict())
        case["next"] = old.rest_of(source)
        case["then"] = old.digest_of(source.state_dict())
        planned.append(case)
    least_squares: list[Json] = []
    for name in LEAST_SQUARES:
        sources = old.least_squares_plan(name).noise(3, seed=5, threads=1)
        for source in sources:
            for _ in range(3):
                source.step()
        states = [old.to_plain(source.state_dict()) for source in sources]
        following = [old.rest_of(source) for source in sources]
        least_squares.append({"plan": name, "columns": 3, "states": states, "next": following})
    write("noise.json", {"trees": cases, "plans": planned, "least_squares": least_squares})


# ---- Sums, bit generators, guards, FTRL, estimators ----


def sums() -> None:
    """Write what seeded sums return."""
    common: Json = {"size": 3, "steps": 12, "clip_norm": 1.0, "noise_multiplier": 4.0, "threads": 1}
    cases: list[Json] = [
        {"options": {**common, "seed": 1, **more}, "records": i}
        for i, more in enumerate(
            [
                {},
                {"dtype": "float32"},
                {"variant": "vanilla", "memory": "regenerate"},
                {"restart_every": 3, "complete": True},
                {"restart_every": 4, "complete": "all", "variant": "vanilla", "rounds": 20},
                {"memory": 2, "clip_norm": 0.25, "restart_every": 5},
            ]
        )
    ]
    for case in cases:
        case["left"] = old.sums_of(case["options"], case["records"])
    write("sums.json", cases)


def generators() -> None:
    """Write states of bit generators, and what they return next."""
    found = []
    for rounds, drawn in ((8, 1), (12, 300), (20, 37)):
        generator = dpf.ChaCha(rounds, rounds=rounds)
        generator.random_raw(drawn)
        if rounds == 20:
            generator.advance(2**60)
        child = generator.spawn(2)[1]
        for one in (generator, child):
            state = old.to_plain(one.state)
            found.append({"state": state, "next": old.draws(one), "then": old.digest_of(one.state)})
    write("generators.json", found)


def steps_of(plan: PrivacyPlan) -> list[list[int]]:
    """Return who takes part in each step of a plan, as often as it allows."""
    pattern = plan.participation
    if isinstance(pattern, FixedOrder):
        bounds = pattern.offsets
        return [pattern.ids[bounds[t] : bounds[t + 1]].tolist() for t in range(pattern.steps)]
    if isinstance(pattern, FixedEpochs):
        places = [(t % pattern.steps_per_epoch) for t in range(pattern.steps)]
        return [[200 + place, 100 + place] for place in places]
    if isinstance(pattern, MinSeparation):
        return [[7, 2**62][t % 2 :] * (t % pattern.min_separation == 0) for t in range(plan.steps)]
    return [[10 * t] for t in range(plan.steps)]


def guards() -> None:
    """Write states of guards and ledgers, and what they say next."""
    found: list[Json] = []
    for name in PLANS:
        plan = old.plan(name)
        if plan.steps > _SHORT or name in ("single_pass", "scheduled", "training", "restarts_open"):
            continue
        steps = steps_of(plan)
        if isinstance(plan.participation, MinSeparation):
            steps = [step if t % 2 == 0 else [] for t, step in enumerate(steps)]
        taken = plan.steps // 2
        guard, ledger = plan.guard(), plan.ledger()
        old.guarded(guard, steps[:taken])
        old.guarded(ledger, steps[:taken])
        case: Json = {"plan": name, "steps": steps, "taken": taken}
        for kind, one in (("guard", guard), ("ledger", ledger)):
            case[kind] = old.to_plain(one.state_dict())
        if name == "lengths":
            np.savez(DATA / "ledger.npz", **ledger.state_dict())
        case["realised"] = old.realised(ledger)
        case["next"] = old.guarded(guard, steps[taken:])
        old.guarded(ledger, steps[taken:])
        case["at the end"] = old.realised(ledger)
        case["then"] = old.digest_of(ledger.state_dict())
        found.append(case)
    write("guards.json", found)


def ftrl() -> None:
    """Write states of FTRL, and its next models."""
    cases: list[Json] = []
    for options in (
        {"learning_rate": 0.25, "batch_size": 8, "steps": 10, "momentum": 0.5, "l1": 0.125},
        {"learning_rate": 0.5, "batch_size": 4, "steps": 10, "radius": 1024.0},
    ):
        model = old.FTRL(np.arange(4.0), **options)
        source = dpf.TreeNoise(4, 1.0, seed=3)
        old.ftrl_steps(model, source, range(1, 6))
        states = [old.to_plain(one.state_dict()) for one in (model, source)]
        following = old.ftrl_steps(model, source, range(6, 11))
        cases.append({"options": options, "states": states, "next": following})
    write("ftrl.json", cases)


def estimators() -> None:
    """Write what seeded fits learn."""
    common: Json = {"noise_multiplier": 2.0, "epsilon": None, "batch_size": 4, "clip_norm": 8.0,
                    "learning_rate": 0.5, "noise_seed": 3, "threads": 1}  # fmt: skip
    cases: list[Json] = [
        {"how": "rows", "options": common},
        {"how": "rows", "options": {**common, "epochs": 3, "momentum": 0.5, "average": "all"}},
        {"how": "rows", "options": {**common, "epochs": 2, "shuffle": True, "random_state": 4}},
        {"how": "users", "options": {**common, "l1": 0.125, "average": "last"}},
        {"how": "stream", "options": {**common, "horizon": 24, "variant": "vanilla"}},
        {"how": "rows", "options": {**common, "noise_multiplier": None, "epsilon": 2.0}},
    ]
    for case in cases:
        case["found"] = old.fitted(case["options"], case["how"])
    write("estimators.json", cases)


# ---- Runs on a journal ----


def journals() -> None:
    """Write folders of runs that were killed."""
    found: Json = {}
    for name, until, every, keep in (
        ("plain", 7, 4, False),
        ("kept", 6, 4, True),
        ("begun", 0, 4, False),
        ("restarted", 7, 4, False),
    ):
        folder = DATA / "journal" / name
        folder.parent.mkdir(exist_ok=True)
        before = list(old.journal_steps(folder, until=until, every=every, keep=keep))
        if name == "restarted":
            with old.RunJournal(folder, old.IDENTITY) as journal:
                state = journal.resume()
                journal.restart({**state, "key": counted(32)})
            before += list(old.journal_steps(folder, until=6, every=every, keep=keep))
        if name == "plain":  # a record that a kill cut off
            with (folder / "steps-0.log").open("ab") as log:
                log.write(bytes(range(1, 21)))
        settle(folder)

        def go_on(copy: Path, every: int = every, keep: bool = keep) -> Json:
            left = list(old.journal_steps(copy, until=11, every=every, keep=keep))
            return {"next": left, "then": old.kept_state(copy)}

        case: Json = {"every": every, "keep": keep, "before": before}
        found[name] = {**case, **in_copy(f"journal/{name}", go_on)}
    write("journal.json", found)


# ---- Models ----

_COLUMNS: Json = {"a": {"bounds": [-1, 1]}, "c": {"categories": ["u", "v", "w"]}}
_NUMBER: Json = {"name": "y", "bounds": [-2, 6], "divisor": 2, "offset": 2}
MODELS: dict[str, tuple[Json, list[Any]]] = {
    "ftrl": (
        _NUMBER,
        ["--batch-size", 10, "--epochs", 3, "--loss", "huber", "--momentum", 0.5, "--l1", 0.001],
    ),
    "classification": (
        {"name": "k", "categories": ["no", "yes"]},
        ["--noise-multiplier", 3, "--group-column", "who", "--users", 12, "--batch-size", 4],
    ),
    "multinomial": ({"name": "m", "categories": ["low", "mid", "high"]}, ["--batch-size", 8]),
    "least_squares": (_NUMBER, ["--method", "least-squares", "--batch-size", 8]),
}  # fmt: skip


def table() -> str:
    """Return 50 rows of a table."""
    rng = np.random.default_rng(2)
    lines = ["a,c,y,k,m,who"]
    for a, c, noise, who in zip(
        rng.integers(-4, 5, 50) / 4, rng.choice(list("uvw?"), 50), rng.integers(0, 3, 50),
        rng.integers(0, 11, 50), strict=True,
    ):  # fmt: skip
        y = 2 * a + noise + 2 * (c == "v")
        m = ["low", "mid", "high"][int(y > 0.5) + int(y > 2)]
        lines.append(f"{a},{c},{y},{'yes' if y > 1 else 'no'},{m},p{who}")
    return "\n".join([*lines, ",u,1,yes,low,p0"]) + "\n"


def models() -> None:
    """Write models of `dpftrl-fast fit`, and what they predict."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        rows, schema, test = (Path(folder) / name for name in ("rows.csv", "s.json", "test.csv"))
        rows.write_text(table(), encoding="utf-8")
        for name, (target, options) in MODELS.items():
            declared = {
                "version": 1, "rows": 52, "target": target, "columns": _COLUMNS,
                "row_norm_bound": 2,
            }  # fmt: skip
            schema.write_text(json.dumps(declared), encoding="utf-8")
            out = DATA / "models" / name
            call = ["fit", rows, "--schema", schema, "--out", out, "--noise-seed", 4, *options]
            if "--noise-multiplier" not in options:
                call += ["--epsilon", 2]
            result = typer.testing.CliRunner().invoke(app, [str(part) for part in call])
            assert result.exit_code == 0, result.output
            model = old.load_model(out)
            promised = old.promises(model.plan)
            found[name] = {"predicted": old.predicted(model, test), "promises": promised}
    write("models.json", found)


# ---- Torch ----


def optimizers() -> None:
    """Write states of `DPFTRL` and `ResidualNoise` as torch saves them, and what comes next."""
    (DATA / "torch").mkdir()
    found: list[Json] = []
    for name, case in training.CASES.items():
        members = training.parameters(case)
        noise = training.noise_of(case, members, noise_seed=4)
        training.steps(noise, members, 0, 7)
        saved = {"state": noise.state_dict(), "parameters": [p.detach() for p in members]}
        torch.save(saved, DATA / "torch" / f"{name}.pt")
        found.append({"name": name, "next": training.steps(noise, members, 7, 12)})
    write("torch/states.json", found)


def trainings() -> None:
    """Write folders of trainings that were killed."""
    found: Json = {}
    for kind in training.KINDS:
        folder = DATA / "torch" / kind
        before = training.run(kind, folder, kill_after=7)
        if kind == "restarted":
            accept = {"restart": True, "accept_epsilon": (1e9, training.DELTA)}
            before += training.run(kind, folder, kill_after=8, **accept)
        settle(folder)

        def go_on(copy: Path, kind: str = kind) -> Json:
            left = training.run(kind, copy)
            return {"next": left, "then": training.kept(copy)}

        found[kind] = {"before": before, **in_copy(f"torch/{kind}", go_on)}
    write("torch/runs.json", found)


# ---- Federated ----


def servers() -> None:
    """Write folders of federated runs that were killed."""
    found: Json = {}
    for kind in federated.KINDS:
        folder = DATA / "federated" / kind
        before = federated.run(kind, folder, until=6, key=KEY)
        if kind == "restarted":
            (folder / "kept-0-6.npz").unlink()
            before += federated.run(kind, folder, until=6, restart=True)
        settle(folder)

        def go_on(copy: Path, kind: str = kind) -> Json:
            left = federated.run(kind, copy)
            return {"next": left, "then": old.kept_state(copy)}

        found[kind] = {"before": before, **in_copy(f"federated/{kind}", go_on)}
    write("federated/runs.json", found)


def main() -> None:
    """Write the folder anew."""
    secrets.token_bytes = lambda size=32: counted(size)
    secrets.token_hex = lambda size=32: counted(size).hex()
    torch.set_num_threads(1)
    shutil.rmtree(DATA, ignore_errors=True)
    for part in (
        *(plans, noise, sums, generators, guards, ftrl, estimators, journals, models),
        *(optimizers, trainings, servers),
    ):
        part()


if __name__ == "__main__":
    main()
