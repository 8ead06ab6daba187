# SPDX-License-Identifier: Apache-2.0
"""Checks of the model and the optimiser that `make_private` is given."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import BatchSampler, DataLoader

from dpftrl_fast.torch.flat.tensors import is_sharded
from dpftrl_fast.torch.loader import loader_options
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.residual import ResidualNoise

#: Arguments of Opacus, with those that take their place.
_OF_OPACUS = {
    "module": "model=",
    "target_epsilon": "epsilon=",
    "target_delta": "delta=",
    "max_grad_norm": "clip_norm=",
    "poisson_sampling": "no argument: batches are fixed, and nothing is sampled",
    "sample_rate": "the batch_size of the DataLoader",
    "max_physical_batch_size": "loader.in_pieces(n)",
    "noise_generator": "no argument: the noise key comes from the operating system",
}


def check_options(names: Iterable[str], *, to_ftrl: bool) -> None:
    """Refuse options that the source of the noise does not have, with the name here."""
    source = DPFTRL if to_ftrl else ResidualNoise
    known = inspect.signature(source).parameters
    for name in names:
        if name in _OF_OPACUS:
            raise TypeError(
                f"make_private has no argument {name!r}, which is one of Opacus: use "
                f"{_OF_OPACUS[name]}"
            )
        if name not in known:
            raise TypeError(
                f"make_private has no argument {name!r}, nor has {source.__name__}, which takes "
                "further options"
            )


def check_plain(model: nn.Module) -> None:
    """Refuse a model that is wrapped for several processes, or sharded over them."""
    name = type(model).__name__
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        raise ValueError(
            f"model must be the network itself, got it in a {name}: give model.module, whose "
            "gradients the private optimiser adds up over all processes"
        )
    if "_orig_mod" in model._modules:
        raise ValueError(
            f"model must be the network itself, got it compiled ({name}): give "
            "dpftrl_fast.torch.unwrap(model), since private passes are not compiled"
        )
    fully = "FullyShardedDataParallel"
    wrapped = any(type(layer).__name__ == fully for layer in model.modules())
    if wrapped or any(is_sharded(p) for p in model.parameters()):
        raise ValueError(
            "model must be whole on each process, got parameters that are sharded (FSDP): call "
            "make_private without sharding, or clip the gradients yourself for DPFTRL, which takes "
            "sharded sums"
        )


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimiser that cannot run on noisy gradients, one a step."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer must take one gradient a step, got LBFGS with its closure")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise ValueError("optimizer must take dense gradients, got SparseAdam")
    if isinstance(optimizer, DPFTRL):
        raise ValueError("optimizer must be an optimiser without noise, got DPFTRL: give an SGD")


def trained_parameters(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that are not frozen; ValueError if all are."""
    every = [p for group in optimizer.param_groups for p in group["params"]]
    trained = [p for p in every if p.requires_grad]
    if not trained:
        raise ValueError(
            f"optimizer must have parameters to train, got {len(every)} that are frozen: set "
            "requires_grad to True for some of them"
        )
    return trained


def check_trained(parameters: Sequence[Tensor], dtype: Any) -> None:
    """Refuse parameters of another dtype than the noise, or on devices without noise."""
    if dtype != "float64" and any(p.dtype == torch.float64 for p in parameters):
        raise ValueError(f"float64 parameters need dtype='float64', got {dtype!r}")
    devices = sorted({str(p.device) for p in parameters})
    if len(devices) > 1:
        raise ValueError(
            f"the parameters that are trained must lie on one device, got {', '.join(devices)}: "
            "move the model to one of them before the optimiser is made"
        )
    if parameters[0].device.type not in ("cpu", "cuda"):
        raise ValueError(
            f"the parameters that are trained must lie on the CPU or on a CUDA device, where noise "
            f"is made, got {devices[0]}: move the model there before the optimiser is made"
        )


def refuse_steps(optimizer: Optimizer) -> None:
    """Refuse steps of an optimiser in whose place another was made: they would have no noise."""

    def before(*given: Any) -> None:
        raise ValueError(
            "optimizer.step() must be that of the optimiser that make_private returned, got the "
            "one that it was given, which adds no noise: write "
            "`model, optimizer, data_loader, ledger = make_private(...)`"
        )

    optimizer.register_step_pre_hook(before)


# ---- Objects that Accelerate has prepared ----


def _is_of_accelerate(given: Any) -> bool:
    """Whether an object is of a class of Accelerate."""
    return type(given).__module__.partition(".")[0] == "accelerate"


def plain_optimizer(given: Any) -> Any:
    """Return the optimiser in a prepared one; any other object as it is."""
    if not _is_of_accelerate(given) or not hasattr(given, "optimizer"):
        return given
    if given.scaler is not None:
        raise ValueError(
            "mixed_precision must be 'bf16' or 'no' for private training, got 'fp16': its "
            "GradScaler skips steps by private values"
        )
    if given.gradient_state.num_steps != 1:
        raise ValueError(
            "gradient_accumulation_steps of the Accelerator must be 1, since a step is one batch "
            f"of the plan, got {given.gradient_state.num_steps}: make the batch as large, and hand "
            "it out in pieces (loader.in_pieces)"
        )
    return given.optimizer


def plain_loader(given: Any) -> Any:
    """Return the loader that was prepared, if it was for one process; any other as it is."""
    if not _is_of_accelerate(given) or not isinstance(given, DataLoader):
        return given
    batches = given.batch_sampler
    if type(batches) is not BatchSampler:
        return given
    return DataLoader(
        given.dataset,
        batch_size=batches.batch_size,
        sampler=batches.sampler,
        drop_last=batches.drop_last,
        **loader_options(given),
    )
