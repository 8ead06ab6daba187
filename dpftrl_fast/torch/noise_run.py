# SPDX-License-Identifier: Apache-2.0
"""`NoiseRun`: the vector of a run and its noise, shared by `DPFTRL` and `ResidualNoise`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from dpftrl_fast._validate import equal, flag, float_dtype, integer, optional, shown
from dpftrl_fast.noise.arguments import MAX_THREADS, Memory, memory_setting, usable_cores
from dpftrl_fast.noise.keys import Seed, checked_key, key_of_seed
from dpftrl_fast.noise.process import process_mark
from dpftrl_fast.plan.plan_file import other_mechanism
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.run.account import RunAccount
from dpftrl_fast.torch.flat.distributed import Ranks, ranks_of, ranks_of_group
from dpftrl_fast.torch.flat.layout import ParameterLayout
from dpftrl_fast.torch.flat.noise import FlatNoise, check_noise_state
from dpftrl_fast.torch.flat.views import FlatViews, contiguous
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.public_state import check_position
from dpftrl_fast.torch.steps import Steps

# Elsewhere a block costs a few launches.
_LONG_BLOCK = 2**26

Groups = Sequence[Mapping[str, Any]]
_T = TypeVar("_T")
_IDENTITY = ("plan", "parameters", "dtype")


class NoiseRun:
    """Parameters as one vector, its noise, and the ranks that share it.

    It begins with the first step: until then parameters may be added, changed and moved. The
    arguments are those of `dpftrl_fast.torch.DPFTRL`.

    Attributes
    ----------
    dtype : torch.dtype
        Of sums and noise.
    flat : FlatViews
        Of this rank's parts.
    vector : Tensor
        Room for the noise of a step.
    steps : Steps
        Owner of the step.
    """

    layout: ParameterLayout
    flat: FlatViews
    ranks: Ranks
    noise: FlatNoise
    vector: Tensor

    def __init__(
        self,
        plan: PrivacyPlan,
        *,
        dtype: Literal["float32", "float64"],
        memory: Memory,
        threads: int | None,
        noise_seed: Seed,
        key: bytes | None,
        process_group: Any,
    ) -> None:
        if not isinstance(plan, PrivacyPlan):
            raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
        self.plan = plan
        self._dtype_name: Literal["float32", "float64"]
        self._dtype_name = "float32" if float_dtype(dtype) == "float32" else "float64"
        self.dtype = getattr(torch, self._dtype_name)
        self._memory = memory_setting(memory)
        self._threads = optional(integer, "threads", threads, 1, MAX_THREADS)
        if noise_seed is not None and key is not None:
            raise ValueError("expected a noise_seed or a key, got both")
        key_of_seed(noise_seed, name="noise_seed")  # a wrong one is refused here
        self._seed, self._key = noise_seed, None if key is None else checked_key(key)
        self._process = process_mark()
        self._process_group = process_group
        self._reduced: Tensor | None = None
        self._seeded = noise_seed is not None
        self._before = 0  # steps of the stretches before a recovery
        self._abandoned: tuple[tuple[int, int], ...] = ()
        self.steps = Steps(
            plan.steps, lambda: self.steps_taken, lambda: ranks_of_group(process_group)
        )
        self.started = False

    @property
    def steps_taken(self) -> int:
        """Steps whose noise was made, over all blocks."""
        return self._before + self.noise.steps_taken if self.started else 0

    @property
    def threads(self) -> int:
        """Most threads of a call."""
        return min(usable_cores(), MAX_THREADS) if self._threads is None else self._threads

    @property
    def reproducible(self) -> bool:
        """True when a seed was given: not private."""
        return self._seeded or (self.started and self.noise.reproducible)

    def start(
        self, groups: Groups, facts: Mapping[str, Any], *, refusal: Exception | None = None
    ) -> None:
        """Fix the layout and make the noise source; all ranks call it together.

        `facts` must be the same on all ranks too. ValueError if a parameter cannot be trained so,
        or the ranks differ; what one rank refuses (`refusal` is the caller's reason) all refuse.
        """
        same: dict[str, Any] = {}
        try:
            if refusal is not None:
                raise refusal
            layout, ranks, local = self._laid_out(groups)
            same |= {
                "parameters (names, shapes, dtypes, groups)": layout.fingerprint(),
                "plan": self.plan.to_dict(),
                "dtype": self._dtype_name,
                **facts,
            }
            if ranks.reduces:
                same["initial values (a hash)"] = _digest(local)
            secret = self._secret()
        except (TypeError, ValueError, RuntimeError) as error:
            refusal = error
        ranks_of_group(self._process_group).check_same(same, refusal=refusal)
        seed, key = ranks.share(secret)
        self.layout, self.ranks = layout, ranks
        self.noise = self._source(self.plan, seed=seed, key=key)
        block = {} if layout.device.type == "cpu" else {"block_size": _LONG_BLOCK}
        self.flat = FlatViews(local, layout.group_sizes, **block)
        self.vector = torch.empty(self.flat.size, dtype=self.dtype, device=layout.device)
        self._seed = self._key = None
        self.started = True

    def _laid_out(self, groups: Groups) -> tuple[ParameterLayout, Ranks, list[Tensor]]:
        layout = ParameterLayout.of(groups)
        wide = [entry.name for entry in layout.entries if entry.dtype == torch.float64]
        if wide and self.dtype != torch.float64:
            raise ValueError(f"float64 parameters need dtype='float64', got 'float32': {wide[0]}")
        parameters = layout.parameters(groups)
        ranks = ranks_of(parameters, self._process_group)
        return layout, ranks, layout.local(parameters)

    def _secret(self) -> tuple[Seed, bytes | None]:
        """Return the seed or the key. A fresh key is drawn only now, so that no fork shares it."""
        if self._seed is not None:
            return self._seed, None
        if self._key is None:
            return None, key_of_seed(None)
        if self._process != process_mark():
            raise RuntimeError(
                "this process was forked from one that holds the same key: both would put the same "
                "noise on different sums. Leave the key out, or make the object after the fork"
            )
        return None, self._key

    def check_account(self, account: RunAccount) -> None:
        """Refuse, as :meth:`RunAccount.check_goes_on` does; also after an interrupted step."""
        self.steps.check_whole()
        if not isinstance(account, RunAccount):
            raise TypeError(f"account must be a RunAccount, got {type(account).__name__}")
        account.check_goes_on(self.plan, self._before + 1, self.steps_taken)

    def recover(self, account: RunAccount) -> None:
        """Make fresh noise, of a new key, for the present stretch of an account.

        All ranks call it together. The noise so far is the caller's to add to the running sums. A
        ledger of the run states the account from now on.
        """
        self._seeded = self.reproducible
        self.noise = self._source(account, key=self.ranks.share(key_of_seed(None)))
        self._before, self._abandoned = account.start - 1, account.abandoned
        self.steps.resumed = True
        if isinstance(self.steps.guard, TrainingLedger):
            self.steps.guard.state_by(account)

    def check_values(self, groups: Groups, refusal: Exception | None) -> None:
        """Refuse, on all ranks, replicas with other values; all call it together."""
        same: dict[str, Any] = {}
        try:
            local = self.layout.local(self.layout.parameters(groups))
            if self.ranks.reduces:
                same["initial values (a hash)"] = _digest(local)
        except ValueError as error:
            refusal = refusal or error
        self.ranks.check_same(same, refusal=refusal)

    def _source(self, plan: PrivacyPlan | RunAccount, **secret: Any) -> FlatNoise:
        return FlatNoise(
            plan,
            self.layout.ranges,
            dtype=self._dtype_name,
            device=self.layout.device,
            memory=self._memory,
            threads=self._threads,
            **secret,
        )

    def open_step(
        self, groups: Groups, check: Callable[[list[Tensor]], _T], *, compare: bool = False
    ) -> tuple[list[Tensor], list[Tensor | None], _T]:
        """Check all that is public about the next step; nothing has changed if it is refused.

        A step that one rank refuses is refused on all. A TypeError or ValueError of `check`, which
        gets the parameters, refuses the step; with `compare` its result must be the same on all
        ranks.

        Returns
        -------
        parameters : list of Tensor
            In the order of the layout.
        gradients : list of Tensor or None
            This rank's parts of ``p.grad``.
        found
            The result of `check`.
        """
        refusal: Exception | None = None
        gradients: list[Tensor | None] = []
        try:
            self.steps.check_next_noise()
            parameters = self.layout.parameters(groups)
            gradients = self.layout.gradients(parameters)
            found = check(parameters)
        except (TypeError, ValueError, RuntimeError) as error:
            refusal = error
        present = any(gradient is not None for gradient in gradients)
        if not self.ranks.open_step(
            self.steps.taken,
            present,
            self.layout.device,
            rates=str(found) if compare and refusal is None else "",
            examples=self.steps.ids_hash() if refusal is None else "",
            refusal=refusal,
        ):
            raise ValueError(
                "expected the clipped gradient sum of a batch in p.grad, got None for all "
                "parameters: call backward first (an empty batch has zeros)"
            )
        return parameters, gradients, found

    def sums(self, gradients: Sequence[Tensor | None]) -> Sequence[Tensor | None] | Tensor:
        """Return the sums of all ranks together, in parts or as one vector."""
        return self.reduced(gradients) if self.ranks.reduces else gradients

    def reduced(self, gradients: Sequence[Tensor | None]) -> Tensor:
        """Return the sums of all ranks together as one vector."""
        if self._reduced is None:
            self._reduced = torch.empty_like(self.vector)
        dense = contiguous(gradients)
        for block in self.flat.blocks:
            self.flat.copy_to(self._reduced[block.part], block, dense)
        if not self.steps.taken_as_total():
            self.ranks.reduce_(self._reduced)
        return self._reduced

    def public_state(self, groups: Groups) -> dict[str, Any]:
        """Return identity and position of the run; no collective call, and nothing begins."""
        self.steps.check_whole()
        layout = self.layout if self.started else ParameterLayout.of(groups)
        return {
            "secrets": False,
            **self._identity(layout),
            "start": self._before + 1,
            "abandoned": [list(pair) for pair in self._abandoned],
            "steps_taken": self.steps_taken,
            "reproducible": self.reproducible,
        }

    def check_public(
        self, state: Mapping[str, Any], own: Mapping[str, Any], groups: Groups
    ) -> None:
        """Refuse a state without secrets that is not of this object's position.

        `own` as for :meth:`check_state`. Also accepted is one of the stretch that the account of a
        recovery abandons: the steps after it have fresh noise then.
        """
        here = self.public_state(groups)
        self._check_facts(state, {**own, "secrets": False}, here, ("abandoned", "steps_taken"))
        check_position(state, here, self.plan.steps)

    def state_dict(self) -> dict[str, Any]:
        """Return identity and position of the run, and the state of the noise, **a secret**."""
        self.steps.check_whole()
        return {
            **self._identity(self.layout),
            "start": self._before + 1,
            "reproducible": self.reproducible,
            "noise": self.noise.state_dict(),
        }

    def check_state(
        self, state: Mapping[str, Any], own: Mapping[str, Any], more: Sequence[str] = ()
    ) -> None:
        """Refuse a state that is incomplete, of another run, or of another stretch of it.

        `own` are further entries that must be the same, shown in errors; `more` must be present.
        """
        self._check_facts(state, own, self._identity(self.layout), ("noise", *more))
        if not equal(state["start"], self._before + 1):
            raise ValueError(
                f"state must be of noise that began with step {self._before + 1}, got "
                f"{shown(state['start'])}: after a recovery, call recover with its account first"
            )

    @staticmethod
    def _check_facts(
        state: Any, own: Mapping[str, Any], identity: Mapping[str, Any], more: Sequence[str]
    ) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"state must be a mapping, got {type(state).__name__}")
        needed = (*own, *_IDENTITY, "start", "reproducible", *more)
        if missing := [name for name in needed if name not in state]:
            raise ValueError(f"state lacks {', '.join(missing)}")
        for name, value in own.items():
            if not equal(state[name], value):
                raise ValueError(f"state must have {name} {value!r}, got {shown(state[name])}")
        for name in _IDENTITY:
            if not equal(state[name], identity[name]):
                advice = other_mechanism(state[name], identity[name]) if name == "plan" else ""
                raise ValueError(
                    f"state must have the {name} of this object (plan: the same plan; parameters: "
                    "a hash of the same names, shapes, dtypes and groups), got another"
                    f"{advice and ': '}{advice}"
                )
        flag("state's reproducible", state["reproducible"])

    def load_noise(self, state: Mapping[str, Any], *, allow_fork: bool) -> None:
        """Load the noise of a checked state; all ranks call it together."""
        noise = check_noise_state(state["noise"])
        facts: dict[str, Any] = {"step of the state": noise["steps_taken"]}
        if self.ranks.reduces:
            facts["key (a hash)"] = _hash(str(noise["common"]["key"]).encode())
        self.ranks.check_same(facts)
        self.noise.load_state_dict(noise, allow_fork=allow_fork)
        self._seeded = bool(state["reproducible"])
        self.steps.restored()

    def _identity(self, layout: ParameterLayout) -> dict[str, Any]:
        return {
            "plan": self.plan.to_dict(),
            "parameters": layout.fingerprint(),
            "dtype": self._dtype_name,
        }


def checked_vector(name: str, given: Any, own: Tensor) -> Tensor:
    """Return a tensor of a state if it is like an object's own; TypeError or ValueError if not."""
    if not isinstance(given, Tensor):
        raise TypeError(f"state's {name} must be a tensor, got {type(given).__name__}")
    if given.dtype != own.dtype or given.shape != own.shape:
        raise ValueError(
            f"state's {name} must be of {own.dtype} and shape {tuple(own.shape)}, got "
            f"{given.dtype} and {tuple(given.shape)}"
        )
    return given


def _digest(tensors: Sequence[Tensor]) -> str:
    return _hash(*(t.reshape(-1).view(torch.uint8).cpu().numpy().tobytes() for t in tensors))


def _hash(*parts: bytes) -> str:
    total = hashlib.sha256(b"dpftrl_fast.torch/same/v1\0")
    for part in parts:
        total.update(part)
    return total.hexdigest()
