# SPDX-License-Identifier: Apache-2.0
"""Base of the private linear estimators, with their fits.

An estimator checks its public parameters, makes a plan from them and the number of rows, and feeds
batches to an engine that holds the key and the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sklearn.base import is_classifier

from dpftrl_fast.linear_model._kept_streams import KeptModel
from dpftrl_fast.linear_model._stream import (
    Stream,
    turn_of,
)
from dpftrl_fast.linear_model._streaming import quiet
from dpftrl_fast.linear_model._targets import Targets
from dpftrl_fast.linear_model.callers.announce import announce_in_worker
from dpftrl_fast.linear_model.callers.budgets import (
    Spending,
    units_ahead,
)
from dpftrl_fast.linear_model.callers.transformers import announce_transformers
from dpftrl_fast.linear_model.sources.frames import split_frame
from dpftrl_fast.linear_model.sources.memory import (
    MemoryRows,
    batch_order,
    check_rows,
    check_weights,
    open_source,
    refuse_bad_weights,
)
from dpftrl_fast.linear_model.sources.source import RowSource
from dpftrl_fast.rounding import check_summands
from dpftrl_fast.tables.labels import as_labels, comes_from


def store_parameters(estimator: Any, arguments: Mapping[str, Any]) -> None:
    """Store a constructor's arguments unchecked under their names, as scikit-learn requires."""
    for name, value in arguments.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)


class PrivateLinearModel(KeptModel):
    """Base of the private linear estimators."""

    @quiet
    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None) -> Any:
        """Fit the model in a run with a fresh key, whose epsilon is `epsilon_`.

        Fitting again is another run; runs on the same rows add their mu^2.

        Parameters
        ----------
        X : (n, p) array, CSR matrix, data frame, pyarrow dataset, path, Dask array or dataframe
            Private rows, in the order in which they are used; their number is public. Frames of
            pandas, polars and pyarrow have columns of numbers. A dataset (or a path to a Parquet
            file or folder) is read batch by batch; Dask rows stay with the workers, which compute
            the sums. See docs/sklearn/linear_model.md.
        y : (n,) array, or str
            Private targets; with a dataset or a dataframe the name of their column. All other
            columns are features.
        sample_weight : (n,) array_like, optional
            Weights of the rows, finite and >= 0, private as these are: the gradient of a row is
            multiplied by its weight, and clipped after that. They need rows in memory.
        groups : (n,) array_like or str, optional
            User of every row, for a guarantee per user: `batch_size` counts users, each is in one
            step a pass with all rows, and the sum of a user's gradients is clipped. The number of
            users is public. With a dataset the name of a column, in which each user's rows are
            adjacent; not for Dask.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            For a wrong parameter, array or value: nothing has been released and the estimator is
            unchanged. Values of a dataset or of Dask are never refused: a row
            with NaN, null, infinity or an unknown class keeps its slot and counts as zero.
        BudgetExceeded
            If the fit does not fit into a privacy budget (`budget`, or ``with PrivacyBudget(..)``).
            It is charged before the first step, and stays charged if it fails later.
        RuntimeError
            If the number of rows of a dataset changes during the fit. The estimator is unchanged.
        """
        announce_transformers(PrivateLinearModel)
        announce_in_worker(self, PrivateLinearModel)
        with turn_of(self):
            self._fit(*split_frame(X, y, groups), sample_weight)
        return self

    def _fit(self, X: Any, y: Any, groups: Any, weights: Any = None) -> None:
        parameters = self._checked_parameters()
        spending = Spending(self)
        spending.look_ahead(parameters, units_ahead(X, groups))
        source = self._open(parameters, X, y, groups)
        labels = source.y if isinstance(source, MemoryRows) else None
        targets = self._targets(parameters, labels)
        targets.refuse_kind(source.label_kind)
        if isinstance(source, MemoryRows):
            in_steps = self._checks_in_steps(parameters, source) and not spending.is_charged
            source.refuse_bad_rows(in_steps=in_steps)
            targets.refuse_bad(source.y)
        source = self._weighted(parameters, source, targets, weights)
        parameters = self._resolved(
            parameters, source.units, source.rows, source.n_features, targets.outputs
        )
        batch_size, epochs = parameters["batch_size"], parameters.get("epochs", 1)
        unit = "users" if groups is not None else "rows"
        if batch_size > source.units:
            raise ValueError(
                f"batch_size must be at most the number of {unit}, got batch_size={batch_size} "
                f"for n_samples={source.units}"
            )
        shuffle = parameters.get("shuffle", False)
        steps = epochs * -(-source.units // batch_size)
        check_summands(f"{unit} of all epochs", epochs * source.units, steps)
        run = self._start(parameters, source.units, source.n_features, targets.outputs)
        order = batch_order(
            source.units,
            batch_size,
            epochs,
            getattr(run.plan, "layout", None),
            shuffle=shuffle,
            random_state=parameters.get("random_state"),
        )
        stepper = self._stepper(parameters, run)
        spending.charge(parameters, run.plan, source.units)
        source.feed(stepper, order, targets.encode, self._progress(parameters, run))
        further = self._further_attributes(parameters, targets, stepper, source)
        seen = X if isinstance(source, MemoryRows) else source
        self._stream: Stream | None = None
        self._publish(parameters, targets, run, seen, epochs, further)

    def _checks_in_steps(self, parameters: Mapping[str, Any], source: MemoryRows) -> bool:
        """Return whether bad rows are refused when a step meets them.

        Nothing may be told before that: not by progress shown, nor by a budget that was charged.
        """
        return False

    def _open(self, parameters: Mapping[str, Any], X: Any, y: Any, groups: Any) -> RowSource:
        numbers, shuffle = not is_classifier(self), parameters.get("shuffle", False)
        source = open_source(X, y, groups, numbers=numbers, shuffle=shuffle)
        if source is not None:
            if parameters["compute_regret"]:
                raise ValueError("compute_regret needs rows in memory, got a source of batches")
            return source
        rows = check_rows(X, estimator=self)
        if len(rows) == 0:
            raise ValueError(f"X must hold at least 1 row, got shape {rows.shape}")
        if not numbers and (hasattr(y, "dtype") or comes_from(y, "pyarrow")):
            y = as_labels(y)  # it may hold text that is not valid, which a conversion would show
        y = self._check_y(y, len(rows))
        return MemoryRows(rows, y, groups)

    def _weighted(
        self, parameters: Mapping[str, Any], source: RowSource, targets: Targets, weights: Any
    ) -> RowSource:
        """Return the rows with their weights, which are checked before the first step."""
        if isinstance(source, MemoryRows):
            if weights is not None:
                weights = check_weights(weights, len(source.X))
                refuse_bad_weights(weights)
            found = self._row_weights(parameters, targets, source.y, weights)
            if found is not None and parameters["compute_regret"]:
                raise ValueError("compute_regret must be False with weights of rows, got True")
            return source if found is None else source.with_weights(found)
        if weights is not None:
            raise ValueError("sample_weight must be None unless rows are in memory, got some")
        return source

    def _progress(self, parameters: Mapping[str, Any], run: Any) -> Any:
        def quiet() -> None:
            pass

        def spoken() -> None:
            done, steps = run.steps_taken, run.plan.steps
            if done == steps or done % max(1, steps // 10) == 0:
                print(f"step {done} of {steps}")  # public facts only

        return spoken if parameters.get("verbose", 0) else quiet
