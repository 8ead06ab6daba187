# SPDX-License-Identifier: Apache-2.0
"""`ServerDPFTRL`: the server of a federated training with user-level DP-FTRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, flag, positive_integer
from dpftrl_fast.federated.answers import Answers
from dpftrl_fast.federated.buffered_round import BufferedRound
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.optimizers import AdamUpdate, FTRLUpdate, ServerUpdate
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.rounds import PrivateRounds
from dpftrl_fast.federated.stated import Stated, with_facts
from dpftrl_fast.federated.sums.layout import Arrays, ModelLayout
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Vector = NDArray[np.float64]


class ServerDPFTRL(Stated):
    """Server that trains a model with clients that take part at most as often as a plan allows.

    Each round: call `begin_round` with the ids of the connected clients; send `parameters` to the
    cohort, which trains; pass each update (the client's model minus the one it was sent) to
    :meth:`Round.add`; call `end_round`, which takes the step. Updates are clipped as a whole,
    summed, noised by the plan's mechanism, and divided by the report goal, whoever answered:

        theta_t = theta_0 + rate v_t,   v_t = momentum v_(t-1) + (s_t + n_t)/goal

    with s_t the sum of all clipped updates so far and n_t its noise (Kairouz et al. 2021, algorithm
    1 and its federated form). With one round, equal clients, as many as the goal, and no noise this
    is federated averaging.

    Parameters
    ----------
    parameters : mapping of str to ndarray, or list or tuple of ndarray
        theta_0: float16, float32 or float64, finite. Not changed.
    plan : PrivacyPlan
        One step is one round, one record is one client, the clip norm is that of a whole update.
        For the mechanism of least error in this server's model, calibrate the plan with
        ``workload=accounting.Workload(momentum=momentum)``.
    report_goal : int
        Fixed, public divisor of the sums.
    learning_rate : float
        Of the server.
    momentum, nesterov
        Of ``optimizer="ftrl"``, see `dpftrl_fast.federated.optimizers.FTRLUpdate`.
    optimizer : {"ftrl", "adam"} or callable
        "adam": `dpftrl_fast.federated.optimizers.AdamUpdate` on each round's noised mean
        update. A callable takes theta_0 as one vector and returns a custom
        `dpftrl_fast.federated.optimizers.ServerUpdate`.
    betas, eps
        Of ``optimizer="adam"``.
    folder : str or Path, optional
        **A secret.** Keeps the run there: a program that is killed at any point and started again
        with the same arguments resumes the run, with the same model, bit for bit, and the same
        epsilon, if clients train as they would have done. The model is then the folder's, not
        `parameters`. None: in memory only.
    identity : mapping, optional
        More facts that identify the run, JSON-able, for instance the source of the client ids; a
        folder of another run is refused.
    checkpoint_every : int
        Rounds between checkpoints; the sums of the rounds since the last one are kept.
    **options
        `clipping` (an :class:`AdaptiveClipping`), `spare_recoveries`, `recover`, `accept_epsilon`,
        `allow_fork`, `memory`, `dtype`, `threads`, `noise_seed`, `key`, `user_key` and `ledger` of
        :class:`dpftrl_fast.federated.PrivateRounds`.

    Raises
    ------
    TypeError, ValueError, RuntimeError, OSError
        If an argument is not as above, or as :class:`dpftrl_fast.federated.PrivateRounds`.

    Notes
    -----
    **Formal guarantee.** As for :class:`dpftrl_fast.federated.PrivateRounds`: neighbours differ in
    one client, whose updates are replaced by zero; `epsilon` states the guarantee, of `plan` with
    spare recoveries and `clipping`. It covers `parameters` after every round, which may be
    published. The caller must ensure that a client id stands for one person and that folder and
    key stay secret. Not covered: :meth:`Round.metrics`. Floating point:
    docs/guarantees/floating_point.md.

    Not private either is the log of the logger ``dpftrl_fast.not_private``: a warning for a round
    that accepts under half of its cohort, with the commonest reason, and at the end of the run the
    number of updates accepted. Every line ends in "(not private)"; where the log is published, turn
    it off: ``logging.getLogger("dpftrl_fast.not_private").disabled = True``.

    The object holds un-noised sums and the key: it is not pickled.

    Attributes
    ----------
    answers : Answers
        Writer of that log.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan(1.0, 4.0, accounting.SinglePass(10))
    >>> server = ServerDPFTRL({"w": np.zeros(2, np.float32)}, plan=plan, report_goal=2)
    >>> now = server.begin_round(["Hamlet", "Ophelia"])
    >>> for client in now.cohort:
    ...     problem = now.add(client, {"w": np.array([0.6, 0.8], np.float32)}, token=now.token)
    ...     assert problem is None
    >>> server.end_round()["w"].dtype, server.rounds_done, round(server.epsilon(1e-6), 3)
    (dtype('float32'), 1, 2.254)
    >>> round(server.epsilon(1e-6, neighbours="replace-one"), 3)
    4.887
    """

    def __init__(
        self,
        parameters: Arrays,
        *,
        plan: PrivacyPlan,
        report_goal: int,
        learning_rate: float = 1.0,
        momentum: float = 0.0,
        nesterov: bool = False,
        optimizer: Literal["ftrl", "adam"] | Callable[[NDArray[np.float64]], ServerUpdate] = "ftrl",
        betas: Sequence[float] = (0.9, 0.99),
        eps: float = 1e-3,
        folder: str | Path | None = None,
        identity: Mapping[str, Any] | None = None,
        checkpoint_every: int = 10,
        **options: Any,
    ) -> None:
        theta_0 = ModelLayout(parameters).flatten(parameters)
        if not bool(np.isfinite(theta_0).all()):
            raise ValueError("parameters must be finite, got NaN or infinity")
        self._every = positive_integer("checkpoint_every", checkpoint_every)
        self.answers = Answers()
        self._update: ServerUpdate
        nesterov = flag("nesterov", nesterov)
        if optimizer != "adam" and (*betas, eps) != (0.9, 0.99, 1e-3):
            raise ValueError(
                "betas and eps are settings of 'adam', got them with another optimizer"
            )
        if callable(optimizer):
            if (learning_rate, momentum, nesterov) != (1.0, 0.0, False):
                raise ValueError(
                    "learning_rate, momentum and nesterov are settings of 'ftrl' and 'adam', got "
                    "them with a custom optimizer"
                )
            self._update = optimizer(theta_0)
        elif choice("optimizer", optimizer, ("ftrl", "adam")) == "ftrl":
            self._update = FTRLUpdate(theta_0, learning_rate, momentum=momentum, nesterov=nesterov)
        elif momentum != 0.0 or nesterov:
            raise ValueError("momentum and nesterov are settings of 'ftrl', got them with 'adam'")
        else:
            self._update = AdamUpdate(theta_0, learning_rate, betas=betas, eps=eps)
        self._rounds = PrivateRounds(
            parameters,
            plan=plan,
            report_goal=report_goal,
            folder=folder,
            identity=with_facts(identity, update=self._update.options()),
            state=self._update.state_dict(),
            **options,
        )
        try:
            if folder is not None:
                assert self._rounds.state is not None
                self._update.load_state_dict(self._rounds.state)
            self._steps = self._rounds.rounds_done
            for value in self._rounds.replay(self._update.release):
                self._step(value)
        except BaseException:
            self._rounds.close()
            raise

    def _step(self, value: Vector) -> None:
        self._update.step(value)
        self._steps += 1

    @property
    def _private(self) -> PrivateRounds:
        return self._rounds

    @property
    def parameters(self) -> Any:
        """The current model, in the given structure and dtypes, as new arrays: may be released."""
        return self._rounds.layout.unflatten(self._update.theta)

    def begin_round(self, clients: Iterable[Client]) -> Round:
        """Begin a round with those of the clients that the plan allows now.

        As :meth:`dpftrl_fast.federated.PrivateRounds.begin_round`.
        """
        self._check_step()
        return self._rounds.begin_round(clients)

    def begin_buffered_round(
        self, size: int, *, weights: Sequence[float] = (1.0,)
    ) -> BufferedRound:
        """Begin a round of the first `size` clients whose updates arrive, of older models too.

        As :meth:`dpftrl_fast.federated.PrivateRounds.begin_buffered_round`. `BufferedServer` calls
        it by itself.
        """
        self._check_step()
        return self._rounds.begin_buffered_round(size, weights=weights)

    def end_round(self) -> Any:
        """End the open round: write its sum ahead, add the noise, take the step.

        Returns
        -------
        dict of str to ndarray, list or tuple of ndarray
            The new `parameters`.

        Raises
        ------
        RuntimeError
            If no round is open, or an earlier one was interrupted.
        OSError
            If the sum cannot be written ahead (then nothing was released, and `end_round` may be
            called again), or a checkpoint is due and cannot be written (then the round is done).
        """
        now = self._rounds.round
        self._step(self._rounds.end_round(self._update.release))
        if now is not None:
            self.answers.ended(now)
        if self._steps == self.plan.steps:
            self.answers.finish()
        if self._steps % self._every == 0 or self._steps == self.plan.steps:
            self.checkpoint()
        return self.parameters

    def checkpoint(self) -> None:
        """Save the state between two rounds, besides the regular checkpoints.

        Raises
        ------
        RuntimeError
            If a round is open, or an earlier one was interrupted.
        OSError
            If it cannot be written; the checkpoint before is then still there.
        """
        self._check_step()
        self._rounds.checkpoint(self._update.state_dict())

    def close(self) -> None:
        """Release the folder and discard an open round; everything written is on disk already."""
        super().close()
        self.answers.finish()

    def _check_step(self) -> None:
        self._check_whole()
        if self._steps != self._rounds.rounds_done:
            raise RuntimeError("a step was interrupted half-way: resume from the folder")

    def epsilon_spent(self, delta: float) -> float:
        """Return `epsilon`: the stated figure is the declared run's, from the first round on."""
        return self.epsilon(delta)
