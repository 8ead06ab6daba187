# SPDX-License-Identifier: Apache-2.0
"""`Accumulator`: from the pieces of a logical batch to the clipped sums of one step.

The order of calls is the loader's and the user's; here each is checked against the one before:

    begin(ids) -> expect(rows) -> gradients of these rows -> [expect -> gradients ..] -> step

Values of the data are not checked. A refused call changes nothing, and the batch can be begun
again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.optim import Optimizer

from dpftrl_fast._validate import integer, integer_array, positive_integer
from dpftrl_fast.accounting import Guard
from dpftrl_fast.kernels.clipped_rows import load
from dpftrl_fast.torch.flat.distributed import Order
from dpftrl_fast.torch.gradients.clipped_sums import (
    add_clipped_,
    contribution_limit,
    row_norms,
    sum_dtype,
)
from dpftrl_fast.torch.gradients.clipping import Clipping
from dpftrl_fast.torch.scaler import refuse_scaler, take_scaler
from dpftrl_fast.torch.steps import Steps

Ints = NDArray[np.int64]


class PerExample(NamedTuple):
    """Per-example gradients of some rows, made while they are read."""

    rows: int
    chunks: Iterable[Sequence[Tensor | None]]
    """Gradients of the first rows, the next, ...: a tensor for each parameter, None for zeros. One
    may be written over when the next is read."""
    scale: float = 1.0
    """Number that they are to be multiplied by."""


class Source(Protocol):
    """Holder of the per-example gradients of a backward pass."""

    def collect(self) -> PerExample | None:
        """Return the gradients of the rows that are due; None if there was no backward pass."""
        ...

    def settle(self) -> None:
        """Drop the remains of an unfinished pass."""
        ...


class Noise(Protocol):
    """Source of the noise of a run: `DPFTRL` or `ResidualNoise`."""

    @property
    def run_steps(self) -> Steps:
        """Owner of the run's step."""
        ...


class Accumulator:
    """Clips the per-example gradients of one logical batch and adds them up.

    :meth:`attach` ties it to an optimiser: each ``optimizer.step()`` then first checks that all
    rows of the open batch have come, once each, admits their ids, and writes the sum of clipped
    gradients into ``p.grad``. The gradient of the whole batch that stood there, which is not
    clipped, is never used. A row whose gradient is not finite counts as zero.

    Parameters
    ----------
    parameters : sequence of Tensor
        Those of the optimiser, in its order. Clipping is over all of them together.
    clipping : Clipping
        `FlatClipping`, `PerLayerClipping` or `AutomaticClipping`.
    batch_size : int
        Most examples of a logical batch (B), public.
    guard : Guard or Ledger
        Of the plan.
    roundings, steps : int
        As for `contribution_limit`.

    Attributes
    ----------
    source : Source or None
        Where gradients are fetched from; None where they are handed to :meth:`add`.
    order : callable or None
        Returns what decides which examples a step has, to be compared over ranks: the attached
        loader's.
    before_step : callable or None
        Called with (step, ids, list of sums) after the sums are written and before the optimiser
        sees them, to write ahead what the step will use. The sums are a secret.

    Notes
    -----
    A sum is kept in float64 while its batch is open, 8 bytes a coordinate.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch.gradients.clipping import FlatClipping
    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> plan = PrivacyPlan(1.0, 2.0, accounting.SinglePass(1))
    >>> sums = Accumulator([w], FlatClipping(1.0), 2, plan.guard())
    >>> sums.begin([7, 8])
    >>> sums.expect(2)
    >>> sums.add([torch.tensor([[0.5, 0.0], [float("nan"), 1.0]])])
    >>> sums.finish()
    >>> w.grad
    tensor([0.5000, 0.0000])
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        clipping: Clipping,
        batch_size: int,
        guard: Guard,
        *,
        roundings: int = 1,
        steps: int = 1,
    ) -> None:
        self.parameters = _checked(parameters)
        self.clipping = clipping
        self.batch_size = positive_integer("batch_size", batch_size)
        self.guard = guard
        self.source: Source | None = None
        self.order: Callable[[], Order] | None = None
        self.handed_out: Callable[[Any], Any] | None = None  # given each piece of a batch
        self._hooked = False
        self.noise = None
        self.before_step: Callable[[int, Ints, list[Tensor]], None] | None = None
        self._frozen: dict[int, Tensor] = {}
        dtypes = {sum_dtype(p.dtype) for p in self.parameters}
        limit = min(
            contribution_limit(
                clipping.clip_norm, self.batch_size, dtype, roundings=roundings, steps=steps
            )
            for dtype in dtypes
        )
        self._shrink = limit / clipping.clip_norm
        self._due = self._expected = self._rows = 0
        self._turn = threading.Lock()
        self._sums: list[Tensor | None] = [None] * len(self.parameters)
        for p in self.parameters:
            _let_grad_be_a_sum(p)
        if any(p.device.type == "cpu" for p in self.parameters):
            load()  # loading takes as long as a short step

    @property
    def noise(self) -> Noise | None:
        """Source of the run's noise; given one, it makes noise for admitted batches only."""
        return self._noise

    @noise.setter
    def noise(self, noise: Noise | None) -> None:
        self._noise = noise
        self._steps = Steps(self.guard.steps) if noise is None else noise.run_steps
        self._steps.guard = self.guard
        self._steps.order, self._steps.hooked = self._order, self._hooked

    def _order(self) -> Order:
        found = Order({}, None) if self.order is None else self.order()
        return found._replace(facts={"batch_size": self.batch_size, **found.facts})

    @property
    def steps_taken(self) -> int:
        """Steps that were admitted."""
        return self._steps.taken

    @property
    def ids(self) -> Ints | None:
        """Examples of the open batch."""
        return self._steps.ids

    @property
    def is_open(self) -> bool:
        """Whether a batch was begun whose step has not come."""
        return self._steps.is_open

    @property
    def rows_due(self) -> int:
        """Examples that were announced and whose gradients have not come."""
        return self._expected - self._rows

    def attach(
        self,
        optimizer: Optimizer,
        *,
        check: Callable[[], None] | None = None,
        after_sum: Callable[[], None] | None = None,
    ) -> None:
        """Do :meth:`finish` before and :meth:`done` after each ``optimizer.step()``.

        `check` raises if the step would be refused, before any id is counted as taking part;
        `after_sum` is called when the sums are in ``p.grad``.
        """
        self._check_same(optimizer)
        self._frozen = {
            id(p): p
            for group in optimizer.param_groups
            for p in group["params"]
            if not p.requires_grad
        }
        self._hooked = self._steps.hooked = True

        def before(stepping: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            refuse_scaler(stepping)
            # torch hands over the optimiser itself as the first argument.
            given = [a for a in (*args, *kwargs.values()) if a is not stepping and a is not None]
            if given:
                raise ValueError(
                    "step() takes no closure: a batch is for one backward pass, got one"
                )
            self._check_same(stepping)
            self._steps.check_order()
            if check is not None:
                check()
            self.finish()
            if after_sum is not None:
                with self._clearing():
                    after_sum()

        def after(stepping: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.done()

        take_scaler(optimizer)
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def begin(self, ids: ArrayLike, rows: int | None = None) -> None:
        """Open the logical batch of the next step.

        Row i of the gradients that come is of example ``ids[i]``. `rows` is the number of them that
        come to this process, where several share a batch. ValueError if they are more than the
        declared batch size or the batch before has not had its step.
        """
        self._steps.check_between()
        if self.is_open:
            raise ValueError(
                "expected optimizer.step() after each batch, got another batch: take the step, or "
                "iterate the loader anew to begin this batch again"
            )
        given = integer_array("ids", ids)
        if given.size > self.batch_size:
            raise ValueError(
                f"a batch must have at most the declared {self.batch_size} examples, got "
                f"{given.size}"
            )
        due = given.size if rows is None else integer("rows", rows, 0, given.size)
        self._steps.begin(given)
        self._due = due

    def expect(self, rows: int) -> None:
        """Announce the next piece of the batch; the one before must be complete."""
        if not self.is_open:
            raise ValueError("expected begin(ids) before the rows of a batch, got none")
        self._check_rows("the next piece")
        if self._expected + rows > self._due:
            raise ValueError(
                f"the pieces of a batch must have its {self._due} rows, got {self._expected + rows}"
            )
        self._expected += rows

    def take(self) -> None:
        """Clip and add the gradients that wait in the source, if any do."""
        if self.source is None:
            return
        found = self.source.collect()
        if found is None:
            return
        with self._turn:
            self.check_room(found.rows)
            try:
                for samples in found.chunks:
                    self._add(samples, found.scale)
            except BaseException:  # some of these rows are in the sums, and the others are gone
                self._clear()
                raise

    def add(self, samples: Sequence[Tensor | None]) -> None:
        """Clip per-example gradients and add them to the sums of the open batch.

        `samples` has a tensor of shape (rows, ...) for each parameter, None for zeros. ValueError
        if shapes are others, no batch is open, or more rows come than were announced; nothing is
        added then. An error of another kind gives the batch up: added again, its rows would count
        twice.
        """
        with self._turn:  # of two threads with the rows of one piece, the second is refused
            self._add(samples)

    def _add(self, samples: Sequence[Tensor | None], scale: float = 1.0) -> None:
        rows = self._check_samples(samples)
        self.check_room(rows)
        present = [(i, sample) for i, sample in enumerate(samples) if sample is not None]
        device = self.parameters[0].device
        norms = torch.zeros(len(samples), rows, dtype=torch.float64, device=device)
        for i, sample in present:
            norms[i] = row_norms(sample).to(device)
        factors = self.clipping.factors(norms.mul_(scale), self._shrink) * scale
        factors.clamp_(max=torch.finfo(factors.dtype).max)  # infinity times 0 is NaN
        try:
            for i, sample in present:
                total = self._sums[i]
                if total is None:
                    total = torch.zeros(sample.shape[1:], dtype=torch.float64, device=sample.device)
                    self._sums[i] = total
                add_clipped_(total, sample, factors[i].to(sample.device))
            self._rows += rows
        except BaseException:  # no memory, or an interrupt: some of these rows may be in the sums
            self._clear()
            raise

    def __reduce__(self) -> Any:
        raise TypeError(
            "an Accumulator is not copied nor pickled, since two of one run would each take the "
            "gradients of an example: make one for each run"
        )

    def check_room(self, rows: int) -> None:
        """Raise ValueError if gradients of so many rows are more than were announced."""
        if self._rows + rows > self._expected:
            raise ValueError(
                f"expected per-example gradients of the {self._expected - self._rows} examples "
                f"that the loader handed out and that had none yet, got {rows}: each batch of the "
                "loader is for one backward pass in training mode"
            )

    def finish(self) -> None:
        """Admit the ids of the step and write the sums of the batch into ``p.grad``.

        ValueError if no batch is open, not all of its rows came, the plan does not declare its ids,
        or the noise is at another step; or if ranks have other orders. An error after the admission
        ends the run, and ``p.grad`` is cleared.
        """
        self._steps.check_order()
        self._steps.check_between()
        ids = self._steps.ids
        if ids is None:
            raise ValueError(
                "expected a batch of the loader before optimizer.step(), got a step without one: "
                "iterate over the loader that make_private returned, with one step for each batch"
            )
        self._check_rows("optimizer.step()")
        if self._rows != self._due:
            raise ValueError(
                f"expected optimizer.step() after all {self._due} examples of the batch, got "
                f"it after {self._rows}"
            )
        self._steps.admit()
        with self._clearing():
            for i, p in enumerate(self.parameters):
                total, dtype = self._sums[i], sum_dtype(p.dtype)
                _let_grad_be_a_sum(p)
                p.grad = torch.zeros_like(p, dtype=dtype) if total is None else total.to(dtype)
                self._sums[i] = None
            if self.before_step is not None:
                sums = [p.grad for p in self.parameters if p.grad is not None]
                self.before_step(self.steps_taken, ids, sums)
            self._steps.due()

    @contextmanager
    def _clearing(self) -> Iterator[None]:
        """Leave no sums without noise behind after an error that ends the run."""
        try:
            yield
        except BaseException:
            self._sums = [None] * len(self.parameters)
            for p in self.parameters:
                p.grad = None
            raise

    def done(self) -> None:
        """Close the batch after its step."""
        self._clear()

    def abandon(self) -> None:
        """Forget the open batch, of which nothing was released: it may be begun again."""
        self._steps.check_between()
        if self.source is not None:
            self.source.settle()
        self._clear()

    def _clear(self) -> None:
        self._steps.close()
        self._due = self._expected = self._rows = 0
        self._sums = [None] * len(self.parameters)
        for p in self.parameters:
            p.grad = None

    def _check_rows(self, what: str) -> None:
        """Fetch waiting gradients; refuse if the rows announced so far have not come."""
        self.take()
        if self.source is not None:
            self.source.settle()
        if self._rows != self._expected:
            raise ValueError(
                f"expected per-example gradients of {self._expected} examples before {what}, got "
                f"{self._rows}: missing grad_sample. Call loss.backward() once for every piece of "
                "a batch, with the model in training mode and rows as the loader gave them"
            )

    def _check_same(self, optimizer: Optimizer) -> None:
        every = [p for group in optimizer.param_groups for p in group["params"]]
        own = {id(p) for p in self.parameters}
        frozen = [p for p in every if id(p) not in own and not p.requires_grad]
        for p in frozen:
            p.grad = None  # of before it was frozen: an optimiser would use it
        given = [p for p in every if id(p) in own or p.requires_grad]
        if not all(p.requires_grad and id(p) not in self._frozen for p in given):
            raise ValueError(
                "the same parameters must be frozen (requires_grad=False) throughout a run, got a "
                "change: freeze and unfreeze before make_private, and make another run, with an "
                "epsilon of its own, to train others"
            )
        if [id(p) for p in given] != [id(p) for p in self.parameters]:
            raise ValueError(
                f"the optimizer must have the {len(self.parameters)} parameters it had at the "
                f"start, in their order, got {len(given)} or others"
            )

    def _check_samples(self, samples: Sequence[Tensor | None]) -> int:
        if len(samples) != len(self.parameters):
            raise ValueError(
                f"expected gradients for {len(self.parameters)} parameters, got {len(samples)}"
            )
        counts = {
            sample.shape[0] if sample.dim() else 0 for sample in samples if sample is not None
        }
        if len(counts) != 1:
            raise ValueError(
                "per-example gradients must have the same number of rows for every parameter, got "
                f"{sorted(counts)}"
            )
        for i, (sample, p) in enumerate(zip(samples, self.parameters, strict=True)):
            if sample is not None and sample.shape[1:] != p.shape:
                raise ValueError(
                    f"per-example gradients of parameter {i} must have shape (rows, "
                    f"{', '.join(map(str, p.shape))}), got {tuple(sample.shape)}"
                )
        return counts.pop()


def _checked(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that sums of gradients can be written for; ValueError otherwise."""
    given = list(parameters)
    if not given:
        raise ValueError("parameters must be one or more tensors, got none")
    if len({id(p) for p in given}) != len(given):
        raise ValueError("parameters must be distinct, got one twice")
    for i, p in enumerate(given):
        if not (p.dtype.is_floating_point and p.layout == torch.strided and p.requires_grad):
            raise ValueError(
                f"parameter {i} must be a dense tensor of floating-point numbers that requires "
                f"grad, got {p.dtype}, {p.layout}, requires_grad={p.requires_grad}"
            )
    return given


def _let_grad_be_a_sum(p: Tensor) -> None:
    """Clear ``p.grad`` and allow it to be wider than a half-precision parameter."""
    p.grad = None
    if p.dtype == sum_dtype(p.dtype):
        return
    if not hasattr(p, "grad_dtype"):
        raise ValueError(
            f"parameters of {p.dtype} need a torch whose tensors have grad_dtype, got torch "
            f"{torch.__version__}"
        )
    p.grad_dtype = sum_dtype(p.dtype)
