# SPDX-License-Identifier: Apache-2.0
"""Rates of parameter groups, the meaning of their changes, both in a state, and first settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Literal

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from dpftrl_fast._validate import flag, non_negative, real, shown
from dpftrl_fast.run.differences import differences
from dpftrl_fast.torch.flat.sgd import FlatSGD
from dpftrl_fast.torch.flat.update import FlatFTRL, Rates

Schedule = Literal["sgd", "ftrl"]
SCHEDULES: tuple[Schedule, ...] = ("sgd", "ftrl")

# Of a group: parameters, and the choice of an implementation.
_NOT_SETTINGS = {"params", "param_names", "foreach", "fused", "capturable", "differentiable"}

#: Entries of a scheduler that follow from the optimiser, or say how far it is.
_OF_POSITION = {"base_lrs", "last_epoch", "num_bad_epochs", "cooldown_counter", "best"}

# u is found from v by a division by the momentum.
_LEAST_MOMENTUM = 2.0**-7


def rates_of(group: Mapping[str, Any]) -> Rates:
    """Return the rates of a parameter group; TypeError or ValueError if one is out of range."""
    momentum = real("momentum", plain_rate(group["momentum"]), least=0.0, below=1.0)
    nesterov = flag("nesterov", group["nesterov"])
    if nesterov and not momentum > 0.0:
        raise ValueError("nesterov must come with a momentum greater than 0, got momentum 0")
    return Rates(
        lr=non_negative("lr", plain_rate(group["lr"])),
        momentum=momentum,
        nesterov=nesterov,
        l1=non_negative("l1", plain_rate(group["l1"])),
    )


def plain_rate(value: Any) -> Any:
    """Return a tensor of one element, which torch accepts as a rate, as a number."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def needs_sgd(update: FlatFTRL, rates: Sequence[Rates]) -> bool:
    """Whether the next step, with these rates, must be one of `FlatSGD` to be SGD's."""
    if isinstance(update, FlatSGD):
        return False
    if not update.rates:
        return any(0.0 < rate.momentum < _LEAST_MOMENTUM for rate in rates)
    return [*rates] != update.rates


@dataclass(frozen=True)
class ScheduleState:
    """Schedules in a state; `thresholds` is None where no rate changed so far."""

    kind: str
    rates: list[Rates]
    thresholds: list[float] | None

    @classmethod
    def of_run(cls, kind: str, update: FlatFTRL) -> ScheduleState:
        """Return that of a run."""
        thresholds = [*update.thresholds] if isinstance(update, FlatSGD) else None
        return cls(kind, [*update.rates], thresholds)

    def to_dict(self) -> dict[str, Any]:
        """Return it as numbers, strings and lists."""
        rates = [[*astuple(rate)] for rate in self.rates]
        return {"kind": self.kind, "rates": rates, "thresholds": self.thresholds}

    @classmethod
    def of_state(cls, state: Mapping[str, Any], kind: str, groups: int) -> ScheduleState:
        """Read that of a checked state for a run of this kind; TypeError or ValueError if wrong."""
        if "schedule" not in state:
            return cls._before_schedules(state, kind)
        found = state["schedule"]
        names = {"kind", "rates", "thresholds"}
        if not (isinstance(found, Mapping) and set(found) == names):
            raise ValueError(
                f"state's schedule must be a mapping with {sorted(names)}, got {shown(found)}"
            )
        if not (isinstance(found["kind"], str) and found["kind"] == kind):
            raise ValueError(
                f"state must be of schedule={kind!r}, got {shown(found['kind'])}: give that one"
            )
        rates, thresholds = found["rates"], found["thresholds"]
        for name, entry in {"rates": rates, "thresholds": thresholds or ()}.items():
            if not (isinstance(entry, (list, tuple)) and len(entry) in (0, groups)):
                raise ValueError(
                    f"state's {name} must be a list for {groups} parameter groups, got "
                    f"{shown(entry)}"
                )
        if thresholds is not None:
            if kind != "sgd" or len(thresholds) != groups:
                raise ValueError("state's thresholds must be those of SGD, got others")
            thresholds = [non_negative("each of state's thresholds", c) for c in thresholds]
        return cls(kind, [_saved_rates(rate) for rate in rates], thresholds)

    @classmethod
    def _before_schedules(cls, state: Mapping[str, Any], kind: str) -> ScheduleState:
        """Read a state of when every change of a rate was FTRL's."""
        groups = state["param_groups"]
        if kind == "ftrl" or not isinstance(groups, (list, tuple)):
            return cls(kind, [], None)
        groups = [group for group in groups if isinstance(group, Mapping)]
        if any("initial_lr" in group for group in groups):
            raise ValueError(
                "state must be of schedule='sgd', got one with a scheduler from before schedules "
                "had that meaning: continue it with schedule='ftrl'"
            )
        names = ("lr", "momentum", "nesterov", "l1")
        return cls(kind, [rates_of(g) for g in groups if all(name in g for name in names)], None)

    def like(self, update: FlatFTRL) -> FlatFTRL:
        """Return an update of the kind that the state is of; `update` itself is not changed."""
        if (self.thresholds is not None) == isinstance(update, FlatSGD):
            return update
        return update.as_ftrl() if isinstance(update, FlatSGD) else FlatSGD(update, 0)

    def load_into(self, update: FlatFTRL) -> None:
        """Set the rates of the last step, and the thresholds."""
        update.rates = [*self.rates]
        if isinstance(update, FlatSGD):
            update.thresholds = list(self.thresholds or ())


def _saved_rates(values: Any) -> Rates:
    if not (isinstance(values, (list, tuple)) and len(values) == 4):
        raise ValueError(f"each of state's rates must be four values, got {shown(values)}")
    return rates_of(dict(zip(("lr", "momentum", "nesterov", "l1"), values, strict=True)))


# ---- Settings with which a run begins ----


def settings_of(
    groups: Sequence[Mapping[str, Any]], clipping: Any, extra: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of an optimiser, a clipping and schedulers before the first step.

    Numbers and texts by name. The rate of a group that has a scheduler is the one that the
    scheduler began with.

    Examples
    --------
    >>> from dpftrl_fast.torch.gradients.clipping import AutomaticClipping
    >>> settings_of([{"params": [], "lr": 0.5, "momentum": 0.9}], AutomaticClipping(1.0), {})
    {'lr': 0.5, 'momentum': 0.9, 'clipping.clip_norm': 1.0, 'clipping.gamma': 0.01}
    """
    found: dict[str, Any] = {}
    for i, group in enumerate(groups):
        prefix = f"param_groups[{i}]." if len(groups) > 1 else ""
        first = {**group, "lr": group["initial_lr"]} if "initial_lr" in group else group
        rest = {k: v for k, v in first.items() if k not in {*_NOT_SETTINGS, "initial_lr"}}
        found |= _plain(prefix, rest)
    found |= _plain("clipping.", getattr(clipping, "__dict__", {}))
    for name, held in extra.items():
        if isinstance(held, LRScheduler):
            state = held.state_dict()
            rest = {k: v for k, v in state.items() if k[0] != "_" and k not in _OF_POSITION}
            found |= _plain(f"{name}.", rest)
    return found


def refuse_other_settings(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse settings that are not those with which the run of a folder began.

    Entries that only one of them has are left out: another version of torch may have more.

    Examples
    --------
    >>> refuse_other_settings({"lr": 0.5}, {"lr": 0.5, "decoupled_weight_decay": False})
    """
    changed = [name for name in recorded if recorded[name] != given.get(name, recorded[name])]
    if not changed:
        return
    told = differences({name: recorded[name] for name in changed}, {n: given[n] for n in changed})
    raise ValueError(
        f"the settings must be those with which the run in this folder began, got others: {told}. "
        "For a run with other settings take a new folder: it is a further run on the data, with an "
        "epsilon of its own. To change a rate of this run, start with the settings that the folder "
        "has, and set optimizer.param_groups[0]['lr'] inside the with block"
    )


def _plain(prefix: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are numbers, texts or sequences of them, by name."""
    found = {}
    for name, value in settings.items():
        value = sorted(value.elements()) if isinstance(value, Counter) else plain_rate(value)
        items = [plain_rate(item) for item in value] if isinstance(value, (list, tuple)) else value
        every = items if isinstance(items, list) else [items]
        if all(isinstance(item, (bool, int, float, str)) for item in every):
            found[prefix + name] = items
    return found
