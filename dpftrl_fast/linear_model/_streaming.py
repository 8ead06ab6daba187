# SPDX-License-Identifier: Apache-2.0
"""Streams of a private linear estimator: `partial_fit` and `finish`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import validate_data

from dpftrl_fast.accounting.guard.ids import user_id
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.linear_model._model import ReleasedModel
from dpftrl_fast.linear_model._stream import (
    JOURNAL,
    Stream,
    refuse_another_start,
    refuse_objects,
    refuse_other_classes,
    stream_batch,
    stream_labels,
    turn_of,
)
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.linear_model._stream_state import features_of, identity_of, state_of
from dpftrl_fast.linear_model.callers.budgets import (
    Spending,
)
from dpftrl_fast.linear_model.sources.frames import split_frame
from dpftrl_fast.linear_model.sources.memory import (
    check_rows,
    check_weights,
)
from dpftrl_fast.linear_model.sources.source import join
from dpftrl_fast.rounding import check_summands

# A caller may have asked NumPy to raise floating-point errors, which would reveal values.
quiet = np.errstate(all="ignore")


class StreamedModel(ReleasedModel):
    """Base of the private linear estimators: their streams."""

    @quiet
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
            count twice. Also :class:`dpftrl_fast.run.Diverged` of a stream that `keep_stream` has
            resumed: a step that was written ahead before came with other rows.

        Notes
        -----
        Calls from several threads take turns. Pickles and copies have no held rows. `keep_stream`
        keeps a stream in a folder, from which a killed process continues.
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
            kept = vars(self).get(JOURNAL)
            stream = self._new_stream(self._checked_parameters(), classes, kept)
            spending.look_ahead(stream.parameters, stream.units)
        stream.refuse_interrupted()
        journal = stream.journal
        if journal is not None:
            journal.refuse_unread()
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
        stand_in = None if journal is None else partial(journal.stand_in, stream.released + 1)
        encoded = targets.encode(y)
        id_of = user_id if journal is None else journal.id_of
        batches, held = stream.cut(stream_batch(rows, encoded, groups, weights, stand_in, id_of))
        if first:
            p = int(rows.shape[1])
            stream.parameters = self._resolved(
                stream.parameters, stream.units, stream.units, p, targets.outputs
            )
            stream.run = self._start(stream.parameters, stream.units, p, targets.outputs)
            if journal is not None:
                stream.features = features_of(X, p)
        self._advance(stream, batches, X if first else None, spending)
        stream.held, stream.released = held, stream.run.steps_taken
        if journal is not None:
            journal.moved(stream.taken, stream.waiting)
        if first:
            validate_data(self, X, reset=True, skip_check_array=True)
        self._stream: Stream | None = stream
        if stream.released == stream.run.plan.steps:
            self._end(stream)

    def _advance(
        self,
        stream: Stream,
        batches: Sequence[Batch],
        X: Any,
        spending: Spending,
        *,
        finished: bool = False,
    ) -> None:
        """Take a step with each batch and release the model after the last."""
        if not batches:
            return
        run, journal = stream.run, stream.journal
        if journal is not None and not stream.begun:
            journal.begin(state_of(stream, finished=False))  # the key, before anything has it
            run.admission.write_ahead, stream.begun = journal.write_ahead, True
        spending.charge(stream.parameters, run.plan, stream.units, stream)
        for batch in batches:
            run.step(batch)
            stream.taken += len(batch.y) if batch.starts is None else batch.starts.size - 1
        self._release(stream, X, finished=finished)

    def _release(
        self, stream: Stream, X: Any, *, finished: bool = False, resumed: bool = False
    ) -> None:
        """Release the model of the steps so far; unless it is resumed, a folder has it before."""
        run, targets, journal = stream.run, stream.targets, stream.journal
        further = self._further_attributes(stream.parameters, targets, run, None)
        if journal is not None and not resumed:
            journal.before_release(run.steps_taken, partial(state_of, stream, finished=finished))
        if journal is not None and journal.forked:
            further = {**further, "epsilon_": math.inf}  # none can be stated
        self._publish(stream.parameters, targets, run, X, 1, further)

    def _end(self, stream: Stream) -> None:
        """End a stream after its last step, and release its folder."""
        self._stream = None
        if stream.journal is not None:
            stream.journal.moved(stream.taken, 0)
            stream.journal.close()

    @quiet
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
                if stream.held:
                    self._advance(stream, [join(stream.held)], None, Spending(self), finished=True)
                elif stream.journal is not None and stream.released:
                    self._release(stream, None, finished=True)
                stream.held, stream.released = (), stream.run.steps_taken
                self._end(stream)
        return self

    def _declared(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters of a stream, which needs a horizon."""
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
        steps = -(-parameters["horizon"] // parameters["batch_size"])
        check_summands("horizon", parameters["horizon"], steps)
        return parameters

    def _new_stream(
        self, parameters: dict[str, Any], classes: Any, journal: StreamJournal | None = None
    ) -> Stream:
        if journal is not None:
            journal.refuse_others(identity_of(self, parameters))
        parameters = self._declared(parameters)
        if classes is not None and parameters.get("classes") is None:
            parameters["classes"] = classes
        targets = self._targets(parameters, None)
        refuse_other_classes(targets, classes)
        return Stream(None, parameters, targets, parameters["horizon"], journal=journal)
