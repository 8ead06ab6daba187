# SPDX-License-Identifier: Apache-2.0
"""The client: runs on a user's device."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dpftrl_fast.federated.flower import DPFTRLMod, answer_client_id
from private_app import task

# The mod sends the difference to the model instead of the model, clipped.
app = ClientApp(mods=[DPFTRLMod(clip=True)])


def user_of(context: Context) -> int:
    # In a simulation every partition is a user. In a deployment this is a number or name that stays
    # the same for a person: an account, not a device.
    return int(context.node_config["partition-id"])


answer_client_id(app, user_of)


@app.train()
def train(message: Message, context: Context) -> Message:
    model = {name: array.numpy() for name, array in message.content["arrays"].items()}
    trained = task.train(model, user_of(context), int(context.run_config["local-epochs"]))
    arrays = ArrayRecord({name: Array(array) for name, array in trained.items()})
    # The number of examples is not used as a weight: it is private, and every user counts once.
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
