# SPDX-License-Identifier: Apache-2.0
"""A `partial_fit` that goes on, and what its calls are refused for: public facts only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model._targets import ClassTargets, Targets


@dataclass
class Stream:
    """What was declared at the first call, and the engine.

    Attributes
    ----------
    run : Run or None
        The engine, from the first step on.
    parameters : dict
        Checked parameters of the estimator at the first call.
    targets : NumberTargets or ClassTargets
        How targets are encoded.
    units : int
        Rows, or users, of the whole stream: the horizon.
    released : int
        Steps whose model was given out.
    """

    run: Any
    parameters: dict[str, Any]
    targets: Targets
    units: int
    released: int = 0

    def refuse_interrupted(self) -> None:
        """Refuse to go on after a call that took its step and gave out no model."""
        if self.run is not None and self.run.steps_taken != self.released:
            raise RuntimeError(
                f"step {self.run.steps_taken} of this stream was interrupted, or is being taken in "
                "another thread: its rows are in the sums, and it cannot be taken again; a clone "
                "starts anew"
            )

    def refuse_other_size(self, batch: Batch) -> None:
        """Refuse a batch that does not have `batch_size` units; the last may have fewer."""
        size = self.parameters["batch_size"]
        taken = 0 if self.run is None else self.run.steps_taken
        left = self.units - taken * size
        units = len(batch.y) if batch.starts is None else batch.starts.size - 1
        unit = "rows" if batch.starts is None else "users"
        if left > size and units != size:
            raise ValueError(f"a batch must have batch_size={size} {unit}, got {units}")
        if not 1 <= units <= left:
            raise ValueError(
                f"the last batch must have between 1 and {left} {unit}, what is left of the "
                f"horizon, got {units}"
            )


def refuse_another_start(model: Any) -> None:
    """Refuse a stream on an estimator that has a model, but no engine to go on with."""
    if not hasattr(model, "coef_"):
        return
    if model.n_steps_ < model.plan_.steps:
        raise ValueError(
            f"this stream stopped at step {model.n_steps_} of {model.plan_.steps} and cannot go "
            "on: its key and its sums are not kept in pickles and copies; a clone starts anew"
        )
    raise ValueError(
        f"all {model.plan_.steps} declared steps are taken: the epsilon is stated for no more; "
        "a clone starts another run"
    )


def refuse_other_classes(targets: Targets, classes: Any) -> None:
    """Refuse classes at a call of `partial_fit` that are not those of the stream."""
    if classes is None:
        return
    if not isinstance(targets, ClassTargets):
        raise ValueError("classes must be None for a regression, got some")
    if not np.array_equal(np.unique(np.asarray(classes)), targets.classes):
        raise ValueError(
            f"classes must be {targets.classes.tolist()}, as declared, got "
            f"{np.asarray(classes).tolist()}"
        )
