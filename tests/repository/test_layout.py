# SPDX-License-Identifier: Apache-2.0
"""The rules of the house: who may import whom, and what no source file may hold."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from package_source import ROOT, modules

PACKAGE = "dpftrl_fast"

# The drawing of docs/internals/architecture.md, from the bottom up. A component (a folder, or a
# module beside the folders) imports components of lower rows only: so noise, accounting and kernels
# know nothing of each other.
LAYERS = [
    {"_core", "_validate", "files", "plots", "reference", "rounding"},
    {"mechanisms", "tables"},
    {"accounting", "datasets", "kernels", "noise"},
    {"_chacha", "ftrl", "plan"},
    {"convex", "run"},
    {"streams"},
    {"preprocessing"},
    {"federated", "jax", "linear_model", "torch"},
    {"fitting", "optax"},
    {"audit", "experiments"},
    {"__init__"},
    {"cli"},
]
RANK = {name: rank for rank, row in enumerate(LAYERS) for name in row}
MOST_MODULES_IN_ROOT, MOST_MODULES_IN_FOLDER = 6, 20

# The components that may import a package: those beyond the bare install, and Numba.
PLACES = {
    "dask": {"linear_model"},
    "distributed": set(),  # its client is found where the caller has made one
    "dp_accounting": {"accounting"},
    "flwr": {"federated"},
    "jax": {"jax", "optax"},
    "matplotlib": {"plots"},
    "numba": {"kernels"},
    "opacus": {"torch"},
    "optax": {"optax"},
    "pandas": {"streams"},  # frames, for callers who have it
    "pyarrow": {"datasets", "linear_model", "tables"},
    "rich": {"cli"},
    "sklearn": {"linear_model", "preprocessing"},
    "threadpoolctl": {"kernels"},
    # cli: a baseline of `dpftrl-fast bench`, where it is installed
    "torch": {"audit", "cli", "experiments", "torch"},
    "triton": {"torch"},
    "typer": {"cli"},
    "yaml": {"tables"},
}
OPTIONAL = sorted(set(PLACES) - {"numba"})
# Any component may import these; typing_extensions for type checkers only; the last two in Cython.
EVERYWHERE = {"numpy", "scipy", "typing_extensions", "cython", "libc"}


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
        elif top not in {*sys.stdlib_module_names, *EVERYWHERE, *PLACES}:
            found.append(f"{own} imports {top}, which no requirement brings")
        allowed = PLACES.get(top)
        if allowed is not None and own not in allowed:
            found.append(f"{own} imports {top}, which belongs into {sorted(allowed)}")
    return found


def cython_imports(source: str) -> str:
    """Import lines of a Cython file as Python; of several names, the first."""
    lines = re.findall(
        r"^\s*((?:from\s+[\w.]+\s+)?)c?import\s+\(?\s*(\w[\w.]*)", source, re.MULTILINE
    )
    return "\n".join(f"{start}import {name}" for start, name in lines)


def test_imports_run_downward_and_optional_packages_stay_in_their_place() -> None:
    found = [
        f"{module.path.relative_to(ROOT)}: {text}"
        for module in modules().values()
        for text in violations(
            module.path.read_text("utf-8"), module.name, is_package=module.is_package
        )
    ]
    for path in [*(ROOT / PACKAGE).rglob("*.pyx"), *(ROOT / PACKAGE).rglob("*.pxd")]:
        name = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
        source = cython_imports(path.read_text(encoding="utf-8"))
        assert source
        found += [f"{path.relative_to(ROOT)}: {text}" for text in violations(source, name)]
    assert found == []


def test_every_component_of_the_package_is_seen() -> None:
    seen = {component(module.name) for module in modules().values()}
    extensions = {"_core", "_chacha"}
    assert seen == set(RANK) - extensions


# ---- Modules ----


def module_imports() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """For each module the modules of the package that it imports anywhere in its body."""
    known = modules()
    graph: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for module in known.values():
        graph[module.name] = set()
        for name in imports(module.tree, module.name, is_package=module.is_package):
            if name[0] == PACKAGE:
                inside = name[1:]
                while inside not in known:  # the name of a function, class or extension
                    inside = inside[:-1]
                graph[module.name].add(inside)
        graph[module.name].discard(module.name)
    return graph


def cycle(graph: Mapping[tuple[str, ...], set[tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Return modules that import each other in a circle; none if there is no circle."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[tuple[str, ...]] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = module_imports()
    graph[()] = set()  # an extension module is imported by the name of the package
    assert cycle(graph) == []


def test_a_circle_is_found() -> None:
    assert cycle({("a",): {("b",)}, ("b",): {("c",)}, ("c",): {("a",)}})
    assert not cycle({("a",): {("b",), ("c",)}, ("b",): {("c",)}})


def private_imports(
    graph: Mapping[tuple[str, ...], set[tuple[str, ...]]],
) -> list[str]:
    """Imports of a module with an underscore from outside the folder that it lies in."""
    return [
        f"{'.'.join(importer)} imports {'.'.join(module)}"
        for importer, imported in graph.items()
        for module in imported
        for depth, part in enumerate(module)
        if part.startswith("_") and importer[:depth] != module[:depth]
    ]


def test_private_modules_are_imported_in_their_own_folder_only() -> None:
    assert private_imports(module_imports()) == []


def test_a_private_import_is_found() -> None:
    assert private_imports({("torch", "a"): {("kernels", "_jit")}})
    assert not private_imports({("kernels", "loops", "a"): {("kernels", "_jit"), ("_validate",)}})


def test_folders_stay_small() -> None:
    sizes = Counter(module.folder for module in modules().values())
    assert sizes[()] <= MOST_MODULES_IN_ROOT
    assert {folder: n for folder, n in sizes.items() if n > MOST_MODULES_IN_FOLDER} == {}


@pytest.mark.parametrize(
    ("module", "source", "word"),
    [
        (("noise",), "from dpftrl_fast import accounting", "not below"),
        (("noise",), "from .accounting.gaussian import epsilon", "not below"),
        (("noise",), "import dpftrl_fast.kernels.gradients", "not below"),
        (("accounting", "gaussian"), "from ..noise import TreeNoise", "not below"),
        (("kernels", "gradients"), "from dpftrl_fast.accounting import epsilon", "not below"),
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
        (("cli",), "import click", "no requirement"),
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
    source = "cimport cython\nfrom dpftrl_fast cimport (\n    plan)\nfrom libc cimport math\n"
    assert violations(cython_imports(source), ("_chacha",)) == [
        "_chacha imports plan, which is not below it"
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
        (("kernels", "gradients"), "from numba import njit", False),
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


ALL_BUT_COUNTS = "[getattr(package, n) for n in package.__all__ if n != 'PrivateCounter']"


@pytest.mark.parametrize(("use", "loaded"), [("pass", []), (ALL_BUT_COUNTS, ["numpy"])])
def test_importing_the_package_loads_nothing_optional(
    tmp_path: Path, use: str, loaded: list[str]
) -> None:
    code = (
        f"import sys, {PACKAGE} as package; {use}; "
        f"print(sorted(set(sys.modules) & {{*{OPTIONAL}, 'numba', 'numpy', 'scipy'}}))"
    )
    # Elsewhere, since -c puts the current folder first.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(loaded)


# ---- Text rules ----

CODE_SUFFIXES = {".cpp", ".hpp", ".h", ".in", ".cmake", ".py", ".pyi", ".pyx", ".pxd"}
CODE_FOLDERS = ["csrc", "cmake", PACKAGE, "tests", "benches", "examples", "docs"]
BUILD_FILES = [
    "CMakeLists.txt",
    "CMakePresets.json",
    "csrc/tests/CMakeLists.txt",
    "pyproject.toml",
    "Makefile",
    "Dockerfile",
    "packaging/conda/local_recipe.py",
    "packaging/conda/recipe.yaml",
    ".ci/run",
    ".github/dependabot.yml",
    *(str(p.relative_to(ROOT)) for p in (ROOT / ".github" / "workflows").glob("*.yml")),
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
        for path in (ROOT / "csrc" / folder).rglob("*.cpp"):
            assert path.relative_to(ROOT).as_posix() in listed
    for path in (ROOT / "csrc" / "tests").glob("test_*.cpp"):
        assert path.stem.removeprefix("test_") in {word.rstrip(")") for word in tests}
