# SPDX-License-Identifier: Apache-2.0
"""Admission of steps: who takes part, and the record that is written ahead, in all or nothing."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from dpftrl_fast.accounting import SinglePass
from dpftrl_fast.convex.admission import Admission
from dpftrl_fast.convex.glm.fit import GLMRun
from dpftrl_fast.convex.glm.sums import Objective
from dpftrl_fast.convex.least_squares.engine import LeastSquares
from dpftrl_fast.convex.least_squares.plan import LeastSquaresPlan
from dpftrl_fast.convex.row_batches import Batch
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

PLAN = PrivacyPlan(1.0, 1.0, SinglePass(4))
BATCH = Batch(np.eye(3), np.ones(3))
USERS = BATCH._replace(starts=np.array([0, 1, 3]), ids=np.array([4, 5]))


def glm() -> GLMRun:
    return GLMRun(Objective("squared", 3), PLAN, learning_rate=0.1, batch_size=3, noise_seed=1)


def least_squares() -> LeastSquares:
    plan = LeastSquaresPlan(1.0, 1.0, 3.0, SinglePass(4))
    return LeastSquares(plan, 3, seed=1, solve_every=1)


engines = pytest.mark.parametrize("engine", [glm, least_squares])


class Refused(Exception):
    pass


def refuse(*_: Any) -> None:
    raise Refused


def test_a_step_that_is_not_written_admits_nobody() -> None:
    admission, found = Admission(PLAN), []
    admission.write_ahead = refuse
    with pytest.raises(Refused):
        admission.admit(1, [4, 5])
    assert admission.state_dict() is None
    admission.write_ahead = lambda step, sums: found.append((step, [*sums]))
    admission.admit(1, [4, 5], np.zeros(2))
    with pytest.raises(ValueError, match="those who take part in step 2 must be such as"):
        admission.admit(2, [6, 5], np.zeros(2))
    with pytest.raises(ValueError, match="for all steps of a run or for none"):
        admission.admit(2, None, np.zeros(2))
    assert [step for step, _ in found] == [1]
    assert [part.tolist() for part in found[0][1]] == [[4, 5], [0.0, 0.0]]
    admission.write_ahead = refuse
    with pytest.raises(Refused):
        admission.admit(2, [6], np.zeros(2))
    admission.write_ahead = None
    admission.admit(2, [6])


def test_a_message_shows_no_id() -> None:
    admission = Admission(PLAN)
    admission.admit(1, [123456])
    with pytest.raises(ValueError) as caught:
        admission.admit(2, [123456])
    assert "123456" not in str(caught.value) and caught.value.__suppress_context__


def test_the_state_is_that_of_the_guard() -> None:
    admission, other = Admission(PLAN), Admission(PLAN)
    admission.admit(1, [4, 5])
    other.load_state_dict(admission.state_dict())
    with pytest.raises(ValueError, match="those who take part in step 2"):
        other.admit(2, [5])
    other.admit(2, [6])
    other.load_state_dict(None)
    other.admit(1, None)
    with pytest.raises(ValueError, match="for all steps of a run or for none"):
        other.admit(2, [6])


@engines
@pytest.mark.parametrize("batch", [BATCH, USERS], ids=["rows", "users"])
def test_a_step_is_written_ahead_of_its_noise(engine: Any, batch: Batch) -> None:
    run, plain = engine(), engine()
    seen: list[Any] = []

    def ahead(step: int, sums: Any) -> None:
        assert run.steps_taken == step - 1
        seen.append([np.array(part) for part in sums])

    run.admission.write_ahead = refuse
    for _ in range(2):
        with pytest.raises(Refused):
            run.step(batch)
    run.admission.write_ahead = ahead
    for k in range(4):
        users = {} if batch.ids is None else {"ids": batch.ids + 10 * k}
        run.step(batch._replace(**users))
        plain.step(batch._replace(**users))
    np.testing.assert_array_equal(run.last, plain.last)
    np.testing.assert_array_equal(run.average, plain.average)
    assert len(seen) == 4
    numbers = 2 if engine is least_squares else 1
    for k, parts in enumerate(seen):
        assert len(parts) == numbers + (batch.ids is not None)
        assert batch.ids is None or parts[0].tolist() == [4 + 10 * k, 5 + 10 * k]
        assert all(np.any(part != 0.0) for part in parts)


@engines
def test_a_run_resumes_from_its_state_to_the_bit(engine: Any) -> None:
    def step(run: Any, k: int) -> None:
        run.step(USERS._replace(ids=np.array([4 + 10 * k, 5 + 10 * k])))

    plain, other = engine(), engine()
    step(plain, 0)
    step(plain, 1)
    other.load_state_dict(copy.deepcopy(plain.state_dict()))
    assert other.steps_taken == 2
    with pytest.raises(ValueError, match="those who take part in step 3"):
        step(other, 1)
    for k in (2, 3):
        step(plain, k)
        step(other, k)
    for name in ("last", "average", "tail"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(other, name))
    assert plain.steps_taken == other.steps_taken == 4


@engines
def test_an_interrupted_run_has_no_state(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = engine()
    place = "dpftrl_fast.convex.least_squares.secret_sums.add_packed"
    if engine is glm:
        place = "dpftrl_fast.ftrl.FTRL.step"
    monkeypatch.setattr(place, refuse)
    with pytest.raises(Refused):
        run.step(USERS)
    with pytest.raises(RuntimeError, match="interrupted"):
        run.state_dict()
