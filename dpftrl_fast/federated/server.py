# SPDX-License-Identifier: Apache-2.0
"""`ServerDPFTRL`: the server of a federated training with user-level DP-FTRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, positive_integer
from dpftrl_fast.federated.adaptive_clipping import AdaptiveClipping
from dpftrl_fast.federated.ids import Client
from dpftrl_fast.federated.optimizers import AdamUpdate, FTRLUpdate, ServerUpdate
from dpftrl_fast.federated.round import Round
from dpftrl_fast.federated.rounds import PrivateRounds
from dpftrl_fast.federated.stated import Stated
from dpftrl_fast.federated.sums.layout import Arrays, ModelLayout
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Vector = NDArray[np.float64]


class ServerDPFTRL(Stated):
    """Trains one model with clients that never take part more often than a plan allows.

    Each round: `begin_round` with the clients that are there, who say who they are before they
    train; the cohort is sent `parameters` and trains; each update (the client's model less the one
    it was sent) is given to :meth:`Round.add`; `end_round` takes the step. Updates are clipped as a
    whole, summed, noised by the plan's tree, and divided by the report goal, whoever answered:

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
    report_goal : int
        Fixed and public: what sums are divided by.
    learning_rate : float
        Of the server.
    momentum, nesterov
        Of ``optimizer="ftrl"``, see :class:`dpftrl_fast.federated.optimizers.FTRLUpdate`.
    optimizer : {"ftrl", "adam"} or callable
        "adam": :class:`dpftrl_fast.federated.optimizers.AdamUpdate` on each round's noised mean
        update. A callable takes theta_0 as one vector and returns a
        :class:`dpftrl_fast.federated.optimizers.ServerUpdate` of one's own.
    betas, eps
        Of ``optimizer="adam"``.
    clipping : AdaptiveClipping, optional
        Fits the clip norm at each restart, with noise of its own.
    folder : str or Path, optional
        **A secret.** Keeps the run there: a program that is killed at any point and started again
        with the same arguments goes on, with the same model, bit for bit, and the same epsilon, if
        clients do what they would have done. The model is then the folder's, not `parameters`.
        None: in memory only.
    identity : mapping, optional
        What else says which run this is, as JSON can hold it, who names the clients for instance; a
        folder of another is refused.
    checkpoint_every : int
        Rounds between checkpoints; of the rounds since then the sum is kept.
    spare_restarts, restart, accept_epsilon, allow_fork, memory, dtype, threads, noise_seed, key
        As for :class:`dpftrl_fast.federated.PrivateRounds`.

    Raises
    ------
    TypeError, ValueError, RuntimeError, OSError
        If an argument is not as above, or as :class:`dpftrl_fast.federated.PrivateRounds`.

    Notes
    -----
    The object holds bare sums and the key: it is not pickled. What may leave is `parameters`.

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
        clipping: AdaptiveClipping | None = None,
        folder: str | Path | None = None,
        identity: Mapping[str, Any] | None = None,
        checkpoint_every: int = 10,
        spare_restarts: int = 0,
        restart: bool = False,
        accept_epsilon: tuple[float, float] | None = None,
        allow_fork: bool = False,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float32",
        threads: int | None = None,
        noise_seed: Seed = None,
        key: bytes | None = None,
    ) -> None:
        theta_0 = ModelLayout(parameters).flatten(parameters)
        if not bool(np.isfinite(theta_0).all()):
            raise ValueError("parameters must be finite, got NaN or infinity")
        self._every = positive_integer("checkpoint_every", checkpoint_every)
        self._update: ServerUpdate
        if optimizer != "adam" and (*betas, eps) != (0.9, 0.99, 1e-3):
            raise ValueError(
                "betas and eps are settings of 'adam', got them with another optimizer"
            )
        if callable(optimizer):
            if (learning_rate, momentum, nesterov) != (1.0, 0.0, False):
                raise ValueError(
                    "learning_rate, momentum and nesterov are settings of 'ftrl' and 'adam', got "
                    "them with an optimizer of one's own"
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
            clipping=clipping,
            folder=folder,
            identity={**(identity or {}), "update": self._update.options()},
            state=self._update.state_dict(),
            spare_restarts=spare_restarts,
            restart=restart,
            accept_epsilon=accept_epsilon,
            allow_fork=allow_fork,
            memory=memory,
            dtype=dtype,
            threads=threads,
            noise_seed=noise_seed,
            key=key,
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

    def _check_whole(self) -> None:
        if self._steps != self._rounds.rounds_done:
            raise RuntimeError("a step was interrupted half-way: go on from the folder")

    @property
    def parameters(self) -> Any:
        """The model now, in the structure and dtypes that were given, as new arrays: may leave."""
        return self._rounds.layout.unflatten(self._update.theta)

    # ---- Rounds ----

    def eligible(self, clients: Iterable[Client]) -> NDArray[np.bool_]:
        """Say of each client whether it may be in the next round.

        As :meth:`dpftrl_fast.federated.PrivateRounds.eligible`.
        """
        return self._rounds.eligible(clients)

    def begin_round(self, clients: Iterable[Client]) -> Round:
        """Begin a round with those of the clients that the plan allows now.

        As :meth:`dpftrl_fast.federated.PrivateRounds.begin_round`.
        """
        self._check_whole()
        return self._rounds.begin_round(clients)

    def end_round(self) -> Any:
        """End the open round: write its sum ahead, put noise on it, take the step.

        Returns
        -------
        dict of str to ndarray, list or tuple of ndarray
            The new `parameters`.

        Raises
        ------
        RuntimeError
            If no round is open, or an earlier one was interrupted half-way.
        OSError
            If the sum cannot be written ahead (then nothing has left, and `end_round` may be called
            again), or a checkpoint is due and cannot be written (then the round is done).
        """
        self._step(self._rounds.end_round(self._update.release))
        if self._steps % self._every == 0 or self._steps == self.plan.steps:
            self.checkpoint()
        return self.parameters

    def abandon_round(self) -> None:
        """Give up the open round, which begins anew: for public reasons only.

        As :meth:`dpftrl_fast.federated.PrivateRounds.abandon_round`.
        """
        self._rounds.abandon_round()

    def checkpoint(self) -> None:
        """Keep the state between two rounds, besides the regular checkpoints.

        Raises
        ------
        RuntimeError
            If a round is open, or an earlier one was interrupted half-way.
        OSError
            If it cannot be written; the checkpoint before is then still there.
        """
        self._check_whole()
        self._rounds.checkpoint(self._update.state_dict())

    def close(self) -> None:
        """Let the folder go; an open round is given up."""
        self._rounds.close()

    def __enter__(self) -> ServerDPFTRL:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- What is stated ----

    def _private(self) -> PrivateRounds:
        return self._rounds

    def epsilon_spent(self, delta: float) -> float:
        """Return `epsilon`: what is stated is the declared run's, from the first round on."""
        return self.epsilon(delta)
