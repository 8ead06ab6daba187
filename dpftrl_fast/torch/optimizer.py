# SPDX-License-Identifier: Apache-2.0
"""`DPFTRL`: the regularised leader on noisy sums of clipped gradients, as a torch optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from dpftrl_fast._validate import (
    choice,
    flag,
    integer,
    non_negative,
    optional,
    positive,
    positive_integer,
    shown,
)
from dpftrl_fast.noise.arguments import Memory
from dpftrl_fast.noise.keys import Seed
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch.flat.sgd import FlatSGD
from dpftrl_fast.torch.flat.update import FlatFTRL, Rates
from dpftrl_fast.torch.noise_run import NoiseRun, checked_vector
from dpftrl_fast.torch.public_state import is_public
from dpftrl_fast.torch.scaler import refuse_scaler, take_scaler
from dpftrl_fast.torch.schedules import (
    SCHEDULES,
    Schedule,
    ScheduleState,
    needs_sgd,
    plain_rate,
    rates_of,
)
from dpftrl_fast.torch.steps import Steps

_HEADER = {"format": "dpftrl_fast.torch.DPFTRL", "version": 1}
_REST = ("param_groups", "l1_weights", "vectors")


class DPFTRL(Optimizer):
    """DP-FTRL (Kairouz et al. 2021): running sums of clipped gradients under correlated noise.

    Before each :meth:`step`, ``p.grad`` holds the **sum** of the clipped per-example gradients of
    one logical batch: the L2 norm of one example's part, over all parameters together, is at most
    ``plan.clip_norm``. `make_private` ensures that; code that calls this class directly must ensure
    it itself. The step consumes the sums: ``p.grad`` is None afterwards, so that none is used
    twice.

    With s_t the sum over all steps so far, n_t its noise, B the batch size and gamma the momentum,

        v_t = gamma v_(t-1) + (s_t + n_t) / B
        theta_t = P_R(soft(theta_0 - lr v_t, lr c_t)),     c_t = gamma c_(t-1) + t l1.

    theta_0 are the parameters when a step is first taken. Without noise this is
    ``torch.optim.SGD`` with the same `lr`, `momentum` and `nesterov`, and so it is where a
    scheduler changes them: with `schedule` "sgd" a new rate applies to the steps that follow. With
    "ftrl" the formula above holds with lr_t in place of lr: **lr_t scales the whole way from
    theta_0**, and a rate that goes to 0 leads back to theta_0.

    Parameters
    ----------
    params : iterable of Tensor, of (name, Tensor), or of dict
        Parameters, or groups with their own `lr`, `momentum`, `nesterov` and `l1`. float32, or
        bfloat16 and float16 with a float32 ``p.grad`` (``p.grad_dtype``); float64 with
        ``dtype="float64"``. Those that require no gradient at the first step are not changed.
    lr : float
        1/lambda, at least 0.
    plan : PrivacyPlan
        Source of the noise, with its mechanism and restarts, and of the stated epsilon.
    batch_size : int
        B, fixed and public: also the divisor of a smaller batch.
    momentum : float, default 0
        gamma, in [0, 1). It can be changed later if it was greater than 0 at the first step.
    nesterov : bool, default False
        Nesterov's form, q = theta_0 - lr_t ((s_t + n_t) / B + gamma v_t), threshold likewise.
    l1 : float, default 0
        Weight of ||theta||_1 a step, at least 0.
    radius : float, optional
        R, of the ball about 0 for the parameters of all groups together. Parameters that begin
        outside are moved into it by the first step.
    schedule : {"sgd", "ftrl"}
        Meaning of a change of `lr`, `momentum`, `nesterov` or `l1` between steps: as in SGD, which
        keeps one more vector from the first change on, or as in FTRL. See
        `dpftrl_fast.torch.flat.sgd`.
    dtype : {"float32", "float64"}
        Of sums and noise. A running sum is two numbers of it, of which the smaller one is rounded.
    memory
        As for :class:`dpftrl_fast.TreeNoise` or :class:`dpftrl_fast.ToeplitzNoise`.
    threads : int, optional
        Of noise and update on the CPU; default all cores that this process may use.
    noise_seed : int or bytes, optional
        For tests: the run is then `reproducible`, not private.
    key : bytes, optional
        32 secret bytes, used for no other run; default from the operating system.
    process_group : ProcessGroup, optional
        The processes of the run; default all, where torch.distributed is initialised. See
        `dpftrl_fast.torch.flat.distributed`. Seed and key are those of rank 0.

    Attributes
    ----------
    plan : PrivacyPlan

    Notes
    -----
    **Formal guarantee.** For neighbouring data sets in which the gradients of one example are
    replaced by zero, the parameters after all steps together are (epsilon, delta)-differentially
    private with the epsilon of ``plan.epsilon(delta)`` (``neighbours="replace-one"`` for a replaced
    example). The caller must ensure that sums are clipped as above (to the limit that leaves room
    for rounding, see docs/torch/gradients.md, "Clipping"), that examples take part only as
    ``plan.participation`` declares, and that key, un-noised sums and ``state_dict(secrets=True)``
    stay secret. Noisy sums are on a public grid, see docs/guarantees/floating_point.md.

    The optimiser holds the un-noised sums and the key: it is not pickled or copied.
    `dpftrl_fast.torch.model_state_dict` returns the part that may be released. On many processes
    :meth:`step`, :meth:`recover`, the load of a state with secrets and the first
    ``state_dict(secrets=True)`` are collective calls.

    Examples
    --------
    >>> from dpftrl_fast import PrivacyPlan, accounting
    >>> from dpftrl_fast.torch import DPFTRL
    >>> w = torch.nn.Parameter(torch.zeros(3))
    >>> plan = PrivacyPlan(1.0, 2.33, accounting.SinglePass(1600))
    >>> optimizer = DPFTRL([w], lr=0.5, plan=plan, batch_size=256)
    >>> w.grad = torch.tensor([10.0, -3.0, 0.0])  # sum of clipped gradients
    >>> optimizer.step()
    >>> w.grad is None, optimizer.steps_taken, optimizer.steps
    (True, 1, 1600)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        plan: PrivacyPlan,
        batch_size: int,
        momentum: float = 0.0,
        nesterov: bool = False,
        l1: float = 0.0,
        radius: float | None = None,
        schedule: Schedule = "sgd",
        dtype: Literal["float32", "float64"] = "float32",
        memory: Memory = "stored",
        threads: int | None = None,
        noise_seed: Seed = None,
        key: bytes | None = None,
        process_group: Any = None,
    ) -> None:
        self._batch_size = positive_integer("batch_size", batch_size)
        self._radius = optional(positive, "radius", radius)
        self._schedule = choice("schedule", schedule, SCHEDULES)
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
        self._update: FlatFTRL | None = None
        self._untouched = False  # sums were begun, and no step and no state came since
        self._origin = 0  # step of theta_0
        self._admitted_rates: list[Rates] | None = None
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov, "l1": l1})
        take_scaler(self)

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
    def batch_size(self) -> int:
        """Divisor of the sums (B)."""
        return self._batch_size

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: whoever guesses it can remove the noise."""
        return self._run.reproducible

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group, before the first step; ValueError afterwards."""
        if self._run.started:
            raise ValueError(
                "parameters must be added before the first step, which fixes the coordinates, "
                f"got a group at step {self.steps_taken}"
            )
        super().add_param_group(param_group)
        try:
            rates_of(self.param_groups[-1])
        except (TypeError, ValueError):
            del self.param_groups[-1]
            raise

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step of the plan with the sums in ``p.grad``.

        A parameter without ``p.grad`` had no part in the batch: its sum is zero, and it gets its
        noise. Values are not checked, since a refusal would reveal them. `closure` must be None: it
        would read the batch again.

        Raises
        ------
        ValueError
            If all declared steps are taken; if parameters were added or changed shape, dtype or
            device; if all gradients are missing, or one is sparse or in half precision; if a rate
            is out of its range; if another rank refuses. No step is taken then, and the next call
            can be right.
        RuntimeError
            If an earlier step was interrupted half-way, or this process was forked from one that
            has the key.
        """
        refuse_scaler(self)
        if closure is not None:
            raise ValueError("step() takes no closure: a batch may be used once only, got one")
        steps = self._run.steps
        with steps.alone():
            steps.check_order()
            # No other call can finish a step that failed in the hooks of an `Accumulator`.
            with steps.clearing(self._parameters(), always=steps.hooked and steps.admitted):
                self._step()

    def _step(self) -> None:
        run = self._run
        # Rates are read once: before ids are admitted, where there are any.
        held = self._admitted_rates if run.steps.admitted else None
        self._admitted_rates = None
        refusal: Exception | None = None
        if held is None and (self._update is None or self._untouched):
            try:
                held = self._read_rates()
            except (TypeError, ValueError) as error:
                refusal = error
        if self._untouched:
            run.check_values(self.param_groups, refusal)
        update = self._started(held, refusal)
        self._untouched = False
        parameters, gradients, rates = run.open_step(
            self.param_groups, lambda _: self._read_rates() if held is None else held, compare=True
        )
        with torch.no_grad(), run.steps.changing(step=True):
            sums = run.sums(gradients)
            if self._schedule == "sgd" and needs_sgd(update, rates):
                update = self._continue_as_sgd(update)
            run.noise.step(run.vector)
            parts = run.layout.local(parameters)
            update.step(
                run.steps_taken - self._origin, sums, run.vector, rates, parts, run.ranks.norm
            )
            for p in parameters:
                p.grad = None

    def _continue_as_sgd(self, update: FlatFTRL) -> FlatSGD:
        """Change to the update whose rates may change, between two steps."""
        run = self._run
        run.noise.so_far(run.vector)
        self._update = FlatSGD(update, run.steps_taken - self._origin, run.vector)
        return self._update

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def prepare_step(self) -> None:
        """Read the rates of the next step before its ids are admitted; refuse wrong ones."""
        self._admitted_rates = self._read_rates()

    def _read_rates(self) -> list[Rates]:
        rates = [rates_of(group) for group in self.param_groups]
        update = None if self._untouched else self._update
        if update is not None and update.velocity is None and any(r.momentum > 0.0 for r in rates):
            raise ValueError(
                "momentum must be greater than 0 from the first step on, or stay 0, got a change"
            )
        return rates

    def _started(
        self, rates: list[Rates] | None = None, refusal: Exception | None = None
    ) -> FlatFTRL:
        if self._update is None or self._untouched:  # parameters loaded meanwhile are theta_0
            self._update, run = None, self._run
            if rates is None and refusal is None:
                rates = self._read_rates()
            if not run.started:
                shown = {
                    "schedule": self._schedule,
                    "rates of the groups": [vars(rate) for rate in rates or ()],
                }
                run.start(self.param_groups, {**self._settings(), **shown}, refusal=refusal)
            if rates is None:
                rates = self._read_rates()
            parameters = run.layout.parameters(self.param_groups)
            self._origin = run.steps_taken
            self._update = FlatFTRL(
                run.flat,
                run.layout.local(parameters),
                dtype=run.dtype,
                batch_size=self._batch_size,
                radius=self._radius,
                momentum=any(rate.momentum > 0.0 for rate in rates),
                groups=len(rates),
                grid=run.noise.grid,
                fused=run.layout.device.type == "cpu",
                threads=run.threads,
            )
            self._untouched = True
        return self._update

    def state_dict(self, *, secrets: bool = False) -> dict[str, Any]:
        """Return the state of the run: position and rates, or everything.

        Parameters
        ----------
        secrets : bool, optional
            False: position, rates and public facts. It may be stored with the model, as tools do
            that call this method. Nothing but an optimiser at this position loads it, unless the
            steps after it get fresh noise, see :meth:`load_state_dict`.

            True: also key, un-noised sums and noise, from which the run resumes to the bit. It is
            **a secret**: a file with it must be stored like the private data, with mode 0600.
            `TrainingRun` keeps it in its folder. On many ranks it has this rank's part.

        Returns
        -------
        dict
            Numbers, strings, lists and tensors, which ``torch.load(weights_only=True)`` reads. The
            parameters are not in it: save the model's own state too.

        Raises
        ------
        RuntimeError
            If a step was interrupted half-way: its noise may be in one part of the sums only; or
            if another thread is taking a step.
        """
        with self._run.steps.alone():
            groups = [
                {name: plain_rate(value) for name, value in group.items() if name not in _TENSORS}
                for group in self.param_groups
            ]
            if not flag("secrets", secrets):
                public = self._run.public_state(self.param_groups)
                return {**_HEADER, **public, **self._settings(), "param_groups": groups}
            update = self._started()
            return {
                **_HEADER,
                **self._run.state_dict(),
                **self._settings(),
                "param_groups": groups,
                "l1_weights": list(update.l1_weights),
                "schedule": ScheduleState.of_run(self._schedule, update).to_dict(),
                "vectors": {name: vector.clone() for name, vector in update.vectors().items()},
                **({"origin": self._origin} if self._origin else {}),
            }

    def load_state_dict(self, state_dict: Mapping[str, Any], *, allow_fork: bool = False) -> None:
        """Resume from a state of :meth:`state_dict`.

        Load the model's own state as well. From a state with secrets the run resumes to the bit.
        Two runs that resume from one such state make the same noise: if it is added to two
        different sums that are both released, it protects neither.

        A state without secrets loads into an optimiser at its position, which keeps its own key and
        sums: only rates are taken from it. Elsewhere it is refused, unless :meth:`recover` was
        called first, with an account that abandons the noise of the state: then the optimiser
        begins anew at the released parameters, with fresh noise, at the larger epsilon of the
        account.

        Parameters
        ----------
        state_dict : mapping
            Of an optimiser of the same plan, parameters, batch size, radius, schedule and dtype; on
            many processes of the same rank of as many. Rates of the groups are taken from it.
        allow_fork : bool, optional
            True allows an optimiser to return to an earlier step of its own run. The results of the
            steps in between must not have been released: otherwise the guarantee is void.

        Raises
        ------
        TypeError, ValueError
            If the state is of another run, incomplete, or behind this optimiser's own position;
            nothing has changed then.
        RuntimeError
            If another thread is taking a step.
        """
        with self._run.steps.alone():
            self._load(state_dict, allow_fork)

    def _load(self, state_dict: Mapping[str, Any], allow_fork: bool) -> None:
        own = {**_HEADER, **self._settings()}
        if is_public(state_dict):
            flag("allow_fork", allow_fork)
            if "param_groups" not in state_dict:
                raise ValueError("state lacks param_groups")
            saved = self._listed("param_groups", state_dict["param_groups"])
            self._run.check_public(state_dict, own, self.param_groups)
            self._take_rates(saved)
            return
        update = self._started()
        self._run.check_state(state_dict, own, _REST)
        past = ScheduleState.of_state(state_dict, self._schedule, len(self.param_groups))
        update = past.like(update)
        _check_vectors(state_dict["vectors"], update.vectors())
        saved = self._listed("param_groups", state_dict["param_groups"])
        weights = self._listed("l1_weights", state_dict["l1_weights"])
        weights = [non_negative("each of state's l1_weights", weight) for weight in weights]
        origin = integer("state's origin", state_dict.get("origin", 0), 0, self.steps)
        self._run.load_noise(state_dict, allow_fork=allow_fork)
        with self._run.steps.changing():
            for name, vector in update.vectors().items():
                vector.copy_(state_dict["vectors"][name])
            update.l1_weights = weights
            past.load_into(update)
            self._update = update
            self._origin, self._untouched = origin, False
            self._take_rates(saved)

    def _listed(self, name: str, entry: Any) -> Any:
        """Return an entry of a state that must have an item for each group."""
        if not isinstance(entry, (list, tuple)):
            raise TypeError(f"state's {name} must be a list, got {type(entry).__name__}")
        if len(entry) != len(self.param_groups):
            raise ValueError(
                f"state must have {len(self.param_groups)} parameter groups, got {len(entry)}"
            )
        if name == "param_groups":
            for group in entry:
                _check_group(group)
        return entry

    def _take_rates(self, saved: Any) -> None:
        for group, values in zip(self.param_groups, saved, strict=True):
            group.update(values)

    def recover(self, account: RunAccount) -> None:
        """Continue with fresh noise where steps that may have been released cannot be repeated.

        The noise so far stays in the running sums for good. On a new optimiser this sets up the
        noise of the account's present stretch. Then a state of that stretch can be loaded, or one
        without secrets of the stretch before: the run continues from the released parameters, which
        the model must have before the next step, as theta_0, with sums that begin at 0. A
        `TrainingLedger` of the run states the account from now on. `TrainingRun` calls this; see
        docs/runs/resume.md.

        Parameters
        ----------
        account : RunAccount
            Of this plan, with this recovery in it; it continues with the next step of this run.
        """
        run = self._run
        with run.steps.alone():
            update = self._started()
            run.check_account(account)
            with run.steps.changing():
                run.noise.so_far(run.vector)
                taken = run.steps_taken - self._origin
                if self._schedule == "sgd" and taken > 0 and type(update) is FlatFTRL:
                    # The noisy sum of the last step must not be rounded a second time.
                    update = self._update = FlatSGD(update, taken, run.vector.clone())
                update.add_to_sum(run.vector)
                run.recover(account)

    def _settings(self) -> dict[str, Any]:
        return {"batch_size": self._batch_size, "radius": self._radius}

    def __getstate__(self) -> dict[str, Any]:
        """Refuse to be pickled or copied: the running sums are secret."""
        raise TypeError("DPFTRL holds secret sums and a key and is not pickled; use state_dict()")


_TENSORS = ("params", "param_names")


def _check_group(group: Any) -> None:
    """Refuse a saved parameter group without rates, or with parameters of its own."""
    if not isinstance(group, Mapping):
        raise TypeError(
            f"a group of state's param_groups must be a mapping, got {type(group).__name__}"
        )
    if missing := [name for name in ("lr", "momentum", "nesterov", "l1") if name not in group]:
        raise ValueError(f"a group of state's param_groups lacks {', '.join(missing)}")
    if not all(isinstance(name, str) and name not in _TENSORS for name in group):
        raise ValueError(
            f"a group of state's param_groups must hold rates only, got {shown([*group])}"
        )
    rates_of(group)


def _check_vectors(saved: Any, own: Mapping[str, Tensor]) -> None:
    if not isinstance(saved, Mapping):
        raise TypeError(f"state's vectors must be a mapping, got {type(saved).__name__}")
    if set(saved) != set(own):
        raise ValueError(f"state must have vectors {sorted(own)}, got {shown([*saved])}")
    for name, vector in own.items():
        checked_vector(name, saved[name], vector)
