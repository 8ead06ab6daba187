# SPDX-License-Identifier: Apache-2.0
"""Metrics and log of a Flower run, marked where they are not private."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from dpftrl_fast.accounting.curve.rounding import short_up, text_up
from dpftrl_fast.federated.answers import last_lines
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_log = logging.getLogger("flwr")

NOT_PRIVATE = logging.getLogger("flwr.not_private")
"""Logger of the lines that follow from private data without noise."""


def marked(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with " (not private)" added to their names."""
    return {f"{name} (not private)": value for name, value in metrics.items()}


@contextmanager
def marked_log(module: str, *, quiet: bool = False) -> Iterator[None]:
    """Move the lines of a module of Flower to the log that is not private, or drop them."""

    def moved(record: logging.LogRecord) -> bool:
        if record.module != module:
            return True
        if not quiet:
            NOT_PRIVATE.log(record.levelno, "%s (not private)", record.getMessage())
        return False

    _log.addFilter(moved)
    try:
        yield
    finally:
        _log.removeFilter(moved)


def log_round(round_: Round, report_goal: int, turned_away: int) -> None:
    """Log the public facts of a round that begins: all of them depend on ids only."""
    asked = len(round_.cohort)
    _log.log(
        logging.INFO if asked else logging.WARNING,
        "Round %d: %d users asked, %d turned away, report goal %d",
        *(round_.number, asked, turned_away, report_goal),
    )


def log_refused(number: int, node: int, reason: str) -> None:
    """Log why a node's update is not in the sum: private, for `report_metrics` only.

    The log names no user: `DPFTRLStrategy.refused` does.
    """
    NOT_PRIVATE.info(
        "Round %d: update of node %d refused: %s (not private)", number, node, last_lines(reason)
    )


def round_metrics(
    server: ServerDPFTRL, round_: Round, delta: float, turned_away: int, refused: int | None
) -> dict[str, Any]:
    """Return the metrics of a round: public ones, and counts of replies, marked.

    Public are figures of ids and of the plan. Whether a reply came, and was good, can depend on a
    user's data: without `refused`, the number of refused updates, there is no count of replies. No
    epsilon is stated for a copy opened with ``allow_fork``.
    """
    found = round_.metrics()
    epsilons = {} if server.forked else {"epsilon_spent": server.epsilon(delta)}
    if not server.forked and (other := server.replace_one(delta)) is not None:
        epsilons["epsilon_replace_one"] = other
    counts = {} if refused is None else {
        "accepted": found["accepted"], "refused": refused, "missing": found["missing"]
    }  # fmt: skip
    return {
        "round": round_.number,
        **epsilons,
        "delta": delta,
        "report_goal": server.report_goal,
        "asked": len(round_.cohort),
        "turned_away": turned_away,
        **marked(counts),
    }


def reported(strategy: Strategy, contents: list[RecordDict]) -> dict[str, Any]:
    """Return the clients' training metrics, aggregated by the strategy, and marked.

    Nothing, and a warning in the log, if that fails: the round has ended, and the run continues.
    """
    if not contents or not isinstance(strategy, FedAvg):
        return {}
    try:
        return marked(strategy.train_metrics_aggr_fn(contents, strategy.weighted_by_key))
    except Exception as error:
        NOT_PRIVATE.warning("metrics of clients cannot be aggregated: %r (not private)", error)
        return {}


def evaluated(strategy: Strategy, number: int, replies: Iterable[Message]) -> MetricRecord | None:
    """Return the strategy's aggregate of evaluations, marked.

    None, and a warning in the log, if that fails: no client's evaluation ends a run.
    """
    try:
        with marked_log("fedavg"):  # the lines count replies, and hold the errors of clients
            found = strategy.aggregate_evaluate(number, replies)
    except Exception as error:
        NOT_PRIVATE.warning("evaluations of clients cannot be aggregated: %r (not private)", error)
        return None
    return None if found is None else MetricRecord(marked(found))


def log_promise(
    plan: PrivacyPlan, delta: float, server: ServerDPFTRL | None, *, by_node: bool
) -> None:
    """Log the guarantee of the plan and of an open run, and its limits."""
    if server is not None and server.forked:
        _log.warning("\tno epsilon can be stated: the folder is a copy, opened with allow_fork")
        return
    for line in plan.describe(delta).splitlines():
        _log.info("\t%s", line)
    if server is not None and (epsilon := server.epsilon(delta)) > plan.epsilon(delta):
        other = server.replace_one(delta)
        _log.warning(
            "\tepsilon %s at delta %s of the whole run (replace-one: %s): the plan's, above, and "
            "spare recoveries or estimates of the clip norm",
            *(text_up(epsilon), short_up(delta), "none" if other is None else text_up(other)),
        )
    if by_node:
        _log.warning(
            "\tEvery node counts as one user: the guarantee is for nodes, and not for a person "
            "who has several. client_id names the user of each node."
        )
    if server is not None and server.reproducible:
        _log.warning("\tnoise_seed was given: reproducible, not private")


def log_evaluation(strategy: Strategy, *, report_metrics: bool) -> None:
    """Log that the federated evaluation that a strategy asks for is off, with the remedy."""
    if report_metrics or getattr(strategy, "fraction_evaluate", 1.0) == 0.0:
        return
    remedy = (
        "report_metrics=True turns it on, with metrics marked as not private"
        if isinstance(strategy, FedAvg)
        else "only that of a FedAvg can be turned on (report_metrics=True)"
    )
    _log.warning(
        "\tEvaluation by clients is off, since its metrics are not private: %s; evaluate_fn on "
        "public data works as usual, and fraction_evaluate=0.0 removes this line",
        remedy,
    )


def renumbered(result: Result, done: int, arrays: ArrayRecord) -> Result:
    """Return a result with the current model, and rounds numbered after the `done` earlier ones.

    Flower has no model in the result of no rounds.
    """

    def later(metrics: dict[int, MetricRecord]) -> dict[int, MetricRecord]:
        return {number + done: record for number, record in metrics.items()}

    result.arrays = arrays
    result.train_metrics_clientapp = later(result.train_metrics_clientapp)
    result.evaluate_metrics_clientapp = later(result.evaluate_metrics_clientapp)
    result.evaluate_metrics_serverapp = later(result.evaluate_metrics_serverapp)
    return result
