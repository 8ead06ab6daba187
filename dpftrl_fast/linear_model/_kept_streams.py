# SPDX-License-Identifier: Apache-2.0
"""Streams that are kept in a folder: `keep_stream`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpftrl_fast.linear_model._stream import JOURNAL, Stream, refuse_another_start, turn_of
from dpftrl_fast.linear_model._stream_journal import StreamJournal
from dpftrl_fast.linear_model._stream_state import (
    check_plan,
    check_version,
    classes_in,
    has_keyed_ids,
    identity_of,
)
from dpftrl_fast.linear_model._streaming import StreamedModel, quiet


class KeptModel(StreamedModel):
    """Base of the private linear estimators: their streams, and folders that keep these."""

    @quiet
    def keep_stream(
        self, folder: str | Path, *, checkpoint_every: int = 1, allow_fork: bool = False
    ) -> StreamJournal:
        """Keep the stream of `partial_fit` calls in a folder, or resume the one that is in it.

        To be called before the first `partial_fit`. If the process is killed, the same program
        continues: `keep_stream` loads the last state, with its model, and the caller feeds the rows
        from ``position`` on. The models are those of a stream that nothing stopped, bit for bit,
        under the same epsilon.

        Parameters
        ----------
        folder : str or Path
            Empty, missing, or of this stream. It becomes **a secret** (mode 0700): it holds the
            noise key and un-noised sums. Users (`groups`) are under a keyed hash, whose key is in
            ``run.json`` alone. Delete it when the stream is over.
        checkpoint_every : int, default 1
            The state is written at the end of a call, before its model is released, if at least so
            many steps were taken since it was written last. All steps since then are repeated after
            a crash, with the same rows.
        allow_fork : bool, default False
            Accept a folder that was copied, or moved to another file system. That voids the
            guarantee, unless the other copy is never used again; `epsilon_` is infinite then.

        Returns
        -------
        StreamJournal
            ``position`` is the row (with groups: user) of the stream that the next call begins
            with. Use it as a context manager, or call ``close()``; a folder is open once at a time.

        Raises
        ------
        TypeError, ValueError
            For a wrong parameter, a stream that has begun, or a folder of another estimator, other
            parameters or another version, damaged, or a copy. The estimator is unchanged.
        RuntimeError
            If the folder is in use.
        OSError
            If it cannot be read and written.

        Notes
        -----
        Rows of a batch that is not full are private, and are not in the folder. `partial_fit` and
        `finish` raise :class:`dpftrl_fast.run.Diverged` where a step that was written ahead before
        a crash is repeated with other rows; no model of it is released. See docs/runs/resume.md.

        Examples
        --------
        >>> import tempfile
        >>> import numpy as np
        >>> from dpftrl_fast.linear_model import DPFTRLRegressor
        >>> X, y = np.eye(3)[np.arange(30) % 3], np.arange(30) % 3 / 3
        >>> bounds = {"x_norm_bound": 1.0, "y_bound": 1.0, "clip_norm": 1.0}
        >>> model = DPFTRLRegressor(8.0, batch_size=10, horizon=30, learning_rate=0.1, **bounds)
        >>> folder = tempfile.mkdtemp()
        >>> with model.keep_stream(folder) as stream:
        ...     _ = model.partial_fit(X[:14], y[:14])
        ...     stream.position
        14
        >>> with model.keep_stream(folder) as stream:  # in another process, say
        ...     start = stream.position
        ...     _ = model.partial_fit(X[start:], y[start:])
        >>> start, model.n_steps_
        (10, 3)
        """
        with turn_of(self):
            stream: Stream | None = vars(self).get("_stream")
            before: StreamJournal | None = vars(self).get(JOURNAL)
            if (before is None and stream is not None) or (before and not before.closed):
                raise ValueError(
                    "keep_stream must come before the first call of partial_fit, and once, got it "
                    "in a stream that has begun or is kept already"
                )
            parameters = self._checked_parameters()
            declared = self._declared({**parameters})
            self._plan(declared, declared["horizon"])  # a wrong parameter is refused here
            journal = StreamJournal(
                folder,
                identity_of(self, parameters),
                turn_of(self),
                checkpoint_every=checkpoint_every,
                allow_fork=allow_fork,
            )
            try:
                state = journal.resume()
                if state is None:
                    refuse_another_start(self)
                    self._stream = None
                else:
                    self._resume(journal, parameters, state)
            except BaseException:
                journal.close()
                raise
            setattr(self, JOURNAL, journal)
        return journal

    def _resume(
        self, journal: StreamJournal, parameters: dict[str, Any], state: dict[Any, Any]
    ) -> None:
        """Continue the stream of a state, and release its model."""
        check_version(state)
        stream = self._new_stream(parameters, classes_in(state), journal)
        outputs, p, names = stream.targets.outputs, state["n_features"], state["feature_names"]
        stream.parameters = self._resolved(
            stream.parameters, stream.units, stream.units, p, outputs
        )
        run = stream.run = self._start(stream.parameters, stream.units, p, outputs)
        check_plan(state, run.plan)
        run.load_state_dict(state["engine"])
        run.admission.write_ahead = journal.write_ahead
        stream.begun, stream.features = True, (p, names)
        stream.taken, stream.released = state["taken"], run.steps_taken
        journal.resumed(state["name"], stream.taken, keyed=has_keyed_ids(state))
        for name in [*vars(self)]:
            if name.endswith("_") and not name.startswith("_"):
                delattr(self, name)  # from an earlier run
        self.n_features_in_ = p
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        self._stream = stream
        if stream.released:
            self._release(stream, None, resumed=True)
        if state["finished"] or stream.released == run.plan.steps:
            self._end(stream)
