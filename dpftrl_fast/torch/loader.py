# SPDX-License-Identifier: Apache-2.0
"""`FixedOrderLoader`: batches in the order that the plan declares, and the position in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
)

from dpftrl_fast._validate import equal, flag, integer, positive_integer, shown
from dpftrl_fast.plan.epoch_order import EpochOrder
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.torch.batches import Batches
from dpftrl_fast.torch.flat.distributed import Order
from dpftrl_fast.torch.gradients.accumulate import Accumulator

Ints = NDArray[np.int64]

# What loops call on the rows of a batch, and arrays lack.
_OF_TENSORS = ("to", "cuda", "cpu", "float", "long", "unsqueeze", "requires_grad_")

_KIND, _VERSION = "FixedOrderLoader", 1
_STATE = ("kind", "version", "position", "order_seed", "fingerprint", "deal")
# Options taken over from a DataLoader: always, and if it has workers.
_OPTIONS = ("collate_fn", "pin_memory")
_WORKER_OPTIONS = (
    "num_workers",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)


class FixedOrderLoader:
    """Yields the batches of a run in a fixed order, which is public.

    In each epoch the batches are the same, in the same order. With `shuffle`, a permutation assigns
    the examples to batches, and where the plan starts a new tree together with an epoch, and
    declares it (``FixedEpochs(reshuffle=True)``), a new one. Iterating yields the rest of the
    present epoch, so that ``for epoch in range(epochs): for ids, batch in loader:`` is the run.

    Parameters
    ----------
    dataset : Dataset
        With a length and integer places; example i has the id i.
    batch_size : int
        Examples of a batch (B); the last one of an epoch may have fewer.
    plan : PrivacyPlan
        Its steps must be whole epochs.
    shuffle : bool
        Whether the order is drawn at random; False keeps that of the data set.
    order_seed : int, optional
        Of the permutations: public, unrelated to the noise. By default from the operating system;
        the state keeps it.
    drop_last : bool
        Leave out the last batch of an epoch if it has fewer examples.
    shard : tuple of int
        (rank, processes): each process gets the examples of a batch at places rank,
        rank + processes, and so on.
    **options
        Of `torch.utils.data.DataLoader`: ``collate_fn``, ``pin_memory``, ``num_workers``,
        ``timeout``, ``worker_init_fn``, ``multiprocessing_context``, ``prefetch_factor``.

    Attributes
    ----------
    seed_is_given : bool
        Whether the seed is the caller's: then a state with another is refused. Set it to False
        where the caller has drawn the seed, to share it with other processes.

    Raises
    ------
    TypeError, ValueError
        If the data has no fixed order, or the plan is for another number of steps.

    Notes
    -----
    With an `Accumulator` attached, each batch must have its ``optimizer.step()`` before the next is
    yielded; the position is that of the steps taken. A batch that had none comes again when the
    loader is iterated anew.

    Examples
    --------
    >>> from dpftrl_fast import accounting
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.FixedEpochs(2, 2, reshuffle=False))
    >>> data = torch.utils.data.TensorDataset(torch.arange(3.0))
    >>> loader = FixedOrderLoader(data, 2, plan, shuffle=False)
    >>> [(ids.tolist(), x.tolist()) for ids, [x] in loader]
    [([0, 1], [0.0, 1.0]), ([2], [2.0])]
    >>> loader
    FixedOrderLoader(examples=3, batch_size=2, shuffle=False, order_seed=None, steps=4, position=2)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        plan: PrivacyPlan,
        *,
        shuffle: bool = True,
        order_seed: int | None = None,
        drop_last: bool = False,
        shard: tuple[int, int] = (0, 1),
        **options: Any,
    ) -> None:
        _check_dataset(dataset)
        if unknown := set(options) - {*_OPTIONS, *_WORKER_OPTIONS}:
            known = [*_OPTIONS, *_WORKER_OPTIONS]
            raise TypeError(f"options must be among {known}, got {sorted(unknown)}")
        size = positive_integer("batch_size", batch_size)
        shuffled, short = flag("shuffle", shuffle), flag("drop_last", drop_last)
        self.dataset, self.plan, self._options = dataset, plan, options
        self.seed_is_given = order_seed is not None
        seed = secrets.randbits(64) if order_seed is None else integer("order_seed", order_seed, 0)
        self._order = EpochOrder(len(dataset), size, plan, seed if shuffled else None, short)
        rank, processes = shard
        if not 0 <= rank < processes <= self._order.smallest_batch:
            raise ValueError(
                "shard must be (rank, processes) with rank < processes <= "
                f"{self._order.smallest_batch}, the examples of the smallest batch, got {shard}"
            )
        self.shard = rank, processes
        self._accumulator: Accumulator | None = None
        self._position = 0

    @classmethod
    def from_loader(
        cls,
        loader: DataLoader[Any],
        plan: PrivacyPlan,
        *,
        shuffle: bool = True,
        order_seed: int | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> FixedOrderLoader:
        """Return a loader with the data set and options of a DataLoader that does not shuffle.

        Examples
        --------
        >>> from dpftrl_fast import accounting
        >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(2))
        >>> FixedOrderLoader.from_loader(DataLoader(range(4), batch_size=2), plan).batch_size
        2
        """
        check_loader(loader)
        size = loader.batch_size
        assert size is not None
        return cls(
            loader.dataset,
            size,
            plan,
            shuffle=shuffle,
            order_seed=order_seed,
            drop_last=loader.drop_last,
            shard=shard,
            **loader_options(loader),
        )

    def attach(self, accumulator: Accumulator) -> None:
        """Announce every batch to an accumulator, and follow the steps it takes.

        ValueError if it is at another step than this loader.
        """
        if accumulator.steps_taken != self._position:
            raise ValueError(
                f"the accumulator must be at step {self._position}, as the loader, got "
                f"{accumulator.steps_taken}"
            )
        self._accumulator = accumulator
        accumulator.order = self.order

    @property
    def accumulator(self) -> Accumulator | None:
        """The attached accumulator."""
        return self._accumulator

    @property
    def batch_size(self) -> int:
        """Examples of a batch (B)."""
        return self._order.batch_size

    @property
    def position(self) -> int:
        """Steps taken so far."""
        return self._position if self._accumulator is None else self._accumulator.steps_taken

    @property
    def epoch(self) -> int:
        """The present epoch, from 0; the number of epochs when all are over."""
        return self.position // len(self)

    @property
    def fingerprint(self) -> str:
        """Hash of everything that decides the order: the plan, the counts and the seed."""
        return self._order.fingerprint()

    def order(self) -> Order:
        """Return what all ranks must have in common, and the part of this one."""
        order = self._order
        facts = {
            "plan": self.plan.to_dict(),
            "number of examples": order.units,
            "batch_size": order.batch_size,
            "drop_last": order.drop_last,
            "order_seed (None without shuffle)": order.seed,
            "order of the examples (a hash)": order.deal_hash(1),  # NumPy may draw another
        }
        return Order(facts, self.shard)

    def __repr__(self) -> str:
        order = self._order
        return (
            f"FixedOrderLoader(examples={order.units}, batch_size={order.batch_size}, "
            f"shuffle={order.seed is not None}, order_seed={order.seed}, steps={self.plan.steps}, "
            f"position={self.position})"
        )

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return self._order.steps_per_epoch

    def ids(self, step: int) -> Ints:
        """Return the examples of a step (from 1), those of all processes."""
        return self._order.ids(step)

    def __iter__(self) -> Iterator[tuple[Ints, Any]]:
        """Return an iterator over (ids, batch) for the rest of the present epoch."""
        batches = self.in_pieces(self.batch_size)
        return (piece for pieces in batches for piece in pieces)

    def batches(self) -> Batches:
        """Return what yields the batches alone: ``for x, y in loader.batches()``."""
        return Batches(self)

    def in_pieces(self, rows: int) -> Iterator[Iterator[tuple[Ints, Any]]]:
        """Return an iterator over batches, each an iterator over pieces (ids, rows of it).

        The gradients of the pieces of a batch add up, and it has one step::

            for pieces in loader.in_pieces(64):
                for ids, (x, y) in pieces:
                    criterion(model(x), y).backward()
                optimizer.step()

        A piece has at most `rows` examples. ValueError if all steps are taken; or, while it runs,
        if a batch is asked for before the step of the one before, or a piece before the gradients
        of the one before.
        """
        size = positive_integer("rows", rows)
        first = self.position + 1
        if first > self.plan.steps:
            raise ValueError(
                f"all {self.plan.steps} declared steps are taken, got another epoch: the epsilon "
                "is stated for no more; declare as many epochs as you train, before the first step"
            )
        if self._accumulator is not None and self._accumulator.is_open:
            self._accumulator.abandon()
        return self._batches(range(first, (self.epoch + 1) * len(self) + 1), size)

    def _batches(self, steps: range, size: int) -> Iterator[Iterator[tuple[Ints, Any]]]:
        source: Iterator[Any] = iter(
            DataLoader(
                self.dataset,
                batch_sampler=_Pieces(self, steps, size),
                generator=torch.Generator().manual_seed(steps[0]),  # not the global one
                **self._options,
            )
        )
        for step in steps:
            if self.position != step - 1:
                raise ValueError(
                    f"expected {step - 1} steps before the batch of step {step}, got "
                    f"{self.position}: take one optimizer.step() for each batch, in one loop"
                )
            mine = self._mine(step)
            if self._accumulator is not None:
                self._accumulator.begin(self.ids(step), mine.size)
            pieces = self._pieces(mine, size, source)
            yield pieces
            for _ in pieces:
                raise ValueError(f"expected all pieces of step {step} to be used, got one left")
            if self._accumulator is None:
                self._position = step

    def _pieces(self, ids: Ints, size: int, source: Iterator[Any]) -> Iterator[tuple[Ints, Any]]:
        for start in range(0, ids.size, size):
            part = ids[start : start + size]
            batch = next(source)
            if self._accumulator is not None:
                self._accumulator.expect(part.size)
                if self._accumulator.handed_out is not None:
                    batch = self._accumulator.handed_out(batch)
            yield part.view(_Ids), batch

    def _mine(self, step: int) -> Ints:
        rank, processes = self.shard
        return self.ids(step)[rank::processes]

    def state_dict(self) -> dict[str, Any]:
        """Return position, seed and fingerprint: integers and strings, none of them secret."""
        return {
            "kind": _KIND,
            "version": _VERSION,
            "position": self.position,
            "order_seed": self._order.seed,
            "fingerprint": self.fingerprint,
            "deal": self._order.deal_hash(min(self.position + 1, self.plan.steps)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same order.

        With an accumulator attached, load the state of its guard first. A state of another order,
        plan or kind, or of another step than the guard is refused; nothing is changed then.
        """
        given: Any = state
        if not isinstance(given, Mapping) or set(given) != set(_STATE):
            raise ValueError(f"state must be a mapping with the keys {list(_STATE)}, got another")
        if not (equal(state["kind"], _KIND) and equal(state["version"], _VERSION)):
            raise ValueError(
                f"state must be of {_KIND} version {_VERSION}, got {shown(state['kind'])} version "
                f"{shown(state['version'])}"
            )
        position, seed, old = state["position"], state["order_seed"], self._order
        if not (type(position) is int and 0 <= position <= self.plan.steps):
            raise ValueError(
                f"state's position must be in 0 .. {self.plan.steps}, got {shown(position)}"
            )
        if self._accumulator is not None and self.position != position:
            raise ValueError(
                f"state's position must be that of the guard, {self.position}, got {position}: "
                "load the guard's state first"
            )
        order = old
        if old.seed is not None and seed is not None and not self.seed_is_given:
            order = EpochOrder(
                old.units, old.batch_size, self.plan, integer("order_seed", seed, 0), old.drop_last
            )
        found = order.fingerprint(), order.deal_hash(min(position + 1, self.plan.steps))
        if not (equal(state["fingerprint"], found[0]) and equal(state["deal"], found[1])):
            raise ValueError(
                "state must be of the same order of the data (plan, number of examples, batch "
                "size, drop_last, shuffle, order_seed), got another"
            )
        self._order, self._position = order, position


class _Ids(np.ndarray[Any, np.dtype[np.int64]]):
    """The ids of a batch, which are told apart from its rows where a loop takes them for these."""

    def __getattr__(self, name: str) -> Any:
        if name in _OF_TENSORS:
            raise AttributeError(
                f"the ids of a batch have no attribute {name!r}: the loader yields (ids, batch), "
                "so write `for ids, (x, y) in loader`"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class _Pieces:
    """The batch sampler of some steps: lists of places, a piece each."""

    def __init__(self, loader: FixedOrderLoader, steps: range, size: int) -> None:
        self._loader, self._steps, self._size = loader, steps, size

    def __iter__(self) -> Iterator[list[int]]:
        for step in self._steps:
            ids = self._loader._mine(step)
            for start in range(0, ids.size, self._size):
                yield ids[start : start + self._size].tolist()


def loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the options of a DataLoader that do not choose the examples of a batch."""
    names = [*_OPTIONS, *(_WORKER_OPTIONS if loader.num_workers else ())]
    return {name: getattr(loader, name) for name in names}


def check_loader(loader: Any) -> None:
    """Refuse a DataLoader that shuffles or samples, or has no data set of known length."""
    if not isinstance(loader, DataLoader):
        raise TypeError(f"data_loader must be a DataLoader, got {type(loader).__name__}")
    _check_dataset(loader.dataset)
    came = type(loader.sampler).__name__
    plain = type(loader.sampler) is SequentialSampler
    if plain and len(loader.sampler) != len(loader.dataset):  # type: ignore[arg-type]
        plain, came = False, f"{came} of {len(loader.sampler)} examples"  # type: ignore[arg-type]
    if isinstance(loader.sampler, DistributedSampler):
        raise ValueError(
            "data_loader must have no sampler, got DistributedSampler: make_private gives each "
            "process its part of every batch itself, so give it the whole data set"
        )
    if not plain:
        raise ValueError(
            "data_loader must not shuffle or sample on its own (DataLoader's shuffle=False, no "
            "sampler), since the order is part of the plan; make_private draws a random one, or "
            f"keeps that of the data set with its own shuffle=False; got {came}"
        )
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        came = type(loader.batch_sampler).__name__
        raise ValueError(f"data_loader must have a fixed batch_size, got batch_sampler {came}")


def _check_dataset(dataset: Any) -> None:
    lacks = not all(hasattr(dataset, name) for name in ("__len__", "__getitem__"))
    if lacks or isinstance(dataset, IterableDataset):
        raise ValueError(
            "the data set must have __len__ and __getitem__, so that its order can be fixed, got "
            f"{type(dataset).__name__}: read it once into a list, or give one that reads a place"
        )
