# SPDX-License-Identifier: Apache-2.0
"""`make_private`: the four things it returns train together, and keep to the plan."""

from __future__ import annotations

import importlib
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch_cases import cross_entropy, flat_sums, one_by_one

from dpftrl_fast import PrivacyPlan
from dpftrl_fast.accounting import FixedEpochs, MinSeparation, SinglePass, plan_schedule
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.from_budget import plan_of
from dpftrl_fast.torch import optimizer as optimizer_module
from dpftrl_fast.torch.flat.layout import ParameterLayout
from dpftrl_fast.torch.flat.noise import FlatNoise
from dpftrl_fast.torch.flat.residual import FlatResidual
from dpftrl_fast.torch.flat.update import FlatFTRL
from dpftrl_fast.torch.gradients.clipped_sums import contribution_limit
from dpftrl_fast.torch.gradients.clipping import AutomaticClipping
from dpftrl_fast.torch.ledger import TrainingLedger
from dpftrl_fast.torch.make_private import PrivateTraining, make_private
from dpftrl_fast.torch.optimizer import DPFTRL
from dpftrl_fast.torch.residual import ResidualNoise

N, B, DELTA = 22, 8, 1e-5
GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(N, 4, generator=GENERATOR)
Y = torch.randint(0, 3, (N,), generator=GENERATOR)


def data_loader(x: torch.Tensor = X, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(x, Y), **{"batch_size": B, **options})


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def private(
    model: nn.Module | None = None,
    optimizer: Any = torch.optim.SGD,
    x: torch.Tensor = X,
    rates: dict[str, Any] | None = None,
    source: DataLoader[Any] | None = None,
    **options: Any,
) -> PrivateTraining:
    model = network() if model is None else model
    given = optimizer(model.parameters(), **(rates or {"lr": 0.1}))
    fields: dict[str, Any] = {
        "noise_multiplier": 1e-9,
        "delta": DELTA,
        "epochs": 2,
        "clip_norm": 1.0,
        "order_seed": 1,
        "noise_seed": 0,
        "plan": None,
    }
    if "epsilon" in options or "plan" in options:
        fields["noise_multiplier"] = None
    return make_private(model, given, source or data_loader(x), **{**fields, **options})


#: A noise multiplier for which an epsilon can be stated.
SIGMA = 20.0


def train(run: PrivateTraining, epochs: int, rows: int | None = None, way: str = "hooks") -> None:
    model: Any = run.model
    for _ in range(epochs):
        for pieces in run.data_loader.in_pieces(rows or B):
            run.optimizer.zero_grad()
            for _, (x, y) in pieces:
                if way == "vmap":
                    model.backward(x, y)
                else:
                    cross_entropy(model(x), y).backward()
            run.optimizer.step()


def parameters(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def by_hand(run: PrivateTraining, lr: float, momentum: float, clip_norm: float) -> torch.Tensor:
    """SGD with momentum on clipped sums over B, without noise."""
    model = network().double()
    weights = list(model.parameters())
    velocity = [torch.zeros_like(p) for p in weights]
    for step in range(1, run.data_loader.plan.steps + 1):
        ids = torch.from_numpy(run.data_loader.ids(step))
        samples = one_by_one(model, cross_entropy, X[ids].double(), Y[ids], weights)
        with torch.no_grad():
            sums = flat_sums(samples, clip_norm)
            for p, v, g in zip(weights, velocity, sums, strict=True):
                v.mul_(momentum).add_(g / B)  # the last batch has 6 rows, and B all the same
                p.sub_(lr * v)
    return parameters(model)


NOISELESS: dict[str, Any] = {"plan": PrivacyPlan(1.0, 1e-9, FixedEpochs(3, 2)), "delta": 0.5}


@pytest.fixture
def noiseless(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A plan with next to no noise, at which no epsilon can be stated."""
    monkeypatch.setattr(PrivacyPlan, "epsilon", lambda self, delta, **options: math.inf)
    return NOISELESS


@pytest.mark.parametrize("way", ["hooks", "functorch", "vmap"])
@pytest.mark.parametrize("rows", [B, 3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_without_noise_it_is_sgd_on_clipped_sums(
    noiseless: dict[str, Any], way: str, rows: int, momentum: float
) -> None:
    options: dict[str, Any] = {"grad_sample_mode": way}
    if way == "vmap":
        options |= {"criterion": cross_entropy, "chunk_size": 2}
    model = network()
    rates = {"lr": 0.5, "momentum": momentum}
    run = private(model, rates=rates, **noiseless, **options)
    assert isinstance(run.optimizer, DPFTRL)
    train(run, 2, rows, way)
    expected = by_hand(run, 0.5, momentum, contribution_limit(1.0, B))
    torch.testing.assert_close(parameters(model), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_kept_sgd_gets_the_same_means(noiseless: dict[str, Any], momentum: float) -> None:
    model = network()
    rates = {"lr": 0.5, "momentum": momentum}
    run = private(model, rates=rates, keep_optimizer=True, **noiseless)
    assert type(run.optimizer) is torch.optim.SGD
    train(run, 2)
    expected = by_hand(run, 0.5, momentum, contribution_limit(1.0, B))
    torch.testing.assert_close(parameters(model), expected, rtol=1e-5, atol=1e-6)


def test_noise_of_the_residuals_is_that_of_the_tree() -> None:
    """SGD on noisy sums is FTRL: the same parameters, restarts included."""
    found = []
    for keep in (False, True):
        model = network()
        plan = PrivacyPlan(
            1.0, SIGMA, FixedEpochs(3, 4), mechanism=Tree(restart_every=6, complete=True)
        )
        train(private(model, keep_optimizer=keep, plan=plan, epochs=4), 4)
        found.append(parameters(model))
    assert float((found[0] - parameters(network())).norm()) > 1.0
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad]
)
def test_any_optimiser_runs_on_noisy_means(optimizer: Any) -> None:
    model = network()
    run = private(model, optimizer, noise_multiplier=SIGMA)
    assert type(run.optimizer) is optimizer
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1, gamma=0.5)
    train(run, 1)
    scheduler.step()
    train(run, 1)
    assert run.ledger.steps_taken == 6
    assert bool(torch.isfinite(parameters(model)).all())
    assert float((parameters(model) - parameters(network())).norm()) > 0.1


@pytest.mark.parametrize("keep", [False, True])
def test_half_precision_parameters(keep: bool) -> None:
    model = network().to(torch.bfloat16)
    run = private(
        model,
        torch.optim.SGD if not keep else torch.optim.Adam,
        x=X.bfloat16(),
        noise_multiplier=SIGMA,
    )
    train(run, 2)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())
    assert bool(torch.isfinite(parameters(model)).all())


@pytest.mark.parametrize("seed", range(3))
def test_neighbours_differ_in_the_noise_free_sums_by_at_most_the_clip_norm(seed: int) -> None:
    """One example replaced by what counts as zero, at the first step: all else is the same."""
    sums = []
    for bad in (False, True):
        x = X.clone()
        model = network()
        run = private(model, x=x, noise_multiplier=SIGMA, clip_norm=0.3)
        one = int(run.data_loader.ids(1)[seed])
        if bad:
            x[one] = math.nan
        for pieces in run.data_loader.in_pieces(3):
            for _, (rows, labels) in pieces:
                cross_entropy(run.model(rows), labels).backward()
            seen: list[torch.Tensor] = []
            accumulator: Any = run.data_loader._accumulator
            accumulator.before_step = lambda step, ids, parts, seen=seen: seen.extend(
                p.double().flatten() for p in parts
            )
            run.optimizer.step()
            break
        sums.append(torch.cat(seen))
    change = float((sums[0] - sums[1]).norm())
    assert 0.29 < change <= 0.3


def test_the_schedule_is_the_planners_best() -> None:
    run = private(epochs=20, epsilon=8.0, clip_norm=0.7, mechanism="tree")
    plan = run.data_loader.plan
    best = plan_schedule(8.0, DELTA, 3, 20).best
    assert plan == PrivacyPlan.from_schedule(best, clip_norm=0.7)
    assert run.ledger.epsilon_spent() == plan.epsilon(DELTA) <= 8.0
    assert run.ledger.epsilon_spent(1e-3) == plan.epsilon(1e-3)
    smoothed = plan_schedule(8.0, DELTA, 3, 20, momentum=0.9, rank_by="smoothed").best
    rates = {"lr": 0.1, "momentum": 0.9}
    run = private(epochs=20, epsilon=8.0, rates=rates, mechanism="tree")
    assert run.data_loader.plan == PrivacyPlan.from_schedule(smoothed, clip_norm=1.0)


def test_a_noise_multiplier_is_kept() -> None:
    plan = private(noise_multiplier=SIGMA, epochs=5).data_loader.plan
    assert plan.noise_multiplier == SIGMA and plan.participation == FixedEpochs(3, 5)


def test_a_single_epoch_is_a_single_pass_on_one_tree() -> None:
    plan = private(epsilon=4.0, epochs=1, mechanism="tree").data_loader.plan
    assert plan.participation == SinglePass(3) and plan.mechanism == Tree()


def test_without_shuffling_one_order_is_declared() -> None:
    run = private(epsilon=4.0, epochs=3, shuffle=False)
    assert run.data_loader.plan.participation == FixedEpochs(3, 3, reshuffle=False)
    assert run.data_loader.ids(2).tolist() == list(range(8, 16))


def test_one_pass_keeps_the_order_of_the_data_or_draws_one() -> None:
    """At the same budget; the loader says which."""
    kept = private(epsilon=4.0, epochs=1, shuffle=False)
    drawn = private(epsilon=4.0, epochs=1)
    every = range(1, kept.data_loader.plan.steps + 1)
    ids, other = ([i for t in every for i in run.data_loader.ids(t)] for run in (kept, drawn))
    assert ids == sorted(other) == [*range(len(X))] and ids != other
    assert kept.ledger.epsilon_spent() == drawn.ledger.epsilon_spent()
    assert "shuffle=False" in repr(kept.data_loader)
    assert "shuffle=True" in repr(drawn.data_loader)


def test_the_last_batch_can_be_left_out() -> None:
    run = private(source=data_loader(drop_last=True), epsilon=4.0)
    assert run.data_loader.plan.participation == FixedEpochs(2, 2)
    train(run, 2)


def test_restarts_can_be_chosen() -> None:
    tree = Tree(restart_every=6, complete=True)
    plan = private(epsilon=4.0, epochs=4, mechanism=tree).data_loader.plan
    assert plan.mechanism == tree
    plan = plan_of(
        FixedEpochs(3, 4),
        epsilon=4.0,
        noise_multiplier=None,
        delta=DELTA,
        clip_norm=1.0,
        mechanism=Tree(variant="vanilla", restart_every=None),
        bound="exact",
    )
    assert (plan.mechanism, plan.bound) == (Tree("vanilla"), "exact")


def test_per_layer_clip_norms_make_the_norm_of_the_plan() -> None:
    run = private(clip_norm=[1.0, 2.0, 2.0, 4.0], clipping="per-layer", epsilon=4.0)
    assert run.data_loader.plan.clip_norm == 5.0
    run = private(clip_norm=2.0, clipping="per-layer", epsilon=4.0)
    assert run.data_loader.plan.clip_norm == 2.0
    run = private(clip_norm=2.0, clipping="automatic", gamma=0.1, epsilon=4.0)
    train(run, 2)


def test_rates_of_parameter_groups_are_kept() -> None:
    model = network()
    groups = [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(model.parameters())]
    given = torch.optim.SGD(groups, lr=1.0)
    run = make_private(
        model, given, data_loader(), epsilon=4.0, delta=DELTA, epochs=1, clip_norm=1.0
    )
    rates = [group["lr"] for group in run.optimizer.param_groups]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_the_ledger_counts_and_states_the_declared_epsilon() -> None:
    run = private(noise_multiplier=SIGMA, epochs=4, mechanism=Tree(restart_every=3))
    whole = run.ledger.epsilon_spent()
    so_far = [run.ledger.epsilon_so_far()]
    for _ in range(4):
        train(run, 1)
        so_far.append(run.ledger.epsilon_so_far())
        assert run.ledger.epsilon_spent() == whole
    assert so_far[0] == 0.0 and so_far == sorted(set(so_far)) and so_far[-1] == whole
    for k in range(1, 5):
        plan = replace(run.data_loader.plan, participation=FixedEpochs(3, k))
        assert so_far[k] == plan.epsilon(DELTA)
    assert run.ledger.steps_taken == 12
    with pytest.raises(ValueError, match="all 12 declared steps are taken"):
        iter(run.data_loader)


def test_the_epsilon_so_far_of_other_plans_is_the_declared_one() -> None:
    pattern = FixedEpochs(3, 2)
    for plan in (
        PrivacyPlan(1.0, SIGMA, pattern, mechanism=Tree(tree_lengths=[2, 4])),
        PrivacyPlan(1.0, SIGMA, pattern, mechanism=Tree(restart_every=3, complete=[True, False])),
        PrivacyPlan(1.0, SIGMA, MinSeparation(6, 2, 3)),
    ):
        ledger = TrainingLedger(plan, DELTA)
        ledger.record([1])
        assert ledger.epsilon_so_far() == ledger.epsilon_spent() == plan.epsilon(DELTA)


def test_wrong_calls_in_the_loop_are_refused() -> None:
    run = private(noise_multiplier=SIGMA)
    with pytest.raises(ValueError, match="a step without one"):
        run.optimizer.step()
    batches = iter(run.data_loader)
    _, (x, y) = next(batches)
    with pytest.raises(ValueError, match="missing grad_sample"):
        run.optimizer.step()
    cross_entropy(run.model(x), y).backward()
    with pytest.raises(ValueError, match="closure"):
        run.optimizer.step(lambda: 0.0)
    run.optimizer.step()
    with pytest.raises(ValueError, match="a step without one"):
        run.optimizer.step()
    assert run.ledger.steps_taken == 1
    assert all(p.grad is None for p in run.model.parameters())
    _, (x, y) = next(batches)
    cross_entropy(run.model(x), y).backward()
    run.optimizer.zero_grad()  # changes nothing: the sums are not in p.grad
    run.optimizer.step()
    assert run.ledger.steps_taken == 2


def test_no_gradient_of_the_whole_batch_is_made_and_none_is_taken() -> None:
    model = network()
    run = private(model, noise_multiplier=SIGMA)
    for _, (x, y) in run.data_loader:
        cross_entropy(run.model(x), y).backward()
        assert all(p.grad is None for p in model.parameters())
        break
    weight = next(model.parameters())
    weight.grad = torch.full_like(weight, 1e6)
    with pytest.raises(ValueError, match=r"0\.weight got a gradient outside of its layer"):
        run.optimizer.step()


def test_a_term_of_the_loss_that_passes_no_layer_is_refused() -> None:
    for keep, rates in ((True, {"lr": 0.1, "weight_decay": 0.02}), (False, {"lr": 0.1})):
        model = network()
        run = private(model, rates=rates, noise_multiplier=SIGMA, keep_optimizer=keep)
        _, (x, y) = next(iter(run.data_loader))
        penalty = sum(p.square().sum() for p in model.parameters())
        (cross_entropy(run.model(x), y) + 0.01 * penalty).backward()
        with pytest.raises(ValueError, match=r"0\.weight got .* weight_decay, or DPFTRL l1"):
            run.optimizer.step()
        train(run, 1)  # without it: the penalty is the optimiser's
        assert run.ledger.steps_taken == 3


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"source": data_loader(shuffle=True)}, ValueError, "RandomSampler"),
        ({"source": [1, 2]}, TypeError, "DataLoader"),
        ({"model": nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))}, ValueError, "BatchNorm1d"),
        ({"model": nn.LSTM(4, 3), "grad_sample_mode": "hooks"}, ValueError, "LSTM"),
        ({"optimizer": lambda p, lr: None}, TypeError, "optimizer"),
        ({"optimizer": torch.optim.LBFGS}, ValueError, "LBFGS"),
        ({"optimizer": torch.optim.SparseAdam}, ValueError, "SparseAdam"),
        ({"rates": {"lr": 0.1, "weight_decay": 0.1}}, ValueError, "weight_decay"),
        ({"rates": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1}}, ValueError, "dampening"),
        ({"rates": {"lr": 0.1, "maximize": True}}, ValueError, "maximize"),
        ({"noise_multiplier": None}, ValueError, "either epsilon or noise_multiplier"),
        ({"epsilon": 1.0, "noise_multiplier": 1.0}, ValueError, "either epsilon or noise_mul"),
        ({"epsilon": math.nan}, ValueError, "epsilon"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier"),
        ({"epsilon": 1.0, "delta": 0.0}, ValueError, "delta"),
        ({"epsilon": 1.0, "epochs": 0}, ValueError, "epochs"),
        ({"epsilon": 1.0, "clip_norm": math.nan}, ValueError, "clip_norm"),
        ({"epsilon": 1.0, "clip_norm": [1.0, 1.0], "clipping": "per-layer"}, ValueError, "got 2"),
        ({"epsilon": 1.0, "clipping": "ghost"}, ValueError, "'per-layer'"),
        ({"epsilon": 1.0, "grad_sample_mode": "ghost"}, ValueError, "not offered"),
        (
            {"epsilon": 1.0, "criterion": nn.CrossEntropyLoss(weight=torch.ones(3))},
            ValueError,
            "reduction='sum'",
        ),
        ({"plan": PrivacyPlan(1.0, 1.0, SinglePass(5))}, ValueError, "6 steps"),
        ({"plan": PrivacyPlan(0.5, 9.0, FixedEpochs(3, 2))}, ValueError, "at most the plan's, 0.5"),
        ({"plan": PrivacyPlan(1.0, 9.0, FixedEpochs(3, 2)), "epsilon": 1.0}, ValueError, "both"),
        (
            {
                "plan": PrivacyPlan(1.0, 9.0, FixedEpochs(3, 2)),
                "mechanism": Tree(),
                "bound": "exact",
            },
            ValueError,
            "a plan, or mechanism, bound, got both",
        ),
        ({"plan": 3}, TypeError, "PrivacyPlan, got int"),
        ({"model": nn.Linear(4, 3).double()}, ValueError, "float64 parameters need dtype"),
        ({"plan": PrivacyPlan(1.0, 9.0, SinglePass(6))}, ValueError, "as many participations"),
        (
            {"plan": PrivacyPlan(1.0, 9.0, MinSeparation(6, 1, 3))},
            ValueError,
            "as many participations",
        ),
        (
            {"plan": PrivacyPlan(1.0, 9.0, MinSeparation(6, 2, 4))},
            ValueError,
            "as many participations",
        ),
        (
            {"epsilon": 1.0, "chunk_size": 2, "grad_sample_mode": "hooks"},
            ValueError,
            "chunk_size belongs to",
        ),
    ],
)
def test_bad_arguments_are_refused(
    options: dict[str, Any], error: type[Exception], word: str
) -> None:
    with pytest.raises(error, match=word):
        private(**options)


@pytest.mark.parametrize("way", ["hooks", "vmap"])
def test_what_was_refused_can_be_made_private_again(way: Any) -> None:
    model, mode = network(), {"grad_sample_mode": way, "criterion": nn.CrossEntropyLoss()}
    given = torch.optim.Adam(model.parameters())
    fields: dict[str, Any] = {"delta": DELTA, "epochs": 1, "clip_norm": 1.0, "epsilon": 4.0, **mode}
    with pytest.raises(ValueError, match="must be those of the model"):
        make_private(network(), given, data_loader(), **fields)
    with pytest.raises(TypeError, match="memories"):
        make_private(model, given, data_loader(), **fields, memories=3)
    given.step()  # no hook of a run that came to nothing
    run = make_private(model, given, data_loader(), **fields)
    train(run, 1, way=way)
    assert run.ledger.steps_taken == 3


def test_a_model_with_hooks_is_refused() -> None:
    model = network()
    private(model, noise_multiplier=SIGMA)
    with pytest.raises(ValueError, match="made private before"):
        private(model, noise_multiplier=SIGMA)


@pytest.mark.parametrize("keep", [False, True])
def test_a_scheduler_of_the_optimiser_that_goes_is_refused(keep: bool) -> None:
    model = network()
    given = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(given, 1)
    fields: dict[str, Any] = {"delta": DELTA, "epochs": 1, "clip_norm": 1.0, "epsilon": 4.0}
    if keep:
        make_private(model, given, data_loader(), keep_optimizer=True, **fields)
        return
    with pytest.raises(ValueError, match="no learning-rate scheduler yet"):
        make_private(model, given, data_loader(), **fields)


@pytest.mark.parametrize("keep", [False, True])
def test_noise_and_guard_go_together(keep: bool) -> None:
    run = private(noise_multiplier=SIGMA, keep_optimizer=keep)
    assert (run.noise is run.optimizer) == (not keep)
    train(run, 1)
    assert run.noise.steps_taken == run.ledger.steps_taken == 3
    other = private(noise_multiplier=SIGMA, keep_optimizer=keep)
    other.ledger.load_state_dict(run.ledger.state_dict())  # and not the state of the noise
    _, (x, y) = next(iter(other.data_loader))
    cross_entropy(other.model(x), y).backward()
    with pytest.raises(ValueError, match="the noise must be at step 3"):
        other.optimizer.step()


def test_momentum_must_be_the_same_everywhere() -> None:
    model = network()
    groups = [{"params": [p], "momentum": 0.1 * i} for i, p in enumerate(model.parameters())]
    with pytest.raises(ValueError, match="same momentum"):
        make_private(
            model,
            torch.optim.SGD(groups, lr=0.1),
            data_loader(),
            epsilon=1.0,
            delta=DELTA,
            epochs=1,
            clip_norm=1.0,
        )


def test_a_private_optimiser_is_not_made_private_again() -> None:
    run = private(noise_multiplier=SIGMA)
    with pytest.raises(ValueError, match="got DPFTRL"):
        make_private(
            network(),
            run.optimizer,
            data_loader(),
            epsilon=1.0,
            delta=DELTA,
            epochs=1,
            clip_norm=1.0,
        )


def test_parameters_added_after_the_start_are_refused() -> None:
    run = private(optimizer=torch.optim.Adam, noise_multiplier=SIGMA)
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    _, (x, y) = next(iter(run.data_loader))
    cross_entropy(run.model(x), y).backward()
    with pytest.raises(ValueError, match="the 4 parameters it had at the start"):
        run.optimizer.step()
    assert run.ledger.steps_taken == 0


def test_noise_by_hand_is_refused_once_it_is_shared() -> None:
    """It would be a step ahead of the ids that were admitted."""
    run = private(optimizer=torch.optim.Adam, noise_multiplier=SIGMA)
    for p in run.model.parameters():
        p.grad = torch.zeros_like(p)
    assert isinstance(run.noise, ResidualNoise)
    with pytest.raises(ValueError, match="must come once, in the step of a batch of the loader"):
        run.noise.add_()
    assert run.noise.steps_taken == run.ledger.steps_taken == 0
    train(run, 1)
    assert run.noise.steps_taken == run.ledger.steps_taken == 3


def interrupted(*args: Any, **options: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("owner", [ParameterLayout, FlatNoise, FlatResidual])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_an_interrupted_step_leaves_no_sums(
    monkeypatch: pytest.MonkeyPatch, optimizer: Any, owner: Any
) -> None:
    """Before the noise is begun, while it is made, and while it is added."""
    run = private(optimizer=optimizer, noise_multiplier=SIGMA)
    train(run, 1)
    batches = iter(run.data_loader)
    _, (x, y) = next(batches)
    cross_entropy(run.model(x), y).backward()
    with monkeypatch.context() as patch:
        for name in ("gradients", "step", "residual", "release", "release_"):
            if hasattr(owner, name):
                patch.setattr(owner, name, interrupted)
        if owner is FlatResidual:
            patch.setattr(FlatFTRL, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.optimizer.step()
    assert all(p.grad is None for p in run.model.parameters())
    with pytest.raises(RuntimeError, match="checkpoint"):
        run.optimizer.step()


def test_rates_are_read_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    run = private(noise_multiplier=SIGMA, rates={"lr": 0.1, "momentum": 0.5})
    real, read = optimizer_module.rates_of, []
    monkeypatch.setattr(optimizer_module, "rates_of", lambda group: read.append(1) or real(group))
    train(run, 1)
    assert len(read) == 3 * len(run.optimizer.param_groups)


@pytest.mark.parametrize("rate", [{"lr": -0.1}, {"momentum": 1.5}, {"l1": math.nan}])
def test_a_rate_that_is_refused_costs_no_step(rate: dict[str, float]) -> None:
    run = private(noise_multiplier=SIGMA, rates={"lr": 0.1, "momentum": 0.5})
    group = run.optimizer.param_groups[0]
    before = {name: group[name] for name in rate}
    batches = iter(run.data_loader)
    _, (x, y) = next(batches)
    cross_entropy(run.model(x), y).backward()
    group.update(rate)
    with pytest.raises(ValueError, match=next(iter(rate))):
        run.optimizer.step()
    assert run.ledger.steps_taken == 0
    group.update(before)
    run.optimizer.step()
    assert run.ledger.steps_taken == 1


@pytest.mark.parametrize("processes", [1, 3])
def test_sums_over_processes_have_room_for_each_addition(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    def check_order(order: Any, *, refusal: Exception | None = None) -> None:
        if refusal is not None:
            raise refusal

    ranks = SimpleNamespace(share=lambda value: value, check_order=check_order)
    module = importlib.import_module("dpftrl_fast.torch.make_private")
    monkeypatch.setattr(module, "_ranks", lambda group: (ranks, (0, processes)))
    training = private(clip_norm=0.7, noise_multiplier=SIGMA)
    assert training.data_loader.shard == (0, processes)
    sums = training.data_loader.accumulator
    assert sums is not None
    limit = contribution_limit(0.7, B, roundings=processes, steps=training.optimizer.steps)
    assert sums._shrink == limit / 0.7 < contribution_limit(0.7, B) / 0.7


def test_the_stability_constant_reaches_the_clipping() -> None:
    training = private(clipping="automatic", gamma=0.3, noise_multiplier=SIGMA)
    assert training.data_loader.accumulator is not None
    assert training.data_loader.accumulator.clipping == AutomaticClipping(1.0, 0.3)
