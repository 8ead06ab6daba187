# SPDX-License-Identifier: Apache-2.0
"""`SumSpec` and `PartialSum`: clipped sums of a round that are made away from its server.

A worker of a simulation, a regional server or a client clips and rounds updates exactly as the
server does. Integers add exactly, also modulo a power of two, so the server's result has the same
bits. This is also the form that secure aggregation needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import integer, norm_bound, positive_integer, real
from dpftrl_fast.federated.ids import Client, client_id
from dpftrl_fast.federated.sums.grid import bits_of_sum, check_unit
from dpftrl_fast.federated.sums.layout import Arrays, ModelLayout
from dpftrl_fast.federated.sums.round_sum import RoundSum

_KEYS = ["token", "clip_norm", "unit", "layout"]


@dataclass(frozen=True)
class SumSpec:
    """Public facts of a round that are needed to clip and sum updates elsewhere.

    From `Round.sum_spec`; `to_dict` is JSON-able.

    Parameters
    ----------
    token : str
        Identifies run and round: to be sent back with the sum.
    clip_norm : float
        Norm that a whole update is clipped to.
    unit : float
        Value of the integer 1, a power of two.
    layout : ModelLayout
        Names, shapes and dtypes of the model.

    Examples
    --------
    >>> import json
    >>> spec = SumSpec("run-1", 1.0, 2.0**-31, ModelLayout([np.zeros(3, np.float32)]))
    >>> SumSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec
    True
    """

    token: str
    clip_norm: float
    unit: float
    layout: ModelLayout

    def __post_init__(self) -> None:
        if not isinstance(self.token, str):
            raise TypeError(f"token must be a str, got {type(self.token).__name__}")
        if not isinstance(self.layout, ModelLayout):
            raise TypeError(f"layout must be a ModelLayout, got {type(self.layout).__name__}")
        norm, unit = norm_bound("clip_norm", self.clip_norm), real("unit", self.unit)
        object.__setattr__(self, "clip_norm", norm)
        object.__setattr__(self, "unit", check_unit(norm, self.layout.size, unit))

    def modulus_bits(self, clients: int) -> int:
        """Return the fewest bits b such that a sum of so many clients is known modulo 2^b.

        Examples
        --------
        >>> SumSpec("run-1", 1.0, 2.0**-31, ModelLayout([np.zeros(3)])).modulus_bits(1000)
        43
        """
        return bits_of_sum(self.clip_norm, self.unit, positive_integer("clients", clients))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-able."""
        return {**vars(self), "layout": self.layout.to_dict()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> SumSpec:
        """Read back the dictionary of `to_dict`; missing or other keys are a ValueError."""
        if not isinstance(d, Mapping):
            raise TypeError(f"a sum's spec must be a mapping, got {type(d).__name__}")
        if set(d) != set(_KEYS):
            raise ValueError(
                f"a sum's spec must have exactly the keys {_KEYS}, got {sorted(map(str, d))}"
            )
        return cls(d["token"], d["clip_norm"], d["unit"], ModelLayout.from_dict(d["layout"]))


class PartialSum:
    """Sum of the clipped updates of some clients of a round, for `Round.add_sum`.

    Parameters
    ----------
    spec : SumSpec
        Of the round.

    Attributes
    ----------
    clients : list of int or str
        The clients that answered, also those whose update was refused: their slots are empty.
    within : int
        Number of updates within the clip norm minus those above it: **not private**.
    accepted : int
        Number of updates in the sum: **not private**.

    Notes
    -----
    **Formal guarantee.** No noise is added and no epsilon is stated: that is the server's. An
    update replaced by zero changes `total` by at most the clip norm, in units. The worker is
    trusted with the updates of its clients, and to clip them: the server sees the sum only. Total
    and reasons are secrets of the run.

    The bits are those of `Round.add` on the server, in any order and for any division of the
    cohort among workers. Calls from several threads must take turns.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.federated import PrivateRounds
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    >>> rounds = PrivateRounds([np.zeros(3, np.float32)], plan=plan, report_goal=2)
    >>> now = rounds.begin_round(["Hamlet", "Ophelia"])
    >>> partial = PartialSum(now.sum_spec)                                    # at a worker
    >>> partial.add("Hamlet", [np.array([0.6, 0.8, 0.0], np.float32)])
    >>> partial.add("Ophelia", [np.array([np.nan, 0.0, 0.0], np.float32)])
    'update must be finite, got NaN or infinity'
    >>> now.add_sum(**partial.answer())                                       # at the server
    """

    def __init__(self, spec: SumSpec) -> None:
        if not isinstance(spec, SumSpec):
            raise TypeError(f"spec must be a SumSpec, got {type(spec).__name__}")
        self.spec = spec
        self._sums = RoundSum(spec.layout, spec.clip_norm, spec.unit)
        self._answered: set[int] = set()
        self.clients: list[Client] = []
        self.within = self.accepted = 0

    @property
    def total(self) -> NDArray[np.int64]:
        """The sum in units, shape (size,), as a new array: a secret."""
        return self._sums.total.copy()

    def add(self, client: Client, update: Any) -> str | None:
        """Clip a client's update and add it.

        Parameters
        ----------
        client : int or str
            As the server names it.
        update : mapping of str to ndarray, or sequence of ndarray
            As for `Round.add`.

        Returns
        -------
        str or None
            None if the update is in the sum; otherwise the reason why not: it does not fit the
            model or is not finite (the client's slot stays empty), or the client answered already.

        Raises
        ------
        TypeError, ValueError
            If `client` is not a client id.
        OverflowError
            If the integers hold no more updates.
        """
        identity = client_id(client)
        if identity in self._answered:
            return "answered already"
        try:
            norm = self._sums.add(update)
        except ValueError as error:
            norm, reason = math.nan, str(error)
        else:
            reason = "update must be finite, got NaN or infinity"
        self._answered.add(identity)
        self.clients.append(client)
        if not math.isfinite(norm):
            return reason
        self.accepted += 1
        self.within += 1 if norm <= self.spec.clip_norm else -1
        return None

    def answer(self) -> dict[str, Any]:
        """Return the arguments of `Round.add_sum`, all that a worker sends: a secret of the run.

        Keys are ``clients``, ``total``, ``within``, ``accepted`` and ``token``.
        """
        return {
            "clients": list(self.clients),
            "total": self.total,
            "within": self.within,
            "accepted": self.accepted,
            "token": self.spec.token,
        }

    def __repr__(self) -> str:
        return f"PartialSum({self.spec.token!r}, clients={len(self.clients)})"


def clipped_integers(
    spec: SumSpec, update: Arrays, *, modulus_bits: int = 64
) -> NDArray[np.uint64]:
    """Return one client's update, clipped and in units, modulo 2^modulus_bits.

    For clients whose sum is made by secure aggregation: the sum of these vectors, modulo
    2^modulus_bits, is the `total` of `Round.add_sum`.

    Parameters
    ----------
    spec : SumSpec
        Of the round.
    update : mapping of str to ndarray, or sequence of ndarray
        As for `Round.add`. All zeros are returned for an update with NaN or infinity: a client that
        fell silent because of its data could end the aggregation of others.
    modulus_bits : int, default 64
        At least ``spec.modulus_bits`` of the number of clients in the sum.

    Returns
    -------
    ndarray of uint64, shape (size,)

    Raises
    ------
    ValueError
        If the update does not fit the model, or there is no room for even one client.

    Notes
    -----
    **Formal guarantee.** No noise is added and no epsilon is stated: that is the server's. The
    vector, centred about zero, has a norm of at most the clip norm, in units.

    Examples
    --------
    >>> spec = SumSpec("run-1", 1.0, 2.0**-31, ModelLayout([np.zeros(2)]))
    >>> clipped_integers(spec, [np.array([0.5, -(2.0**-31)])], modulus_bits=40).tolist()
    [1073741824, 1099511627775]
    """
    bits = integer("modulus_bits", modulus_bits, spec.modulus_bits(1), 64)
    sums = RoundSum(spec.layout, spec.clip_norm, spec.unit)
    sums.add(update)
    residues = sums.total.astype(np.uint64)
    if bits < 64:
        residues &= np.uint64((1 << bits) - 1)
    return residues
