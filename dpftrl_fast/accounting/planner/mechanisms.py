# SPDX-License-Identifier: Apache-2.0
"""Rank mechanisms for a budget by their error.

For one budget sigma grows with the square root of the squared sensitivity, and the error with both.
The free numbers of each kind are chosen for the run and its workload (`mechanisms.optimise`), every
mechanism is then accounted for as it is, and ranked by the standard deviation of its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args, overload

from dpftrl_fast._validate import choice, optional, positive, positive_integer, probability
from dpftrl_fast._validate import integer as checked_integer
from dpftrl_fast.accounting.curve.gaussian import noise_multiplier as gaussian_noise_multiplier
from dpftrl_fast.accounting.curve.rounding import short_up
from dpftrl_fast.accounting.participation import (
    FixedOrder,
    Participation,
    check_participation,
)
from dpftrl_fast.accounting.planner.lower_bound import nuclear_norm
from dpftrl_fast.accounting.planner.schedules import default_trees
from dpftrl_fast.accounting.sensitivity.delta_floor import calibrated_noise_multiplier, touched
from dpftrl_fast.accounting.sensitivity.squared import PlanBound, squared_of
from dpftrl_fast.accounting.statement.dp_event import dpsgd_noise_multiplier
from dpftrl_fast.mechanisms import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Identity,
    Mechanism,
)
from dpftrl_fast.mechanisms.optimise import Problem
from dpftrl_fast.mechanisms.run_error import MechanismError, check_error_steps, mechanism_error
from dpftrl_fast.mechanisms.workload import Workload, check_workload

MechanismRankBy = Literal["rms", "last", "worst"]

#: A cheaper mechanism is chosen before one that has at most so much less error.
WORTH = 0.003
# One more buffer must gain so much, in log zeta + log error squared: 0.1 % of the error.
_BUFFER_GAIN = 0.002
_MOST_BUFFERS, _MOST_BANDS = 4, 100
_TAPS = (4, 8, 16)
_ROOTS = (16, 64)


class Cost(NamedTuple):
    """Memory and work of a mechanism: vectors that it keeps, normals a step and coordinate."""

    vectors: int
    normals: int


@dataclass(frozen=True)
class MechanismRow:
    """One mechanism that keeps the budget, and its error.

    Attributes
    ----------
    participation : participation
        Who takes part when, and the declared number of steps.
    mechanism : mechanism
        A `Tree` or a Toeplitz mechanism; its coefficients are float32 numbers.
    workload : Workload
        What the errors are of.
    epsilon, delta : float
        The budget, for zero-out neighbours: one record's (or user's) gradients replaced by zero.
    noise_multiplier : float
        The smallest sigma that keeps it, the floor of the noise stream included.
    sensitivity_squared : int or float
        zeta, in units of the clip norm squared: of trees for the released prefixes.
    rms_std, last_std, worst_std : float
        Standard deviation of the noise in one coordinate of the workload's sums, in clip norms: the
        root mean square over the steps, that of the last step, and the largest.
    vectors : int
        Vectors of the model's size that the noise keeps between steps: of a tree
        floor(log2 T) + 2 with its nodes stored (with ``memory="regenerate"`` it keeps 1, and makes
        more normals); of taps 0, made again from the key, or all but one if ``max_normals`` asks.
    normals : int
        Normals made a step and coordinate, for a tree at most 2.
    needs_sampling : bool
        True for DP-SGD amplified by Poisson sampling, a comparison: the budget is kept only if each
        batch is a Poisson sample of the data, for add-or-remove-one neighbours, by privacy loss
        distributions (`dpsgd_noise_multiplier`) and without the floor. Its ``sensitivity_squared``
        is that of one step.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> row = plan_mechanism(8, 1e-5, FixedEpochs(20, 4), max_vectors=0).best
    >>> row.words, row.vectors, round(row.rms_std, 2)
    ('8 taps', 0, 3.03)
    >>> PrivacyPlan.from_schedule(row, clip_norm=1.0).epsilon(1e-5) <= 8
    True
    """

    participation: Participation
    mechanism: Mechanism
    workload: Workload
    epsilon: float
    delta: float
    noise_multiplier: float
    sensitivity_squared: int | float
    rms_std: float
    last_std: float
    worst_std: float
    vectors: int
    normals: int
    needs_sampling: bool = False

    @property
    def words(self) -> str:
        """The mechanism in words."""
        if self.needs_sampling:
            return "DP-SGD, amplified by Poisson sampling (needs sampling)"
        if isinstance(self.mechanism, Identity):
            return "DP-SGD, independent noise"
        if isinstance(self.mechanism, BandedInverse):
            size = len(self.mechanism.taps)
            root = self.mechanism == BandedInverse.square_root(size).rounded("float32")
            return f"{size} taps{', square root' if root and size > 2 else ''}"
        if isinstance(self.mechanism, BufferedToeplitz):
            return f"{self.vectors} buffer{'s' * (self.vectors > 1)} (BLT)"
        if isinstance(self.mechanism, BandedToeplitz):
            return f"{self.vectors + 1} bands"
        tree = self.mechanism
        every = getattr(tree, "restart_every", None)
        restarts = "one tree" if every is None else f"tree every {every} steps"
        return f"{restarts}{', completed' if getattr(tree, 'complete', False) else ''}"

    def error(self) -> MechanismError:
        """Return the error for unit noise, with the standard deviation at each step."""
        return mechanism_error(self.mechanism, self.participation, self.workload)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a JSON-able dictionary, with the mechanism in words."""
        apart = ("participation", "mechanism", "workload")
        return {
            "participation": self.participation.to_dict(),
            "mechanism": self.mechanism.to_dict(),
            "words": self.words,
            "workload": self.workload.to_dict(),
            **{key: value for key, value in self.__dict__.items() if key not in apart},
        }


@dataclass(frozen=True)
class MechanismTable(Sequence[MechanismRow]):
    """Mechanisms for one budget, the best first.

    ``str()`` gives a table of text.

    Attributes
    ----------
    rows : tuple of MechanismRow
    rank_by : {"rms", "last", "worst"}
        The error by which they are ranked.
    lower_bound : float or None
        No mechanism of this kind (noise times a matrix, accounted as here) has a smaller
        ``rms_std``. None where it is not computed, see :func:`plan_mechanism`.
    notes : tuple of str
        What was left out, and why.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> table = plan_mechanism(8, 1e-5, FixedEpochs(20, 4), max_vectors=2)
    >>> table.best is table.rows[0], table.lower_bound <= table.best.rms_std
    (True, True)
    >>> table.best.words, len(table.rows)
    ('8 taps', 9)
    """

    rows: tuple[MechanismRow, ...]
    rank_by: MechanismRankBy
    lower_bound: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> MechanismRow:
        """The row with the smallest error that needs no sampling."""
        return next(row for row in self.rows if not row.needs_sampling)

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, i: int) -> MechanismRow: ...
    @overload
    def __getitem__(self, i: slice) -> tuple[MechanismRow, ...]: ...
    def __getitem__(self, i: int | slice) -> MechanismRow | tuple[MechanismRow, ...]:
        return self.rows[i]

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return every row's `MechanismRow.to_dict`."""
        return [row.to_dict() for row in self.rows]

    def __str__(self) -> str:
        best = self.best
        lines = [
            ("mechanism", "vectors", "normals", "sigma", "zeta", "rms", "last", "worst"),
            *(
                (
                    row.words,
                    str(row.vectors),
                    str(row.normals),
                    f"{row.noise_multiplier:.4g}",
                    f"{row.sensitivity_squared:.6g}",
                    *(f"{std:.4g}" for std in (row.rms_std, row.last_std, row.worst_std)),
                )
                for row in self.rows
            ),
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            [
                f"epsilon {short_up(best.epsilon)} at delta {short_up(best.delta)} (neighbours: one"
                " record's (or user's) gradients replaced by zero)",
                f"{best.participation!r}; noise in clip norms, ranked by {self.rank_by!r}",
                *(
                    "  ".join(
                        [
                            line[0].ljust(widths[0]),
                            *(text.rjust(w) for text, w in zip(line[1:], widths[1:], strict=True)),
                        ]
                    )
                    for line in lines
                ),
                *bound_words(self),
                *self.notes,
            ]
        )


def bound_words(table: MechanismTable) -> list[str]:
    """Return the lower bound of a table in words: no line, or one."""
    if table.lower_bound is None:
        return []
    sampled = any(row.needs_sampling for row in table.rows)
    whose = "mechanism without sampling" if sampled else "mechanism"
    return [f"no {whose} has a smaller rms than {table.lower_bound:.4g}"]


def plan_mechanism(
    epsilon: float,
    delta: float,
    participation: Participation,
    *,
    workload: Workload = Workload(),
    max_vectors: int | None = None,
    max_normals: int | None = None,
    rank_by: MechanismRankBy = "rms",
    batch_size: int | None = None,
    population: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> MechanismTable:
    """Rank mechanisms that keep a budget by the error of the run.

    Parameters
    ----------
    epsilon, delta : float
        Budget, epsilon > 0 and 0 < delta < 1, for zero-out neighbours: one record's (or one
        user's) gradients replaced by zero.
    participation : participation
        Who takes part when, over at most 2^26 steps.
    workload : Workload
        What training reads: running sums by default. Momentum, weight decay and a schedule of
        learning rates change what is best.
    max_vectors : int, optional
        The most vectors of the model's size that the noise may keep between steps, >= 0.
    max_normals : int, optional
        The most normals that it may make a step and coordinate, >= 1.
    rank_by : {"rms", "last", "worst"}
        Root mean square over the steps of the noise's standard deviation, that of the last step, or
        the largest. For "worst" the free numbers are those with the least error of the last step.
    batch_size, population : int, optional
        With both, DP-SGD amplified by Poisson sampling is a row for comparison: each of
        ``population`` records (or users) is in each batch with probability batch_size/population.
        It needs the package dp-accounting. `best` is another row, even if this one has the least
        error.
    progress : callable, optional
        Called with the number of mechanisms done and their total.

    Returns
    -------
    MechanismTable
        The best first: independent noise, taps (2, 4, 8 and 16 chosen for the run, 16 and 64 of the
        square root), 1 to 4 buffers, bands up to the separation (at most 100), and the best tree
        among the schedules of :func:`plan_schedule`, as far as they fit the limits.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as above.

    Notes
    -----
    Looking for the best mechanism costs no privacy: nothing here depends on data. The lower bound
    is sqrt(k) ||A||_nuclear/n times the sigma of zeta = 1, where k is the number of uses that fit
    evenly. It is computed for running sums of any length, for other workloads up to 5,000 steps
    whose learning rates are all > 0, and not for a `FixedOrder`.

    References
    ----------
    Denisov, McMahan, Rush, Smith and Thakurta, "Improved Differential Privacy for SGD via Optimal
    Private Linear Operators on Adaptive Streams", 2022.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> table = plan_mechanism(8, 1e-5, FixedEpochs(100, 10), max_vectors=3)
    >>> table.best.words, round(table.best.rms_std, 2)
    ('2 buffers (BLT)', 7.32)
    """
    budget, total = positive("epsilon", epsilon), probability("delta", delta)
    found = _Search(participation, workload, max_vectors, max_normals, rank_by)
    sampled = _sampling(batch_size, population)
    pattern, notes = found.pattern, []
    rows: list[MechanismRow] = []
    kinds = found.kinds(fine=True)
    for done, mechanisms in enumerate(kinds):
        for mechanism, cost in mechanisms():
            layout = mechanism.layout(pattern.steps)
            zeta = squared_of(layout, pattern, "released")
            sigma = calibrated_noise_multiplier(
                budget, total, zeta, touched(layout, pattern, "released")
            )
            if not math.isfinite(sigma):
                raise ValueError(f"no noise is large enough for epsilon {budget} at delta {total}")
            rows.append(found.row(mechanism, cost, budget, total, sigma, zeta))
        if progress is not None:
            progress(done + 1, len(kinds))
    if sampled is not None:
        try:
            sigma = dpsgd_noise_multiplier(budget, total, sampled, pattern.steps)
            cost = Cost(0, 1)
            rows.append(found.row(Identity(), cost, budget, total, sigma, 1, needs_sampling=True))
        except ModuleNotFoundError:
            notes.append("DP-SGD amplified by sampling is left out: pip install dp-accounting")
    rows.sort(key=lambda row: getattr(row, f"{rank_by}_std"))
    return MechanismTable(tuple(rows), rank_by, found.lower_bound(budget, total), tuple(notes))


def best_mechanism(
    epsilon: float,
    delta: float,
    participation: Participation,
    *,
    workload: Workload = Workload(),
    max_vectors: int | None = 3,
    max_normals: int | None = None,
    bound: PlanBound = "released",
    rank_by: MechanismRankBy = "rms",
) -> Mechanism:
    """Return the mechanism that a run should use: the cheapest within 0.3 % of the least error.

    Cheaper is one with fewer vectors and normals together. Arguments and errors are those of
    :func:`plan_mechanism`; `bound` is that of the plan, by which trees are ranked. Fewer mechanisms
    are tried, with coarser tolerances.

    Examples
    --------
    >>> from dpftrl_fast.accounting import FixedEpochs
    >>> best_mechanism(8, 1e-5, FixedEpochs(100, 10), workload=Workload(0.9)).words
    'noise anticorrelated with that of the step before, taps 1, -0.981'
    """
    positive("epsilon", epsilon), probability("delta", delta)
    found = _Search(participation, workload, max_vectors, max_normals, rank_by, bound)
    scored = [
        (found.score(mechanism), mechanism, cost)
        for mechanisms in found.kinds(fine=False)
        for mechanism, cost in mechanisms()
    ]
    least = min(score for score, _, _ in scored)
    near = [(sum(cost), cost, m) for score, m, cost in scored if score <= least * (1.0 + WORTH)]
    return min(near, key=lambda one: one[:2])[2]


class _Search:
    """The mechanisms that fit a run and its limits."""

    def __init__(
        self,
        participation: Participation,
        workload: Workload,
        max_vectors: int | None,
        max_normals: int | None,
        rank_by: MechanismRankBy,
        bound: PlanBound = "released",
    ) -> None:
        self.pattern = check_participation(participation)
        self._steps = check_error_steps(self.pattern.steps)
        self._workload = check_workload(workload, self._steps)
        self._vectors = optional(checked_integer, "max_vectors", max_vectors, 0)
        self._normals = optional(positive_integer, "max_normals", max_normals)
        self._rank_by = choice("rank_by", rank_by, get_args(MechanismRankBy))
        self._bound = choice("bound", bound, get_args(PlanBound))

    def error_of(self, mechanism: Mechanism) -> MechanismError:
        return mechanism_error(mechanism, self._steps, self._workload)

    def score(self, mechanism: Mechanism) -> float:
        """Return the error at a fixed epsilon, but for a factor that all mechanisms share."""
        zeta = squared_of(mechanism.layout(self._steps), self.pattern, self._bound)
        return math.sqrt(zeta) * float(getattr(self.error_of(mechanism), self._rank_by))

    def row(
        self,
        mechanism: Mechanism,
        cost: Cost,
        epsilon: float,
        delta: float,
        sigma: float,
        zeta: int | float,
        *,
        needs_sampling: bool = False,
    ) -> MechanismRow:
        error = self.error_of(mechanism)
        return MechanismRow(
            participation=self.pattern,
            mechanism=mechanism,
            workload=self._workload,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=sigma,
            sensitivity_squared=zeta,
            rms_std=sigma * error.rms,
            last_std=sigma * error.last,
            worst_std=sigma * error.worst,
            vectors=cost.vectors,
            normals=cost.normals,
            needs_sampling=needs_sampling,
        )

    def kinds(self, *, fine: bool) -> list[Callable[[], Iterator[tuple[Mechanism, Cost]]]]:
        """Return the kinds to try, each a function that yields mechanisms within the limits.

        Independent noise is the first: its error refuses a workload that overflows before anything
        is optimised for it.
        """
        problem = Problem(self.pattern, self._workload, self._rank_by, coarse=not fine)
        found = [lambda: self._within([Identity()])]
        if self._steps > 1:
            found.append(lambda: self._within([problem.anticorrelated().mechanism]))
            found.append(lambda: self._within(self._buffers(problem)))
            # Two buffers or more have less error than as many normals of taps.
            if fine or self._fits(Cost(2, 1)) is None:
                found += [self._taps(problem, size) for size in _TAPS]
            if fine:
                found += [self._roots(size) for size in _ROOTS]
            found.append(lambda: self._within(self._bands(problem, fine=fine)))
        found.append(self._trees)
        return found

    def _fits(self, *costs: Cost) -> Cost | None:
        """Return the first of these costs that is within the limits."""
        for cost in costs:
            if (self._vectors is None or cost.vectors <= self._vectors) and (
                self._normals is None or cost.normals <= self._normals
            ):
                return cost
        return None

    def _within(self, mechanisms: Any) -> Iterator[tuple[Mechanism, Cost]]:
        for mechanism in mechanisms:
            cost = self._fits(*_costs(mechanism))
            if cost is not None:
                yield mechanism, cost

    def _taps(self, problem: Problem, size: int) -> Callable[[], Iterator[tuple[Mechanism, Cost]]]:
        def found() -> Iterator[tuple[Mechanism, Cost]]:
            if size <= self._steps and self._fits(Cost(0, size), Cost(size - 1, 1)):
                yield from self._within([problem.taps(size).mechanism])

        return found

    def _roots(self, size: int) -> Callable[[], Iterator[tuple[Mechanism, Cost]]]:
        def found() -> Iterator[tuple[Mechanism, Cost]]:
            if size <= self._steps:
                yield from self._within([BandedInverse.square_root(size).rounded("float32")])

        return found

    def _buffers(self, problem: Problem) -> Iterator[Mechanism]:
        most = _MOST_BUFFERS if self._vectors is None else min(_MOST_BUFFERS, self._vectors)
        before = math.inf
        for one in problem.buffers(most) if most else ():
            if before - one.value < _BUFFER_GAIN:
                return
            before = one.value
            yield one.mechanism

    def _bands(self, problem: Problem, *, fine: bool) -> Iterator[Mechanism]:
        most = min(self.pattern.least_separation(), self._steps, _MOST_BANDS)
        if self._vectors is not None:
            most = min(most, self._vectors + 1)
        # Few bands have more error than buffers.
        if most >= (2 if fine else 8):
            yield problem.bands(most).mechanism

    def _trees(self) -> Iterator[tuple[Mechanism, Cost]]:
        """Yield the best tree within the limits."""
        scored = []
        for tree in default_trees(self.pattern):
            cost = Cost(tree.layout(self._steps).tallest.bit_length() + 1, 2)
            if self._fits(cost) is not None:
                scored.append((self.score(tree), tree, cost))
        if scored:
            _, tree, cost = min(scored, key=lambda one: one[0])
            yield tree, cost

    def lower_bound(self, epsilon: float, delta: float) -> float | None:
        if isinstance(self.pattern, FixedOrder):
            return None
        norm = nuclear_norm(self._workload, self._steps)
        if norm is None:
            return None
        fit = max(1, self._steps // self.pattern.least_separation())
        uses = min(self.pattern.most_uses(), fit)
        sigma = gaussian_noise_multiplier(epsilon, delta, 1)
        return sigma * math.sqrt(uses) * norm / self._steps


def _costs(mechanism: Any) -> list[Cost]:
    costs = [Cost(mechanism.vectors, mechanism.normals)]
    if isinstance(mechanism, BandedInverse):
        costs.append(Cost(mechanism.bands - 1, 1))  # the last normals kept
    return costs


def _sampling(batch_size: int | None, population: int | None) -> float | None:
    if (batch_size is None) != (population is None):
        raise ValueError(
            "batch_size and population must be given together, got "
            f"batch_size={batch_size!r} and population={population!r}"
        )
    if batch_size is None or population is None:
        return None
    size, people = (
        positive_integer("batch_size", batch_size),
        positive_integer("population", population),
    )
    if size > people:
        raise ValueError(f"batch_size must be at most the population, {people}, got {size}")
    return size / people
