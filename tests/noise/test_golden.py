# SPDX-License-Identifier: Apache-2.0
"""The golden values of the stream against the C++ core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf
from dpftrl_fast import _core
from dpftrl_fast.noise import keys

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "data" / "stream_v2.json").read_text(encoding="utf-8")
)
PURPOSES = {0: "tree", 1: "covariance", 2: "clip-norm"}


def values(digits: str, dtype: str) -> bytes:
    big_endian = np.frombuffer(bytes.fromhex(digits), np.dtype(dtype).newbyteorder(">"))
    return big_endian.astype(dtype).tobytes()


def test_version_and_keys() -> None:
    assert GOLDEN["stream_version"] == dpf.STREAM_VERSION
    for case in GOLDEN["keys"]:
        seed = int(case["seed"]) if "seed" in case else bytes.fromhex(case["seed_bytes"])
        assert keys.key_of_seed(seed).hex() == case["key"]


@pytest.mark.parametrize("target", dpf.build_info()["targets"])
def test_blocks(target: str) -> None:
    for case in GOLDEN["blocks"]:
        out = np.empty(256, np.uint32)
        counter = np.array(case["counter"], np.uint32)
        _core.keystream16(target, bytes.fromhex(case["key"]), case["rounds"], counter, out)
        assert "".join(f"{word:08x}" for word in out[:16]) == case["words"]


def test_pairs() -> None:
    pair = {"float32": _core.normal_pair_f32, "float64": _core.normal_pair_f64}
    for case in GOLDEN["pairs"]:
        more = [int(case["V"], 16)] if "V" in case else []
        got = pair[case["dtype"]](int(case["U"], 16), int(case["A"], 16), *more)
        expected = values(case["first"] + case["second"], case["dtype"])
        assert np.array(got, case["dtype"]).tobytes() == expected


@pytest.mark.parametrize("target", dpf.build_info()["targets"])
def test_normals(target: str) -> None:
    fill = {"float32": _core.normals_f32, "float64": _core.normals_f64}
    for case in GOLDEN["normals"]:
        out = np.empty(case["size"], case["dtype"])
        where = {name: case.get(name, 0) for name in ("purpose", "tree", "level", "index")}
        fill[case["dtype"]](
            target=target,
            key=keys.key_of_seed(int(case["seed"])),
            rounds=case.get("rounds", 12),
            first=case["start"],
            scale=1.0,
            out=out,
            **where,
        )
        assert out.tobytes() == values(case["z"], case["dtype"])


@pytest.mark.parametrize("memory", ["stored", "regenerate", 2])
def test_trees(memory: Any) -> None:
    for case in GOLDEN["trees"]:
        options = dict(case["options"])
        if "purpose" in options:
            options["purpose"] = PURPOSES[options["purpose"]]
        noise = dpf.TreeNoise(**options, memory=memory)
        for name, arguments, digits in case["calls"]:
            got = getattr(noise, name)(*arguments)
            if digits is None:
                assert got is None
            else:
                assert got.tobytes() == values(digits, options["dtype"])
