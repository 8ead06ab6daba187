# SPDX-License-Identifier: Apache-2.0
"""Arguments of public calls: the same numbers are accepted and refused everywhere, in one form."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.ftrl import FTRL
from dpftrl_fast.plan.epoch_order import steps_per_epoch
from dpftrl_fast.plan.from_budget import participation_of
from dpftrl_fast.run import RunJournal

ONE_PASS = acc.SinglePass(8)
EPOCHS = acc.FixedEpochs(4, 2)
BEYOND = 10**400  # more than a float can hold


class Kind(NamedTuple):
    """Values that every argument of a kind takes, and those that it refuses."""

    good: tuple[Any, ...]
    wrong_type: tuple[Any, ...]
    wrong_value: tuple[Any, ...]


NOT_NUMBERS = (True, np.True_, "2", b"2", [2], 2j, np.zeros(2))
INTEGER = Kind(
    (2, np.int64(2), np.uint8(2), np.int16(2)),
    (*NOT_NUMBERS, 2.0, np.float64(2), Fraction(2), math.nan),
    (0, -1, np.int64(-1)),
)
REAL = (2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.uint8(2), Fraction(2))
POSITIVE = Kind(REAL, NOT_NUMBERS, (0, -1.0, math.nan, math.inf, -math.inf, BEYOND))
NON_NEGATIVE = Kind((*REAL, 0), NOT_NUMBERS, (-1.0, math.nan, math.inf, BEYOND))
EXTENDED = Kind((*REAL, 0, math.inf), NOT_NUMBERS, (-1.0, math.nan, -math.inf, BEYOND))
HALVES = (0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2))
PROBABILITY = Kind(HALVES, NOT_NUMBERS, (0, 1, 1.5, -0.5, math.nan, BEYOND))
MOMENTUM = Kind((*HALVES, 0), NOT_NUMBERS, (1, 1.5, -0.5, math.nan, BEYOND))


def ftrl(**changed: Any) -> FTRL:
    return FTRL(np.zeros(2), **{"learning_rate": 1.0, "batch_size": 2, "steps": 4, **changed})


def counter(**changed: Any) -> dpf.PrivateCounter:
    given = {"keys": ["a", "b"], "periods": 4, "noise_multiplier": 1.0, "start": 0, "period": 1}
    return dpf.PrivateCounter(**{**given, "unit": "user", "user_periods": 2, **changed})


def noise(**changed: Any) -> None:
    dpf.TreeNoise(2, 1.0).load_state_dict(dpf.TreeNoise(2, 1.0).state_dict(), **changed)


def planned(**changed: Any) -> None:
    plan = dpf.PrivacyPlan(1.0, 2.0, ONE_PASS)
    plan.noise(2).load_state_dict(plan.noise(2).state_dict(), **changed)


def journal(**changed: Any) -> None:
    with tempfile.TemporaryDirectory() as folder, RunJournal(folder, {}, **changed):
        pass


def optimizer(**changed: Any) -> Any:
    torch = pytest.importorskip("torch")
    from dpftrl_fast.torch import DPFTRL

    plan = dpf.PrivacyPlan(1.0, 2.0, ONE_PASS)
    w = torch.nn.Parameter(torch.zeros(2))
    found = DPFTRL([w], 1.0, plan=plan, batch_size=2, **changed)
    found.state_dict()
    return found


def residual() -> Any:
    torch = pytest.importorskip("torch")
    from dpftrl_fast.torch import ResidualNoise

    plan = dpf.PrivacyPlan(1.0, 2.0, ONE_PASS)
    return ResidualNoise([torch.nn.Parameter(torch.zeros(2))], plan=plan)


def loader(**changed: Any) -> None:
    pytest.importorskip("torch")
    from dpftrl_fast.torch.loader import FixedOrderLoader

    FixedOrderLoader(range(16), 2, dpf.PrivacyPlan(1.0, 2.0, ONE_PASS), **changed)


def private(**changed: Any) -> Any:
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    from dpftrl_fast.torch import make_private

    model = torch.nn.Linear(2, 1)
    return make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        torch.utils.data.DataLoader(torch.zeros(16, 2), batch_size=2),
        **{"noise_multiplier": 2.0, "delta": 1e-5, "epochs": 1, "clip_norm": 1.0, **changed},
    )


def training(**changed: Any) -> None:
    run = private()
    from dpftrl_fast.torch.checkpoint import TrainingRun

    with (
        tempfile.TemporaryDirectory() as folder,
        TrainingRun(folder, run.model, run.optimizer, run.data_loader, **changed),
    ):
        pass


#: Arguments that allow or switch something: text such as "False" has a truth value, which is True.
FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "TreeNoise.restart": ("complete", lambda v: advanced().restart(v)),
    "TreeNoise.state_dict": ("key", lambda v: dpf.TreeNoise(2, 1.0).state_dict(key=v)),
    "TreeNoise.load_state_dict": ("allow_fork", lambda v: noise(allow_fork=v)),
    "PlannedNoise.load_state_dict": ("allow_fork", lambda v: planned(allow_fork=v)),
    "RunJournal": ("allow_fork", lambda v: journal(allow_fork=v)),
    "FixedEpochs": ("reshuffle", lambda v: acc.FixedEpochs(2, 2, reshuffle=v)),
    "Ledger": ("realised", lambda v: acc.Ledger(ONE_PASS, 2.0, realised=v)),
    "Ledger.epsilon_spent": (
        "realised",
        lambda v: acc.Ledger(ONE_PASS, 2.0, realised=True).epsilon_spent(1e-6, realised=v),
    ),
    "largest_epochs": ("reshuffle", lambda v: acc.largest_epochs(8.0, 1e-5, 9.0, 2, reshuffle=v)),
    "largest_trees": ("reshuffle", lambda v: acc.largest_trees(8.0, 1e-5, 9.0, 2, reshuffle=v)),
    "PrivacyPlan.ledger": (
        "realised",
        lambda v: dpf.PrivacyPlan(1.0, 2.0, ONE_PASS).ledger(realised=v),
    ),
    "steps_per_epoch": ("drop_last", lambda v: steps_per_epoch(4, 2, v)),
    "participation_of one pass": ("shuffle", lambda v: participation_of(4, 2, 1, v)),
    "participation_of": ("shuffle", lambda v: participation_of(4, 2, 2, v)),
    "DPFTRL": ("nesterov", lambda v: optimizer(momentum=0.5, nesterov=v)),
    "DPFTRL.load_state_dict": (
        "allow_fork",
        lambda v: (o := optimizer()).load_state_dict(o.state_dict(secrets=True), allow_fork=v),
    ),
    "DPFTRL state": (
        "state's reproducible",
        lambda v: (o := optimizer()).load_state_dict(
            {**o.state_dict(secrets=True), "reproducible": v}
        ),
    ),
    "ResidualNoise.load_state_dict": (
        "allow_fork",
        lambda v: (r := residual()).load_state_dict(r.state_dict(secrets=True), allow_fork=v),
    ),
    "FixedOrderLoader shuffle": ("shuffle", lambda v: loader(shuffle=v)),
    "FixedOrderLoader drop_last": ("drop_last", lambda v: loader(drop_last=v)),
    "make_private shuffle": ("shuffle", lambda v: private(shuffle=v)),
    "make_private keep_optimizer": ("keep_optimizer", lambda v: private(keep_optimizer=v)),
    "make_private batch_first": ("batch_first", lambda v: private(batch_first=v)),
    "TrainingRun keep_sums": ("keep_sums", lambda v: training(keep_sums=v)),
    "TrainingRun recover": ("recover", lambda v: training(recover=v)),
    "TrainingRun allow_fork": ("allow_fork", lambda v: training(allow_fork=v)),
}
FLAG_CASES = [pytest.param(*entry, id=name) for name, entry in FLAGS.items()]


def advanced() -> dpf.TreeNoise:
    found = dpf.TreeNoise(2, 1.0)
    found.step()
    return found


@pytest.mark.parametrize(("argument", "call"), FLAG_CASES)
def test_flags_are_bools(argument: str, call: Callable[[Any], Any]) -> None:
    for value in (True, False, np.True_, np.False_):
        call(value)
    for value in ("False", "", 0, 1, None, [False], np.zeros(1, bool)):
        with pytest.raises(TypeError, match=rf"^{argument} must be a bool, got "):
            call(value)


ENTRIES: dict[str, tuple[str, Kind, Callable[[Any], Any]]] = {
    "TreeNoise size": ("size", INTEGER, lambda v: dpf.TreeNoise(v, 1.0)),
    "TreeNoise std": ("std", POSITIVE, lambda v: dpf.TreeNoise(2, v)),
    "TreeNoise threads": ("threads", INTEGER, lambda v: dpf.TreeNoise(2, 1.0, threads=v)),
    "TreeNoise memory": (
        "memory",
        Kind(INTEGER.good, tuple(x for x in INTEGER.wrong_type if not isinstance(x, str)), (0, -1)),
        lambda v: dpf.TreeNoise(2, 1.0, memory=v),
    ),
    "PrivacyBudget epsilon": ("epsilon", POSITIVE, lambda v: dpf.PrivacyBudget(v, 0.5)),
    "PrivacyBudget delta": ("delta", PROBABILITY, lambda v: dpf.PrivacyBudget(1.0, v)),
    "PrivacyBudget.epsilon_per_fit": (
        "fits",
        INTEGER,
        lambda v: dpf.PrivacyBudget(1.0, 1e-6).epsilon_per_fit(v),
    ),
    "PrivateCounter periods": ("periods", INTEGER, lambda v: counter(periods=v)),
    "PrivateCounter noise_multiplier": (
        "noise_multiplier",
        POSITIVE,
        lambda v: counter(noise_multiplier=v),
    ),
    "PrivateCounter user_periods": ("user_periods", INTEGER, lambda v: counter(user_periods=v)),
    "PrivateCounter user_gap": ("user_gap", INTEGER, lambda v: counter(user_gap=v)),
    "PrivateCounter keys_per_period": (
        "keys_per_period",
        INTEGER,
        lambda v: counter(keys_per_period=v),
    ),
    "PrivateCounter events_per_key": (
        "events_per_key",
        INTEGER,
        lambda v: counter(events_per_key=v),
    ),
    "PrefixSum size": ("size", INTEGER, lambda v: dpf.PrefixSum(v, 4, 1.0, 1.0)),
    "PrefixSum steps": ("steps", INTEGER, lambda v: dpf.PrefixSum(2, v, 1.0, 1.0)),
    "PrefixSum clip_norm": ("clip_norm", POSITIVE, lambda v: dpf.PrefixSum(2, 4, v, 1.0)),
    "PrefixSum noise_multiplier": (
        "noise_multiplier",
        POSITIVE,
        lambda v: dpf.PrefixSum(2, 4, 1.0, v),
    ),
    "PrivacyPlan clip_norm": ("clip_norm", POSITIVE, lambda v: dpf.PrivacyPlan(v, 2.0, ONE_PASS)),
    "PrivacyPlan noise_multiplier": (
        "noise_multiplier",
        POSITIVE,
        lambda v: dpf.PrivacyPlan(1.0, v, ONE_PASS),
    ),
    "PrivacyPlan.calibrate epsilon": (
        "epsilon",
        POSITIVE,
        lambda v: dpf.PrivacyPlan.calibrate(
            epsilon=v, delta=1e-6, clip_norm=1.0, participation=ONE_PASS
        ),
    ),
    "PrivacyPlan.calibrate delta": (
        "delta",
        PROBABILITY,
        lambda v: dpf.PrivacyPlan.calibrate(
            epsilon=1.0, delta=v, clip_norm=1.0, participation=ONE_PASS
        ),
    ),
    "PrivacyPlan.epsilon": (
        "delta",
        PROBABILITY,
        lambda v: dpf.PrivacyPlan(1.0, 2.0, ONE_PASS).epsilon(v),
    ),
    "PrivacyPlan.delta": (
        "epsilon",
        NON_NEGATIVE,
        lambda v: dpf.PrivacyPlan(1.0, 2.0, ONE_PASS).delta(v),
    ),
    "PrivacyPlan.noise size": (
        "size",
        INTEGER,
        lambda v: dpf.PrivacyPlan(1.0, 2.0, ONE_PASS).noise(v),
    ),
    "Tree restart_every": ("restart_every", INTEGER, lambda v: mech.Tree(restart_every=v)),
    "Tree tree_lengths": ("tree_lengths", INTEGER, lambda v: mech.Tree(tree_lengths=[v])),
    "SinglePass steps": ("steps", INTEGER, acc.SinglePass),
    "FixedEpochs steps_per_epoch": (
        "steps_per_epoch",
        INTEGER,
        lambda v: acc.FixedEpochs(v, 2),
    ),
    "FixedEpochs epochs": ("epochs", INTEGER, lambda v: acc.FixedEpochs(2, v)),
    "MinSeparation steps": ("steps", INTEGER, lambda v: acc.MinSeparation(v, 1, 1)),
    "MinSeparation max_participations": (
        "max_participations",
        INTEGER,
        lambda v: acc.MinSeparation(8, v, 1),
    ),
    "MinSeparation min_separation": (
        "min_separation",
        INTEGER,
        lambda v: acc.MinSeparation(8, 1, v),
    ),
    "epsilon noise_multiplier": (
        "noise_multiplier",
        EXTENDED,
        lambda v: acc.epsilon(v, 3, 1e-6),
    ),
    "epsilon delta": ("delta", PROBABILITY, lambda v: acc.epsilon(2.0, 3, v)),
    "delta epsilon": ("epsilon", NON_NEGATIVE, lambda v: acc.delta(2.0, 3, v)),
    "noise_multiplier delta": ("delta", PROBABILITY, lambda v: acc.noise_multiplier(1.0, v, 3)),
    "Ledger noise_multiplier": ("noise_multiplier", POSITIVE, lambda v: acc.Ledger(ONE_PASS, v)),
    "plan_schedule epsilon": ("epsilon", POSITIVE, lambda v: acc.plan_schedule(v, 0.5, 4, 2)),
    "plan_schedule delta": ("delta", PROBABILITY, lambda v: acc.plan_schedule(1.0, v, 4, 2)),
    "plan_schedule steps_per_epoch": (
        "steps_per_epoch",
        INTEGER,
        lambda v: acc.plan_schedule(1.0, 0.5, v, 2),
    ),
    "plan_schedule momentum": (
        "momentum",
        MOMENTUM,
        lambda v: acc.plan_schedule(1.0, 0.5, 4, 2, momentum=v),
    ),
    "noise_std steps": ("steps", INTEGER, acc.noise_std),
    "FTRL learning_rate": ("learning_rate", POSITIVE, lambda v: ftrl(learning_rate=v)),
    "FTRL batch_size": ("batch_size", INTEGER, lambda v: ftrl(batch_size=v)),
    "FTRL steps": ("steps", INTEGER, lambda v: ftrl(steps=v)),
    "FTRL momentum": ("momentum", MOMENTUM, lambda v: ftrl(momentum=v)),
    "FTRL l1": ("l1", NON_NEGATIVE, lambda v: ftrl(l1=v)),
    "FTRL radius": ("radius", POSITIVE, lambda v: ftrl(radius=v)),
}

CASES = [pytest.param(*entry, id=name) for name, entry in ENTRIES.items()]


@pytest.mark.parametrize(("argument", "kind", "call"), CASES)
def test_numbers_of_every_library_are_taken_alike(
    argument: str, kind: Kind, call: Callable[[Any], Any]
) -> None:
    for value in kind.good:
        call(value)


@pytest.mark.parametrize(("argument", "kind", "call"), CASES)
def test_wrong_values_are_refused_alike(
    argument: str, kind: Kind, call: Callable[[Any], Any]
) -> None:
    form = re.compile(rf"(each of )?{argument} must be .+, got .+")
    for values, error in ((kind.wrong_type, TypeError), (kind.wrong_value, ValueError)):
        for value in values:
            with pytest.raises(error) as caught:
                call(value)
            assert form.match(str(caught.value)), f"{value!r}: {caught.value}"
            assert "\n" not in str(caught.value)
