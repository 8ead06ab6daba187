# SPDX-License-Identifier: Apache-2.0
"""What `TreeNoise` refuses: errors say what was expected and what came; nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import dpftrl_fast as dpf

NAN, INF = float("nan"), float("inf")

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"size": 0}, ValueError, r"size must be an integer in \[1, 68719476736\], got 0"),
    ({"size": -3}, ValueError, "size must be .*, got -3"),
    ({"size": 2**70}, ValueError, "size must be .*, got 1180591620717411303424"),
    ({"size": 2.0}, TypeError, "size must be an integer .*, got float"),
    ({"size": True}, TypeError, "size must be an integer .*, got bool"),
    ({"size": "3"}, TypeError, "size must be an integer .*, got str"),
    ({"size": None}, TypeError, "size must be an integer .*, got NoneType"),
    ({"std": NAN}, ValueError, "std must be a finite number > 0, got nan"),
    ({"std": INF}, ValueError, "std must be a finite number > 0, got inf"),
    ({"std": -INF}, ValueError, "got -inf"),
    ({"std": 0.0}, ValueError, "std must be a finite number > 0, got 0.0"),
    ({"std": -1.0}, ValueError, "got -1.0"),
    ({"std": np.float32("nan")}, ValueError, "got nan"),
    ({"std": 1e39}, ValueError, r"finite, normal number > 0 in float32, got 1e\+39"),
    ({"std": 1e-46}, ValueError, "finite, normal number > 0 in float32, got 1e-46"),
    ({"std": 1.17e-38}, ValueError, "normal number > 0 in float32, got 1.17e-38"),
    ({"std": 10**400}, ValueError, "std must be a finite number > 0"),
    ({"std": "1"}, TypeError, "std must be a finite number > 0, got str"),
    ({"std": 1j}, TypeError, "std must be a finite number > 0, got complex"),
    ({"std": np.complex64(1)}, TypeError, "std must be a finite number > 0, got complex64"),
    ({"std": True}, TypeError, "std must be a finite number > 0, got bool"),
    ({"std": Decimal(1)}, TypeError, "std must be a finite number > 0, got Decimal"),
    ({"std": None}, TypeError, "std must be a finite number > 0, got NoneType"),
    ({"seed": 1.0}, TypeError, "seed must be an integer, got float"),
    ({"seed": "7"}, TypeError, "seed must be an integer, got str"),
    ({"seed": True}, TypeError, "seed must be an integer, got bool"),
    ({"seed": bytearray(3)}, TypeError, "got bytearray"),
    ({"seed": [1]}, TypeError, "got list"),
    ({"seed": -7}, ValueError, "seed must be an integer >= 0, got a negative one"),
    ({"variant": "Honaker"}, ValueError, "variant must be one of .*, got 'Honaker'"),
    ({"variant": None}, ValueError, "variant must be one of 'vanilla', 'honaker', got None"),
    ({"memory": 0}, ValueError, "memory must be an integer in .*, got 0"),
    ({"memory": -1}, ValueError, "memory must be an integer in .*, got -1"),
    ({"memory": 2**70}, ValueError, "memory must be an integer in"),
    ({"memory": 1.5}, TypeError, "memory must be an integer .*, got float"),
    ({"memory": True}, TypeError, "memory must be an integer .*, got bool"),
    ({"memory": "none"}, ValueError, "memory must be 'stored', 'regenerate' or .*, got 'none'"),
    ({"dtype": "float16"}, ValueError, "dtype must be 'float32' or 'float64', got 'float16'"),
    ({"dtype": "int32"}, ValueError, "got 'int32'"),
    ({"dtype": ">f4"}, ValueError, "got '>f4'"),
    ({"dtype": None}, ValueError, "dtype must be 'float32' or 'float64', got None"),
    ({"dtype": "no such"}, ValueError, "got 'no such'"),
    ({"rounds": 7}, ValueError, "rounds must be 8, 12 or 20, got 7"),
    ({"rounds": 2**70}, ValueError, "rounds must be 8, 12 or 20"),
    ({"rounds": 12.0}, TypeError, "rounds must be an integer .*, got float"),
    ({"threads": 0}, ValueError, r"threads must be an integer in \[1, 1024\], got 0"),
    ({"threads": -1}, ValueError, "threads must be .*, got -1"),
    ({"threads": 1.0}, TypeError, "threads must be an integer .*, got float"),
    ({"offset": -1}, ValueError, "offset must be an integer in .*, got -1"),
    ({"offset": 2**70}, ValueError, "offset must be an integer in"),
    ({"offset": 2**36 - 2}, ValueError, r"offset \+ size must be at most 2\*\*36 for float32"),
    ({"offset": 2**35 - 2, "dtype": "float64"}, ValueError, r"at most 2\*\*35 for float64"),
    ({"purpose": "forest"}, ValueError, "purpose must be one of .*, got 'forest'"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_bad_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"size": 3, "std": 1.0, **change}
    with pytest.raises(error, match=message) as caught:
        dpf.TreeNoise(arguments.pop("size"), arguments.pop("std"), **arguments)
    assert ".cpp" not in str(caught.value)
    assert "_core" not in str(caught.value)


def test_the_last_coordinates_are_taken() -> None:
    assert dpf.TreeNoise(3, 1.0, offset=2**36 - 3).step().shape == (3,)
    assert dpf.TreeNoise(3, 1.0, offset=2**35 - 3, dtype="float64").step().shape == (3,)


CALLS: list[tuple[Callable[[dpf.TreeNoise], object], type[Exception], str]] = [
    (lambda n: n.prefix(0), ValueError, r"t must be an integer in \[1, 70368744177664\], got 0"),
    (lambda n: n.prefix(-1), ValueError, "t must be .*, got -1"),
    (lambda n: n.prefix(2**46 + 1), ValueError, "t must be .*, got 70368744177665"),
    (lambda n: n.prefix(1.0), TypeError, "t must be an integer .*, got float"),  # type: ignore[arg-type]
    (lambda n: n.prefix(True), TypeError, "t must be an integer .*, got bool"),
    (lambda n: n.node(-1, 0), IndexError, r"level must be an integer in \[0, 46\], got -1"),
    (lambda n: n.node(47, 0), IndexError, "level must be .*, got 47"),
    (lambda n: n.node(2**70, 0), IndexError, "level must be"),
    (lambda n: n.node(0, -1), IndexError, r"index must be an integer in .* at level 0, got -1"),
    (lambda n: n.node(0, 2**46), IndexError, "index must be .*, got 70368744177664"),
    (lambda n: n.node(46, 1), IndexError, r"in \[0, 2\*\*0\) at level 46, got 1"),
    (lambda n: n.node(0.5, 1), TypeError, "level must be an integer, got float"),  # type: ignore[arg-type]
    (lambda n: n.advance_to(4), ValueError, r"t must be an integer in \[5, .*\], got 4"),
    (lambda n: n.advance_to(2**46 + 1), ValueError, "t must be an integer in"),
    (lambda n: n.advance_to("6"), TypeError, "t must be an integer .*, got str"),  # type: ignore[arg-type]
    (lambda n: n.restart(complete="all"), TypeError, "complete must be a bool, got str"),  # type: ignore[arg-type]
    (lambda n: n.restart(complete=1), TypeError, "complete must be a bool, got int"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("case", range(len(CALLS)))
@pytest.mark.parametrize("memory", ["stored", "regenerate", 1])
def test_bad_calls_change_nothing(case: int, memory: Any) -> None:
    call, error, message = CALLS[case]
    noise, plain = (dpf.TreeNoise(3, 1.0, seed=1, memory=memory) for _ in range(2))
    for _ in range(5):
        noise.residual(), plain.residual()
    with pytest.raises(error, match=message) as caught:
        call(noise)
    assert ".cpp" not in str(caught.value)
    assert (noise.t, noise.tree, noise.node_used) == (5, 0, False)
    for _ in range(4):
        assert noise.residual().tobytes() == plain.residual().tobytes()


def test_restart_at_t_0() -> None:
    noise = dpf.TreeNoise(3, 1.0, seed=1)
    for complete in (False, True):
        with pytest.raises(ValueError, match=r"restart needs at least one step .*, got t = 0"):
            noise.restart(complete=complete)
    noise.step()
    noise.restart()
    with pytest.raises(ValueError, match="got t = 0"):
        noise.restart()
    assert (noise.tree, noise.t) == (1, 0)


def test_the_end_of_a_tree() -> None:
    noise = dpf.TreeNoise(3, 1.0, seed=1, variant="vanilla")
    noise.advance_to(2**46 - 1)
    last = noise.step()
    assert last.tobytes() == noise.node(46, 0).tobytes()
    for call in (noise.step, noise.residual):
        with pytest.raises(ValueError, match=r"at most 2\*\*46 steps: restart it"):
            call()
    assert noise.t == 2**46
    noise.restart()
    assert (noise.step() - noise.node(0, 0)).shape == (3,)
