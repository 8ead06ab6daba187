# SPDX-License-Identifier: Apache-2.0
"""The server: the plan, and the private strategy around FedAvg."""

from __future__ import annotations

from math import ceil, nan

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dpftrl_fast import PrivacyPlan, accounting
from dpftrl_fast.federated.flower import AskClients, DPFTRLStrategy
from private_app import task

app = ServerApp()


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the released model on public test data, on the server."""
    model = {name: array.numpy() for name, array in arrays.items()}
    return MetricRecord({"accuracy": task.accuracy(model)})


def up(epsilon: float) -> str:
    """Return an epsilon with three decimals, rounded up."""
    return f"{ceil(1000 * epsilon) / 1000:.3f}"


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    delta = float(config["delta"])
    plan = PrivacyPlan.calibrate(
        epsilon=float(config["epsilon"]),
        delta=delta,
        clip_norm=float(config["clip-norm"]),
        participation=accounting.MinSeparation(
            int(config["rounds"]), int(config["max-uses"]), int(config["min-separation"])
        ),
        workload=accounting.Workload(momentum=float(config["momentum"])),
    )
    size = int(config["cohort-size"])
    strategy = DPFTRLStrategy(
        # It is offered `cohort_size` nodes that may take part now, and takes all of them.
        FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=size),
        plan=plan,
        report_goal=int(config["report-goal"]),
        delta=delta,
        client_id=AskClients(),
        cohort_size=size,
        learning_rate=float(config["learning-rate"]),
        momentum=float(config["momentum"]),
        folder=str(config["folder"]) or None,
    )
    model = ArrayRecord({name: Array(array) for name, array in task.initial_model().items()})
    with strategy:
        result = strategy.start(grid, model, evaluate_fn=evaluate)
        # None where so little noise hides no replacement at this delta.
        replaced = strategy.server.replace_one(delta)
        other = "none" if replaced is None else up(replaced)
        last = result.evaluate_metrics_serverapp.get(strategy.rounds_done, {})
        print(
            f"after {strategy.rounds_done} rounds: epsilon {up(strategy.epsilon_spent())} at delta "
            f"{delta} (replace-one {other}), accuracy {last.get('accuracy', nan):.3f}",
            flush=True,
        )
