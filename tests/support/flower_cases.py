# SPDX-License-Identifier: Apache-2.0
"""Flower without its network: a grid that calls a client app in this process."""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from dpftrl_fast import PrivacyPlan
from dpftrl_fast import accounting as acc
from dpftrl_fast.federated import ServerDPFTRL
from dpftrl_fast.federated.flower import AskClients, DPFTRLStrategy, answer_client_id
from dpftrl_fast.federated.flower.clients import NodeUsers
from dpftrl_fast.mechanisms import Tree

with contextlib.suppress(ImportError):  # an older flwr has none, and needs none
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

Update = Callable[[int, int, dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]


def model() -> dict[str, NDArray[Any]]:
    """A small model, with a counter as a torch state has it."""
    return {
        "layer.weight": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
        "layer.count": np.array(7, np.int64),
        "layer.bias": np.array([0.25, -0.5]),
        "scale": np.array(0.5, np.float32),
    }


def record(arrays: dict[str, NDArray[Any]]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def arrays(found: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in found.items()}


def step_of(
    user: int, round_: int, sent: dict[str, NDArray[Any]], size: float = 0.02
) -> dict[str, NDArray[Any]]:
    """The model that a user has after training: a pure function of user, round and model."""
    trained = {}
    for name, array in sent.items():
        seed = hashlib.sha256(f"{user} {round_} {name}".encode() + array.tobytes()).digest()
        noise = np.random.default_rng(int.from_bytes(seed[:8], "big")).normal(size=array.shape)
        trained[name] = (
            (array + size * noise).astype(array.dtype) if name != "layer.count" else array
        )
    return trained


def smooth_step(user: int, round_: int, sent: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """As `step_of`, but such that a small difference in the model stays small."""
    still = {name: np.zeros_like(array) for name, array in model().items()}
    moved = step_of(user, round_, still)
    return {
        name: (0.99 * array + moved[name]).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in sent.items()
    }


def client_app(update: Update = step_of, mods: Sequence[Any] = ()) -> ClientApp:
    """An app whose user is its node's partition, and which trains with `update`."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        user = int(context.node_config["partition-id"])
        round_ = int(message.content["config"]["server-round"])
        found = update(user, round_, arrays(message.content["arrays"]))
        metrics = MetricRecord({"num-examples": 10 + user, "train_loss": 0.5})
        return Message(RecordDict({"arrays": record(found), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "accuracy": 0.75})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    answer_client_id(app, lambda context: int(context.node_config["partition-id"]))
    return app


class LocalGrid(Grid):
    """Nodes first .. first + count - 1, each a partition; replies in an order of one's own.

    Parameters
    ----------
    app : ClientApp
    count : int
    first : int
        Id of the first node.
    order : callable, optional
        Takes the replies of a round, returns what comes back.
    config : dict, optional
        The run's settings, which clients see.
    """

    def __init__(
        self,
        app: ClientApp,
        count: int,
        first: int = 10**18,
        order: Callable[[list[Message]], Iterable[Message]] = list,
        config: Any = None,
    ) -> None:
        self.app, self.first, self.count, self.order = app, first, count, order
        self.config = config or {}
        self.sent: list[Message] = []
        self.pushed, self.replies = 0, dict[str, Message]()
        self.trained: list[tuple[int, int]] = []  # (round, partition), in the order of asking

    def set_run(self, run: Any) -> None:
        raise AssertionError

    @property
    def run(self) -> Any:
        raise AssertionError

    def create_message(self, *args: Any, **named: Any) -> Message:
        raise AssertionError

    def get_node_ids(self) -> Iterable[int]:
        return range(self.first, self.first + self.count)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send, as a SuperLink does: the id is written into the message, replies are kept."""
        sent = list(messages)
        for message in sent:
            self.pushed += 1
            message.metadata.__dict__["_message_id"] = f"push {self.pushed}"
        self.sent += sent
        for reply in self.order([self.answer(message) for message in sent]):
            self.replies[reply.metadata.reply_to_message_id] = reply
        return [message.metadata.message_id for message in sent]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return each reply once."""
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        self.sent += sent
        self.trained += [
            (int(m.content["config"]["server-round"]), m.metadata.dst_node_id - self.first)
            for m in sent
            if m.metadata.message_type == "train"
        ]
        return list(self.order([self.answer(message) for message in sent]))

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node - self.first}, RecordDict(), self.config)
        # As on a network: the client gets records of its own, that share nothing with the server.
        copy = RecordDict({name: value.copy() for name, value in message.content.items()})
        own = Message(
            copy,
            dst_node_id=node,
            message_type=message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        own.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            return self.app(own, context)
        except Exception as error:
            return Message(Error(code=0, reason=str(error)), reply_to=own)


# ---- Strategies ----

CLIENTS, ROUNDS = 5, 4


def every_round(rounds: int = ROUNDS, clip_norm: float = 0.3, **named: Any) -> PrivacyPlan:
    return PrivacyPlan(clip_norm, 6.0, acc.MinSeparation(rounds, rounds, 1), Tree(**named))


def fedavg(**named: Any) -> FedAvg:
    return FedAvg(**{"fraction_evaluate": 0.0, **named})


def private(strategy: Strategy | None = None, **named: Any) -> DPFTRLStrategy:
    settings: dict[str, Any] = {
        "plan": every_round(),
        "report_goal": CLIENTS,
        "delta": 1e-5,
        "client_id": AskClients(),
        "noise_seed": 3,
        **named,
    }
    return DPFTRLStrategy(strategy or fedavg(), **settings)


class Clock:
    """Time that passes in pauses only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, pause: float) -> None:
        assert 0 < pause <= 1
        self.now += pause


def on_a_clock(strategy: DPFTRLStrategy) -> Clock:
    """Let a strategy wait for the users of nodes on a clock of the test."""
    clock = Clock()
    strategy._users = NodeUsers(strategy._settings.client_id or "node", clock, clock.sleep)
    return clock


def by_hand(
    rounds: int = ROUNDS,
    update: Callable[..., dict[str, Any]] = step_of,
    users: Callable[[int], range] = lambda _: range(CLIENTS),
    plan: PrivacyPlan | None = None,
    **named: Any,
) -> dict[str, np.ndarray[Any, Any]]:
    """The model that the server makes of the same clients."""
    trained = {name: array for name, array in model().items() if array.dtype.kind == "f"}
    server = ServerDPFTRL(
        trained, plan=plan or every_round(), report_goal=CLIENTS, noise_seed=3, **named
    )
    for round_ in range(1, rounds + 1):
        now, sent = server.begin_round(users(round_)), {**model(), **server.parameters}
        for user in now.cohort:
            after = update(user, round_, sent)
            assert now.add(user, {name: after[name] - sent[name] for name in trained}) is None
        server.end_round()
    return {**model(), **server.parameters}


def same_bits(found: ArrayRecord, expected: dict[str, Any]) -> None:
    assert list(found) == list(model())
    for name, array in arrays(found).items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


class Wild(FedAvg):
    """A strategy of one's own, that remembers how often it was asked."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.calls = 0

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.calls += 1
        assert self.calls == server_round
        (reply,) = replies
        found = arrays(reply.content["arrays"])
        return record({name: 0.5 * np.asarray(a) for name, a in found.items()}), None

    def state_dict(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.calls = state["calls"]
