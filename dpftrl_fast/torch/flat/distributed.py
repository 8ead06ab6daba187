# SPDX-License-Identifier: Apache-2.0
"""Many processes that share one tree of noise.

Replicas (DDP, or models that every process holds whole): each has the sum of its own examples. The
sums are added up over the processes, and every process adds the same noise, made from one key: it
is in the result once, and the replicas stay the same.

Shards (FSDP2, DTensors cut by rows): each process has its rows of the finished sum and makes the
noise of their coordinates only. The slices of all processes are the vector of one process.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from dpftrl_fast.torch.flat.tensors import is_sharded, mesh_of, shard_dimension

if "WORLD_SIZE" in os.environ:  # of a process that torchrun or another launcher has started
    # Loaded after init_process_group, as the first optimizer does, it refers to the group until the
    # interpreter ends: destroy_process_group then leaves the group's threads, one of which may
    # abort a process that has ended well.
    import torch._dynamo

_T = TypeVar("_T")


class Order(NamedTuple):
    """Order of the data as one rank has it, to be compared."""

    facts: Mapping[str, Any]
    """All that decides which examples a step has; empty where nothing is known."""
    shard: tuple[int, int] | None
    """(rank, processes) of its loader; None without one."""


class Ranks:
    """The processes of a run; this class is one process on its own."""

    reduces = False
    """Whether sums are still to be added up over the processes."""

    def share(self, value: _T) -> _T:
        """Return the value of rank 0."""
        return value

    def gather(self, value: _T) -> list[_T]:
        """Return the values of all ranks, in their order."""
        return [value]

    def check_same(self, facts: Mapping[str, Any], *, refusal: Exception | None = None) -> None:
        """Refuse, on all ranks, facts that are not the same on all.

        `refusal` is this rank's reason to refuse, which is raised here and refused on all.
        """
        if refusal is not None:
            raise refusal

    def check_order(self, order: Order, *, refusal: Exception | None = None) -> None:
        """Refuse, on all ranks, an order that is not the same on all, or dealt wrongly.

        Each rank must have a part of every batch that no other has. `refusal` as for `check_same`.
        """
        if refusal is not None:
            raise refusal

    def open_step(
        self,
        step: int,
        has_gradients: bool,
        device: torch.device,
        *,
        rates: str = "",
        examples: str = "",
        refusal: Exception | None = None,
    ) -> bool:
        """Refuse, on all ranks, a step that one refuses or that is not the same on all.

        `rates` and `examples` are text that must agree on all ranks; `refusal` is this rank's
        reason to take no step, which is raised here. Returns whether any rank has gradients.
        """
        if refusal is not None:
            raise refusal
        return has_gradients

    def reduce_(self, sums: Tensor) -> None:
        """Add up this rank's sums with those of the others, in place."""

    def norm(self, part: Tensor) -> float:
        """Return the L2 norm of the vector of which `part` lies on this rank, in float64."""
        return math.sqrt(_squares(part).item())


class _Group(Ranks):
    """Common part of replicas and shards.

    `group` None is all processes, to which nothing here refers: `destroy_process_group` ends it.
    """

    def __init__(self, group: Any) -> None:
        self._group = group

    def share(self, value: _T) -> _T:
        shared = [value]
        dist.broadcast_object_list(shared, src=self._source, group=self._group)
        return shared[0]

    def gather(self, value: _T) -> list[_T]:
        return self._gathered(value, None)

    def check_same(self, facts: Mapping[str, Any], *, refusal: Exception | None = None) -> None:
        _refuse_different(self._gathered(dict(facts), refusal))

    def check_order(self, order: Order, *, refusal: Exception | None = None) -> None:
        everywhere: list[Order] = self._gathered(order, refusal)
        _refuse_different([own.facts for own in everywhere])
        size, shards = len(everywhere), [own.shard for own in everywhere]
        if all(shard is None for shard in shards):
            return
        if set(shards) != {(part, size) for part in range(size)}:
            raise ValueError(
                f"the loaders of the {size} ranks must have the shards (0, {size}) to ({size - 1}, "
                f"{size}), one each, so that an example is in one sum only, got {shards}"
            )

    def _gathered(self, value: Any, refusal: Exception | None) -> list[Any]:
        """Return the values of all ranks; refuse where one refuses."""
        everywhere: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everywhere, (refusal is not None, value), group=self._group)
        if refusal is not None:
            raise refusal
        for rank, (refused, _) in enumerate(everywhere):
            if refused:
                raise ValueError(f"expected a run that all ranks accept, got rank {rank} refusing")
        return [own for _, own in everywhere]

    def open_step(
        self,
        step: int,
        has_gradients: bool,
        device: torch.device,
        *,
        rates: str = "",
        examples: str = "",
        refusal: Exception | None = None,
    ) -> bool:
        own = [
            step,
            int(has_gradients),
            int(refusal is not None),
            _number(rates),
            _number(examples),
        ]
        highest = torch.tensor([*own, *(-value for value in own)], device=device)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self._group)
        last, any_gradients, refused, *told, first, _, _, least_rates, least_examples = (
            highest.tolist()
        )
        if refusal is not None:
            raise refusal
        if refused:
            raise ValueError("expected all ranks to take the step, got one that refuses it")
        if last != -first:
            raise ValueError(f"all ranks must be at the same step, got steps {-first} to {last}")
        if told[0] != -least_rates:
            raise ValueError(f"all ranks must have the same rates of the groups, here {rates}")
        if told[1] != -least_examples:
            raise ValueError(
                f"all ranks must have the same ids in the batch of step {last}, got others: each "
                "rank announces the whole batch, and hands in the gradients of its own rows"
            )
        return bool(any_gradients)

    def _word_of_rank_0(self, squares: Tensor) -> float:
        # The order of a summation may depend on a rank's threads; ranks with the same rows must
        # not come apart.
        dist.broadcast(squares, src=self._source, group=self._group)
        return math.sqrt(squares.item())

    @property
    def _source(self) -> int:
        return 0 if self._group is None else dist.get_global_rank(self._group, 0)


class Replicas(_Group):
    """Processes that each hold all parameters and the sums of their own examples."""

    reduces = True

    def reduce_(self, sums: Tensor) -> None:
        """Add up over the group."""
        dist.all_reduce(sums, group=self._group)

    def norm(self, part: Tensor) -> float:
        """Return rank 0's norm: every rank has the whole vector."""
        return self._word_of_rank_0(_squares(part))


class Shards(_Group):
    """Processes that each hold some rows of every parameter.

    `group` has all of them, `cut` those that together hold every row once (None if each holds all).
    """

    def __init__(self, group: Any, cut: Any) -> None:
        super().__init__(group)
        self._cut = cut

    def norm(self, part: Tensor) -> float:
        """Return the norm of all parts together."""
        squares = _squares(part)
        if self._cut is not None:
            dist.all_reduce(squares, group=self._cut)
        return self._word_of_rank_0(squares)


def ranks_of(parameters: Iterable[Tensor], process_group: Any = None) -> Ranks:
    """Return how the processes of a group share these parameters.

    The parameters are all plain tensors or all DTensors on one mesh. Without a `process_group` it
    is all processes, where torch.distributed is initialised. ValueError if this process is not in
    the group, or DTensors are not cut by rows over one dimension of one mesh of the whole group.
    """
    parameters = list(parameters)
    if not (dist.is_available() and dist.is_initialized()):
        if process_group is not None:
            raise ValueError("expected an initialised torch.distributed with a process_group")
        return Ranks()
    group = None if process_group is dist.group.WORLD else process_group
    size = dist.get_world_size(group)
    if size < 1:
        raise ValueError("process_group must be one that this process belongs to")
    if is_sharded(parameters[0]):
        return _shards(parameters, group, size)
    return Ranks() if size == 1 else Replicas(group)


def ranks_of_group(process_group: Any = None) -> Ranks:
    """Return the processes of a group, whatever the parameters; only to compare and to share.

    ValueError if this process is not in the group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return Ranks()
    group = None if process_group is dist.group.WORLD else process_group
    size = dist.get_world_size(group)
    if size < 1:
        raise ValueError("process_group must be one that this process belongs to")
    return Ranks() if size == 1 else Replicas(group)


def _refuse_different(everywhere: Sequence[Mapping[str, Any]]) -> None:
    first = everywhere[0]
    for name in dict.fromkeys(name for facts in everywhere for name in facts):
        for rank, other in enumerate(everywhere):
            if name not in first or name not in other or other[name] != first[name]:
                raise ValueError(
                    f"all ranks must have the same {name}: rank 0 has "
                    f"{first.get(name, 'none')!r}, rank {rank} {other.get(name, 'none')!r}"
                )


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")


def _shards(parameters: list[Tensor], group: Any, size: int) -> Shards:
    meshes = {mesh_of(p) for p in parameters}
    if len(meshes) > 1:
        raise ValueError(f"all DTensors must lie on one mesh, got {len(meshes)} meshes")
    mesh = meshes.pop()
    if mesh.size() != size:
        raise ValueError(
            f"the mesh must have the {size} processes of the process_group, got {mesh.size()}"
        )
    cut = {shard_dimension(f"parameter {i}", p) for i, p in enumerate(parameters)}
    if len(cut) > 1:
        raise ValueError(
            "all parameters must be sharded over the same dimension of the mesh, got "
            f"{sorted(map(str, cut))}"
        )
    dimension = cut.pop()
    return Shards(group, None if dimension is None else mesh.get_group(dimension))


def _squares(part: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(part, dtype=torch.float64)
    return norm.square()
