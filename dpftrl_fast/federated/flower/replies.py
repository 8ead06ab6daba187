# SPDX-License-Identifier: Apache-2.0
"""Replies of Flower's clients, one by one into a round; none of them can end it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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

_LONGEST = 200  # characters of what a client can put into a reason


def take_reply(
    reply: Message,
    round_: Round,
    users: Mapping[int, Client],
    messages: Mapping[str, int],
    sent: Arrays,
    untrained: Collection[str],
) -> tuple[Client, str | None]:
    """Add the update of a reply to the round.

    Parameters
    ----------
    reply : Message
        From whomever, with whatever in it.
    round_ : Round
    users : mapping of int to client
        The nodes that were asked.
    messages : mapping of str to int
        Ids of the messages that asked them, and the nodes.
    sent : mapping of str to ndarray
        The model that they got.
    untrained : collection of str
        Names of arrays that are left out.

    Returns
    -------
    client : int or str
        The user; the node's name if that has none.
    reason : str or None
        Why the update is not in the sum; None if it is.
    """
    node = reply.metadata.src_node_id
    if node not in users and reply.has_error():  # Flower's own, for a node that is gone
        node = messages.get(reply.metadata.reply_to_message_id, node)
    if node not in users:
        return f"node {node}", "was not asked in this round"
    try:
        reason = _add(reply, round_, users[node], sent, untrained)
    except Exception as error:  # what a client sends must not end the round, whatever it is
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return users[node], reason if reason is None else reason[:_LONGEST]


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
    # None would say that no token is needed.
    return round_.add(user, update, token="" if token is None else token)
