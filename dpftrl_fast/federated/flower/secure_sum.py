# SPDX-License-Identifier: Apache-2.0
"""One run of Flower's SecAgg+ protocol: the sum of the clipped updates of a round.

Flower's workflow and its client mod are used as they are. Replies of nodes are checked before the
workflow sees them: one that is not of the protocol's form counts as a node that dropped out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dpftrl_fast.federated.answers import commonest, last_lines
from dpftrl_fast.federated.flower.records import RECORD, TOKEN
from dpftrl_fast.federated.flower.report import marked_log
from dpftrl_fast.federated.flower.secure_limbs import Limbs
from dpftrl_fast.federated.flower.secure_mod import CLIENTS, SPEC
from dpftrl_fast.federated.sums.partial_sum import SumSpec
from dpftrl_fast.files import array_in

_MODULUS = 1 << 32


class SecureSum(NamedTuple):
    """The sum of a secure aggregation, a secret until it is noised."""

    nodes: list[int]
    """The nodes whose updates are in it."""
    total: NDArray[np.uint64]
    modulus_bits: int
    updates: int
    """Number of nodes that did not send zeros for want of an update."""
    within: int


class Protocol(SecAggPlusWorkflow):
    """Flower's SecAgg+ with the settings that carry whole limbs exactly.

    Nodes that fell silent before they had shared their keys take no part in the later stages:
    nobody has a mask with them, nor a share of their keys, and Flower's last stage would ask for
    one.
    """

    def __init__(
        self, limbs: Limbs, num_shares: float, threshold: float, timeout: float | None
    ) -> None:
        super().__init__(
            num_shares,
            threshold,
            max_weight=1.0,
            clipping_range=float(limbs.centre),
            quantization_range=1 << limbs.bits,
            modulus_range=_MODULUS,
            timeout=timeout,
        )

    def share_keys_stage(self, grid: Any, context: Any, state: Any) -> bool:
        """Run the stage, and continue with the nodes that completed it."""
        enough = super().share_keys_stage(grid, context, state)
        present = set(state.active_node_ids)
        state.sampled_node_ids = present
        state.nid_to_neighbours = {
            node: state.nid_to_neighbours[node] & present for node in present
        }
        return enough


def secure_sum(
    grid: Grid,
    messages: Sequence[Message],
    spec: SumSpec,
    *,
    number: int,
    num_shares: float,
    threshold: float,
    timeout: float | None,
    quiet: bool,
) -> SecureSum | str:
    """Return the sum of the updates of the nodes that `messages` ask, or the reason why not.

    Each node is sent the content of its message in the protocol's third stage. No reply ends it
    with an error; an error of the grid itself is raised. Flower's lines in the log count replies:
    they are marked as not private, and left out with `quiet`.
    """
    asked = {message.metadata.dst_node_id: message.content for message in messages}
    if len(asked) < 2:
        return f"a secure aggregation must have at least 2 users, got {len(asked)}"
    bits = spec.modulus_bits(len(asked))
    limbs = Limbs.of(len(asked), spec.layout.size, bits)
    text = json.dumps(spec.to_dict())
    own = ConfigRecord({TOKEN: spec.token, SPEC: text, CLIENTS: len(asked)})
    checked = CheckedGrid(grid, asked, own, limbs.length)
    found = _Found(asked)
    state = RecordDict(
        {
            MAIN_CONFIGS_RECORD: ConfigRecord({WorkflowKey.CURRENT_ROUND: number}),
            MAIN_PARAMS_RECORD: ArrayRecord(),
        }
    )
    context = LegacyContext(
        Context(0, 0, {}, state, {}),
        strategy=cast(Any, found),
        client_manager=cast(Any, SimpleNamespace(num_available=lambda: len(asked))),
    )
    try:
        with (
            marked_log("secaggplus_workflow", quiet=quiet),
            np.errstate(all="ignore"),
        ):  # a warning would reveal a value
            Protocol(limbs, num_shares, threshold, timeout)(cast(Any, checked), context)
        if found.mean is None:
            return checked.why_too_few()
        total, updates, within = limbs.joined(found.mean * len(found.nodes), len(found.nodes))
    except Exception as error:  # no reply may end the run
        if error is checked.broken:
            raise
        return f"{type(error).__name__}: {error}"
    return SecureSum(found.nodes, total, bits, updates, within)


class _Found:
    """The part of Flower's older strategies that the workflow calls; it keeps the mean."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self._asked = list(nodes)
        self.nodes: list[int] = []
        self.mean: NDArray[np.float64] | None = None

    def configure_fit(self, number: int, parameters: Any, manager: Any) -> list[tuple[Any, FitIns]]:
        """Return the nodes, each with an empty instruction: `CheckedGrid` adds the records."""
        empty = Parameters(tensors=[], tensor_type="numpy.ndarray")
        return [(SimpleNamespace(node_id=node), FitIns(empty, {})) for node in self._asked]

    def aggregate_fit(
        self, number: int, results: Any, failures: Any
    ) -> tuple[None, dict[str, Any]]:
        """Keep the mean over the nodes whose vectors are in it."""
        self.nodes = [proxy.node_id for proxy, _ in results]
        (self.mean,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


def first_message() -> RecordDict:
    """Return the content of a message of the first stage, which asks for public keys."""
    settings: dict[str, Any] = {
        Key.STAGE: Stage.SETUP,
        **{Key.SAMPLE_NUMBER: 3, Key.SHARE_NUMBER: 3, Key.THRESHOLD: 2},
        **{Key.CLIPPING_RANGE: 1.0, Key.MAX_WEIGHT: 1.0},
        **{Key.TARGET_RANGE: 1 << 20, Key.MOD_RANGE: _MODULUS},
    }
    return RecordDict({RECORD_KEY_CONFIGS: ConfigRecord(settings)})


def has_public_keys(content: RecordDict) -> bool:
    """Return True if a reply is one of the first stage."""
    found = content.config_records.get(RECORD_KEY_CONFIGS)
    keys = (Key.PUBLIC_KEY_1, Key.PUBLIC_KEY_2)
    return found is not None and all(type(found.get(key)) is bytes for key in keys)


class CheckedGrid:
    """A grid for the workflow: adds the round's records to messages, and checks replies.

    `contents` are the records for each node, `own` the record of the round, and `length` the number
    of masked numbers. `broken` is the error of the grid, if it had one.
    """

    def __init__(
        self, grid: Grid, contents: Mapping[int, RecordDict], own: ConfigRecord, length: int
    ) -> None:
        self._grid, self._contents, self._own, self._length = grid, contents, own, length
        self.broken: Exception | None = None
        self._errors: list[str] = []

    def why_too_few(self) -> str:
        """Return the reason for a protocol that halted, with the commonest error of the nodes."""
        reason = "too few nodes completed the protocol"
        if (found := commonest(self._errors)) is None:
            return reason
        return f"{reason}; commonest error ({found[1]} of {len(self._errors)}): {found[0]}"

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Return the first valid reply of each node that was asked."""
        asked: dict[int, ConfigRecord] = {}
        sent = list(messages)
        for message in sent:
            node, content = message.metadata.dst_node_id, message.content
            # A copy: the grid, or the client in a simulation, may take records out.
            asked[node] = content.config_records[RECORD_KEY_CONFIGS].copy()
            if asked[node][Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
                content.update(self._contents[node])
                content[RECORD] = self._own
        valid: dict[int, Message] = {}
        for reply in self._replies(sent, timeout):
            node = reply.metadata.src_node_id
            if node in asked and node not in valid and self._is_valid(node, asked[node], reply):
                valid[node] = reply
        return list(valid.values())

    def _replies(self, sent: list[Message], timeout: float | None) -> list[Message]:
        try:
            return list(self._grid.send_and_receive(sent, timeout=timeout))
        except Exception as error:
            self.broken = error
            raise

    def _is_valid(self, node: int, asked: ConfigRecord, reply: Message) -> bool:
        if reply.has_error():
            self._errors.append(
                f"stage {asked[Key.STAGE]!s}: {last_lines(str(reply.error.reason))}"
            )
            return False
        try:
            fits = self._fits(node, asked, reply.content)
        except Exception:  # bytes of a node that are no array, a record that is missing
            fits = False
        if not fits:
            self._errors.append(f"stage {asked[Key.STAGE]!s}: a reply that is none of SecAgg+")
        return fits

    def _fits(self, node: int, asked: ConfigRecord, content: RecordDict) -> bool:
        stage, found = asked[Key.STAGE], content.config_records[RECORD_KEY_CONFIGS]
        if stage == Stage.SETUP:
            return has_public_keys(content)
        if stage == Stage.SHARE_KEYS:
            others = [int(name) for name in asked if name not in (Key.STAGE, str(node))]
            nodes, shares = _list(found, Key.DESTINATION_LIST), _list(found, Key.CIPHERTEXT_LIST)
            return sorted(nodes) == sorted(others) and _are_bytes(shares, len(others))
        if stage == Stage.COLLECT_MASKED_VECTORS:
            factor, vector = map(array_in, _list(found, Key.MASKED_PARAMETERS))
            return _is_masked(factor, 1) and _is_masked(vector, self._length)
        lists = (Key.ACTIVE_NODE_ID_LIST, Key.DEAD_NODE_ID_LIST)
        owners = [owner for key in lists for owner in _list(asked, key)]
        shares = _list(found, Key.SHARE_LIST)
        return _list(found, Key.NODE_ID_LIST) == owners and _are_bytes(shares, len(owners))


def _list(record: ConfigRecord, key: str) -> list[Any]:
    return list(cast(list[Any], record[key]))


def _are_bytes(values: list[Any], count: int) -> bool:
    return len(values) == count and all(type(value) is bytes for value in values)


def _is_masked(array: NDArray[Any], length: int) -> bool:
    if array.dtype != np.int64 or array.shape != (length,):
        return False
    return bool(array.min() >= 0) and bool(array.max() < _MODULUS)
