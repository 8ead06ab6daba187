# SPDX-License-Identifier: Apache-2.0
"""The log of rounds that miss updates, which is not private."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answers_cases import RAY

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import MinSeparation
from dpftrl_fast.federated import ServerDPFTRL
from dpftrl_fast.federated.answers import commonest, last_lines

START = {"w": np.zeros(3, np.float32)}
GOOD = {"w": np.ones(3, np.float32)}


def server_of(rounds: int = 3, **options: Any) -> ServerDPFTRL:
    plan = PrivacyPlan(1.0, 4.0, MinSeparation(rounds, rounds, 1))
    return ServerDPFTRL(START, plan=plan, report_goal=5, noise_seed=1, **options)


def play(server: ServerDPFTRL, good: int, clients: int = 5) -> None:
    """A round of which `good` clients send an update, one nothing, and the others NaN."""
    now = server.begin_round([f"user {k}" for k in range(clients)])
    for k, client in enumerate(now.cohort):
        if k < good:
            now.add(client, GOOD)
        elif k != good:
            now.add(client, {"w": np.full(3, np.nan, np.float32)})
    server.end_round()


def test_a_round_below_half_is_a_warning_and_the_run_ends_with_its_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_of()
    with caplog.at_level("INFO", logger="dpftrl_fast"):
        play(server, 3)
        assert caplog.messages == []
        play(server, 2)
        assert caplog.messages == [
            "Round 2: accepted 2 of 5 updates; commonest reason (2 of 3): update must be finite, "
            "got NaN or infinity (not private)"
        ]
        play(server, 5)
    assert caplog.messages[1:] == ["Rounds 1 to 3: accepted 10 of 15 updates (not private)"]
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "INFO"]
    server.close()
    assert len(caplog.messages) == 2
    assert {entry.name for entry in caplog.records} == {"dpftrl_fast.not_private"}


def test_exactly_half_is_no_warning_and_a_round_of_nobody_is_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("INFO", logger="dpftrl_fast"):
        with server_of() as server:
            play(server, 2, clients=4)
            play(server, 0, clients=0)
        assert caplog.messages == ["Rounds 1 to 2: accepted 2 of 4 updates (not private)"]


def test_silent_clients_are_a_reason_and_a_run_of_nothing_ends_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = server_of(1)
    with caplog.at_level("INFO", logger="dpftrl_fast"):
        server.begin_round(range(4))
        server.end_round()
    assert "commonest reason (4 of 4): no answer (not private)" in caplog.messages[0]
    assert "accepted 0 of 4 updates (not private)" in caplog.messages[1]
    assert [entry.levelname for entry in caplog.records] == ["WARNING", "WARNING"]


def test_neighbours_differ_in_lines_of_that_logger_only_and_it_can_be_silenced(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """One user's update is replaced by NaN, at the boundary of the warning."""
    logger = logging.getLogger("dpftrl_fast.not_private")
    logger.disabled = True
    try:
        for name, good in (("a", 3), ("b", 2)):
            with caplog.at_level("DEBUG"), server_of(1, folder=tmp_path / name) as server:
                play(server, good)
                assert "accepted" not in repr(server)
    finally:
        logger.disabled = False
    assert caplog.records == []


def test_no_name_comes_into_the_log(caplog: pytest.LogCaptureFixture) -> None:
    server = server_of()
    now = server.begin_round(["Lear", "Kent"])
    assert "not in the cohort" in str(now.add_sum(["Lear", "Edmund"], GOOD))
    assert now.add("Edmund", GOOD) and now.add("Kent", GOOD, token="Oswald")
    server.end_round()
    (line,) = caplog.messages
    assert not any(name in line for name in ("Lear", "Kent", "Edmund"))


def test_a_client_that_reports_an_error_has_a_reason() -> None:
    server = server_of(1)
    now = server.begin_round(["Lear", "Kent"])
    now.refuse("Lear", "out of battery")
    now.refuse("Lear", "another")
    assert now.metrics()["refused"] == {"Lear": "out of battery"}
    assert now.add("Lear", GOOD) is None  # it may still come
    assert now.metrics()["accepted"] == 1


def test_the_reason_is_the_end_of_the_clients_own_traceback() -> None:
    shown = last_lines(RAY)
    assert shown.endswith(
        'in train | raise RuntimeError("out of battery") | RuntimeError: out of battery'
    )
    assert "ray_actor" not in shown and "\x1b" not in shown
    cause = RAY.replace("raise ClientAppException(str(ex)) from ex", "x").replace(
        "ClientAppException", "ValueError"
    )
    assert "ValueError" in last_lines(cause)  # the client's own chain is not a wrapper
    assert last_lines("a\r\nb\x07 \u202e") == "a | b\\x07 \\u202e"
    assert last_lines("") == ""
    assert len(last_lines("x" * 10**6)) == 504


def test_reasons_that_differ_in_numbers_are_one() -> None:
    reasons = ["no answer", "node 17 at 0x7f0a failed after 2.5 s", "no answer"]
    reasons += [f"node {k} at {hex(k)} failed after {k} s" for k in (3, 4)]
    assert commonest(reasons) == (reasons[1], 3)
    assert commonest([]) is None
