# SPDX-License-Identifier: Apache-2.0
"""`Batches`: the batches of a private loader without their ids, as programs expect them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol


class Batched(Protocol):
    """A loader of (ids, batch), as `FixedOrderLoader`."""

    @property
    def dataset(self) -> Any:
        """The data set."""
        ...

    @property
    def batch_size(self) -> int:
        """Examples of a batch."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Any, Any]]: ...


class Batches:
    """Yields the batches of a loader, without the ids, which the loader has announced itself.

    Each iteration is the rest of the present epoch, as that of the loader. It takes the place of a
    ``DataLoader`` in programs that own the training loop: it has a length, `dataset` and
    `batch_size`.

    Parameters
    ----------
    loader : FixedOrderLoader
        Of `make_private`.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.loader import FixedOrderLoader
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(2))
    >>> loader = FixedOrderLoader(range(4), 2, plan, shuffle=False)
    >>> [x.tolist() for x in loader.batches()]
    [[0, 1], [2, 3]]
    """

    def __init__(self, loader: Batched) -> None:
        self._loader = loader

    @property
    def dataset(self) -> Any:
        """The data set of the loader."""
        return self._loader.dataset

    @property
    def batch_size(self) -> int:
        """Examples of a batch (B)."""
        return self._loader.batch_size

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the batches for the rest of the present epoch."""
        return (batch for _, batch in self._loader)
