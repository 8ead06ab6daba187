# SPDX-License-Identifier: Apache-2.0
"""`Stated`: what `PrivateRounds` and `ServerDPFTRL` say of their run, in the same words."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.federated.round import Round
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount

if TYPE_CHECKING:
    from dpftrl_fast.federated.rounds import PrivateRounds


class Stated(PrivacyStatement):
    """Plan, figures and position of a run: what `_private` knows of it."""

    @abstractmethod
    def _private(self) -> PrivateRounds:
        """Return the private part of the run."""

    @property
    def plan(self) -> PrivacyPlan:
        """The plan that made the noise."""
        return self.account.plan

    @property
    def account(self) -> RunAccount:
        """The plan with its spare restarts, and the restarts that happened.

        Its figures are without the estimates of adaptive clipping; :meth:`epsilon` has all.
        """
        return self._private()._account

    @property
    def report_goal(self) -> int:
        """What sums are divided by."""
        return self._private()._goal

    @property
    def clip_norm(self) -> float:
        """Norm that whole updates are clipped to in the present round: may be published."""
        return self._private()._sums.clip_norm

    @property
    def rounds_done(self) -> int:
        """Rounds that have ended."""
        return self._private()._rounds_done

    @property
    def round(self) -> Round | None:
        """The open round."""
        return self._private()._round

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses it can take the noise away."""
        return self._private()._reproducible

    @property
    def forked(self) -> bool:
        """Whether the folder is a copy that was taken with ``allow_fork``: no guarantee holds."""
        journal = self._private()._journal
        return journal is not None and journal.forked

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole declared run, for its users.

        It includes spare recoveries and the estimates of adaptive clipping, and is the same before,
        during and after the run. A forked run has none: ValueError.
        """
        if self.forked:
            raise ValueError(
                "no epsilon can be stated: this folder is a copy taken with allow_fork, and another"
                " run may have added the same noise to other sums"
            )
        clipping = self._private()._clipping
        return self.account.guarantee if clipping is None else clipping.composition(self.plan)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(rounds_done={self.rounds_done}, rounds={self.plan.steps}, "
            f"size={self._private()._layout.size}, report_goal={self.report_goal}"
            f"{', reproducible, not private' if self.reproducible else ''}"
            f"{', forked: the guarantee is void' if self.forked else ''})"
        )

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} holds bare sums and a secret key and is not pickled"
        )
