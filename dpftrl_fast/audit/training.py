# SPDX-License-Identifier: Apache-2.0
"""Audit of `dpftrl_fast.torch.make_private`: the gradients of a linear model are the canaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpftrl_fast._validate import positive_integer
from dpftrl_fast.audit.canaries import Canaries, canaries_of
from dpftrl_fast.audit.covariance import check_steps
from dpftrl_fast.audit.models import sums_of_models
from dpftrl_fast.audit.releases import audit_runs
from dpftrl_fast.audit.result import AuditResult
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

Vector = NDArray[np.float64]


def audit_training(
    *,
    steps_per_epoch: int = 4,
    epochs: int = 1,
    make: Callable[..., Any] | None = None,
    label_flip: bool = False,
    record: ArrayLike | None = None,
    canaries: int | None = None,
    runs: int = 8,
    delta: float = 1e-6,
    confidence: float = 0.999,
    random_state: Any = None,
    learning_rate: float = 1.0,
    momentum: float = 0.0,
    nesterov: bool = False,
    **options: Any,
) -> AuditResult:
    """Audit a private training in torch by its models, one after every step.

    The model is linear, with a weight for each coordinate of the canaries and the loss <x, theta>,
    so that the gradient of an example is the example. All of the rest is that of `make_private`:
    gradients per example, clipping, loader, optimiser and noise. Canaries are the examples of the
    first batch; those of the others are zero.

    Parameters
    ----------
    steps_per_epoch, epochs : int
        Batches of a pass, and passes.
    make : callable, optional
        `make_private`, or a callable with its arguments.
    label_flip, record, canaries, runs, delta, confidence, random_state
        As for :func:`dpftrl_fast.audit.audit_prefix_sum`; a record is the gradient of an example.
    learning_rate, momentum, nesterov
        Of the SGD that is made private.
    **options
        Of `make_private`, such as ``noise_multiplier``, ``clip_norm``, ``mechanism``,
        ``grad_sample_mode`` and ``keep_optimizer``.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> result = audit_training(
    ...     noise_multiplier=0.5, clip_norm=1.0, canaries=128, confidence=1 - 1e-9
    ... )
    >>> result.verdict
    'consistent'
    """
    import torch
    from torch.utils.data import DataLoader

    from dpftrl_fast.torch import make_private

    each = positive_integer("steps_per_epoch", steps_per_epoch)
    passes = positive_integer("epochs", epochs)
    check_steps(each * passes)
    if options.pop("shuffle", False):
        raise ValueError("shuffle must be False in an audit: all canaries are in the first batch")
    maker = make_private if make is None else make
    options.setdefault("grad_sample_mode", "hooks")  # of a linear layer; nothing is printed

    def loss_of(outputs: Any, targets: Any) -> Any:
        return (outputs[:, 0] * targets).mean()

    def run(made: Canaries, coins: NDArray[np.bool_]) -> tuple[PrivacyPlan, Vector]:
        model = torch.nn.Linear(made.size, 1, bias=False)
        weights = next(model.parameters())
        with torch.no_grad():
            weights.zero_()
        data = _examples(torch.utils.data.Dataset, torch, made, coins, each, _clip_norm(options))
        optimizer = torch.optim.SGD(
            model.parameters(), lr=learning_rate, momentum=momentum, nesterov=nesterov
        )
        wrapped: Any
        wrapped, private, loader, ledger = maker(
            model,
            optimizer,
            DataLoader(data, batch_size=made.count),
            delta=delta,
            epochs=passes,
            shuffle=False,
            **options,
        )
        models = []
        for _ in range(passes):
            for _, (x, y) in loader:
                loss_of(wrapped(x), y).backward()
                private.step()
                models.append(weights.detach().reshape(-1).to(torch.float64).numpy().copy())
        return ledger.plan, sums_of_models(
            np.array(models), -learning_rate / made.count, momentum=momentum, nesterov=nesterov
        )

    return audit_runs(
        run,
        canaries_of(canaries, record, label_flip),
        uses=np.repeat(np.arange(1, passes + 1), each),
        runs=runs,
        delta=delta,
        confidence=confidence,
        random_state=random_state,
        subject="training in torch",
    )


def _clip_norm(options: dict[str, Any]) -> float:
    """Return the clip norm of all parameters together, here of one tensor."""
    norms = options.get("clip_norm", 1.0)
    return float(np.linalg.norm(np.atleast_1d(np.asarray(norms, dtype=np.float64))))


def _examples(
    base: Any, torch: Any, made: Canaries, coins: NDArray[np.bool_], batches: int, clip: float
) -> Any:
    """Return the data set: a batch of canaries, and batches of zeros."""
    vectors = torch.from_numpy(made.vectors(coins, clip).astype(np.float32))
    zero = torch.zeros(made.size)

    class Examples(base):  # type: ignore[misc]
        def __len__(self) -> int:
            return batches * made.count

        def __getitem__(self, place: int) -> Any:
            return (vectors[place] if place < made.count else zero), torch.tensor(1.0)

    return Examples()
