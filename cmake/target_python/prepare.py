# SPDX-License-Identifier: Apache-2.0
"""Make, of the running Python, one of a target system to compile and link modules with.

    python prepare.py FOLDER

The headers of Python, NumPy and pybind11 go to the folders of these names, with the target's sizes
in place of this system's. stub.cpp is a library that has each name of the C API and nothing behind
it: a module that links with it asks for no name that Python does not have. Prints the name of the
library on Windows.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pybind11

# NumPy's sizes that differ between 64-bit systems.
NUMPY_SIZES = """
#undef NPY_HAVE_ENDIAN_H
#undef NPY_SIZEOF_LONG
#undef NPY_SIZEOF_LONGDOUBLE
#undef NPY_SIZEOF_COMPLEX_LONGDOUBLE
#undef NPY_SIZEOF_WCHAR_T
#define NPY_SIZEOF_LONG __SIZEOF_LONG__
#define NPY_SIZEOF_LONGDOUBLE __SIZEOF_LONG_DOUBLE__
#define NPY_SIZEOF_COMPLEX_LONGDOUBLE (2 * __SIZEOF_LONG_DOUBLE__)
#define NPY_SIZEOF_WCHAR_T __SIZEOF_WCHAR_T__
"""
STUB = """
#ifdef _WIN32
#define EXPORTED extern "C" __declspec(dllexport)
#else
#define EXPORTED extern "C" __attribute__((visibility("default")))
#endif
"""


def file_of_interpreter() -> str:
    """Return the file that holds the C API: libpython, or the program itself."""

    class Place(ctypes.Structure):
        _fields_ = (
            ("file", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("name", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    place = Place()
    function = ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p)
    if ctypes.CDLL(None).dladdr(function, ctypes.byref(place)) == 0 or place.file is None:
        raise SystemExit("prepare.py: expected dladdr to name the interpreter's file, got nothing")
    file = place.file.decode()
    return file if Path(file).is_absolute() else sys._base_executable


def exported_names() -> list[str]:
    """Return the names of the C API that the running interpreter has."""
    command = ["nm", "--dynamic", "--defined-only", file_of_interpreter()]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    names = sorted(set(re.findall(r"^\S+ [A-Z] (_?Py\w+)$", table, flags=re.MULTILINE)))
    if not {"PyModule_Create2", "PyExc_ValueError"} <= set(names):
        raise SystemExit(f"prepare.py: expected the C API, got {len(names)} names of another kind")
    return names


def prepare(folder: Path) -> None:
    """Write the headers and the stub into a folder, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(sysconfig.get_path("include"), folder / "python")
    shutil.copy2(Path(__file__).with_name("pyconfig.h"), folder / "python")
    shutil.copytree(pybind11.get_include(), folder / "pybind11")
    shutil.copytree(np.get_include(), folder / "numpy")
    with (folder / "numpy" / "numpy" / "_numpyconfig.h").open("a") as sizes:
        sizes.write(NUMPY_SIZES)
    functions = "".join(f"EXPORTED void {name}() {{}}\n" for name in exported_names())
    (folder / "stub.cpp").write_text(STUB + functions)


if __name__ == "__main__":
    prepare(Path(sys.argv[1]))
    print(f"python{sys.version_info.major}{sys.version_info.minor}")
