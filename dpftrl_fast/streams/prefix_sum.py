# SPDX-License-Identifier: Apache-2.0
"""`PrefixSum`: the private running sum of a stream of vectors, with its epsilon and its error."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import clamped_integers, flag, float_dtype, positive_integer, shown
from dpftrl_fast.accounting import Participation, SinglePass
from dpftrl_fast.accounting.planner.choice import MechanismChoice, chosen_mechanism
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms import BufferedToeplitz, ToeplitzMechanism
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.noise.outputs import writable_view
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.rounding import check_summands
from dpftrl_fast.streams.calls import Call, sums_of_steps
from dpftrl_fast.streams.contributions import (
    Clipped,
    Floats,
    real_rows,
    rule_of,
    sum_of_step,
)
from dpftrl_fast.streams.kept_sum import KeptSum
from dpftrl_fast.streams.users import Ids, Surplus, Users, ids_of, one_row_a_user, stream_pattern

# The order of mechanisms is that of sqrt(zeta) times their error, for every budget.
_BUDGET = (1.0, 1e-6)
# Sums of counts are exact below 2^53: for a stream of 2^31 steps, or without an end, that is
# 2^22 events of a step.
_LARGEST_SUM, _LEAST_COUNT = 1 << 53, 1 << 22


class PrefixSum(KeptSum):
    """Private running sum of a stream of vectors.

    Each row that is passed to `add` is one record. It is clipped to L2 norm `clip_norm`, or to
    `bounds`, and added; `add` returns the sum so far plus the noise of this step. For 500 events
    pass an array of shape (500, size), or their numbers to `add_counts`: a total that is passed as
    one row counts as one record, clipped to the norm of one. With a tree this is InitializeTree,
    AddToTree and GetSum of Kairouz et al. 2021 (arXiv 2103.00039, appendix B).

    Parameters
    ----------
    size : int
        Length of a vector.
    steps : int or None
        Declared number of steps, for which epsilon is stated: public, chosen before the data are
        seen. None declares no end: one epsilon covers every step for ever, for at most 1.33 times
        the noise of a known end (docs/plan/horizon.md). That is for a single pass and float64.
    clip_norm : float or None
        L2 norm (L) that no record's contribution exceeds, from 1e-100 to 1e100: sums of such
        vectors stay within the range of float64. None with `bounds`.
    noise_multiplier : float
        Standard deviation of a noise vector over `clip_norm` (sigma). `calibrate` chooses it for an
        epsilon. With bounds the clip norm is sqrt(size), in half-widths.
    bounds : (low, high), optional
        Public bounds of each coordinate in place of a clip norm: two numbers, or two arrays of
        shape (size,). Values are clipped to them. Released sums are centred: the noise goes with
        the half-width, and the centre times the number of records, which is public then, is added
        back. A record that is not finite counts as the centre.
    participation : SinglePass, MinSeparation or FixedEpochs, optional
        Who takes part when: by default each record (or user) in one step, `SinglePass`. With the
        others `add` needs `users`.
    mechanism : "auto", "tree" or Mechanism
        The correlated noise. "auto" has the least error in the sums of those that keep at most 3
        vectors, for a single pass whatever the epsilon; without an end ten buffers. "tree" is the
        best tree. The coefficients
        of a value are rounded to `dtype`. With the noise multiplier of a plan pass the plan's
        mechanism: epsilon depends on both.
    bound : {"released", "exact"}
        As for `PrivacyPlan`: only running sums leave this object, so that the epsilon of a tree is
        that of the released prefixes. For other mechanisms the two are one.
    surplus : {"refuse", "drop"}
        A user's step that the participation does not allow: "refuse" raises, which tells that the
        user came before; "drop" counts its rows as zero, without a word, and so those of a label
        that is no user and, with bounds, the further rows of a user in a step.
    whole : bool
        Round released sums to whole numbers, for counts. They are post-processed, not less noisy.
    history : bool
        Keep the released sums of all steps, for `values` and `window`.
    seed : None, int or bytes, optional
        For tests only: the sums are then `reproducible`, not private.
    memory, dtype, rounds, threads
        As for `TreeNoise`. Sums are kept in float64 for either dtype; the output of `add` is
        rounded to a public grid, ``plan.noise_spec.grid(dtype)``, and to the noise's dtype, so that
        no low-order bits of the un-noised sum are exposed (docs/guarantees/floating_point.md).

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Notes
    -----
    **Formal guarantee.** Neighbours differ in one record (with `users`: all records of one user),
    whose contribution is replaced by zero (or by another: see :meth:`epsilon`). With bounds a
    contribution of zero is the centre of the bounds. The outputs of all declared steps together
    have the epsilon of `plan`. Without `users` the caller must pass each record once. Low-order
    bits of floating-point numbers are not covered.

    The object holds the un-noised sum and the key: it is a secret, and is not pickled; `save` keeps
    it in a folder. Only outputs of `add` and `value` may be released. Calls from several threads
    take turns.

    Examples
    --------
    >>> import numpy as np
    >>> import dpftrl_fast as dpf
    >>> given = {"size": 2, "steps": 100, "clip_norm": 1.0, "noise_multiplier": 4.0}
    >>> sums = dpf.PrefixSum(**given)
    >>> private = sums.add(np.array([0.6, 0.8]))
    >>> private.shape, sums.plan.mechanism.words
    ((2,), 'buffered Toeplitz noise, 2 buffers')
    >>> tree = dpf.PrefixSum(**given, mechanism="tree")
    >>> round(sums.epsilon(1e-6), 2), round(tree.epsilon(1e-6), 2)
    (1.66, 2.84)
    """

    def __init__(
        self,
        size: int,
        steps: int | None,
        clip_norm: float | None = None,
        noise_multiplier: float | None = None,
        *,
        bounds: Any = None,
        participation: Participation | None = None,
        mechanism: MechanismChoice = "auto",
        bound: PlanBound = "released",
        surplus: Surplus = "refuse",
        whole: bool = False,
        history: bool = False,
        seed: Seed = None,
        memory: Memory = "stored",
        dtype: Literal["float32", "float64"] = "float64",
        rounds: int = 12,
        threads: int | None = None,
    ) -> None:
        count = positive_integer("size", size)
        rule = rule_of(clip_norm, bounds, count)
        if noise_multiplier is None:
            raise TypeError(
                "noise_multiplier must be given: PrefixSum.calibrate chooses it for an epsilon"
            )
        pattern = _pattern(steps, participation)
        plan = PrivacyPlan(
            clip_norm=rule.clip_norm,
            noise_multiplier=noise_multiplier,
            participation=pattern,
            mechanism=chosen_mechanism(
                _choice(mechanism, pattern, dtype), pattern, *_BUDGET, bound=bound, dtype=dtype
            ),
            bound=bound,
        )
        settings = {"memory": memory, "dtype": dtype, "rounds": rounds, "threads": threads}
        self._whole, self._keeps_history = flag("whole", whole), flag("history", history)
        self._begin(plan, rule, Users(plan, surplus), settings, seed=seed)

    @classmethod
    def calibrate(
        cls,
        size: int,
        steps: int | None,
        *,
        epsilon: float,
        delta: float,
        clip_norm: float | None = None,
        bounds: Any = None,
        participation: Participation | None = None,
        mechanism: MechanismChoice = "auto",
        bound: PlanBound = "released",
        **options: Any,
    ) -> PrefixSum:
        """Return the running sum with the least noise whose epsilon is at most `epsilon`.

        Parameters
        ----------
        size, steps, clip_norm, bounds, participation, mechanism, bound
            As for the class.
        epsilon : float
            Finite and > 0, for neighbours of which one has a record replaced by zero.
        delta : float
            0 < delta < 1.
        **options
            Others of the class: surplus, whole, history, seed, memory, dtype, rounds, threads.

        Examples
        --------
        >>> sums = PrefixSum.calibrate(1, 1000, epsilon=1.0, delta=1e-6, bounds=(1000, 1001))
        >>> sums.epsilon(1e-6) <= 1.0, round(float(sums.std(until=1000).item()), 1)
        (True, 7.1)
        """
        rule = rule_of(clip_norm, bounds, positive_integer("size", size))
        pattern = _pattern(steps, participation)
        plan = PrivacyPlan.calibrate(
            epsilon=epsilon,
            delta=delta,
            clip_norm=rule.clip_norm,
            participation=pattern,
            mechanism=_choice(mechanism, pattern),
            bound=bound,
        )
        return cls(
            size,
            steps,
            clip_norm,
            plan.noise_multiplier,
            bounds=bounds,
            participation=participation,
            mechanism=plan.mechanism,
            bound=bound,
            **options,
        )

    # ---- Steps ----

    def add(self, records: ArrayLike, out: Any = None, *, users: ArrayLike | None = None) -> Any:
        """Take one step: add this step's record or records and return the private running sum.

        Parameters
        ----------
        records : array_like of shape (size,) or (n, size)
            One record, or the n >= 0 records of this step, each clipped by itself. Real numbers. A
            record with a value that is not finite, or an object that is not a real number, counts
            as zero: the step is taken anyway, since a refusal would reveal the value. An array with
            a dtype of other things is refused.
        out : array_like of float64, optional
            Where to write: ndarray, CPU tensor with ``__dlpack__`` or buffer of `size` elements.
        users : array_like of shape (n,), optional
            Whose record each row is: integers or text. A user's rows are added up and clipped
            together (with bounds: one row a user and step). The guard keeps the participation.

        Returns
        -------
        ndarray of shape (size,) and dtype float64, or `out`

        Raises
        ------
        ValueError, TypeError
            If all declared steps are taken, an argument has a wrong shape or dtype, a user may not
            take part, or the records of all steps are so many (2^28) that the rounding of their sum
            could exceed the margin of the clipping. Nothing is then changed.

        Notes
        -----
        After a Ctrl-C check `t`: if it has advanced, the records may be in the sum and must not be
        passed again; `value` may still be that of the step before.
        """
        rows = np.atleast_2d(real_rows("records", records, self.size, (1, 2)))
        view = None if out is None else self._output(out)
        with self._lock:
            self._check_call(1, len(rows), users=users)
            count, named = len(rows), None
            if users is not None:
                rows, ids = self._of_users(rows, ids_of(users, count, self._users.surplus))
                named = [ids]
            total = sum_of_step(self._rule, rows)
            value: Floats = self._take(Call(total[None], np.array([count]), named))[0]
        if view is None:
            return value
        view.reshape(-1)[:] = value
        return out

    def add_steps(self, records: ArrayLike, *, users: ArrayLike | None = None) -> Floats:
        """Take many steps in one call, and return the sum after each of them.

        Parameters
        ----------
        records : array_like of shape (steps, size) or (steps, n, size)
            The record of each step, or its n records, as for `add`.
        users : array_like of shape (steps,), optional
            Whose record it is, with one record a step.

        Returns
        -------
        ndarray of shape (steps, size) and dtype float64
            The bits that `add` returns, called for each step (with several records in one of size
            1, up to the order in which these are added up).

        Raises
        ------
        ValueError, TypeError
            As `add`. Nothing is then changed.

        Notes
        -----
        After a Ctrl-C check `t`, which tells how many steps were taken; their sums are lost.

        Examples
        --------
        >>> sums = PrefixSum(2, 1000, 1.0, 4.0)
        >>> sums.add_steps(np.full((600, 2), 0.1)).shape, sums.t
        ((600, 2), 600)
        """
        rows = real_rows("records", records, self.size, (2, 3))
        each = 1 if rows.ndim == 2 else rows.shape[1]
        with self._lock:
            self._check_call(len(rows), len(rows) * each, users=users)
            named = None
            if users is not None:
                if rows.ndim != 2:
                    raise ValueError(
                        "users of many steps have one record each, of shape (steps, size), got "
                        f"{rows.shape}: call add for each step"
                    )
                ids = ids_of(users, len(rows), self._users.surplus)
                named = self._users.check_steps(ids)
                counted = np.array([one.size > 0 for one in named], np.bool_)
                rows = np.where(counted[:, None], rows, np.nan)  # which contributes zero
            sums = sums_of_steps(self._rule, rows)
            return self._take(Call(sums, np.full(len(rows), each), named))

    def add_counts(self, counts: ArrayLike) -> Floats:
        """Take one step, or many: add numbers of events, each of which is a record.

        An event is a record of 1 in one coordinate, and 0 in the others.

        Parameters
        ----------
        counts : array_like of int, shape (size,) or (steps, size)
            Number of events of a step in each coordinate. Negative ones count as zero; more than
            2^53 divided by the declared steps count as that.

        Returns
        -------
        ndarray of float64, of the shape of `counts`
            The private running counts.

        Raises
        ------
        ValueError, TypeError
            If all declared steps are taken, counts has a wrong shape or dtype, the clip norm is
            below 1 or there are bounds, or records were added by `add`. Nothing is then changed.

        Notes
        -----
        The number of events is private, other than the number of records with `bounds`. Sums of
        counts are exact, so that they need no margin for rounding.

        Examples
        --------
        >>> days = PrefixSum.calibrate(2, 365, epsilon=1.0, delta=1e-6, clip_norm=1.0, whole=True)
        >>> days.add_counts([509, 123]).shape
        (2,)
        """
        given = clamped_integers("counts", counts)
        if given.ndim not in (1, 2) or given.shape[-1] != self.size:
            raise ValueError(
                f"counts must have shape ({self.size},) or (steps, {self.size}), got {given.shape}"
            )
        if not isinstance(self._rule, Clipped) or self._rule.clip_norm < 1.0:
            raise ValueError(
                "clip_norm must be at least 1, the norm of an event, to count events, got "
                f"{self._rule.words}"
            )
        most = max(_LARGEST_SUM // self.steps, _LEAST_COUNT)
        rows = np.clip(np.atleast_2d(given), 0, most).astype(np.float64)
        with self._lock:
            self._check_call(len(rows), 0, counting=True)
            if (self.t + len(rows)) * most > _LARGEST_SUM:
                raise ValueError(
                    f"counts must be of at most {_LARGEST_SUM // most} steps, beyond which their "
                    f"sum could be inexact, got step {self.t + len(rows)}"
                )
            none = np.zeros(len(rows), np.int64)
            return self._take(Call(rows, none, counting=True)).reshape(given.shape)

    def _check_call(
        self, steps: int, records: int, *, counting: bool = False, users: Any = None
    ) -> None:
        """Refuse a call before anything of it is changed."""
        self._refuse_unusable()
        if self._counting is not None and counting != self._counting:
            raise ValueError(
                "one running sum takes either counts or records, got both: the sum of counts is "
                "exact, and has no margin for the rounding of others"
            )
        self._users.check_named(users is not None)
        t, last = self.t, self.steps
        if t + steps > last:
            raise ValueError(
                f"all {last} declared steps are taken: the epsilon is stated for no more; declare "
                "more in steps=, or extend the sum before its last step"
                if t == last
                else f"{last - t} of the {last} declared steps are left, got a call of {steps}"
            )
        check_summands("records", self.records + records, t + steps)

    def _of_users(self, rows: Floats, ids: Ids) -> tuple[Floats, Ids]:
        """Return one row for each user of a step, and the users who count."""
        rows, ids = rows[ids >= 0], ids[ids >= 0]
        merged, distinct = one_row_a_user(rows, ids)
        if len(distinct) < len(ids) and not isinstance(self._rule, Clipped):
            if self._users.surplus == "drop":  # the first row of each counts
                merged = rows[np.unique(ids, return_index=True)[1]]
                return self._of_users(merged, distinct)
            raise ValueError(
                "users must have one row each in a step with bounds, got a user with more: add "
                "them up before, or give a clip_norm"
            )
        keyed = self._users.ids.of_numbers(distinct)
        if np.unique(keyed).size < keyed.size:  # two users with one id are one
            distinct = distinct[np.unique(keyed, return_index=True)[1]]
            merged, keyed = one_row_a_user(merged, keyed)
        counted = self._users.admissible(keyed, distinct)
        return np.where(counted[:, None], merged, np.nan), keyed[counted]

    def _output(self, out: Any) -> NDArray[np.float64]:
        view = writable_view(out)
        expected = f"out must be a writable C-contiguous float64 array of {self.size} values, got "
        if view.dtype != np.float64:
            raise TypeError(f"{expected}dtype {view.dtype}")
        if view.size != self.size:
            raise ValueError(f"{expected}{view.size} elements")
        if not view.flags.c_contiguous:
            raise ValueError(f"{expected}one that is not contiguous")
        if not view.flags.writeable:
            raise ValueError(f"{expected}a read-only one")
        return view

    def mean(self) -> Floats:
        """Return the private mean of the records so far: `value` over their public number.

        Raises
        ------
        ValueError
            If there are no records, or counts are added, of which the number is private.

        Examples
        --------
        >>> sums = PrefixSum.calibrate(1, 10, epsilon=1.0, delta=1e-6, bounds=(1000, 1001))
        >>> _ = sums.add(np.full((500, 1), 1000.5))
        >>> bool(abs(sums.mean() - 1000.5) < 0.1)
        True
        """
        value, records = self._running.released
        if self._counting or records == 0:
            raise ValueError(
                "mean is of records whose number is public, got "
                + ("counts, of which it is private" if self._counting else "none yet")
            )
        return self._rule.restored(value, records) / records

    def __repr__(self) -> str:
        end = self.steps if self.has_end else None
        return (
            f"PrefixSum(size={self.size}, steps={end}, t={self.t}, "
            f"{self._rule.words}, noise_multiplier={self._plan.noise_multiplier:g}"
            f"{', reproducible, not private' if self.reproducible else ''})"
        )


def _choice(
    mechanism: MechanismChoice, pattern: Participation, dtype: Any = "float64"
) -> MechanismChoice:
    """Return the mechanism of a stream without an end where it is to be chosen."""
    if pattern != SinglePass.unbounded():
        return mechanism
    if float_dtype(dtype) != "float64":
        raise ValueError(
            "dtype must be float64 in a stream without a declared end (steps=None), got "
            f"{float_dtype(dtype)}"
        )
    if isinstance(mechanism, ToeplitzMechanism):
        return mechanism
    if mechanism != "auto":
        raise ValueError(
            "mechanism must be 'auto' or of the Toeplitz kinds in a stream without a declared end "
            f"(steps=None), got {shown(mechanism)}"
        )
    return BufferedToeplitz.unbounded()


def _pattern(steps: int | None, participation: Participation | None) -> Participation:
    """Return who takes part when, in so many steps; None is a pass without an end."""
    if steps is None:
        if participation is not None:
            raise ValueError(
                "steps must be those of the participation, got None: a stream without a declared "
                "end is a single pass"
            )
        return SinglePass.unbounded()
    passes = SinglePass(steps)
    if participation is None:
        return passes
    pattern = stream_pattern(participation)
    if pattern.steps != passes.steps:
        raise ValueError(
            f"participation must be of the {passes.steps} steps of the stream, got one of "
            f"{pattern.steps}"
        )
    return pattern
