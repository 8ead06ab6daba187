# SPDX-License-Identifier: Apache-2.0
"""The page about ChaCha in compiled code: its Python and C blocks run, its refusals are real."""

from __future__ import annotations

import ctypes
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import numpy as np
import pytest
from page_blocks import blocks, programs

import dpftrl_fast as dpf

PAGE = "frameworks/numba_cython"


@pytest.mark.parametrize("block", programs(PAGE))
def test_a_block_runs_by_itself(block: str) -> None:
    for package in ("numba", "sklearn"):
        if package in block:
            pytest.importorskip(package)
    exec(compile(block, f"{PAGE}.md", "exec"), {"__name__": "page"})


def test_the_cython_block_is_that_of_the_pxd() -> None:
    """Which tests/noise/test_chacha_interfaces.py compiles as C and as C++, and runs."""
    (block,) = blocks(PAGE, "cython")
    pxd = Path(dpf._chacha.__file__).with_name("_chacha.pxd").read_text("utf-8")
    assert textwrap.indent(block, "    ") in pxd


def test_the_c_block_takes_any_bit_generator(tmp_path: Path) -> None:
    (source,) = blocks(PAGE, "c")
    (tmp_path / "means.c").write_text(source)
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    command = [compiler, "-shared", "-fPIC", f"-I{np.get_include()}", "means.c", "-o", "means.so"]
    try:
        built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    assert built.returncode == 0, built.stderr
    library = ctypes.CDLL(str(tmp_path / "means.so"))
    library.mean.restype = ctypes.c_double
    library.mean.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for kind in (dpf.ChaCha, np.random.PCG64):
        generator = kind(7)
        with generator.lock:
            drawn = library.mean(generator.ctypes.bit_generator, 1000)
        expected = np.random.Generator(kind(7)).random(1000).mean()
        assert drawn == pytest.approx(expected, rel=1e-12)


def test_random_states_of_scikit_learn() -> None:
    utils = pytest.importorskip("sklearn.utils")
    legacy = np.random.RandomState(dpf.ChaCha(7))
    assert utils.check_random_state(legacy) is legacy
    for refused in (np.random.Generator(dpf.ChaCha(7)), dpf.ChaCha(7)):
        with pytest.raises(ValueError, match="cannot be used to seed"):
            utils.check_random_state(refused)
    with pytest.raises(TypeError, match="re-seed"):
        legacy.seed(3)


def test_scipy_draws_from_it() -> None:
    from scipy import stats

    drawn = stats.norm.rvs(size=5, random_state=np.random.Generator(dpf.ChaCha(7)))
    assert np.array_equal(drawn, np.random.Generator(dpf.ChaCha(7)).standard_normal(5))


def test_spawned_and_jumped_generators_differ() -> None:
    first = [np.random.Generator(dpf.ChaCha(7)).random()]
    children = dpf.ChaCha(7).spawn(2)
    first += [np.random.Generator(x).random() for x in (*children, dpf.ChaCha(7).jumped())]
    assert len(set(first)) == 4


def test_a_tuple_of_generators_in_prange() -> None:
    numba = pytest.importorskip("numba")

    def fill(rngs, out):  # type: ignore[no-untyped-def]
        for i in numba.prange(2):
            for j in range(out.shape[1]):
                out[i, j] = rngs[i].random()

    out = np.empty((2, 100))
    children = [np.random.Generator(x) for x in dpf.ChaCha(7).spawn(2)]
    numba.njit(parallel=True)(fill)(tuple(children), out)
    for row, child in zip(out, dpf.ChaCha(7).spawn(2), strict=True):
        assert np.array_equal(row, np.random.Generator(child).random(100))
