# SPDX-License-Identifier: Apache-2.0
"""Adds the replies of Flower's clients to a round; no reply can end it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from flwr.app import Message

from dpftrl_fast.federated.flower.records import (
    DIFFERENCE,
    TOKEN,
    UPDATE,
    Arrays,
    difference,
    instructions,
    only_arrays,
)
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.round import Round

_FIRST, _LAST = 500, 3500  # characters of a reason that are kept: a client can influence it


class Taken(NamedTuple):
    """A reply that was added or refused: its node, its user, and the reason for a refusal."""

    node: int
    user: Client
    reason: str | None


def take_reply(
    reply: Message,
    round_: Round,
    users: Mapping[int, Client],
    messages: Mapping[str, int],
    sent: Arrays,
    untrained: Collection[str],
) -> Taken:
    """Add the update of any reply to the round, or record the reason why it is refused.

    `users` are those of the nodes that were asked, `messages` the ids of the messages that asked
    them, with their nodes, `sent` the model that was sent, and `untrained` the names of arrays that
    are left out. A node without a user is returned by name.
    """
    node = reply.metadata.src_node_id
    if node not in users and reply.has_error():  # Flower's own, for a node that is gone
        node = messages.get(reply.metadata.reply_to_message_id, node)
    if node not in users:
        return Taken(node, f"node {node}", "was not asked in this round")
    try:
        reason = _add(reply, round_, users[node], sent, untrained)
    except Exception as error:  # no reply may end the round
        reason = f"cannot be read: {type(error).__name__}: {error}"
    if reason is None:
        return Taken(node, users[node], None)
    if len(reason) > _FIRST + _LAST:
        reason = f"{reason[:_FIRST]} ... {reason[-_LAST:]}"
    round_.refuse(users[node], reason)
    return Taken(node, users[node], reason)


def _add(
    reply: Message,
    round_: Round,
    user: Client,
    sent: Arrays,
    untrained: Collection[str],
) -> str | None:
    if reply.has_error():
        return f"the client reports error {reply.error.code}: {reply.error.reason}"
    own = instructions(reply.content)
    # Flower copies the group of a message to its reply; the mod sends the token back itself.
    token = reply.metadata.group_id if own is None else own.get(TOKEN)
    _, arrays = only_arrays(reply.content)
    update = {name: array for name, array in arrays.items() if name not in untrained}
    if own is None or own.get(UPDATE) != DIFFERENCE:
        update = difference(update, sent)
    # None would mean that no token is needed.
    return round_.add(user, update, token="" if token is None else token)
