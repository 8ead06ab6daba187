# SPDX-License-Identifier: Apache-2.0
"""`ResidualNoise`: correlated noise for any optimiser, as the noise of one step's sum."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from dpftrl_fast._validate import flag, integer, optional
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.planned_noise import MOST_DIVISOR
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch.flat.residual import FlatResidual
from dpftrl_fast.torch.gradients.clipped_sums import sum_dtype
from dpftrl_fast.torch.noise_run import NoiseRun, checked_vector
from dpftrl_fast.torch.public_state import is_public
from dpftrl_fast.torch.steps import Steps

_HEADER = {"format": "dpftrl_fast.torch.ResidualNoise", "version": 1}


class ResidualNoise:
    """Adds a_t = n_t - n_(t-1) to the clipped gradient sum of step t.

    n_t is the noise of the running sum, so the noisy sums of all steps add up to s_t + n_t:
    SGD on them is DP-FTRL (Kairouz et al. 2021, theorem 5.1), and any other use of them by an
    optimiser (Adam, weight decay, a schedule of rates) is as private.

    Before each :meth:`add_`, ``p.grad`` holds the sum of the clipped per-example gradients of one
    logical batch, as for `DPFTRL`; afterwards the noisy sum, or the noisy mean.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
        As for an optimiser, which may have the same. Parameters that require no gradient at the
        first step get no noise.
    plan : PrivacyPlan
        Source of the noise, with its mechanism and restarts, and of the stated epsilon.
    batch_size : int, optional
        If given, noisy sums are divided by it: fixed and public.
    dtype, memory, threads, noise_seed, key, process_group
        As for `DPFTRL`. Noise is added in `dtype`, whatever that of ``p.grad``.

    Attributes
    ----------
    plan : PrivacyPlan

    Notes
    -----
    **Formal guarantee.** For neighbouring data sets in which the gradients of one example are
    replaced by zero, the noisy sums of all steps together are (epsilon, delta)-differentially
    private with the epsilon of ``plan.epsilon(delta)`` (``neighbours="replace-one"`` for a replaced
    example). The caller must ensure that sums are clipped to ``plan.clip_norm``, that examples take
    part only as ``plan.participation`` declares, that only noisy sums are used, and that key and
    ``state_dict(secrets=True)`` stay secret. The noisy sums of all steps together are on a public
    grid, see docs/guarantees/floating_point.md.

    On many processes each has the sums of its own examples, as for `DPFTRL`; afterwards all have
    the same noisy sum of all examples.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch import ResidualNoise
    >>> w = torch.nn.Parameter(torch.zeros(3))
    >>> optimizer = torch.optim.Adam([w], lr=0.01)
    >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
    >>> noise = ResidualNoise([w], plan=plan, batch_size=256)
    >>> w.grad = torch.tensor([10.0, -3.0, 0.0])  # sum of clipped gradients
    >>> noise.add_()
    >>> optimizer.step()
    >>> noise.steps_taken
    1
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        plan: PrivacyPlan,
        batch_size: int | None = None,
        dtype: Literal["float32", "float64"] = "float32",
        memory: Memory = "stored",
        threads: int | None = None,
        noise_seed: Seed = None,
        key: bytes | None = None,
        process_group: Any = None,
    ) -> None:
        self._batch_size = optional(integer, "batch_size", batch_size, 1, MOST_DIVISOR)
        self._groups = _groups(params)
        self._run = NoiseRun(
            plan,
            dtype=dtype,
            memory=memory,
            threads=threads,
            noise_seed=noise_seed,
            key=key,
            process_group=process_group,
        )
        self.plan = plan
        self._noisy: list[tuple[weakref.ref[Tensor], int]] = []

    @property
    def steps(self) -> int:
        """Declared number of steps."""
        return self.plan.steps

    @property
    def steps_taken(self) -> int:
        """Steps taken, over all blocks."""
        return self._run.steps_taken

    @property
    def run_steps(self) -> Steps:
        """Owner of the run's step, which an `Accumulator` shares."""
        return self._run.steps

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses it can remove the noise."""
        return self._run.reproducible

    def add_(self) -> None:
        """Take a step of the plan: add its noise to the sums in ``p.grad``, in place.

        A parameter without ``p.grad`` gets its noise as ``p.grad``. Values are not checked. Refused
        as :meth:`DPFTRL.step`, and with a ValueError if all sums are those that the call before
        left; nothing has changed then.
        """
        steps = self._run.steps
        with steps.alone():
            steps.check_order()
            with steps.clearing([p for group in self._groups for p in group["params"]]):
                self._started()
                self._add()

    def _add(self) -> None:
        run = self._run
        parameters, gradients, sums = run.open_step(self._groups, self._writable_sums)
        with torch.no_grad(), run.steps.changing(step=True):
            for p, own in zip(parameters, sums, strict=True):
                p.grad = own
            parts = run.layout.local(sums)
            total = run.reduced(gradients) if run.ranks.reduces else None
            self._flat.release_(run.noise, run.vector, parts, total)
        self._noisy = [(weakref.ref(own), own._version) for own in sums]

    def _writable_sums(self, parameters: list[Tensor]) -> list[Tensor]:
        """Refuse a second call on the same sums: a step of the plan would be wasted."""
        if self._noisy and all(
            p.grad is not None and p.grad is left() and p.grad._version == version
            for p, (left, version) in zip(parameters, self._noisy, strict=True)
        ):
            raise ValueError(
                "expected new gradient sums in p.grad, got the noisy ones that add_() left there"
            )
        return [_writable_sum(p) for p in parameters]

    def _started(self) -> NoiseRun:
        if not self._run.started:
            self._run.start(self._groups, {"batch_size": self._batch_size})
            run = self._run
            self._flat = FlatResidual(
                run.flat,
                run.vector,
                batch_size=self._batch_size,
                fused=run.layout.device.type == "cpu",
            )
        return self._run

    def state_dict(self, *, secrets: bool = False) -> dict[str, Any]:
        """Return the position, or with `secrets` also the key, as :meth:`DPFTRL.state_dict`."""
        with self._run.steps.alone():
            if not flag("secrets", secrets):
                public = self._run.public_state(self._groups)
                return {**_HEADER, **public, "batch_size": self._batch_size}
            return {
                **_HEADER,
                **self._started().state_dict(),
                "batch_size": self._batch_size,
                "remainder": self._flat.remainder.clone(),
            }

    def load_state_dict(self, state: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of :meth:`state_dict`, as :meth:`DPFTRL.load_state_dict`."""
        with self._run.steps.alone():
            own = {**_HEADER, "batch_size": self._batch_size}
            if is_public(state):
                flag("allow_fork", allow_fork)
                self._run.check_public(state, own, self._groups)
                return
            run = self._started()
            run.check_state(state, own)
            own_remainder = self._flat.remainder
            # Noisy sums that were not rounded have no remainder.
            remainder = state.get("remainder", torch.zeros_like(own_remainder))
            checked_vector("remainder", remainder, own_remainder)
            run.load_noise(state, allow_fork=allow_fork)
            own_remainder.copy_(remainder)

    def recover(self, account: RunAccount) -> None:
        """Continue with fresh noise, as :meth:`DPFTRL.recover`.

        On a new object a state without secrets of the stretch before can be loaded then. The noise
        so far stays in the noisy sums that were released: the first residual of the fresh
        noise is its first noise.
        """
        run = self._run
        with run.steps.alone():
            self._started()
            run.check_account(account)
            with run.steps.changing():
                run.recover(account)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled or copied: the key is secret."""
        raise TypeError("ResidualNoise holds a secret key and is not pickled; use state_dict()")


def _groups(params: ParamsT) -> list[dict[str, Any]]:
    """Return the parameter groups that an optimiser makes of its first argument."""
    return torch.optim.SGD(params, lr=1.0).param_groups


def _writable_sum(p: Tensor) -> Tensor:
    """Return ``p.grad``, or zeros in its place, as a tensor whose memory is contiguous."""
    if p.grad is not None:
        own = p.grad.contiguous()
        return own.resolve_neg() if own.is_neg() else own  # memory with its sign to be changed
    dtype = sum_dtype(p.dtype)
    if getattr(p, "grad_dtype", p.dtype) not in (dtype, None):
        raise ValueError(
            f"a parameter of {p.dtype} must have p.grad_dtype = {dtype}, got {p.grad_dtype}"
        )
    return torch.zeros_like(p, dtype=dtype, requires_grad=False)
