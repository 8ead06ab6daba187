# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""DP-FTRL for Flower: the strategy, the client mod and the query for the user of a node."""

from dpftrl_fast.federated.flower.version import check_version

check_version()  # the imports below need the message API

from dpftrl_fast.federated.flower.check import CheckReport
from dpftrl_fast.federated.flower.clients import AskClients
from dpftrl_fast.federated.flower.mod import DPFTRLMod, answer_client_id, dpftrl_mod
from dpftrl_fast.federated.flower.strategy import DPFTRLStrategy

__all__ = [
    "AskClients",
    "CheckReport",
    "DPFTRLMod",
    "DPFTRLStrategy",
    "answer_client_id",
    "dpftrl_mod",
]
