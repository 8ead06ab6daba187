# SPDX-License-Identifier: Apache-2.0
"""`DPFTRLStrategy`: user-level DP-FTRL for Flower (`flwr`), around another strategy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpftrl_fast._validate import flag, integer, positive
from dpftrl_fast.accounting.statement.statement import Neighbours
from dpftrl_fast.federated.flower.check import Check, CheckReport
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
    NOT_PRIVATE,
    evaluated,
    log_evaluation,
    log_promise,
    log_refused,
    log_round,
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
    """Flower strategy that trains with DP-FTRL: correlated noise, one update a user and round.

    The wrapped strategy chooses nodes and writes their messages (`configure_train`). This one looks
    up the users of the nodes, before anybody trains; turns away users that the plan does not allow
    in this round; clips and sums the updates that come back, writes the sum ahead, adds the noise
    of the plan and takes the step. A reply that is missing, late, malformed or an error leaves an
    empty slot; of two replies the first counts; the divisor stays the report goal.

    Parameters
    ----------
    strategy : Strategy
        Flower's or a custom one.
    plan : PrivacyPlan
        One step is one round, one record one user; the clip norm is that of a whole update. It
        fixes the number of rounds.
    report_goal : int
        Divisor of the sums, whoever answers.
    delta : float
        At which `epsilon_spent` is reported.
    aggregate : {"server", "strategy"}, optional
        Maker of the next model. ``"server"``: `ServerDPFTRL`, with the options below; the wrapped
        `aggregate_train` is not used. ``"strategy"``: the wrapped `aggregate_train`, which gets one
        reply a round, the model plus the noised mean update, so that FedAvgM, FedAdam, FedYogi,
        FedAdagrad and custom strategies work as post-processing. Default ``"server"`` around
        FedAvg; required around other strategies.
    client_id : "node", AskClients or callable, optional
        The user of a node. A callable takes a node id and returns an int or str, or None for a node
        without a user. ``"node"`` counts every node as one user, which protects nodes, **not
        persons: a person with two devices counts as two users**; and a simulation gives its nodes
        new ids in every run, so that a resumed run would count everybody as new. It is the default
        without a folder only.
    cohort_size : int, optional
        Offer the wrapped strategy only that many nodes, chosen at random from those whose users may
        take part now. It should take all of them (``fraction_train=1.0``). None lets it choose from
        all nodes, and those that may not take part are then missing from the round.
    max_wait : float, default 3600
        Seconds that the wrapped strategy may wait for more nodes than it can be offered (as FedAvg
        does below its minima) before `start` ends with TimeoutError.
    report_metrics : bool, default False
        Run the wrapped strategy's federated evaluation, aggregate the clients' training metrics,
        count the updates of each round that are accepted, refused and missing, and log why a
        node's update is refused. All of this follows from private data without noise, also whether
        a client answers: keys and lines end in "(not private)".
    folder : str or Path, optional
        Folder that keeps the run, **a secret** (docs/runs/resume.md): a server that was killed
        resumes from it, bit for bit. None: in memory only.
    **options
        Of :class:`dpftrl_fast.federated.ServerDPFTRL`: `learning_rate`, `momentum`, `optimizer`,
        `clipping`, `checkpoint_every`, `spare_recoveries`, `noise_seed` and the others.

    Attributes
    ----------
    refused : dict of int to dict
        Round to {client: reason why its update is not in the sum}, with the client's traceback.
        **Not private**: for the owner of the server who looks for a fault, and in no result by
        itself. The log names nodes, never users.
    turned_away : dict of int to dict
        Round to {node or client: reason why it was not asked}: depends on ids only, and is public
        if ids are.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    **Formal guarantee.** As for :class:`dpftrl_fast.federated.ServerDPFTRL`: neighbours differ in
    one user, whose updates are replaced by zero; `epsilon_spent` states the epsilon, of `plan` with
    spare recoveries and `clipping`, for the models of all rounds. The caller must ensure that
    `client_id` names one person each time it names a user, and that the folder stays secret. Not
    covered: `refused`, and metrics and lines of the log marked as not private. By default these are
    a warning for a round that accepts under half of its cohort, and the number of accepted updates
    at the end of the run; where the log is published, turn them off:
    ``logging.getLogger("flwr.not_private").disabled = True``.

    Arrays of integers and bools (counters in a state) are not trained and keep their first values;
    no folder holds them, and a resumed run takes those of its initial arrays. Running statistics of
    normalisation layers (BatchNorm's ``running_mean`` and ``running_var``, Keras's ``moving_mean``)
    are floats and would get noise: `open` and `start` refuse them before anything trains. Leave
    them out, so that each client keeps its own, or use GroupNorm.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from dpftrl_fast.federated.flower import AskClients
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.federated.flower import AskClients
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
            *(strategy, plan, report_goal, delta, aggregate, client_id),
            *(cohort_size, max_wait, report_metrics, folder, options),
        )
        self.strategy, self.plan, self.delta = strategy, plan, float(delta)
        self._users = NodeUsers("node" if client_id is None else client_id)
        self._server: ServerDPFTRL | None = None
        self._turn = threading.RLock()  # two threads that open a run would make two keys
        self._asked: dict[int, Client] = {}
        self._sent: list[Metadata] = []
        self._closed = False
        self._before = 0  # rounds done before `start`
        self.refused: dict[int, dict[Client, str]] = {}
        self.turned_away: dict[int, dict[Client, str]] = {}

    # ---- The run ----

    def open(self, initial_arrays: ArrayRecord) -> None:
        """Begin the run, or resume that of the folder; `start` does so by itself.

        Parameters
        ----------
        initial_arrays : ArrayRecord
            The model before the first round. A resumed run has its own model; of the arrays that
            are trained it takes names, shapes and dtypes only.

        Raises
        ------
        TypeError, ValueError, RuntimeError, OSError
            As `ServerDPFTRL`; ValueError also for arrays of other dtypes than numbers and bools;
            RuntimeError also if it is open.
        """
        with self._turn:
            if self._server is not None:
                raise RuntimeError("expected one call of open, got another: the run is open")
            model = arrays_of(initial_arrays)
            parameters = trained(model)
            self._untrained = untrained(model)
            self._names = list(model)
            self._server = self._settings.server(parameters)
            self._server.answers.log = NOT_PRIVATE

    def close(self) -> None:
        """Release the folder: the run can be read, and resumed with another object."""
        self._closed = True
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> DPFTRLStrategy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a DPFTRLStrategy holds un-noised sums and a secret key, or would make them, and is "
            "not copied nor pickled: make one for each run"
        )

    def _ready(self, arrays: ArrayRecord) -> ServerDPFTRL:
        """Return the server of the run, opened if necessary."""
        if self._closed:
            raise RuntimeError("expected an open run, got a closed one: make a new strategy for it")
        with self._turn:
            if self._server is None:
                self.open(arrays)
        return self.server

    @property
    def server(self) -> ServerDPFTRL:
        """The server of the run; RuntimeError before `open` or `start`."""
        if self._server is None:
            raise RuntimeError("expected a run that is open, got one before `open` or `start`")
        return self._server

    @property
    def rounds_done(self) -> int:
        """Number of rounds that have ended, over all processes of the run."""
        return self.server.rounds_done

    @property
    def arrays(self) -> ArrayRecord:
        """The current model: may be released."""
        model = {**self._untrained, **self.server.parameters}
        return array_record({name: model[name] for name in self._names})

    def epsilon_spent(
        self, delta: float | None = None, *, neighbours: Neighbours = "zero-out"
    ) -> float:
        """Return the epsilon of the declared run, the same in every round.

        Parameters
        ----------
        delta : float, optional
            Default: the strategy's.
        neighbours : {"zero-out", "replace-one"}
            One user's updates replaced by empty slots, or by another user's updates.
        """
        return self.server.epsilon(self.delta if delta is None else delta, neighbours=neighbours)

    def check(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        *,
        timeout: float = 60.0,
        train_config: ConfigRecord | None = None,
    ) -> CheckReport:
        """Try one node, at random: it names its user and trains once; nothing of it is summed.

        No round begins and no step of the plan is used. The report follows from one user's data and
        is not private. With `SecAggStrategy` the node does not train: it makes public keys.

        Parameters
        ----------
        grid : Grid
        initial_arrays : ArrayRecord, optional
            The model before the first round; not needed for a run that is open. Without it nothing
            is trained.
        timeout : float, default 60
            Seconds for each of the two answers.
        train_config : ConfigRecord, optional
            As for `start`.

        Returns
        -------
        CheckReport
            `ok`, and `findings` with a problem and its remedy each; `print` shows all of it, and
            `raise_for_findings` raises RuntimeError if there are any.
        """
        tried = Check(grid, self._users, positive("timeout", timeout))
        tried.cohort(self.strategy, self._settings.cohort_size)
        tried.user()
        server = self._server
        arrays = initial_arrays if server is None else self.arrays
        self._try(tried, arrays, ConfigRecord({} if train_config is None else dict(train_config)))
        return tried.report

    def _try(self, tried: Check, arrays: ArrayRecord | None, config: ConfigRecord) -> None:
        if arrays is None:
            return
        adaptive = self._settings.options.get("clipping") is not None
        tried.training(
            self.strategy,
            arrays,
            1 if self._server is None else self._server.rounds_done + 1,
            None if adaptive else float(self.plan.clip_norm),
            config,
        )

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        check: bool = False,
    ) -> Result:
        """Run all rounds, or the remaining ones of a run from a folder, and return their result.

        Parameters
        ----------
        grid, initial_arrays, timeout, train_config, evaluate_config, evaluate_fn
            As for Flower's strategies, and `open`. Rounds are numbered over the whole run.
        num_rounds : int, optional
            Last round, counted from the first of the run; default the plan's steps. The epsilon
            is that of the whole plan in any case.
        check : bool, default False
            Try one node before the first of the rounds: see `check`.

        Raises
        ------
        TypeError, ValueError
            If `num_rounds` is above the plan's steps or below the rounds done; or as `open`.
        RuntimeError
            If the run was closed, a step of it was interrupted, or the check has findings.
        """
        self._ready(initial_arrays)
        done, steps = self.rounds_done, self.plan.steps
        last = steps if num_rounds is None else integer("num_rounds", num_rounds, done, steps)
        if flag("check", check) and done < last:
            self.check(grid, timeout=timeout, train_config=train_config).raise_for_findings()
        if done:
            _log.info("Resuming after round %d of %d", done, last)
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
            self.server.answers.finish()
        return renumbered(result, done, self.arrays)

    # ---- A round ----

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round with nodes that the wrapped strategy chooses and whose users may train.

        `arrays` opens a run that is not open, and is not used otherwise: the run has its own model.

        Raises
        ------
        ValueError
            If it is not the next round, or all declared rounds are done.
        TimeoutError
            If there are not enough nodes (see `max_wait`).
        RuntimeError
            If the run was closed, or a step of it was interrupted.
        """
        server, number = self._ready(arrays), server_round + self._before
        if (expected := server.rounds_done + 1) != number or number > self.plan.steps:
            raise ValueError(f"expected round {expected}, got {number} of {self.plan.steps}")
        if server.round is not None:  # its replies never came: nothing of it was released
            server.abandon_round()
        offered = grid
        self._users.next_round()
        if (size := self._settings.cohort_size) is not None:
            wait = self._settings.max_wait
            offered = cast(Grid, OfferedNodes(grid, size, self._users, server.eligible, wait))
        messages = list(self.strategy.configure_train(number, self.arrays, config, offered))
        asked, away = distinct_users([m.metadata.dst_node_id for m in messages], self._users, grid)
        round_ = server.begin_round(list(asked.values()))
        self.turned_away[number] = {**away, **round_.turned_away}
        log_round(round_, server.report_goal, len(self.turned_away[number]))
        cohort = {identity(client) for client in round_.cohort}
        self._asked = {node: user for node, user in asked.items() if identity(user) in cohort}
        own = ConfigRecord({TOKEN: round_.token})
        if self._settings.options.get("clipping") is None:
            own[CLIP_NORM] = float(server.clip_norm)
        chosen = list(addressed(messages, self._asked, own))
        self._sent = [message.metadata for message in chosen]  # they get ids when they are sent
        return chosen

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add the updates to the round, end it, and return the next model.

        Metrics are ``epsilon_spent``, ``epsilon_replace_one``, ``delta``, ``round``,
        ``report_goal``, ``asked`` and ``turned_away``; with `report_metrics` also the numbers of
        updates accepted, refused and missing, marked as not private.

        RuntimeError if no round was configured, ValueError if another one was.
        """
        round_ = None if self._server is None else self._server.round
        if round_ is None:
            raise RuntimeError("expected a round that was configured, got none")
        if round_.number != server_round + self._before:
            raise ValueError(f"expected round {round_.number}, got {server_round + self._before}")
        sent, contents = self.server.parameters, list[RecordDict]()
        refused = self.refused[round_.number] = {}
        reporting = self._settings.report_metrics
        ids = {data.message_id: data.dst_node_id for data in self._sent if data.message_id}
        for reply in replies:
            node, user, reason = take_reply(reply, round_, self._asked, ids, sent, self._untrained)
            if reason is not None:
                refused[user] = reason
                if reporting:
                    log_refused(round_.number, node, reason)
            elif reporting:
                contents.append(RecordDict(dict(reply.content.metric_records)))  # no arrays
        refused.update(round_.metrics()["refused"])  # the first reason stays
        self.server.end_round()
        self._asked, self._sent = {}, []
        away = len(self.turned_away.get(round_.number, ()))
        count = len(refused) if reporting else None
        metrics = round_metrics(self.server, round_, self.delta, away, count)
        return self.arrays, MetricRecord({**metrics, **reported(self.strategy, contents)})

    # ---- Evaluation, and the rest ----

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's messages for evaluation; none unless `report_metrics`."""
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

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Refuse Flower's older API, whose servers call this first.

        Raises
        ------
        TypeError
            Always, with the replacement for ``start_server(strategy=..)``, ``ServerApp(config=..,
            strategy=..)`` and ``ServerAppComponents``.
        """
        raise TypeError(
            "expected Flower's message API, got a server of the older one (start_server, "
            "ServerApp(config=.., strategy=..) or ServerAppComponents): write app = ServerApp(), "
            "and under @app.main() a function of (grid, context) that calls "
            "strategy.start(grid, initial_arrays)"
        )

    def summary(self) -> None:
        """Log the guarantee, whether clients' evaluation is off, and the wrapped summary."""
        log_promise(self.plan, self.delta, self._server, by_node=self._settings.by_node)
        log_evaluation(self.strategy, report_metrics=self._settings.report_metrics)
        self.strategy.summary()

    def __repr__(self) -> str:
        step = "its step" if self._settings.by_strategy else "ServerDPFTRL's step"
        return f"DPFTRLStrategy({type(self.strategy).__name__}, {step})"
