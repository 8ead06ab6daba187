# SPDX-License-Identifier: Apache-2.0
"""The client's side of `DPFTRLStrategy`: a Flower mod, and the answer to "which user are you?"."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from dpftrl_fast._validate import norm_bound
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
"""Action of the query by which the server asks a node for its user."""


class DPFTRLMod:
    """Flower mod for clients of `DPFTRLStrategy`; `dpftrl_mod` is one with the defaults.

    It works on train messages of that strategy and lets all others pass. The app trains as it
    always does and replies with its model; what leaves the client is the *difference* to the
    model that it was sent, in float32 at least, with the token of the round.

    Without the mod it works too: the server then makes the difference itself. With it, rounding
    is that of the difference, not of the model (which matters to models in half precision), and
    the client can bound what it sends.

    Parameters
    ----------
    clip : bool, default False
        Clip the difference to the norm that the server says. The server clips whatever comes; a
        client that does not trust it to can do so itself. Not where the server fits its clip norm
        to the updates (`AdaptiveClipping`).

    Raises
    ------
    TypeError
        If `clip` is not a bool.

    Notes
    -----
    Put it first in the list of mods, so that it sees what the others made of the model. Integer
    arrays (counters in a state) are not trained and are left out.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp(mods=[DPFTRLMod(clip=True)])
    """

    def __init__(self, *, clip: bool = False) -> None:
        if not isinstance(clip, bool):
            raise TypeError(f"clip must be a bool, got {type(clip).__name__}")
        self._clip = clip

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Call the app; replace the model in its reply by the difference.

        Raises
        ------
        ValueError
            If message or reply do not hold exactly one ArrayRecord, or it is broken; if the server
            says no clip norm to clip to, or one that is none. Flower makes an error reply of it,
            which is an empty slot of the round.
        """
        asked = instructions(message.content) if _is_training(message) else None
        if asked is None:
            return call_next(message, context)
        token = str(asked[TOKEN])
        limit = _limit(asked) if self._clip else None
        _, sent = only_arrays(message.content)  # before the app can take them out
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
    """Let an app answer the server that asks which user a node belongs to (`AskClients`).

    Parameters
    ----------
    app : ClientApp
        It must have no other query of this name.
    client_id : callable
        Takes the context, returns the user: an int of 0 to 2^63 - 1 or a str of at most 1000
        characters, the same on all nodes of the user and whenever one of them is asked (7 and "7"
        are two users). A node is asked once: it has one user, as long as the server runs.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> answer_client_id(app, lambda context: int(context.node_config["partition-id"]))
    """

    def answer(message: Message, context: Context) -> Message:
        user = client_id(context)
        identity(user)  # refuses what is none, here where the app's log shows it
        record = ConfigRecord({CLIENT_ID: user if isinstance(user, str) else int(user)})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    app.query(CLIENT_ID_ACTION)(answer)


def _is_training(message: Message) -> bool:
    return message.metadata.message_type.split(".")[0] == MessageType.TRAIN


def _limit(asked: ConfigRecord) -> float:
    norm = asked.get(CLIP_NORM)
    if not isinstance(norm, float):
        raise ValueError(
            "expected a clip norm from the server, got none: with adaptive clipping it counts "
            "whose updates are within the norm, and needs them as they are"
        )
    return clip_limit(norm_bound("clip_norm", norm))


def _clip(update: Arrays, limit: float) -> None:
    """Scale to the limit; what is not finite stays so, and the server leaves it out."""
    with np.errstate(all="ignore"):
        squares = [float(np.sum(np.square(array, dtype=np.float64))) for array in update.values()]
        norm = math.sqrt(math.fsum(squares)) if all(map(math.isfinite, squares)) else math.nan
        if norm > limit:
            for name, array in update.items():
                update[name] = (array * (limit / norm)).astype(array.dtype)
