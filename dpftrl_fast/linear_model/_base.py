# SPDX-License-Identifier: Apache-2.0
"""Base of the private linear estimators: fit, partial_fit, learned attributes and pickling.

An estimator checks its public parameters, makes a plan from them and the number of rows, and feeds
batches to an engine that holds the key and the sums. Learned attributes are set last, from released
iterates only; the engine is never pickled nor copied.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from dpftrl_fast.accounting.statement.statement import Guarantee
from dpftrl_fast.convex.row_batches import Batch, row_norms
from dpftrl_fast.convex.setting_rules import check_settings
from dpftrl_fast.linear_model._messages import showing_no_entry
from dpftrl_fast.linear_model._scaling import scaling_of
from dpftrl_fast.linear_model._stream import (
    TURN,
    Stream,
    refuse_another_start,
    refuse_objects,
    refuse_other_classes,
    stream_batch,
    stream_labels,
    turn_of,
)
from dpftrl_fast.linear_model._targets import ClassTargets, NumberTargets, Targets
from dpftrl_fast.linear_model.callers.announce import announce
from dpftrl_fast.linear_model.callers.budgets import (
    CARRIED,
    Carried,
    Spending,
    carried_on,
    carry_to_clone,
    units_ahead,
)
from dpftrl_fast.linear_model.callers.transformers import announce_transformers
from dpftrl_fast.linear_model.sources.frames import is_typed_frame, rows_of_frame, split_frame
from dpftrl_fast.linear_model.sources.memory import (
    MemoryRows,
    batch_order,
    check_rows,
    check_targets,
    check_weights,
    open_source,
    refuse_bad_rows,
    refuse_bad_weights,
)
from dpftrl_fast.linear_model.sources.source import RowSource, Stepper, join
from dpftrl_fast.rounding import check_summands
from dpftrl_fast.tables.labels import as_labels, comes_from

FloatArray = NDArray[np.float64]

# A caller may have asked NumPy to raise floating-point errors, which would reveal values.
_quiet = np.errstate(all="ignore")
_ROUNDING = 1.0 + 1e-6  # float32 rows at a bound may exceed it by this factor


def store_parameters(estimator: Any, arguments: Mapping[str, Any]) -> None:
    """Store a constructor's arguments unchecked under their names, as scikit-learn requires."""
    for name, value in arguments.items():
        if name not in ("self", "__class__"):
            setattr(estimator, name, value)


class PrivateLinearModel(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the private linear estimators."""

    # ---- steps that an estimator adds ----

    @abstractmethod
    def _targets(self, parameters: Mapping[str, Any], y: Any) -> Targets:
        """Return the encoding of targets; `y` is None where classes must be declared."""

    @abstractmethod
    def _plan(self, parameters: Mapping[str, Any], units: int) -> Any:
        """Return the plan of a run over so many rows (or users)."""

    @abstractmethod
    def _start(
        self, parameters: Mapping[str, Any], units: int, n_features: int, outputs: int
    ) -> Any:
        """Make the plan for so many rows (or users) and return the engine, with a fresh key.

        An engine is a `Stepper` and a `SumStepper` with `plan`, `steps_taken` and `reproducible`;
        its iterates `last`, `average` and `tail` have shape (outputs, columns), the constant column
        being the last.
        """

    def _resolved(
        self, parameters: Mapping[str, Any], units: int, rows: int, n_features: int, outputs: int
    ) -> dict[str, Any]:
        """Return the parameters with numbers in place of "auto", from public facts."""
        return {**parameters}

    def _stepper(self, parameters: Mapping[str, Any], run: Any) -> Stepper:
        """Return the engine, or a meter around it, which takes the batches of a fit."""
        return cast(Stepper, run)

    def _further_attributes(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        stepper: Any,
        source: RowSource | None,
    ) -> dict[str, Any]:
        """Return learned attributes of this estimator only; in a stream `source` is None."""
        return {}

    # ---- fitting ----

    @_quiet
    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, groups: Any = None) -> Any:
        """Fit the model in a run with a fresh key, whose epsilon is `epsilon_`.

        Fitting again is another run; runs on the same rows add their mu^2.

        Parameters
        ----------
        X : (n, p) array, CSR matrix, data frame, pyarrow dataset, path, Dask array or dataframe
            Private rows, in the order in which they are used; their number is public. Frames of
            pandas, polars and pyarrow have columns of numbers. A dataset (or a path to a Parquet
            file or folder) is read batch by batch; Dask rows stay with the workers, which compute
            the sums. See docs/linear_model.md.
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
            For a wrong parameter, array or value, before the first step: nothing has been released
            and the estimator is unchanged. Values of a dataset or of Dask are never refused: a row
            with NaN, null, infinity or an unknown class keeps its slot and counts as zero.
        BudgetExceeded
            If the fit does not fit into a privacy budget (`budget`, or ``with PrivacyBudget(..)``).
            It is charged before the first step, and stays charged if it fails later.
        RuntimeError
            If the number of rows of a dataset changes during the fit. The estimator is unchanged.
        """
        announce_transformers(PrivateLinearModel)
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
            refuse_bad_rows(source.X)
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

    @_quiet
    def partial_fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        classes: Any = None,
    ) -> Any:
        """Take the rows of a stream as they come; its length is declared as `horizon`.

        Row i of the stream is in batch i // `batch_size`, whatever the calls are. Each full batch
        is a step; rows of a batch that is not full yet are held, and no model depends on them. So a
        call takes no step, one or several, and releases a model if it takes any. The last batch has
        the rest of the horizon; `finish` ends a stream before. With groups each call is one batch
        of `batch_size` users (the last at most the rest). Values are never refused: a row with NaN,
        infinity or an unknown class keeps its slot and counts as zero. So does a row whose user is
        missing, as one of a user of its own.

        Parameters
        ----------
        X : (n, p) array, CSR matrix or data frame
        y : (n,) array, or str
            Or the name of a column of a data frame.
        sample_weight : (n,) array, optional
            Weights of the rows; one below 0, or not finite, counts as 0.
        groups : (n,) array_like, optional
            User of every row; a user that took part in an earlier step is refused.
        classes : (k,) array_like, optional
            Classes of a classifier, at the first call, unless its parameter `classes` has them.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            For a wrong shape, dtype or number of rows, rows past the horizon, or a stream that
            cannot continue. Nothing has changed then.
        RuntimeError
            After a call that was interrupted when its rows were in the sums: repeated, they would
            count twice.

        Notes
        -----
        Calls from several threads take turns. Pickles and copies have no held rows.
        """
        with turn_of(self):
            self._partial_fit(*split_frame(X, y, groups), classes, sample_weight)
        return self

    def _partial_fit(self, X: Any, y: Any, groups: Any, classes: Any, weights: Any = None) -> None:
        stream: Stream | None = vars(self).get("_stream")
        first = stream is None
        spending = Spending(self)
        if stream is None:
            refuse_another_start(self)
            stream = self._new_stream(self._checked_parameters(), classes)
            spending.look_ahead(stream.parameters, stream.units)
        stream.refuse_interrupted()
        refuse_objects("X", X)
        if is_classifier(self):
            y = stream_labels(y, stream.targets)
        else:
            refuse_objects("y", y)
        rows = check_rows(X, estimator=self)
        if not first:
            refuse_other_classes(stream.targets, classes)
            validate_data(self, X, reset=False, skip_check_array=True)
        targets = stream.targets
        y = self._check_y(y, len(rows), targets)
        if weights is not None:
            refuse_objects("sample_weight", weights)
            weights = check_weights(weights, len(rows))
        weights = self._row_weights(stream.parameters, targets, y, weights)
        batches, held = stream.cut(stream_batch(rows, targets.encode(y), groups, weights))
        if first:
            p = int(rows.shape[1])
            stream.parameters = self._resolved(
                stream.parameters, stream.units, stream.units, p, targets.outputs
            )
            stream.run = self._start(stream.parameters, stream.units, p, targets.outputs)
        self._advance(stream, batches, X if first else None, spending)
        stream.held, stream.released = held, stream.run.steps_taken
        if first:
            validate_data(self, X, reset=True, skip_check_array=True)
        self._stream = None if stream.released == stream.run.plan.steps else stream

    def _advance(
        self, stream: Stream, batches: Sequence[Batch], X: Any, spending: Spending
    ) -> None:
        """Take a step with each batch and release the model after the last."""
        if not batches:
            return
        targets, run = stream.targets, stream.run
        spending.charge(stream.parameters, run.plan, stream.units, stream)
        for batch in batches:
            run.step(batch)
        further = self._further_attributes(stream.parameters, targets, run, None)
        self._publish(stream.parameters, targets, run, X, 1, further)

    @_quiet
    def finish(self) -> Any:
        """End a stream before its horizon: take a last step with the rows that are held.

        The plan, and so epsilon, stays that of the declared horizon. After the last declared step
        there is nothing left to do.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If no stream has begun, or it cannot continue.
        RuntimeError
            As for `partial_fit`.
        """
        with turn_of(self):
            stream: Stream | None = vars(self).get("_stream")
            if stream is None and not hasattr(self, "coef_"):
                raise ValueError("finish must follow a call of partial_fit, got none")
            if stream is None and self.n_steps_ < self.plan_.steps:
                refuse_another_start(self)
            if stream is not None:
                stream.refuse_interrupted()
                batches = [join(stream.held)] if stream.held else []
                self._advance(stream, batches, None, Spending(self))
                stream.held, stream.released = (), stream.run.steps_taken
                self._stream = None
        return self

    def _checked_parameters(self) -> dict[str, Any]:
        return check_settings(self.get_params(deep=False))

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

    def _check_y(self, y: Any, rows: int, targets: Targets | None = None) -> NDArray[Any]:
        """Return targets of the right length, and in a stream of the declared kind."""
        return check_targets(y, rows, numbers=not is_classifier(self))

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

    def _row_weights(
        self, parameters: Mapping[str, Any], targets: Targets, y: Any, weights: FloatArray | None
    ) -> FloatArray | None:
        """Return the weights of rows with these targets, None if all are 1; never refuse values."""
        return None if weights is None else np.maximum(weights, 0.0)

    def _new_stream(self, parameters: dict[str, Any], classes: Any) -> Stream:
        if parameters["horizon"] is None:
            raise ValueError(
                "horizon must be given for partial_fit, got None: it declares the number of rows "
                "of the whole stream, a public fact"
            )
        if parameters.get("epochs", 1) not in (1, "auto"):
            raise ValueError(f"epochs must be 1 for partial_fit, got {parameters['epochs']}")
        if "epochs" in parameters:
            parameters["epochs"] = 1
        if parameters["batch_size"] == "auto":
            parameters["batch_size"] = self._stream_batch_size(parameters["horizon"])
        if parameters["batch_size"] > parameters["horizon"]:
            raise ValueError(
                "batch_size must be at most the horizon, got "
                f"batch_size={parameters['batch_size']} for horizon={parameters['horizon']}"
            )
        if classes is not None and parameters.get("classes") is None:
            parameters["classes"] = classes
        steps = -(-parameters["horizon"] // parameters["batch_size"])
        check_summands("horizon", parameters["horizon"], steps)
        targets = self._targets(parameters, None)
        refuse_other_classes(targets, classes)
        return Stream(None, parameters, targets, parameters["horizon"])

    @abstractmethod
    def _stream_batch_size(self, horizon: int) -> int:
        """Return the batch size that "auto" stands for in a stream of so many rows or users."""

    def _progress(self, parameters: Mapping[str, Any], run: Any) -> Any:
        def quiet() -> None:
            pass

        def spoken() -> None:
            done, steps = run.steps_taken, run.plan.steps
            if done == steps or done % max(1, steps // 10) == 0:
                print(f"step {done} of {steps}")  # public facts only

        return spoken if parameters.get("verbose", 0) else quiet

    # ---- learned attributes ----

    def _publish(
        self,
        parameters: Mapping[str, Any],
        targets: Targets,
        run: Any,
        X: Any,
        epochs: int,
        further: Mapping[str, Any],
    ) -> None:
        learned: dict[str, Any] = dict(further)
        constant = self._constant(parameters)
        iterates = {"last": run.last, "all": run.average, "tail": run.tail}
        for average, suffix in (("last", "last_"), ("all", "average_"), ("tail", "tail_")):
            coef, intercept = self._split(iterates[average], constant, targets)
            learned[f"coef_{suffix}"], learned[f"intercept_{suffix}"] = coef, intercept
            if average == parameters["average"]:
                learned["coef_"], learned["intercept_"] = coef, intercept
        plan = run.plan
        learned |= {
            "plan_": plan,
            "epsilon_": plan.epsilon(parameters["delta"]),
            "delta_": parameters["delta"],
            "noise_multiplier_": plan.noise_multiplier,
            "sensitivity_squared_": plan.sensitivity_squared,
            "n_steps_": run.steps_taken,
            "n_iter_": epochs,
            "reproducible_": run.reproducible,
        }
        if isinstance(targets, ClassTargets):
            learned["classes_"] = targets.classes
        kept = {*learned, "n_features_in_", "feature_names_in_"}
        if isinstance(X, RowSource):
            learned["n_features_in_"] = X.n_features
            if X.feature_names is not None:
                learned["feature_names_in_"] = np.array(X.feature_names, dtype=object)
            kept = {*learned}
        elif X is not None:
            validate_data(self, X, reset=True, skip_check_array=True)
        for name in [*vars(self)]:
            if name.endswith("_") and not name.startswith("_") and name not in kept:
                delattr(self, name)  # from an earlier run
        self.__dict__.update(learned)  # at once: an interruption mixes no two runs

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of the fitted run, for `dpftrl_fast.accounting.compose`."""
        check_is_fitted(self)
        found: Guarantee = self.plan_.guarantee
        return found

    def _constant(self, parameters: Mapping[str, Any]) -> float:
        """Return the entry of the constant column, 0 without one."""
        if not parameters.get("fit_intercept", False):
            return 0.0
        return float(parameters["intercept_scaling"])

    def _split(
        self, matrix: FloatArray, constant: float, targets: Targets
    ) -> tuple[FloatArray, Any]:
        """Return coefficients and intercept in scikit-learn's shapes and the targets' units."""
        coef = matrix if constant == 0.0 else matrix[:, :-1]
        intercept = np.zeros(len(matrix)) if constant == 0.0 else matrix[:, -1] * constant
        if isinstance(targets, ClassTargets):
            return coef.copy(), intercept
        assert isinstance(targets, NumberTargets)
        scale, centre = targets.scale, targets.centre
        return coef[0] * scale, float(intercept[0] * scale + centre)

    # ---- using the model ----

    def _linear(self, X: Any) -> FloatArray:
        """Return <x, coef> + intercept."""
        check_is_fitted(self)
        with showing_no_entry("X"):
            if is_typed_frame(X):
                validate_data(self, X, reset=False, skip_check_array=True)
                X = check_array(rows_of_frame(X), dtype=[np.float64, np.float32])
            else:
                X = validate_data(
                    self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32]
                )
        return np.asarray(X @ self.coef_.T + self.intercept_, dtype=np.float64)

    def clipping_report(self, X: Any, y: Any) -> dict[str, Any]:
        """Count the rows and targets beyond the bounds: computed from private rows, NOT PRIVATE.

        Parameters
        ----------
        X, y : arrays

        Returns
        -------
        dict
            ``private`` (False), ``rows``, ``invalid_rows`` (they count as zero),
            ``rows_beyond_x_norm_bound`` and ``targets_beyond_y_bound``, by more than rounding.
        """
        parameters = self._checked_parameters()
        rows = check_rows(X, estimator=self)
        y = self._check_y(y, len(rows))
        norms = row_norms(rows)
        invalid = ~np.isfinite(norms)
        report: dict[str, Any] = {"private": False, "rows": len(rows)}
        if not is_classifier(self):
            invalid |= ~np.isfinite(y).reshape(len(rows), -1).all(axis=1)
        report["invalid_rows"] = int(np.sum(invalid))
        x_bound, y_bounds = parameters.get("x_norm_bound"), parameters.get("y_bound")
        if x_bound is not None:
            report["rows_beyond_x_norm_bound"] = int(np.sum(norms[~invalid] > x_bound * _ROUNDING))
        if y_bounds is not None:
            several = y_bounds if isinstance(y_bounds, list) else [y_bounds]
            centres, scales = np.array([scaling_of(bounds) for bounds in several]).T
            columns = y.reshape(len(rows), -1)[~invalid]
            far = np.abs(columns - centres) > scales * _ROUNDING
            report["targets_beyond_y_bound"] = int(np.sum(far))
        return report

    # ---- scikit-learn's protocol ----

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "coef_")

    def __sklearn_tags__(self) -> Any:
        announce(self, PrivateLinearModel)
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.noise_seed is None
        return tags

    def __sklearn_clone__(self) -> Any:
        announced = announce(self, PrivateLinearModel)
        clone = super().__sklearn_clone__()
        carry_to_clone(self, clone, announced=announced)
        return clone

    def __getstate__(self) -> dict[str, Any]:
        """Return the model only: no engine, and no attribute that is not private."""
        state: dict[str, Any] = dict(super().__getstate__())
        for name in ("_stream", TURN, "regret_", CARRIED):
            state.pop(name, None)
        carried = carried_on(self)
        return {**state, CARRIED: carried} if carried != Carried() else state
