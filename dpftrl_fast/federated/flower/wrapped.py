# SPDX-License-Identifier: Apache-2.0
"""`StrategyUpdate`: the aggregation of a Flower strategy as the server's update rule.

The strategy sees one reply a round: the model plus the noised mean update. Its step is
post-processing of a private value, and costs no privacy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.fedopt import FedOpt
from numpy.typing import NDArray

from dpftrl_fast.federated.flower.records import Arrays, array_record, arrays_of
from dpftrl_fast.federated.sums.layout import ModelLayout

Vector = NDArray[np.float64]

# Flower's own strategies whose step is a function of the model and of one mean update, and the
# attributes that each keeps from round to round.
_MEMORY: dict[type[Strategy], tuple[str, ...]] = {
    flower.FedAvg: (),
    flower.FedProx: (),
    flower.FedAvgM: ("momentum_vector",),
    flower.FedAdagrad: ("m_t", "v_t"),
    flower.FedAdam: ("m_t", "v_t"),
    flower.FedYogi: ("m_t", "v_t"),
}
_SAMPLING = frozenset(vars(flower.FedAvg()))  # selection of nodes, and names of records
_OWN_MEMORY = ("state_dict", "load_state_dict")


def check_wrapped(strategy: Strategy, *, resumes: bool) -> None:
    """Refuse a strategy whose aggregation cannot work on one noised mean.

    These are Flower's strategies that need the single updates (medians, trimmed means, Krum,
    Bulyan, q-FedAvg, XGBoost) or add their own noise, and, in a run that resumes, custom ones
    without methods that save their memory.
    """
    rule = aggregates_as(strategy)
    if rule.__module__.startswith("flwr.") and rule not in _MEMORY:
        raise ValueError(
            f"aggregate='strategy' must have a strategy whose step needs one mean update only "
            f"({', '.join(sorted(known.__name__ for known in _MEMORY))}), got one that aggregates "
            f"as {rule.__name__}"
        )
    if resumes and rule not in _MEMORY and not all(hasattr(strategy, m) for m in _OWN_MEMORY):
        raise ValueError(
            f"a custom strategy must have {' and '.join(_OWN_MEMORY)} to resume from a folder, "
            f"got {type(strategy).__name__}"
        )


class StrategyUpdate:
    """A `ServerUpdate` that asks a Flower strategy, checked by `check_wrapped`, for the next model.

    The memory that Flower's own strategies have of another run is cleared.
    """

    release: ClassVar[Literal["sum", "residual"]] = "residual"

    def __init__(
        self,
        strategy: Strategy,
        layout: ModelLayout,
        theta_0: Vector,
    ) -> None:
        self._strategy = strategy
        for name in _MEMORY.get(aggregates_as(strategy), ()):
            setattr(strategy, name, None)
        shapes = zip(layout.names, layout.shapes, strict=True)
        # The strategy computes in float64, whatever the model's dtypes.
        self._layout = ModelLayout({name: np.empty(shape) for name, shape in shapes})
        self._theta = np.array(theta_0, np.float64)
        self._steps = 0

    @property
    def theta(self) -> Vector:
        """The current model; to be read only."""
        return self._theta

    def step(self, value: Vector) -> None:
        """Take a step with the noised mean update of a round.

        Raises
        ------
        RuntimeError
            If the strategy returns no model, or one of other names or shapes.
        """
        strategy, before = self._strategy, self._layout.unflatten(self._theta)
        # Set here, in float64, and not by configure_train: a round that is replayed after a crash
        # is not configured again.
        if isinstance(strategy, flower.FedAvgM):
            strategy.current_arrays = array_record(before)
        elif isinstance(strategy, FedOpt):
            strategy.current_arrays = before
        # A warning would reveal something about a value.
        with np.errstate(all="ignore"), _without_metrics(strategy):
            after = self._layout.unflatten(self._theta + value)
            arrays, _ = strategy.aggregate_train(self._steps + 1, [self._reply(after)])
            self._theta = self._vector(arrays)
        self._steps += 1

    def options(self) -> dict[str, Any]:
        """Return the name and settings of the rule, JSON-able."""
        memory = self._remembered()
        left_out = _SAMPLING.union(memory if isinstance(memory, Mapping) else ())
        numbers = {
            name: value
            for name, value in sorted(vars(self._strategy).items())
            if type(value) in (bool, int, float, str) and name not in left_out
        }
        return {
            "optimizer": f"flower {aggregates_as(self._strategy).__name__}",
            "settings": numbers,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return model, number of steps, and the strategy's memory."""
        return {"theta": self._theta, "steps": self._steps, "strategy": self._remembered()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the same strategy."""
        self._theta, self._steps = np.array(state["theta"], np.float64), int(state["steps"])
        strategy, memory = self._strategy, state["strategy"]
        if aggregates_as(strategy) in _MEMORY:
            for name, value in memory.items():
                setattr(strategy, name, value)
        elif hasattr(strategy, "load_state_dict"):
            strategy.load_state_dict(memory)

    def _remembered(self) -> Any:
        strategy = self._strategy
        if (names := _MEMORY.get(aggregates_as(strategy))) is not None:
            return {name: _arrays(getattr(strategy, name)) for name in names}
        return strategy.state_dict() if hasattr(strategy, "state_dict") else None

    def _reply(self, arrays: Arrays) -> Message:
        strategy = self._strategy
        weight = getattr(strategy, "weighted_by_key", "num-examples")
        content = RecordDict(
            {
                getattr(strategy, "arrayrecord_key", "arrays"): array_record(arrays),
                "metrics": MetricRecord({weight: 1.0}),
            }
        )
        return Message(content, dst_node_id=0, message_type=MessageType.TRAIN)

    def _vector(self, record: ArrayRecord | None) -> Vector:
        arrays = {} if record is None else arrays_of(record)
        if (problem := self._layout.problem(arrays)) is not None:
            name = type(self._strategy).__name__
            raise RuntimeError(
                f"{name}.aggregate_train must return the model, got one that {problem}"
            )
        return self._layout.flatten(arrays)


@contextmanager
def _without_metrics(strategy: Strategy) -> Iterator[None]:
    """Replace the aggregation of client metrics while a reply without any is aggregated."""
    if not isinstance(strategy, flower.FedAvg):
        yield
        return
    function = strategy.train_metrics_aggr_fn
    strategy.train_metrics_aggr_fn = lambda *_: MetricRecord()
    try:
        yield
    finally:
        strategy.train_metrics_aggr_fn = function


def _arrays(value: Any) -> Any:
    """Return a memory with 0-d arrays in place of NumPy's scalars."""
    if isinstance(value, dict):
        return {name: _arrays(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_arrays(entry) for entry in value]
    return None if value is None else np.array(value)


def aggregates_as(strategy: Strategy) -> type[Strategy]:
    """Return the class that defines the strategy's `aggregate_train`."""
    for base in type(strategy).__mro__:
        if "aggregate_train" in vars(base):
            return base
    return type(strategy)
