# SPDX-License-Identifier: Apache-2.0
"""The client's side of `DPFTRLStrategy`: a Flower mod, and the answer to the user query."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from dpftrl_fast._validate import flag, norm_bound
from dpftrl_fast.federated.flower.records import (
    CLIENT_ID,
    CLIP_NORM,
    DIFFERENCE,
    RECORD,
    TOKEN,
    UPDATE,
    Arrays,
    array_record,
    difference,
    instructions,
    only_arrays,
    trained,
)
from dpftrl_fast.federated.ids import client_id as identity
from dpftrl_fast.rounding import clip_limit

CLIENT_ID_ACTION = "dpftrl_client_id"
"""Action of the query for the user of a node."""


class DPFTRLMod:
    """Flower mod for clients of `DPFTRLStrategy`; `dpftrl_mod` is one with the defaults.

    It changes replies to train messages of that strategy and no others. The app trains as usual and
    replies with its model; the client sends the *difference* to the model that it was sent, in
    float32 at least, with the token of the round.

    The mod is optional: without it the server computes the difference. With it, rounding is that of
    the difference, not of the model (which matters for models in half precision), and the client
    can bound the norm of the difference.

    Parameters
    ----------
    clip : bool, default False
        Clip the difference to the norm that the server names. The server clips every update; this
        is for clients that do not trust it to. Not with `AdaptiveClipping` on the server.

    Notes
    -----
    **Formal guarantee.** The mod adds no noise and states no epsilon: that is the server's
    `DPFTRLStrategy`, with neighbours that differ in one user. With ``clip=True`` the norm of the
    sent difference is at most the server's clip norm; nothing else about the difference is hidden
    from the server.

    Put it first in the list of mods, so that it sees the changes of the others to the model.
    Integer arrays (counters in a state) are not trained and are left out.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[DPFTRLMod(clip=True)])
    """

    def __init__(self, *, clip: bool = False) -> None:
        self._clip = flag("clip", clip)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Call the app; replace the model in its reply by the difference.

        Raises
        ------
        ValueError
            If message or reply do not hold exactly one valid ArrayRecord, or the server names no
            valid clip norm to clip to. Flower turns it into an error reply, which is an empty slot
            of the round.
        """
        asked = instructions(message.content) if _is_training(message) else None
        if asked is None:
            return call_next(message, context)
        token = str(asked[TOKEN])
        limit = _limit(asked) if self._clip else None
        _, sent = only_arrays(message.content)  # before the app can remove them
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, arrays = only_arrays(reply.content)
        update = difference(trained(arrays), sent)
        if limit is not None:
            _clip(update, limit)
        reply.content[name] = array_record(update)
        reply.content[RECORD] = ConfigRecord({TOKEN: token, UPDATE: DIFFERENCE})
        return reply

    def __repr__(self) -> str:
        return f"DPFTRLMod(clip={self._clip})"


dpftrl_mod = DPFTRLMod()


def answer_client_id(app: ClientApp, client_id: Callable[[Context], int | str]) -> None:
    """Add the answer to the query for the user of a node (`AskClients`) to an app.

    Parameters
    ----------
    app : ClientApp
        It must have no other query of this name.
    client_id : callable
        Takes the context, returns the user: an int from 0 to 2^63 - 1 or a str of at most 1000
        characters, the same on all nodes of the user and at all times (7 and "7" are two users). A
        node is asked once: it has one user for the lifetime of the server.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> answer_client_id(app, lambda context: int(context.node_config["partition-id"]))
    """

    def answer(message: Message, context: Context) -> Message:
        user = client_id(context)
        identity(user)  # an invalid id shows in the app's log
        record = ConfigRecord({CLIENT_ID: user if isinstance(user, str) else int(user)})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    app.query(CLIENT_ID_ACTION)(answer)


def _is_training(message: Message) -> bool:
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN


def _limit(asked: ConfigRecord) -> float:
    norm = asked.get(CLIP_NORM)
    if not isinstance(norm, float):
        raise ValueError(
            "expected a clip norm from the server, got none: adaptive clipping needs the norms of "
            "unclipped updates"
        )
    return clip_limit(norm_bound("clip_norm", norm))


def _clip(update: Arrays, limit: float) -> None:
    """Scale to the limit; an update that is not finite stays so, and the server refuses it."""
    with np.errstate(all="ignore"):
        squares = [float(np.sum(np.square(array, dtype=np.float64))) for array in update.values()]
        norm = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan
        if norm > limit:
            for name, array in update.items():
                update[name] = (array * (limit / norm)).astype(array.dtype)
