# SPDX-License-Identifier: Apache-2.0
"""`make_private`: one call makes a model, an optimiser and a loader private, without sampling."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from dpftrl_fast._validate import choice, flag, optional, positive, positive_integer
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, Participation, SinglePass
from dpftrl_fast.accounting.planner.choice import MAX_VECTORS, MechanismChoice
from dpftrl_fast.accounting.sensitivity.squared import PlanBound
from dpftrl_fast.mechanisms.workload import Workload
from dpftrl_fast.noise.arguments import memory_setting
from dpftrl_fast.plan.epoch_order import steps_per_epoch
from dpftrl_fast.plan.from_budget import participation_of, plan_of
from dpftrl_fast.plan.privacy_plan import PrivacyPlan
from dpftrl_fast.torch.flat.distributed import Order, Ranks, ranks_of_group
from dpftrl_fast.torch.given import (
    check_optimizer,
    check_options,
    check_plain,
    check_trained,
    plain_loader,
    plain_optimizer,
    refuse_steps,
    trained_parameters,
)
from dpftrl_fast.torch.gradients.accumulate import Accumulator
from dpftrl_fast.torch.gradients.alone.vmapped import VmapModule
from dpftrl_fast.torch.gradients.clipped_sums import sum_dtype
from dpftrl_fast.torch.gradients.clipping import Clipping, clipping_of
from dpftrl_fast.torch.gradients.layers import GradSampleMode, check_layers, check_mode
from dpftrl_fast.torch.gradients.loss.criterion import check_criterion
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.loader import FixedOrderLoader, check_loader
from dpftrl_fast.torch.model_state import remember_statistics
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.public_state import keep_position
from dpftrl_fast.torch.residual import ResidualNoise
from dpftrl_fast.torch.same_data import check_same_examples, examples_hash
from dpftrl_fast.torch.schedules import SCHEDULES, Schedule


class PrivateTraining(NamedTuple):
    """Result of `make_private`: model, optimiser, loader and ledger.

    Attributes
    ----------
    model : nn.Module
        The network itself, with hooks on it; with "vmap" a `VmapModule` around it.
    optimizer : torch.optim.Optimizer
        `DPFTRL`, or the given optimiser, on noisy sums.
    data_loader : FixedOrderLoader
        Yields (ids, batch).
    ledger : TrainingLedger
        ``epsilon_spent()``.
    """

    model: nn.Module
    optimizer: Optimizer
    data_loader: FixedOrderLoader
    ledger: TrainingLedger

    @property
    def noise(self) -> DPFTRL | ResidualNoise:
        """Source of the noise, with its state: the optimiser itself or a `ResidualNoise`."""
        accumulator = self.data_loader.accumulator
        assert accumulator is not None
        assert isinstance(accumulator.noise, (DPFTRL, ResidualNoise))
        return accumulator.noise


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data_loader: DataLoader[Any],
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float,
    epochs: int,
    clip_norm: float | Sequence[float],
    clipping: str = "flat",
    gamma: float | None = None,
    plan: PrivacyPlan | None = None,
    mechanism: MechanismChoice = "auto",
    max_vectors: int | None = MAX_VECTORS,
    learning_rates: Sequence[float] | None = None,
    bound: PlanBound = "released",
    shuffle: bool = True,
    order_seed: int | None = None,
    grad_sample_mode: GradSampleMode = "auto",
    criterion: Callable[[Any, Any], torch.Tensor] | None = None,
    loss_reduction: str = "mean",
    batch_first: bool = True,
    chunk_size: int | None = None,
    keep_optimizer: bool = False,
    schedule: Schedule = "sgd",
    **noise: Any,
) -> PrivateTraining:
    """Make a model, an optimiser and a loader private, in the manner of Opacus.

    The training loop does not change, except that batches come with the ids of their examples::

        for epoch in range(epochs):
            for ids, (x, y) in data_loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()

    Parameters
    ----------
    model : nn.Module
        Layers that cannot be trained privately (BatchNorm, for instance) are refused by name.
    optimizer : torch.optim.Optimizer
        An SGD becomes a `DPFTRL` with its rates, momentum and Nesterov; any other stays and gets
        noisy mean gradients (`ResidualNoise`). Learning-rate schedulers belong to the optimiser
        that is returned. Frozen parameters (``requires_grad=False``) stay as they are, in all of
        the run.
    data_loader : DataLoader
        Must not shuffle or sample itself: `shuffle` below decides the order. The length n of its
        data set and the batch size B are public.
    epsilon, noise_multiplier : float
        Exactly one of them, unless there is a `plan`: the budget at `delta` for zero-out
        neighbours, or the standard deviation of the noise in clip norms (sigma).
    delta : float
        Delta of the stated epsilon, 0 < delta < 1.
    epochs : int
        Passes over the data.
    clip_norm : float or sequence of float
        L, or for per-layer clipping one L_k a parameter tensor (L = sqrt(sum L_k^2)).
    clipping : {"flat", "per-layer", "automatic"}
        See `FlatClipping`, `PerLayerClipping`, `AutomaticClipping`.
    gamma : float, optional
        Of automatic clipping.
    plan : PrivacyPlan, optional
        Used instead of a computed plan; then `epsilon`, `noise_multiplier` and the arguments below
        up to `bound` are not given. For the same epochs, with a clip norm of at least L.
    mechanism : Mechanism, "auto" or "tree"
        The correlated noise: that of least error for the optimiser's momentum, weight decay and
        `learning_rates` ("auto"), the best tree ("tree"), or a mechanism, whose coefficients are
        rounded to the noise's dtype. A noise multiplier is kept whatever is chosen.
    max_vectors : int or None
        Vectors of the model's size that a mechanism chosen by "auto" keeps between steps: at most
        as many as the option ``memory`` keeps, none with "regenerate".
    learning_rates : sequence of float, optional
        The rate of each step, if a scheduler changes them: used to choose the mechanism only.
    bound
        As for `PrivacyPlan`.
    shuffle : bool
        True assigns the examples to batches at random: once, and again only at a restart of the
        noise that begins an epoch. Noise without restarts has one order for all epochs. False keeps
        the order of the data set: batches of the examples 0, 1, 2, ... in turn. The budget
        `epsilon` holds for both.
    order_seed : int, optional
        Seed of the random order: public, unrelated to the noise. By default from the operating
        system; the state of the loader keeps it.
    grad_sample_mode : {"auto", "hooks", "functorch", "vmap"}
        Per-example gradients by formulas and hooks on the layers ("hooks"); by hooks, with
        ``torch.func`` for all layers; or by passing each example alone through the whole model, for
        models that hooks cannot follow, see `VmapModule`. "auto" takes hooks where they are right,
        or else "vmap", and prints its choice.
    criterion : callable, optional
        The loss. With hooks it is only checked, see `check_criterion`; with "vmap" the loop may
        call ``model.backward(x, y)`` then, which gives it one example at a time.
    loss_reduction : {"mean", "sum"}
        Reduction of the loss over the examples of a batch; a loss with another one is refused in
        the first backward pass.
    batch_first : bool
        Whether examples are along the first dimension of every layer's input, for the hooks.
    chunk_size : int, optional
        For "vmap": number of examples whose gradients are in memory at a time; by default at most
        64 MiB of them.
    keep_optimizer : bool
        Keep an SGD as it is, with `ResidualNoise`.
    schedule : {"sgd", "ftrl"}
        What a scheduler's rates mean to the `DPFTRL` that an SGD becomes: with "sgd" the same as to
        the SGD; with "ftrl" the latest rate scales the whole way from the start.
    **noise
        Options of `DPFTRL` or `ResidualNoise`, such as ``memory`` or ``threads``. The processes of
        ``process_group`` share each batch.

    Returns
    -------
    PrivateTraining
        (model, optimizer, data_loader, ledger).

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described above, or the ranks of ``process_group`` have different
        orders of the data: refused on all ranks. Model and optimiser can be used again then, but
        ``p.grad`` is cleared.

    Notes
    -----
    **Formal guarantee.** For neighbouring data sets in which the gradients of one example are
    replaced by zero, the parameters of all steps together are (epsilon, delta)-differentially
    private with the epsilon of ``ledger.epsilon_spent()``: that of the plan
    (``data_loader.plan.epsilon(delta)``; ``neighbours="replace-one"`` for a replaced example). The
    caller must take the batches from the returned loader, one ``optimizer.step()`` each, keep the
    noise key and states with secrets secret, and release nothing else that is computed from the
    data: the loss printed while training is not private. Noisy sums are on a public grid, see
    docs/guarantees/floating_point.md.

    With the hooks, the model is tried before its first pass in training mode, at the cost of a few
    steps (see `gradients.rows`): a model that does not treat the rows as separate examples is
    refused. The loss is tried in the first backward pass (see `gradients.loss`): one that mixes
    examples is refused. Sums of clipped gradients get noise and are divided by B, also in a
    smaller last batch.

    Examples
    --------
    >>> model = nn.Linear(4, 2)
    >>> data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
    >>> model, optimizer, data_loader, ledger = make_private(
    ...     model,
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     DataLoader(data, batch_size=16),
    ...     epsilon=8.0,
    ...     delta=1e-5,
    ...     epochs=1,
    ...     clip_norm=1.0,
    ... )
    >>> for ids, (x, y) in data_loader:
    ...     nn.functional.cross_entropy(model(x), y).backward()
    ...     optimizer.step()
    >>> ledger.epsilon_spent() <= 8.0
    True
    """
    ranks, shard = _ranks(noise.get("process_group"))
    seed_is_given = order_seed is not None
    examples = of_rank_0 = None
    if shard[1] > 1:  # on all ranks, before one of them may refuse
        drawn = secrets.randbits(64) if order_seed is None else order_seed
        order_seed, seed_is_given = ranks.share((drawn, seed_is_given))
        salt = ranks.share(secrets.token_hex(16))
        examples = examples_hash(getattr(data_loader, "dataset", None), salt)
        of_rank_0 = ranks.share(examples)
    module: nn.Module
    undo: Callable[[], Any] = list
    source: DPFTRL | ResidualNoise
    refusal: Exception | None = None
    order = Order({}, None)
    try:
        mode = check_mode(grad_sample_mode)
        optimizer, data_loader = plain_optimizer(optimizer), plain_loader(data_loader)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a Module, got {type(model).__name__}")
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"optimizer must be a torch Optimizer, got {type(optimizer).__name__}")
        check_plain(model)
        check_loader(data_loader)
        check_same_examples(examples, of_rank_0)
        check_layers(model, "vmap" if mode == "auto" else mode, batch_first=batch_first)
        if mode != "vmap":
            check_criterion(criterion, loss_reduction)
        if mode in ("hooks", "functorch") and chunk_size is not None:
            raise ValueError(
                f"chunk_size belongs to grad_sample_mode='vmap', got it with {mode!r}: hand out "
                "the batch in pieces instead (loader.in_pieces)"
            )
        check_optimizer(optimizer)
        parameters = trained_parameters(optimizer)
        check_trained(parameters, noise.get("dtype", "float32"))
        clip = clipping_of(clipping, clip_norm, len(parameters), gamma)
        batch_size = positive_integer("the loader's batch_size", data_loader.batch_size)
        participation = _participation(data_loader, batch_size, epochs, shuffle)
        keep = flag("keep_optimizer", keep_optimizer)
        to_ftrl = type(optimizer) is torch.optim.SGD and not keep
        check_options(noise, to_ftrl=to_ftrl)
        optional(positive, "epsilon", epsilon)
        meaning = choice("schedule", schedule, SCHEDULES)
        _check_schedule(meaning, to_ftrl, learning_rates)
        options = _sgd_options(optimizer) if to_ftrl else {}
        budget: dict[str, Any] = {
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
            "mechanism": mechanism,
            "max_vectors": max_vectors,
            "bound": bound,
        }
        if plan is None:
            kept = _kept_vectors(max_vectors, noise.get("memory", "stored"))
            plan = plan_of(
                participation,
                delta=delta,
                clip_norm=clip.clip_norm,
                workload=_workload(optimizer, learning_rates),
                dtype=noise.get("dtype", "float32"),
                **{**budget, "max_vectors": kept},
            )
        else:
            given = None if learning_rates is None else "given"
            _check_plan(plan, participation, clip, {**budget, "learning_rates": given})
        loader = FixedOrderLoader.from_loader(
            data_loader, plan, shuffle=shuffle, order_seed=order_seed, shard=shard
        )
        loader.seed_is_given = seed_is_given
        ledger = TrainingLedger(plan, delta)
        sums = Accumulator(
            parameters,
            clip,
            batch_size,
            ledger,
            roundings=shard[1],
            steps=plan.steps if to_ftrl else 1,
        )
        if to_ftrl:
            groups = [
                {"params": group["params"], "lr": group["lr"]} for group in optimizer.param_groups
            ]
            lr = optimizer.param_groups[0]["lr"]
            options |= {"batch_size": batch_size, "schedule": meaning}
            source = DPFTRL(groups, lr, plan=plan, **options, **noise)
        else:
            source = ResidualNoise(parameters, plan=plan, **noise)
        module = model
        if mode == "auto":
            from dpftrl_fast.torch.gradients.auto import auto_gradients

            undo = auto_gradients(
                model,
                sums,
                criterion=criterion,
                batch_first=batch_first,
                loss_reduction=loss_reduction,
                chunk_size=chunk_size,
            )
        elif mode == "vmap":
            module = VmapModule(
                model, criterion, sums, chunk_size=chunk_size, loss_reduction=loss_reduction
            )
        else:
            from dpftrl_fast.torch.gradients.rows import hook_gradients

            hooks = hook_gradients(
                model,
                sums,
                functorch=mode == "functorch",
                batch_first=batch_first,
                loss_reduction=loss_reduction,
            )
            undo = hooks.remove
        order = loader.order()
    except Exception as error:
        refusal = error
    try:
        ranks.check_order(order, refusal=refusal)
    except Exception:
        undo()
        raise
    # Nothing is refused from here on: a step hook stays where it was put.
    sums.noise = source
    remember_statistics(model)
    if isinstance(source, DPFTRL):
        refuse_steps(optimizer)
        optimizer = source
        sums.attach(optimizer, check=source.prepare_step)
    else:
        means = partial(_noisy_means, parameters, source, batch_size)
        sums.attach(optimizer, after_sum=means)
        keep_position(optimizer, source)
    loader.attach(sums)
    return PrivateTraining(module, optimizer, loader, ledger)


def _noisy_means(parameters: list[torch.Tensor], residual: ResidualNoise, batch_size: int) -> None:
    """Turn the sums in ``p.grad`` into noisy means, as any optimiser expects them."""
    residual.add_()
    for p in parameters:
        assert p.grad is not None
        mean = p.grad.div_(batch_size)
        if p.dtype != sum_dtype(p.dtype):
            p.grad = None
            p.grad_dtype = p.dtype
            p.grad = mean.to(p.dtype)


def _workload(optimizer: Optimizer, learning_rates: Sequence[float] | None) -> Workload:
    """Return the workload of an SGD; that of any other optimiser is prefix sums."""
    found: dict[str, Any] = {"learning_rates": learning_rates}
    if type(optimizer) is torch.optim.SGD:
        group = optimizer.param_groups[0]
        found["momentum"] = float(group["momentum"])
        rate = 1.0 if learning_rates is not None else float(group["lr"])
        found["weight_decay"] = rate * float(group["weight_decay"])
    return Workload(**found)


def _kept_vectors(max_vectors: int | None, memory: Any) -> int | None:
    """Return the vectors that a chosen mechanism may keep: buffers made again cost all steps."""
    setting = memory_setting(memory)
    if setting == "stored":
        return max_vectors
    most = 0 if isinstance(setting, str) else setting
    return most if max_vectors is None else min(most, max_vectors)


def _participation(
    loader: DataLoader[Any], batch_size: int, epochs: int, shuffle: bool
) -> Participation:
    examples = len(loader.dataset)  # type: ignore[arg-type]
    steps = steps_per_epoch(examples, batch_size, loader.drop_last)
    passes = positive_integer("epochs", epochs)
    return participation_of(steps * batch_size, batch_size, passes, shuffle)


def _ranks(group: Any) -> tuple[Ranks, tuple[int, int]]:
    """Return the processes of a group, and (rank, processes) of this one."""
    distributed = torch.distributed
    ranks = ranks_of_group(group)
    if not (distributed.is_available() and distributed.is_initialized()):
        return ranks, (0, 1)
    return ranks, (distributed.get_rank(group), distributed.get_world_size(group))


# ---- Checks ----


def _check_schedule(schedule: Schedule, to_ftrl: bool, learning_rates: Any) -> None:
    if schedule == "sgd":
        return
    if not to_ftrl:
        raise ValueError(
            f"schedule={schedule!r} must come with an SGD that becomes DPFTRL, got an optimiser "
            "that is kept: leave it out"
        )
    if learning_rates is not None:
        raise ValueError(
            f"learning_rates must come with schedule='sgd', got {schedule!r}, where the latest "
            "rate scales the whole way from the start: leave them out"
        )


#: Arguments that a given plan decides, with their defaults.
_OF_PLAN = {
    "epsilon": None,
    "noise_multiplier": None,
    "mechanism": "auto",
    "max_vectors": MAX_VECTORS,
    "bound": "released",
    "learning_rates": None,
}


def _check_plan(
    plan: PrivacyPlan, participation: Participation, clip: Clipping, budget: Mapping[str, Any]
) -> None:
    """Refuse a plan that is not for this run, or that comes with arguments which a plan decides."""
    if not isinstance(plan, PrivacyPlan):
        raise TypeError(f"plan must be a PrivacyPlan, got {type(plan).__name__}")
    asked = [name for name, value in budget.items() if value != _OF_PLAN[name]]
    if asked:
        raise ValueError(f"expected a plan, or {', '.join(asked)}, got both")
    if plan.steps != participation.steps:
        raise ValueError(
            f"the plan must be for the {participation.steps} steps of {participation!r}, got "
            f"{plan.steps}"
        )
    if not _allows(plan.participation, participation):
        raise ValueError(
            f"the plan must be for {participation!r}, got {plan.participation!r}, which does not "
            "allow as many participations of an example"
        )
    if not clip.clip_norm <= plan.clip_norm:
        raise ValueError(
            f"clip_norm must be at most the plan's, {plan.clip_norm}, got {clip.clip_norm}"
        )


def _allows(declared: Participation, wanted: Participation) -> bool:
    """Whether whole passes in a fixed order are allowed; the guard looks at the examples too."""
    if not isinstance(wanted, FixedEpochs):
        return True
    if isinstance(declared, MinSeparation):
        often = declared.max_participations >= wanted.epochs
        return often and declared.min_separation <= wanted.steps_per_epoch
    return not isinstance(declared, SinglePass)


def _sgd_options(optimizer: Optimizer) -> dict[str, Any]:
    """Return the options that DPFTRL takes over from an SGD; refuse those that it lacks."""
    for group in optimizer.param_groups:
        if "initial_lr" in group:
            raise ValueError(
                "an SGD that becomes DPFTRL must have no learning-rate scheduler yet, got one: "
                "make it for the optimiser that make_private returns"
            )
        for name in ("weight_decay", "dampening", "maximize"):
            if group[name]:
                raise ValueError(
                    f"an SGD that becomes DPFTRL must have {name} 0 or False, got {group[name]!r}: "
                    "keep_optimizer=True keeps it as an SGD with noise"
                )
    found = {(group["momentum"], group["nesterov"]) for group in optimizer.param_groups}
    if len(found) != 1:
        raise ValueError(
            f"all parameter groups must have the same momentum and nesterov, got {sorted(found)}"
        )
    momentum, nesterov = found.pop()
    return {"momentum": momentum, "nesterov": nesterov}
