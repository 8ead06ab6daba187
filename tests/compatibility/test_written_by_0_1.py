# SPDX-License-Identifier: Apache-2.0
"""What version 0.1 saved is read, goes on bit for bit, and is saved again as it was.

Where it holds a position in the noise it is refused, since 0.1 had another version of the stream.
With the version of the stream put in its place, it is read like the rest.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written_by_0_1 as old

from dpftrl_fast import STREAM_VERSION, ChaCha, PrivacyPlan, TreeNoise
from dpftrl_fast.tables.schema import Schema

PLANS = list(old.read("promises.json")["plans"])
LEAST_SQUARES = list(old.read("promises.json")["least_squares_plans"])
NOISE = old.read("noise.json")
#: Those of few steps: of a million, the lowest levels take long to make again.
NEAR = [case for case in NOISE["trees"] if not case["name"].startswith("far")]


def saved_again(found: Any, state: Any) -> None:
    """A state is, entry by entry and bit by bit, the one that was read."""
    assert old.in_stream(old.to_plain(found), 1) == state


def in_this_stream(state: Any) -> Any:
    """A state of 0.1 that names the present version of the stream."""
    return old.in_stream(old.from_plain(state), STREAM_VERSION)


def digest_of(holder: Any) -> str:
    """A hash of a state, as it was with the first version of the stream."""
    return old.digest_of(old.in_stream(holder.state_dict(), 1))


# ---- Plans ----


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_is_read_and_promises_the_same(name: str, tmp_path: Path) -> None:
    plan = old.plan(name)
    promises, recorded = old.promises(plan), old.read("promises.json")["plans"][name]
    assert old.kept_promises(promises, recorded)
    if plan.bound == "exact" or plan.mechanism.variant == "vanilla":
        assert promises == recorded
    plan.save(tmp_path / "plan.json")
    written = (old.DATA / "plans" / f"{name}.json").read_bytes()
    assert (tmp_path / "plan.json").read_bytes() == written
    assert PrivacyPlan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_a_plan_of_least_squares_is_read_and_promises_the_same(name: str) -> None:
    plan = old.least_squares_plan(name)
    recorded = old.read("promises.json")["least_squares_plans"][name]
    assert old.kept_promises(old.promises(plan), recorded)
    assert plan.to_dict() == old.read(f"least_squares_plans/{name}.json")


# ---- Noise ----


def names(cases: list[Any], key: str) -> list[str]:
    return [case[key] for case in cases]


@pytest.mark.parametrize("case", NOISE["trees"], ids=names(NOISE["trees"], "name"))
def test_noise_of_another_stream_is_refused(case: dict[str, Any]) -> None:
    options, state = old.from_plain(case["options"]), old.from_plain(case["state"])
    noise = TreeNoise(**options)
    with pytest.raises(ValueError, match=old.REFUSED):
        noise.load_state_dict(state)
    assert noise.t == 0


@pytest.mark.parametrize("case", NOISE["trees"], ids=names(NOISE["trees"], "name"))
def test_noise_goes_on(case: dict[str, Any]) -> None:
    options, state = old.from_plain(case["options"]), in_this_stream(case["state"])
    other = options
    if state["key"] is not None:  # the state's key goes before the object's
        other = {**{k: v for k, v in options.items() if k != "key"}, "seed": 99}
    noise = TreeNoise(**other)
    noise.load_state_dict(state)
    saved = noise.state_dict(key=state["key"] is not None)
    saved_again(saved, case["state"])
    assert old.noise_calls(noise, case["after"]) == case["next"]
    assert digest_of(noise) == case["then"]


@pytest.mark.parametrize("case", NOISE["trees"], ids=names(NOISE["trees"], "name"))
def test_noise_is_made_from_its_seed(case: dict[str, Any]) -> None:
    noise = TreeNoise(**old.from_plain(case["options"]))
    old.noise_calls(noise, case["before"])
    assert old.noise_calls(noise, case["after"]) == case["next"]
    assert digest_of(noise) == case["then"]


@pytest.mark.parametrize("memory", ["stored", "regenerate", 1, 3])
@pytest.mark.parametrize("case", NEAR, ids=names(NEAR, "name"))
def test_noise_goes_on_with_any_memory(case: dict[str, Any], memory: Any) -> None:
    noise = TreeNoise(**{**old.from_plain(case["options"]), "memory": memory})
    noise.load_state_dict(in_this_stream(case["state"]))
    assert old.noise_calls(noise, case["after"]) == case["next"]


@pytest.mark.parametrize("case", NOISE["plans"], ids=names(NOISE["plans"], "plan"))
def test_the_noise_of_a_plan_goes_on(case: dict[str, Any]) -> None:
    noise = old.plan(case["plan"]).noise(**case["options"])
    with pytest.raises(ValueError, match=old.REFUSED):
        noise.load_state_dict(old.from_plain(case["state"]))
    noise.load_state_dict(in_this_stream(case["state"]))
    saved_again(noise.state_dict(), case["state"])
    assert noise.steps_taken == case["steps_taken"]
    assert old.rest_of(noise) == case["next"]
    assert digest_of(noise) == case["then"]
    with pytest.raises(ValueError, match="declared steps are taken"):
        noise.step()


@pytest.mark.parametrize("case", NOISE["least_squares"], ids=names(NOISE["least_squares"], "plan"))
def test_the_noise_of_least_squares_goes_on(case: dict[str, Any]) -> None:
    sources = old.least_squares_plan(case["plan"]).noise(case["columns"])
    for noise, state, left in zip(sources, case["states"], case["next"], strict=True):
        with pytest.raises(ValueError, match=old.REFUSED):
            noise.load_state_dict(old.from_plain(state))
        noise.load_state_dict(in_this_stream(state))
        saved_again(noise.state_dict(), state)
        assert old.rest_of(noise) == left


# ---- Sums, bit generators, guards, FTRL, estimators ----


@pytest.mark.parametrize("case", old.read("sums.json"))
def test_a_seeded_sum_is_the_same(case: dict[str, Any]) -> None:
    assert old.sums_of(case["options"], case["records"]) == case["left"]


@pytest.mark.parametrize("case", old.read("generators.json"))
def test_a_bit_generator_goes_on(case: dict[str, Any]) -> None:
    generator = ChaCha()
    with pytest.raises(ValueError, match="stream_version must be 2, got 1"):
        generator.state = old.from_plain(case["state"])
    generator.state = in_this_stream(case["state"])
    saved_again(generator.state, case["state"])
    assert old.draws(generator) == case["next"]
    assert old.digest_of(old.in_stream(generator.state, 1)) == case["then"]


@pytest.mark.parametrize("case", old.read("guards.json"), ids=lambda case: case["plan"])
def test_guards_and_ledgers_go_on(case: dict[str, Any]) -> None:
    plan, rest = old.plan(case["plan"]), case["steps"][case["taken"] :]
    guard, ledger = plan.guard(), plan.ledger(realised=True)
    for one, kind in ((guard, "guard"), (ledger, "ledger")):
        one.load_state_dict(old.from_plain(case[kind]))
        saved_again(one.state_dict(), case[kind])
        assert one.steps_taken == case["taken"]
    assert old.realised(ledger) == case["realised"]
    assert old.guarded(guard, rest) == old.guarded(ledger, rest) == case["next"]
    assert old.realised(ledger) == case["at the end"]
    assert old.digest_of(ledger.state_dict()) == case["then"]
    plain = plan.ledger()  # keeps no realised values, and reads a state that has them
    plain.load_state_dict(old.from_plain(case["ledger"]))
    assert old.guarded(plain, rest) == case["next"]


def test_a_ledger_in_an_npz_file_is_read() -> None:
    (case,) = (case for case in old.read("guards.json") if case["plan"] == "lengths")
    ledger = old.plan("lengths").ledger(realised=True)
    with np.load(old.DATA / "ledger.npz", allow_pickle=False) as state:
        ledger.load_state_dict(state)
    saved_again(ledger.state_dict(), case["ledger"])


@pytest.mark.parametrize("case", old.read("ftrl.json"))
def test_ftrl_goes_on(case: dict[str, Any]) -> None:
    ftrl, noise = old.FTRL(np.arange(4.0), **case["options"]), TreeNoise(4, 1.0)
    for one, state in zip((ftrl, noise), case["states"], strict=True):
        one.load_state_dict(in_this_stream(state))
        saved_again(one.state_dict(), state)
    assert old.ftrl_steps(ftrl, noise, range(6, 11)) == case["next"]


@pytest.mark.parametrize("case", old.read("estimators.json"))
def test_a_seeded_fit_is_the_same(case: dict[str, Any]) -> None:
    pytest.importorskip("sklearn")
    assert old.fitted(case["options"], case["how"]) == case["found"]


# ---- Runs on a journal, and models ----


@pytest.mark.parametrize("name", old.read("journal.json"))
def test_a_run_on_a_journal_goes_on(name: str, tmp_path: Path) -> None:
    case = old.read("journal.json")[name]
    folder = old.taken(f"journal/{name}", tmp_path / "old")
    with pytest.raises(ValueError, match=old.REFUSED):
        old.RunJournal(folder, old.IDENTITY)
    folder = old.taken(f"journal/{name}", tmp_path / "run", STREAM_VERSION)
    options = {"every": case["every"], "keep": case["keep"]}
    left = list(old.journal_steps(folder, until=11, **options))
    assert left == case["next"]
    assert old.kept_state(folder) == case["then"]
    again = {step["step"]: step["left"] for step in left if not step["new"]}
    before = {step["step"]: step["left"] for step in case["before"]}
    assert {step: before[step] for step in again} == again


def test_a_copied_journal_is_told(tmp_path: Path) -> None:
    folder = old.taken("journal/plain", tmp_path / "run", STREAM_VERSION)
    shutil.copytree(folder, copy := tmp_path / "copy")
    with pytest.raises(ValueError, match="was copied, or moved"):
        old.RunJournal(copy, old.IDENTITY)
    with old.RunJournal(copy, old.IDENTITY, allow_fork=True) as journal:
        assert (journal.forked, journal.step, journal.last) == (True, 4, 7)


@pytest.mark.parametrize("name", old.read("models.json"))
def test_a_model_is_read(name: str, tmp_path: Path) -> None:
    case = old.read("models.json")[name]
    model = old.load_model(old.DATA / "models" / name)
    assert old.predicted(model, tmp_path / "rows.csv") == case["predicted"]
    facts = old.read(f"models/{name}/model.json")
    assert model.facts == facts
    assert model.plan.to_dict() == facts["plan"]
    assert model.schema == Schema.from_dict(facts["schema"])
    assert Schema.from_dict(model.schema.to_dict()) == model.schema
    assert old.kept_promises(old.promises(model.plan), case["promises"])
    assert model.plan.epsilon(facts["delta"]) == facts["epsilon"]
