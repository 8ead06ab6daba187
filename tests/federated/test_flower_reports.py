# SPDX-License-Identifier: Apache-2.0
"""Runs that train nothing, or not all, say so in the log; names of users stay out of it."""

from __future__ import annotations

from typing import Any

import pytest
from answers_cases import RAY
from flower_cases import (
    CLIENTS,
    ROUNDS,
    LocalGrid,
    Wild,
    client_app,
    every_round,
    fedavg,
    model,
    private,
    record,
)
from flwr.app import Error, Message
from flwr.serverapp import strategy as flower

from dpftrl_fast.federated.flower.report import log_evaluation

NAME = "Cordelia of Britain"


class Plain(flower.Strategy):
    """A strategy that is no FedAvg."""

    def configure_train(self, *args: Any) -> Any:
        return []

    def aggregate_train(self, *args: Any) -> Any:
        return None, None

    def configure_evaluate(self, *args: Any) -> Any:
        return []

    def aggregate_evaluate(self, *args: Any) -> Any:
        return None

    def summary(self) -> None:
        pass


def failing(reason: str, users: range) -> LocalGrid:
    """A grid whose nodes of these users report an error when they train."""

    def fail(replies: list[Message]) -> list[Message]:
        for k, reply in enumerate(replies):
            if "arrays" in reply.content and reply.metadata.src_node_id - grid.first in users:
                sent = [m for m in grid.sent if m.metadata.message_type == "train"]
                node = reply.metadata.src_node_id
                asked = next(m for m in sent if m.metadata.dst_node_id == node)
                replies[k] = Message(Error(2, reason), reply_to=asked)
        return replies

    grid = LocalGrid(client_app(), CLIENTS, order=fail)
    return grid


def test_a_run_of_pure_noise_says_why(caplog: pytest.LogCaptureFixture) -> None:
    strategy = private()
    with caplog.at_level("INFO", logger="flwr"):
        strategy.start(failing(RAY, range(CLIENTS)), record(model()))
    warnings = [e.getMessage() for e in caplog.records if e.levelname == "WARNING"]
    for n in range(1, ROUNDS + 1):
        (line,) = [w for w in warnings if w.startswith(f"Round {n}: accepted 0 of {CLIENTS}")]
        assert "commonest reason (5 of 5)" in line
        assert line.endswith("RuntimeError: out of battery (not private)")
    assert f"Rounds 1 to {ROUNDS}: accepted 0 of 20 updates (not private)" in warnings
    # The whole reason is kept, not the first characters of a wrapper.
    assert all(RAY in why for why in strategy.refused[1].values())


def test_a_minority_that_fails_is_in_the_last_line_alone(caplog: pytest.LogCaptureFixture) -> None:
    strategy = private(plan=every_round(2))
    with caplog.at_level("INFO", logger="flwr"):
        strategy.start(failing("x", range(2)), record(model()))
    lines = [line for line in caplog.messages if "accepted" in line]
    assert lines == ["Rounds 1 to 2: accepted 6 of 10 updates (not private)"]


def test_a_run_that_ends_with_an_error_says_what_it_accepted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy, grid = private(), LocalGrid(client_app(), CLIENTS)

    def lost(replies: list[Message]) -> list[Message]:
        if replies and "arrays" in replies[0].content and strategy.rounds_done == 2:
            raise ConnectionError("the network is gone")
        return replies

    grid.order = lost
    with caplog.at_level("INFO", logger="flwr"), pytest.raises(ConnectionError):
        strategy.start(grid, record(model()))
    assert "Rounds 1 to 2: accepted 10 of 10 updates (not private)" in caplog.messages


@pytest.mark.parametrize("reporting", [False, True])
def test_no_line_of_the_log_names_a_user(reporting: bool, caplog: pytest.LogCaptureFixture) -> None:
    named: dict[str, Any] = {"report_metrics": reporting, "plan": every_round(2)}
    strategy = private(client_id=lambda node: f"{NAME} {node % 10**18}", **named)
    with caplog.at_level("DEBUG"):
        result = strategy.start(failing("broken", range(4)), record(model()))
    assert NAME not in caplog.text + str(result)
    assert set(strategy.refused[1]) == {f"{NAME} {k}" for k in range(4)}


# ---- Evaluation by clients ----


@pytest.mark.parametrize(
    ("inner", "named", "remedy"),
    [
        (flower.FedAvg(), {}, "report_metrics=True turns it on"),
        (flower.FedAvg(), {"report_metrics": True}, None),
        (fedavg(), {}, None),
        (Wild(), {"aggregate": "strategy"}, None),
    ],
    ids=["off", "on", "not asked for", "custom, not asked for"],
)
def test_evaluation_that_is_asked_for_runs_or_is_announced_as_off(
    inner: Any, named: dict[str, Any], remedy: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    grid = LocalGrid(client_app(), CLIENTS)
    strategy = private(inner, plan=every_round(2), **named)
    with caplog.at_level("INFO", logger="flwr"):
        result = strategy.start(grid, record(model()))
    lines = [line for line in caplog.messages if "Evaluation by clients is off" in line]
    assert len(lines) == (remedy is not None)
    assert remedy is None or remedy in lines[0]
    evaluated = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    asked_for = inner.fraction_evaluate > 0 and remedy is None
    assert len(evaluated) == (2 * CLIENTS if asked_for else 0)
    assert set(result.evaluate_metrics_clientapp) == ({1, 2} if asked_for else set())
    counts = [r for r in caplog.records if "aggregate_evaluate: Received" in r.getMessage()]
    assert len(counts) == (2 if asked_for else 0)
    assert all(r.getMessage().endswith("(not private)") for r in counts)
    assert all(r.name == "flwr.not_private" for r in counts)


def test_a_strategy_of_another_kind_has_another_remedy(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="flwr"):
        log_evaluation(Plain(), report_metrics=False)
    assert "only that of a FedAvg can be turned on" in caplog.text
