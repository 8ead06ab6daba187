# SPDX-License-Identifier: Apache-2.0
"""`lightning_callback`: private steps in a Trainer of Lightning."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.torch.batches import Batches
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.loader import check_loader
from dpftrl_fast.torch.make_private import PrivateTraining, make_private


class PrivateFit:
    """A private fit of Lightning: the part of the callback that is not Lightning's.

    Attributes
    ----------
    batches : Batches
        To be given to ``trainer.fit``.
    """

    def __init__(self, data_loader: DataLoader[Any], epochs: int, arguments: dict[str, Any]):
        check_loader(data_loader)
        self._given, self._arguments = data_loader, arguments
        self._epochs = positive_integer("epochs", epochs)
        self._made: PrivateTraining | None = None
        self.batches = Batches(self)

    @property
    def private(self) -> PrivateTraining:
        """The network, its optimiser, loader and ledger, from the beginning of ``trainer.fit``."""
        if self._made is None:
            raise ValueError(
                "the private training is made when trainer.fit begins, got none yet: use it after"
            )
        return self._made

    @property
    def ledger(self) -> TrainingLedger:
        """The ledger of the run: ``ledger.epsilon_spent()``."""
        return self.private.ledger

    # What `Batches` needs: Lightning looks at them before it makes optimisers.

    @property
    def dataset(self) -> Any:
        """The data set."""
        return self._given.dataset

    @property
    def batch_size(self) -> int:
        """Examples of a batch (B)."""
        assert self._given.batch_size is not None
        return self._given.batch_size

    def __len__(self) -> int:
        """Return the batches of an epoch."""
        return len(self._given)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Return an iterator over (ids, batch) for the rest of the present epoch."""
        yield from self.private.data_loader

    # ---- Hooks of Lightning ----

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Check the trainer, and let it get a private optimiser."""
        if stage != "fit":
            return
        if self._made is not None:
            raise ValueError(
                "a callback is for one trainer.fit, got another: make a new one, whose run has an "
                "epsilon of its own"
            )
        _check_trainer(trainer, self._epochs, self._epochs * len(self))
        configured = pl_module.configure_optimizers
        own = getattr(configured, "before_privacy", configured)

        def configure_optimizers(module: Any) -> Any:
            return self._private_optimizers(module, own())

        configure_optimizers.before_privacy = own  # type: ignore[attr-defined]
        pl_module.configure_optimizers = MethodType(configure_optimizers, pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse to train on other batches."""
        if trainer.train_dataloader is not self.batches:
            came = type(trainer.train_dataloader).__name__
            raise ValueError(
                f"trainer.fit must get the batches of the callback, got {came}: write "
                "trainer.fit(module, callback.batches)"
            )

    def _private_optimizers(self, module: Any, configured: Any) -> Any:
        optimizer, schedulers, replaced = _one_optimizer(configured)
        kept = type(optimizer) is not torch.optim.SGD or self._arguments.get("keep_optimizer")
        if schedulers and not kept:
            raise ValueError(
                "an SGD that becomes DPFTRL must have no learning-rate scheduler yet, got one of "
                "configure_optimizers: give keep_optimizer=True, with the same noise and epsilon"
            )
        made = make_private(
            _network(module), optimizer, self._given, epochs=self._epochs, **self._arguments
        )
        _take_closures(made.optimizer)
        self._made = made
        return replaced(made.optimizer)


def lightning_callback(data_loader: DataLoader[Any], *, epochs: int, **arguments: Any) -> Any:
    """Return a callback that makes a fit of Lightning private.

    The module does not change: its optimiser is made private, and its loss is a mean over the
    batch, as usual. Its training step must call one network: the attribute that has all parameters,
    or else the module itself, ``self(x)``::

        private = lightning_callback(
            DataLoader(data, batch_size=250), epochs=5, epsilon=8.0, delta=1e-6, clip_norm=1.0
        )
        trainer = Trainer(max_epochs=5, callbacks=[private])
        trainer.fit(module, private.batches)
        print(private.ledger.epsilon_spent())

    Parameters
    ----------
    data_loader : DataLoader
        As for `make_private`.
    epochs : int
        Those of the trainer (``max_epochs``).
    **arguments
        As for `make_private`, with ``grad_sample_mode`` other than "vmap".

    Returns
    -------
    lightning.pytorch.Callback
        With `batches`, to be given to ``trainer.fit``; and from then on `ledger` and `private`,
        the result of `make_private`.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described above. ``trainer.fit`` raises what `make_private` does;
        and ValueError, before the first step, if the trainer would accumulate or clip gradients,
        use other batches, other epochs or several processes, or if the module has several
        optimisers.
    ModuleNotFoundError
        If neither ``lightning`` nor ``pytorch_lightning`` is installed.

    Notes
    -----
    **Formal guarantee.** That of `make_private`. What the module logs of its training batches is
    not private.

    A step has one batch: the closure that Lightning hands to the optimiser, with the backward pass,
    runs once, before the step. ``trainer.global_step`` is ``ledger.steps_taken``. Checkpoints have
    no key: they hold a model that may be published, not a run that can be resumed.

    Examples
    --------
    >>> import torch
    >>> from lightning import LightningModule, Trainer
    >>> from torch import nn
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> class Module(LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.network = nn.Linear(3, 2)
    ...     def training_step(self, batch, index):
    ...         x, y = batch
    ...         return nn.functional.cross_entropy(self.network(x), y)
    ...     def configure_optimizers(self):
    ...         return torch.optim.SGD(self.parameters(), lr=0.1)
    >>> data = TensorDataset(torch.zeros(10, 3), torch.zeros(10, dtype=torch.long))
    >>> private = lightning_callback(
    ...     DataLoader(data, batch_size=5), epochs=2, epsilon=8.0, delta=1e-5, clip_norm=1.0
    ... )
    >>> trainer = Trainer(
    ...     max_epochs=2, callbacks=[private], accelerator="cpu", logger=False,
    ...     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    ... )
    >>> trainer.fit(Module(), private.batches)
    >>> private.ledger.steps_taken, private.ledger.epsilon_spent() <= 8.0
    (4, True)
    """
    if arguments.get("grad_sample_mode") == "vmap":
        raise ValueError(
            "grad_sample_mode must be 'auto', 'hooks' or 'functorch' for Lightning, got 'vmap': "
            "'auto' takes each example alone where that is needed, in the module itself"
        )
    found = importlib.util.find_spec("lightning") is not None
    base = importlib.import_module("lightning.pytorch" if found else "pytorch_lightning").Callback
    kind: Callable[..., Any] = type("PrivateFitCallback", (PrivateFit, base), {})
    return kind(data_loader, epochs, arguments)


def _network(module: nn.Module) -> nn.Module:
    """Return the part that has all parameters, since steps may call it; or else the module.

    A call of the module that calls this part is a call of it too.
    """
    parts = [part for part in module.children() if next(part.parameters(), None) is not None]
    own = next(module.parameters(recurse=False), None)
    if own is not None or len(parts) != 1 or isinstance(parts[0], (nn.ModuleList, nn.ModuleDict)):
        return module
    return parts[0]


def _take_closures(optimizer: Optimizer) -> None:
    """Let ``step(closure)`` of one optimiser run the closure, once, and then take its step."""
    plain = optimizer.step

    @functools.wraps(plain)
    def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        plain()
        return loss

    changed: Any = optimizer
    changed.step = MethodType(step, optimizer)


def _one_optimizer(configured: Any) -> tuple[Optimizer, bool, Callable[[Optimizer], Any]]:
    """Return a module's only optimiser, whether it has schedulers, and how to put in another."""
    if isinstance(configured, Optimizer):
        return configured, False, lambda other: other
    if isinstance(configured, dict) and isinstance(configured.get("optimizer"), Optimizer):
        given = configured["optimizer"]
        return given, "lr_scheduler" in configured, lambda o: {**configured, "optimizer": o}
    if isinstance(configured, (list, tuple)) and len(configured) == 1:
        return _one_optimizer(configured[0])
    if isinstance(configured, (list, tuple)) and len(configured) == 2:
        optimizers, schedulers = configured
        lists = isinstance(optimizers, (list, tuple)) and isinstance(schedulers, (list, tuple))
        if lists and len(optimizers) == 1 and isinstance(optimizers[0], Optimizer):
            return optimizers[0], bool(schedulers), lambda other: ([other], schedulers)
    raise ValueError(
        "configure_optimizers must return one optimiser, with or without a scheduler, got "
        f"{type(configured).__name__}: a batch has one step, so give all parameters to one "
        "optimiser, in groups"
    )


def _check_trainer(trainer: Any, epochs: int, steps: int) -> None:
    """Refuse a trainer whose loop is not one step for each batch of the plan."""
    if trainer.accumulate_grad_batches != 1:
        raise ValueError(
            "accumulate_grad_batches must be 1, since a step is one batch of the plan, got "
            f"{trainer.accumulate_grad_batches}: give a loader of the whole batch"
        )
    if trainer.gradient_clip_val:
        raise ValueError(
            f"gradient_clip_val must be left out, got {trainer.gradient_clip_val}: the gradient of "
            "each example is clipped, to the clip_norm of lightning_callback"
        )
    if trainer.world_size > 1:
        raise ValueError(
            f"the trainer must train in one process (devices=1), got {trainer.world_size}: write "
            "the loop with make_private for several, under torchrun"
        )
    limit = trainer.limit_train_batches
    cut = trainer.fast_dev_run or trainer.overfit_batches or isinstance(limit, int) or limit != 1.0
    if cut or trainer.max_epochs != epochs or trainer.max_steps not in (-1, steps):
        raise ValueError(
            f"the trainer must train for the {epochs} whole epochs of lightning_callback "
            f"(max_epochs={epochs}, no limits of steps or batches), got "
            f"max_epochs={trainer.max_epochs}, max_steps={trainer.max_steps}, "
            f"limit_train_batches={limit}"
        )
