# SPDX-License-Identifier: Apache-2.0
"""Every Python block of every page runs, in the order of its page, in an empty folder."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
from page_givens import GIVEN

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", flags=re.DOTALL | re.MULTILINE)
# Pages whose blocks another file runs.
ELSEWHERE = {
    "README": "repository/test_readme.py",
    "start/first_csv": "repository/test_first_csv.py",
    "frameworks/any_framework": "frameworks/test_any_framework.py",
    "frameworks/keras": "frameworks/test_keras.py",
    "frameworks/numba_cython": "frameworks/test_numba_cython.py",
    "torch/start": "repository/test_torch_pages.py",
    "torch/data": "repository/test_torch_pages.py",
    "torch/frameworks": "repository/test_torch_pages.py",
    "torch/gradients": "repository/test_torch_pages.py",
    "torch/optimizer": "repository/test_torch_pages.py",
}
# Packages beyond the imports of a page.
BEYOND = {"start/choose": {"dp_accounting"}, "start/private_counts": {"matplotlib"}}
# Warnings of tools among themselves, on pages with programs for them.
TOOLS = {"keras", "tensorflow", "jax", "flwr"}


def pages() -> dict[str, str]:
    """Texts with Python blocks, by name: README, or the path below docs/."""
    found = {}
    for path in [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))]:
        if "generated" in path.relative_to(ROOT).parts:
            continue
        name = path.relative_to(DOCS if path.is_relative_to(DOCS) else ROOT)
        text = path.read_text(encoding="utf-8")
        if BLOCK.search(text):
            found[name.with_suffix("").as_posix()] = text
    return found


PAGES = pages()


def imported(code: str) -> set[str]:
    """Return the packages that code imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    extras = {"dpftrl_fast.torch": "opacus", "dpftrl_fast.linear_model": "sklearn"}
    found = {name.partition(".")[0] for name in names}
    return found | {extras[name] for name in names if name in extras}


@pytest.mark.parametrize("name", sorted(set(PAGES) - set(ELSEWHERE)))
def test_blocks_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that stand behind them as comments are right."""
    blocks, given = BLOCK.findall(PAGES[name]), GIVEN.get(name, {})
    needed = BEYOND.get(name, set()).union(*map(imported, (*blocks, *given.values())))
    for package in sorted(needed - set(sys.stdlib_module_names)):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "page"}
    with warnings.catch_warnings():
        if needed & TOOLS:
            warnings.simplefilter("ignore")
        for number, block in enumerate(blocks):
            exec(compile(given.get(number, ""), f"given for {name}", "exec"), namespace)
            exec(compile(block, f"{name}.md, block {number}", "exec"), namespace)
            check_values(block, namespace)


def check_values(block: str, namespace: dict[str, object]) -> None:
    """Compare ``expression  # number`` with its value; of print(...) the last of its arguments."""
    for code, value in re.findall(r"^(\S.*?)  +# (\d+(?:\.\d+)?)\b", block, re.MULTILINE):
        expression = re.sub(r"^\w+ = ", "", code)
        if expression.startswith("print("):
            expression = expression.removeprefix("print(").removesuffix(")")
        found = eval(expression, namespace)
        found = found[-1] if isinstance(found, tuple) else found
        assert found == pytest.approx(float(value), abs=1e-3), code


def test_pages_that_run_elsewhere_are_read_there() -> None:
    for name, file in ELSEWHERE.items():
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert name in PAGES and re.search(rf"\b{name.rpartition('/')[2]}\b", text), name


def test_givens_are_of_blocks() -> None:
    for name, given in GIVEN.items():
        assert max(given) < len(BLOCK.findall(PAGES[name])), name


def test_values_are_compared() -> None:
    check_values('print("a", 1 + 1)    # 2\nx = 2 / 3  # 0.667\n', {})
    with pytest.raises(AssertionError):
        check_values("1 + 1  # 3\n", {})


# ---- Code that no test would run ----

# Words of indented code for a GPU, and of parts of programs that tests/frameworks completes.
NOT_HERE = ("cupy.", "cythonize(", "ctypes.CDLL(", "tf.foldl(")


def is_code(text: str) -> bool:
    """Whether an indented block is a piece of Python rather than output or a formula."""
    try:
        body = ast.parse(textwrap.dedent(text)).body
    except SyntaxError:
        return False
    imports = any(isinstance(node, (ast.Import, ast.ImportFrom)) for node in body)
    calls = [
        node
        for node in body
        if isinstance(node, (ast.Assign, ast.Expr)) and isinstance(node.value, ast.Call)
    ]
    return imports or any("." in ast.unparse(node.value.func) for node in calls)


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.md")), ids=lambda p: p.stem)
def test_python_is_fenced(path: Path) -> None:
    """Indented code is neither coloured nor run: write it between ```python and ```."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for block in re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", text, flags=re.MULTILINE):
        assert any(word in block for word in NOT_HERE) or not is_code(block), block


def test_code_is_told_from_output() -> None:
    assert is_code("    from a import b\n") and is_code("    x = a.b(1)\n")
    assert not is_code("    theta_t = theta_0 - lr (s_t + n_t) / B\n")
    assert not is_code("    z(key, rounds)\n") and not is_code("    epsilon 8 at delta 1e-6\n")
