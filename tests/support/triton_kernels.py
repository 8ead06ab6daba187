# SPDX-License-Identifier: Apache-2.0
"""Kernels of the noise on a GPU: under Triton's interpreter, and as compiled code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpftrl_fast.torch
from dpftrl_fast.reference.stream import POLYNOMIALS

DEVICE_FOLDER = Path(dpftrl_fast.torch.__file__).parent / "device"


def patch_builtins_once() -> Iterator[None]:
    """Skip what the interpreter does again at each call of a helper, nearly half of its time.

    A kernel's launch replaces the builtins of Triton's modules; a call inside finds none to do.
    """
    import triton
    from triton.runtime import interpreter

    patch = getattr(interpreter, "_patch_builtin", None)
    if patch is None:  # another version
        yield
        return
    a_builtin: dict[Any, str | None] = {}

    def once(of: Any, *rest: Any) -> None:
        if of not in a_builtin:
            names = (name for name in dir(of) if is_builtin(getattr(of, name)))
            a_builtin[of] = next(names, None)
        name = a_builtin[of]
        if name is not None and is_builtin(getattr(of, name)):
            patch(of, *rest)

    is_builtin = triton.language.core.is_builtin
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter, "_patch_builtin", once)
        yield


# Modules are loaded by themselves: the interpreter's variable must not be set, and the package
# takes long.
_COMPILE = """
import ast, importlib.util, pathlib, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

for name in ("triton_stream", "triton_toeplitz"):
    path = pathlib.Path(sys.argv[1]) / f"{name}.py"
    full = "dpftrl_fast.torch.device." + name
    spec = importlib.util.spec_from_file_location(full, path)
    sys.modules[full] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, sys.argv[2]):
        kernel = getattr(module, sys.argv[2])
for signature, constants in ast.literal_eval(sys.argv[3]):
    compiled = triton.compile(
        ASTSource(kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", 90, 32),
        options={"enable_fp_fusion": False, "num_warps": 4},
    )
    print(compiled.asm["ptx"], end="\\0")
"""


def compiled(kernel: str, variants: list[Any], cache: Path) -> list[str]:
    """Return the PTX of a kernel for each signature and constants."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(DEVICE_FOLDER), kernel, repr(variants)],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *codes, end = done.stdout.split("\0")
    assert len(codes) == len(variants) and end == ""
    return codes


def check_code(ptx: str, dtype: Any) -> None:
    """Check that code neither fuses nor shortens, and has the polynomials to their last bits."""
    assert not re.search(r"fma\.|mad\.\S*f(32|64)|ftz|approx|div\.full", ptx)
    assert re.search(r"sqrt\.rn\.f(32|64)", ptx)
    letter = {"float32": "0f", "float64": "0d"}[dtype]
    literals = {int(text[2:], 16) for text in re.findall(letter + r"[0-9A-Fa-f]+", ptx)}
    values = np.array([value for row in POLYNOMIALS[np.dtype(dtype)] for value in row], dtype)
    bits = {int.from_bytes(value.tobytes(), "little") for value in values}
    assert len(bits) > 10 and bits <= literals | {0}
