# SPDX-License-Identifier: Apache-2.0
"""`TrainingRun`: a training that can be killed at any step and resumes bit for bit."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from dpftrl_fast._validate import flag, positive_integer
from dpftrl_fast.accounting.statement.statement import Guarantee, PrivacyStatement
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch.flat.distributed import Ranks
from dpftrl_fast.torch.flat.tensors import is_sharded
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.loader import FixedOrderLoader
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.plain_states import (
    from_plain,
    random_state,
    restore_random_state,
    to_plain,
)
from dpftrl_fast.torch.residual import ResidualNoise
from dpftrl_fast.torch.schedules import refuse_other_settings, settings_of
from dpftrl_fast.torch.shared_journal import SharedJournal


class Stateful(Protocol):
    """Object that is saved and restored by these two methods, a scheduler for instance."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""
        ...

    def load_state_dict(self, state: Any, /) -> Any:
        """Resume from a state."""
        ...


class TrainingRun(PrivacyStatement):
    """A private training in a folder, from which a killed run resumes.

    One process at a time has the folder. Before each ``optimizer.step()`` the keyed hash of the
    step's sums and ids is written ahead; after a crash the steps since the last checkpoint are
    repeated, only with the same sums (see docs/runs/resume.md). The parameters are then those of a
    run without a crash, bit for bit, and so is epsilon.

    Where processes share each batch (DDP, torchrun), all of them make the run together, with the
    same arguments, and rank 0 has the folder: it must be the same one after a restart, on a disk
    that rank 0 of every start can read. The sums that are written ahead are those of all ranks
    together, and no rank adds noise before.

    **The folder is a secret**: it holds the noise key and un-noised sums.

    Parameters
    ----------
    folder : str or Path
        New or empty, or that of the same run: same plan, data counts, batch size, parameters, spare
        recoveries, and settings of optimiser, clipping and schedulers before the first step. Where
        a run resumes, the step is printed to the standard error.
    model : nn.Module
        Its parameters and buffers are saved.
    optimizer : torch.optim.Optimizer
        `DPFTRL`, or any optimiser with `noise`.
    loader : FixedOrderLoader
        With the accumulator of the optimiser attached, as `make_private` returns it. No step of the
        run may have been taken yet.
    noise : ResidualNoise, optional
        Source of the noise, if it is neither the optimiser nor known from `make_private`.
    extra : mapping of str to objects, optional
        Further objects to save with ``state_dict`` and ``load_state_dict``: schedulers. Their state
        is that of the folder after a resume. A scheduler of torch with other settings is refused.
    checkpoint_every : int
        Steps between checkpoints while iterating over the run.
    keep_sums : bool
        Keep each step's sums until the next checkpoint: then no replay can differ, whatever the
        device does. Costs the bytes of one sum a step.
    spare_recoveries : int
        Number of recoveries with fresh noise that the stated epsilon covers from the start.
    recover : bool
        Treatment of steps that were written ahead after the last checkpoint: False repeats them,
        True abandons them and continues with fresh noise. That costs privacy: it is refused unless
        the spare recoveries cover it, or `accept_epsilon` accepts it.
    accept_epsilon : (epsilon, delta), optional
        The larger figure that the run states after a recovery.
    allow_fork : bool
        Use a folder that was copied; voids the guarantee, see :class:`dpftrl_fast.run.RunJournal`.

    Raises
    ------
    RuntimeError
        If the folder is in use.
    ValueError, TypeError
        If it is of another run or damaged; if the run here is not at its beginning; if a recovery
        is refused. No step is taken then.
    OSError
        If the folder cannot be read and written.

    Notes
    -----
    **Formal guarantee.** For neighbouring data sets in which the gradients of one example are
    replaced by zero, all parameters of the run together, crashes and recoveries included, are
    (epsilon, delta)-differentially private with the epsilon of :meth:`epsilon`
    (``neighbours="replace-one"`` for a replaced example). The caller must take the batches from the
    run, keep the folder secret, and resume from no copy of it. Noisy sums are on a public
    grid, see docs/guarantees/floating_point.md.

    The states of torch's, NumPy's and Python's global random numbers are saved with each
    checkpoint, those of each rank. Another number of processes may resume: it has the same run and
    the same epsilon. But it adds up sums in another order, so that a step that was written ahead
    can be repeated with ``keep_sums=True`` only; otherwise it raises `Diverged`, and the number of
    processes before, or ``recover=True``, is the way on. Ranks that the last checkpoint does not
    know keep their random numbers as they are.

    Examples
    --------
    >>> import tempfile
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from dpftrl_fast.torch import make_private
    >>> model = nn.Linear(4, 2)
    >>> data = TensorDataset(torch.zeros(64, 4), torch.zeros(64, dtype=torch.long))
    >>> model, optimizer, loader, ledger = make_private(
    ...     model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, batch_size=16),
    ...     epochs=2, epsilon=8.0, delta=1e-5, clip_norm=1.0,
    ... )
    >>> with TrainingRun(tempfile.mkdtemp(), model, optimizer, loader) as run:
    ...     for epoch in range(loader.epoch, 2):  # the same lines continue a run that was killed
    ...         for ids, (x, y) in run:
    ...             nn.functional.cross_entropy(model(x), y).backward()
    ...             optimizer.step()
    ...     run.step, run.epsilon(1e-5) <= 8.0 < run.epsilon(1e-5, neighbours="replace-one")
    (8, True)
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: Optimizer,
        loader: FixedOrderLoader,
        *,
        noise: Any = None,
        extra: Mapping[str, Stateful] | None = None,
        checkpoint_every: int = 100,
        keep_sums: bool = False,
        spare_recoveries: int = 0,
        recover: bool = False,
        accept_epsilon: tuple[float, float] | None = None,
        allow_fork: bool = False,
    ) -> None:
        accumulator = loader.accumulator
        if accumulator is None:
            raise ValueError("loader must have an accumulator attached, got none")
        self._model, self._optimizer, self._loader = model, optimizer, loader
        self._guard, self._sums = accumulator.guard, accumulator
        self._noise = _source_of_noise(noise, accumulator.noise, optimizer)
        self._extra = dict(extra or {})
        self._ranks: Ranks = Ranks()
        if isinstance(self._noise, (DPFTRL, ResidualNoise)):
            self._ranks = self._noise.run_steps.ranks
        self._rank, self._processes = loader.shard
        self._kept_at = 0
        refusal: Exception | None = None
        same: dict[str, Any] = {}
        identity: dict[str, Any] = {}
        try:
            self._check_beginning()
            self._every = positive_integer("checkpoint_every", checkpoint_every)
            self._keep_sums = flag("keep_sums", keep_sums)
            abandon, fork = flag("recover", recover), flag("allow_fork", allow_fork)
            account = RunAccount(loader.plan, spare_recoveries)
            identity = self._identity(account)
            self._settings = settings_of(optimizer.param_groups, accumulator.clipping, self._extra)
            same = {
                **identity,
                "settings": self._settings,
                "checkpoint_every": self._every,
                "keep_sums": self._keep_sums,
                "recover": abandon,
                "accept_epsilon": accept_epsilon,
            }
        except (TypeError, ValueError) as error:
            refusal = error
        self._ranks.check_order(loader.order(), refusal=refusal)
        self._ranks.check_same(same)
        self._journal = SharedJournal(
            self._ranks, self._rank == 0, folder, identity, allow_fork=fork
        )
        try:
            self._account = self._begin(account, abandon, accept_epsilon)
            self._tell(folder)
        except BaseException:
            self._journal.close()
            raise
        accumulator.before_step = self._write_ahead
        if isinstance(self._noise, (DPFTRL, ResidualNoise)):
            self._noise.run_steps.resumed = True
        if isinstance(self._guard, TrainingLedger):
            self._guard.state_by(self)

    def _check_beginning(self) -> None:
        """Refuse a run that has begun, or that is not of replicas."""
        if self._loader.position != 0 or self._sums.before_step is not None:
            raise ValueError(
                "expected a run at its beginning and in no other folder, got one at step "
                f"{self._loader.position}"
            )
        if self._processes > 1 and not self._ranks.reduces:
            raise ValueError(
                f"expected the {self._processes} processes of the loader in torch.distributed, got "
                "one: call init_process_group first, and make_private after it"
            )
        if any(is_sharded(p) for p in self._model.parameters()):
            raise ValueError(
                "expected a model that every process holds as a whole (DDP), got DTensors (FSDP2): "
                "TrainingRun does not gather shards; save state_dict(secrets=True) of each rank"
            )

    def _begin(
        self, account: RunAccount, recover: bool, accept_epsilon: tuple[float, float] | None
    ) -> RunAccount:
        journal = self._journal
        state = journal.resume()
        if state is not None and "settings" in state:  # a folder of before has none
            refuse_other_settings(from_plain(state["settings"]), self._settings)
        if self._ranks.reduces:
            _everything(self._noise)  # the noise begins on all ranks together
        if state is None:
            journal.checkpoint(self._state())
            return account
        if journal.abandoned:
            account = RunAccount(
                account.plan, account.spare_recoveries, journal.abandoned, journal.start
            )
            self._noise.recover(account)
        after = account
        if recover and journal.replaying:
            after = account.recovered(journal.last, journal.step + 1, accept_epsilon=accept_epsilon)
        self._load(state)
        if after is not account:
            self._noise.recover(after)
            journal.recover(self._state())
        return after

    def _tell(self, folder: str | Path) -> None:
        """Print where a run resumes, to the standard error of rank 0; nothing for a new run."""
        step, last, steps = self.step, self._journal.last, self._loader.plan.steps
        if self._rank != 0 or (step, last) == (0, 0):
            return
        if step == steps:
            told = f"all {steps} steps were taken before: the model is the one in the folder"
        else:
            told = f"resumed at step {step} of {steps}"
            if self.replaying:
                told += f"; the steps up to {last}, which were begun before, are repeated"
        print(f"dpftrl_fast: {folder}: {told}", file=sys.stderr)

    # ---- The run ----

    def __iter__(self) -> Iterator[tuple[NDArray[np.int64], Any]]:
        """Yield (ids, batch) for the rest of the present epoch, with checkpoints when they are due.

        One is made before the next batch is drawn, and after an epoch when the next one begins: so
        it includes the changes of a loop after ``optimizer.step()``, such as a scheduler's step.
        """
        return self._with_checkpoints(iter(self._loader))

    def batches(self) -> Iterator[Any]:
        """Yield the batches alone: ``for x, y in run.batches()``, with checkpoints as well."""
        return (batch for _, batch in self)

    def in_pieces(self, rows: int) -> Iterator[Iterator[tuple[NDArray[np.int64], Any]]]:
        """Yield batches as iterators over pieces: gradient accumulation, one step for each batch.

        As `FixedOrderLoader.in_pieces`, with checkpoints as well.
        """
        return self._with_checkpoints(self._loader.in_pieces(rows))

    def _with_checkpoints(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._checkpoint_if_due()
        for batch in batches:
            yield batch
            if self._loader.position % len(self._loader):
                self._checkpoint_if_due()

    def _checkpoint_if_due(self) -> None:
        if self._journal.step >= self._kept_at + self._every:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Save the present state, between steps; ValueError in an open batch.

        Also if the ledger counts steps that the run did not take: its state would never resume.
        """
        if self._sums.is_open:
            raise ValueError("expected optimizer.step() before a checkpoint, got an open batch")
        if self._guard.steps_taken != self._journal.step:
            raise ValueError(
                f"the ledger must be at step {self._journal.step}, as the run, got step "
                f"{self._guard.steps_taken}: only optimizer.step() may count a step"
            )
        self._journal.checkpoint(self._state())
        self._kept_at = self._journal.step

    def _write_ahead(self, step: int, ids: NDArray[np.int64], sums: list[Tensor]) -> None:
        journal, ranks = self._journal, self._ranks
        if ranks.reduces:
            names = self._noise.run_steps.ids_hash()
            ranks.open_step(step, True, sums[0].device, examples=names)
        kept = journal.kept() if self._keep_sums else None
        if kept is not None:
            past = from_plain(kept)
            for present, of_then in zip(sums, past["sums"], strict=True):
                present.copy_(of_then)
            self._restore_random(past)
        elif ranks.reduces:
            _add_up_(ranks, sums)
        random = self._random() if self._keep_sums and not journal.replaying else None
        journal.write_ahead(
            step,
            lambda: [ids, *(part.detach().cpu().numpy() for part in sums)],
            lambda: None if random is None else to_plain({"sums": sums, **random}),
        )
        if ranks.reduces:
            self._noise.run_steps.is_total()

    def _random(self) -> dict[str, Any]:
        """Return the random states of all ranks, which call it together."""
        first, *others = self._ranks.gather(random_state())
        return {"random": first, **({"random_of_others": others} if others else {})}

    def _restore_random(self, state: Mapping[str, Any]) -> None:
        """Restore those of this rank, if the state has them."""
        everywhere = [state["random"], *state.get("random_of_others", ())]
        if self._rank < len(everywhere):
            restore_random_state(everywhere[self._rank])

    @property
    def step(self) -> int:
        """Steps taken, or begun and written ahead."""
        return self._journal.step

    @property
    def replaying(self) -> bool:
        """Whether the next step was written ahead before a crash."""
        return self._journal.replaying

    @property
    def account(self) -> RunAccount:
        """Privacy account of the run, spare recoveries and recoveries included."""
        return self._account

    @property
    def forked(self) -> bool:
        """Whether the folder is a copy that was taken with ``allow_fork``: no guarantee holds."""
        return self._journal.forked

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole run, spare recoveries and recoveries included.

        Without either it is the plan's. A forked run has none: ValueError.
        """
        if self.forked:
            raise ValueError(
                "no epsilon can be stated: this folder is a copy taken with allow_fork, and another"
                " run may have added the same noise to other sums"
            )
        return self._account.guarantee

    # ---- The state ----

    def _identity(self, account: RunAccount) -> dict[str, Any]:
        clipping = self._sums.clipping
        facts = [[n, list(p.shape), str(p.dtype)] for n, p in self._named("parameters")]
        return {
            "plan": account.plan.to_dict(),
            "spare_restarts": account.spare_recoveries,
            "batch_size": self._loader.batch_size,
            "examples": len(self._loader.dataset),
            "clipping": [type(clipping).__name__, clipping.clip_norm],
            "optimizer": type(self._optimizer).__name__,
            "parameters": hashlib.sha256(json.dumps(facts).encode()).hexdigest(),
            "extra": sorted(self._extra),
        }

    def _named(self, what: str) -> list[tuple[str, torch.Tensor]]:
        """Return parameters or buffers under the names that folders have for them.

        These are those inside of a wrapper, which models with per-example gradients had.
        """
        prefix = "" if self._sums.source is None else "_module."
        found = getattr(self._model, f"named_{what}")()
        return [(prefix + name.removeprefix(prefix), x) for name, x in found]

    def _state(self) -> dict[str, Any]:
        """Return the state of the run, on rank 0; all ranks call it together."""
        random = self._random()
        if self._rank != 0:
            return {}
        state = {
            "optimizer": _everything(self._optimizer),
            "noise": None if self._noise is self._optimizer else _everything(self._noise),
            "parameters": dict(self._named("parameters")),
            "buffers": dict(self._named("buffers")),
            "ledger": self._guard.state_dict(),
            "loader": self._loader.state_dict(),
            "settings": self._settings,
            **random,
            "extra": {name: held.state_dict() for name, held in self._extra.items()},
        }
        plain: dict[str, Any] = to_plain(state)
        return plain

    def _load(self, kept: Mapping[str, Any]) -> None:
        """Load a state; the loader refuses one of another order before parameters change."""
        state = from_plain(kept)
        self._guard.load_state_dict(state["ledger"])
        self._loader.load_state_dict(state["loader"])
        if self._noise is not self._optimizer:
            self._noise.load_state_dict(state["noise"])
        self._optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for name, p in self._named("parameters"):
                p.copy_(state["parameters"][name])
            for name, buffer in self._named("buffers"):
                buffer.copy_(state["buffers"][name])
        for name, held in self._extra.items():
            held.load_state_dict(state["extra"][name])
        self._restore_random(state)
        self._kept_at = self._journal.step

    def close(self) -> None:
        """Release the folder, without a checkpoint. A later step of the run is refused."""
        self._journal.close()

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        try:
            if kind is None and not self._sums.is_open:
                self.checkpoint()
        finally:
            self.close()

    def __repr__(self) -> str:
        return f"TrainingRun({self._journal!r}, plan={self._account.plan!r})"


def _everything(held: Any) -> dict[str, Any]:
    """Return the whole state of a part of the run."""
    if isinstance(held, (DPFTRL, ResidualNoise)):
        return held.state_dict(secrets=True)
    found: dict[str, Any] = held.state_dict()
    return found


def _add_up_(ranks: Ranks, sums: list[Tensor]) -> None:
    """Add up the sums of all ranks, in place: one call for those of a dtype and a device."""
    for kind in dict.fromkeys((part.dtype, part.device) for part in sums):  # in one order
        alike = [part for part in sums if (part.dtype, part.device) == kind]
        total = torch.cat([part.reshape(-1) for part in alike])
        ranks.reduce_(total)
        parts = torch.split(total, [part.numel() for part in alike])
        for part, added in zip(alike, parts, strict=True):
            part.copy_(added.view_as(part))


def _source_of_noise(given: Any, known: Any, optimizer: Optimizer) -> Any:
    """Return the source of the noise; without its key a step could be released twice."""
    if given is not None and known is not None and given is not known:
        raise ValueError("noise must be that of the run, as make_private made it, got another")
    noise = given if given is not None else optimizer if known is None else known
    if not callable(getattr(noise, "recover", None)):
        raise TypeError(
            "expected a DPFTRL, or the ResidualNoise of the run as noise=, got "
            f"{type(noise).__name__}, which makes no noise"
        )
    return noise
