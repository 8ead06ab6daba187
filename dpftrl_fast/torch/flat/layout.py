# SPDX-License-Identifier: Apache-2.0
"""`ParameterLayout`: range of coordinates of each parameter in the one noise vector.

Parameters follow one another in the order of the groups, and each takes the next range of global
coordinates, in row-major order. So no two tensors share noise, whatever their shapes. A layout is
made once, at the first step; afterwards it checks that the parameters are still the same.
"""

from __future__ import annotations

import hashlib
import json
import operator
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from dpftrl_fast.torch.flat.tensors import is_sharded, local_range, local_tensor, placements_of
from dpftrl_fast.torch.gradients.clipped_sums import sum_dtype

_SHAPE, _DTYPE, _DEVICE = attrgetter("shape"), attrgetter("dtype"), attrgetter("device")
_GRAD, _LAYOUT, _IS_CPU = attrgetter("grad"), attrgetter("layout"), attrgetter("is_cpu")
_HALVES = (torch.bfloat16, torch.float16)
_READABLE = {torch.float32, torch.float64}


@dataclass(frozen=True)
class Entry:
    """One parameter: public facts, and the part of it on this rank."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    """Global coordinate of its element 0."""
    first: int
    """Where this rank's part begins, counted in the parameter."""
    count: int
    """Coordinates of this rank's part."""


@dataclass(frozen=True)
class ParameterLayout:
    """All trainable parameters of an optimiser as one vector; `members` are weak references."""

    entries: tuple[Entry, ...]
    group_ends: tuple[int, ...]
    device: torch.device
    sharded: bool
    members: tuple[weakref.ref[Tensor], ...] = field(repr=False, compare=False)

    @classmethod
    def of(cls, groups: Sequence[Mapping[str, Any]]) -> ParameterLayout:
        """Lay out the parameters of `param_groups` that require a gradient.

        ValueError if there is none, one comes twice, one is not a dense real floating-point tensor,
        or they lie on several devices.

        Examples
        --------
        >>> w, b = torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(3))
        >>> layout = ParameterLayout.of([{"params": [w, b]}])
        >>> [(entry.start, entry.count) for entry in layout.entries]
        [(0, 6), (6, 3)]
        """
        entries: list[Entry] = []
        ends = []
        start = 0
        devices, sharded = set(), set()
        members: list[Tensor] = []
        seen: set[int] = set()
        for g, group in enumerate(groups):
            names = group.get("param_names") or [f"{g}.{i}" for i in range(len(group["params"]))]
            for name, p in zip(names, group["params"], strict=True):
                if not p.requires_grad:
                    continue
                _check_kind(name, p)
                if id(p) in seen:
                    raise ValueError(f"every parameter must come once, got {name} twice")
                seen.add(id(p))
                members.append(p)
                first, count = local_range(name, p)
                entries.append(Entry(name, tuple(p.shape), p.dtype, start, first, count))
                start += p.numel()
                devices.add(p.device)
                sharded.add(is_sharded(p))
            ends.append(len(entries))
        if start == 0:
            raise ValueError("expected parameters that require a gradient, got none")
        if len(sharded) > 1:
            raise ValueError("parameters must be all DTensors or all plain tensors, got both")
        if len(devices) > 1:
            raise ValueError(
                f"all parameters must lie on one device, got {', '.join(sorted(map(str, devices)))}"
            )
        refs = tuple(map(weakref.ref, members))
        return cls(tuple(entries), tuple(ends), devices.pop(), sharded.pop(), refs)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Coordinates on this rank as (first, count), adjoining ones as one."""
        found: list[tuple[int, int]] = []
        for entry in self.entries:
            first = entry.start + entry.first
            if entry.count and found and sum(found[-1]) == first:
                found[-1] = (found[-1][0], found[-1][1] + entry.count)
            elif entry.count:
                found.append((first, entry.count))
        return found

    @property
    def group_sizes(self) -> list[int]:
        """Number of entries of each group."""
        return [
            stop - start
            for start, stop in zip((0, *self.group_ends), self.group_ends, strict=False)
        ]

    def fingerprint(self) -> str:
        """Return a hash of names, shapes, dtypes and groups, the same on all ranks."""
        facts = [[entry.name, entry.shape, str(entry.dtype)] for entry in self.entries]
        text = json.dumps([facts, self.group_ends])
        return hashlib.sha256(b"dpftrl_fast.torch/layout/v1\0" + text.encode()).hexdigest()

    def parameters(self, groups: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """Return the parameters in order; ValueError unless they are those laid out.

        A parameter may not be added, removed, replaced, frozen or unfrozen, or change its shape,
        dtype or device.
        """
        now = [[p for p in group["params"] if p.requires_grad] for group in groups]
        if [len(group) for group in now] != self.group_sizes:
            raise ValueError(
                f"parameter groups must have {self.group_sizes} parameters that require a "
                f"gradient, as at the first step, got {[len(group) for group in now]}"
            )
        found = [p for group in now for p in group]
        # Loops in C: with a thousand tensors, one in Python costs as much as the update.
        if not (
            all(map(operator.is_, found, [member() for member in self.members]))
            and [*map(_SHAPE, found)] == self._shapes
            and [*map(_DTYPE, found)] == self._dtypes
            and self._all_here(found)
        ):
            self._refuse_change(found)
        return found

    def _all_here(self, tensors: Sequence[Tensor]) -> bool:
        if self.device.type == "cpu":  # half as long as comparing devices
            return all(map(_IS_CPU, tensors))
        return {*map(_DEVICE, tensors)} == {self.device}

    def _refuse_change(self, found: Sequence[Tensor]) -> None:
        for entry, member, p in zip(self.entries, self.members, found, strict=True):
            if member() is not p:
                raise ValueError(
                    f"{entry.name} must be the parameter that it was at the first step, got another"
                )
            if p.shape != entry.shape or p.dtype != entry.dtype or p.device != self.device:
                raise ValueError(
                    f"{entry.name} must be of shape {entry.shape}, {entry.dtype}, on "
                    f"{self.device}, as at the first step, got {tuple(p.shape)}, {p.dtype}, on "
                    f"{p.device}"
                )

    @cached_property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [entry.shape for entry in self.entries]

    @cached_property
    def _dtypes(self) -> list[torch.dtype]:
        return [entry.dtype for entry in self.entries]

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of tensors laid out as the parameters, without graphs.

        The tensors themselves, where no graphs are recorded and they are whole.
        """
        if self.sharded:
            return [local_tensor(tensor) for tensor in tensors]
        if not torch.is_grad_enabled():
            return [*tensors]
        return [tensor.detach() for tensor in tensors]

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor | None]:
        """Return this rank's parts of the sums in ``p.grad``; None where there is none.

        They may be part of a graph: use them under ``torch.no_grad()``. ValueError if one is
        sparse, in half precision, or laid out over ranks otherwise than its parameter.
        """
        found: list[Tensor | None] = [*map(_GRAD, parameters)]
        present = [gradient for gradient in found if gradient is not None]
        dense = {*map(_LAYOUT, present)} <= {torch.strided}
        if not (dense and {*map(_DTYPE, present)} <= _READABLE):
            for entry, p, gradient in zip(self.entries, parameters, found, strict=True):
                if gradient is not None and not _readable(gradient):
                    raise ValueError(_unreadable(entry.name, p, gradient))
        if not self.sharded:
            return found
        for entry, p, gradient in zip(self.entries, parameters, found, strict=True):
            if gradient is not None and placements_of(gradient) != placements_of(p):
                raise ValueError(
                    f"the gradient of {entry.name} must be laid out over ranks as {entry.name} "
                    f"is, {placements_of(p)}, got {placements_of(gradient)}"
                )
        return [None if gradient is None else local_tensor(gradient) for gradient in found]


def _check_kind(name: str, p: Tensor) -> None:
    known = (torch.float32, torch.float64, *_HALVES)
    if p.dtype not in known or p.layout != torch.strided:
        raise ValueError(
            f"{name} must be a dense tensor of float32, float64, bfloat16 or float16, got "
            f"{p.dtype}, {p.layout}"
        )
    if any(step == 0 and rows > 1 for step, rows in zip(p.stride(), p.shape, strict=True)):
        raise ValueError(
            f"{name} must have memory for each of its elements, got an expanded tensor"
        )
    if p.is_neg():  # results are written by address
        raise ValueError(
            f"{name} must have memory with its own sign, got a view with the other one: take "
            "its resolve_neg()"
        )


def _readable(gradient: Tensor) -> bool:
    return gradient.layout == torch.strided and gradient.dtype in _READABLE


def _unreadable(name: str, p: Tensor, gradient: Tensor) -> str:
    if gradient.layout != torch.strided:
        return (
            f"the gradient of {name} must be dense, got {gradient.layout}: noise is added to every "
            "coordinate (an Embedding takes sparse=False)"
        )
    return (
        f"the gradient sum of {name} must be {sum_dtype(p.dtype)}, got {gradient.dtype}: a sum "
        "rounded to half precision does not keep to the clip norm. Set p.grad_dtype = "
        "torch.float32 and sum in that"
    )
