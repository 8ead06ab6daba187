# SPDX-License-Identifier: Apache-2.0
"""What a Flower run says of itself: metrics of rounds, marked where they are not private."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from dpftrl_fast.accounting.curve.rounding import text_up
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_log = logging.getLogger("flwr")


def marked(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with names that say that they are not private."""
    return {f"{name} (not private)": value for name, value in metrics.items()}


def round_metrics(
    server: ServerDPFTRL, round_: Round, delta: float, turned_away: int, refused: int
) -> dict[str, Any]:
    """Return the metrics of a round: public ones, and those of replies, marked.

    Of a copy that was taken with ``allow_fork`` no epsilon is stated.
    """
    found = round_.metrics()
    counts = {"accepted": found["accepted"], "refused": refused, "missing": found["missing"]}
    spent: dict[str, float] = {}
    if not server.forked:
        spent["epsilon_spent"] = server.epsilon_spent(delta)
        if (other := server.replace_one(delta)) is not None:
            spent["epsilon_spent_replace_one"] = other
    return {
        "round": round_.number,
        **spent,
        "delta": delta,
        "report_goal": server.report_goal,
        "turned_away": turned_away,
        **marked(counts),
    }


def reported(strategy: Strategy, contents: list[RecordDict]) -> dict[str, Any]:
    """Return what clients say of their training, put together as the strategy does, and marked.

    Nothing, and a warning in the log, if that cannot be done: the round is over then, and the run
    must go on.
    """
    if not contents or not isinstance(strategy, FedAvg):
        return {}
    try:
        return marked(strategy.train_metrics_aggr_fn(contents, strategy.weighted_by_key))
    except Exception as error:
        _log.warning("metrics of clients cannot be aggregated: %r", error)
        return {}


def evaluated(strategy: Strategy, number: int, replies: Iterable[Message]) -> MetricRecord | None:
    """Return what the strategy makes of evaluations, marked.

    None, and a warning in the log, if that cannot be done: no client's evaluation ends a run.
    """
    try:
        found = strategy.aggregate_evaluate(number, replies)
    except Exception as error:
        _log.warning("evaluations of clients cannot be aggregated: %r", error)
        return None
    return None if found is None else MetricRecord(marked(found))


def log_promise(
    plan: PrivacyPlan, delta: float, server: ServerDPFTRL | None, *, by_node: bool
) -> None:
    """Log what is promised: the plan's, or of an open run the run's, and what limits it."""
    if server is not None and server.forked:
        _log.warning("\tno epsilon can be stated: the folder is a copy, taken with allow_fork")
        return
    for line in plan.describe(delta).splitlines():
        _log.info("\t%s", line)
    if server is not None and (epsilon := server.epsilon(delta)) > plan.epsilon(delta):
        other = server.replace_one(delta)
        _log.warning(
            "\tepsilon %s at delta %g of the whole run (replace-one: %s): the plan's, above, and "
            "spare restarts or estimates of the clip norm",
            *(text_up(epsilon), delta, "none" if other is None else text_up(other)),
        )
    if by_node:
        _log.warning(
            "\tEvery node counts as one user: the guarantee is for nodes, and not for a person "
            "who has several. client_id tells them apart."
        )
    if server is not None and server.reproducible:
        _log.warning("\tnoise_seed was given: reproducible, not private")


def renumbered(result: Result, done: int, arrays: ArrayRecord) -> Result:
    """Return a result with rounds numbered over the whole run, and the model.

    Parameters
    ----------
    result : Result
        Of rounds numbered from 1.
    done : int
        Rounds before them.
    arrays : ArrayRecord
        The model now: Flower has none in the result of no rounds.
    """

    def later(metrics: dict[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {number + done: record for number, record in metrics.items()}

    result.arrays = arrays
    result.train_metrics_clientapp = later(result.train_metrics_clientapp)
    result.evaluate_metrics_clientapp = later(result.evaluate_metrics_clientapp)
    result.evaluate_metrics_serverapp = later(result.evaluate_metrics_serverapp)
    return result
