# SPDX-License-Identifier: Apache-2.0
"""Federated runs that version 0.1 was killed in: refused, since 0.1 had another stream of noise.

With the version of the stream put in its place, they go on bit for bit.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import written_by_0_1 as old
import written_by_0_1_federated as federated

from dpftrl_fast import STREAM_VERSION


@pytest.mark.parametrize("kind", federated.KINDS)
def test_a_run_of_another_stream_is_refused(kind: str, tmp_path: Path) -> None:
    folder = old.taken(f"federated/{kind}", tmp_path / "run")
    with pytest.raises(ValueError, match=old.REFUSED):
        federated.run(kind, folder)


@pytest.mark.parametrize("kind", federated.KINDS)
def test_a_run_goes_on(kind: str, tmp_path: Path) -> None:
    case = old.read("federated/runs.json")[kind]
    folder = old.taken(f"federated/{kind}", tmp_path / "run", STREAM_VERSION)
    left = federated.run(kind, folder)
    assert left == case["next"]
    then = case["then"]["state"]
    del then["cohorts"]  # 0.1 kept realised values of ids there
    assert old.kept_state(folder) == case["then"]


@pytest.mark.parametrize("kind", [kind for kind in federated.KINDS if kind != "rounds"])
def test_a_run_stands_where_it_was_killed(kind: str, tmp_path: Path) -> None:
    case = old.read("federated/runs.json")[kind]
    folder = old.taken(f"federated/{kind}", tmp_path / "run", STREAM_VERSION)
    (seen,) = federated.run(kind, folder, until=6)
    before = {name: value for name, value in case["before"][-1].items() if name in seen}
    assert seen == before and seen["round"] == 6
