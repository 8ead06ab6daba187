# SPDX-License-Identifier: Apache-2.0
"""The rules of the house: who may import whom, and what no source file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "dpftrl_fast"

# From the bottom up. A component (a module or a subpackage) may import components of lower rows
# only, and of its own row none but itself: so noise, accounting and kernels know nothing of each
# other.
LAYERS = [
    {
        "_core",
        "clip_norms",
        "files",
        "folder_lock",
        "keys",
        "noise_arguments",
        "outputs",
        "plots",
        "reference",
        "schema",
        "sealed_files",
        "step_log",
        "summation",
    },
    {"_chacha", "ftrl_arguments", "journal_files", "noise_state", "run_file"},
    {"accounting", "datasets", "journal", "kernels", "noise", "tables"},
    {"evaluation", "ftrl", "noise_so_far", "plan_file", "plan_text", "planned_noise"},
    {"plan"},
    {"convex", "planning", "prefix_sum", "restarts"},
    {"fitting"},
    {"model_file"},
    {"federated", "linear_model", "torch"},
    {"experiments"},
    {"__init__"},
    {"cli"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}

# The components that may import a package: those beyond the bare install, and Numba.
PLACES = {
    "dask": {"linear_model"},
    "distributed": set(),  # its client is found where the caller has made one
    "dp_accounting": {"accounting"},
    "flwr": {"federated"},
    "matplotlib": {"plots"},
    "numba": {"kernels"},
    "opacus": {"torch"},
    "pyarrow": {"datasets", "linear_model", "tables"},
    "rich": {"cli"},
    "sklearn": {"linear_model"},
    "threadpoolctl": {"kernels"},
    # cli: a baseline of `dpftrl-fast bench`, where it is installed
    "torch": {"cli", "experiments", "torch"},
    "triton": {"torch"},
    "typer": {"cli"},
    "yaml": {"schema"},
}
OPTIONAL = sorted(set(PLACES) - {"numba"})


def component(parts: tuple[str, ...]) -> str:
    """("accounting", "gaussian") -> "accounting"; () is the package itself."""
    return parts[0] if parts else "__init__"


def imports(
    tree: ast.AST, module: tuple[str, ...], *, is_package: bool
) -> Iterator[tuple[str, ...]]:
    """Dotted names, as tuples, of all that a module imports, anywhere in its body."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield tuple(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                here = module if is_package else module[:-1]
                base = (PACKAGE, *here[: len(here) - node.level + 1], *base)
            for alias in node.names:
                yield (*base, alias.name)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield tuple(node.args[0].value.split("."))


def violations(source: str, module: tuple[str, ...], *, is_package: bool = False) -> list[str]:
    """Broken import rules of one module (its name relative to the package), in words."""
    own = component(module)
    if own not in RANK:
        return [f"{own} has no row in LAYERS"]
    found = []
    for name in imports(ast.parse(source), module, is_package=is_package):
        top = name[0]
        if top == PACKAGE:
            rest = name[1:]
            # `from dpftrl_fast import x`: a component, or a name that the package itself defines.
            target = rest[0] if rest and rest[0] in RANK else "__init__"
            if target == own:
                continue
            if own == "reference":
                found.append(f"reference stands alone, and imports {target}")
            elif not RANK[target] < RANK[own]:
                found.append(f"{own} imports {target}, which is not below it")
        elif own == "reference" and top not in {*sys.stdlib_module_names, "numpy"}:
            found.append(f"reference stands alone, and imports {top}")
        allowed = PLACES.get(top)
        if allowed is not None and own not in allowed:
            found.append(f"{own} imports {top}, which belongs into {sorted(allowed)}")
    return found


def package_modules() -> Iterator[tuple[Path, tuple[str, ...], bool]]:
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        relative = path.relative_to(ROOT / PACKAGE).with_suffix("")
        is_package = relative.name == "__init__"
        yield path, relative.parts[:-1] if is_package else relative.parts, is_package


def cython_imports(source: str) -> str:
    """Import lines of a Cython file as Python; of several names, the first."""
    lines = re.findall(
        r"^\s*((?:from\s+[\w.]+\s+)?)c?import\s+\(?\s*(\w[\w.]*)", source, re.MULTILINE
    )
    return "\n".join(f"{start}import {name}" for start, name in lines)


def test_imports_run_downward_and_optional_packages_stay_in_their_place() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {text}"
        for path, module, is_package in package_modules()
        for text in violations(path.read_text(encoding="utf-8"), module, is_package=is_package)
    ]
    for path in [*(ROOT / PACKAGE).rglob("*.pyx"), *(ROOT / PACKAGE).rglob("*.pxd")]:
        module = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        source = cython_imports(path.read_text(encoding="utf-8"))
        assert source
        found += [f"{path.relative_to(ROOT)}: {text}" for text in violations(source, module)]
    assert found == []


def test_every_component_of_the_package_is_seen() -> None:
    seen = {component(module) for _, module, _ in package_modules()}
    extensions = {"_core", "_chacha"}
    assert seen == set(RANK) - extensions


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        (("noise",), "from dpftrl_fast import accounting", "not below"),
        (("noise",), "from .accounting.gaussian import epsilon", "not below"),
        (("noise",), "import dpftrl_fast.kernels.glm", "not below"),
        (("accounting", "gaussian"), "from ..noise import TreeNoise", "not below"),
        (("kernels", "glm"), "from dpftrl_fast.accounting import epsilon", "not below"),
        (("plan",), "def f():\n    from .fitting import fit", "not below"),
        (
            ("plan",),
            "import importlib\nimportlib.import_module('dpftrl_fast.fitting')",
            "not below",
        ),
        (("noise",), "from dpftrl_fast import TreeNoise", "imports __init__"),
        (("fitting",), "from . import cli", "imports cli"),
        (("plan",), "if TYPE_CHECKING:\n    import torch", "imports torch"),
        (("noise",), "from numba import njit", "imports numba"),
        (("reference",), "from . import noise", "stands alone"),
        (("reference",), "import scipy.special", "stands alone"),
        (("reference", "convex"), "from dpftrl_fast import kernels", "stands alone"),
        (("novel",), "", "no row"),
    ],
)
def test_the_checker_finds_a_violation(module: tuple[str, ...], source: str, word: str) -> None:
    (text,) = violations(source, module)
    assert word in text


def test_the_checker_reads_cython() -> None:
    source = "cimport cython\nfrom dpftrl_fast cimport (\n    noise)\nfrom libc cimport math\n"
    assert violations(cython_imports(source), ("_chacha",)) == [
        "_chacha imports noise, which is not below it"
    ]


def test_the_checker_finds_cli_in_the_package_itself() -> None:
    assert violations("from .cli import main", (), is_package=True) == [
        "__init__ imports cli, which is not below it"
    ]


@pytest.mark.parametrize(
    ("module", "source", "is_package"),
    [
        (("plan",), "from .noise import TreeNoise\nfrom .accounting import epsilon", False),
        (
            ("accounting", "gaussian"),
            "from . import participation\nfrom .participation import SinglePass",
            False,
        ),
        (("accounting",), "from .gaussian import epsilon", True),
        (("kernels", "glm"), "from numba import njit", False),
        ((), "from .plan import PrivacyPlan", True),
        (("cli",), "import typer\nfrom dpftrl_fast import build_info", False),
        (("reference",), "import math\nimport numpy as np", False),
        (("reference", "tree"), "from dpftrl_fast.reference.stream import normals", False),
    ],
)
def test_the_checker_lets_the_rest_pass(
    module: tuple[str, ...], source: str, is_package: bool
) -> None:
    assert violations(source, module, is_package=is_package) == []


def test_importing_the_package_loads_nothing_optional(tmp_path: Path) -> None:
    code = f"import sys, {PACKAGE}; print(sorted(set(sys.modules) & {{*{OPTIONAL}, 'numpy'}}))"
    # Elsewhere, since -c puts the current folder first.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['numpy']"


# ---- Text rules ----

CODE_SUFFIXES = {".cpp", ".hpp", ".in", ".cmake", ".py", ".pyi", ".pyx", ".pxd"}
CODE_FOLDERS = ["csrc", PACKAGE, "tests", "benches", "examples", "docs"]
BUILD_FILES = [
    "CMakeLists.txt",
    "CMakePresets.json",
    "csrc/tests/CMakeLists.txt",
    "pyproject.toml",
    "Makefile",
    ".ci/run",
]
PYTHON_IN_CORE = re.compile(r"pybind11|Python\.h|numpy/|\bpy::|\bPy[A-Z]\w*_")
BITS_AT_RISK = re.compile(
    r"fast-math|-march=native|-mtune=native|-Ofast|-mfma|/fp:fast|fp-contract=(?!off)"
)


def code_files() -> list[Path]:
    found = [
        path
        for folder in CODE_FOLDERS
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and (path.suffix in CODE_SUFFIXES or path.name == "CMakeLists.txt")
    ]
    assert len(found) > 20
    return found


def test_every_source_file_names_the_licence() -> None:
    spdx = "SPDX-License-Identifier: Apache-2.0"
    files = [*code_files(), *(ROOT / name for name in BUILD_FILES if not name.endswith(".json"))]
    lacking = [
        str(p.relative_to(ROOT))
        for p in files
        if spdx not in "".join(p.read_text("utf-8").splitlines()[:2])
    ]
    assert lacking == []


def test_the_core_knows_nothing_of_python() -> None:
    files = [
        p
        for folder in ("include", "src")
        for p in sorted((ROOT / "csrc" / folder).rglob("*.[ch]pp"))
    ]
    assert len(files) > 5
    assert [
        str(p.relative_to(ROOT)) for p in files if PYTHON_IN_CORE.search(p.read_text("utf-8"))
    ] == []


def test_nothing_puts_the_bits_of_the_stream_at_risk() -> None:
    files = [*(ROOT / name for name in BUILD_FILES), *sorted((ROOT / "csrc").rglob("*.[ch]pp"))]
    assert [
        str(p.relative_to(ROOT)) for p in files if BITS_AT_RISK.search(p.read_text("utf-8"))
    ] == []
    assert "-ffp-contract=off" in (ROOT / "CMakeLists.txt").read_text("utf-8")


def test_the_text_rules_find_what_they_look_for() -> None:
    assert all(
        PYTHON_IN_CORE.search(t)
        for t in ("#include <pybind11/pybind11.h>", "#include <Python.h>", "py::array")
    )
    assert all(
        BITS_AT_RISK.search(t)
        for t in ("-ffast-math", "-march=native", "-mfma", "-ffp-contract=fast")
    )
    assert not BITS_AT_RISK.search("-O3 -mavx2 -ffp-contract=off")


def test_cmake_lists_every_cpp_file() -> None:
    listed = (ROOT / "CMakeLists.txt").read_text("utf-8")
    tests = (ROOT / "csrc" / "tests" / "CMakeLists.txt").read_text("utf-8").split()
    for folder in ("src", "bindings"):
        for path in (ROOT / "csrc" / folder).glob("*.cpp"):
            assert path.relative_to(ROOT).as_posix() in listed
    for path in (ROOT / "csrc" / "tests").glob("test_*.cpp"):
        assert path.stem.removeprefix("test_") in {word.rstrip(")") for word in tests}
