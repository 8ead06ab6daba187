# SPDX-License-Identifier: Apache-2.0
"""`make_trainer_private`: the Trainer of transformers, with private steps."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from dpftrl_fast.torch.loader import loader_options
from dpftrl_fast.torch.make_private import PrivateTraining, make_private

#: What the Trainer clips to unless it is told otherwise.
_USUAL_NORM = 1.0
#: Samplers that the Trainer chooses by itself, in whose place the plan's order comes.
_USUAL_SAMPLERS = ("RandomSampler", "SeedableRandomSampler", "SequentialSampler")


def make_trainer_private(trainer: Any, **arguments: Any) -> PrivateTraining:
    """Make a Trainer of transformers private: model, optimiser and batches are its own.

    Call it once, before ``trainer.train()``::

        trainer = Trainer(model, args, train_dataset=data)
        private = make_trainer_private(trainer, epsilon=8.0, delta=1e-6, clip_norm=1.0)
        trainer.train()
        print(private.ledger.epsilon_spent())

    Epochs, batch size, collation and the optimiser are taken from the trainer. It then gets its
    batches in the order of the plan, and its step count is that of the ledger.

    Parameters
    ----------
    trainer : transformers.Trainer
        Or of a class derived from it. Its scheduler is made for the private optimiser.
    **arguments
        As for `make_private`, without ``epochs``, and with ``grad_sample_mode`` other than "vmap".

    Returns
    -------
    PrivateTraining
        (model, optimizer, data_loader, ledger): the model is the trainer's.

    Raises
    ------
    TypeError, ValueError
        As `make_private`; or if the trainer would accumulate or clip gradients, scale the loss,
        share it among processes or take other steps than those of whole epochs. The trainer has not
        changed then.

    Notes
    -----
    **Formal guarantee.** That of `make_private`, if the trainer's own training loop runs. Losses
    and metrics of training data that the trainer logs or saves are not private. The loss must keep
    examples apart: the count of tokens of a batch is not handed to model or loss.

    Its checkpoints have no key: they hold a model that may be published, not a run that can be
    resumed.

    Examples
    --------
    >>> import tempfile
    >>> from torch import nn
    >>> from transformers import Trainer, TrainingArguments
    >>> class Network(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.layer = nn.Linear(3, 1)
    ...     def forward(self, x, labels):
    ...         return {"loss": nn.functional.mse_loss(self.layer(x)[:, 0], labels)}
    >>> data = [{"x": torch.ones(3), "labels": torch.tensor(1.0)} for _ in range(10)]
    >>> args = TrainingArguments(
    ...     tempfile.mkdtemp(), num_train_epochs=2, per_device_train_batch_size=5, use_cpu=True,
    ...     save_strategy="no", report_to=[], disable_tqdm=True,
    ... )
    >>> trainer = Trainer(Network(), args, train_dataset=data)
    >>> private = make_trainer_private(trainer, epsilon=8.0, delta=1e-5, clip_norm=1.0)
    >>> _ = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> private.ledger.steps_taken, private.ledger.epsilon_spent() <= 8.0
    (4, True)
    """
    args = _checked(trainer)
    if "epochs" in arguments:
        raise TypeError("epochs must be left out: they are num_train_epochs of the trainer's args")
    if arguments.get("grad_sample_mode") == "vmap":
        raise ValueError(
            "grad_sample_mode must be 'auto', 'hooks' or 'functorch' for a Trainer, got 'vmap': "
            "'auto' takes each example alone where that is needed, in the trainer's own model"
        )
    given, own = trainer.optimizer, trainer.get_batch_samples
    loader = _loader(trainer.get_train_dataloader(), args)
    optimizer = trainer.create_optimizer() if given is None else given
    try:
        private = make_private(
            trainer.model, optimizer, loader, epochs=int(args.num_train_epochs), **arguments
        )
    except Exception:
        trainer.optimizer = given
        raise
    batches = private.data_loader.batches()

    def samples(*given: Any, **named: Any) -> tuple[Any, None]:
        # The count of the batch's tokens, the second, would tie the loss of one example to others.
        return own(*given, **named)[0], None

    trainer.optimizer = private.optimizer
    args.max_grad_norm = 0.0
    trainer.get_train_dataloader = lambda: batches
    trainer.get_batch_samples = samples
    return private


def _loader(given: Any, args: Any) -> DataLoader[Any]:
    """Return the trainer's loader without the sampler that it has chosen."""
    sampler = getattr(getattr(given, "batch_sampler", None), "sampler", None)
    if sampler is not None and type(sampler).__name__ not in _USUAL_SAMPLERS:
        raise ValueError(
            "the trainer must choose its batches at random or in order, since the order is part of "
            f"the plan, got {type(sampler).__name__}: leave out group_by_length and samplers"
        )
    options = loader_options(given)
    options["pin_memory"] = given.pin_memory and torch.cuda.is_available()
    return DataLoader(
        given.dataset,
        batch_size=args.train_batch_size,
        drop_last=args.dataloader_drop_last,
        **options,
    )


def _checked(trainer: Any) -> Any:
    """Return the arguments of a trainer whose loop can be private."""
    needed = ("args", "model", "get_train_dataloader", "create_optimizer", "get_batch_samples")
    if not all(hasattr(trainer, name) for name in needed):
        raise TypeError(f"trainer must be a transformers Trainer, got {type(trainer).__name__}")
    args = trainer.args
    if args.gradient_accumulation_steps != 1:
        raise ValueError(
            "gradient_accumulation_steps must be 1, since a step is one batch of the plan, got "
            f"{args.gradient_accumulation_steps}: set per_device_train_batch_size to the whole "
            "batch"
        )
    if args.max_grad_norm not in (None, 0.0, _USUAL_NORM):
        raise ValueError(
            f"max_grad_norm must be left out, got {args.max_grad_norm}: the gradient of each "
            "example is clipped, to the clip_norm of make_trainer_private"
        )
    if args.fp16:
        raise ValueError(
            "fp16 must be False, got True: its GradScaler skips steps by private values; bf16=True "
            "needs none"
        )
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size must be False, got True: the batch size is part of the plan"
        )
    sharded = any(
        getattr(trainer, name, False) for name in ("is_deepspeed_enabled", "is_fsdp_enabled")
    )
    if sharded or args.world_size > 1 or args.n_gpu > 1:
        raise ValueError(
            "the trainer must train on one device, got several, or FSDP or DeepSpeed: show it one "
            "(CUDA_VISIBLE_DEVICES=0), or write the loop with make_private, under torchrun"
        )
    epochs = float(args.num_train_epochs)
    if args.max_steps > 0 or not (epochs >= 1 and epochs.is_integer()):
        raise ValueError(
            "the trainer must train for whole epochs (num_train_epochs a whole number, and no "
            f"max_steps), as the plan does, got num_train_epochs={args.num_train_epochs!r}, "
            f"max_steps={args.max_steps}"
        )
    return args
