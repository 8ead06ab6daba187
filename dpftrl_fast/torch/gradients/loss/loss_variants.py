# SPDX-License-Identifier: Apache-2.0
"""Other values for a recorded loss: some rows of the batch and of the model's output replaced.

Every variant keeps the values of some rows, whose gradients must then stay. What replaces the
others are values that the loss accepts: those of neighbours, the smallest and largest of the batch,
and on a CPU (elsewhere an index that does not exist ends the process) 0, 1, targets that losses
ignore, and the numbers that the loss compares targets with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dpftrl_fast.torch.gradients.loss.torch_calls import is_comparison
from dpftrl_fast.torch.gradients.loss.trace import Leaf, Record
from dpftrl_fast.torch.gradients.trials import changed_rows, close, rounding

IGNORED = -100  # the target that losses of torch and of transformers leave out
_IGNORING = {"cross_entropy", "nll_loss", "nll_loss2d"}

Values = Mapping[int, Tensor]


class Rows(NamedTuple):
    """Place of the examples in a tensor: along `dim`, `block` entries for each."""

    dim: int
    block: int


def rows_of(shape: torch.Size, rows: int, first: int, blocks: frozenset[int]) -> Rows | None:
    """Return where the rows of a shape are; None where it has none.

    `first` is the dimension to take where both have as many. A first dimension as long as one of
    `blocks` has several entries for each row.
    """
    for dim in (first, 1 - first):
        if len(shape) > dim and shape[dim] == rows:
            return Rows(dim, 1)
    if len(shape) and shape[0] in blocks:
        return Rows(0, shape[0] // rows)
    return None


def chosen(x: Tensor, where: Rows, places: list[int]) -> Tensor:
    """Return the rows at some places."""
    at = torch.tensor(places, device=x.device)
    if where.block > 1:
        inner = torch.arange(where.block, device=x.device)
        at = (at[:, None] * where.block + inner).flatten()
    return x.index_select(where.dim, at)


class Variants:
    """The variants of a record for one result, the loss.

    Parameters
    ----------
    record : Record
    root : int
        The place of the loss.
    values : mapping
        Those of the leaves, by place.
    rows : int
    first : int
        Dimension of examples where there are two.
    """

    def __init__(self, record: Record, root: int, values: Values, rows: int, first: int) -> None:
        core, reads, _ = record.needed(root)
        self._calls = [record.calls[i] for i in sorted(core | reads)]
        needed = {place for call in self._calls for place in call.refs()}
        self.values, self.rows = dict(values), rows
        self.leaves = [leaf for leaf in record.leaves if leaf.place in needed]
        self.blocks = frozenset(
            leaf.value.shape[0]
            for leaf in record.leaves
            if leaf.kind == "output"
            and rows_of(leaf.value.shape, rows, first, frozenset()) is None
            and leaf.value.dim() > 1
            and leaf.value.shape[0] % rows == 0
            and leaf.value.shape[0] > 0
        )
        self.where = {
            leaf.place: found
            for leaf in record.leaves
            if (leaf.kind != "other" or _may_be_data(leaf.value))
            and (found := rows_of(leaf.value.shape, rows, first, self.blocks)) is not None
        }
        self.changed: list[int] = []
        self.kept: list[int] = []
        self._on_cpu = all(leaf.value.device.type == "cpu" for leaf in self.leaves)

    def __iter__(self) -> Iterator[tuple[str, Values]]:
        """Return names and values; `kept` holds the rows that have their values."""
        places = range(self.rows)
        for changed in (changed_rows(self.rows), [*{*places} - {*changed_rows(self.rows)}]):
            self.changed = changed
            self.kept = [i for i in places if i not in changed]
            yield from self._of_rows()

    def _of_rows(self) -> Iterator[tuple[str, Values]]:
        yield "others", self._replaced(lambda x: None, 1.0)
        yield "others", self._replaced(lambda x: x.min(), 8.0)
        yield "others", self._replaced(lambda x: x.max(), -8.0)
        if not self._on_cpu or 0 in self.changed:
            return
        for number in (0, 1):
            yield "others", self._replaced(partial(_constant, number), 1.0)
        for number in self._ignored():
            # Where each target is an example's only one, the usual loss has none to ignore.
            leaves = [leaf.place for leaf in self.leaves if self._may_ignore(leaf, number)]
            if leaves:
                yield (
                    f"the targets of others, if they are {number}",
                    self._replaced(partial(_constant, number), 1.0, leaves),
                )

    def fixed(self, values: Values) -> Values | None:
        """Return a variant with the rows of tensors that are not of the batch as they were.

        None if there are none, or the batch is not known.
        """
        if all(leaf.kind != "batch" for leaf in self.leaves):
            return None
        own = {leaf.place for leaf in self.leaves if leaf.kind == "other"} & set(self.where)
        return {**values, **{place: self.values[place] for place in own}} if own else None

    def half(self) -> tuple[int, Values]:
        """Return a number of rows, and the values of as many."""
        part = self.rows // 2
        places = list(range(part))
        cut = {p: chosen(self.values[p], w, places) for p, w in self.where.items()}
        return part, {**self.values, **cut}

    def _replaced(
        self, number: Callable[[Tensor], Any], scale: float, integers: list[int] | None = None
    ) -> Values:
        """Return values whose changed rows are others, or only those of some integers."""
        places = [(i - 1) % self.rows if i in self.changed else i for i in range(self.rows)]
        found = dict(self.values)
        for leaf in self.leaves:
            x, where = self.values[leaf.place], self.where.get(leaf.place)
            if where is None:
                continue
            entries = [r * where.block + k for r in self.changed for k in range(where.block)]
            at = torch.tensor(entries, device=x.device)
            y = chosen(x, where, places)
            if leaf.kind == "output":
                part = y.index_select(where.dim, at) * scale
                y = y.index_copy(where.dim, at, part)
            elif integers is not None:
                y = x.index_fill(where.dim, at, number(x)) if leaf.place in integers else x
            elif x.numel() and not x.is_complex():
                value = number(x)
                y = y if value is None else y.index_fill(where.dim, at, value)
            found[leaf.place] = y
        return found

    def _ignored(self) -> list[int]:
        """Return numbers that may stand for no target."""
        found = {IGNORED: None, **dict.fromkeys(self._declared())}
        for call in self._calls:
            if is_comparison(call):
                for k in call.constants():
                    found.update(dict.fromkeys((int(k), int(k) - 1, int(k) + 1)))
        return list(found)[:12]

    def _declared(self) -> list[int]:
        """Return the targets that a loss was told to ignore."""
        found = []
        for call in self._calls:
            if call.name in _IGNORING:
                given = call.kwargs.get("ignore_index", [*call.args, *[None] * 5][4])
                if isinstance(given, int) and given != IGNORED:
                    found.append(given)
        return found

    def _may_ignore(self, leaf: Leaf, number: int) -> bool:
        x = self.values[leaf.place]
        integer = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
        if leaf.kind == "output" or not integer or leaf.place not in self.where:
            return False
        several = x.dim() > 1 or self.where[leaf.place].block > 1
        return number != IGNORED or several or bool((x == number).any()) or self._compares(number)

    def _compares(self, number: int) -> bool:
        return any(is_comparison(call) and number in call.constants() for call in self._calls)


def _constant(number: int, x: Tensor) -> int:
    return number


def _may_be_data(x: Tensor) -> bool:
    """Whether a tensor that is not of the batch may have a row for each example.

    Targets and masks that the loop gets elsewhere may; floats are as often weights of classes, and
    whole numbers in their order stand for the rows themselves.
    """
    if isinstance(x, nn.Parameter) or x.is_floating_point() or x.is_complex() or not x.dim():
        return False
    return x.dim() > 1 or not torch.equal(x, torch.arange(len(x), device=x.device).to(x.dtype))


def same_rows(
    a: Tensor, b: Tensor, where: Rows | None, kept: list[int], allowed: float | None = None
) -> bool:
    """Whether two gradients agree in the rows that are kept, relative to the largest of these.

    By default up to the rounding of their dtype.
    """
    part = rounding(a.dtype)[0] if allowed is None else allowed
    if where is not None:
        a, b = chosen(a, where, kept), chosen(b, where, kept)
    if a.dtype not in (torch.float64, torch.float32):
        a, b = a.float(), b.float()
    return close(a, b, part)
