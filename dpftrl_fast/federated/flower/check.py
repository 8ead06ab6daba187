# SPDX-License-Identifier: Apache-2.0
"""Trial of one node before a run: its findings, each with a remedy."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from dpftrl_fast.federated.answers import last_lines
from dpftrl_fast.federated.flower.clients import NodeUsers
from dpftrl_fast.federated.flower.records import (
    CLIP_NORM,
    DIFFERENCE,
    TOKEN,
    UPDATE,
    Arrays,
    addressed,
    arrays_of,
    difference,
    instructions,
    only_arrays,
    trained,
    untrained,
)
from dpftrl_fast.federated.model_state import refuse_model_state
from dpftrl_fast.federated.sums.layout import ModelLayout

_random = random.SystemRandom()

_TOKEN = "check"
_NODES = 100  # that the wrapped strategy is offered, at least; one of them is real

_OLD_API = (
    "the client app has a client_fn (a NumPyClient or Client), Flower's older API",
    "write it for Flower's message API: app = ClientApp(), and a function under @app.train() that "
    "takes (message, context) and returns Message(content, reply_to=message)",
)
_SECURE = (
    "the client app has the mod of secure aggregation, which waits for another protocol",
    "take secaggplus_mod and secagg_mod out of the mods of the ClientApp, or use SecAggStrategy "
    "with its secagg_mods",
)
_NO_USER = (
    "the client app does not name its user: it has no answer to the query",
    "call answer_client_id(app, lambda context: ...) in the client app",
)
_NO_TRAIN = (
    "the client app has no function for training",
    "write one under @app.train() in the client app",
)
_NO_MODS = (
    "put the mods of secure aggregation first: ClientApp(mods=secagg_mods), of "
    "dpftrl_fast.federated.flower.secure"
)
# Errors of Flower and its mods, by their texts.
_KNOWN = (
    (r"secagg", _SECURE),
    (r"Invalid message type: query|fitins\.|client_fn|NumPyClient", _OLD_API),
    (r"No query function registered", _NO_USER),
    (r"No train function registered", _NO_TRAIN),
)


@dataclass(frozen=True)
class Finding:
    """A fault that a check found, and its remedy."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}\n    remedy: {self.remedy}"


@dataclass(frozen=True)
class CheckReport:
    """Findings of `DPFTRLStrategy.check`, from one node: not private.

    Attributes
    ----------
    node : int or None
        The node that was tried.
    findings : tuple of Finding
        Faults, each with its remedy.

    Examples
    --------
    >>> report = CheckReport(7, (Finding("the app names no user", "call answer_client_id"),))
    >>> report.ok
    False
    >>> print(report)
    check: node 7 was tried, 1 found (not private)
      1. the app names no user
        remedy: call answer_client_id
    """

    node: int | None
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    def raise_for_findings(self) -> None:
        """Raise RuntimeError with the findings, if there are any."""
        if not self.ok:
            raise RuntimeError(str(self))

    def __str__(self) -> str:
        tried = "no node was tried" if self.node is None else f"node {self.node} was tried"
        if self.ok:
            return f"check: {tried}, nothing was found (not private)"
        lines = "\n".join(f"  {k}. {finding}" for k, finding in enumerate(self.findings, 1))
        return f"check: {tried}, {len(self.findings)} found (not private)\n{lines}"


class Check:
    """Trial of one node of a grid: its user, and one training of which nothing is summed."""

    def __init__(self, grid: Grid, users: NodeUsers, timeout: float) -> None:
        self._grid, self._users, self._timeout = grid, users, timeout
        self._found: list[Finding] = []
        nodes = list(grid.get_node_ids())
        self._node = _random.choice(nodes) if nodes else None
        if self._node is None:
            self._add("no node is connected", "start SuperNodes, or wait until they have connected")

    @property
    def report(self) -> CheckReport:
        """The findings so far."""
        return CheckReport(self._node, tuple(dict.fromkeys(self._found)))

    def _add(self, problem: str, remedy: str) -> None:
        self._found.append(Finding(problem, remedy))

    def _add_error(self, text: str, doing: str) -> None:
        for pattern, known in _KNOWN:
            if re.search(pattern, text):
                self._add(*known)
                return
        self._add(
            f"the client app fails {doing}: {last_lines(text)}",
            "mend the client app; the lines are the last ones of its error",
        )

    def user(self) -> None:
        """Try to learn the user of the node."""
        if self._node is None:
            return
        self._users.forget_failures(self._node)  # the app may have been mended since
        try:
            known = self._users.of([self._node], self._grid, timeout=self._timeout)
        except Exception as error:
            if self._users.asks:  # the grid's own
                raise
            self._add(
                f"client_id fails for node {self._node}: {type(error).__name__}: {error}",
                "return None for a node without a user",
            )
            return
        if known:
            return
        reason = self._users.why_not(self._node)
        if "error" in reason:
            self._add_error(reason.split(": ", 1)[1], "when it is asked for its user")
        elif self._users.asks:
            problem = reason.split(", got ")[0]
            self._add(f"the node does not name its user; {problem}", _NO_USER[1])
        else:
            problem = reason.split(": ", 1)[1].split(", got ")[0]
            self._add(
                f"client_id returns no user for node {self._node}; {problem}",
                "return an int from 0 to 2^63 - 1 or a name for every node that may train",
            )

    def cohort(self, strategy: Strategy, size: int | None) -> None:
        """Compare the minima and the fraction of a strategy with the nodes that it is offered."""
        if size is None:
            return
        name = type(strategy).__name__
        for minimum in ("min_available_nodes", "min_train_nodes"):
            if getattr(strategy, minimum, 0) > size:
                self._add(
                    f"{name} waits for {minimum}={getattr(strategy, minimum)} nodes and is offered "
                    f"cohort_size={size}: no round can begin",
                    f"lower {minimum} of {name}, or take a larger cohort_size",
                )
        if 0 < (fraction := getattr(strategy, "fraction_train", 1.0)) < 1:
            self._add(
                f"{name} takes a fraction of {fraction:g} of the cohort_size={size} nodes that are "
                "offered",
                f"set fraction_train=1.0 of {name}: cohort_size chooses the nodes",
            )

    def training(
        self,
        strategy: Strategy,
        arrays: ArrayRecord,
        number: int,
        clip_norm: float | None,
        config: ConfigRecord,
    ) -> None:
        """Let the node train once, as in a round, and look at its reply."""
        try:
            model = arrays_of(arrays)
            refuse_model_state(trained(model))
            layout, others = ModelLayout(trained(model)), untrained(model)
        except (TypeError, ValueError) as error:
            self._add(f"the model cannot be trained: {error}", "change initial_arrays")
            return
        if self._node is None:
            return
        message = self._message(strategy, arrays, number, clip_norm, config)
        if message is None:
            return
        for reply in self._grid.send_and_receive([message], timeout=self._timeout):
            if reply.has_error():
                self._add_error(f"error {reply.error.code}: {reply.error.reason}", "in training")
            else:
                self._look_at(reply, trained(model), layout, set(others))
            return
        self._add_silent()

    def protocol(self, content: RecordDict, fits: Callable[[RecordDict], bool]) -> None:
        """Send the node the first message of secure aggregation, and look at its reply."""
        if self._node is None:
            return
        message = Message(content, self._node, MessageType.TRAIN, ttl=self._timeout)
        for reply in self._grid.send_and_receive([message], timeout=self._timeout):
            if reply.has_error():
                self._add(
                    "the client app takes no part in secure aggregation: "
                    + last_lines(f"error {reply.error.code}: {reply.error.reason}"),
                    _NO_MODS,
                )
            elif not fits(reply.content):
                self._add("the client app takes no part in secure aggregation", _NO_MODS)
            return
        self._add_silent()

    def _add_silent(self) -> None:
        self._add(
            f"the node did not answer within {self._timeout:g} s",
            "give check a longer timeout, or look at the log of the node",
        )

    def _message(
        self,
        strategy: Strategy,
        arrays: ArrayRecord,
        number: int,
        clip_norm: float | None,
        config: ConfigRecord,
    ) -> Message | None:
        """Return the message that a copy of the wrapped strategy would send to the node."""
        asked = [getattr(strategy, f"min_{name}_nodes", 0) for name in ("available", "train")]
        many = cast(Grid, _ManyNodes(self._grid, range(1, max(_NODES, *asked) + 1)))
        try:
            made = list(copy.copy(strategy).configure_train(number, arrays, config, many))
        except Exception as error:
            self._add(
                f"configure_train of {type(strategy).__name__} fails: {type(error).__name__}: "
                f"{error}",
                "mend the wrapped strategy",
            )
            return None
        if not made:
            self._add(
                f"{type(strategy).__name__} asks no node to train",
                "let it choose nodes (fraction_train=1.0)",
            )
            return None
        assert self._node is not None
        content, kind = made[0].content, made[0].metadata.message_type
        own = ConfigRecord({TOKEN: _TOKEN})
        if clip_norm is not None:
            own[CLIP_NORM] = clip_norm
        message = Message(RecordDict(dict(content)), self._node, kind, ttl=self._timeout)
        return next(iter(addressed([message], [self._node], own)))

    def _look_at(self, reply: Message, sent: Arrays, layout: ModelLayout, others: set[str]) -> None:
        try:
            _, arrays = only_arrays(reply.content)
        except ValueError as error:
            self._add(
                f"the reply holds no single model: {error}",
                'reply with one ArrayRecord, RecordDict({"arrays": ArrayRecord(state), ...})',
            )
            return
        own = instructions(reply.content)
        token = reply.metadata.group_id if own is None else own.get(TOKEN)
        if token != _TOKEN:
            self._add(
                "the reply belongs to another round",
                "make the reply with Message(content, reply_to=message)",
            )
        update = {name: array for name, array in arrays.items() if name not in others}
        if own is None or own.get(UPDATE) != DIFFERENCE:
            update = difference(update, sent)
        numbered = all(name.isdecimal() for name in arrays)
        if numbered and arrays and set(update) != set(layout.names):
            self._add(
                f"the arrays of the reply are a list, named {', '.join(list(arrays)[:3])}, ..: the "
                f"model that was sent is a dict, with {layout.names[0]!r}",
                "reply with ArrayRecord of a dict with the names that came, such as a state_dict, "
                "not with a list of arrays",
            )
        elif (problem := layout.problem(update)) is not None:
            self._add(
                f"the update does not fit the model: it {problem}",
                "reply with the arrays that came, trained, in the same names and shapes",
            )
        elif not all(bool(np.isfinite(array).all()) for array in update.values()):
            self._add(
                "the update is not finite (NaN or infinity)",
                "lower the client's learning rate, and look at its data",
            )
        elif not any(bool(array.any()) for array in update.values()):
            self._add(
                "the update is zero: the model came back as it was sent",
                "reply with the arrays after training, and look at the client's learning rate and "
                "the number of its examples",
            )


class _ManyNodes:
    """A grid that offers other node ids, so that a strategy waits for no more of them."""

    def __init__(self, grid: Grid, nodes: range) -> None:
        self._grid, self._nodes = grid, nodes

    def get_node_ids(self) -> list[int]:
        return list(self._nodes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._grid, name)
