# SPDX-License-Identifier: Apache-2.0
"""Flower's SecAgg+ without its network: nodes that remember, drop out, or send garbage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from flower_cases import CLIENTS, LocalGrid, Update, client_app, every_round, fedavg, step_of
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

from dpftrl_fast.federated.flower import AskClients
from dpftrl_fast.federated.flower.secure import SecAggStrategy, secagg_mods

STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")

Fate = Callable[[str, int, Message], Message | None]
"""Takes a stage, a node's user and its reply; returns what arrives, None for nothing."""


def lost(stage: str, users: Iterable[int]) -> Fate:
    """The fate of users whose replies of a stage, and of all later ones, are lost."""
    gone = set(users)
    return lambda now, user, reply: (
        None if user in gone and STAGES.index(now) >= STAGES.index(stage) else reply
    )


class SecureGrid(LocalGrid):
    """A `LocalGrid` whose nodes keep their state between the stages of a protocol."""

    def __init__(
        self,
        count: int = CLIENTS,
        fate: Fate | None = None,
        update: Update = step_of,
        mods: Sequence[Any] = (),
        **named: Any,
    ) -> None:
        super().__init__(client_app(update, [*secagg_mods, *mods]), count, **named)
        self.fate = fate
        self.contexts: dict[int, Context] = {}
        self.stages: list[str] = []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        self.sent += sent
        replies = []
        for message in sent:
            node = message.metadata.dst_node_id
            configs = message.content.config_records.get(RECORD_KEY_CONFIGS)
            stage = "" if configs is None else str(configs[Key.STAGE])
            if stage and stage not in self.stages[-1:]:
                self.stages.append(stage)
            reply: Message | None = self.answer(message)
            if stage and self.fate is not None and reply is not None:
                reply = self.fate(stage, node - self.first, reply)
            if reply is not None:
                replies.append(reply)
        return list(self.order(replies))

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        fresh = Context(1, node, {"partition-id": node - self.first}, RecordDict(), self.config)
        context = self.contexts.setdefault(node, fresh)
        own = Message(
            RecordDict({name: value.copy() for name, value in message.content.items()}),
            dst_node_id=node,
            message_type=message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        try:
            reply = self.app(own, context)
        except Exception as error:
            reply = Message(Error(code=0, reason=str(error)), reply_to=own)
        return reply


def secure(**named: Any) -> SecAggStrategy:
    settings: dict[str, Any] = {
        "plan": every_round(),
        "report_goal": CLIENTS,
        "delta": 1e-5,
        "client_id": AskClients(),
        "noise_seed": 3,
        **named,
    }
    return SecAggStrategy(settings.pop("strategy", None) or fedavg(), **settings)
