# SPDX-License-Identifier: Apache-2.0
"""The client's side of `SecAggStrategy`: mods that clip, round and mask an update."""

from __future__ import annotations

import json
import logging

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

from dpftrl_fast.federated.flower.records import (
    DIFFERENCE,
    UPDATE,
    Arrays,
    difference,
    instructions,
    only_arrays,
    trained,
)
from dpftrl_fast.federated.flower.secure_limbs import Limbs
from dpftrl_fast.federated.sums.partial_sum import PartialSum, SumSpec

_log = logging.getLogger("flwr")

SPEC, CLIENTS = "sum-spec", "clients"

_OF_FLOWER = ("fitins.parameters", "fitins.config", RECORD_KEY_CONFIGS)


def clip_for_secagg_mod(
    message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Flower mod that clips the app's update and sends it in whole numbers, to be masked.

    It stands after Flower's own ``secaggplus_mod``, which adds the masks: see `secagg_mods`.
    """
    asked = instructions(message.content)
    if asked is None or SPEC not in asked:
        return call_next(message, context)
    spec = SumSpec.from_dict(json.loads(str(asked[SPEC])))
    bits = spec.modulus_bits(int(str(asked[CLIENTS])))
    limbs = Limbs.of(int(str(asked[CLIENTS])), spec.layout.size, bits)
    partial = PartialSum(spec)
    # An app that fails because of its data is as one that returns zeros. If it fell silent instead,
    # too few might be left to unmask the sum: it would depend on this client by more than its
    # update.
    try:
        reason = partial.add(0, _update(message, context, call_next))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        _log.warning("no update of this client is in the sum: %s (not private)", reason)
    integers = partial.total.astype(np.uint64)
    vector = limbs.cut(integers, partial.within)
    content = RecordDict(
        {
            "fitres.parameters": ArrayRecord({"0": Array(vector)}),
            "fitres.num_examples": MetricRecord({"num_examples": 1}),
            "fitres.metrics": ConfigRecord(),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }
    )
    return Message(content, reply_to=message)


def _update(message: Message, context: Context, call_next: ClientAppCallable) -> Arrays:
    for name in _OF_FLOWER:
        message.content.pop(name, None)
    _, sent = only_arrays(message.content)
    reply = call_next(message, context)
    if reply.has_error():
        raise RuntimeError(f"error {reply.error.code}: {reply.error.reason}")
    own = instructions(reply.content)
    _, arrays = only_arrays(reply.content)
    if own is not None and own.get(UPDATE) == DIFFERENCE:
        return arrays
    return difference(trained(arrays), sent)


secagg_mods = [secaggplus_mod, clip_for_secagg_mod]
"""Mods of a client app of `SecAggStrategy`, first in its list of mods.

Examples
--------
>>> from flwr.clientapp import ClientApp
>>> app = ClientApp(mods=secagg_mods)
>>> [mod.__name__ for mod in secagg_mods]
['secaggplus_mod', 'clip_for_secagg_mod']
"""
