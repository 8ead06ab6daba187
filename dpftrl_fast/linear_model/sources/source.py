# SPDX-License-Identifier: Apache-2.0
"""Interfaces between rows and engines: a source feeds batches, a stepper takes them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast.convex.row_batches import Batch, SparseRows
from dpftrl_fast.tables.labels import Kind

Ints: TypeAlias = NDArray[np.int64]
#: From targets to the numbers that the losses read.
Encode: TypeAlias = Callable[[Any], NDArray[np.float64]]


class Stepper(Protocol):
    """Takes batches: an engine, or a meter around one."""

    def step(self, batch: Batch) -> None:
        """Take one step with this batch."""


@runtime_checkable
class CheckingStepper(Stepper, Protocol):
    """Tells of rows that are not finite."""

    def met_bad_row(self) -> bool:
        """Return whether a row since the last call may not be finite: secret."""


@runtime_checkable
class SumStepper(Protocol):
    """Takes sums of batches, which other processes can compute.

    Attributes
    ----------
    sums_follow_model : bool
        Whether the sums of a batch depend on the last iterate; otherwise they can be computed at
        any time.
    """

    sums_follow_model: bool

    def summing(self) -> Callable[[Batch], Any]:
        """Return the function that sums the next batch; it can be pickled and has no secrets."""

    def advance(self, sums: Any) -> None:
        """Take one step with such sums."""


class RowSource(ABC):
    """Source of the batches of a fit.

    Attributes
    ----------
    units : int
        Number of rows or (with groups) users: public.
    rows : int
        Number of rows: public.
    n_features : int
    feature_names : sequence of str, optional
    label_kind : Kind, optional
        Kind of the labels by their dtype; None where it says nothing.
    """

    units: int
    rows: int
    n_features: int
    feature_names: Sequence[str] | None = None
    label_kind: Kind | None = None

    @abstractmethod
    def feed(
        self,
        run: Stepper,
        order: Iterable[slice | Ints],
        encode: Encode,
        progress: Callable[[], None],
    ) -> None:
        """Take a step with every batch of `order`; call `progress` after each."""


def join(parts: Sequence[Batch]) -> Batch:
    """Join batches without users, all dense or all sparse; a single one is not copied.

    Examples
    --------
    >>> part = Batch(np.ones((2, 3)), np.zeros(2))
    >>> join([part, part]).X.shape
    (4, 3)
    """
    if len(parts) == 1:
        return parts[0]
    return Batch(*map(_joined, zip(*parts, strict=True)))


def _joined(pieces: Sequence[Any]) -> Any:
    """Join one field of batches, which all of them have or none has."""
    if all(piece is None for piece in pieces):
        return None
    if isinstance(pieces[0], SparseRows):
        from scipy.sparse import vstack

        return SparseRows.of(vstack([piece.to_scipy() for piece in pieces], format="csr"))
    return np.concatenate(pieces)
