# SPDX-License-Identifier: Apache-2.0
"""``dpftrl-fast epsilon`` and ``calibrate``: the guarantee of a run, without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import dpftrl_fast.accounting as accounting
from dpftrl_fast.cli.options import Budget, Delta, Json
from dpftrl_fast.cli.output import (
    NEIGHBOURS,
    UNIT,
    facts_table,
    friendly,
    guarantee_facts,
    print_json,
    rounded_up,
    show,
)
from dpftrl_fast.cli.patterns import (
    BatchSize,
    Bound,
    BoundOption,
    Complete,
    Epochs,
    MaxParticipations,
    MinSeparationOption,
    Order,
    Pattern,
    Reshuffle,
    Rows,
    Steps,
    StepsPerEpoch,
    Variant,
    VariantOption,
    completion,
    given,
)
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

RestartEvery = Annotated[int | None, typer.Option(help="Period of tree restarts, in steps.")]
RestartEpochs = Annotated[int | None, typer.Option(help="Period of tree restarts, in epochs.")]
CompleteOption = Annotated[
    Complete, typer.Option(help="Trees that are completed to the next power of two.")
]
Dimension = Annotated[
    int | None,
    typer.Option(help="Coordinates of the sums: state epsilon for computed float64 noise as well."),
]

_COMPARED_STEPS = 20_000  # the best mechanism of more takes too long for a line of text

_BESIDE_A_PLAN = {"plan", "noise_multiplier", "delta", "dimension", "json_"}


@friendly
def epsilon(
    ctx: typer.Context,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Sigma in units of the clip norm. Default: that of --plan."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(
            help="File of plan --out or PrivacyPlan.save: its pattern and mechanism, in place of "
            "all other options of the run."
        ),
    ] = None,
    steps: Steps = None,
    rows: Rows = None,
    batch_size: BatchSize = 1,
    steps_per_epoch: StepsPerEpoch = None,
    epochs: Epochs = None,
    reshuffle: Reshuffle = True,
    max_participations: MaxParticipations = None,
    min_separation: MinSeparationOption = None,
    order: Order = None,
    restart_every: RestartEvery = None,
    restart_epochs: RestartEpochs = None,
    complete: CompleteOption = Complete.none,
    variant: VariantOption = Variant.honaker,
    bound: BoundOption = Bound.exact,
    delta: Delta = 1e-6,
    dimension: Dimension = None,
    json_: Json = False,
) -> None:
    """State the epsilon of a run with a given noise multiplier.

    By default the run is a single pass on one tree. --plan takes the pattern and the mechanism of a
    saved plan. No data are read.
    """
    if plan is not None:
        _refuse_beside_a_plan(ctx)
        loaded = PrivacyPlan.load(plan)
        if noise_multiplier is not None:
            loaded = loaded.with_noise(noise_multiplier)
        _report(loaded, delta, dimension, json_)
        return
    if noise_multiplier is None:
        raise ValueError("one of --noise-multiplier and --plan must be given, got none")
    pattern = Pattern(steps, rows, batch_size, steps_per_epoch, epochs, reshuffle,
                      max_participations, min_separation, order)  # fmt: skip
    declared = PrivacyPlan(
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        participation=pattern.participation(),
        mechanism=Tree(
            variant.value,
            pattern.period(restart_every, restart_epochs),
            complete=completion(complete),
        ),
        bound=bound.value,
    )
    _report(declared, delta, dimension, json_)


def _refuse_beside_a_plan(ctx: typer.Context) -> None:
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in _BESIDE_A_PLAN and given(ctx, name):
            raise ValueError(f"--plan declares the whole run, got {parameter.opts[0]} too")


@friendly
def calibrate(
    epsilon: Budget,
    steps: Steps = None,
    rows: Rows = None,
    batch_size: BatchSize = 1,
    steps_per_epoch: StepsPerEpoch = None,
    epochs: Epochs = None,
    reshuffle: Reshuffle = True,
    max_participations: MaxParticipations = None,
    min_separation: MinSeparationOption = None,
    order: Order = None,
    restart_every: RestartEvery = None,
    restart_epochs: RestartEpochs = None,
    complete: CompleteOption = Complete.none,
    variant: VariantOption = Variant.honaker,
    bound: BoundOption = Bound.exact,
    delta: Delta = 1e-6,
    dimension: Dimension = None,
    json_: Json = False,
) -> None:
    """Find the least noise multiplier of a tree for a budget.

    By default the run is a single pass on one tree. The best mechanism, as PrivacyPlan.calibrate of
    Python chooses it, often has half the noise: use "plan". No data are read.
    """
    pattern = Pattern(steps, rows, batch_size, steps_per_epoch, epochs, reshuffle,
                      max_participations, min_separation, order)  # fmt: skip
    plan = PrivacyPlan.calibrate(
        epsilon=epsilon,
        delta=delta,
        clip_norm=1.0,
        participation=pattern.participation(),
        mechanism=Tree(
            variant.value,
            pattern.period(restart_every, restart_epochs),
            complete=completion(complete),
        ),
        bound=bound.value,
    )
    _report(plan, delta, dimension, json_, None if json_ else _less_noise(plan, epsilon, delta))


def _less_noise(plan: PrivacyPlan, epsilon: float, delta: float) -> str | None:
    """Return the noise of a plan of a tree beside that of the best mechanism; None if no less."""
    if plan.steps > _COMPARED_STEPS:
        return None
    best = PrivacyPlan.calibrate(
        epsilon=epsilon, delta=delta, clip_norm=1.0, participation=plan.participation
    )
    own, other = (
        accounting.mechanism_error(one.mechanism, one.participation).rms * one.noise_multiplier
        for one in (plan, best)
    )
    if not other < own:
        return None
    return (
        f"a tree, with noise of {own:.4g} clip norms (rms) in a running sum; "
        f'"plan" finds one with at most {other:.4g} for this pattern'
    )


def _report(
    plan: PrivacyPlan,
    delta: float,
    dimension: int | None,
    json_: bool,
    mechanism: str | None = None,
) -> None:
    zeta = plan.sensitivity_squared
    epsilon = plan.epsilon(delta)  # refuses a delta at or below the floor
    stated = plan.guarantee.at(delta)
    computed = None if dimension is None else plan.computed_epsilon(delta, dimension)
    sigma, squared = stated.as_one()
    rdp = accounting.epsilon(sigma, squared, stated.mechanism_delta(delta), method="rdp")
    facts: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": delta,
        "neighbours": NEIGHBOURS,
        "epsilon_replace_one": plan.replace_one(delta),
        "epsilon_rdp": rdp,
        "noise_multiplier": plan.noise_multiplier,
        "sensitivity_squared": zeta,
        "steps": plan.steps,
        "trees": plan.layout.count,
        **plan.layout.noise_declaration(),
        "bound": plan.bound,
        "delta_floor": plan.delta_floor,
        "dimension": dimension,
        "epsilon_computed": computed,
    }
    if json_:
        print_json(facts)
        return
    lines = guarantee_facts(plan, delta, UNIT)
    del lines["clip norm"]
    if computed is not None:
        words = f"with computed float64 noise in {dimension} coordinates"
        lines["epsilon, computed"] = f"{rounded_up(computed)}  ({words})"
    lines["epsilon by RDP"] = f"{rounded_up(rdp)}  (the looser accounting of the paper)"
    if isinstance(plan.mechanism, Tree):
        general = 'a tree; "plan" ranks all, "epsilon --plan FILE" states theirs'
        lines["mechanism"] = mechanism or general
    show(facts_table(lines))
