# SPDX-License-Identifier: Apache-2.0
"""A run over SecAgg+ in a folder, by processes that are killed; usage: secagg_run.py KILLS.

First a run without kills, then one whose process is killed KILLS times (SIGKILL), each time at
another event: before or after a node answers in any of the stages, around the sum's arrival, the
writing ahead, the step, the writing of a file. Nodes drop out at every stage, and in one round too
many. Both models must be the same bits, and so must that of the open path with the same users.
"""

from __future__ import annotations

import logging
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from bombs import bomb, killed_by
from flower_cases import arrays, model, record, step_of
from flwr.app import Message
from secagg_cases import STAGES, SecureGrid, secure

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import Round, ServerDPFTRL
from dpftrl_fast.federated.optimizers import FTRLUpdate
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.run import journal, journal_files

ROUNDS, CLIENTS, FEW = 8, 4, 5  # in round FEW too many nodes drop out
PLAN = PrivacyPlan(
    0.3, 8.0, accounting.MinSeparation(ROUNDS, ROUNDS, 1), Tree(restart_every=5, complete=True)
)


def fate(stage: str, user: int, reply: Message) -> Message | None:
    number = int(reply.metadata.group_id)
    gone = stage == STAGES[number % 4] and (user == number % CLIENTS or number == FEW)
    return None if gone else reply


def summed(number: int) -> list[int]:
    """The users whose updates are in the sum of a round."""
    if number == FEW:
        return []
    gone = None if STAGES[number % 4] == "unmask" else number % CLIENTS
    return [user for user in range(CLIENTS) if user != gone]


def run(folder: Path) -> tuple[dict[str, Any], float]:
    # Other node ids in every process, as in a simulation.
    grid = SecureGrid(CLIENTS, fate=fate, first=random.SystemRandom().randrange(1, 2**62))
    with secure(
        plan=PLAN,
        report_goal=CLIENTS,
        folder=folder,
        checkpoint_every=3,
        momentum=0.9,
        reconstruction_threshold=0.6,
    ) as private:
        result = private.start(grid, record(model()))
        assert private.rounds_done == ROUNDS
        return arrays(result.arrays), private.epsilon_spent()


def openly() -> dict[str, Any]:
    trained = {name: array for name, array in model().items() if array.dtype.kind == "f"}
    server = ServerDPFTRL(trained, plan=PLAN, report_goal=CLIENTS, noise_seed=3, momentum=0.9)
    for number in range(1, ROUNDS + 1):
        now, sent = server.begin_round(range(CLIENTS)), {**model(), **server.parameters}
        for user in summed(number):
            after = step_of(user, number, sent)
            assert now.add(user, {name: after[name] - sent[name] for name in trained}) is None
        server.end_round()
    return {**model(), **server.parameters}


PLACES = (
    (SecureGrid, "answer"),
    (Round, "add_sum"),
    (journal.RunJournal, "write_ahead"),
    (journal_files, "write_sealed"),
    (FTRLUpdate, "step"),
)


def killed(folder: Path, event: int) -> bool:
    return killed_by(lambda: bomb(event, PLACES), lambda: run(folder)) == signal.SIGKILL


def main(kills: int) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    events = random.Random(3)
    with tempfile.TemporaryDirectory() as folder:
        # First, so that what is compiled or loaded late is in all processes that are forked.
        expected, epsilon = run(Path(folder) / "whole")
        torn = Path(folder) / "killed"
        for _ in range(kills):
            # A round has about 40 events: some processes end none, some one.
            assert killed(torn, events.randrange(1, 50)), "expected a killed process"
        found, again = run(torn)
        assert again == epsilon
        for other in (found, openly()):
            assert list(other) == list(expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(other[name], array, strict=True)
    print("the same bits")


if __name__ == "__main__":
    main(int(sys.argv[1]))
