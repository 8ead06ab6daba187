# SPDX-License-Identifier: Apache-2.0
"""A plan as a dictionary and as a JSON file: exact, and whole or refused."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpftrl_fast.accounting.participation import (
    FixedEpochs,
    FixedOrder,
    MinSeparation,
    SinglePass,
)
from dpftrl_fast.mechanisms import Tree
from dpftrl_fast.plan.privacy_plan import PrivacyPlan

FAST = settings(max_examples=100, deadline=None, derandomize=True)
PLAN = PrivacyPlan(clip_norm=0.3, noise_multiplier=2.33, participation=SinglePass(1600))

PATTERNS = st.one_of(
    st.builds(SinglePass, st.integers(1, 2**40)),
    st.builds(FixedEpochs, st.integers(1, 1000), st.integers(1, 1000), st.booleans()),
    st.builds(MinSeparation, *[st.integers(1, 2**40)] * 3),
    st.builds(FixedOrder, st.lists(st.integers(-1, 5), min_size=1).filter(lambda x: max(x) >= 0)),
)


@st.composite
def plans(draw):
    pattern = draw(PATTERNS)
    restarts = draw(st.sampled_from(["none", "every", "listed"]))
    complete = st.sampled_from([False, True, "all"])
    options = {}
    if restarts == "every":
        options["restart_every"] = draw(st.integers(1, 2**40))
    elif restarts == "listed":
        first = draw(st.integers(1, pattern.steps))
        lengths = [n for n in (first, pattern.steps - first) if n]
        options["tree_lengths"] = lengths
        complete = st.one_of(
            complete, st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))
        )
    return PrivacyPlan(
        draw(st.floats(1e-100, 1e100)),
        draw(st.floats(-1, 4).map(lambda x: 10.0**x)),
        pattern,
        mechanism=Tree(
            draw(st.sampled_from(["vanilla", "honaker"])), complete=draw(complete), **options
        ),
        bound=draw(st.sampled_from(["exact", "released"])),
    )


@FAST
@given(plans())
def test_json_round_trip_is_exact(plan):
    text = json.dumps(plan.to_dict(), allow_nan=False)
    again = PrivacyPlan.from_dict(json.loads(text))
    assert again == plan
    assert type(again.mechanism.complete) is type(plan.mechanism.complete)
    assert hash(again) == hash(plan)
    assert json.dumps(again.to_dict()) == text


def test_the_written_form():
    assert PLAN.to_dict() == {
        "format": "dpftrl_fast.PrivacyPlan",
        "version": 2,
        "clip_norm": 0.3,
        "noise_multiplier": 2.33,
        "participation": {"kind": "SinglePass", "steps": 1600},
        "restart_every": None,
        "tree_lengths": None,
        "complete": False,
        "variant": "honaker",
        "bound": "exact",
    }


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"format": "other"}, ValueError, "format must be 'dpftrl_fast.PrivacyPlan', got 'other'"),
        ({"version": 1}, ValueError, "version must be 2 or 3, got 1"),
        ({"version": 3}, ValueError, r"got also .*'restart_every'"),
        ({"version": 4}, ValueError, "version must be 2 or 3, got 4"),
        ({"version": "2"}, ValueError, "version must be 2 or 3, got '2'"),
        ({"version": True}, ValueError, "version must be 2 or 3, got True"),
        ({"epsilon": 1.0}, ValueError, r"got also \['epsilon'\]"),
        ({"noise_multiplier": math.nan}, ValueError, "noise_multiplier must be a finite number"),
        ({"noise_multiplier": "2"}, TypeError, "noise_multiplier must be a finite number"),
        ({"participation": {"kind": "x"}}, ValueError, "participation kind must be one of"),
        ({"participation": 3}, TypeError, "participation must be a mapping, got int"),
    ],
)
def test_from_dict_refuses(change, error, message):
    with pytest.raises(error, match=message):
        PrivacyPlan.from_dict({**PLAN.to_dict(), **change})


def test_from_dict_refuses_what_is_incomplete_or_no_mapping():
    for key in PLAN.to_dict():
        d = PLAN.to_dict()
        del d[key]
        with pytest.raises(ValueError, match=rf"{key}"):
            PrivacyPlan.from_dict(d)
    with pytest.raises(TypeError, match="a plan must be a mapping, got list"):
        PrivacyPlan.from_dict([])


# ---- The file ----


def test_saved_and_loaded(tmp_path):
    plan = PrivacyPlan(
        0.1,
        3.7,
        FixedOrder([4, 4, -1, 2]),
        mechanism=Tree(tree_lengths=[3, 1], complete=[True, False]),
    )
    path = tmp_path / "runs" / "plan.json"
    plan.save(path)
    assert PrivacyPlan.load(path) == PrivacyPlan.load(str(path)) == plan
    assert json.loads(path.read_text()) == plan.to_dict()
    PLAN.save(str(path))  # an older one is replaced
    assert PrivacyPlan.load(path) == PLAN
    assert [file.name for file in path.parent.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", ValueError, "plan.json' must be a JSON file of a plan, got Expecting value"),
        (b'{"format": "dpftrl_fast.Pri', ValueError, "must be a JSON file of a plan, got"),
        (b"\xff\xfe", ValueError, "must be a JSON file of a plan, got 'utf-8' codec"),
        (b'{"clip_norm": NaN}', ValueError, "must be a JSON file of a plan, got the number NaN"),
        (b"[]", TypeError, "a plan must be a mapping, got list"),
        (b"{}", ValueError, "format must be 'dpftrl_fast.PrivacyPlan', got None"),
    ],
)
def test_files_that_hold_no_plan(tmp_path, content, error, message):
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        PrivacyPlan.load(path)


def test_a_file_of_another_version(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**PLAN.to_dict(), "version": 1}))
    with pytest.raises(ValueError, match="version must be 2 or 3, got 1"):
        PrivacyPlan.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        PrivacyPlan.load(tmp_path / "plan.json")
