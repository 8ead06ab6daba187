# SPDX-License-Identifier: Apache-2.0
"""States of noise, of FTRL and of the sums of a federated run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fuzzing import attempt, fuzz, mutated
from mechanism_cases import MECHANISMS, TOEPLITZ

from dpftrl_fast import PrivacyPlan, TreeNoise, accounting
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.noise.toeplitz import ToeplitzNoise

KEY = bytes(range(32))


def source(name: str, memory: Any = "stored") -> Any:
    if name in ("honaker", "vanilla"):
        return TreeNoise(3, 1.5, key=KEY, memory=memory, variant=name)  # type: ignore[arg-type]
    if name in TOEPLITZ:
        return ToeplitzNoise(3, 1.5, TOEPLITZ[name], key=KEY, memory=memory, dtype="float64")
    mechanism = MECHANISMS[name.removeprefix("planned ")]
    plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(12), mechanism)
    return plan.noise(3, key=KEY, memory=memory)


def states(make: Callable[[], Any]) -> list[dict[str, Any]]:
    found = []
    object_ = make()
    for t in range(1, 8):
        object_.residual() if t % 3 == 0 else object_.step()
        if t == 3 and not hasattr(object_, "steps"):
            object_.restart()
        if t in (1, 2, 4, 7):
            found += [object_.state_dict(), object_.state_dict(key=False)]
    return found


SOURCES = ["honaker", "vanilla", "four taps", "two buffers", "bands", "planned trees",
           "planned a buffer, in blocks"]  # fmt: skip
_corpora: dict[str, list[dict[str, Any]]] = {}


def corpus(name: str) -> list[dict[str, Any]]:
    if name not in _corpora:
        _corpora[name] = states(lambda: source(name))
    return _corpora[name]


@pytest.mark.parametrize("name", SOURCES)
def test_states_of_noise(name: str) -> None:
    everything = [state for other in SOURCES for state in corpus(other)]

    def one(rng: random.Random) -> Any:
        held = source(name, rng.choice(("stored", "regenerate", 2)))
        if rng.random() < 0.3:
            held.step()
        state = mutated(rng.choice(corpus(name)), rng, everything)
        result = attempt(
            lambda: held.load_state_dict(state, allow_fork=rng.random() < 0.5),
            snapshot=held.state_dict,
        )
        if not isinstance(result, Exception):
            _goes_on(held, rng)
        return result

    fuzz(f"noise: {name}", one)


def _goes_on(held: Any, rng: random.Random) -> None:
    """A source with an accepted state saves the same one, and steps or says why not."""
    state = held.state_dict()
    again = type(held).load_state_dict
    attempt(lambda: again(held, state))
    # Far from the start a source may have to make all of its blocks again.
    earlier = next(state[name] for name in state if name.startswith("earlier_"))
    if max([held.t, *(x for pair in earlier for x in pair)]) < 1000:
        attempt(lambda: held.step())


def ftrl(rng: random.Random) -> FTRL:
    found = FTRL(np.zeros(3), learning_rate=0.5, batch_size=2, steps=9, momentum=0.5, l1=0.1)
    for _ in range(rng.randrange(4)):
        found.step(np.ones(3), np.full(3, 0.25))
    return found


def test_states_of_ftrl() -> None:
    kept = [ftrl(random.Random(i)).state_dict() for i in range(6)]

    def one(rng: random.Random) -> Any:
        held = ftrl(rng)
        state = mutated(rng.choice(kept), rng, kept)
        result = attempt(lambda: held.load_state_dict(state), snapshot=held.state_dict)
        if not isinstance(result, Exception) and held.t < 9:
            with np.errstate(all="ignore"):
                attempt(lambda: held.step(np.ones(3), np.zeros(3)))
        return result

    fuzz("ftrl", one)
