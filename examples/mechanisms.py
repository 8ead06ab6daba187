# SPDX-License-Identifier: Apache-2.0
"""Rank mechanisms for a run, and draw their error against the memory that they need.

No data are read. `python examples/mechanisms.py [figure.png [steps_per_epoch epochs]]`
"""

import sys
from pathlib import Path

import dpftrl_fast as dpf
from dpftrl_fast import accounting as acc
from dpftrl_fast import mechanisms as mech
from dpftrl_fast.plots import Line, Panel, panels_png

figure = Path(sys.argv[1]) if len(sys.argv) > 1 else None
batches, epochs = (int(x) for x in sys.argv[2:4]) if len(sys.argv) > 3 else (100, 10)
EPSILON, DELTA = 8.0, 1e-5
run = acc.FixedEpochs(steps_per_epoch=batches, epochs=epochs)


def error(mechanism: mech.Mechanism, workload: acc.Workload) -> float:
    """Return the root mean square of the noise, in clip norms."""
    sigma = acc.noise_multiplier(EPSILON, DELTA, acc.sensitivity_squared(run, mechanism))
    return sigma * acc.mechanism_error(mechanism, run, workload).rms


panels = []
for momentum in (0.0, 0.9):
    workload = acc.Workload(momentum)
    table = acc.plan_mechanism(EPSILON, DELTA, run, workload=workload)
    print(f"momentum {momentum}:\n{table}\n")
    (tree,) = (row for row in table if isinstance(row.mechanism, mech.Tree))
    kinds: dict[str, tuple[mech.OptimisedKind, list[int]]] = {
        "2, 4, 8, 16 taps, made again": ("taps", [p for p in (2, 4, 8, 16) if p <= batches]),
        "1, 2, 3 buffers": ("buffers", [1, 2, 3]),
        "bands": ("bands", [p for p in (2, 4, 8, 16, 32, 64, 100) if p <= batches]),
    }
    lines = []
    for label, (kind, sizes) in kinds.items():
        found = [mech.optimise(kind, run, workload, size=size) for size in sizes]
        lines.append(
            Line(label, [1 + m.vectors for m in found], [error(m, workload) for m in found])
        )
    lines.append(Line("best tree", [1 + tree.vectors], [tree.rms_std]))
    panels.append(
        Panel(
            "running sums" if momentum == 0 else f"momentum {momentum}",
            "vectors: the noise of the step, and those kept",
            f"rms of the noise (clip norms) at epsilon {EPSILON:g}",
            lines,
            log_x=True,
            reference=("lower bound", table.lower_bound) if table.lower_bound else None,
        )
    )
    if momentum == 0:
        best = table.best
        plan = dpf.PrivacyPlan(1.0, best.noise_multiplier, run, best.mechanism, "released")
        print(f"{plan.describe(delta=DELTA)}\n")

if figure is not None:
    figure.write_bytes(panels_png(panels))
