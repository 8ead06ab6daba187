# SPDX-License-Identifier: Apache-2.0
"""Client ids: the integers that the accountant counts users by, from the names of clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import shown
from dpftrl_fast.accounting.guard.ids import ID_BITS, hashed_id, user_id

Client: TypeAlias = int | str
Ints = NDArray[np.int64]

_NONE = (bool, np.bool_, np.timedelta64)  # integers for Python or NumPy, refused here


def client_id(client: object) -> int:
    """Return the integer that stands for a client in the accounting.

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
    """The ids of one run, by the version of its states: 1 or 2.

    Examples
    --------
    >>> ids = ClientIds(2)
    >>> ids.of("7"), ids.of_all(["7", 7, 8]).tolist()
    (7, [7, 7, 8])
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.of = client_id_v1 if version == 1 else client_id

    def of_all(self, clients: Sequence[Client]) -> Ints:
        """Return the ids of many clients: errors are those of the first one that is none."""
        return np.fromiter(map(self.of, clients), np.int64, len(clients))


def _check(client: object) -> None:
    if isinstance(client, str):
        if not client:
            raise ValueError("a client's name must not be empty, got ''")
        return
    if isinstance(client, _NONE) or not isinstance(client, (int, np.integer)):
        raise TypeError(f"a client must be an integer or a name, got {type(client).__name__}")
    if not 0 <= int(client) < 2**ID_BITS:
        raise ValueError(f"a client's number must be in [0, 2^63), got {shown(int(client))}")
