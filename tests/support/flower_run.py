# SPDX-License-Identifier: Apache-2.0
"""A Flower run in a folder, by processes that are killed; usage: flower_run.py KILLS.

First a run without kills, then one whose process is killed KILLS times (SIGKILL), in turns at an
event (before a client answers, around the writing ahead, around the strategy's step, around the
writing of a file) and after a random time. Both models must be the same bits. With FedAdam inside,
and without.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bombs import bomb, killed_by
from flower_cases import LocalGrid, arrays, client_app, model, record
from flwr.serverapp.strategy import FedAdam, FedAvg

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated.flower import AskClients, DPFTRLStrategy, dpftrl_mod
from dpftrl_fast.federated.optimizers import FTRLUpdate
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run import journal, journal_files

ROUNDS, CLIENTS = 24, 4


def strategy(folder: Path, inside: bool) -> DPFTRLStrategy:
    named: dict[str, Any] = {"fraction_evaluate": 0.0, "min_train_nodes": CLIENTS}
    return DPFTRLStrategy(
        FedAdam(**named, eta=0.05) if inside else FedAvg(**named),
        plan=PrivacyPlan(
            0.3,
            8.0,
            accounting.MinSeparation(ROUNDS, ROUNDS, 1),
            mechanism=Tree(restart_every=10, complete=True),
        ),
        report_goal=CLIENTS,
        delta=1e-5,
        aggregate="strategy" if inside else "server",
        client_id=AskClients(),
        folder=folder,
        checkpoint_every=3,
        noise_seed=11,
        **({} if inside else {"momentum": 0.9}),
    )


def run(folder: Path, inside: bool) -> tuple[dict[str, Any], float]:
    rng = random.SystemRandom()
    # Other node ids in every process, another order of answers in every round.
    grid = LocalGrid(
        client_app(mods=[dpftrl_mod]),
        CLIENTS,
        first=rng.randrange(1, 2**63),
        order=lambda replies: rng.sample(replies, len(replies)),
    )
    with strategy(folder, inside) as private:
        result = private.start(grid, record(model()))
        assert private.rounds_done == ROUNDS
        return arrays(result.arrays), private.epsilon_spent()


PLACES = (
    (LocalGrid, "answer"),
    (journal.RunJournal, "write_ahead"),
    (journal_files, "write_sealed"),
    (FedAdam, "aggregate_train"),
    (FTRLUpdate, "step"),
)


def killed(folder: Path, inside: bool, event: int | None, seconds: float) -> bool:
    """True if a process that runs was killed, at an event or after seconds of processor time."""

    def arm() -> None:
        if event is None:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # nothing handles its signal
        else:
            bomb(event, PLACES)

    return killed_by(arm, lambda: run(folder, inside)) in (signal.SIGKILL, signal.SIGPROF)


def main(kills: int) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    events = random.Random(3)
    for inside in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            # First, so that what is compiled or loaded late is in all processes that are forked.
            run(Path(folder) / "first", inside)
            begin = time.process_time()
            expected, epsilon = run(Path(folder) / "whole", inside)
            whole = time.process_time() - begin
            torn = Path(folder) / "killed"
            for k in range(kills):
                event = None if k % 2 else events.randrange(1, 40)
                # Short enough that rounds are left for the next process.
                seconds = random.SystemRandom().uniform(1e-3, max(whole / (2 * kills), 2e-3))
                assert killed(torn, inside, event, seconds), "expected a killed process"
            found, again = run(torn, inside)
            assert again == epsilon
            assert list(found) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, strict=True)
    print("the same bits")


if __name__ == "__main__":
    main(int(sys.argv[1]))
