# SPDX-License-Identifier: Apache-2.0
"""One definition each: argument checks, makers of noise, statements of epsilon, mechanisms."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from package_source import Module, called, functions, modules

NUMBER_TYPES = {
    "bool",
    "int",
    "float",
    "Real",
    "Integral",
    "bool_",
    "integer",
    "number",
    "floating",
}
MECHANISM_FIELDS = {"variant", "restart_every", "tree_lengths", "complete"}

# Where the types of numbers are looked at for another reason than checking an argument.
NOT_VALIDATORS = {
    "accounting.guard.state",  # entries of a saved state, which is data from a file
    "noise.state",  # likewise
    "tables.schema.columns",  # declared categories are text or integers
    "accounting.guard.ids",  # users are text or integers
    "federated.ids",  # likewise the names of clients
}
# Signatures that people write by keyword and tools read by name.
MAY_REPEAT_MECHANISM = {
    "mechanisms.tree:Tree.__init__",
    "accounting.planner.schedules:plan_schedule",
}


def names_in(node: ast.AST) -> set[str]:
    return {getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)}


def validators(module: Module) -> Iterator[str]:
    """Functions that look at the type of a number and raise a TypeError."""
    for name, function in functions(module.tree):
        looks = any(
            isinstance(n, ast.Call)
            and called(n) == "isinstance"
            and len(n.args) == 2
            and names_in(n.args[1]) & NUMBER_TYPES
            for n in ast.walk(function)
        )
        raises = any(
            isinstance(n, ast.Raise) and n.exc is not None and "TypeError" in names_in(n.exc)
            for n in ast.walk(function)
        )
        if looks and raises:
            yield f"{module}:{name}"


def test_arguments_are_checked_in_one_module() -> None:
    found = [
        name
        for module in modules().values()
        if str(module) != "_validate"
        and module.name[:1] != ("reference",)  # stands alone on purpose
        and str(module) not in NOT_VALIDATORS
        for name in validators(module)
    ]
    assert found == []


def test_only_the_noise_spec_makes_planned_noise() -> None:
    makers = {"PlannedTree", "PlannedToeplitz", "DeviceNoise"}
    found = [
        f"{module}:{node.lineno}"
        for module in modules().values()
        if module.name != ("plan", "noise_spec")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and called(node) in makers
    ]
    assert found == []
    spec = modules()["plan", "noise_spec"].tree
    assert any(isinstance(n, ast.Call) and called(n) == "source_of" for n in ast.walk(spec))
    callers = [
        str(module)
        for module in modules().values()
        if any(isinstance(n, ast.Call) and called(n) == "source_of" for n in ast.walk(module.tree))
    ]
    assert callers == ["plan.noise_spec"]


def test_one_class_states_an_epsilon() -> None:
    found = [
        f"{module}:{name}"
        for module in modules().values()
        for name, _ in functions(module.tree)
        if name.endswith(".epsilon") and name.count(".") == 1
    ]
    assert found == ["accounting.statement.statement:PrivacyStatement.epsilon"]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    arguments = function.args
    return {a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]}


def repeats(module: Module) -> Iterator[str]:
    """Signatures and field lists with three of the mechanism's fields."""
    for name, function in functions(module.tree):
        if len(parameters(function) & MECHANISM_FIELDS) >= 3:
            yield f"{module}:{name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            fields = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            if len(fields & MECHANISM_FIELDS) >= 3:
                yield f"{module}:{node.name}.__init__"


def test_no_signature_repeats_the_fields_of_the_mechanism() -> None:
    found = {
        name
        for module in modules().values()
        # scikit-learn reads an estimator's parameters off its constructor, Typer a command's.
        if module.name[0:1] not in {("cli",), ("linear_model",), ("reference",)}
        for name in repeats(module)
    }
    assert found - MAY_REPEAT_MECHANISM == set()
    assert "mechanisms.tree:Tree.__init__" in found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(x):\n    if isinstance(x, bool):\n        raise TypeError(f'got {x}')", ["m:f"]),
        ("def f(x):\n    if isinstance(x, np.integer):\n        raise TypeError", ["m:f"]),
        ("def f(x):\n    if isinstance(x, str):\n        raise TypeError", []),
        ("def f(x):\n    return isinstance(x, bool)", []),
    ],
)
def test_the_search_for_validators_finds_them(source: str, expected: list[str]) -> None:
    module = Module(("m",), modules()[()].path, False, ast.parse(source))
    assert list(validators(module)) == expected


def test_the_search_for_repeated_fields_finds_them() -> None:
    source = "def f(variant, complete, *, restart_every=None): ...\ndef g(variant, complete): ..."
    module = Module(("m",), modules()[()].path, False, ast.parse(source))
    assert list(repeats(module)) == ["m:f"]


# Figures of the paper, which are as they were published.
PUBLISHED = {"experiments.federated.report_goals": {"epsilon", "line.epsilon"}}
LOSS = re.compile(r"(?<![a-z])(epsilon|delta|floor|mu)(?![a-z_])")


def test_no_text_rounds_an_epsilon_delta_or_mu_to_nearest() -> None:
    """`text_up`, `fixed_up` and `short_up` make texts of privacy losses; constants are as short."""
    found = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.FormattedValue) or node.format_spec is None:
                continue
            words, spec = ast.unparse(node.value), ast.unparse(node.format_spec).strip("f'\"")
            number = spec[-1:] in tuple("eg") or re.search(r"[.]\d*$", spec)
            if LOSS.search(words) and number and words not in PUBLISHED.get(str(module), ()):
                found.append(f"{module}: {words} as {spec}")
    assert found == []
