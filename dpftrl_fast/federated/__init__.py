# SPDX-License-Identifier: Apache-2.0
"""The server's side of federated learning with user-level DP-FTRL.

`ServerDPFTRL` needs no framework: clients' updates come as NumPy arrays. `PrivateRounds` is its
private part alone, for other update rules. `dpftrl_fast.federated.flower` has the strategy for
Flower, which is the extra ``federated``.
"""

from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping
from dpftrl_fast.federated.buffered_round import BufferedRound
from dpftrl_fast.federated.buffered_server import BufferedServer, Ticket
from dpftrl_fast.federated.ids import client_id
from dpftrl_fast.federated.plan_rounds import plan_rounds
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.rounds import PrivateRounds
from dpftrl_fast.federated.rounds_plan import RoundsPlan
from dpftrl_fast.federated.server import ServerDPFTRL
from dpftrl_fast.federated.sums.partial_sum import PartialSum, SumSpec, clipped_integers
from dpftrl_fast.federated.user_ledger import LedgerTask, UserLedger

__all__ = [
    "AdaptiveClipping",
    "BufferedRound",
    "BufferedServer",
    "LedgerTask",
    "PartialSum",
    "PrivateRounds",
    "Round",
    "RoundsPlan",
    "ServerDPFTRL",
    "SumSpec",
    "Ticket",
    "UserLedger",
    "client_id",
    "clipped_integers",
    "plan_rounds",
]
