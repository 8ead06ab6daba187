# SPDX-License-Identifier: Apache-2.0
"""User-level DP-FTRL over Flower's secure aggregation, SecAgg+: `SecAggStrategy`, `secagg_mods`.

Flower's protocol stands on its older interface, which is in flwr 1.28 to 1.42; nothing else of the
package imports that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from dpftrl_fast._validate import integer, optional, real
from dpftrl_fast.federated.flower.check import Check
from dpftrl_fast.federated.flower.secure_mod import secagg_mods
from dpftrl_fast.federated.flower.secure_sum import first_message, has_public_keys, secure_sum
from dpftrl_fast.federated.flower.strategy import DPFTRLStrategy

__all__ = ["SecAggStrategy", "secagg_mods"]

_log = logging.getLogger("flwr")

_ALL, _SHARES = 32, 31  # users that share keys with all, and the shares of more


class SecAggStrategy(DPFTRLStrategy):
    """`DPFTRLStrategy` whose server sees the sum of the updates of a round, and no single one.

    Each client clips its update, rounds it to the grid of the sum, and masks it by Flower's SecAgg+
    (its client app has the mods `secagg_mods`). The server unmasks the sum, adds the plan's noise
    and takes the step. Without drop-outs the model has the bits of `DPFTRLStrategy`.

    A node that drops out before its masked update has arrived is an empty slot; one that drops out
    later is in the sum. If fewer than the threshold are left, nobody's update is in the sum: the
    round is a step like any other, with noise, and its cohort counts as having taken part.

    Parameters
    ----------
    strategy : Strategy
        As for `DPFTRLStrategy`: it chooses the nodes of a round.
    num_shares : odd int or float, optional
        Shares of each client's keys, its own included: a number (at most one for each user in a
        round is made), or a fraction of the users in a round, as for Flower's
        ``SecAggPlusWorkflow``. Default: one for each user of a cohort of at
        most 32, otherwise 31. Time and messages of a client grow with it.
    reconstruction_threshold : float or int, default 2/3
        Shares that unmask, a number or a fraction of `num_shares`: if fewer of those who hold the
        shares of one client stay, the sum is of nobody.
    **options
        Of `DPFTRLStrategy`: `plan`, `report_goal`, `delta`, `client_id`, `folder` and the
        others. Metrics of clients are not collected.

    Attributes
    ----------
    failures : dict of int to str
        Round to the reason why nobody's update is in its sum. **Not private**: it depends on
        replies.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    **Formal guarantee.** As for `DPFTRLStrategy`, with the same epsilon, for the models of all
    rounds, if (a) every client of the cohort clips its update (the mods do; the server cannot
    check it), and (b) whether a node drops out does not depend on its user's data. A client whose
    app fails, or whose update is not finite, sends zeros for this reason. Neighbours differ in one
    user, whose updates are replaced by zero.

    What secure aggregation adds is protection of single updates from the server, as strong as
    Flower's: its masks come from generators with seeds of 32 bits, which a server that keeps the
    masked vectors can search. It holds against a server that follows the protocol and looks at
    sums only. The sum without noise is a secret of the run. See docs/federated/flower.md.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.federated.flower import AskClients
    >>> plan = PrivacyPlan(0.3, 4.0, accounting.MinSeparation(100, 4, 20))
    >>> strategy = SecAggStrategy(
    ...     FedAvg(fraction_train=1.0, fraction_evaluate=0.0),
    ...     plan=plan, report_goal=50, delta=1e-6, cohort_size=60, client_id=AskClients(),
    ... )
    >>> strategy
    SecAggStrategy(FedAvg, ServerDPFTRL's step)
    """

    def __init__(
        self,
        strategy: Strategy,
        *,
        num_shares: float | None = None,
        reconstruction_threshold: float = 2 / 3,
        **options: Any,
    ) -> None:
        super().__init__(strategy, **options)
        self._shares = optional(_share, "num_shares", num_shares, 3)
        if self._shares is not None and self._shares % 2 == 0:
            # Flower tells clients of one share fewer than it makes neighbours.
            raise ValueError(f"num_shares must be odd or a fraction, got {num_shares}")
        self._threshold = _share("reconstruction_threshold", reconstruction_threshold, 2)
        if self._shares is not None and 1 < self._shares <= self._threshold:
            raise ValueError(
                f"reconstruction_threshold must be less than num_shares, {num_shares}, got "
                f"{reconstruction_threshold}"
            )
        self.failures: dict[int, str] = {}
        self._summed = 0  # the last round whose protocol ran to its end

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *args: Any, **named: Any) -> Result:
        """Run all rounds: as `DPFTRLStrategy.start`; `timeout` is that of a stage of SecAgg+."""
        now = None if self._closed or self._server is None else self.server.round
        # A sum that could not be written ahead. Another one, with other drop-outs, would reveal
        # the update of one client to the server, as the difference of the two.
        if now is not None and now.number == self._summed:
            self.server.end_round()
        secure = cast(Grid, _SecureGrid(grid, self))
        return super().start(secure, initial_arrays, *args, **named)

    def _try(self, tried: Check, arrays: ArrayRecord | None, config: ConfigRecord) -> None:
        tried.protocol(first_message(), has_public_keys)

    def summary(self) -> None:
        """Log the guarantee, its conditions, and the wrapped strategy's summary."""
        super().summary()
        _log.info(
            "\tSecure aggregation: the guarantee holds if every client clips its update "
            "(secagg_mods), and if dropping out does not depend on a user's data"
        )

    def _sum(self, grid: Grid, messages: list[Message], timeout: float | None) -> None:
        """Run the protocol among the nodes that the messages ask; add the sum to the round."""
        round_, shares = self.server.round, self._shares
        assert round_ is not None
        if shares is None:
            shares = 1.0 if len(messages) <= _ALL else _SHARES
        elif shares > len(messages):  # a client shares its keys with others of the round only
            shares = 1.0
        found = secure_sum(
            grid,
            messages,
            round_.sum_spec,
            number=round_.number,
            num_shares=shares,
            threshold=self._threshold,
            timeout=timeout,
            quiet=not self._settings.report_metrics,
        )
        self._summed = round_.number
        reason = found if isinstance(found, str) else round_.add_sum(
            [self._asked[node] for node in found.nodes],
            found.total,
            modulus_bits=found.modulus_bits,
            within=found.within,
            accepted=found.updates,
            token=round_.token,
        )  # fmt: skip
        if reason is None:
            self.failures.pop(round_.number, None)
            return
        self.failures[round_.number] = reason
        for user in round_.cohort:
            round_.refuse(user, reason)

    def __repr__(self) -> str:
        return f"SecAgg{super().__repr__().removeprefix('DPFTRL')}"


class _SecureGrid:
    """A grid in which train messages start the protocol, and no update comes back."""

    def __init__(self, grid: Grid, strategy: SecAggStrategy) -> None:
        self._grid, self._strategy = grid, strategy

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        sent = list(messages)
        kinds = {message.metadata.message_type for message in sent}
        if all(kind.split(".")[0] != MessageType.TRAIN for kind in kinds):
            return self._grid.send_and_receive(sent, timeout=timeout)
        # Flower's mod masks the replies to messages of this type only.
        if others := sorted(kinds - {MessageType.TRAIN}):
            raise ValueError(
                f"messages of the wrapped strategy must be of the type {MessageType.TRAIN!r} for "
                f"secure aggregation, got {others[0]!r}"
            )
        self._strategy._sum(self._grid, sent, timeout)
        return []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _share(name: str, value: Any, least: int) -> float:
    """Return a number of shares as an int, or a fraction as a float."""
    if isinstance(value, float):
        return real(name, value, above=0.0, most=1.0)
    return integer(name, value, least)
