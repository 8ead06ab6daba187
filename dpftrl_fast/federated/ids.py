# SPDX-License-Identifier: Apache-2.0
"""Client ids: the integers that the accountant counts users by, from the names of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import shown
from dpftrl_fast.accounting.guard.ids import ID_BITS, canonical_id, hashed_id, user_id
from dpftrl_fast.accounting.guard.keyed_ids import KeyedIds

Client: TypeAlias = int | str
#: Version of ids under a key.
KEYED = 3
Ints = NDArray[np.int64]

_NONE = (bool, np.bool_, np.timedelta64)  # integers for Python or NumPy, refused here


def client_id(client: object) -> int:
    """Return the integer that stands for a client where no key hides it.

    So it does under `FixedOrder`, whose plan lists its clients by these integers. Other runs count
    clients by a keyed hash of their own.

    A client is the unit that the guarantee protects: a person, not one of several devices of a
    person. It must have one name, spelt alike, in all rounds. An integer and its digits as text are
    one name: 7 and "7" are one user, "007" is another.

    Parameters
    ----------
    client : int or str
        An integer in [0, 2^63), also one written as text, stands for itself; any other name for the
        first 63 bits of its SHA-256 with a domain label. Two names with the same 63 bits
        (probability below n^2 2^-64 among n names) count as one user, who then takes part less
        often than allowed, never more.

    Returns
    -------
    int
        In [0, 2^63).

    Raises
    ------
    TypeError
        If it is neither an integer nor a name.
    ValueError
        If an integer is out of range, or a name is empty.

    Examples
    --------
    >>> client_id(7), client_id("Romeo and Juliet/Nurse") == client_id("Romeo and Juliet/Juliet")
    (7, False)
    """
    _check(client)
    return user_id(client)


def client_id_v1(client: object) -> int:
    """Return the id of a client in folders of version 1, in which 7 and "7" are two users.

    Examples
    --------
    >>> client_id_v1(7), client_id_v1("7") == 7
    (7, False)
    """
    _check(client)
    return hashed_id(str.__str__(client)) if isinstance(client, str) else user_id(client)


class ClientIds:
    """The ids of one run, by the version of its states.

    Version 3 has ids under the run's key (`accounting.guard.keyed_ids`), version 2 those of
    `client_id`, version 1 those of `client_id_v1`.

    Examples
    --------
    >>> ids = ClientIds(2)
    >>> ids.of("7"), ids.of_all(["7", 7, 8]).tolist()
    (7, [7, 7, 8])
    """

    def __init__(self, version: int, key: KeyedIds | None = None) -> None:
        self.version, self._keyed = version, key

    def of(self, client: Client) -> int:
        """Return the id of a client.

        Raises
        ------
        TypeError, ValueError
            As `client_id`.
        """
        if self._keyed is None:
            return client_id_v1(client) if self.version == 1 else client_id(client)
        _check(client)
        return self._keyed.of(client)

    def of_all(self, clients: Sequence[Client]) -> Ints:
        """Return the ids of many clients: errors are those of the first one that is none."""
        if self._keyed is not None:
            return self._keyed.of_texts(_texts(clients))
        return np.fromiter(map(self.of, clients), np.int64, len(clients))


def listed(clients: Iterable[Client]) -> list[Client]:
    """Return clients as a list; TypeError for one name, or an array of several dimensions."""
    if isinstance(clients, (str, bytes)) or not isinstance(clients, Iterable):
        raise TypeError(f"clients must be an iterable of ids, got {type(clients).__name__}")
    if isinstance(clients, np.ndarray) and clients.ndim != 1:
        raise TypeError(f"clients must be an iterable of ids, got a {clients.ndim}-d array")
    if isinstance(clients, np.ndarray) and clients.dtype.kind in "iuU":
        return list(clients.tolist())
    return list(clients)


def _texts(clients: Sequence[Any]) -> Iterable[str]:
    """Return canonical forms, fast where all clients are of one of the two plain types."""
    kinds = set(map(type, clients))
    if kinds == {str} and all(clients):
        return clients
    if kinds == {int} and min(clients) >= 0 and max(clients) < 2**ID_BITS:
        return map(str, clients)
    for client in clients:
        _check(client)
    return map(canonical_id, clients)


def _check(client: object) -> None:
    if isinstance(client, str):
        if not client:
            raise ValueError("a client's name must not be empty, got ''")
        return
    if isinstance(client, _NONE) or not isinstance(client, (int, np.integer)):
        raise TypeError(f"a client must be an integer or a name, got {type(client).__name__}")
    if not 0 <= int(client) < 2**ID_BITS:
        raise ValueError(f"a client's number must be in [0, 2^63), got {shown(int(client))}")
