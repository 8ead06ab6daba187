# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLStrategy`: user-level DP-FTRL for Flower (`flwr`), around a strategy of one's own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpftrl_fast._validate import integer
from dpftrl_fast.federated.flower.clients import (
    ClientIdSource,
    NodeUsers,
    OfferedNodes,
    distinct_users,
)
from dpftrl_fast.federated.flower.records import (
    CLIP_NORM,
    TOKEN,
    addressed,
    array_record,
    arrays_of,
    trained,
    untrained,
)
from dpftrl_fast.federated.flower.replies import take_reply
from dpftrl_fast.federated.flower.report import (
    evaluated,
    log_promise,
    renumbered,
    reported,
    round_metrics,
)
from dpftrl_fast.federated.flower.settings import StrategySettings
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.ids import client_id as identity
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

_log = logging.getLogger("flwr")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class DPFTRLStrategy(Strategy):
    """Flower strategy that trains with DP-FTRL: tree noise, one clipped update a user and round.

    The strategy inside chooses nodes and writes their messages (`configure_train`). This one finds
    out whose nodes they are, before anybody trains; turns away users whom the plan does not allow
    in this round; clips and adds up the updates that come back, writes ahead, adds the noise of the
    tree and steps. Who replies with an error, something malformed, late or not at all leaves an
    empty slot; of two replies the first counts; the divisor stays the report goal.

    Parameters
    ----------
    strategy : Strategy
        Flower's or one's own.
    plan : PrivacyPlan
        One step is one round, one record one user; the clip norm is that of a whole update. It
        fixes the number of rounds.
    report_goal : int
        What sums are divided by, whoever answers.
    delta : float
        At which `epsilon_spent` is reported.
    aggregate : {"server", "strategy"}, optional
        Who makes the next model. ``"server"``: `ServerDPFTRL`, with the options below; the wrapped
        `aggregate_train` is not used. ``"strategy"``: the wrapped `aggregate_train`, which gets one
        reply a round, the model plus the noised mean update, so that FedAvgM, FedAdam, FedYogi,
        FedAdagrad and one's own work as post-processing. Default ``"server"`` around FedAvg; else
        it must be said.
    client_id : "node", AskClients or callable, optional
        The user of a node. A callable takes a node id and returns an int or str, or None for a node
        that has no user. ``"node"`` takes every node for one user, which protects nodes, **not
        persons: somebody with two devices is two of them**; and a simulation gives its nodes new
        ids in every run, so that a resumed run would take everybody for new. So it is the default
        without a folder only.
    cohort_size : int, optional
        Offer the wrapped strategy only so many nodes, chosen at random from those whose users may
        take part now. It should take all it is offered (``fraction_train=1.0``). None lets it
        choose from all nodes, and those that may not take part are then missing from the round.
    max_wait : float, default 3600
        Seconds that the wrapped strategy may wait for more nodes than it can be offered (as FedAvg
        does below its minima) before `start` ends with TimeoutError.
    report_metrics : bool, default False
        Run the wrapped strategy's federated evaluation, and aggregate what clients say of their
        training. Both are computed from private data without noise: keys end in "(not private)".
    folder : str or Path, optional
        Where the run is kept, **a secret** (docs/resume.md): a server that was killed goes on
        from it, bit for bit. None: in memory only.
    **options
        Of :class:`dpftrl_fast.federated.ServerDPFTRL`: `learning_rate`, `momentum`, `optimizer`,
        `clipping`, `checkpoint_every`, `spare_restarts`, `noise_seed` and the others.

    Attributes
    ----------
    refused : dict of int to dict
        Round to {client: why an update of it is not in the sum}. **Not private.**
    turned_away : dict of int to dict
        Round to {node or client: why it was not asked}.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    Arrays of integers and bools (counters in a state) are not trained and stay as they began; they
    are in no folder, and a run that goes on takes those it is given. BatchNorm's running statistics
    are floats: they are part of the update, and better avoided.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(0.3, 4.0, accounting.MinSeparation(100, 4, 20))
    >>> strategy = DPFTRLStrategy(
    ...     FedAvg(fraction_train=1.0, fraction_evaluate=0.0),
    ...     plan=plan, report_goal=50, delta=1e-6, cohort_size=60, client_id=AskClients(),
    ... )
    >>> strategy
    DPFTRLStrategy(FedAvg, ServerDPFTRL's step)

    In a server app, where there is a grid::

        with strategy:
            result = strategy.start(grid, initial_arrays)
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        plan: PrivacyPlan,
        report_goal: int,
        delta: float,
        aggregate: Literal["server", "strategy"] | None = None,
        client_id: ClientIdSource | None = None,
        cohort_size: int | None = None,
        max_wait: float = 3600.0,
        report_metrics: bool = False,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self._settings = StrategySettings(
            strategy=strategy,
            plan=plan,
            report_goal=report_goal,
            delta=delta,
            aggregate=aggregate,
            client_id=client_id,
            cohort_size=cohort_size,
            max_wait=max_wait,
            report_metrics=report_metrics,
            folder=folder,
            options=options,
        )
        self.strategy, self.plan, self.delta = strategy, plan, float(delta)
        self._users = NodeUsers("node" if client_id is None else client_id)
        self._server: ServerDPFTRL | None = None
        self._asked: dict[int, Client] = {}
        self._sent: list[Metadata] = []
        self._closed = False
        self._before = 0  # rounds done before `start`
        self.refused: dict[int, dict[Client, str]] = {}
        self.turned_away: dict[int, dict[Client, str]] = {}

    # ---- The run ----

    def open(self, initial_arrays: ArrayRecord) -> None:
        """Begin the run, or go on with that of the folder; `start` does so by itself.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The model before the first round. A run that goes on has a model of its own; of the
            arrays that are trained it takes names, shapes and dtypes only.

        Raises
        ------
        TypeError, ValueError, RuntimeError, OSError
            As `ServerDPFTRL`; ValueError also if there are arrays of other than numbers or bools;
            RuntimeError also if it is open.
        """
        if self._server is not None:
            raise RuntimeError("expected one call of open, got another: the run is open")
        model = arrays_of(initial_arrays)
        parameters = trained(model)
        self._untrained = untrained(model)
        self._names = list(model)
        self._server = self._settings.server(parameters)

    def close(self) -> None:
        """Let the folder go: the run can be read, and goes on with another object."""
        self._closed = True
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> DPFTRLStrategy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ready(self, arrays: ArrayRecord) -> ServerDPFTRL:
        """Return the server of the run, which is opened if it is not open."""
        if self._closed:
            raise RuntimeError("expected an open run, got a closed one: make a new strategy for it")
        if self._server is None:
            self.open(arrays)
        return self.server

    @property
    def server(self) -> ServerDPFTRL:
        """What keeps the run; RuntimeError before `open` or `start`."""
        if self._server is None:
            raise RuntimeError("expected a run that is open, got one before `open` or `start`")
        return self._server

    @property
    def rounds_done(self) -> int:
        """Rounds that were ended, of all processes of the run."""
        return self.server.rounds_done

    @property
    def arrays(self) -> ArrayRecord:
        """The model: what may leave."""
        model = {**self._untrained, **self.server.parameters}
        return array_record({name: model[name] for name in self._names})

    def epsilon_spent(self, delta: float | None = None) -> float:
        """Return epsilon of the run, declared and the same in every round, at `delta` or ours."""
        return self.server.epsilon_spent(self.delta if delta is None else delta)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run all rounds, or those that a run from a folder has left.

        Parameters
        ----------
        grid, initial_arrays, timeout, train_config, evaluate_config, evaluate_fn
            As for Flower's strategies, and `open`. Rounds are numbered over the whole run.
        num_rounds : int, optional
            After which round to stop, counted from the first of the run; default the plan's steps.
            Epsilon is that of the plan all the same.

        Returns
        -------
        Result
            With the rounds of this call.

        Raises
        ------
        TypeError, ValueError
            If `num_rounds` is above the plan's steps or below the rounds done; or as `open`.
        RuntimeError
            If the run was closed, or a step of it was interrupted half-way.
        """
        self._ready(initial_arrays)
        done, steps = self.rounds_done, self.plan.steps
        last = steps if num_rounds is None else integer("num_rounds", num_rounds, done, steps)
        if done:
            _log.info("Going on after round %d of %d", done, last)
        self._before = done
        try:
            result = super().start(
                grid,
                self.arrays,
                last - done,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else lambda n, arrays: evaluate_fn(n + done, arrays),
            )
        finally:
            self._before = 0
        return renumbered(result, done, self.arrays)

    # ---- A round ----

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose nodes; begin a round with those whose users may train.

        `arrays` opens a run that is not open, and is not used else: the model is the run's own.

        Raises
        ------
        ValueError
            If it is not the next round, or the last declared one is done.
        TimeoutError
            If there are not enough nodes (see `max_wait`).
        RuntimeError
            If the run was closed, or a step of it was interrupted half-way.
        """
        server, number = self._ready(arrays), server_round + self._before
        if (expected := server.rounds_done + 1) != number or number > self.plan.steps:
            raise ValueError(f"expected round {expected}, got {number} of {self.plan.steps}")
        if server.round is not None:  # its replies never came: nothing of it has left
            server.abandon_round()
        offered = grid
        if (size := self._settings.cohort_size) is not None:
            wait = self._settings.max_wait
            offered = cast(Grid, OfferedNodes(grid, size, self._users, server.eligible, wait))
        messages = list(self.strategy.configure_train(number, self.arrays, config, offered))
        asked, away = distinct_users([m.metadata.dst_node_id for m in messages], self._users, grid)
        round_ = server.begin_round(list(asked.values()))
        self.turned_away[number] = {**away, **round_.turned_away}
        cohort = {identity(client) for client in round_.cohort}
        self._asked = {node: user for node, user in asked.items() if identity(user) in cohort}
        own = ConfigRecord({TOKEN: round_.token})
        if self._settings.options.get("clipping") is None:
            own[CLIP_NORM] = float(server.clip_norm)
        chosen = list(addressed(messages, self._asked, own))
        self._sent = [message.metadata for message in chosen]  # ids come when they are sent
        return chosen

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the updates to the round, one by one; end it; return the next model.

        Metrics are ``epsilon_spent``, ``delta``, ``round``, ``report_goal``, ``turned_away``, and
        the numbers of updates accepted, refused and missing, marked as not private.

        Raises
        ------
        RuntimeError
            If no round was configured.
        ValueError
            If another one was.
        """
        round_ = None if self._server is None else self._server.round
        if round_ is None:
            raise RuntimeError("expected a round that was configured, got none")
        if round_.number != server_round + self._before:
            raise ValueError(f"expected round {round_.number}, got {server_round + self._before}")
        sent, contents = self.server.parameters, list[RecordDict]()
        refused = self.refused[round_.number] = {}
        ids = {data.message_id: data.dst_node_id for data in self._sent if data.message_id}
        for reply in replies:
            user, reason = take_reply(reply, round_, self._asked, ids, sent, self._untrained)
            if reason is not None:
                refused[user] = reason
                _log.info("Round %d: update of %r refused: %s", round_.number, user, reason)
            elif self._settings.report_metrics:
                contents.append(RecordDict(dict(reply.content.metric_records)))  # no arrays
        refused.update(round_.metrics()["refused"])  # what made a slot empty stays
        self.server.end_round()
        self._asked, self._sent = {}, []
        away = len(self.turned_away.get(round_.number, ()))
        metrics = round_metrics(self.server, round_, self.delta, away, len(refused))
        return self.arrays, MetricRecord({**metrics, **reported(self.strategy, contents)})

    # ---- Evaluation, and the rest ----

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the wrapped strategy choose who evaluates; nobody unless `report_metrics`."""
        if not self._settings.report_metrics:
            return []
        number = server_round + self._before
        return self.strategy.configure_evaluate(number, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the wrapped strategy's metrics, their names marked as not private."""
        if not self._settings.report_metrics:
            return None
        return evaluated(self.strategy, server_round + self._before, replies)

    def summary(self) -> None:
        """Log the plan's promise, and then the wrapped strategy's summary."""
        log_promise(self.plan, self.delta, self._server, by_node=self._settings.by_node)
        self.strategy.summary()

    def __repr__(self) -> str:
        step = "its step" if self._settings.by_strategy else "ServerDPFTRL's step"
        return f"DPFTRLStrategy({type(self.strategy).__name__}, {step})"
