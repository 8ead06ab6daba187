# SPDX-License-Identifier: Apache-2.0
"""`UserLedger`: one budget for each user, over several models and tasks."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpftrl_fast._validate import choice, positive, positive_integer, probability
from dpftrl_fast.accounting.guard.keyed_ids import KEY_SIZE, KeyedIds, user_key_or_none
from dpftrl_fast.accounting.statement.statement import Guarantee, Neighbours, compose
from dpftrl_fast.federated.ids import KEYED, Client, ClientIds, listed
from dpftrl_fast.federated.user_ledger_book import Book, UserTerms
from dpftrl_fast.federated.user_ledger_file import Block, LedgerFile
from dpftrl_fast.run.budget_file import guarantee_from_dict, guarantee_to_dict
from dpftrl_fast.run.budget_share import share

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_TASK, _RUN, _USERS = 1, 2, 3  # kinds of blocks

#: Reason for a client that a ledger turns away.
SPENT = "its budget is spent in other tasks"


class UserLedger:
    """One budget for each user, over several models and tasks.

    Each training is a *task* with its declared guarantee. A user's total is the composition of the
    guarantees of the tasks in which the user has taken part. A server with the option
    ``ledger=ledger.task(label, plan)`` turns away users whose total would exceed the budget, before
    they train. Users who were only in other tasks cost nothing here: each task may have as many
    users as there are, as long as no user is in too many tasks.

    Parameters
    ----------
    folder : str or Path, optional
        **A secret.** Keeps the ledger; several processes may share it. None: in memory only.
    epsilon, delta : float
        Budget of each user, for all tasks together.
    neighbours : {"zero-out", "replace-one"}
        Neighbours for which it holds: one user's updates replaced by zero, or by another's.
    key : bytes, optional
        32 secret bytes for the hashes under which users are kept, to be given whenever the folder
        is opened. By default the folder keeps its own: whoever has it can test guesses of users.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above, or the folder has another budget or key, or is damaged.
    OSError
        If the folder cannot be read and written, or is open to others.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one user, whose updates are replaced by zero (or by
    another's) in all tasks. All that the servers of all tasks release together is (epsilon,
    delta)-private for that user, also if the tasks, their plans, their order and the users that
    each asks are chosen by outputs of earlier ones, and if tasks run at the same time.

    A task costs a user its whole declared guarantee from the first round that the user is asked in
    (in buffered rounds, from its first update). So the loss of a user is at most the sum of mu^2 of
    that user's tasks, a number that is known before anything of the user enters a task, and a user
    whose sum would exceed the budget is not asked. That is a privacy filter for each user: Gaussian
    differential privacy composes fully adaptively (Smith and Thakurta 2022), and individually
    (Feldman and Zrnic 2021; Koskela, Tobaben and Honkela 2023). A fixed part of delta, 2^-10 of it,
    is kept for the finite tails of the noise of users with several tasks.

    Each server must be given its task, one label must stand for one run, and a client must have
    one name in all tasks. Not protected: who took part in which task. That decides who is turned
    away, as everywhere in this package.

    Users are written before their cohort is returned, or their update is added. After a crash a
    user may be counted who sent nothing; no user who sent something is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from dpftrl_fast.federated import ServerDPFTRL, plan_rounds
    >>> ledger = UserLedger(None, 8.0, 1e-6)
    >>> each = ledger.epsilon_per_task(2)
    >>> plan = plan_rounds(1_000, 10, each, 1e-6, report_goal=9).plan
    >>> for label in ("keyboard", "voice", "photos"):
    ...     task = ledger.task(label, plan)
    ...     server = ServerDPFTRL([np.zeros(2)], plan=plan, report_goal=9, ledger=task)
    ...     now = server.begin_round(["Hamlet", "Ophelia"] if label != "voice" else ["Hamlet"])
    ...     print(label, now.cohort, dict(now.turned_away))
    keyboard ('Hamlet', 'Ophelia') {}
    voice ('Hamlet',) {}
    photos ('Ophelia',) {'Hamlet': 'its budget is spent in other tasks'}
    >>> ledger.guarantee.epsilon(1e-6) <= 8.0
    True
    """

    def __init__(
        self,
        folder: str | Path | None,
        epsilon: float,
        delta: float,
        *,
        neighbours: Neighbours = "zero-out",
        key: bytes | None = None,
    ) -> None:
        self._terms = UserTerms(
            positive("epsilon", epsilon),
            probability("delta", delta),
            choice("neighbours", neighbours, ("zero-out", "replace-one")),
        )
        given = user_key_or_none("key", key)
        self._file: LedgerFile | None = None
        self._name = secrets.token_hex(16)
        if folder is not None:
            self._file = LedgerFile(Path(folder), self._terms, given)
            self._name, given = self._file.name, self._file.key
        hashes = KeyedIds(secrets.token_bytes(KEY_SIZE) if given is None else given)
        self._ids = ClientIds(KEYED, hashes)
        self._book = Book(self._terms)
        self._lock = threading.RLock()
        self._torn = False

    @property
    def terms(self) -> tuple[float, float, Neighbours]:
        """Epsilon, delta and neighbours of the budget of each user."""
        return self._terms.epsilon, self._terms.delta, self._terms.neighbours

    @property
    def name(self) -> str:
        """Random name, by which a run knows its ledger again."""
        return self._name

    def task(self, label: str, run: Any) -> LedgerTask:
        """Return a task: declared at the first call, the same one at later calls.

        Parameters
        ----------
        label : str
            Name of one training, a public fact.
        run : object
            Anything with a guarantee: the plan of the server, with `spare_recoveries` the
            :class:`dpftrl_fast.run.RunAccount`, with `clipping` its ``composition(plan)``.

        Raises
        ------
        ValueError
            If the task was declared with another guarantee, or the label is empty.
        """
        if not isinstance(label, str):
            raise TypeError(f"label must be a text, got {type(label).__name__}")
        if not label:
            raise ValueError("label must not be empty, got ''")
        declared = _alone(compose([run]))
        with self._turn():
            place = self._place(label)
            if place is None:
                place = len(self._book.tasks)
                self._enter(_TASK, {"label": label, **guarantee_to_dict(declared)})
            self._book.tasks[place].check(declared)
        return LedgerTask(self, place, label, declared)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Labels of the declared tasks."""
        with self._turn():
            return tuple(task.label for task in self._book.tasks)

    def epsilon_per_task(self, tasks: int) -> float:
        """Return the epsilon of each of so many tasks that every user may take part in.

        For zero-out neighbours, as plans are calibrated, at the delta of the ledger.

        Examples
        --------
        >>> ledger = UserLedger(None, 8.0, 1e-6)
        >>> [round(ledger.epsilon_per_task(tasks), 3) for tasks in (1, 2, 5)]
        [8.0, 5.352, 3.192]
        """
        terms = self._terms
        return share(
            None,
            positive_integer("tasks", tasks),
            epsilon=terms.epsilon,
            delta=terms.delta,
            neighbours=terms.neighbours,
        )

    def epsilon_of(self, client: Client) -> float:
        """Return the epsilon of one user's tasks together: for the operator only.

        Whether a user took part is a fact of the list of members. At the delta and for the
        neighbours of the ledger.
        """
        with self._turn():
            return self._book.epsilon_of(self._ids.of(client))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the user with the largest total so far.

        It may be stated where tasks and their users do not depend on released models. Else state
        the budget, `terms`, which holds in any case. ValueError while nobody has taken part.
        """
        with self._turn():
            found = self._book.worst()
        if found is None:
            raise ValueError("no guarantee can be stated: nobody has taken part in a task yet")
        return found

    # ---- Calls of a task ----

    def _eligible(self, place: int, clients: Sequence[Client]) -> Bools:
        ids = self._ids.of_all(clients)
        with self._turn():
            return self._book.allowed(place, ids)

    def _charge(self, place: int, clients: Sequence[Client]) -> Bools:
        ids = self._ids.of_all(clients)
        with self._turn():
            allowed = self._book.allowed(place, ids)
            new = self._book.missing(place, ids[allowed])
            if new.size:
                self._enter(_USERS, place.to_bytes(4, "little") + new.astype("<i8").tobytes())
        return allowed

    def _claim(self, place: int, run: str, guarantee: Guarantee, users: int) -> None:
        with self._turn():
            task = self._book.tasks[place]
            task.check(_alone(guarantee))
            if task.run is None:
                self._enter(_RUN, {"task": place, "run": run})
            elif task.run != run:
                raise ValueError(
                    f"the task {task.label!r} belongs to another run: its users count one "
                    "guarantee. Give this run a label of its own, and a new folder"
                )
            if task.users < users:
                raise ValueError(
                    f"the ledger must have the {users} users that this run has asked, got "
                    f"{task.users} of them: an older copy has taken its place"
                )

    def _users(self, place: int) -> int:
        with self._turn():
            return self._book.tasks[place].users

    # ---- Entries ----

    def _place(self, label: str) -> int | None:
        labels = [task.label for task in self._book.tasks]
        return labels.index(label) if label in labels else None

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the ledger, with all that other processes have entered."""
        with self._lock, ExitStack() as stack:
            if self._torn:
                raise RuntimeError(
                    "this ledger was interrupted half-way and may have forgotten users: open its "
                    "folder with a new object"
                )
            if self._file is not None:
                self._torn = True  # an interruption may lose entries that were read
                try:
                    blocks = stack.enter_context(self._file.turn())
                except Exception:  # nothing was read
                    self._torn = False
                    raise
                for block in blocks:
                    self._apply(block)
                self._torn = False
            yield

    def _enter(self, kind: int, content: bytes | dict[str, Any]) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        block = Block(kind, body)
        self._torn = True  # an interruption may leave file and book an entry apart
        if self._file is not None:
            try:
                self._file.append(block)
            except Exception:  # refused as a whole; not so where an interrupt came
                self._torn = False
                raise
        self._apply(block)
        self._torn = False

    def _apply(self, block: Block) -> None:
        if block.kind == _USERS:
            ids = np.frombuffer(block.body, "<i8", offset=4).astype(np.int64)
            self._book.add(int.from_bytes(block.body[:4], "little"), ids)
            return
        entry = json.loads(block.body)
        if block.kind == _TASK:
            self._book.declare(entry["label"], guarantee_from_dict(entry))
        elif block.kind == _RUN:
            self._book.tasks[entry["task"]].run = entry["run"]
        else:
            raise ValueError(f"the ledger has an entry of an unknown kind, {block.kind}")

    def __repr__(self) -> str:
        terms = self._terms
        return (
            f"UserLedger(epsilon={terms.epsilon!r}, delta={terms.delta!r}, "
            f"neighbours={terms.neighbours!r})"
        )

    def __reduce__(self) -> Any:
        raise TypeError("a UserLedger holds a secret key and is not pickled: open its folder")


class LedgerTask:
    """One task of a `UserLedger`: the option ``ledger=`` of the server that trains it.

    Attributes
    ----------
    label : str
        Name of the task.
    guarantee : Guarantee
        As it was declared.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> plan = PrivacyPlan.calibrate(
    ...     epsilon=4.0, delta=1e-6, clip_norm=1.0, participation=accounting.SinglePass(10)
    ... )
    >>> task = UserLedger(None, 8.0, 1e-6).task("keyboard", plan)
    >>> task.label, task.guarantee.epsilon(1e-6) <= 4.0
    ('keyboard', True)
    """

    def __init__(self, ledger: UserLedger, place: int, label: str, guarantee: Guarantee) -> None:
        self._ledger, self._place = ledger, place
        self.label, self.guarantee = label, guarantee

    @property
    def identity(self) -> dict[str, str]:
        """Name of the ledger and label of the task: facts that identify a run."""
        return {"name": self._ledger.name, "task": self.label}

    @property
    def users(self) -> int:
        """Number of users who have been asked in this task."""
        return self._ledger._users(self._place)

    def eligible(self, clients: Iterable[Client]) -> Bools:
        """Return for each client whether its budget allows this task."""
        return self._ledger._eligible(self._place, listed(clients))

    def charge(self, clients: Iterable[Client]) -> Bools:
        """Charge the task to those of the clients whose budget allows it, and return which.

        It is on the disk when this returns. Clients that are in the task already cost nothing.
        """
        return self._ledger._charge(self._place, listed(clients))

    def claim(self, run: str, guarantee: Guarantee, users: int = 0) -> None:
        """Bind the task to one run with this guarantee, which has asked so many users before.

        Raises
        ------
        ValueError
            If the task belongs to another run, was declared with another guarantee, or has fewer
            users: then the ledger is an older copy.
        """
        self._ledger._claim(self._place, run, guarantee, users)

    def __repr__(self) -> str:
        return f"LedgerTask(label={self.label!r})"


def _alone(guarantee: Guarantee) -> Guarantee:
    """Return a guarantee by its mechanisms alone."""
    return replace(guarantee, otherwise=None)
