# SPDX-License-Identifier: Apache-2.0
"""What `make_private` makes of objects that Accelerate has prepared: those inside of them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader


def is_of_accelerate(given: Any) -> bool:
    """Whether an object is of a class of Accelerate."""
    return type(given).__module__.partition(".")[0] == "accelerate"


def plain_optimizer(given: Any) -> Any:
    """Return the optimiser in a prepared one; any other object as it is."""
    if not is_of_accelerate(given) or not hasattr(given, "optimizer"):
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
    if not is_of_accelerate(given) or not isinstance(given, DataLoader):
        return given
    batches = given.batch_sampler
    if type(batches) is not BatchSampler:
        return given
    options: dict[str, Any] = (
        {"prefetch_factor": given.prefetch_factor} if given.num_workers else {}
    )
    return DataLoader(
        given.dataset,
        batch_size=batches.batch_size,
        sampler=batches.sampler,
        drop_last=batches.drop_last,
        collate_fn=given.collate_fn,
        num_workers=given.num_workers,
        pin_memory=given.pin_memory,
        timeout=given.timeout,
        worker_init_fn=given.worker_init_fn,
        multiprocessing_context=given.multiprocessing_context,
        **options,
    )
