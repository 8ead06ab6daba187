# SPDX-License-Identifier: Apache-2.0
"""Jobs on threads: each is done once, and an error of one is raised."""

from __future__ import annotations

import threading

import pytest

from dpftrl_fast.kernels.threads import run_on_threads


@pytest.mark.parametrize("threads", [1, 2, 9])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_each_job_is_done_once(threads: int, count: int) -> None:
    done = [0] * count

    def job(k: int) -> None:
        done[k] += 1

    run_on_threads(job, range(count), threads)
    assert done == [1] * count


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_a_job_is_raised(threads: int) -> None:
    def job(k: int) -> None:
        if k == 2:
            raise ValueError("job 2")

    with pytest.raises(ValueError, match="job 2"):
        run_on_threads(job, range(4), threads)


def test_jobs_run_at_the_same_time_and_one_stays_here() -> None:
    both = threading.Barrier(2, timeout=60)  # one thread would wait for ever
    run_on_threads(lambda _: both.wait(), range(2), 2)
    seen: list[threading.Thread] = []
    run_on_threads(lambda _: seen.append(threading.current_thread()), range(1), 4)
    assert seen == [threading.current_thread()]
