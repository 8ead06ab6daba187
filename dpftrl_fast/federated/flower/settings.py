# SPDX-License-Identifier: Apache-2.0
"""`StrategySettings`: the checked arguments of a `DPFTRLStrategy`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import FedAvg, Strategy

from dpftrl_fast._validate import choice, flag, optional, positive, positive_integer
from dpftrl_fast.federated.flower.clients import AskClients, ClientIdSource, NodeUsers
from dpftrl_fast.federated.flower.records import Arrays
from dpftrl_fast.federated.flower.wrapped import StrategyUpdate, aggregates_as, check_wrapped
from dpftrl_fast.federated.rounds import PrivateRounds
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.federated.sums.layout import ModelLayout
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_STEP = {"learning_rate", "momentum", "nesterov", "optimizer", "betas", "eps"}
_OPTIONS = {
    name
    for options in (ServerDPFTRL, PrivateRounds)
    for name in inspect.signature(options).parameters
} - {"parameters", "plan", "report_goal", "folder", "identity", "state", "options"}


def _came(strategy: object) -> str:
    """Return the kind of an object that is no Strategy, and the remedy for one of the older API."""
    name = type(strategy).__name__
    if not hasattr(strategy, "configure_fit"):
        return name
    return (
        f"{name} of the older API (flwr.server.strategy): take one of flwr.serverapp.strategy, "
        "which has configure_train in place of configure_fit"
    )


@dataclass(frozen=True)
class StrategySettings:
    """Arguments of `DPFTRLStrategy`, as described there, and checked."""

    strategy: Strategy
    plan: PrivacyPlan
    report_goal: int
    delta: float
    aggregate: str | None
    client_id: ClientIdSource | None
    cohort_size: int | None
    max_wait: float
    report_metrics: bool
    folder: str | Path | None
    options: dict[str, Any] = field(repr=False)  # the key may be among them

    def __post_init__(self) -> None:
        if not isinstance(self.strategy, Strategy):
            raise TypeError(f"strategy must be a Flower Strategy, got {_came(self.strategy)}")
        positive_integer("report_goal", self.report_goal)
        if not isinstance(self.plan, PrivacyPlan):
            raise TypeError(f"plan must be a PrivacyPlan, got {type(self.plan).__name__}")
        self.plan.epsilon(self.delta)  # refuses a delta that no epsilon is stated for
        self._check_aggregate()
        if unknown := sorted(set(self.options) - _OPTIONS):
            raise TypeError(f"options must be those of ServerDPFTRL, got {', '.join(unknown)}")
        if self.client_id is None and self.folder is not None:
            raise ValueError(
                "client_id must be given with a folder, got None: 'node' is right where node ids "
                "stay the same from run to run, as those of a simulation do not"
            )
        NodeUsers("node" if self.client_id is None else self.client_id)
        optional(positive_integer, "cohort_size", self.cohort_size)
        positive("max_wait", self.max_wait)
        if flag("report_metrics", self.report_metrics) and not isinstance(self.strategy, FedAvg):
            raise ValueError(
                "report_metrics must be False for a strategy that is no FedAvg, got True: the "
                "aggregation of its metrics is not known"
            )

    def _check_aggregate(self) -> None:
        name = type(self.strategy).__name__
        if self.aggregate is None and aggregates_as(self.strategy) is not FedAvg:
            raise ValueError(
                f"aggregate must be 'strategy' to use the step of {name}, or 'server' otherwise, "
                "got None"
            )
        optional(choice, "aggregate", self.aggregate, ("server", "strategy"))
        if self.by_strategy:
            check_wrapped(self.strategy, resumes=self.folder is not None)
            if lost := sorted(_STEP.intersection(self.options)):
                raise ValueError(f"{name} makes the step, got {', '.join(lost)} for it too")

    @property
    def by_strategy(self) -> bool:
        """True if the wrapped strategy makes the next model."""
        return self.aggregate == "strategy"

    @property
    def by_node(self) -> bool:
        """True if every node is one user."""
        return self.client_id is None or self.client_id == "node"

    @property
    def _users_by(self) -> str:
        """The source of users, which stays the same when a run is resumed."""
        if self.by_node:
            return "node"
        return "asked" if isinstance(self.client_id, AskClients) else "told"

    def server(self, parameters: Arrays) -> ServerDPFTRL:
        """Return the server for a model, new or resumed from the folder."""
        options = dict(self.options)
        if self.by_strategy:
            layout = ModelLayout(parameters)
            options["optimizer"] = lambda theta: StrategyUpdate(self.strategy, layout, theta)
        return ServerDPFTRL(
            parameters,
            plan=self.plan,
            report_goal=self.report_goal,
            folder=self.folder,
            identity={"users": self._users_by},
            **options,
        )
