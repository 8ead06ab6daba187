# SPDX-License-Identifier: Apache-2.0
"""The client's side of `DPFTRLStrategy`: a Flower mod, and the answer to the user query."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from numpy.typing import NDArray

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

_LEAST = -500  # of exponents: of 2^72 values below 2^-500 the norm is below 1e-138

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
    sent difference is at most the server's clip norm, for every finite difference and dtype; of a
    difference with NaN or infinity only that fact is sent: all values become NaN, and the server
    leaves the slot empty. Nothing else about the difference is hidden from the server.

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
"""The `DPFTRLMod` with the defaults, for the mods of a client app.

Examples
--------
>>> from flwr.clientapp import ClientApp
>>> app = ClientApp(mods=[dpftrl_mod])
>>> dpftrl_mod
DPFTRLMod(clip=False)
"""


def answer_client_id(app: ClientApp, client_id: Callable[[Context], int | str]) -> None:
    """Add the answer to the query for the user of a node (`AskClients`) to an app.

    Parameters
    ----------
    app : ClientApp
        It must have no other query of this name.
    client_id : callable
        Takes the context, returns the user: an int from 0 to 2^63 - 1 or a str of at most 1000
        characters, the same on all nodes of the user and at all times (7 and "7" are one user). A
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
    """Scale to the limit; where a value is not finite, all become NaN.

    Values are divided by a power of two before they are squared, so that no finite update has an
    infinite norm, and scaled values are rounded towards zero, so that none gets longer.
    """
    with np.errstate(all="ignore"):  # a warning would reveal something about a value
        wide = {name: np.asarray(array, np.float64) for name, array in update.items()}
        peaks = [float(np.max(np.abs(array), initial=0.0)) for array in wide.values()]
        if not all(map(math.isfinite, peaks)):
            update.update({name: np.full_like(array, np.nan) for name, array in update.items()})
            return
        # An update below 2^_LEAST is shorter than every limit, which is at least 1e-101.
        exponent = max(math.frexp(max(peaks, default=0.0))[1], _LEAST)
        scaled = {name: np.ldexp(array, -exponent) for name, array in wide.items()}
        norm = math.sqrt(math.fsum(float(np.sum(np.square(array))) for array in scaled.values()))
        if norm > math.ldexp(limit, -exponent):
            for name, array in scaled.items():
                update[name] = _towards_zero(array * (limit / norm), update[name].dtype)


def _towards_zero(values: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values in a dtype, rounded towards zero."""
    nearest = np.asarray(values).astype(dtype)
    shorter = np.nextafter(nearest, np.zeros((), dtype))
    return np.where(np.abs(nearest) > np.abs(values), shorter, nearest).astype(dtype)
