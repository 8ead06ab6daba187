# SPDX-License-Identifier: Apache-2.0
"""Names that blocks of a page take as given ("yours"): code before a block, by page and block.

Blocks count from 0.
"""

from __future__ import annotations

_ROUNDS = """
import itertools
import numpy as np

model, said = {"w": np.zeros(2, np.float32)}, []
_ids = itertools.count()

def clients_that_are_here():
    return [next(_ids) for _ in range(3)]

def send(client, parameters, token):
    said.append((client, token))

def answers():
    while said:
        client, token = said.pop()
        yield client, {"w": np.array([0.6, 0.8], np.float32)}, token
"""

_ASYNCHRONOUS = """
plan = PrivacyPlan(1.0, 4.0, accounting.MinSeparation(3, 1, 1))
said.clear()

def next_event():
    if said:
        client, token = said.pop()
        return "has trained", client, {"w": np.array([0.6, 0.8], np.float32)}, token
    return "would like to train", next(_ids)
"""

_RESTARTS = """
from dpftrl_fast.mechanisms import Tree

plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10), Tree(restart_every=5))
"""

_SUMS = """
import numpy as np
from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated import ServerDPFTRL

text = ""
plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
server = ServerDPFTRL({"w": np.zeros(2)}, plan=plan, report_goal=2)

def clients_that_are_here():
    return [1, 2]

def send_to_workers(spec):
    global text
    text = spec

def its_clients():
    return [(client, {"w": np.array([0.6, 0.8])}) for client in (1, 2)]
"""

_FLOWER = """
import flower_cases
from dpftrl_fast import PrivacyPlan, accounting

plan = PrivacyPlan(0.3, 4.0, accounting.MinSeparation(3, 3, 1))
grid, on_public_data = flower_cases.LocalGrid(flower_cases.client_app(), 600), None
initial_arrays = flower_cases.record({"w": flower_cases.model()["layer.weight"]})
"""

_NOT_STARTED = """
strategy = DPFTRLStrategy(
    FedAvg(fraction_train=1.0, fraction_evaluate=0.0),
    plan=plan, report_goal=500, delta=1e-6, client_id=AskClients(), cohort_size=600,
)
"""

_TRAINING = """
import torch
from torch import nn

network, criterion, epochs, delta = nn.Linear(4, 2), nn.CrossEntropyLoss(), 2, 1e-5
data = torch.utils.data.TensorDataset(torch.ones(300, 4), torch.ones(300, dtype=torch.long))
"""

_WITHOUT_FOLDER = """
from types import SimpleNamespace

network = nn.Linear(4, 2)
_, optimizer, loader, ledger = make_private(
    network, torch.optim.SGD(network.parameters(), lr=0.1), DataLoader(data, batch_size=100),
    epochs=epochs, epsilon=8.0, delta=delta, clip_norm=1.0, order_seed=0,
)
run, epsilon, last, t = SimpleNamespace(noise=optimizer), 40.0, 1, 0
"""

_JOURNAL = """
import numpy as np

folder, identity, steps, released = "journal", {"plan": "P"}, 60, []

def first_state():
    return {"key": bytes(32), "sum": np.zeros(2)}

def sum_of(step):
    return np.array([step]), np.array([1.0, step])

def release(state, total):
    released.append(total)
    return {**state, "sum": state["sum"] + total}
"""

_SHARDED = """
from unittest.mock import create_autospec
from torch.distributed.fsdp import FSDPModule

model = create_autospec(FSDPModule, instance=True)
"""

_MODEL_FOLDER = """
from pathlib import Path
from dpftrl_fast.fitting.model_file import save_model
from dpftrl_fast.fitting.run import FitSettings, fit
from dpftrl_fast.tables import TableReader
from dpftrl_fast.tables.schema import Schema

Path("new_rows.csv").write_text("x,y\\n1,0\\n5,1\\n9,1\\n", encoding="utf-8")
schema = Schema.from_dict({
    "rows": 3,
    "target": {"name": "y", "categories": ["0", "1"]},
    "columns": {"x": {"bounds": [0, 10]}},
})
reader = TableReader("new_rows.csv", schema)
save_model("model", fit(reader, FitSettings(loss="logistic", batch_size=1, epochs=1)))
"""

_SCHEDULE = """
from dpftrl_fast import accounting as acc, mechanisms as mech

rounds_of_a_pass, passes = 67, 24
"""

GIVEN: dict[str, dict[int, str]] = {
    "federated/flower": {0: _FLOWER, 2: _NOT_STARTED},
    "federated/start": {0: _ROUNDS, 2: _ASYNCHRONOUS, 4: _RESTARTS},
    "federated/sums": {0: _SUMS},
    "results/federated": {0: _SCHEDULE},
    "runs/cli": {0: _MODEL_FOLDER},
    "runs/resume": {0: _TRAINING, 1: _TRAINING, 2: _WITHOUT_FOLDER, 3: _JOURNAL},
    "torch/distributed": {0: _SHARDED},
}
